package bench

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/penstock/penstock/client"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/internal/testbed"
	"github.com/penstock/penstock/libml"
	"github.com/penstock/penstock/libml/frameworks"
	"github.com/penstock/penstock/loadgen"
	"github.com/penstock/penstock/loadgen/traffic"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/node"
)

// Residency compares three ways of hosting functions that get requests by Zipf's law: a worker with
// limited memory, a worker without a limit, and own processes. The runs are interleaved, each on its
// own node. Each list has a value per run.
type Residency struct {
	Machine   testbed.Machine `json:"machine"`
	Device    string          `json:"device"`
	Functions int             `json:"functions"`
	MemoryMiB int             `json:"memory_mib"`
	Limited   ResidencyWay    `json:"limited"`
	Unlimited ResidencyWay    `json:"unlimited"`
	Own       ResidencyWay    `json:"own"`
	// Ratio is the limited worker's median of MemoryMiB as a part of that of own processes.
	Ratio float64 `json:"memory_ratio"`
}

// ResidencyWay has the results of one way.
type ResidencyWay struct {
	Requests []float64 `json:"requests"`
	// InTime is the percentage of the requests that were answered within their objective. Wrong
	// counts answers that differ from those of the same model in the benchmark's own process,
	// Failed and Lost requests without an answer of the model.
	InTime []float64 `json:"in_time"`
	Wrong  []float64 `json:"wrong"`
	Failed []float64 `json:"failed"`
	Lost   []float64 `json:"lost"`
	// P50 is the median of the functions' median latencies, P99 that of their 99th percentiles, in
	// milliseconds.
	P50 []float64 `json:"p50_ms"`
	P99 []float64 `json:"p99_ms"`
	// Loads are loads per second of the run. LoadMillis is the median of the members' last loads.
	Loads      []float64 `json:"loads_per_s,omitempty"`
	LoadMillis []float64 `json:"load_ms,omitempty"`
	// MemoryMiB is the anonymous memory of the functions' processes, at most during the run. On a GPU it is
	// the GPU memory of all processes.
	MemoryMiB []float64 `json:"memory_mib"`
}

// ResidencyOptions say what RunResidency compares. Functions of the models follow each other.
type ResidencyOptions struct {
	testbed.Setup
	ModelNames []string
	Functions  int
	MemoryMiB  int
	// PerSecond is the rate of all requests together; the n-th function gets 1/n of the first one's.
	PerSecond float64
	Objective time.Duration
	Duration  time.Duration
	Rounds    int
	// Check compares the answers with those of the models in this process, on the CPU.
	Check bool
}

// RunResidency measures the ways in turn, Rounds times.
func RunResidency(ctx context.Context, o ResidencyOptions) (Residency, error) {
	r := Residency{Machine: o.Machine, Device: o.Device, Functions: o.Functions, MemoryMiB: o.MemoryMiB}
	if err := checkCards(&o.Setup, o.ModelNames); err != nil {
		return r, err
	}
	for round := range o.Rounds {
		for _, way := range []struct {
			name, worker string
			to           *ResidencyWay
		}{
			{"a worker with limited memory", fmt.Sprintf("{name: cold, share_percent: 90, lanes: 1, memory: %dMiB}", o.MemoryMiB), &r.Limited},
			{"a worker without a limit", "{name: cold, share_percent: 90, lanes: 1}", &r.Unlimited},
			{"own processes", "", &r.Own},
		} {
			o.Printf("round %d of %d: %s", round+1, o.Rounds, way.name)
			if err := o.run(ctx, way.worker, uint64(round+1), way.to); err != nil {
				return r, fmt.Errorf("%s: %w", way.name, err)
			}
		}
	}
	limited, _, _ := Spread(r.Limited.MemoryMiB)
	own, _, _ := Spread(r.Own.MemoryMiB)
	r.Ratio = limited / own
	return r, nil
}

// config is the node's configuration. worker is empty for own processes.
func (o *ResidencyOptions) config(worker string) string {
	var config strings.Builder
	config.WriteString(deviceAndModels(&o.Setup))
	member := ""
	if worker != "" {
		config.WriteString("workers: [" + worker + "]\n")
		member = ", worker: cold"
	}
	config.WriteString("functions:\n")
	for i := range o.Functions {
		fmt.Fprintf(&config, "  - {name: fn%d, model: %q, port: 0, slo: %v%s}\n", i, o.ModelNames[i%len(o.ModelNames)], o.Objective, member)
	}
	return config.String()
}

// rates divides PerSecond by Zipf's law with exponent 1, in an order that depends on the seed.
func (o *ResidencyOptions) rates(seed uint64) map[string]string {
	order := rand.New(rand.NewPCG(seed, 1)).Perm(o.Functions)
	sum := 0.0
	for n := range order {
		sum += 1 / float64(1+n)
	}
	rates := map[string]string{}
	for n, i := range order {
		rates[fmt.Sprintf("fn%d", i)] = strconv.FormatFloat(o.PerSecond/sum/float64(1+n), 'f', 4, 64)
	}
	return rates
}

