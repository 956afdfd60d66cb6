package evaluate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/internal/freeport"
	"github.com/penstock/penstock/internal/testbed"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/node"
	"github.com/penstock/penstock/orchestrator"
	"github.com/penstock/penstock/research/bench"
	"github.com/penstock/penstock/shm/cpuset"
)

// cpus divides the CPUs that this process was started with between the node and the load.
// The manager gets the first `reserved` CPUs of the node's. This process keeps to the
// load's CPUs while a node runs.
type cpus struct {
	all, node, load []int
	reserved        int
}

// minCPUs is the min number of CPUs at which the load gets its own.
const minCPUs = 8

// divideCPUs gives the load three eighths of the CPUs, and the manager half of the rest, as
// the other benchmarks do. The load needs so many because it builds every datagram that the
// manager parses. If there are few CPUs, node and load share them.
func divideCPUs() cpus {
	own, ifs := orchestrator.IFCPUs(0, orchestrator.Near{})
	all := slices.Sorted(slices.Values(slices.Concat(own, ifs)))
	all = slices.Compact(all)
	if len(all) < minCPUs {
		return cpus{all: all, node: all, load: all}
	}
	n := len(all) - 3*len(all)/8
	return cpus{all: all, node: all[:n:n], load: all[n:], reserved: n / 2}
}

// rig is a node under measurement, with one variant's configuration.
type rig struct {
	*node.Node
	cpus      cpus
	variant   variant
	options   nodeOptions
	functions []Function
	cards     map[string]*models.Card // by function
	pictures  map[string][][]byte     // by function
	full      map[string]float64      // requests per second at level 1, by function
}

// startPatience bounds a node's start.
const startPatience = 90 * time.Second

// startHarness starts a node for a case, with the functions that the case begins with.
func (r *runner) startHarness(ctx context.Context, v variant, c *Case, first []Function) (_ *rig, err error) {
	b := &rig{cpus: r.cpus, variant: v, functions: c.Functions, cards: map[string]*models.Card{}, pictures: map[string][][]byte{}, full: map[string]float64{}}
	b.options = nodeOptions{device: r.device, reserved: r.cpus.reserved, frugal: c.Frugal, weights: r.Weights, cards: map[string]string{}}
	for _, f := range c.Functions {
		card, err := r.Card(f.Model)
		if err != nil {
			return nil, err
		}
		b.cards[f.Name], b.pictures[f.Name], b.full[f.Name] = card, noise(card), r.full(c, &f, card)
		if b.options.cards[f.Name], err = r.ladder(card, f.Batches); err != nil {
			return nil, err
		}
	}
	b.options.intake = r.intake(c, b.cards)
	config, err := v.config(b.options, first)
	if err != nil {
		return nil, err
	}
	at, err := freeport.Find()
	if err != nil {
		return nil, err
	}
	if err := cpuset.Pin(r.cpus.node); err != nil {
		return nil, err
	}
	limit, cancel := context.WithTimeoutCause(ctx, startPatience, fmt.Errorf("no process of some function served within %v", startPatience))
	defer cancel()
	watched, stop := context.WithCancelCause(limit)
	go watchStart(watched, stop, at)
	b.Node, err = node.Start(watched, node.Options{
		Binary: r.Binary, Config: config, HTTP: at, Environment: []string{v.lab(b.options).Environment()},
	})
	if pinErr := cpuset.Pin(r.cpus.load); err == nil && pinErr != nil {
		b.Kill()
		err = pinErr
	}
	if err == nil {
		if err = b.waitComplete(watched); err != nil {
			b.Kill()
		}
	}
	stop(nil)
	if err == nil && r.device != configs.DeviceCPU {
		if err = b.held(); err != nil {
			b.Kill()
		}
	}
	if err != nil {
		return nil, errors.Join(err, cpuset.Pin(r.cpus.all))
	}
	return b, nil
}

// held returns an error if processes share the GPU in another way than the variant's. This
// happens because a node continues without MPS if MPS does not start.
func (b *rig) held() error {
	status, err := b.Status()
	if err != nil {
		return err
	}
	want := "mps"
	if !b.variant.mps {
		want = "time-slicing"
	}
	if status.Devices[0].Mechanism == want {
		return nil
	}
	why := ""
	if status.Devices[0].GPU != nil {
		why = status.Devices[0].GPU.Why
	}
	return fmt.Errorf("processes are held by %q, want %q: %s; the node said: %s", status.Devices[0].Mechanism, want, why, b.Log())
}

