package profiler

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/cuda/mig"
	"github.com/penstock/penstock/internal/testbed"
	"github.com/penstock/penstock/loadgen/tabular"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/models/profile"
	"github.com/penstock/penstock/models/zoo"
	"github.com/penstock/penstock/profiler/sweep"
)

// Request is what `penstock profile` measures. Errors name its flags.
type Request struct {
	Model     string // the name or the file of a card
	Device    string
	Models    string // a folder of cards; empty for none
	Shares    []int  // empty: those of the scale
	Batches   []int  // empty: the card's ladder
	Processes []int
	Sizes     bool // measure at the sizes of MIG instances
	Cut       bool // cut a GPU in MIG mode into them, for the time of the measurement
	Window    time.Duration
	Precision float64 // in percent of the mean
	Windows   int
	Out       string // a folder; empty: next to the card
	Again     bool   // discard earlier measurements
	Quick     bool
	Version   string // of this program
}

// The defaults of --quick. Start and sweep together take at most a minute. The
// sweep itself may take quickBudget.
const (
	quickBudget    = 45 * time.Second
	quickWindow    = 200 * time.Millisecond
	quickPrecision = 10
	quickWindows   = 8
)

// minWindows is the min number of windows per point. Fewer say little about the
// variance.
const minWindows = 4

// Quicken applies the defaults of --quick to all flags that were not given.
func (q *Request) Quicken(given func(flag string) bool) {
	if !given("processes") {
		q.Processes = []int{1}
	}
	if !given("window") {
		q.Window = quickWindow
	}
	if !given("precision") {
		q.Precision = quickPrecision
	}
	if !given("windows") {
		q.Windows = quickWindows
	}
}

// ErrInterrupted is returned if the context ended after a point was measured.
var ErrInterrupted = errors.New("interrupted")

// Run measures the points that the profile lacks, and writes the profile. It prints the result to out
// and the progress to progress.
func (q *Request) Run(ctx context.Context, out, progress io.Writer) error {
	began := time.Now()
	elapsed := func() time.Duration { return time.Since(began) }
	if err := q.check(); err != nil {
		return err
	}
	if q.Device == configs.DeviceAuto {
		q.Device = deviceHere()
	}
	if err := testbed.CheckDevice(q.Device); err != nil {
		return fmt.Errorf("--device %s: %w", q.Device, err)
	}
	o := testbed.Setup{Device: q.Device, Models: q.Models, Machine: testbed.ThisMachine(q.Version)}
	var err error
	if o.Binary, err = os.Executable(); err != nil {
		return fmt.Errorf("find own binary: %w", err)
	}
	card, shipped, err := q.card(q.Model)
	if err != nil {
		return err
	}
	if q.Device == configs.DeviceCPU {
		card = card.On(0)
	}
	file, err := FindPlace(card, shipped, q.Out)
	if err != nil {
		return err
	}
	scale := PercentScale()
	var instances *Instances
	if q.Sizes {
		if scale, instances, err = MIGScale(q.Device, q.Cut, mig.Open); err != nil {
			return fmt.Errorf("--sizes: %w", err)
		}
	}
	grid, err := scale.Fill(q.grid(), card)
	if err != nil {
		return err
	}
	fmt.Fprintf(progress, "%s on %s: at most %d points, into %s\n%s\n", card.Name, q.Device, len(sweep.Cells(grid, scale.Unit)), file, q.duration(grid))

	options := Options{Setup: o, Card: card, Grid: grid, Scale: scale, Instances: instances}
	report, err := q.measure(ctx, progress, options, sweep.Options{File: file, Again: q.Again, Elapsed: elapsed})
	if err != nil {
		return err
	}
	report.WriteTable(out)
	fmt.Fprintf(out, "profile: %s\n", file)
	PrintKnees(out, card, shipped, report.Profile)
	return nil
}

