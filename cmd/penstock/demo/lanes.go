package demo

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/penstock/penstock/client"
	"github.com/penstock/penstock/cmd/penstock/load"
	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/control/cputime"
	"github.com/penstock/penstock/loadgen"
	"github.com/penstock/penstock/loadgen/tabular"
	"github.com/penstock/penstock/loadgen/traffic"
	"github.com/penstock/penstock/node"
	"github.com/penstock/penstock/wire"
)

// The demo of lanes runs many functions in one worker whose memory holds a third of their models:
//
//  1. Start the node. Each model is loaded once.
//  2. Send requests at rates from high to low (Zipf). A line shows what the worker loads.
//  3. After a third of the time, move a function to its own process. After two thirds, move it back.
//  4. Print a table. Fail if a request was lost or an answer differs.

const (
	LanesDuration = time.Minute
	lanesWarmup   = 2 * time.Second
	// lanesRate is the sum of all rates, in requests per second.
	lanesRate = 60
	// lanesWorker hosts the functions. lanesMemory is a third of what their models take.
	lanesWorker = "cold"
	lanesMemory = 22 // MiB
	// lanesMoved has the most requests.
	lanesMoved = "fashion-1"
)

// laneModels are the models of the functions. The objectives leave time to load a model.
var laneModels = []struct {
	name string
	slo  time.Duration
}{{"face", 250 * time.Millisecond}, {"fashion", 250 * time.Millisecond}, {"detect", time.Second}}

// laneFunctions lists the functions, those with the most requests first: 20 of face and of fashion,
// and 2 of detect.
func laneFunctions() (names []string) {
	for i := 1; i <= 20; i++ {
		names = append(names, fmt.Sprintf("fashion-%d", i), fmt.Sprintf("face-%d", i))
		if i%10 == 0 {
			names = append(names, fmt.Sprintf("detect-%d", i/10))
		}
	}
	return names
}

// laneModel is the model of a function of laneFunctions.
func laneModel(function string) string {
	model, _, _ := strings.Cut(function, "-")
	return model
}

// lanesConfig is the node's configuration.
func lanesConfig() string {
	var b strings.Builder
	fmt.Fprintf(&b, "workers: [{name: %s, share_percent: 90, memory: %dMiB, lanes: 1}]\nfunctions:\n", lanesWorker, lanesMemory)
	for _, name := range laneFunctions() {
		for _, m := range laneModels {
			if m.name == laneModel(name) {
				fmt.Fprintf(&b, "  - {name: %s, model: %s, port: 0, slo: %s, worker: %s}\n", name, m.name, m.slo, lanesWorker)
			}
		}
	}
	return b.String()
}

// lanesRates divides lanesRate by Zipf's law: the n-th function gets 1/n of the requests of the first.
func lanesRates() map[string]string {
	functions, sum := laneFunctions(), 0.0
	for i := range functions {
		sum += 1 / float64(1+i)
	}
	rates := map[string]string{}
	for i, name := range functions {
		rates[name] = strconv.FormatFloat(lanesRate/sum/float64(1+i), 'f', 3, 64)
	}
	return rates
}

// Lanes runs many functions in one worker, and moves one out and back. The error is a loadgen.Faults
// if a request was lost or an answer was wrong.
func Lanes(ctx context.Context, o Options) error {
	if o.Device != configs.DeviceCPU {
		return fmt.Errorf("--device %s: --lanes runs on %s", o.Device, configs.DeviceCPU)
	}
	if o.Duration < 6*time.Second {
		return fmt.Errorf("--duration %s: want at least 6s with --lanes, for two moves", o.Duration)
	}
	log, err := openLog(o.Out)
	if err != nil {
		return err
	}
	defer log.Close()

	fmt.Fprintf(os.Stderr, "penstock up (log: %s): %d functions in worker %s, with memory for a third of their models\n", log.Name(), len(laneFunctions()), lanesWorker)
	machine, err := cputime.NewForeign()
	if err != nil {
		return err
	}
	nd, err := startNode(ctx, lanesConfig(), log)
	if err != nil {
		return err
	}
	defer nd.Kill()

	report, err := lanesTraffic(ctx, nd, o.Duration)
	if err != nil {
		return err
	}
	status, err := nd.Status()
	if err != nil {
		return err
	}
	foreign, err := machine.Part()
	if err != nil {
		return err
	}
	if o.Output == "table" {
		printLanes(os.Stdout, &status, report)
		printForeign(os.Stdout, foreign)
	} else if err := load.Print(report, o.Output); err != nil {
		return err
	}
	if errs := lanesErrors(report); len(errs) > 0 {
		return loadgen.Faults(errs)
	}
	return nil
}