// watchStart cancels the start of a node if a process reports why it cannot serve, and
// still reports it a while later.
func watchStart(ctx context.Context, stop context.CancelCauseFunc, at netip.AddrPort) {
	const patience = 3 * time.Second
	n := node.Node{HTTP: at}
	since, said := time.Time{}, ""
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(250 * time.Millisecond):
		}
		status, err := n.Status()
		if err != nil {
			continue
		}
		name, reason := refusal(&status)
		switch {
		case reason == "":
			since, said = time.Time{}, ""
		case since.IsZero():
			since, said = time.Now(), reason
		case time.Since(since) > patience:
			stop(fmt.Errorf("%s does not serve: %s", name, said))
			return
		}
	}
}

// refusal returns the first function that no process serves, and the reason that one of its
// processes reports. Both are empty if there is no reason.
func refusal(status *control.Status) (name, reason string) {
	for _, f := range status.Functions {
		for i := range f.Instances {
			if _, serves := f.Instances[i].Serving(); serves {
				continue
			}
			for _, p := range f.Instances[i].Processes {
				if p.Reason != "" {
					return f.Name, p.Reason
				}
			}
		}
	}
	return "", ""
}

// waitComplete waits until every function has a process that serves with all its batch sizes.
func (b *rig) waitComplete(ctx context.Context) error {
	return b.WaitFor(ctx, "every batch size", func() bool {
		status, err := b.Status()
		return err == nil && !slices.ContainsFunc(status.Functions, func(f control.FunctionStatus) bool { return !wholly(&f) })
	})
}

func wholly(f *control.FunctionStatus) bool {
	for i := range f.Instances {
		if p, ok := f.Instances[i].Serving(); !ok || p.WarmingUp {
			return false
		}
	}
	return true
}

// end drains the node and lets this process run on all CPUs again.
func (b *rig) end() error { return errors.Join(b.Stop(), cpuset.Pin(b.cpus.all)) }

// kill ends a node that may have failed. It may be called after end.
func (b *rig) kill() {
	b.Kill()
	_ = cpuset.Pin(b.cpus.all) // it succeeded before
}

// lost returns how many requests the node accepted and never answered.
func lost(status *control.Status) (n uint64) {
	for _, f := range status.Functions {
		n += f.Lost
	}
	return n
}

// ladder writes a copy of a card with those batch sizes and returns its file name.
func (r *runner) ladder(card *models.Card, batches []int) (string, error) {
	return bench.WriteVariant(r.dir, card, batches)
}

// noise returns a few random pictures of a model's wire size.
func noise(card *models.Card) (pictures [][]byte) {
	const count = 4
	for i := range count {
		pictures = append(pictures, testbed.Noise(card, uint64(i)))
	}
	return pictures
}

// resolve returns a device name that means the same GPU in every process, its UUID, and the
// GPU's product name. visible is CUDA_VISIBLE_DEVICES, which determines CUDA's numbering.
func resolve(name, visible string, machine *testbed.Machine) (device, shown string, err error) {
	if name == configs.DeviceCPU {
		return name, cmp.Or(machine.CPU, name), nil
	}
	gpus := seen(visible, machine.GPUs)
	index := 0
	for _, g := range gpus {
		if g.UUID == name {
			return g.UUID, g.Name, nil
		}
	}
	if name != "cuda" {
		if n, err := fmt.Sscanf(name, "cuda:%d", &index); n != 1 || err != nil {
			return "", "", fmt.Errorf("device %q: want cpu, cuda, cuda:N or the UUID of a GPU that is here", name)
		}
	}
	if index < 0 || index >= len(gpus) {
		return "", "", fmt.Errorf("device %s: %d of this machine's %d GPUs can be seen", name, len(gpus), len(machine.GPUs))
	}
	return gpus[index].UUID, gpus[index].Name, nil
}

// seen returns the GPUs that CUDA_VISIBLE_DEVICES makes visible, in its order. Its entries
// are numbers and UUIDs or their prefixes; it ends at the first entry that matches no GPU.
// If it is empty, all are visible.
func seen(visible string, all []testbed.GPU) (gpus []testbed.GPU) {
	if visible == "" {
		return all
	}
	for _, entry := range strings.Split(visible, ",") {
		entry = strings.TrimSpace(entry)
		i := slices.IndexFunc(all, func(g testbed.GPU) bool { return entry != "" && strings.HasPrefix(g.UUID, entry) })
		if n, err := strconv.Atoi(entry); err == nil {
			i = n
		}
		if i < 0 || i >= len(all) {
			break
		}
		gpus = append(gpus, all[i])
	}
	return gpus
}

// newDir makes the folder of a figure's cards.
func newDir() (string, error) {
	dir, err := os.MkdirTemp("", "penstock-evaluate-")
	if err != nil {
		return "", fmt.Errorf("make folder: %w", err)
	}
	return dir, nil
}
