package fleet

import (
	"cmp"
	"maps"
	"reflect"
	"slices"
	"time"

	"github.com/rs/zerolog"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/control"
)

// configFile is the configuration file as the manager follows it. The control loop owns it.
type configFile struct {
	// entries are the functions of the file, as the manager last followed them.
	entries map[string]configs.Function
	// waiting is an edit of which something waits until no function is being removed or replaced; nil:
	// none does.
	waiting *configs.Config
	// leaving are workers that the file no longer has, while they have members.
	leaving []configs.Worker
	status  control.ConfigurationStatus
}

func newConfigFile() configFile { return configFile{entries: map[string]configs.Function{}} }

// judge records whether the node matches the file at path; err is nil if it does.
func (c *configFile) judge(path string, err error, log zerolog.Logger) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	s := &c.status
	if text == "" && s.Error != "" {
		log.Info().Dur("rejected_for_ms", time.Since(s.Since)).Msg("configuration accepted again")
	}
	if text != s.Error || s.Since.IsZero() || text == "" {
		s.Since = time.Now().UTC()
	}
	s.File, s.Followed, s.Error = path, text == "", text
}

// needRestart records the edited keys that take effect only at a restart.
func (c *configFile) needRestart(keys []string, log zerolog.Logger) {
	if len(keys) > 0 && !slices.Equal(keys, c.status.NeedRestart) {
		log.Warn().Strs("keys", keys).Msg("edited keys need a restart of the node; only functions change while it runs")
	}
	c.status.NeedRestart = keys
}

// follow records that the node follows an entry.
func (c *configFile) follow(entry configs.Function) { c.entries[entry.Name] = entry }

// follows reports whether the manager follows an entry already.
func (c *configFile) follows(entry configs.Function) bool {
	last, ok := c.entries[entry.Name]
	return ok && reflect.DeepEqual(last, entry)
}

// saved reports whether the file has a function of that name.
func (c *configFile) saved(name string) bool {
	_, ok := c.entries[name]
	return ok
}

// keepOnly forgets the entries that are not in a list.
func (c *configFile) keepOnly(list []configs.Function) {
	maps.DeleteFunc(c.entries, func(name string, _ configs.Function) bool {
		return !slices.ContainsFunc(list, func(entry configs.Function) bool { return entry.Name == name })
	})
}

// dropWaiting drops what waits for a function that is removed by hand. It counts as followed.
func (c *configFile) dropWaiting(name string) {
	if c.waiting == nil {
		return
	}
	for _, entry := range c.waiting.Functions {
		if entry.Name == name {
			c.follow(entry)
		}
	}
}

// unsaved reports how a function differs from the file: it was added or changed at run time. byHand is
// the share that was set by hand. It returns "" if nothing differs.
func (c *configFile) unsaved(f configs.Function, byHand float64) control.Unsaved {
	entry, saved := c.entries[f.Name]
	switch {
	case !saved:
		return control.UnsavedAdded
	case byHand != 0 || f.Worker != entry.Worker || cmp.Or(f.Model, f.Name) != cmp.Or(entry.Model, f.Name):
		return control.UnsavedChanged
	}
	return ""
}

// list returns the followed entries by name.
func (c *configFile) list() []configs.Function {
	all := []configs.Function{}
	for _, name := range slices.Sorted(maps.Keys(c.entries)) {
		all = append(all, c.entries[name])
	}
	return all
}
