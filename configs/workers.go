package configs

import (
	"errors"
	"fmt"
	"slices"

	"github.com/penstock/penstock/models/document"
)

// Worker is one process that hosts several functions, its members. They share its guarantee.
type Worker struct {
	// The worker's name, for the key worker of functions.
	Name string `yaml:"name" required:"true" pattern:"^[a-z0-9][a-z0-9_-]{0,63}$" want:"lower case letters, digits, '-' and '_', at most 64" example:"cold"`
	// The guarantee of all members together, in percent of the device's time. Together with the
	// share_percent of the functions it is at most 100.
	SharePercent float64 `yaml:"share_percent" required:"true" min:"0.1" max:"100" example:"30"`
	// The memory for the models of all members together: host memory on a CPU, device memory on a GPU.
	// The worker loads and evicts models to stay within it; unlimited if left out.
	Memory Size `yaml:"memory" min:"1MiB" max:"16TiB" example:"8GiB"`
	// On a GPU: the host memory that may be pinned for loads. A load of a model that is not pinned takes
	// longer. Unlimited if left out; needs memory.
	HostMemory Size `yaml:"host_memory" min:"1MiB" max:"16TiB" example:"16GiB"`
	// How many batches may run at once. Members divide into so many lanes, and those of a lane take
	// turns.
	Lanes int `yaml:"lanes" default:"2" min:"1" max:"16"`
	// Whose batch runs next in a lane: edf (the earliest deadline), fifo, fair (equal time), srtf (the
	// shortest), or pack (the least idle time).
	Policy string `yaml:"policy" default:"edf" oneof:"edf|fifo|fair|srtf|pack"`
}

// Worker returns the worker of a name.
func (c *Config) Worker(name string) (w Worker, ok bool) {
	i := slices.IndexFunc(c.Workers, func(w Worker) bool { return w.Name == name })
	if i < 0 {
		return Worker{}, false
	}
	return c.Workers[i], true
}

// EditedWorkers returns the workers of an edited configuration as they take effect without a restart.
// A worker keeps its lanes and its memory, because its process has them for its life.
func (c *Config) EditedWorkers(edited []Worker) []Worker {
	list := slices.Clone(edited)
	for i, w := range list {
		if before, ok := c.Worker(w.Name); ok {
			list[i].Lanes, list[i].Policy, list[i].Memory, list[i].HostMemory = before.Lanes, before.Policy, before.Memory, before.HostMemory
		}
	}
	return list
}

// WorkersPercent is the sum of the workers' guarantees.
func (c *Config) WorkersPercent() (sum float64) {
	for _, w := range c.Workers {
		sum += w.SharePercent
	}
	return sum
}

// checkWorkers finds faults of workers that the rules of the single keys do not cover.
func (c *Config) checkWorkers(root document.Value) {
	incomplete := root.Has("workers") && !root.Find("workers").IsList() ||
		slices.ContainsFunc(c.Workers, func(w Worker) bool { return w.Name == "" })
	if len(c.Workers) > 0 && c.Shares.Policy == PolicyGSLICE {
		root.Find("workers").Reject("need `policy: guarantee`, and shares.policy is gslice, which gives each process its own part of the device; want one of them left out")
		c.Workers, incomplete = nil, true
	}
	for i := range c.Functions {
		f := &c.Functions[i]
		if _, known := c.Worker(f.Worker); incomplete && !known {
			f.Worker = "" // report the fault of a worker once, and not for each member
		}
	}
	names, sum := map[string]bool{}, 0.0
	for i := range c.Workers {
		w, at := &c.Workers[i], root.Find("workers", i)
		if w.Name != "" && names[w.Name] {
			at.Find("name").Reject("is %q, which another worker has", w.Name)
		}
		names[w.Name] = true
		if err := anyOf(c.DeviceNames(), w.hostMemoryOn); err != nil {
			at.Find("host_memory").Reject("%v", err)
		}
		if err := CheckSum(w.SharePercent, 1, sum); err != nil {
			at.Find("share_percent").Reject("%v", err)
			w.SharePercent = 0 // report one sum once
		}
		sum += w.SharePercent
	}
}

// hostMemoryOn returns an error if host_memory can have no effect on a device.
func (w *Worker) hostMemoryOn(device string) error {
	switch {
	case w.HostMemory == 0:
		return nil
	case w.Memory == 0:
		return errors.New("limits host memory for loads, and without memory no model is loaded again; want `memory: 8GiB`, or delete the key")
	case device == DeviceCPU:
		return errors.New("is for a GPU, and the device is cpu; delete the key, memory is the limit there")
	}
	return nil
}

// workerUnder returns an error if a function cannot be a member of its worker under a configuration.
func (f *Function) workerUnder(c *Config) error {
	if f.Worker == "" {
		return nil
	}
	if !c.Guarantees() {
		return fmt.Errorf("is %q, which needs `policy: guarantee`, and this node divides the device into shares; delete the key", f.Worker)
	}
	if _, ok := c.Worker(f.Worker); ok {
		return nil
	}
	if len(c.Workers) == 0 {
		return fmt.Errorf("is %q, and the configuration has no workers; want `workers: [{name: %s, share_percent: 30}]`", f.Worker, f.Worker)
	}
	var names []string
	for _, w := range c.Workers {
		names = append(names, w.Name)
	}
	return fmt.Errorf("is %q, which no worker has%s", f.Worker, document.Correct(f.Worker, names))
}

// ownProcessKeys returns a conflict for each key that only a function outside workers can have.
func (f *Function) ownProcessKeys() (all []conflict) {
	if f.Worker == "" {
		return nil
	}
	add := func(key, format string, args ...any) {
		all = append(all, conflict{key, fmt.Errorf(format, args...)})
	}
	if f.SharePercent > 0 {
		add("share_percent", "is %v %%, and the members of worker %q share its guarantee; delete one of the two keys", f.SharePercent, f.Worker)
	}
	if f.Change != "" {
		add("change", "is %s, and worker %q has no shares that change; delete one of the two keys", f.Change, f.Worker)
	}
	if f.Instances > 1 {
		add("instances", "is %d, and worker %q runs each member once; delete one of the two keys", f.Instances, f.Worker)
	}
	if f.InFlight > 0 {
		add("in_flight", "is %d, and worker %q runs one batch of a member at a time; delete one of the two keys", f.InFlight, f.Worker)
	}
	if len(f.Environment) > 0 {
		add("environment", "belongs to a process, and worker %q runs several functions in one; delete one of the two keys", f.Worker)
	}
	return all
}
