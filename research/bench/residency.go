package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/penstock/penstock/client"
	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/internal/testbed"
	"github.com/penstock/penstock/libml/frameworks"
	"github.com/penstock/penstock/libml/reference"
	"github.com/penstock/penstock/loadgen"
	"github.com/penstock/penstock/loadgen/traffic"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/node"
)

// Residency compares ways of hosting functions: a worker with limited memory, a worker without a limit, own
// processes, and each model alone in its own process. The runs are interleaved, each on its own node. Each
// list has a value per run.
type Residency struct {
	Machine   testbed.Machine `json:"machine"`
	Device    string          `json:"device"`
	Functions int             `json:"functions"`
	PerSecond float64         `json:"per_second"` // requests of all functions together
	Equal     bool            `json:"equal"`      // all functions get as many; if not, Zipf's law divides them
	MemoryMiB int             `json:"memory_mib"`
	// FixedMiB is the part of MemoryMiB that no eviction frees, WeightsMiB what all models take besides.
	// They are 0 if the memory was given.
	FixedMiB   float64      `json:"fixed_mib,omitempty"`
	WeightsMiB float64      `json:"weights_mib,omitempty"`
	Limited    ResidencyWay `json:"limited"`
	Unlimited  ResidencyWay `json:"unlimited"`
	Own        ResidencyWay `json:"own"`
	Alone      ResidencyWay `json:"alone"`
	// Ratio is the limited worker's median of MemoryMiB as a part of that of own processes, UnlimitedRatio
	// that of the other worker.
	Ratio          float64 `json:"memory_ratio"`
	UnlimitedRatio float64 `json:"unlimited_memory_ratio"`
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
	// Different counts the single requests after the load whose answers are not, byte for byte, those of
	// own processes.
	Different []float64 `json:"different,omitempty"`
	// P50 is the median of the functions' median latencies, P99 that of their 99th percentiles, in
	// milliseconds.
	P50 []float64 `json:"p50_ms"`
	P99 []float64 `json:"p99_ms"`
	// Models has the latencies of each model's functions together.
	Models map[string]*ModelLatency `json:"models"`
	// AddedMean is the mean over the models of how much longer their mean latency is than alone. AddedP99 is
	// the largest such difference of their 99th percentiles. Both are in milliseconds, of the runs' medians.
	AddedMean float64 `json:"added_mean_ms"`
	AddedP99  float64 `json:"added_p99_ms"`
	// Loads are loads per second of the run. LoadMillis is the median of the members' last loads.
	Loads      []float64 `json:"loads_per_s,omitempty"`
	LoadMillis []float64 `json:"load_ms,omitempty"`
	// MemoryMiB is the anonymous memory of the functions' processes, at most during the run. On a GPU it is
	// the GPU memory of all processes.
	MemoryMiB []float64 `json:"memory_mib"`
}

// ModelLatency has the mean and the 99th percentile of ok answers, in milliseconds.
type ModelLatency struct {
	Mean []float64 `json:"mean_ms"`
	P99  []float64 `json:"p99_ms"`
}

// ResidencyOptions say what RunResidency compares. Functions of the models follow each other.
type ResidencyOptions struct {
	Setup
	ModelNames []string
	// Variants gives the n-th function of a model the card NAME-n, from the second one on.
	Variants bool
	// Ways are some of AllWays.
	Ways      []string
	Functions int
	MemoryMiB int
	// WeightsPart, if not 0, replaces MemoryMiB: this part of the weights fits.
	WeightsPart float64
	// PerSecond is the rate of all requests together. The n-th function gets 1/n of the first one's, or
	// Equal ones.
	PerSecond float64
	Equal     bool
	Objective time.Duration
	Duration  time.Duration
	Rounds    int
	// Check compares the answers with those of the models in this process, on the CPU.
	Check bool
}

// AllWays are the names of the ways: workers with limited memory and without a limit, own processes, and each
// model alone.
var AllWays = []string{"limited", "unlimited", "own", "alone"}

// residencyRun is one node.
type residencyRun struct {
	way    string   // of AllWays
	worker string   // its configuration; empty for own processes
	models []string // by function
	alone  bool     // one function after the other gets all requests
	to     *ResidencyWay
}

