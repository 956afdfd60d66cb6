package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"k8s.io/client-go/kubernetes"

	"github.com/penstock/penstock/control/cputime"
	"github.com/penstock/penstock/internal/procstat"
)

// result is what the bench has measured.
type result struct {
	options
	planned, served, settled time.Duration // since the fleet was created, and since all functions served
	bound                    []time.Time   // of the segments
	binding, steadyUse       use
	wrote, written           map[string]float64 // by what, while segments were bound and in the steady time
}

// window is over which rates are counted.
const window = 10 * time.Second

// rates returns how many segments were bound per second, in windows one after another. If there is none, it is one for all.
func (r *result) rates() []float64 {
	var all []float64
	first, last := r.bound[0], r.bound[len(r.bound)-1]
	for from := first; !from.Add(window).After(last); from = from.Add(window) {
		n := 0
		for _, at := range r.bound {
			if !at.Before(from) && at.Before(from.Add(window)) {
				n++
			}
		}
		all = append(all, float64(n)/window.Seconds())
	}
	if len(all) == 0 {
		all = []float64{float64(len(r.bound)) / last.Sub(first).Seconds()}
	}
	slices.Sort(all)
	return all
}

func (r *result) print(out io.Writer) {
	rates := r.rates()
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	row := func(name, format string, values ...any) {
		fmt.Fprintf(w, "%s\t%s\n", name, fmt.Sprintf(format, values...))
	}
	row("nodes, GPUs, functions, segments", "%d, %d, %d, %d", r.nodes, r.nodes*r.gpus, r.functions, len(r.bound))
	row("fleet created → planned", "%.1f s", r.planned.Seconds())
	row("fleet created → all serve", "%.1f s", r.served.Seconds())
	row("segments bound per second", "median %.1f, worst %.1f of %d windows of %s; %.1f of all", rates[len(rates)/2], rates[0], len(rates), window,
		float64(len(r.bound))/r.bound[len(r.bound)-1].Sub(r.bound[0]).Seconds())
	row("writes until all serve, per segment", "%.1f", sum(r.wrote)/float64(len(r.bound)))
	for _, what := range slices.Sorted(maps.Keys(r.wrote)) {
		if each := r.wrote[what] / float64(len(r.bound)); each >= 0.1 {
			row("  "+what, "%.1f", each)
		}
	}
	row("all serve → no more writes", "%.1f s", r.settled.Seconds())
	row(fmt.Sprintf("writes in %s after that", r.steady), "%.0f", sum(r.written))
	for _, what := range slices.Sorted(maps.Keys(r.written)) {
		row("  "+what, "%.0f", r.written[what])
	}
	w.Flush()

	fmt.Fprintln(out)
	w = tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "program\tCPU time while segments were bound\tper segment\tCPUs in the steady time\tpeak memory")
	for _, name := range slices.Sorted(maps.Keys(r.binding.programs)) {
		b, s := r.binding.programs[name], r.steadyUse.programs[name]
		fmt.Fprintf(w, "%s\t%.1f s\t%.2f ms\t%.2f\t%d MiB\n", name, b.cpu.Seconds(), b.cpu.Seconds()*1000/float64(len(r.bound)),
			s.cpu.Seconds()/r.steadyUse.took.Seconds(), s.peak>>20)
	}
	w.Flush()
	fmt.Fprintf(out, "machine: %d CPUs, %.0f %% busy while segments were bound and %.0f %% in the steady time, of which other programs had %.0f %% and %.0f %%; load %s\n",
		r.binding.cpus, r.binding.busy(), r.steadyUse.busy(), r.binding.others(), r.steadyUse.others(), r.binding.load)
}

func sum(all map[string]float64) (total float64) {
	for _, n := range all {
		total += n
	}
	return total
}

// usage is what programs and the machine have used so far.
type usage struct {
	at       time.Time
	programs map[string]programUse
	busy     time.Duration // of all CPUs
	cpus     int
	load     string
}

type programUse struct {
	cpu  time.Duration
	peak int64 // bytes
}

