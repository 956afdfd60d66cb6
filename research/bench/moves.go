package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sort"
	"strconv"
	"sync"
	"time"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/internal/testbed"
	"github.com/penstock/penstock/shm"
)

// Moves is the report of `penstock-lab swap` on a device: how long the stream of batches
// stops when a share changes under load, and the latency of a second around the change.
type Moves struct {
	Machine testbed.Machine `json:"machine"`
	Device  string          `json:"device"`
	Model   string          `json:"model"`
	Batch   int             `json:"batch"`
	// Mechanism is what enforces shares there: mps, time-slicing, ...
	Mechanism string     `json:"mechanism"`
	Change    MovesCase  `json:"change"`
	Restart   *MovesCase `json:"restart,omitempty"`
}

// MovesCase is one way to change a share.
type MovesCase struct {
	// How is the configuration's value: shadow, partition, restart. Functions is how many
	// functions of the same model moved, each independently.
	How       string     `json:"how"`
	Functions int        `json:"functions"`
	From      float64    `json:"from_percent"`
	To        float64    `json:"to_percent"`
	Moves     int        `json:"moves"`
	SMs       []int      `json:"sms"` // as the processes counted, at either share
	Idle      Micros     `json:"idle_us"`
	Every     []float64  `json:"every_idle_us"` // of each move, in order
	Takes     PartMillis `json:"order_to_served_ms"`
	// Unloaded moves found no waiting work and are not in Idle.
	Unloaded int     `json:"unloaded"`
	Requests uint64  `json:"requests"`
	Answers  Answers `json:"answers"`
	// Lost requests were accepted and never answered.
	Lost            uint64  `json:"lost"`
	ImagesPerSecond float64 `json:"images_per_s"`
	// SteadyP99 is the p99 latency of a second without a move. AroundP99 is that of the
	// second around a move: half before, half after. Percentiles are over seconds.
	SteadyP99 PartMillis `json:"steady_second_p99_ms"`
	AroundP99 PartMillis `json:"around_second_p99_ms"`
}

// PartMillis are percentiles in milliseconds.
type PartMillis struct {
	P50 float64 `json:"p50"`
	P99 float64 `json:"p99"`
	Max float64 `json:"max"`
}

func partMillis(samples []time.Duration) PartMillis {
	m := micros(samples)
	return PartMillis{P50: m.P50 / 1000, P99: m.P99 / 1000, Max: m.Max / 1000}
}

// MovesOptions say what is moved.
type MovesOptions struct {
	Setup
	Change configs.Change
	Model  string
	Batch  int
	Number int
	// Restarts is how many changes by stop and start are measured for comparison.
	Restarts int
	// Functions is the number of functions of the model, each with its own process, port
	// and load. They move at the same time. From and To are the shares of each, in
	// percent, that alternate.
	Functions int
	From, To  float64
	// Streams is as configs.Function.Streams.
	Streams int
}

// RunMoves changes the functions' shares n times, all at the same time, under load.
func RunMoves(ctx context.Context, o MovesOptions) (Moves, error) {
	r := Moves{Machine: o.Machine, Model: o.Model, Batch: o.Batch}
	var err error
	if r.Change, err = o.moves(ctx, &r, o.Change, o.Number); err != nil {
		return r, err
	}
	if o.Restarts > 0 {
		restart, err := o.moves(ctx, &r, configs.ChangeRestart, o.Restarts)
		if err != nil {
			return r, err
		}
		r.Restart = &restart
	}
	return r, nil
}

// steadyTime is how long the load is watched before the first move.
const steadyTime = 5 * time.Second

// mover changes the share of one function repeatedly.
type mover struct {
	o      *MovesOptions
	b      *testbed.Harness
	name   string
	change configs.Change
	load   *Traffic

	idle, takes []time.Duration
	when        []int64
	sms         []int
	unloaded    int
}

