// Package repository serves the models of a folder. It follows changes of their files, finds or drafts their cards, and gives
// the node the orders that operators give with "penstock if".
//
//  1. look: which models are there, and the state of their files.
//  2. find: the card of each model whose files changed, and then stayed the same for an interval: a copy may take a while.
//  3. order: the node adds, loads or removes the function.
package repository

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"github.com/penstock/penstock/cmd/penstock/inspect"
	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/models/draft"
)

const (
	interval = time.Second
	// patience is the max time to wait for the node to carry out an order.
	patience = 2 * time.Minute
	// depth of the folders that belong to a model: NAME/1/model.onnx.
	depth = 3
)

// Follow serves the models in c.Repository until ctx ends. After the orders for those that were there at first it makes
// c.LoadedFile, and calls loaded once or more.
func Follow(ctx context.Context, c configs.Config, loaded func(), log zerolog.Logger) {
	f := follower{dir: c.Repository, drafts: c.DraftFolder(), node: c.RuntimeDir, log: log}
	if err := errors.Join(os.RemoveAll(f.drafts), os.MkdirAll(f.drafts, 0o755)); err != nil { // drafts of another node
		log.Warn().Err(err).Msg("cannot remove old drafts")
	}
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for ctx.Err() == nil {
		if f.step(ctx); f.models != nil {
			if err := os.WriteFile(c.LoadedFile(), nil, 0o600); err != nil {
				log.Warn().Err(err).Msg("cannot tell the manager that models are loaded")
			}
			loaded()
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
}

type follower struct {
	dir, drafts, node string
	log               zerolog.Logger
	unread            bool              // the folder cannot be read
	models            map[string]*model // by the name of their file or folder; nil before the first look
}

// model is a model as the node serves it.
type model struct {
	seen, done state  // of its files at the last look, and at the last order
	function   string // that the node was ordered to load
	served     *found // what it loaded; nil before the first success
}

// found is a model that a function can serve.
type found struct {
	control.LoadOrder
	version uint32
	files   state    // of the version's files
	notes   []string // what the card was drafted from
}

// step looks at the folder once.
func (f *follower) step(ctx context.Context) {
	now, err := look(f.dir)
	if err != nil && !f.unread {
		f.log.Error().Err(err).Msg("cannot read the folder of models; all functions stay")
	}
	if f.unread = err != nil; f.unread {
		return
	}
	status, err := control.ReadStatus(ctx, f.node)
	if err != nil {
		return // it starts
	}
	first := f.models == nil
	if first {
		f.models = map[string]*model{}
		f.log.Info().Str("folder", f.dir).Int("models", len(now)).Msg("serving a folder of models")
	}
	for name, s := range now {
		if m := f.models[name]; m == nil && first {
			f.models[name] = &model{seen: s}
		} else if m == nil {
			f.models[name] = &model{}
		}
	}

	var orders sync.WaitGroup
	for _, name := range slices.Sorted(maps.Keys(f.models)) {
		switch m, s := f.models[name], now[name]; {
		case s != m.seen:
			m.seen = s
		case s == "" && m.done == "":
			delete(f.models, name)
		case s == "":
			orders.Go(func() { f.remove(ctx, name, m) })
		case s != m.done:
			found, err := f.find(ctx, name, m, &status)
			if err == nil && found != nil {
				orders.Go(func() { f.load(ctx, name, m, found) })
				continue
			}
			m.done = s
			f.failed(ctx, name, err)
		}
	}
	orders.Wait()
}

// failed logs why a model is not served; err may be nil.
func (f *follower) failed(ctx context.Context, name string, err error) {
	if err != nil && ctx.Err() == nil {
		f.log.Error().Str("model", name).Err(err).Msg("cannot serve a model of the folder")
	}
}

// load orders a model.
func (f *follower) load(ctx context.Context, name string, m *model, found *found) {
	done, err := f.order(ctx, control.LoadPath, found.LoadOrder)
	if refusal := control.Refusal(""); err != nil && !errors.As(err, &refusal) && !errors.Is(err, errPatience) {
		return // the node was not asked, or died; the next step tries again
	}
	m.done = m.seen
	if err == nil || errors.Is(err, errPatience) {
		m.served = found
	}
	if err != nil {
		f.failed(ctx, name, err)
		return
	}
	f.log.Info().Str("model", name).Uint32("version", found.version).Strs("notes", found.notes).Msg(strings.ReplaceAll(done, "\n", "; "))
}

// remove removes the function of a model that has gone.
func (f *follower) remove(ctx context.Context, name string, m *model) {
	if m.served != nil {
		done, err := f.order(ctx, control.RemovePath, control.NameOrder{Name: m.function})
		if refusal := control.Refusal(""); err != nil && !errors.As(err, &refusal) {
			return // the next step tries again
		}
		f.log.Info().Str("model", name).AnErr("error", err).Msg(cmp.Or(done, "its function was gone"))
	}
	m.done = ""
}

var errPatience = fmt.Errorf("no result within %s; the node continues, and `penstock if list` shows when it is done", patience)

func (f *follower) order(ctx context.Context, path string, order any) (done string, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, errPatience)
	defer cancel()
	return control.SendOrder(ctx, f.node, path, order)
}

// find finds the card of a model, or drafts one. It returns nil if the version that is served has not changed.
func (f *follower) find(ctx context.Context, name string, m *model, status *control.Status) (*found, error) {
	path := filepath.Join(f.dir, name)
	isFolder := exists(path)
	if isFolder && (exists(path+inspect.Extension) || exists(path+".yaml")) {
		return nil, fmt.Errorf("the name %s has a folder and a file; rename one", name)
	}
	for _, file := range []string{path + ".yaml", filepath.Join(path, "card.yaml")} {
		if exists(file) {
			card, err := models.ReadCard(file)
			if err != nil {
				return nil, err
			}
			return f.check(m, status, &found{LoadOrder: control.LoadOrder{Name: card.Name, Model: file}, version: card.Version, files: m.seen})
		}
	}

	s := &source{file: path + inspect.Extension, options: draft.Options{Version: 1}}
	if m.served != nil {
		s.options.Version = m.served.version + 1
	}
	function := inspect.CardName(name)
	files := m.seen
	if isFolder {
		var err error
		if s, err = readTriton(path); err != nil {
			return nil, err
		}
		files = stateOf(s.file) + stateOf(filepath.Join(path, configName))
	}
	// Rollbacks need the cards of older versions.
	card := filepath.Join(f.drafts, function, fmt.Sprintf("%d.yaml", s.options.Version))
	found, err := f.check(m, status, &found{
		LoadOrder: control.LoadOrder{Name: function, Model: card, Instances: s.instances},
		version:   s.options.Version, files: files,
	})
	if err != nil || found == nil {
		return nil, err
	}
	result, err := inspect.File(ctx, s.file, s.options)
	if err != nil {
		return nil, err
	}
	// The second is found by the function's name, when a client loads it.
	for _, path := range []string{card, filepath.Join(f.drafts, function, "card.yaml")} {
		if err := result.SaveAs(path, s.file, function); err != nil {
			return nil, err
		}
	}
	found.notes = append(s.notes, "takes "+result.Kind)
	return found, nil
}

// check returns an error if a model must not be loaded, and nil if it is served already.
func (f *follower) check(m *model, status *control.Status, found *found) (*found, error) {
	switch served := m.served; {
	case served != nil && served.Name != found.Name:
		return nil, fmt.Errorf("the card's name was %s and is %s; want another file for another function", served.Name, found.Name)
	case served != nil && served.version == found.version && served.files == found.files:
		return nil, nil
	case served != nil && served.version == found.version:
		return nil, fmt.Errorf("files changed, and version %d serves already; want a higher version", found.version)
	}
	if _, exists := status.Function(found.Name); exists && m.function != found.Name {
		return nil, fmt.Errorf("the node has another function %s; rename one", found.Name)
	}
	for name, other := range f.models {
		if other != m && other.function == found.Name {
			return nil, fmt.Errorf("%s has the name %s, too; rename one", name, found.Name)
		}
	}
	m.function = found.Name
	return found, nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// state tells states of files apart; empty if there are none.
type state string

// look returns the state of each model in a folder, by the name of its file, without the extension, or its folder.
func look(dir string) (map[string]state, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	now := map[string]state{}
	for _, e := range entries {
		name, _, isModel := strings.Cut(e.Name(), inspect.Extension) // also net.onnx.data
		if info, err := os.Stat(filepath.Join(dir, e.Name())); err == nil && info.IsDir() {
			name, isModel = e.Name(), true
		} else if !isModel {
			name, isModel = strings.CutSuffix(e.Name(), ".yaml")
		}
		if isModel && !hidden(name) {
			now[name] += stateOf(filepath.Join(dir, e.Name()))
		}
	}
	return now, nil
}

// hidden reports whether a file is of a program that copies.
func hidden(name string) bool { return strings.HasPrefix(filepath.Base(name), ".") }

// stateOf returns the state of a file, or of those in a folder. No program can set the time of a file's last change.
func stateOf(path string) (s state) {
	parent := filepath.Dir(path)
	_ = fs.WalkDir(os.DirFS(parent), filepath.Base(path), func(name string, e fs.DirEntry, err error) error {
		var about unix.Stat_t
		switch {
		case err != nil:
			s += state(err.Error())
		case hidden(name), !e.IsDir() && unix.Stat(filepath.Join(parent, name), &about) != nil:
		case !e.IsDir():
			s += state(fmt.Sprintln(name, about.Dev, about.Ino, about.Ctim))
		case strings.Count(name, "/") == depth:
			return fs.SkipDir
		default:
			s += state(name)
		}
		return nil
	})
	return s
}