// use is what was used between two usages.
type use struct {
	usage
	took time.Duration
}

func readUsage(programs map[string]int) (u usage, err error) {
	u = usage{at: time.Now(), cpus: runtime.NumCPU(), programs: map[string]programUse{}}
	for name, pid := range programs {
		stat, err := procstat.Read(pid)
		if err != nil {
			return u, fmt.Errorf("%s has ended: %w", name, err)
		}
		peak, err := peakMemory(pid)
		if err != nil {
			return u, err
		}
		u.programs[name] = programUse{stat.CPUTime(), peak}
	}

	if _, u.busy, err = cputime.Machine(); err != nil {
		return u, err
	}
	load, err := os.ReadFile("/proc/loadavg")
	u.load = strings.Join(strings.Fields(string(load))[:3], " ")
	return u, err
}

// peakMemory returns the largest resident size that a process had.
func peakMemory(pid int) (int64, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(status)) {
		if kib, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			n, err := strconv.ParseInt(strings.Fields(kib)[0], 10, 64)
			return n << 10, err
		}
	}
	return 0, fmt.Errorf("process %d has no VmHWM", pid)
}

func (u usage) since(before usage) use {
	d := use{usage: u, took: u.at.Sub(before.at)}
	d.usage.busy -= before.busy
	d.programs = map[string]programUse{}
	for name, p := range u.programs {
		p.cpu -= before.programs[name].cpu
		d.programs[name] = p
	}
	return d
}

// busy returns the part of the machine's CPU time that was used, in percent.
func (u use) busy() float64 { return 100 * u.usage.busy.Seconds() / u.took.Seconds() / float64(u.cpus) }

// others returns the part that other programs than the bench's used.
func (u use) others() float64 {
	own := 0.0
	for _, p := range u.programs {
		own += p.cpu.Seconds()
	}
	return max(0, u.busy()-100*own/u.took.Seconds()/float64(u.cpus))
}

// writes returns how many objects were written, by what. The renewed leases of nodes do not count.
func (s *system) writes(ctx context.Context) (map[string]float64, error) {
	api, err := kubernetes.NewForConfig(s.Admin())
	if err != nil {
		return nil, err
	}
	text, err := api.RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the API server's metrics: %w", err)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(text))
	if err != nil {
		return nil, fmt.Errorf("read the API server's metrics: %w", err)
	}
	all := map[string]float64{}
	for _, m := range families["apiserver_request_total"].GetMetric() {
		of := map[string]string{}
		for _, l := range m.GetLabel() {
			of[l.GetName()] = l.GetValue()
		}
		switch of["verb"] {
		case "POST", "PUT", "PATCH", "DELETE", "APPLY", "DELETECOLLECTION":
			if of["resource"] != "leases" {
				all[strings.TrimSuffix(strings.ToLower(of["verb"])+" "+of["resource"]+"/"+of["subresource"], "/")] += m.GetCounter().GetValue()
			}
		}
	}
	return all, nil
}

// more returns what grew.
func more(before, after map[string]float64) map[string]float64 {
	grown := map[string]float64{}
	for what, n := range after {
		if n > before[what] {
			grown[what] = n - before[what]
		}
	}
	return grown
}

const (
	// quiet is how long nothing must be written until the bench says that nothing is written any more.
	quiet = 15 * time.Second
	// settleLimit is how long the bench waits for that.
	settleLimit = 3 * time.Minute
)

// settle waits until nothing is written any more, and returns how long that took.
func (b *bench) settle(ctx context.Context) (time.Duration, error) {
	began := time.Now()
	last, err := b.writes(ctx)
	for since := began; err == nil && time.Since(since) < quiet; {
		time.Sleep(time.Second)
		var now map[string]float64
		if now, err = b.writes(ctx); err == nil && len(more(last, now)) > 0 {
			if time.Since(began) > settleLimit {
				return 0, fmt.Errorf("wait until nothing is written any more: for %s, there was always something: %v", settleLimit, more(last, now))
			}
			last, since = now, time.Now()
		}
	}
	return max(0, time.Since(began)-quiet), err
}
