package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/penstock/penstock/client"
	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/control"
)

// Moves is the report of `bench swap` on a device: how long the stream stands still
// when a share changes under load, and what a second around it looks like.
type Moves struct {
	Machine Machine `json:"machine"`
	Device  string  `json:"device"`
	Model   string  `json:"model"`
	Batch   int     `json:"batch"`
	// Mechanism is how shares are held there: mps, time-slicing, ...
	Mechanism string     `json:"mechanism"`
	Change    MovesCase  `json:"change"`
	Restart   *MovesCase `json:"restart,omitempty"`
}

// MovesCase is one way to change a share.
type MovesCase struct {
	// How is the configuration's word: shadow, partition, restart.
	How   string     `json:"how"`
	From  float64    `json:"from_percent"`
	To    float64    `json:"to_percent"`
	Moves int        `json:"moves"`
	SMs   []int      `json:"sms"` // that the process counted, at either share
	Idle  Micros     `json:"idle_us"`
	Every []float64  `json:"every_idle_us"` // each move's, in order
	Takes PartMillis `json:"order_to_served_ms"`
	// Unloaded moves found no work waiting and are not in Idle.
	Unloaded int     `json:"unloaded"`
	Requests uint64  `json:"requests"`
	Answers  Answers `json:"answers"`
	// Lost requests were accepted and never answered.
	Lost            uint64  `json:"lost"`
	ImagesPerSecond float64 `json:"images_per_s"`
	// SteadyP99 is the p99 latency of a second without a move; AroundP99 of the
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
	Options
	Change configs.Change
	Model  string
	Batch  int
	Number int
	// Restarts is how many changes by stop and start are measured beside.
	Restarts int
	// From and To are the shares that take turns, in percent.
	From, To float64
	// Streams is as configs.Function.Streams.
	Streams int
}

// RunMoves changes the share of a function n times under load.
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

// steadyFor is how long the load is watched before the first move.
const steadyFor = 5 * time.Second

func (o *MovesOptions) moves(ctx context.Context, r *Moves, change configs.Change, n int) (m MovesCase, err error) {
	m = MovesCase{How: string(change), From: o.From, To: o.To}
	card, err := o.card(o.Model)
	if err != nil {
		return m, err
	}
	dir, err := newBedDir()
	if err != nil {
		return m, err
	}
	defer os.RemoveAll(dir)
	file, err := variant(dir, card, ladder(o.Batch))
	if err != nil {
		return m, err
	}
	b, err := startBed(ctx, o.Binary, bedOptions{device: o.Device, change: change,
		functions: []served{{name: "busy", card: file, percent: o.From, streams: o.Streams}}})
	if err != nil {
		return m, err
	}
	defer b.kill()
	status, err := b.Status()
	if err != nil {
		return m, err
	}
	r.Mechanism = status.Mechanism
	r.Device = deviceName(&status)
	process, _, f, err := b.serving("busy")
	if err != nil {
		return m, err
	}
	m.SMs = append(m.SMs, process.SMs)

	load, err := newTraffic(ctx, trafficOptions{port: f.Port, flows: 2, inFlight: max(8, 2*o.Batch), picture: noisePicture(card), expect: 1 << 20})
	if err != nil {
		return m, err
	}
	defer load.stop()
	began := client.Now()
	if err := load.keep(max(8, 2*o.Batch)); err != nil {
		return m, err
	}
	if err := pause(ctx, time.Second); err != nil {
		return m, err
	}
	steady := client.Now()
	if err := pause(ctx, steadyFor); err != nil {
		return m, err
	}
	first := client.Now()

	var idle, takes []time.Duration
	var when []int64
	for i := 0; len(idle) < n; i++ {
		if i > 2*n+10 {
			return m, fmt.Errorf("only %d of %d moves found work waiting", len(idle), i)
		}
		percent := o.To
		if i%2 == 1 {
			percent = o.From
		}
		moved, took, at, err := o.move(ctx, b, percent, change)
		if err != nil {
			return m, fmt.Errorf("move %d: %w", i+1, err)
		}
		when, takes = append(when, at), append(takes, took)
		if moved < 0 {
			m.Unloaded++
			continue
		}
		idle = append(idle, moved)
		m.Every = append(m.Every, float64(moved.Nanoseconds())/1000)
		if i == 0 {
			if process, _, _, err := b.serving("busy"); err == nil {
				m.SMs = append(m.SMs, process.SMs)
			}
		}
		o.say("%s: move %d of %d", change, len(idle), n)
	}
	if err := pause(ctx, time.Second); err != nil { // the second around the last one
		return m, err
	}
	load.stop()
	ended := client.Now()
	if f, err = b.Function("busy"); err != nil {
		return m, err
	}
	all := load.between(0, 0)
	m.Moves, m.Idle, m.Takes, m.Lost = len(idle), micros(idle), partMillis(takes), f.Lost
	m.Requests, m.Answers = load.sent(), count(all)
	m.ImagesPerSecond = float64(m.Answers.OK) / time.Duration(ended-began).Seconds()
	var quiet []int64
	for at := steady + int64(time.Second/2); at < first-int64(time.Second/2); at += int64(time.Second) {
		quiet = append(quiet, at)
	}
	m.SteadyP99, m.AroundP99 = secondsAround(all, quiet), secondsAround(all, when)
	if m.Answers.Unanswered > 0 {
		return m, fmt.Errorf("%d requests were not answered: %s", m.Answers.Unanswered, strings.TrimSpace(b.Log()))
	}
	return m, b.end()
}