func (o *MovesOptions) moves(ctx context.Context, r *Moves, change configs.Change, n int) (m MovesCase, err error) {
	m = MovesCase{How: string(change), Functions: o.Functions, From: o.From, To: o.To}
	card, err := o.Card(o.Model)
	if err != nil {
		return m, err
	}
	dir, err := testbed.NewDir()
	if err != nil {
		return m, err
	}
	defer os.RemoveAll(dir)
	file, err := testbed.Variant(dir, card, testbed.Ladder(o.Batch))
	if err != nil {
		return m, err
	}
	var functions []Served
	for i := range o.Functions {
		functions = append(functions, Served{Name: "busy" + strconv.Itoa(i), Card: file, Percent: o.From, Streams: o.Streams})
	}
	b, err := testbed.Start(ctx, o.Binary, testbed.Options{Device: o.Device, Change: change, More: configuration(functions, 0)})
	if err != nil {
		return m, err
	}
	defer b.Kill()
	status, err := b.Status()
	if err != nil {
		return m, err
	}
	r.Mechanism, r.Device = status.Devices[0].Mechanism, deviceName(&status)
	var movers []*mover
	defer func() {
		for _, v := range movers {
			v.load.Stop()
		}
	}()
	began := shm.Now()
	for _, f := range functions {
		v := &mover{o: o, b: b, name: f.Name, change: change}
		process, _, status, err := servingProcess(b, f.Name)
		if err != nil {
			return m, err
		}
		v.sms = append(v.sms, process.SMs)
		inFlight := max(8, 2*o.Batch)
		v.load, err = NewTraffic(ctx, TrafficOptions{Port: status.Port, Flows: 2, InFlight: inFlight, Picture: testbed.Noise(card, 2), Expect: 1 << 20})
		if err != nil {
			return m, err
		}
		movers = append(movers, v)
		if err := v.load.Keep(inFlight); err != nil {
			return m, err
		}
	}
	if err := testbed.Pause(ctx, time.Second); err != nil {
		return m, err
	}
	steady := shm.Now()
	if err := testbed.Pause(ctx, steadyTime); err != nil {
		return m, err
	}
	first := shm.Now()
	if err := moveAll(ctx, movers, n, func(done int) { o.Printf("%s: move %d of %d", change, done, n) }); err != nil {
		return m, err
	}
	if err := testbed.Pause(ctx, time.Second); err != nil { // complete the second around the last move
		return m, err
	}
	var quiet []int64
	for at := steady + int64(time.Second/2); at < first-int64(time.Second/2); at += int64(time.Second) {
		quiet = append(quiet, at)
	}
	var idle, takes, steadyP99, aroundP99 []time.Duration
	for _, v := range movers {
		v.load.Stop()
		f, err := b.Function(v.name)
		if err != nil {
			return m, err
		}
		all := v.load.Between(0, 0)
		idle, takes = append(idle, v.idle...), append(takes, v.takes...)
		steadyP99, aroundP99 = append(steadyP99, secondsAround(all, quiet)...), append(aroundP99, secondsAround(all, v.when)...)
		m.Unloaded += v.unloaded
		m.Lost += f.Lost
		m.Requests += v.load.Sent()
		m.Answers.Add(Count(all))
		m.SMs = append(m.SMs, v.sms...)
	}
	for _, d := range idle {
		m.Every = append(m.Every, float64(d.Nanoseconds())/1000)
	}
	m.Moves, m.Idle, m.Takes = len(idle), micros(idle), partMillis(takes)
	m.SteadyP99, m.AroundP99 = partMillis(steadyP99), partMillis(aroundP99)
	m.ImagesPerSecond = float64(m.Answers.OK) / time.Duration(shm.Now()-began).Seconds()
	if n := m.Answers.Unanswered + m.Answers.Unsent; n > 0 {
		return m, fmt.Errorf("%d requests were not answered, or not sent; the node said: %s", n, lastOf(b.Log()))
	}
	return m, drain(b)
}

