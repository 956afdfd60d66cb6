package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/loadgen"
	"github.com/penstock/penstock/node"
)

// sharesKeys make the node divide a GPU by MPS percentages. The short hold-down shows more than one
// change in the demo's time.
const sharesKeys = "shares: {policy: gslice, hold_down: 2s}"

// demoShares runs the demo's functions with shares that tune themselves, and prints the changes.
func demoShares(ctx context.Context, o demoOptions, log *os.File) error {
	nd, err := startDemoNode(ctx, o, sharesKeys, log)
	if err != nil {
		return err
	}
	defer nd.Kill()

	watching, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan shareSwaps)
	go func() { ended <- watchSwaps(watching, nd) }()
	report, err := o.part(ctx, nd, "third part: shares of the GPU tune themselves ("+sharesKeys+")", steadyRates(), false)
	stop()
	swaps := <-ended
	if err != nil {
		return err
	}
	if o.format == "table" {
		printShares(os.Stdout, swaps.swaps, report)
	}
	return nil
}

// watchSwaps records the swaps of a node until ctx ends.
func watchSwaps(ctx context.Context, nd *node.Node) (swaps shareSwaps) {
	// Hand-overs are reported every 100 ms, and shares change at most every two seconds.
	poll := time.NewTicker(50 * time.Millisecond)
	defer poll.Stop()
	for ctx.Err() == nil {
		if status, err := nd.Status(); err == nil {
			swaps.observe(&status)
		}
		select {
		case <-poll.C:
		case <-ctx.Done():
		}
	}
	return swaps
}

// shareSwap is a swap that brought in another percentage.
type shareSwap struct {
	function string
	from, to float64 // percent of the multiprocessors
	// idle is how long the ring stood still while requests waited; negative if none waited.
	idle time.Duration
}

func (s shareSwap) String() string {
	text := fmt.Sprintf("%s: %g %% -> %g %% of the GPU by a swap", s.function, s.from, s.to)
	if s.idle < 0 {
		return text + "; no request waited"
	}
	return fmt.Sprintf("%s; requests waited for %.2f ms", text, float64(s.idle)/float64(time.Millisecond))
}

// shareSwaps finds the swaps in a node's states. The zero value has seen none.
type shareSwaps struct {
	swaps []shareSwap // in order of time
	seen  map[string]servingShare
}

// servingShare is what a function last showed.
type servingShare struct {
	generation uint32 // of the process that serves
	percent    float64
	idles      uint64 // hand-overs at which requests waited
	last       int    // index in swaps of its last swap, if its hand-over is not reported yet; else -1
}

// observe takes the next state.
func (s *shareSwaps) observe(status *control.Status) {
	if s.seen == nil {
		s.seen = map[string]servingShare{}
	}
	for i := range status.Functions {
		f := &status.Functions[i]
		if len(f.Instances) == 0 {
			continue
		}
		p, ok := f.Instances[0].Serving()
		if !ok {
			continue
		}
		before, known := s.seen[f.Name]
		now := servingShare{p.Generation, f.Instances[0].SharePercent, f.SwapIdle.Count, before.last}
		if !known {
			now.last = -1
		}
		if known && before.generation != now.generation && before.percent != now.percent {
			now.last = len(s.swaps)
			s.swaps = append(s.swaps, shareSwap{f.Name, before.percent, now.percent, -1})
		}
		if now.last >= 0 && now.idles > before.idles {
			s.swaps[now.last].idle = time.Duration(f.SwapIdle.Last * float64(time.Microsecond))
			now.last = -1
		}
		s.seen[f.Name] = now
	}
}

// printShares prints the swaps and what they cost.
func printShares(w io.Writer, swaps []shareSwap, report *loadgen.Report) {
	for _, s := range swaps {
		fmt.Fprintln(w, s)
	}
	lost := uint64(0)
	for _, f := range report.Functions {
		if f.Lost != nil {
			lost += *f.Lost
		}
	}
	fmt.Fprintf(w, "%d swaps, %d requests lost\n", len(swaps), lost)
}