// lanesErrors lists requests without an answer, and wrong answers. On a busy machine all requests may be late, which is no
// error.
func lanesErrors(report *loadgen.Report) (errs []string) {
	if report.ManagerError != "" {
		errs = append(errs, "cannot count lost requests: "+report.ManagerError)
	}
	answered := uint64(0)
	for i := range report.Functions {
		f := &report.Functions[i]
		answered += f.OK + f.Late
		if f.Restarted || f.Removed {
			errs = append(errs, f.Name+": its counters restarted: the manager died")
		}
		errs = append(errs, f.Errors()...)
		if !report.Interrupted {
			errs = append(errs, f.Missing()...)
		}
	}
	if answered == 0 && !report.Interrupted {
		errs = append(errs, "no request was answered")
	}
	return errs
}

// lanesTraffic sends the requests while it moves a function out and back.
func lanesTraffic(ctx context.Context, nd *node.Node, duration time.Duration) (*loadgen.Report, error) {
	status, err := nd.Status()
	if err != nil {
		return nil, err
	}
	unpin, err := pinToManager()
	if err != nil {
		return nil, err
	}
	defer unpin()
	run, err := traffic.New(status, traffic.Options{
		Spec:  loadgen.Spec{Duration: duration, Warmup: lanesWarmup, Seed: 1},
		Rates: lanesRates(), Arrivals: "poisson", Streams: 1,
		Reference: load.Reference,
	})
	if err != nil {
		return nil, err
	}
	defer run.Close()

	ctx, stop := context.WithCancel(ctx)
	defer stop()
	progress := loadgen.NewProgress(os.Stderr, tabular.WidthOf(os.Stderr))
	host := lanesWorker
	moves := laneMoves{dir: nd.Dir, pause: duration / 3, ended: make(chan error, 1)}
	report, err := loadgen.Run(ctx, run.Spec, loadgen.Options{
		Dial:      loadgen.DialClient(client.Options{}),
		Status:    func(ctx context.Context) (control.Status, error) { return control.ReadStatus(ctx, nd.Dir) },
		Reference: run,
		Observe: func(s loadgen.Snapshot) {
			moves.begin(ctx, s.Elapsed, stop)
			sample, err := control.ReadSample(ctx, nd.Dir)
			if err != nil {
				return // Status reports it
			}
			if f, ok := sample.Status.Function(lanesMoved); ok && f.Worker != host {
				host = f.Worker
				progress.Print(fmt.Sprintf("%s moved to %s", lanesMoved, cmp.Or(host, "its own process")))
			}
			progress.ShowLine(s.Elapsed, laneLine(s.Left, &sample))
		},
		Notify: func(line string) { progress.Print("penstock demo: " + line) },
	})
	progress.End()
	return report, errors.Join(moves.wait(), err)
}

// laneMoves moves lanesMoved out of its worker and back.
type laneMoves struct {
	dir   string
	pause time.Duration // before the first move, and between the two
	begun bool
	ended chan error // gets the result, once begun
}

// begin starts the moves when it is time for them. It calls failed if one fails.
func (m *laneMoves) begin(ctx context.Context, elapsed time.Duration, failed func()) {
	if m.begun || elapsed < lanesWarmup+m.pause {
		return
	}
	m.begun = true
	go func() {
		err := m.run(ctx)
		if err != nil {
			failed()
		}
		m.ended <- err
	}()
}

