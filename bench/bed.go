package bench

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/models/zoo"
	"github.com/penstock/penstock/node"
	"github.com/penstock/penstock/orchestrator"
	"github.com/penstock/penstock/shm/cpuset"
)

// Options are what the benchmarks of a device have in common.
type Options struct {
	// Binary is the penstock binary, of which nodes are made.
	Binary string
	// Device is as configs.Config.Device; benchmarks of a GPU run on a CPU too, to
	// be tried.
	Device string
	// Models is a folder of cards, searched before the shipped ones.
	Models string
	// Machine is copied into the report.
	Machine Machine
	// Progress, if not nil, is told what is being measured.
	Progress func(what string)
}

func (o *Options) say(format string, args ...any) {
	if o.Progress != nil {
		o.Progress(fmt.Sprintf(format, args...))
	}
}

// card finds a model's.
func (o *Options) card(name string) (*models.Card, error) {
	r := zoo.Registry{}
	if o.Models != "" {
		r.Dirs = []string{o.Models}
	}
	card, err := r.Find(name)
	if err != nil && o.Models == "" {
		return nil, fmt.Errorf("%w; --models names a folder of cards", err)
	}
	return card, err
}

// variant writes a card like that one, with another ladder of batch sizes, into dir.
// It is written as JSON, which is YAML too.
func variant(dir string, card *models.Card, batches []int) (file string, err error) {
	type object = map[string]any
	decoder := object{"name": card.Decoder.Name}
	for key, value := range card.Decoder.Params {
		decoder[key] = value
	}
	in := &card.Input
	input := object{
		"size":   []int{in.Height, in.Width, in.Channels},
		"wire":   object{"type": in.WireType, "layout": in.WireLayout},
		"tensor": object{"type": in.TensorType, "layout": in.TensorLayout},
	}
	if in.Name != "" {
		input["name"] = in.Name
	}
	if in.ReverseChannels {
		input["reverse_channels"] = true
	}
	if len(in.Mean) > 0 {
		input["mean"], input["std"] = in.Mean, in.Std
	}
	var outputs []object
	for _, o := range card.Outputs {
		outputs = append(outputs, object{"name": o.Name, "shape": o.Shape})
	}
	whole := object{
		"name": card.Name, "version": card.Version, "input": input, "outputs": outputs,
		"batches": batches, "slo": "10s", "threads": card.Threads, "decoder": decoder,
	}
	if card.Framework != "" {
		whole["framework"] = card.Framework
	} else {
		whole["command"] = card.Command
	}
	if card.Model != "" {
		whole["model"] = card.Model
	}
	text, err := json.MarshalIndent(whole, "", "  ")
	if err != nil {
		return "", fmt.Errorf("write card of %s: %w", card.Name, err)
	}
	file = filepath.Join(dir, fmt.Sprintf("%s-%s.yaml", card.Name, strings.Trim(strings.ReplaceAll(fmt.Sprint(batches), " ", "-"), "[]")))
	if err := os.WriteFile(file, append(text, '\n'), 0o600); err != nil {
		return "", fmt.Errorf("write card of %s: %w", card.Name, err)
	}
	return file, nil
}

// ladder is {1, n}, or {1}.
func ladder(n int) []int { return slices.Compact([]int{1, n}) }

// noisePicture is one of a model's wire size, of noise.
func noisePicture(card *models.Card) []byte {
	const seed = 2
	return Noise(card, seed)
}

// bed is a node that is measured.
type bed struct {
	*node.Node
	cpus cpuPlan
}

// served is one function of a bed's node.
type served struct {
	name, card  string
	percent     float64
	streams     int
	environment map[string]string
}

// bedOptions say what node to start.
type bedOptions struct {
	device    string
	change    configs.Change
	grain     int
	functions []served
	// slots is as aggregate.slots; 0 is 256.
	slots int
	// slabMiB is as slab.size; 0 is 512 MiB.
	slabMiB  int
	busyPoll time.Duration
	// source, if not empty, is configured in place of kernel sockets.
	source string
	env    []string
}

// newBedDir makes the folder of a bed to come.
func newBedDir() (string, error) {
	dir, err := os.MkdirTemp("", "penstock-bench-")
	if err != nil {
		return "", fmt.Errorf("make folder: %w", err)
	}
	return dir, nil
}

// startBed starts a node whose shares only move when they are told to and that holds
// nobody back for a fault, and keeps this process, which makes the load, off its CPUs.
func startBed(ctx context.Context, binary string, o bedOptions) (*bed, error) {
	b := &bed{cpus: planCPUs()}
	slots := o.slots
	if slots == 0 {
		slots = 256
	}
	var config strings.Builder
	fmt.Fprintf(&config, `
log: {level: info}
device: %s
reserved_cpus: %d
fault_hold: 0s
busy_poll: %v
aggregate: {slots: %d}
shares: {tune: false, change: %s, sm_grain: %d, minimum_percent: 1}
`, o.device, b.cpus.reserved, o.busyPoll, slots, o.change, o.grain)
	if o.source != "" {
		config.WriteString(o.source)
	} else {
		fmt.Fprintf(&config, "slab: {size: %dMiB, receive_buffer: 64MiB}\n", cmp.Or(o.slabMiB, 512))
	}
	if len(o.functions) == 0 {
		config.WriteString("functions: []\n")
	} else {
		config.WriteString("functions:\n")
	}
	for _, f := range o.functions {
		entry := map[string]any{"name": f.name, "model": f.card, "port": 0, "share_percent": f.percent, "slo": "10s"}
		if f.streams > 0 {
			entry["streams"] = f.streams
		}
		if len(f.environment) > 0 {
			entry["environment"] = f.environment
		}
		line, err := json.Marshal(entry)
		if err != nil {
			return nil, fmt.Errorf("write configuration: %w", err)
		}
		fmt.Fprintf(&config, "  - %s\n", line)
	}
	if err := cpuset.Pin(b.cpus.node); err != nil {
		return nil, err
	}
	limit, cancel := context.WithTimeoutCause(ctx, 2*time.Minute, errors.New("no process of some function was ready within two minutes"))
	defer cancel()
	var err error
	b.Node, err = node.Start(limit, node.Options{Binary: binary, Config: config.String(), Environment: o.env})
	if pinErr := cpuset.Pin(b.cpus.load); err == nil && pinErr != nil {
		b.Node.Kill()
		err = pinErr
	}
	if err == nil {
		if err = b.whole(limit); err != nil {
			b.Kill()
		}
	}
	if err != nil {
		return nil, errors.Join(err, cpuset.Pin(b.cpus.all))
	}
	return b, nil
}

