package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/internal/testbed"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/models/profile"
	"github.com/penstock/penstock/models/zoo"
	"github.com/penstock/penstock/profiler"
	"github.com/penstock/penstock/profiler/sweep"
)

// profileFlags are the flags of `penstock profile`.
type profileFlags struct {
	device, models             string
	shares, batches, processes []int
	sizes                      bool
	window                     time.Duration
	precision                  float64
	windows                    int
	out                        string
	again, quick               bool
}

// The defaults of --quick. Start and sweep together take at most a minute. The
// sweep itself may take quickBudget.
const (
	quickBudget    = 45 * time.Second
	quickWindow    = 200 * time.Millisecond
	quickPrecision = 10
	quickWindows   = 8
)

func profileCommand() *cobra.Command {
	var f profileFlags
	cmd := &cobra.Command{
		Use:   "profile MODEL",
		Short: "Measure a model at each share, batch size and number of processes, and find its knees",
		Long: `Measures the throughput and the mean batch time of a model at each share of a device, each
batch size and each number of processes. The processes run as in a node, under a real quota
(the share is that of all processes together), and always have pictures waiting. MODEL is the
name or the file of a card.

Each point is warmed up until its batches are full, then measured in windows until the 95 %
confidence interval of its mean throughput is within --precision. Points that cannot help are
left out: those after two points in a row that gained less than 2 %, and those that need at
least as much memory as a point that ran out of it.

The profile, MODEL.csv, is written next to the card. At the end the command prints the keys with
the knees. An unfinished profile is MODEL.csv.partial: after Ctrl-C the same command continues
from it.`,
		Example: `  penstock profile fashion
  penstock profile fashion --device cpu --shares 20,40,60,80,100 --batches 1,8 --processes 1,2 --out profiles
  penstock profile fashion --device cuda --sizes   # MIG's sizes, by MPS percentages`,
		Args: arguments(1),
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd, args[0]) },
	}
	cmd.Flags().StringVar(&f.device, "device", configs.DeviceAuto, "cuda, cuda:N, a GPU's UUID, cpu, or auto: the first GPU, else the CPU")
	cmd.Flags().StringVar(&f.models, "models", "", "folder of cards, searched before the built-in models")
	cmd.Flags().IntSliceVar(&f.shares, "shares", nil, "shares to measure, in percent (with --sizes, in GPCs); 10,20,...,100 if left out")
	cmd.Flags().IntSliceVar(&f.batches, "batches", nil, "batch sizes; the card's ladder if left out")
	cmd.Flags().IntSliceVar(&f.processes, "processes", []int{1, 2, 3, 4, 5}, "numbers of processes within a share")
	cmd.Flags().BoolVar(&f.sizes, "sizes", false, "measure at the sizes of the GPU's MIG instances, by MPS percentages of as many multiprocessors")
	cmd.Flags().DurationVar(&f.window, "window", 250*time.Millisecond, "length of a window; longer if ten batches take longer")
	cmd.Flags().Float64Var(&f.precision, "precision", 5, "half the confidence interval of a stable point, in percent of the mean")
	cmd.Flags().IntVar(&f.windows, "windows", 20, "max number of windows per point")
	cmd.Flags().StringVar(&f.out, "out", "", "folder for the profile; next to the card if left out, ./profiles for a built-in model")
	cmd.Flags().BoolVar(&f.quick, "quick", false, "measure for a minute: three shares, the smallest and the largest batch, one process, short windows")
	cmd.Flags().BoolVar(&f.again, "again", false, "discard earlier measurements")
	return cmd
}

// minWindows is the min number of windows per point. Fewer say little about the
// variance.
const minWindows = 4

// quicken applies the defaults of --quick to all flags that were not given.
func (f *profileFlags) quicken(given func(flag string) bool) {
	if !given("processes") {
		f.processes = []int{1}
	}
	if !given("window") {
		f.window = quickWindow
	}
	if !given("precision") {
		f.precision = quickPrecision
	}
	if !given("windows") {
		f.windows = quickWindows
	}
}

func (f *profileFlags) run(cmd *cobra.Command, model string) error {
	began := time.Now()
	elapsed := func() time.Duration { return time.Since(began) }
	if f.quick {
		f.quicken(cmd.Flags().Changed)
	}
	if err := f.check(); err != nil {
		return err
	}
	if f.device == configs.DeviceAuto {
		f.device = deviceHere()
	}
	if err := testbed.CheckDevice(f.device); err != nil {
		return fmt.Errorf("--device %s: %w", f.device, err)
	}
	o := testbed.Setup{Device: f.device, Models: f.models, Machine: testbed.ThisMachine(version)}
	var err error
	if o.Binary, err = os.Executable(); err != nil {
		return fmt.Errorf("find own binary: %w", err)
	}
	card, shipped, err := f.card(model)
	if err != nil {
		return err
	}
	file, err := profiler.FindPlace(card, shipped, f.out)
	if err != nil {
		return err
	}
	scale := profiler.PercentScale()
	if f.sizes {
		if scale, err = profiler.MIGScale(f.device); err != nil {
			return err
		}
	}
	grid, err := scale.Fill(f.grid(), card)
	if err != nil {
		return err
	}
	progress := cmd.ErrOrStderr()
	fmt.Fprintf(progress, "%s on %s: at most %d points, into %s\n%s\n", card.Name, f.device, len(sweep.Cells(grid)), file, f.duration(grid))

	options := profiler.Options{Setup: o, Card: card, Grid: grid, Scale: scale}
	report, err := f.measure(cmd.Context(), progress, options, sweep.Options{File: file, Again: f.again, Elapsed: elapsed})
	if err != nil {
		return err
	}
	report.WriteTable(cmd.OutOrStdout())
	fmt.Fprintf(cmd.OutOrStdout(), "profile: %s\n", file)
	profiler.PrintKnees(cmd.OutOrStdout(), card, shipped, report.Profile)
	return nil
}