// run adds the values of one node.
func (o *ResidencyOptions) run(ctx context.Context, worker string, seed uint64, to *ResidencyWay) error {
	ctx, cancel := context.WithTimeoutCause(ctx, workerPatience+o.Duration, fmt.Errorf("not finished after %v", workerPatience+o.Duration))
	defer cancel()
	n, err := node.Start(ctx, node.Options{Binary: o.Binary, Config: o.config(worker)})
	if err != nil {
		return err
	}
	defer n.Kill()
	var status control.Status
	if err := n.WaitFor(ctx, "every function and shadow", func() bool { return loaded(n, &status) }); err != nil {
		return err
	}

	spec := loadgen.Spec{Duration: o.Duration, Warmup: time.Second, Seed: seed}
	with := traffic.Options{Spec: spec, Rates: o.rates(seed), Arrivals: "poisson", Streams: 1}
	if o.Models != "" {
		with.Models = []string{o.Models}
	}
	if o.Check {
		with.Reference = func(card *models.Card) (traffic.Model, error) { return libml.NewReference(card, frameworks.New) }
	}
	requests, err := traffic.New(status, with)
	if err != nil {
		return err
	}
	defer requests.Close()
	before, _ := residencyOf(&status)
	memory := memoryPeak{node: n}
	report, err := loadgen.Run(ctx, requests.Spec, loadgen.Options{
		Dial:      loadgen.DialClient(client.Options{}),
		Status:    func(context.Context) (control.Status, error) { return n.Status() },
		Reference: requests,
		Observe:   func(loadgen.Snapshot) { memory.sample() },
	})
	if err != nil {
		return err
	}
	if status, err = n.Status(); err != nil {
		return err
	}
	peak, err := memory.end()
	if err != nil {
		return err
	}

	to.add(report)
	to.MemoryMiB = append(to.MemoryMiB, float64(peak)/(1<<20))
	if after, millis := residencyOf(&status); len(millis) > 0 {
		took := spec.Duration + spec.Warmup
		to.Loads = append(to.Loads, float64(after-before)/took.Seconds())
		slices.Sort(millis)
		to.LoadMillis = append(to.LoadMillis, millis[len(millis)/2])
	}
	return n.Stop()
}

// add adds the answers of a run.
func (w *ResidencyWay) add(report *loadgen.Report) {
	var sent, inTime, wrong, failed, lost float64
	var p50, p99 []float64
	for i := range report.Functions {
		f := &report.Functions[i]
		sent, inTime = sent+float64(f.Sent), inTime+f.WithinSLO/100*float64(f.Sent)
		wrong, failed = wrong+float64(f.Wrong), failed+float64(f.Failed)
		if f.Lost != nil {
			lost += float64(*f.Lost)
		}
		if f.OK > 0 {
			p50, p99 = append(p50, f.P50Millis), append(p99, f.P99Millis)
		}
	}
	w.Requests, w.InTime = append(w.Requests, sent), append(w.InTime, 100*inTime/max(1, sent))
	w.Wrong, w.Failed, w.Lost = append(w.Wrong, wrong), append(w.Failed, failed), append(w.Lost, lost)
	median, _, _ := Spread(p50)
	w.P50 = append(w.P50, median)
	median, _, _ = Spread(p99)
	w.P99 = append(w.P99, median)
}

// residencyOf returns the loads of all members, and the times of their last loads.
func residencyOf(status *control.Status) (loads uint64, millis []float64) {
	for i := range status.Functions {
		if r := status.Functions[i].Residency; r != nil {
			loads, millis = loads+r.Loads, append(millis, r.LastLoadMillis)
		}
	}
	return loads, millis
}

// memoryPeak finds the largest sum of the functions' anonymous memory.
type memoryPeak struct {
	node *node.Node

	mu    sync.Mutex // guards the others
	bytes int64
	err   error
}

// sample measures the memory now.
func (m *memoryPeak) sample() {
	bytes, err := functionMemory(m.node)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.bytes = max(m.bytes, bytes)
	if m.bytes == 0 {
		m.err = err
	}
}

// end measures once more, and returns the result.
func (m *memoryPeak) end() (bytes int64, err error) {
	m.sample()
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.bytes, m.err
}

// functionMemory returns the anonymous memory of all processes of functions, or the GPU memory of all processes.
func functionMemory(n *node.Node) (sum int64, err error) {
	status, err := n.Status()
	if err != nil {
		return 0, err
	}
	if status.Device != nil {
		return status.Device.UsedBytes, nil
	}
	processes := map[int]bool{}
	for _, f := range status.Functions {
		for _, p := range f.Instances[0].Processes {
			if p.PID == 0 || processes[p.PID] {
				continue
			}
			processes[p.PID] = true
			bytes, err := anonymousBytes(p.PID)
			if err != nil {
				return 0, err
			}
			sum += bytes
		}
	}
	return sum, nil
}
