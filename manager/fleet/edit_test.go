package fleet

import (
	"bytes"
	"errors"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/manager/sharing"
	"github.com/penstock/penstock/models"
)

// beganWith starts a node with a configuration file that has these functions.
func beganWith(t *testing.T, device string, gpu *control.GPU, functions ...configs.Function) *nodeBed {
	t.Helper()
	mechanism := "governor"
	if gpu != nil {
		mechanism = sharing.MechanismMPS
	}
	b := newNode(t, device, gpu, mechanism)
	b.cfg.Functions, b.cfg.File, b.cfg.Shares.Tune = functions, "/etc/node.yaml", false
	must.OK(t, b.Begin())
	b.JudgeConfiguration(nil)
	b.turns()
	return b
}

// edited replaces the functions of the configuration file. It returns the error that rejected
// the edit.
func (b *nodeBed) edited(functions ...configs.Function) error {
	b.t.Helper()
	c := b.cfg
	c.Functions = slices.Clone(functions)
	return b.followed(c)
}

func (b *nodeBed) followed(c configs.Config) error {
	b.t.Helper()
	err := b.Follow(c)
	b.turns()
	return err
}

// settles lets the processes of an edit start.
func (b *nodeBed) settles(name string) {
	b.t.Helper()
	f := &bed{b.functions.find(name), b.t}
	f.eventually("the edit of "+name+" is followed to its end", func() bool {
		b.turns()
		return f.model.replacing == nil && len(b.calls) == 0
	})
	b.turns()
}

// Each key of a function can change while it runs, or the edit is rejected with a reason.
func TestEditOfEachKey(t *testing.T) {
	process := func(is func(s setup) bool) func(b *nodeBed) bool {
		return func(b *nodeBed) bool {
			generation, _ := b.serves("a")
			f := b.functions.find("a")
			return generation > 1 && is(f.setupFor(b.instance("a", 0).pair.Active().Card)) && is(f.setup)
		}
	}
	rows := map[string]struct {
		edit func(c *configs.Function)
		live func(b *nodeBed) bool // whether it is in effect; nil: the key cannot change
	}{
		"model":         {func(c *configs.Function) { c.Model = "other" }, func(b *nodeBed) bool { return b.status("a").Model == "other" }},
		"port":          {func(c *configs.Function) { c.Port = 1 }, nil},
		"slo":           {func(c *configs.Function) { c.SLO = 70 * time.Millisecond }, process(func(s setup) bool { return s.slo == 70*time.Millisecond })},
		"share_percent": {func(c *configs.Function) { c.SharePercent = 60 }, func(b *nodeBed) bool { return b.status("a").SharePercent == 60 }},
		"priority":      {func(c *configs.Function) { c.Priority = 1 }, func(b *nodeBed) bool { return b.functions.find("a").config.Priority == 1 }},
		"weights":       {func(c *configs.Function) { c.Weights = configs.WeightsPrivate }, process(func(s setup) bool { return s.weights == configs.WeightsPrivate })},
		"in_flight":     {func(c *configs.Function) { c.InFlight = 2 }, process(func(s setup) bool { return s.streams == 2 })},
		"environment":   {func(c *configs.Function) { c.Environment = map[string]string{"A": "b"} }, process(func(s setup) bool { return s.environment["A"] == "b" })},
		"pictures":      {func(c *configs.Function) { c.Pictures = "10/s" }, func(b *nodeBed) bool { return b.functions.find("a").port.CopiesPictures() }},
		"instances":     {func(c *configs.Function) { c.Instances = 2 }, nil},
		"devices":       {func(c *configs.Function) { c.Devices = []configs.DeviceName{"cuda"} }, nil},
		"change":        {func(c *configs.Function) { c.Change = configs.ChangeShadow }, nil},
		"receivers":     {func(c *configs.Function) { c.Receivers = 2 }, nil},
		"format":        {func(c *configs.Function) { c.Format = configs.FormatGVSP }, nil},
		"max_picture":   {func(c *configs.Function) { c.MaxPicture = "640x480" }, nil},
		"key":           {func(c *configs.Function) { c.Key = "/etc/penstock.keys" }, nil}, // its file is followed: TestKeysFollow
		"answers_to":    {nil, nil},                                                        // TestEditCamera
		"allowed":       {nil, nil},                                                        // of a camera
		"colours":       {nil, nil},                                                        // of a camera
		"worker":        {nil, nil},                                                        // TestEditWorker
		"name":          {nil, nil},                                                        // another name is another function
	}
	for i := range reflect.TypeFor[configs.Function]().NumField() {
		key, _, _ := strings.Cut(reflect.TypeFor[configs.Function]().Field(i).Tag.Get("yaml"), ",")
		row, ok := rows[key]
		if !ok {
			t.Errorf("key %q of a function: decide whether it changes while it runs", key)
		}
		if row.edit == nil {
			continue
		}
		t.Run(key, func(t *testing.T) {
			b := beganWith(t, "cuda", h200(), named("a", 40), named("b", 20))
			want := named("a", 40)
			row.edit(&want)
			err := b.edited(want, named("b", 20))
			if row.live == nil {
				refused(t, err, "function a: "+key, "cannot change while it runs", "remove the function from the file, save, and add it again")
				if s := b.page(); s.Configuration.Followed || !strings.Contains(s.Configuration.Error, key) {
					t.Errorf("status says %+v, want that %s is not followed", s.Configuration, key)
				}
				return
			}
			must.OK(t, err)
			b.settles("a")
			if !row.live(b) {
				t.Errorf("the edit is not in force: %+v", b.status("a"))
			}
			if generation, _ := b.serves("b"); generation != 1 {
				t.Errorf("generation %d of the other function serves, want the first", generation)
			}
			if !reflect.DeepEqual(b.functions.find("a").config, want) || b.status("a").Unsaved != "" {
				t.Errorf("it is %+v, unsaved %q; want the edit", b.functions.find("a").config, b.status("a").Unsaved)
			}
		})
	}
}