// RunResidency measures the ways in turn, Rounds times.
func RunResidency(ctx context.Context, o ResidencyOptions) (Residency, error) {
	r := Residency{
		Machine: o.Machine, Device: o.Device, Functions: o.Functions, PerSecond: o.PerSecond, Equal: o.Equal, MemoryMiB: o.MemoryMiB,
	}
	names := o.names()
	if err := checkCards(&o.Setup, slices.Concat(names, o.ModelNames)); err != nil {
		return r, err
	}

	if o.WeightsPart > 0 {
		o.Printf("a worker with much memory, to measure the models")
		if err := o.measureModels(ctx, &r); err != nil {
			return r, fmt.Errorf("measure the models: %w", err)
		}
		o.MemoryMiB = r.MemoryMiB
	}
	for round := range o.Rounds {
		answers := map[*ResidencyWay]singleAnswers{}
		for _, run := range []residencyRun{
			{"limited", fmt.Sprintf("{name: cold, share_percent: 90, lanes: 1, memory: %dMiB}", o.MemoryMiB), names, false, &r.Limited},
			{"unlimited", "{name: cold, share_percent: 90, lanes: 1}", names, false, &r.Unlimited},
			{"own", "", names, false, &r.Own},
			{"alone", "", o.architectures(), true, &r.Alone},
		} {
			if !slices.Contains(o.Ways, run.way) {
				continue
			}
			o.Printf("round %d of %d: %s", round+1, o.Rounds, run.way)
			var err error
			if answers[run.to], err = o.run(ctx, run, uint64(round+1)); err != nil {
				return r, fmt.Errorf("%s: %w", run.way, err)
			}
		}
		for _, way := range []*ResidencyWay{&r.Limited, &r.Unlimited} {
			if got, want := answers[way], answers[&r.Own]; got != nil && want != nil {
				way.Different = append(way.Different, got.different(want))
			}
		}
	}

	for _, way := range []*ResidencyWay{&r.Limited, &r.Unlimited, &r.Own} {
		way.compare(&r.Alone)
	}
	limited, _, _ := Spread(r.Limited.MemoryMiB)
	unlimited, _, _ := Spread(r.Unlimited.MemoryMiB)
	own, _, _ := Spread(r.Own.MemoryMiB)
	r.Ratio, r.UnlimitedRatio = ratio(limited, own), ratio(unlimited, own)
	return r, nil
}

// names returns the functions' models.
func (o *ResidencyOptions) names() (names []string) {
	count := map[string]int{}
	for i := range o.Functions {
		name := o.ModelNames[i%len(o.ModelNames)]
		if count[name]++; o.Variants && count[name] > 1 {
			name += "-" + strconv.Itoa(count[name])
		}
		names = append(names, name)
	}
	return names
}