// measure starts a node and measures the points that the profile lacks.
func (f *profileFlags) measure(ctx context.Context, progress io.Writer, what profiler.Options, how sweep.Options) (sweep.Report, error) {
	node, err := profiler.New(ctx, what)
	if err != nil {
		return sweep.Report{}, stoppedBefore(ctx, err)
	}
	defer node.Close()
	if how.Header, err = node.Header(); err != nil {
		return sweep.Report{}, err
	}
	how.Header.Date = time.Now().UTC().Truncate(time.Second)
	if f.quick {
		how.Budget = quickBudget
	}
	show := sweep.NewDisplay(progress, isTerminal(os.Stderr), what.Scale.Unit)
	how.Progress = show.Show
	report, err := sweep.Run(ctx, node, how)
	show.End()
	if ctx.Err() == nil || !errors.Is(err, context.Cause(ctx)) {
		return report, err
	}
	if len(report.Profile.Points) == 0 {
		return report, stoppedBefore(ctx, err)
	}
	fmt.Fprintf(progress, "stopped after %d points; run the same command to continue from %s\n", len(report.Profile.Points), how.File+sweep.PartialSuffix)
	return report, exitStatus(interrupted)
}

// card finds the card of a model; shipped reports whether it comes with
// Penstock.
func (f *profileFlags) card(model string) (card *models.Card, shipped bool, err error) {
	find := zoo.Registry{}
	if f.models != "" {
		find.Dirs = []string{f.models}
	}
	card, err = find.Find(model)
	if f.models == "" && errors.Is(err, zoo.ErrUnknownModel) {
		return nil, false, fmt.Errorf("%w; name a folder of cards with --models", err)
	}
	if err != nil {
		return nil, false, err
	}
	return card, find.Shipped(card), nil
}

// duration describes the expected time of a measurement.
func (f *profileFlags) duration(grid profile.Sweep) string {
	if f.quick {
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
		minutes(least), minutes(most), f.window/10)
}

// interrupted is the exit status of a program that Ctrl-C ended (128 + SIGINT).
const interrupted = 130

// stoppedBefore is the error if the measurement ends before its first point.
func stoppedBefore(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return errors.New("stopped before the first point was measured")
	}
	return err
}

// check checks the flags that need neither card nor device.
func (f *profileFlags) check() error {
	for flag, list := range map[string][]int{"--shares": f.shares, "--batches": f.batches, "--processes": f.processes} {
		for _, n := range list {
			if n < 1 {
				return fmt.Errorf("%s %d: want at least 1", flag, n)
			}
		}
		slices.Sort(list)
		if i := slices.IndexFunc(list, func(n int) bool { return count(list, n) > 1 }); i >= 0 {
			return fmt.Errorf("%s %d: is listed twice", flag, list[i])
		}
	}
	if n := len(f.processes); n == 0 || f.processes[n-1] > configs.MaxInstances {
		return fmt.Errorf("--processes %v: want numbers from 1 to %d", f.processes, configs.MaxInstances)
	}
	if n := len(f.batches); n > 0 && f.batches[n-1] > models.MaxBatchSize {
		return fmt.Errorf("--batches %d: want at most %d", f.batches[n-1], models.MaxBatchSize)
	}
	switch {
	case f.window < 10*time.Millisecond || f.window > time.Minute:
		return fmt.Errorf("--window %s: want 10ms to 1m", f.window)
	case !(f.precision >= 0.1 && f.precision <= 100):
		return fmt.Errorf("--precision %v: want 0.1 to 100, in percent", f.precision)
	case f.windows < minWindows:
		return fmt.Errorf("--windows %d: want at least %d", f.windows, minWindows)
	}
	return nil
}

func count(list []int, n int) (times int) {
	for _, m := range list {
		if m == n {
			times++
		}
	}
	return times
}

// deviceHere is the first GPU if there is one, else the CPU.
func deviceHere() string {
	if testbed.CheckDevice("cuda") == nil {
		return "cuda"
	}
	return configs.DeviceCPU
}

// grid is the part of the sweep that the flags set. The scale sets the rest.
func (f *profileFlags) grid() profile.Sweep {
	return profile.Sweep{
		Shares: f.shares, Batches: f.batches, Processes: f.processes, Quick: f.quick,
		WindowSeconds: f.window.Seconds(), PrecisionPercent: f.precision, MinWindows: minWindows, MaxWindows: f.windows,
	}
}