// Defaults that are written out change nothing.
func TestEditThatWritesDefaults(t *testing.T) {
	b := beganWith(t, configs.DeviceCPU, nil, configs.Function{Name: "a", Instances: 1})
	want := configs.Function{
		Name: "a", Instances: 1, Model: "a", Port: b.functions.find("a").port.LocalAddr().Port(), SLO: testCard().SLO,
		Change: configs.ChangeAuto, Receivers: 1,
	}
	must.OK(t, b.edited(want))
	if generation, _ := b.serves("a"); generation != 1 || b.functions.find("a").model.replacing != nil {
		t.Errorf("generation %d serves, want the first", generation)
	}
}

func TestEditSLO(t *testing.T) {
	t.Run("a process that cannot start", func(t *testing.T) {
		b := beganWith(t, configs.DeviceCPU, nil, named("a", 40))
		want := named("a", 50)
		want.SLO = time.Second
		must.OK(t, b.edited(want))
		b = beganWith(t, configs.DeviceCPU, nil, named("a", 40))
		c := b.cfg
		c.Functions = []configs.Function{want}
		if err := b.Follow(c); err != nil {
			t.Error(err)
		}
		for range 6 { // every process except the active one ends
			b.Step()
			b.follow()
			for v, p := range b.fakes {
				if v.generation > 2 && !p.state.Ended() {
					p.die(control.Failed, "no memory")
				} else if v.generation == 2 {
					b.live(v, p)
				}
			}
			b.report()
		}
		f := b.functions.find("a")
		(&bed{f, t}).eventually("the failed edit is reported", func() bool {
			b.turns()
			return !b.page().Configuration.Followed
		})
		b.settles("a")
		if f.slo != testCard().SLO || f.config.SLO != 0 || f.config.SharePercent != 50 {
			t.Errorf("objective %v, configured %v, share %v; want the old objective, and the share of the edit", f.slo, f.config.SLO, f.config.SharePercent)
		}
		if s := b.page().Configuration; s.Followed || !strings.Contains(s.Error, "no memory") {
			t.Errorf("status says %+v, want why", s)
		}
		// Any later edit tries it again.
		must.OK(t, b.edited(want))
		b.settles("a")
		if f.slo != time.Second || !b.page().Configuration.Followed {
			t.Errorf("objective %v, %+v; want that of the file", f.slo, b.page().Configuration)
		}
	})
	t.Run("of the new model", func(t *testing.T) {
		b := beganWith(t, configs.DeviceCPU, nil, named("a", 40))
		b.changeCards(func(_ string, card *models.Card) { card.SLO = 3 * time.Second })
		b.replaced("a", "slower")
		if f := b.functions.find("a"); f.slo != 3*time.Second {
			t.Errorf("objective %v, want the new card's: the function has none of its own", f.slo)
		}
	})
}

// An entry may name the port that its function has, or leave it open again.
func TestEditPort(t *testing.T) {
	b := beganWith(t, configs.DeviceCPU, nil, named("a", 20))
	port := b.functions.find("a").port.LocalAddr().Port()
	for _, entry := range []uint16{port, 0} {
		want := named("a", 20)
		want.Port = entry
		if err := b.edited(want); err != nil {
			t.Errorf("port %d: %v", entry, err)
		}
		if got := b.functions.find("a").port.LocalAddr().Port(); got != port {
			t.Errorf("port %d: the function is at %d, want still %d", entry, got, port)
		}
	}
}

