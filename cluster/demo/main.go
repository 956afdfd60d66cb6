// Demo shows Penstock on a Kubernetes cluster of two nodes on this machine, without a GPU. `make cluster-demo` runs it as root.
//
//  1. It starts the cluster with simulated GPUs (package kubetest), and installs the chart.
//  2. The operator places three functions. Their pods run the models on this machine's CPU.
//  3. Clients send requests. Meanwhile a rate doubles, and a node is drained.
//  4. The demo prints how the requests of each phase ended. It fails if one was lost.
//
// Nothing is left on the machine, also if the demo is killed.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/penstock/penstock/cluster/kubetest"
)

func main() {
	os.Exit(kubetest.Isolated(func() int {
		if err := run(context.Background(), os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, "demo:", err)
			return 1
		}
		return 0
	}))
}

func run(ctx context.Context, w io.Writer) (err error) {
	var o options
	flag.StringVar(&o.images, "images", "../bin/images", "folder of the images, as make images writes it")
	flag.StringVar(&o.chart, "chart", "chart", "folder of the chart")
	lasts := flag.Duration("phase", 10*time.Second, "how long each phase lasts at least")
	flag.Parse()

	d := &demo{out: w, began: time.Now(), lasts: *lasts}
	s, err := start(ctx, o)
	if err != nil {
		return err
	}
	defer func() {
		if stopped := s.Stop(); err == nil {
			err = stopped
		}
	}()
	d.system = s
	d.say("two nodes are ready")
	return d.show(ctx, o)
}

// demo is a running demo.
type demo struct {
	*system
	out    io.Writer
	began  time.Time
	lasts  time.Duration
	phases []phase
}

// phase is a part of the demo. It ends when the next one begins.
type phase struct {
	name  string
	began time.Time
}

func (d *demo) say(format string, values ...any) {
	fmt.Fprintf(d.out, "%6.1f s  %s\n", time.Since(d.began).Seconds(), fmt.Sprintf(format, values...))
}

func (d *demo) begin(name string) { d.phases = append(d.phases, phase{name, time.Now()}) }

// show goes through all phases.
func (d *demo) show(ctx context.Context, o options) error {
	if err := d.install(ctx, o); err != nil {
		return fmt.Errorf("install penstock: %w", err)
	}
	for _, f := range functions {
		if err := d.create(ctx, f); err != nil {
			return fmt.Errorf("create function %s: %w", f.name, err)
		}
	}
	d.say("the chart is installed, and there are %d functions", len(functions))
	if err := d.awaitServing(ctx); err != nil {
		return err
	}

	rates := map[string]float64{"clothes": 80, "faces": 24, "shoes": 24}
	l := &load{}
	if err := d.startLoad(ctx, l, rates); err != nil {
		return fmt.Errorf("start clients: %w", err)
	}
	d.begin("steady")
	time.Sleep(d.lasts)

	d.begin("a rate doubles")
	d.say("clients of shoes send twice as much")
	l.setRate("shoes", 2*rates["shoes"])
	before, err := d.segments(ctx, "shoes")
	if err != nil {
		return err
	}
	err = await(ctx, func(ctx context.Context) error {
		now, err := d.segments(ctx, "shoes")
		if err == nil && len(now) <= len(before) {
			err = fmt.Errorf("shoes has %d segments", len(now))
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("wait for a segment of shoes: %w", err)
	}
	if err := d.awaitServing(ctx); err != nil {
		return err
	}
	time.Sleep(d.lasts)

	node := d.Nodes()[0].Name
	d.begin("a node is drained")
	d.say("kubectl drain %s", node)
	_, err = d.Kubectl(ctx, nil, "drain", node, "--delete-emptydir-data", "--ignore-daemonsets", "--force", "--timeout=90s")
	if err != nil {
		return err
	}
	if err := d.awaitServing(ctx); err != nil {
		return err
	}

	d.begin("after it")
	time.Sleep(d.lasts)
	ended := l.close()
	d.begin("end")

	fmt.Fprintln(d.out)
	d.table(ended)
	if total := count(ended); total.lost+total.failed > 0 {
		return fmt.Errorf("%d requests were lost, and %d failed", total.lost, total.failed)
	}
	return nil
}

// awaitServing waits until all functions serve, and shows where.
func (d *demo) awaitServing(ctx context.Context) error {
	if err := await(ctx, d.serving); err != nil {
		return fmt.Errorf("wait for functions: %w", err)
	}
	all, err := d.segments(ctx, "")
	if err != nil {
		return err
	}
	on := map[string]int{}
	for _, g := range all {
		on[g.node]++
	}
	d.say("%d segments serve: %d on %s, %d on %s", len(all), on[d.Nodes()[0].Name], d.Nodes()[0].Name, on[d.Nodes()[1].Name], d.Nodes()[1].Name)
	return nil
}

// table prints how requests ended, by phase and way.
func (d *demo) table(ended []request) {
	w := tabwriter.NewWriter(d.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "phase\tclients know\tsent\tanswered\tlost\tbusy\tlate\tfailed\tworst answer")
	row := func(name string, by way, requests []request) {
		t := count(requests)
		fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%d\t%d\t%d\t%d\t%d ms\n", name, by, t.sent, t.answered, t.lost, t.busy, t.late, t.failed, t.worst.Milliseconds())
	}
	for i, p := range d.phases[:len(d.phases)-1] {
		for _, by := range []way{plain, following} {
			row(p.name, by, slices.DeleteFunc(slices.Clone(ended), func(r request) bool {
				return r.flow.way != by || r.intended.Before(p.began) || !r.intended.Before(d.phases[i+1].began)
			}))
		}
	}
	row("all", "", ended)
	w.Flush()
}