// move orders a share and waits until it is in force. idle is how long the ring
// stood still for it, negative where no work was waiting; at is when it was noticed.
func (o *MovesOptions) move(ctx context.Context, b *bed, percent float64, change configs.Change) (idle, took time.Duration, at int64, err error) {
	f, err := b.Function("busy")
	if err != nil {
		return 0, 0, 0, err
	}
	if change == configs.ChangeShadow {
		if err := b.shadowReady(ctx, "busy"); err != nil {
			return 0, 0, 0, err
		}
	}
	last, noted := f.Swaps, f.SwapIdle.Count
	ordered := client.Now()
	if err := b.Order(control.SharePath, control.ShareOrder{Name: "busy", SharePercent: percent}); err != nil {
		return 0, 0, 0, err
	}
	limit, cancel := context.WithTimeoutCause(ctx, time.Minute, errors.New("the share did not change within a minute"))
	defer cancel()
	err = b.WaitFor(limit, "a move", func() bool {
		f, err = b.Function("busy")
		return err == nil && f.Swaps > last
	})
	if err != nil {
		return 0, 0, 0, err
	}
	at = client.Now()
	// The process tells of it in its next report; where no work was waiting it has
	// nothing to tell.
	limit, cancel = context.WithTimeout(ctx, 3*control.ReportEvery)
	defer cancel()
	err = b.WaitFor(limit, "its idle time", func() bool {
		f, err = b.Function("busy")
		return err == nil && f.SwapIdle.Count > noted
	})
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		return -1, time.Duration(at - ordered), at, nil
	}
	return time.Duration(f.SwapIdle.Last * 1000), time.Duration(at - ordered), at, err
}

// secondsAround is the p99 latency of the ok answers in the second around each
// moment, summed up over the moments. all ascends in time.
func secondsAround(all []answered, moments []int64) PartMillis {
	const half = int64(time.Second / 2)
	at := func(moment int64) int { return sort.Search(len(all), func(i int) bool { return all[i].at >= moment }) }
	var p99 []time.Duration
	for _, m := range moments {
		window := latencies(all[at(m-half):at(m+half)])
		if len(window) == 0 {
			continue
		}
		slices.Sort(window)
		p99 = append(p99, window[min(len(window)-1, len(window)*99/100)])
	}
	return partMillis(p99)
}

// deviceName is the GPU's as a node's status has it, or cpu.
func deviceName(s *control.Status) string {
	if s.Device == nil {
		return configs.DeviceCPU
	}
	return s.Device.Name
}
