// Package testbed runs a whole node under measurement: the machine and its device, and the
// node (Harness). `penstock profile` and the benchmarks of research/ use it.
package testbed

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/node"
	"github.com/penstock/penstock/orchestrator"
	"github.com/penstock/penstock/shm/cpuset"
)

// Setup has the common settings of measurements: the node's binary, its device, its
// models.
type Setup struct {
	// Binary is the penstock binary that nodes run.
	Binary string
	// Device is as configs.Config.Device. A measurement of a GPU can be tried on a CPU.
	Device string
	// Models is a folder of cards, searched before the shipped ones.
	Models string
	// Machine is copied into the report.
	Machine Machine
}

// Variant writes a copy of a card with another ladder of batch sizes into dir. It writes
// JSON, which is valid YAML too.
func Variant(dir string, card *models.Card, batches []int) (file string, err error) {
	keys := card.Keys()
	keys["batches"], keys["slo"] = batches, "10s"
	text, err := json.MarshalIndent(keys, "", "  ")
	if err != nil {
		return "", fmt.Errorf("write card of %s: %w", card.Name, err)
	}
	file = filepath.Join(dir, fmt.Sprintf("%s-%s.yaml", card.Name, strings.Trim(strings.ReplaceAll(fmt.Sprint(batches), " ", "-"), "[]")))
	if err := os.WriteFile(file, append(text, '\n'), 0o600); err != nil {
		return "", fmt.Errorf("write card of %s: %w", card.Name, err)
	}
	return file, nil
}

// Ladder returns {1, n}, or {1} if n is 1.
func Ladder(n int) []int { return slices.Compact([]int{1, n}) }

// Harness is a node under measurement.
type Harness struct {
	*node.Node
	cpus cpuPlan
}

// Options say which node to start.
type Options struct {
	// Device is as configs.Config.Device; empty: More has it.
	Device string
	// Change is how shares of `policy: gslice` change; empty for the node's default policy.
	Change configs.Change
	// Slots is as aggregate.slots; 0 is 256.
	Slots int
	// SlabMiB is as slab.size; 0 is 512 MiB.
	SlabMiB int
	// More is more of the configuration: functions, and a source in place of kernel sockets.
	More string
}

// NewDir makes the folder for a harness.
func NewDir() (string, error) {
	dir, err := os.MkdirTemp("", "penstock-bench-")
	if err != nil {
		return "", fmt.Errorf("make folder: %w", err)
	}
	return dir, nil
}

// Start starts a node. Its shares change only by order, and it holds no function back
// after a fault. Start also keeps this process, which generates the load, off the node's
// CPUs.
func Start(ctx context.Context, binary string, o Options) (*Harness, error) {
	b := &Harness{cpus: PlanCPUs()}
	slots := o.Slots
	if slots == 0 {
		slots = 256
	}
	change, lab := o.Change, configs.Lab{}
	if change == configs.ChangeRestart || change == configs.ChangeNone {
		change, lab.Change = configs.ChangeAuto, change
	}
	shares := ""
	if change != "" {
		shares = fmt.Sprintf("shares: {policy: gslice, tune: false, change: %s, minimum_percent: 1}", change)
	}
	device := ""
	if o.Device != "" {
		device = "device: " + o.Device
	}
	var config strings.Builder
	fmt.Fprintf(&config, `
log: {level: info}
%s
reserved_cpus: %d
fault_hold: 0s
aggregate: {slots: %d}
%s
%s
`, device, b.cpus.Reserved, slots, shares, o.More)
	if !strings.Contains(o.More, "source:") {
		fmt.Fprintf(&config, "slab: {size: %dMiB, receive_buffer: 64MiB}\n", cmp.Or(o.SlabMiB, 512))
	}
	if !strings.Contains(o.More, "functions:") {
		config.WriteString("functions: []\n")
	}
	if err := cpuset.Pin(b.cpus.Node); err != nil {
		return nil, err
	}
	limit, cancel := context.WithTimeoutCause(ctx, 2*time.Minute, errors.New("a function had no ready process after two minutes"))
	defer cancel()
	var err error
	b.Node, err = node.Start(limit, node.Options{Binary: binary, Config: config.String(), Environment: []string{lab.Environment()}})
	if pinErr := cpuset.Pin(b.cpus.Load); err == nil && pinErr != nil {
		b.Node.Kill()
		err = pinErr
	}
	if err == nil {
		if err = b.waitComplete(limit); err != nil {
			b.Kill()
		}
	}
	if err != nil {
		return nil, errors.Join(err, cpuset.Pin(b.cpus.All))
	}
	return b, nil
}

// waitComplete waits until every serving process has all its batch sizes.
func (b *Harness) waitComplete(ctx context.Context) error {
	return b.WaitFor(ctx, "every batch size", func() bool {
		status, err := b.Status()
		return err == nil && !slices.ContainsFunc(status.Functions, func(f control.FunctionStatus) bool {
			return slices.ContainsFunc(f.Instances, func(in control.InstanceStatus) bool {
				p, _ := in.Serving()
				return p.WarmingUp
			})
		})
	})
}

// Kill ends a node that may have failed. It may be called after End.
func (b *Harness) Kill() {
	b.Node.Kill()
	_ = cpuset.Pin(b.cpus.All) // it succeeded before
}

// cpuPlan divides the machine's CPUs between the node and the load. The manager gets the
// first `reserved` CPUs of the node's.
type cpuPlan struct {
	All, Node, Load []int
	Reserved        int
}

// MinCPUs is the min number of CPUs at which the load gets its own.
const MinCPUs = 8

// PlanCPUs gives the load three eighths of the CPUs. It computes checksums and copies
// every datagram, as the manager does, and also assembles answers. The manager gets half
// of the rest. On a small machine the load shares the manager's CPUs.
func PlanCPUs() cpuPlan {
	own, ifs := orchestrator.IFCPUs(0, orchestrator.Near{})
	all := slices.Concat(own, ifs)
	slices.Sort(all)
	all = slices.Compact(all)
	if len(all) < MinCPUs {
		return cpuPlan{All: all, Node: all, Load: own}
	}
	n := len(all) - 3*len(all)/8
	return cpuPlan{All: all, Node: all[:n:n], Load: all[n:], Reserved: n / 2}
}

// Remove removes a function from the node and waits until it is gone.
func (b *Harness) Remove(ctx context.Context, name string) error {
	limit, cancel := context.WithTimeoutCause(ctx, time.Minute, fmt.Errorf("%s still exists a minute after its removal", name))
	defer cancel()
	_, err := control.SendOrder(limit, b.Dir, control.RemovePath, control.NameOrder{Name: name})
	return err
}

func Same(a, b float64) bool { return a-b < 0.01 && b-a < 0.01 }

// Noise returns a random picture of a model's wire size.
func Noise(card *models.Card, seed uint64) []byte {
	random := rand.New(rand.NewPCG(1, seed))
	p := make([]byte, card.Input.WireBytes())
	for i := range p {
		p[i] = byte(random.Uint32())
	}
	return p
}

// Pause waits for d or until ctx ends.
func Pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