// measure starts a node and measures the points that the profile lacks.
func (q *Request) measure(ctx context.Context, progress io.Writer, what Options, how sweep.Options) (report sweep.Report, err error) {
	node, err := New(ctx, what)
	if err != nil {
		return sweep.Report{}, stoppedBefore(ctx, err)
	}
	defer func() {
		closeErr := node.Close()
		if what.Instances != nil {
			closeErr = errors.Join(closeErr, what.Instances.Close())
		}
		err = cmp.Or(closeErr, err)
	}()
	if how.Header, err = node.Header(); err != nil {
		return sweep.Report{}, err
	}
	how.Header.Date = time.Now().UTC().Truncate(time.Second)
	if q.Quick {
		how.Budget = quickBudget
	}
	show := sweep.NewDisplay(progress, tabular.WidthOf(os.Stderr), what.Scale.Unit)
	how.Progress = show.Show
	report, err = sweep.Run(ctx, node, how)
	show.End()
	if ctx.Err() == nil || !errors.Is(err, context.Cause(ctx)) {
		return report, err
	}
	if len(report.Profile.Points) == 0 {
		return report, stoppedBefore(ctx, err)
	}
	fmt.Fprintf(progress, "stopped after %d points; run the same command to continue from %s\n", len(report.Profile.Points), how.File+sweep.PartialSuffix)
	return report, ErrInterrupted
}

// card finds the card of a model; shipped reports whether it comes with
// Penstock.
func (q *Request) card(model string) (card *models.Card, shipped bool, err error) {
	find := zoo.Registry{}
	if q.Models != "" {
		find.Dirs = []string{q.Models}
	}
	card, err = find.Find(model)
	if q.Models == "" && errors.Is(err, zoo.ErrUnknownModel) {
		return nil, false, fmt.Errorf("%w; name a folder of cards with --models", err)
	}
	if err != nil {
		return nil, false, err
	}
	return card, find.Shipped(card), nil
}

// duration describes the expected time of a measurement.
func (q *Request) duration(grid profile.Sweep) string {
	if q.Quick {
		return "this takes up to a minute"
	}
	minutes := func(d time.Duration) string {
		if d < 2*time.Minute {
			return fmt.Sprintf("%.0f s", d.Seconds())
		}
		return fmt.Sprintf("%.0f min", d.Minutes())
	}
	least, most := sweep.Estimate(grid)
	return fmt.Sprintf("this takes %s to %s, more if a batch takes longer than %s; --quick takes a minute",
		minutes(least), minutes(most), q.Window/10)
}

// stoppedBefore is the error if the measurement ends before its first point.
func stoppedBefore(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return errors.New("stopped before the first point was measured")
	}
	return err
}

// check checks the flags that need neither card nor device.
func (q *Request) check() error {
	for flag, list := range map[string][]int{"--shares": q.Shares, "--batches": q.Batches, "--processes": q.Processes} {
		for _, n := range list {
			if n < 1 {
				return fmt.Errorf("%s %d: want at least 1", flag, n)
			}
		}
		slices.Sort(list)
		for i := 1; i < len(list); i++ {
			if list[i] == list[i-1] {
				return fmt.Errorf("%s %d: is listed twice", flag, list[i])
			}
		}
	}
	if n := len(q.Processes); n == 0 || q.Processes[n-1] > configs.MaxInstances {
		return fmt.Errorf("--processes %v: want numbers from 1 to %d", q.Processes, configs.MaxInstances)
	}
	if n := len(q.Batches); n > 0 && q.Batches[n-1] > models.MaxBatchSize {
		return fmt.Errorf("--batches %d: want at most %d", q.Batches[n-1], models.MaxBatchSize)
	}
	switch {
	case q.Cut && !q.Sizes:
		return errors.New("--cut without --sizes: want both, or neither")
	case q.Window < 10*time.Millisecond || q.Window > time.Minute:
		return fmt.Errorf("--window %s: want 10ms to 1m", q.Window)
	case !(q.Precision >= 0.1 && q.Precision <= 100):
		return fmt.Errorf("--precision %v: want 0.1 to 100, in percent", q.Precision)
	case q.Windows < minWindows:
		return fmt.Errorf("--windows %d: want at least %d", q.Windows, minWindows)
	}
	return nil
}

// deviceHere is the first GPU if there is one, else the CPU.
func deviceHere() string {
	if testbed.CheckDevice("cuda") == nil {
		return "cuda"
	}
	return configs.DeviceCPU
}

// grid is the part of the sweep that the flags set. The scale sets the rest.
func (q *Request) grid() profile.Sweep {
	return profile.Sweep{
		Shares: q.Shares, Batches: q.Batches, Processes: q.Processes, Quick: q.Quick,
		WindowSeconds: q.Window.Seconds(), PrecisionPercent: q.Precision, MinWindows: minWindows, MaxWindows: q.Windows,
	}
}
