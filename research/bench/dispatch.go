package bench

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/penstock/penstock/client"
	"github.com/penstock/penstock/node"
	"github.com/penstock/penstock/orchestrator"
	"github.com/penstock/penstock/research/floor"
	"github.com/penstock/penstock/shm/cpuset"
)

// Dispatch is the report of `penstock-lab dispatch`: the cost of the hand-overs between
// the manager and an idle inference function in another process.
type Dispatch struct {
	Requests int `json:"requests"`
	// CompleteToBatch is from the receipt of a request's last fragment to the start of
	// its batch.
	CompleteToBatch Micros `json:"complete_to_batch_us"`
	// BatchToReply is from the end of a batch to handing its reply to the socket.
	BatchToReply Micros `json:"batch_to_reply_us"`
	// Floor is a bare futex wake of one process by another, one way.
	Floor Micros `json:"floor_us"`
}

// idleGap is the pause between two requests, long enough that every thread of the path
// has gone to sleep.
const idleGap = 500 * time.Microsecond

// RunDispatch measures n requests, and the floor before and after them.
func RunDispatch(ctx context.Context, binary string, n int) (Dispatch, error) {
	var r Dispatch
	dir, err := os.MkdirTemp("", "penstock-bench-")
	if err != nil {
		return r, fmt.Errorf("make folder: %w", err)
	}
	defer os.RemoveAll(dir)
	const requestBytes = 1024
	card, err := nullCard(dir, "nothing", requestBytes, "[1]")
	if err != nil {
		return r, err
	}
	before, err := floor.MeasureWake(n / 2)
	if err != nil {
		return r, err
	}
	nd, err := node.Start(ctx, node.Options{Binary: binary, Config: fmt.Sprintf(`
log: {level: warn}
shares: {policy: gslice, tune: false, change: in-place}
functions:
  - {name: idle, model: %s, port: 0, share_percent: 100, slo: 10s}
`, card)})
	if err != nil {
		return r, err
	}
	defer nd.Kill()
	f, err := nd.Function("idle")
	if err != nil {
		return r, err
	}
	// The client does not use the CPUs of the measured processes.
	own, ifs := orchestrator.IFCPUs(0, orchestrator.Near{})
	if err := cpuset.Pin(own); err != nil {
		return r, err
	}
	c, err := client.Dial(ctx, fmt.Sprintf("127.0.0.1:%d", f.Port), client.Options{Timeout: 20 * time.Second})
	if err != nil {
		return r, err
	}
	defer c.Close()
	picture := make([]byte, requestBytes)
	var queue, reply []time.Duration
	for i := range n + n/10 {
		result, err := c.Do(ctx, picture, client.RequestOptions{})
		if err != nil {
			return r, fmt.Errorf("request %d: %w", i, err)
		}
		if i >= n/10 { // the first tenth is warm-up
			queue, reply = append(queue, result.Stages.Queue), append(reply, result.Stages.Reply)
		}
		time.Sleep(idleGap)
	}
	if err := nd.Stop(); err != nil {
		return r, err
	}
	if err := cpuset.Pin(append(own, ifs...)); err != nil {
		return r, err
	}
	after, err := floor.MeasureWake(n - n/2)
	if err != nil {
		return r, err
	}
	r.Requests = len(queue)
	r.CompleteToBatch, r.BatchToReply = micros(queue), micros(reply)
	r.Floor = micros(append(before, after...))
	return r, nil
}