// architectures returns each model once. Variants of a model have its architecture.
func (o *ResidencyOptions) architectures() (names []string) {
	for _, name := range o.ModelNames[:min(len(o.ModelNames), o.Functions)] {
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// config is the node's configuration.
func (o *ResidencyOptions) config(run residencyRun) string {
	var config strings.Builder
	config.WriteString(deviceAndModels(&o.Setup))
	member := ""
	if run.worker != "" {
		config.WriteString("workers: [" + run.worker + "]\n")
		member = ", worker: cold"
	}
	config.WriteString("functions:\n")
	for i, name := range run.models {
		fmt.Fprintf(&config, "  - {name: fn%d, model: %q, port: 0, slo: %v%s}\n", i, name, o.Objective, member)
	}
	return config.String()
}

// rates divides PerSecond equally, or by Zipf's law with exponent 1 in an order that depends on the seed.
func (o *ResidencyOptions) rates(seed uint64) map[string]string {
	order := rand.New(rand.NewPCG(seed, 1)).Perm(o.Functions)
	weight := func(n int) float64 {
		if o.Equal {
			return 1
		}
		return 1 / float64(1+n)
	}
	sum := 0.0
	for n := range order {
		sum += weight(n)
	}
	rates := map[string]string{}
	for n, i := range order {
		rates[fmt.Sprintf("fn%d", i)] = strconv.FormatFloat(o.PerSecond/sum*weight(n), 'f', 4, 64)
	}
	return rates
}

// run adds the values of one node, and returns its answers to single requests.
func (o *ResidencyOptions) run(ctx context.Context, run residencyRun, seed uint64) (answers singleAnswers, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, workerPatience+o.Duration, fmt.Errorf("not finished after %v", workerPatience+o.Duration))
	defer cancel()
	n, err := node.Start(ctx, node.Options{Binary: o.Binary, Config: o.config(run)})
	if err != nil {
		return nil, err
	}
	defer n.Kill()
	var status control.Status
	if err := n.WaitFor(ctx, "every function and shadow", func() bool { return loaded(n, &status) }); err != nil {
		return nil, err
	}
	if err := loadEach(ctx, o.Device, n, &status); err != nil {
		return nil, err
	}
	before, _ := residencyOf(&status)

	memory := memoryPeak{node: n}
	latencies := latencies{byFunction: map[string][]time.Duration{}}
	load := residencyLoad{
		rates: []map[string]string{o.rates(seed)}, arrivals: "poisson", duration: o.Duration, seed: seed, memory: &memory, latencies: &latencies,
	}
	if run.alone {
		// The device gets as many requests as in the other ways, at even intervals: none waits for another.
		load.rates, load.arrivals, load.duration = nil, "constant", max(time.Second, o.Duration/time.Duration(len(run.models)))
		for i := range run.models {
			load.rates = append(load.rates, map[string]string{fmt.Sprintf("fn%d", i): fmt.Sprint(o.PerSecond)})
		}
	}
	report, took, err := o.load(ctx, n, status, load)
	if err != nil {
		return nil, err
	}
	if status, err = n.Status(); err != nil {
		return nil, err
	}
	peak, err := memory.end()
	if err != nil {
		return nil, err
	}

	to := run.to
	to.add(report)
	to.MemoryMiB = append(to.MemoryMiB, float64(peak)/(1<<20))
	byModel := map[string][]time.Duration{}
	for i := range run.models {
		model := o.ModelNames[i%len(o.ModelNames)]
		if run.alone {
			model = run.models[i]
		}
		byModel[model] = append(byModel[model], latencies.byFunction[fmt.Sprintf("fn%d", i)]...)
	}
	to.addModels(byModel)
	if after, millis := residencyOf(&status); len(millis) > 0 {
		to.Loads = append(to.Loads, float64(after-before)/took.Seconds())
		slices.Sort(millis)
		to.LoadMillis = append(to.LoadMillis, millis[len(millis)/2])
	}
	if !run.alone {
		if answers, err = o.single(ctx, &status); err != nil {
			return nil, err
		}
	}
	return answers, n.Stop()
}

// muchMemory is more than the models of any measurement need.
const muchMemory = "64GiB"

// measureModels sets r's memory so that WeightsPart of the weights fits.
func (o *ResidencyOptions) measureModels(ctx context.Context, r *Residency) error {
	ctx, cancel := context.WithTimeoutCause(ctx, workerPatience, fmt.Errorf("not finished after %v", workerPatience))
	defer cancel()
	config := o.config(residencyRun{worker: "{name: cold, share_percent: 90, lanes: 1, memory: " + muchMemory + "}", models: o.names()})
	n, err := node.Start(ctx, node.Options{Binary: o.Binary, Config: config})
	if err != nil {
		return err
	}
	defer n.Kill()
	var status control.Status
	if err := n.WaitFor(ctx, "every function", func() bool { return loaded(n, &status) }); err != nil {
		return err
	}
	if err := loadEach(ctx, o.Device, n, &status); err != nil {
		return err
	}

	const mib = 1 << 20
	fixed, weights, largest := status.Workers[0].FixedBytes, int64(0), int64(0)
	for i := range status.Functions {
		bytes := status.Functions[i].Residency.Bytes
		weights, largest = weights+bytes, max(largest, bytes)
	}
	part := int64(o.WeightsPart * float64(weights))
	if part < largest {
		return fmt.Errorf("%v of %d MiB of weights is less than the largest model, %d MiB", o.WeightsPart, weights/mib, largest/mib)
	}
	r.FixedMiB, r.WeightsMiB = float64(fixed)/mib, float64(weights)/mib
	r.MemoryMiB = int((fixed + part + mib - 1) / mib)
	return n.Stop()
}

// loadEach waits until each member of a worker with limited memory has loaded its model once. The first load on a
// GPU makes sessions and graphs. On a CPU a request causes it.
func loadEach(ctx context.Context, device string, n *node.Node, status *control.Status) error {
	var failed error
	err := n.WaitFor(ctx, "the first load of each model", func() bool {
		if *status, failed = n.Status(); failed != nil {
			return false
		}
		waiting := false
		for i := range status.Functions {
			f := &status.Functions[i]
			if f.Residency == nil || f.Residency.Loads > 0 {
				continue
			}
			waiting = true
			if device == configs.DeviceCPU {
				failed = errors.Join(failed, touch(ctx, f))
			}
		}
		return !waiting
	})
	return errors.Join(err, failed)
}

// touch sends a request to a function. Its answer does not matter.
func touch(ctx context.Context, f *control.FunctionStatus) error {
	c, err := client.Dial(ctx, fmt.Sprintf("127.0.0.1:%d", f.Port), client.Options{})
	if err != nil {
		return err
	}
	defer c.Close()
	if _, err := c.Do(ctx, make([]byte, f.Input.Bytes), client.RequestOptions{}); err != nil && !isBusy(err) {
		return fmt.Errorf("first request to %s: %w", f.Name, err)
	}
	return nil
}

// residencyLoad is the load of a node.
type residencyLoad struct {
	rates     []map[string]string // one part after the other
	arrivals  string
	duration  time.Duration // of each part
	seed      uint64
	memory    *memoryPeak
	latencies *latencies
}

// load sends requests, and returns the results of all functions and the time that it took.
func (o *ResidencyOptions) load(ctx context.Context, n *node.Node, status control.Status, load residencyLoad) (all *loadgen.Report, took time.Duration, err error) {
	all = new(loadgen.Report)
	for _, rates := range load.rates {
		with := o.traffic(load.seed)
		with.Spec.Duration, with.Spec.Warmup = load.duration, time.Second
		with.Rates, with.Arrivals = rates, load.arrivals
		if o.Check {
			with.Reference = func(card *models.Card) (traffic.Model, error) { return reference.New(card, frameworks.New) }
		}
		requests, err := traffic.New(status, with)
		if err != nil {
			return nil, 0, err
		}
		report, err := loadgen.Run(ctx, requests.Spec, loadgen.Options{
			Dial:      load.latencies.dialer(loadgen.DialClient(client.Options{}), with.Spec.Warmup),
			Status:    func(context.Context) (control.Status, error) { return n.Status() },
			Reference: requests,
			Observe:   func(loadgen.Snapshot) { load.memory.sample() },
		})
		requests.Close()
		if err != nil {
			return nil, 0, err
		}
		all.Functions = append(all.Functions, report.Functions...)
		took += with.Spec.Duration + with.Spec.Warmup
	}
	return all, took, nil
}

func (o *ResidencyOptions) traffic(seed uint64) traffic.Options {
	with := traffic.Options{Spec: loadgen.Spec{Seed: seed}, Arrivals: "constant", Streams: 1}
	if o.Models != "" {
		with.Models = []string{o.Models}
	}
	return with
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

// addModels adds the latencies of a run.
func (w *ResidencyWay) addModels(byModel map[string][]time.Duration) {
	if w.Models == nil {
		w.Models = map[string]*ModelLatency{}
	}
	for name, samples := range byModel {
		if len(samples) == 0 {
			continue
		}
		m := w.Models[name]
		if m == nil {
			m = new(ModelLatency)
			w.Models[name] = m
		}
		sum := time.Duration(0)
		for _, sample := range samples {
			sum += sample
		}
		m.Mean = append(m.Mean, sum.Seconds()*1000/float64(len(samples)))
		m.P99 = append(m.P99, micros(samples).P99/1000)
	}
}

// compare sets AddedMean and AddedP99.
func (w *ResidencyWay) compare(alone *ResidencyWay) {
	means, sum := 0, 0.0
	for name, m := range w.Models {
		a := alone.Models[name]
		if a == nil {
			continue
		}
		mean, p99 := m.Added(a)
		if means == 0 || p99 > w.AddedP99 {
			w.AddedP99 = p99
		}
		means, sum = means+1, sum+mean
	}
	w.AddedMean = ratio(sum, float64(means))
}

// Added returns how much longer the medians of the runs are than those of alone.
func (m *ModelLatency) Added(alone *ModelLatency) (mean, p99 float64) {
	difference := func(a, b []float64) float64 {
		with, _, _ := Spread(a)
		without, _, _ := Spread(b)
		return with - without
	}
	return difference(m.Mean, alone.Mean), difference(m.P99, alone.P99)
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
	if status.Devices[0].GPU != nil {
		return status.Devices[0].GPU.UsedBytes, nil
	}
	for pid := range processesOf(&status) {
		bytes, err := anonymousBytes(pid)
		if err != nil {
			return 0, err
		}
		sum += bytes
	}
	return sum, nil
}