// whole waits until every process that serves has all its batch sizes.
func (b *bed) whole(ctx context.Context) error {
	return b.WaitFor(ctx, "every batch size", func() bool {
		status, err := b.Status()
		return err == nil && !slices.ContainsFunc(status.Functions, func(f control.FunctionStatus) bool {
			return slices.ContainsFunc(f.Instances, func(in control.InstanceStatus) bool {
				p, _ := in.Serving()
				return p.Growing
			})
		})
	})
}

// end drains the node, and lets this process run anywhere again.
func (b *bed) end() error {
	return errors.Join(b.Stop(), cpuset.Pin(b.cpus.all))
}

// kill is end for a node that may have failed; it may be called after end.
func (b *bed) kill() {
	b.Kill()
	_ = cpuset.Pin(b.cpus.all) // it worked before
}

// cpuPlan divides the machine: a node's CPUs, of which the manager gets the first
// reserved, and the load's.
type cpuPlan struct {
	all, node, load []int
	reserved        int
}

// leastCPUs are needed for a load that has its own.
const leastCPUs = 8

// planCPUs gives the load three eighths: it makes checksums and copies of every
// datagram, as the manager does, and puts answers together besides. Half of the
// rest are the manager's. On a small machine the load shares the manager's.
func planCPUs() cpuPlan {
	own, ifs := orchestrator.IFCPUs(0)
	all := slices.Concat(own, ifs)
	slices.Sort(all)
	all = slices.Compact(all)
	if len(all) < leastCPUs {
		return cpuPlan{all: all, node: all, load: own}
	}
	n := len(all) - 3*len(all)/8
	return cpuPlan{all: all, node: all[:n:n], load: all[n:], reserved: n / 2}
}

// serving is the process of a function's first instance that serves, and the
// instance.
func (b *bed) serving(name string) (p control.ProcessStatus, in control.InstanceStatus, f control.FunctionStatus, err error) {
	f, err = b.Function(name)
	if err != nil {
		return p, in, f, err
	}
	if len(f.Instances) == 0 {
		return p, in, f, fmt.Errorf("function %s has no instance", name)
	}
	in = f.Instances[0]
	p, _ = in.Serving()
	return p, in, f, nil
}

// setShare orders a share and waits until the process that serves has it.
func (b *bed) setShare(ctx context.Context, name string, percent float64, change configs.Change) error {
	before, _, f, err := b.serving(name)
	if err != nil {
		return err
	}
	if same(f.SharePercent, percent) {
		return nil
	}
	if err := b.Order(control.SharePath, control.ShareOrder{Name: name, SharePercent: percent}); err != nil {
		return err
	}
	limit, cancel := context.WithTimeoutCause(ctx, time.Minute, fmt.Errorf("share %.1f of %s was not in force within a minute", percent, name))
	defer cancel()
	return b.WaitFor(limit, "a share", func() bool {
		p, in, f, err := b.serving(name)
		if err != nil || p.PID == 0 || p.Growing || !same(f.SharePercent, percent) {
			return false
		}
		switch change {
		case configs.ChangePartition:
			return len(in.SMGroups) > 0 && slices.Equal(in.SMGroups, p.SMGroups)
		case configs.ChangeInPlace:
			return true
		}
		return p.Generation != before.Generation
	})
}

// remove takes a function off the node and waits until it is gone.
func (b *bed) remove(ctx context.Context, name string) error {
	if err := b.Order(control.RemovePath, control.NameOrder{Name: name}); err != nil {
		return err
	}
	limit, cancel := context.WithTimeoutCause(ctx, time.Minute, fmt.Errorf("%s was there a minute after its removal", name))
	defer cancel()
	return b.WaitFor(limit, "a removal", func() bool {
		status, err := b.Status()
		if err != nil {
			return false
		}
		_, there := status.Function(name)
		return !there
	})
}

func same(a, b float64) bool { return a-b < 0.01 && b-a < 0.01 }

// shadowReady waits until a function has all its batch sizes and a shadow asleep, so that
// the next change finds it.
func (b *bed) shadowReady(ctx context.Context, name string) error {
	limit, cancel := context.WithTimeoutCause(ctx, time.Minute, fmt.Errorf("%s had no shadow within a minute", name))
	defer cancel()
	return b.WaitFor(limit, "a shadow", func() bool {
		p, in, _, err := b.serving(name)
		return err == nil && !p.Growing && slices.ContainsFunc(in.Processes, func(p control.ProcessStatus) bool {
			return p.Role == control.Shadow && p.State == control.Loaded
		})
	})
}
