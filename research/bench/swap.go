package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock/client"
	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/node"
	"github.com/penstock/penstock/orchestrator"
	"github.com/penstock/penstock/research/floor"
	"github.com/penstock/penstock/shm/cpuset"
)

// Swap is the report of `penstock-lab swap`: how long the stream of batches stops when an active process
// hands its ring to its shadow under load.
type Swap struct {
	Swaps int `json:"swaps"`
	// Idle is from the end of the old process's last batch to the start of the new process's first, with work
	// waiting.
	Idle Micros `json:"idle_us"`
	// Floor is a bare futex wake of one process by another, one way.
	Floor    Micros `json:"floor_us"`
	Requests uint64 `json:"requests"`
	Answered uint64 `json:"answered"`
	Lost     uint64 `json:"lost"`
	// RestartIdleMillis is the median of the same change over Restarts changes, made by stopping the process
	// and starting another.
	RestartIdleMillis float64 `json:"restart_idle_ms"`
	Restarts          int     `json:"restarts"`
}

// RunSwap makes n swaps under load, and then restarts changes by stop and start. It calls progress, if not
// nil, after each swap.
func RunSwap(ctx context.Context, binary string, n, restarts int, progress func(done int)) (Swap, error) {
	r := Swap{Swaps: n, Restarts: restarts}
	before, err := floor.MeasureWake(n / 2)
	if err != nil {
		return r, err
	}
	shadow, err := changes(ctx, binary, configs.ChangeShadow, n, progress)
	if err != nil {
		return r, err
	}
	r.Idle, r.Requests, r.Answered, r.Lost = micros(shadow.idle), shadow.sent, shadow.answered, shadow.lost
	after, err := floor.MeasureWake(n - n/2)
	if err != nil {
		return r, err
	}
	r.Floor = micros(append(before, after...))
	if restarts == 0 {
		return r, nil
	}
	restart, err := changes(ctx, binary, configs.ChangeRestart, restarts, nil)
	if err != nil {
		return r, err
	}
	r.RestartIdleMillis = micros(restart.idle).P50 / 1000
	r.Lost += restart.lost
	return r, nil
}

type changed struct {
	idle                 []time.Duration
	unloaded             int // changes that found no waiting work
	sent, answered, lost uint64
}

// changes changes an inference function's share n times under load, and collects how long the ring stood
// still each time.
//
// The device computes elsewhere, as a GPU does: a batch sleeps. If batches used the CPU, the process's own
// quota would sometimes stop it, and that time is not part of a hand-over.
func changes(ctx context.Context, binary string, change configs.Change, n int, progress func(int)) (changed, error) {
	var out changed
	var lab configs.Lab
	if change == configs.ChangeRestart {
		change, lab.Change = configs.ChangeAuto, change
	}
	dir, err := os.MkdirTemp("", "penstock-bench-")
	if err != nil {
		return out, fmt.Errorf("make folder: %w", err)
	}
	defer os.RemoveAll(dir)
	const requestBytes = 1024
	card, err := nullCard(dir, "nothing", requestBytes, "[1, 2, 4]")
	if err != nil {
		return out, err
	}
	nd, err := node.Start(ctx, node.Options{Binary: binary, Config: fmt.Sprintf(`
log: {level: warn}
shares: {policy: gslice, tune: false, change: %s}
functions:
  - {name: busy, model: %s, port: 0, share_percent: 100, slo: 10s, environment: {PENSTOCK_NULL: "sleep=200us"}}
`, change, card), Environment: []string{lab.Environment()}})
	if err != nil {
		return out, err
	}
	defer nd.Kill()
	f, err := nd.Function("busy")
	if err != nil {
		return out, err
	}
	// The load does not use the CPUs of the measured processes.
	own, ifs := orchestrator.IFCPUs(0, orchestrator.Near{})
	if err := cpuset.Pin(own); err != nil {
		return out, err
	}
	defer cpuset.Pin(append(own, ifs...))
	stop, load, err := saturate(ctx, f.Port, requestBytes)
	if err != nil {
		return out, err
	}
	defer stop()

	last := f.Swaps
	for i := 0; len(out.idle) < n; i++ {
		if i > 2*n {
			return out, fmt.Errorf("only %d of %d swaps found work waiting", len(out.idle), i)
		}
		// Between 90 and 100 % the share changes, but the device's speed hardly does.
		percent := 90 + float64(i%2)*5
		noted := f.SwapIdle.Count
		if err := nd.Order(control.SharePath, control.ShareOrder{Name: "busy", SharePercent: percent}); err != nil {
			return out, err
		}
		limit, cancel := context.WithTimeoutCause(ctx, time.Minute, fmt.Errorf("swap %d did not happen within a minute", i+1))
		err := nd.WaitFor(limit, "a swap", func() bool {
			f, err = nd.Function("busy")
			return err == nil && f.Swaps > last
		})
		cancel()
		if err != nil {
			return out, err
		}
		last = f.Swaps
		// The new process reports the idle time in its first report, after its first batch. It reports none
		// if no work was waiting. With a saturating load that is rare, so the wait may be long.
		limit, cancel = context.WithTimeout(ctx, 10*time.Second)
		err = nd.WaitFor(limit, "its idle time", func() bool {
			f, err = nd.Function("busy")
			return err == nil && f.SwapIdle.Count > noted
		})
		cancel()
		if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
			out.unloaded++
			continue
		}
		if err != nil {
			return out, err
		}
		out.idle = append(out.idle, time.Duration(f.SwapIdle.Last*1000))
		if progress != nil {
			progress(len(out.idle))
		}
	}
	stop()
	if f, err = nd.Function("busy"); err != nil {
		return out, err
	}
	out.sent, out.answered, out.lost = load.sent.Load(), load.answered.Load(), f.Lost
	if unanswered := load.unanswered.Load(); unanswered > 0 {
		return out, fmt.Errorf("%d requests were not answered; the node said: %s", unanswered, lastOf(nd.Log()))
	}
	return out, nd.Stop()
}

// closedLoop counts the outcomes of a saturating load.
type closedLoop struct{ sent, answered, unanswered atomic.Uint64 }

// saturate keeps requests waiting at all times. It has as many in flight as the credit allows, and sends the
// next request after each answer. stop waits for the last answers.
func saturate(ctx context.Context, port, requestBytes int) (stop func(), _ *closedLoop, err error) {
	load := &closedLoop{}
	picture := make([]byte, requestBytes)
	const inFlight = 32               // eight batches
	const patience = 30 * time.Second // late answers count, too
	var c *client.Client
	var stopping atomic.Bool
	idle := make(chan struct{}, inFlight)
	send := func() {
		if stopping.Load() {
			idle <- struct{}{}
			return
		}
		if _, err := c.Send(picture, client.RequestOptions{Deadline: patience}); err != nil {
			idle <- struct{}{}
			return
		}
		load.sent.Add(1)
	}
	ready := make(chan struct{})
	c, err = client.Dial(ctx, fmt.Sprintf("127.0.0.1:%d", port), client.Options{
		InFlight: inFlight, Timeout: patience,
		Deliver: func(r *client.Result) {
			<-ready
			switch {
			case r.Err != nil:
				load.unanswered.Add(1)
			case r.Status == client.StatusOK:
				load.answered.Add(1)
			}
			send()
		},
	})
	if err != nil {
		return nil, nil, err
	}
	close(ready)
	for range inFlight {
		send()
	}
	var stopped atomic.Bool
	return func() {
		if stopped.Swap(true) {
			return
		}
		stopping.Store(true)
		for range inFlight {
			<-idle
		}
		c.Close()
	}, load, nil
}
