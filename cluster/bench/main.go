// Bench measures the operator on a large cluster that exists only as objects. `make bench-cluster` runs it as root.
//
//  1. It starts a control plane, and makes nodes with GPUs, a Profile per size, and Functions (package kubetest).
//  2. It starts the operator's program, as the service account of the chart, and creates a Fleet.
//  3. The operator plans, allocates claims and makes pods. The scheduler binds them, and kwok says that they run.
//  4. Once all functions serve, nothing happens for a while.
//  5. It prints how many segments per second were bound, what each program used, and what was written in that while.
//
// Nothing is left on the machine, also if the program is killed.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/penstock/penstock/cluster/kubetest"
)

func main() {
	os.Exit(kubetest.Isolated(func() int {
		var o options
		flag.StringVar(&o.program, "operator", "../bin/cluster/penstock-operator", "program of the operator")
		flag.StringVar(&o.chart, "chart", "chart", "folder of the chart")
		flag.StringVar(&o.profiles, "profiles", "", "folder for profiles of the operator; none if left out")
		flag.IntVar(&o.nodes, "nodes", 1000, "nodes")
		flag.IntVar(&o.gpus, "gpus", 8, "GPUs per node, at most 8")
		flag.IntVar(&o.segments, "segments", 18000, "segments of all functions, at most 3 per GPU")
		flag.IntVar(&o.functions, "functions", 3000, "functions, which share the segments")
		flag.DurationVar(&o.steady, "steady", time.Minute, "how long nothing may be written, at the end")
		flag.DurationVar(&o.limit, "limit", 10*time.Minute, "how long it may take until all functions serve")
		flag.Parse()
		if _, err := run(context.Background(), os.Stdout, o); err != nil {
			fmt.Fprintln(os.Stderr, "bench:", err)
			return 1
		}
		return 0
	}))
}

// options say how large the cluster is.
type options struct {
	program, chart, profiles         string
	nodes, gpus, segments, functions int
	steady, limit                    time.Duration
}

func (o options) check() error {
	if all := o.nodes * o.gpus; o.segments > 3*all || o.functions > o.segments || o.functions < 1 {
		return fmt.Errorf("%d segments of %d functions on %d GPUs: want at most 3 segments per GPU, and a segment per function at least",
			o.segments, o.functions, all)
	}
	return nil
}

// bench is a running bench.
type bench struct {
	options
	*system
	out   io.Writer
	began time.Time
}

func (b *bench) say(format string, values ...any) {
	fmt.Fprintf(b.out, "%6.1f s  %s\n", time.Since(b.began).Seconds(), fmt.Sprintf(format, values...))
}

// run runs the bench and prints its result.
func run(ctx context.Context, w io.Writer, o options) (r *result, err error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	b := &bench{options: o, out: w, began: time.Now()}
	if b.system, err = start(ctx, o); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, b.Stop()) }()
	if r, err = b.measure(ctx); err != nil {
		return nil, err
	}
	fmt.Fprintln(w)
	r.print(w)
	return r, nil
}

// measure goes through all steps.
func (b *bench) measure(ctx context.Context) (*result, error) {
	r := &result{options: b.options}
	if err := b.makeNodes(ctx, b.options); err != nil {
		return nil, err
	}
	b.say("%d nodes with %d GPUs each", b.nodes, b.gpus)
	if err := b.makeFunctions(ctx, b.options); err != nil {
		return nil, err
	}
	b.say("%d functions", b.functions)
	p, err := b.runOperator(b.program)
	if err != nil {
		return nil, err
	}
	if err := b.await(ctx, p, b.services); err != nil {
		return nil, fmt.Errorf("wait for services: %w", err)
	}
	b.say("each function has its service")

	before, err := readUsage(b.programs)
	if err != nil {
		return nil, err
	}
	first, err := b.writes(ctx)
	if err != nil {
		return nil, err
	}
	created := time.Now()
	if err := b.createFleet(ctx); err != nil {
		return nil, err
	}
	if err := b.await(ctx, p, b.planned); err != nil {
		return nil, fmt.Errorf("wait for the plan: %w", err)
	}
	r.planned = time.Since(created)
	b.say("the plan is written")
	profiled := b.profile(ctx)
	if err := b.await(ctx, p, b.serving); err != nil {
		return nil, fmt.Errorf("wait for functions: %w", err)
	}
	r.served = time.Since(created)
	after, err := readUsage(b.programs)
	if err != nil {
		return nil, err
	}
	r.binding = after.since(before)
	r.bound = b.pods.boundTimes()
	last, err := b.writes(ctx)
	if err != nil {
		return nil, err
	}
	r.wrote = more(first, last)
	b.say("all functions serve")
	if err := b.checkClaims(ctx); err != nil {
		return nil, err
	}

	if r.settled, err = b.settle(ctx); err != nil {
		return nil, err
	}
	b.say("nothing is written any more")
	if first, err = b.writes(ctx); err != nil {
		return nil, err
	}
	if before, err = readUsage(b.programs); err != nil {
		return nil, err
	}
	time.Sleep(b.steady)
	if last, err = b.writes(ctx); err != nil {
		return nil, err
	}
	if after, err = readUsage(b.programs); err != nil {
		return nil, err
	}
	r.steadyUse = after.since(before)
	r.written = more(first, last)
	return r, errors.Join(<-profiled, b.heap(ctx))
}