func TestEditKeepsRunTimeChanges(t *testing.T) {
	a, gone := named("a", 20), named("gone", 20)
	b := beganWith(t, configs.DeviceCPU, nil, a, gone)
	b.on(named("added", 10))
	b.turns()
	b.replaced("a", "better")
	must.OK(t, b.setShare("a", 40))
	must.OK(t, b.remove("gone"))
	b.turns()
	if got := []control.Unsaved{b.status("a").Unsaved, b.status("added").Unsaved}; !slices.Equal(got, []control.Unsaved{control.UnsavedChanged, control.UnsavedAdded}) {
		t.Errorf("unsaved are %q", got)
	}

	// The edit changes another function, a comment, or nothing.
	for _, functions := range [][]configs.Function{{a, gone}, {a, gone, named("b", 5)}, {named("b", 5), gone, a}} {
		must.OK(t, b.edited(functions...))
		if f := b.status("a"); f.Model != "better" || f.SharePercent != 40 {
			t.Errorf("a runs %s with %v %%, want what it was given at run time", f.Model, f.SharePercent)
		}
		if b.functions.find("added") == nil || b.functions.find("gone") != nil {
			t.Errorf("it has %v, want added and not gone", b.names())
		}
	}

	// An edited entry replaces the runtime changes.
	a.SLO, gone.SLO = time.Second, time.Second
	added := named("added", 10)
	added.SLO = time.Second
	var log bytes.Buffer
	b.functions.find("added").log = zerolog.New(&log)
	must.OK(t, b.edited(a, gone, added))
	b.settles("a")
	b.settles("added")
	for _, name := range []string{"a", "gone", "added"} {
		if f := b.status(name); f.SLOMillis != 1000 || f.Model != name || f.Unsaved != "" {
			t.Errorf("%s: objective %v ms, model %s, unsaved %q; want what the file says", name, f.SLOMillis, f.Model, f.Unsaved)
		}
	}
	if b.status("a").SharePercent != 20 {
		t.Errorf("a has %v %%, want the 20 of the file", b.status("a").SharePercent)
	}
	if !strings.Contains(log.String(), "penstock if add") {
		t.Errorf("log does not say that the file wins: %s", &log)
	}

	// A function whose entry is deleted is removed, even if it was first added at run time.
	must.OK(t, b.edited(a, gone))
	if b.functions.find("added") != nil {
		t.Error("a function that the file no longer names is there")
	}
}

func TestEditTakesAddedPort(t *testing.T) {
	b := beganWith(t, configs.DeviceCPU, nil, named("a", 20))
	b.on(named("added", 10))
	b.turns()
	want := named("b", 10)
	want.Port = b.functions.find("added").port.LocalAddr().Port()
	must.OK(t, b.edited(named("a", 20), want))
	b.turns()
	if b.functions.find("added") != nil || b.functions.find("b") == nil || b.functions.find("b").port.LocalAddr().Port() != want.Port {
		t.Errorf("it has %v, want a, and b at the port of added", b.names())
	}
}

func TestEditShareConflict(t *testing.T) {
	b := beganWith(t, configs.DeviceCPU, nil, named("a", 20))
	b.on(named("added", 50))
	b.turns()
	err := b.edited(named("a", 60))
	refused(t, err, "keep function added", "110 %", "penstock if remove added")
	if got := b.status("a").SharePercent; got != 20 {
		t.Errorf("a has %v %%, want 20 as before", got)
	}
}

func TestConfigurationStatus(t *testing.T) {
	b := beganWith(t, configs.DeviceCPU, nil, named("a", 20))
	metric := func() float64 {
		t.Helper()
		found := b.series("penstock_configuration_rejected")
		if len(found) != 1 {
			t.Fatalf("series %v of penstock_configuration_rejected, want one", found)
		}
		return found[0].GetGauge().GetValue()
	}
	var log bytes.Buffer
	b.log = zerolog.New(&log)
	if s := b.page().Configuration; !s.Followed || s.File != "/etc/node.yaml" || s.Error != "" || s.Since.IsZero() {
		t.Errorf("status says %+v", s)
	}
	if metric() != 0 {
		t.Error("metric says that the configuration is rejected")
	}

	b.JudgeConfiguration(errors.New("node.yaml:3:1: no"))
	b.turn()
	first := b.page().Configuration
	if first.Followed || first.Error != "node.yaml:3:1: no" {
		t.Errorf("status says %+v", first)
	}
	if metric() != 1 {
		t.Error("metric says that the configuration is followed")
	}
	b.JudgeConfiguration(errors.New("node.yaml:3:1: no"))
	b.turn()
	if again := b.page().Configuration; again.Since != first.Since {
		t.Errorf("since %v, want since the first time, %v", again.Since, first.Since)
	}

	c := b.cfg
	c.Functions = []configs.Function{named("a", 20)}
	c.Listen, c.Shares.Interval = netip.MustParseAddr("0.0.0.0"), time.Minute
	must.OK(t, b.followed(c))
	s := b.page().Configuration
	if !s.Followed || s.Error != "" || !slices.Equal(s.NeedRestart, []string{"listen", "shares.interval"}) {
		t.Errorf("status says %+v, want it followed, and listen and shares.interval to wait for a restart", s)
	}
	for _, want := range []string{"configuration accepted again", `"keys":["listen","shares.interval"]`} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("log does not say %q:\n%s", want, &log)
		}
	}
}