// moveAll moves the functions n times, all at the same time, each independently. It calls
// progress for each move, from one goroutine at a time.
func moveAll(ctx context.Context, movers []*mover, n int, progress func(done int)) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var mu sync.Mutex // guards done
	done := 0
	var running sync.WaitGroup
	errs := make([]error, len(movers))
	for i, v := range movers {
		each := n / len(movers)
		if i < n%len(movers) {
			each++
		}
		running.Go(func() {
			errs[i] = v.moves(ctx, each, func() {
				mu.Lock()
				defer mu.Unlock()
				done++
				progress(done)
			})
			if errs[i] != nil {
				cancel(errs[i])
			}
		})
	}
	running.Wait()
	return errors.Join(errs...)
}

func (v *mover) moves(ctx context.Context, n int, done func()) error {
	for i := 0; len(v.idle) < n; i++ {
		if i > 2*n+10 {
			return fmt.Errorf("only %d of %d moves of %s found work waiting", len(v.idle), i, v.name)
		}
		percent := v.o.To
		if i%2 == 1 {
			percent = v.o.From
		}
		idle, err := v.move(ctx, percent)
		if err != nil {
			return fmt.Errorf("move %d of %s: %w", i+1, v.name, err)
		}
		if idle < 0 {
			v.unloaded++
			continue
		}
		v.idle = append(v.idle, idle)
		if i == 0 {
			process, _, _, err := servingProcess(v.b, v.name)
			if err != nil {
				return err
			}
			v.sms = append(v.sms, process.SMs)
		}
		done()
	}
	return nil
}

// move orders a share and waits until it is in force. idle is how long the ring stood
// still for it, negative if no work was waiting.
func (v *mover) move(ctx context.Context, percent float64) (idle time.Duration, err error) {
	if v.change == configs.ChangeShadow {
		if err := shadowReady(ctx, v.b, v.name); err != nil {
			return 0, err
		}
	}
	f, err := v.b.Function(v.name)
	if err != nil {
		return 0, err
	}
	last, noted := f.Swaps, f.SwapIdle.Count
	ordered := shm.Now()
	if err := v.b.Order(control.SharePath, control.ShareOrder{Name: v.name, SharePercent: percent}); err != nil {
		return 0, err
	}
	limit, cancel := context.WithTimeoutCause(ctx, time.Minute, errors.New("the share did not change within a minute"))
	defer cancel()
	err = v.b.WaitFor(limit, "a move", func() bool {
		f, err = v.b.Function(v.name)
		return err == nil && f.Swaps > last
	})
	if err != nil {
		return 0, err
	}
	at := shm.Now()
	v.when, v.takes = append(v.when, at), append(v.takes, time.Duration(at-ordered))
	// The process reports the idle time in its next report, but only if work was waiting.
	limit, cancel = context.WithTimeout(ctx, 3*control.ReportEvery)
	defer cancel()
	err = v.b.WaitFor(limit, "its idle time", func() bool {
		f, err = v.b.Function(v.name)
		return err == nil && f.SwapIdle.Count > noted
	})
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		return -1, nil
	}
	return time.Duration(f.SwapIdle.Last * 1000), err
}

// secondsAround returns the p99 latency of the ok answers in the second around each
// moment. all must be sorted by time.
func secondsAround(all []Answered, moments []int64) (p99 []time.Duration) {
	const half = int64(time.Second / 2)
	at := func(moment int64) int { return sort.Search(len(all), func(i int) bool { return all[i].At >= moment }) }
	for _, m := range moments {
		window := latenciesOf(all[at(m-half):at(m+half)])
		if len(window) == 0 {
			continue
		}
		slices.Sort(window)
		p99 = append(p99, window[min(len(window)-1, len(window)*99/100)])
	}
	return p99
}

// deviceName returns the GPU's name from a node's status, or cpu.
func deviceName(s *control.Status) string {
	if s.Devices[0].GPU == nil {
		return configs.DeviceCPU
	}
	return s.Devices[0].GPU.Name
}