func (m *laneMoves) run(ctx context.Context) error {
	move := func(worker string) error {
		_, err := control.SendOrder(ctx, m.dir, control.MovePath, control.MoveOrder{Name: lanesMoved, Worker: worker})
		return err
	}
	if err := move(""); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return nil
	case <-time.After(m.pause):
	}
	return move(lanesWorker)
}

// wait waits for the end of the moves, if they have begun.
func (m *laneMoves) wait() error {
	if !m.begun {
		return nil
	}
	return <-m.ended
}

// laneLine shows the state of the node in a line.
func laneLine(left time.Duration, s *control.Sample) string {
	resident, loads, evictions := countLoads(&s.Status)
	late := uint64(0)
	for i := range s.Functions {
		if results := s.Functions[i].Results; len(results) > int(wire.StatusLate) {
			late += results[wire.StatusLate]
		}
	}
	return fmt.Sprintf("%3.0f s left │ %d of %d models resident │ %d loads, %d evictions │ %d late", left.Seconds(), resident, len(s.Status.Functions), loads, evictions, late)
}

// countLoads sums up the residency of all functions.
func countLoads(s *control.Status) (resident int, loads, evictions uint64) {
	for i := range s.Functions {
		r := s.Functions[i].Residency
		if r == nil {
			resident++ // in its own process, or in a worker without a limit
			continue
		}
		if r.State == control.Resident || r.State == control.Running {
			resident++
		}
		loads, evictions = loads+r.Loads, evictions+r.Evictions
	}
	return resident, loads, evictions
}

// laneTotals sums up the functions of a model.
type laneTotals struct {
	functions, members int
	requests           loadgen.Outcomes
	loads              uint64
	loadMillis         float64 // sum of the members' last loads
}

// sumLanes sums up the functions by model.
func sumLanes(status *control.Status, report *loadgen.Report) map[string]*laneTotals {
	sums := map[string]*laneTotals{}
	for _, m := range laneModels {
		sums[m.name] = &laneTotals{}
	}
	for i := range report.Functions {
		f := &report.Functions[i]
		t := sums[laneModel(f.Name)]
		t.functions++
		t.requests.Add(f.Outcomes())
		if now, ok := status.Function(f.Name); ok && now.Residency != nil {
			t.members++
			t.loads += now.Residency.Loads
			t.loadMillis += now.Residency.LastLoadMillis
		}
	}
	return sums
}

// printLanes prints a row per model, and the loads of the worker.
func printLanes(w io.Writer, status *control.Status, report *loadgen.Report) {
	columns := slices.Concat([]tabular.Column{{Name: "model", Left: true}}, loadgen.OutcomeColumns,
		[]tabular.Column{{Name: "% in time"}, {Name: "functions"}, {Name: "loads"}, {Name: "a load"}})
	sums := sumLanes(status, report)
	var rows [][]string
	for _, m := range laneModels {
		t := sums[m.name]
		inTime, load := "-", "-"
		if t.requests.Sent > 0 {
			inTime = fmt.Sprintf("%.1f", 100*float64(t.requests.InTime)/float64(t.requests.Sent))
		}
		if t.loads > 0 {
			load = fmt.Sprintf("%.1f ms", t.loadMillis/float64(t.members))
		}
		rows = append(rows, slices.Concat([]string{m.name}, t.requests.Cells(), []string{inTime, fmt.Sprint(t.functions), fmt.Sprint(t.loads), load}))
	}
	fmt.Fprintln(w, tabular.RenderOne(tabular.Width(os.Stdout), columns, rows))

	lost, wrong, bytes := uint64(0), uint64(0), int64(0)
	for i := range report.Functions {
		f := &report.Functions[i]
		wrong += f.Wrong
		if f.Lost != nil {
			lost += *f.Lost
		}
	}
	for i := range status.Functions {
		if r := status.Functions[i].Residency; r != nil {
			bytes += r.Bytes
		}
	}
	_, loads, evictions := countLoads(status)
	fmt.Fprintf(w, "Memory for %d of the %.0f MiB that the models take: %d loads, %d evictions.\n", lanesMemory, float64(bytes)/(1<<20), loads, evictions)
	fmt.Fprintf(w, "%d requests lost, %d answers wrong.\n", lost, wrong)
}
