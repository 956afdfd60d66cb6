package check

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/manager/fleet"
	"github.com/penstock/penstock/models/zoo"
	"github.com/penstock/penstock/orchestrator"
	"github.com/penstock/penstock/orchestrator/sandbox"
)

// Registry is where a configuration's models are found: its folders, then the
// models that come with Penstock.
func Registry(c configs.Config) zoo.Registry {
	return zoo.Registry{Dirs: c.ModelFolders(), Cache: c.RuntimeDir, Sums: c.ModelSums}
}

// ModelFolders are the folders of the models that Registry finds by name. It is empty without workers,
// whose processes may read them.
func ModelFolders(c configs.Config) []string {
	if len(c.Workers) == 0 {
		return nil
	}
	folders := slices.Clone(c.ModelFolders())
	for _, name := range zoo.Names() {
		if card, err := (zoo.Registry{Cache: c.RuntimeDir}).Find(name); err == nil { // a binary without models has none
			folders = append(folders, card.Dir)
		}
	}
	return folders
}

// Functions is what `penstock up` checks before it starts anything. The caller may add to
// the problems.
func Functions(c configs.Config) (*configs.Problems, error) {
	problems, err := c.Problems()
	if err != nil {
		return nil, err
	}
	for _, p := range fleet.Check(c, Registry(c).Find) {
		problems.Add(p.Err, "functions", p.Function, p.Key)
	}
	return problems, nil
}

// node is a check of a configuration with the state of this machine.
type node struct {
	config   configs.Config
	confined *orchestrator.Sandbox
	running  runningNode
	loaded   map[string]error // by card file
	problems *configs.Problems
	notes    []string
}

// Configuration is Functions and all that needs more time, or the state of this machine. Each problem
// is a fatal finding. Without problems, the findings are OK: that a node can run, and what may surprise.
func Configuration(ctx context.Context, c configs.Config) Report {
	notes, err := inspect(ctx, c)
	if err != nil {
		return Problems(err)
	}
	r := Report{pass(fmt.Sprintf("a node can run with it; functions: %d", len(c.Functions))).about(configuration)}
	for _, note := range notes {
		r = append(r, pass(note).about(configuration))
	}
	return r
}

const configuration = "configuration"

// Problems returns a fatal finding for each line of an error about a configuration.
func Problems(err error) (r Report) {
	for line := range strings.SplitSeq(err.Error(), "\n") {
		r = append(r, fail(line, "").fatalIf(true).about(configuration))
	}
	return r
}

// inspect returns the problems as one error with a line for each.
func inspect(ctx context.Context, c configs.Config) (notes []string, err error) {
	folders, missing := modelFolders(c.Models)
	c.Models = folders // a folder that is missing is one problem, not one for each function
	confined, sandboxErr := Sandbox(c)
	dir, remove, dirErr := runtimeDir(c.RuntimeDir, confined)
	if dirErr != nil { // one problem, not one for each model that is unpacked
		remove()
		if dir, remove, err = runtimeDir(filepath.Join(os.TempDir(), ".penstock-check"), confined); err != nil {
			return nil, dirErr
		}
	}
	defer remove()
	c.RuntimeDir = dir

	key, devicesErr := "device", Devices(c)
	if len(c.Devices) > 0 {
		key = "devices"
		gpus, _ := GPUs(dir) // Devices reports the error
		c.Resolve(gpus)
	}
	n := node{config: c, confined: confined, loaded: map[string]error{}}
	if n.problems, err = Functions(c); err != nil {
		return nil, err
	}
	n.problems.Add(dirErr, "runtime_dir")
	for i, err := range missing {
		n.problems.Add(err, "models", i)
	}
	n.problems.Add(devicesErr, key)
	n.running = findRunning(ctx, c)
	if n.running.sameFile {
		n.notes = append(n.notes, fmt.Sprintf("a node runs with this configuration, in %s", n.running.dir))
	}
	held, err := httpAddress(c, n.running)
	n.notes = append(n.notes, held...)
	n.problems.Add(err, "http")
	own, functions := orchestrator.IFCPUs(c.ReservedCPUs, Near(c))
	n.crowded(len(functions))
	if c.ReservedCPUs > len(own) {
		n.notes = append(n.notes, fmt.Sprintf("reserved_cpus: is %d, and the manager gets %d: inference functions keep at least one CPU", c.ReservedCPUs, len(own)))
	}
	keys, why := c.Unused()
	for _, key := range keys {
		n.notes = append(n.notes, key+" has "+why)
	}
	n.problems.Add(sandboxErr, "sandbox")
	n.readable()
	n.streams()
	n.publish()
	for i := range c.Functions {
		n.function(ctx, i)
	}
	return n.notes, n.problems.Err()
}

// crowded notes each function that has more instances than there are CPUs for functions.
func (n *node) crowded(cpus int) {
	for i := range n.config.Functions {
		f := &n.config.Functions[i]
		if f.Instances > cpus && slices.Equal(n.config.DevicesOf(f), []string{configs.DeviceCPU}) {
			n.notes = append(n.notes, fmt.Sprintf("instances of %s is %d, and the number of CPUs for functions is %d: further instances only wait", f.Name, f.Instances, cpus))
		}
	}
}

// modelFolders are the folders of models that there are, and by index why others are not.
func modelFolders(dirs []string) (existing []string, missing map[int]error) {
	missing = map[int]error{}
	for i, dir := range dirs {
		switch info, err := os.Stat(dir); {
		case err != nil:
			missing[i] = err
		case !info.IsDir():
			missing[i] = fmt.Errorf("%s is not a folder", dir)
		default:
			existing = append(existing, dir)
		}
	}
	return existing, missing
}

// readable checks what the sandbox's user shall read.
func (n *node) readable() {
	if n.confined == nil {
		return
	}
	n.problems.Add(sandbox.CheckReadable(n.confined.User, n.confined.Readable), "sandbox", "readable")
	for i, path := range n.confined.Readable {
		if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
			n.problems.Add(err, "sandbox", "readable", i)
		}
	}
}

// function checks the port and the model of a function.
func (n *node) function(ctx context.Context, i int) {
	f := n.config.Functions[i]
	notes, err := port(n.config, f, n.running)
	n.notes = append(n.notes, notes...)
	n.problems.Add(err, "functions", i, "port")
	card, err := Registry(n.config).Find(cmp.Or(f.Model, f.Name))
	if err != nil {
		return // Functions has said so
	}
	if _, done := n.loaded[card.File]; !done {
		n.notes = append(n.notes, card.Warnings...)
		n.loaded[card.File] = n.load(ctx, card)
	}
	key := "model"
	if f.Model == "" {
		key = "name"
	}
	n.problems.Add(n.loaded[card.File], "functions", i, key)
}
