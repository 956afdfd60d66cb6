package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/cuda/nvml"
	"github.com/penstock/penstock/internal/testbed"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/models/profile"
	"github.com/penstock/penstock/models/zoo"
	"github.com/penstock/penstock/plan"
	"github.com/penstock/penstock/profiler"
	"github.com/penstock/penstock/profiler/sweep"
)

// profileFlags are what `penstock profile` takes.
type profileFlags struct {
	device, models             string
	shares, batches, processes []int
	sizes                      bool
	window                     time.Duration
	precision                  float64
	windows                    int
	out                        string
	again, keepCard, quick     bool
}

// The defaults of --quick. The node starts and the last point ends
// within a minute, of which the sweep has quickBudget.
const (
	quickBudget    = 45 * time.Second
	quickWindow    = 200 * time.Millisecond
	quickPrecision = 10
	quickWindows   = 8
)

var quickShares = []int{20, 50, 100}

func profileCommand() *cobra.Command {
	var f profileFlags
	cmd := &cobra.Command{
		Use:   "profile MODEL",
		Short: "Measure a model over share, batch size and processes, and find its knees",
		Long: `Measures a model at each share of a device, each batch size and each number of
processes: throughput and the mean time of a batch. The processes run as a node runs
them, under their real quota (the share is what all have together), and never want for
pictures. MODEL is a card's name or file.

A point is warmed up until its batches are full, then watched window by window until
the 95 % confidence interval of its mean throughput is within --precision of it.
What cannot help is left out: along shares, batches or processes, what follows two
points in a row that brought no 2 % more; and what needs no less memory than a point
that ran out of it.

The profile, MODEL.csv, goes beside the card, and the knees into it. While points are
missing the file is MODEL.csv.partial: stopped with Ctrl-C, the same command goes on
from there.`,
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
	cmd.Flags().BoolVar(&f.sizes, "sizes", false, "shares are the sizes of the GPU's MIG instances, each held by an MPS percentage of as many multiprocessors")
	cmd.Flags().DurationVar(&f.window, "window", 250*time.Millisecond, "length of a window; longer where ten batches take longer")
	cmd.Flags().Float64Var(&f.precision, "precision", 5, "when a point is stable: half the confidence interval, in percent of the mean")
	cmd.Flags().IntVar(&f.windows, "windows", 20, "most windows of a point; it is taken as it is then")
	cmd.Flags().StringVar(&f.out, "out", "", "folder for the profile; beside the card if left out, and ./profiles for a built-in model")
	cmd.Flags().BoolVar(&f.quick, "quick", false, "take a minute: three shares, the smallest and the largest batch, one process, short windows; cells that there is no time for are left out")
	cmd.Flags().BoolVar(&f.again, "again", false, "forget what was measured before")
	cmd.Flags().BoolVar(&f.keepCard, "keep-card", false, "leave the card as it is")
	return cmd
}

// leastWindows of a point: fewer say little of how much they vary.
const leastWindows = 4

// quicken sets what --quick means, except for flags that were given.
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
	find := zoo.Registry{}
	if f.models != "" {
		find.Dirs = []string{f.models}
	}
	card, err := find.Find(model)
	if err != nil {
		if f.models == "" && errors.Is(err, zoo.ErrUnknownModel) {
			return fmt.Errorf("%w; --models names a folder of cards", err)
		}
		return err
	}
	place, err := f.place(card, find.Shipped(card))
	if err != nil {
		return err
	}
	scale, err := f.scale()
	if err != nil {
		return err
	}
	grid, err := f.grid(card, scale)
	if err != nil {
		return err
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "%s on %s: at most %d points, into %s\n%s\n", card.Name, f.device, len(sweep.Cells(grid)), place.file, f.duration(grid))

	ctx := cmd.Context()
	profiler, err := profiler.New(ctx, profiler.Options{Setup: o, Card: card, MostBatch: slices.Max(grid.Batches),
		MostProcesses: slices.Max(grid.Processes), Percent: scale.percent, MemoryMiB: scale.memoryMiB})
	if err != nil {
		return stoppedBefore(ctx, err)
	}
	defer profiler.Close()
	header, err := profiler.Header(grid, scale.unit, scale.total)
	if err != nil {
		return err
	}
	header.Date = time.Now().UTC().Truncate(time.Second)
	show := newSweepProgress(cmd.ErrOrStderr(), isTerminal(os.Stderr), scale.unit)
	options := sweep.Options{File: place.file, Header: header, Again: f.again, Progress: show.hear}
	if f.quick {
		options.Budget, options.Elapsed = quickBudget, func() time.Duration { return time.Since(began) }
	}
	report, err := sweep.Run(ctx, profiler, options)
	show.end()
	if ctx.Err() != nil && errors.Is(err, context.Cause(ctx)) {
		if len(report.Profile.Points) == 0 {
			return stoppedBefore(ctx, err)
		}
		fmt.Fprintf(cmd.ErrOrStderr(), "stopped after %d points; the same command goes on from %s\n", len(report.Profile.Points), place.file+sweep.PartialSuffix)
		return exitStatus(interrupted)
	}
	if err != nil {
		return err
	}
	printSweep(cmd.OutOrStdout(), &report)
	return place.writeKnees(cmd.OutOrStdout(), card, report.Profile)
}

// duration says how long a measurement takes, before it begins.
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
	return fmt.Sprintf("this takes %s to %s: less if points cannot help, more if a batch takes longer than %s; --quick takes a minute",
		minutes(least), minutes(most), f.window/10)
}

// interrupted is the exit status of a program that Ctrl-C ended (128 + SIGINT).
const interrupted = 130

// stoppedBefore is an error of the time before the first point.
func stoppedBefore(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return errors.New("stopped before the first point was measured")
	}
	return err
}

// check looks at what needs neither card nor device.
func (f *profileFlags) check() error {
	for flag, list := range map[string][]int{"--shares": f.shares, "--batches": f.batches, "--processes": f.processes} {
		for _, n := range list {
			if n < 1 {
				return fmt.Errorf("%s %d: want at least 1", flag, n)
			}
		}
		slices.Sort(list)
		if i := slices.IndexFunc(list, func(n int) bool { return count(list, n) > 1 }); i >= 0 {
			return fmt.Errorf("%s %d: is there twice", flag, list[i])
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
	case f.windows < leastWindows:
		return fmt.Errorf("--windows %d: want at least %d", f.windows, leastWindows)
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

// deviceHere is the first GPU where there is one, else the CPU.
func deviceHere() string {
	if testbed.CheckDevice("cuda") == nil {
		return "cuda"
	}
	return configs.DeviceCPU
}

// scale is what shares count and what they are of the device.
type scale struct {
	unit      profile.Unit
	total     int
	shares    []int // by default
	percent   func(share int) float64
	memoryMiB func(share int) float64 // nil: all of the device's
}

// scale is percent, or with --sizes the sizes of the GPU's MIG instances.
func (f *profileFlags) scale() (scale, error) {
	s := scale{unit: profile.Percent, total: 100, percent: func(share int) float64 { return float64(share) }}
	for share := 10; share <= s.total; share += 10 {
		s.shares = append(s.shares, share)
	}
	if !f.sizes {
		return s, nil
	}
	if f.device == configs.DeviceCPU {
		return s, errors.New("--sizes: a CPU is not cut into MIG instances; leave it out, or name a GPU with --device")
	}
	name, err := productName(f.device)
	if err != nil {
		return s, fmt.Errorf("--sizes: %w", err)
	}
	g, err := plan.ForDevice(name)
	if err != nil {
		return s, fmt.Errorf("--sizes: %w", err)
	}
	if g.Percent {
		return s, fmt.Errorf("--sizes: %s has no MIG; leave it out", g.Name)
	}
	s = scale{unit: profile.GPCs, total: g.GPCs}
	for _, size := range g.Sizes {
		s.shares = append(s.shares, size.GPCs)
	}
	// f.grid has checked that there is a size.
	s.percent = func(share int) float64 {
		size, _ := g.Size(share)
		return 100 * float64(size.SMs) / float64(g.SMs)
	}
	s.memoryMiB = func(share int) float64 {
		size, _ := g.Size(share)
		return float64(size.MemoryMiB)
	}
	return s, nil
}

// productName is the driver's name for a GPU that --device names.
func productName(device string) (string, error) {
	session, err := nvml.Open()
	if err != nil {
		return "", err
	}
	devices, err := session.Devices()
	if err != nil {
		return "", err
	}
	index, byIndex := strings.CutPrefix(device, "cuda:")
	for i, d := range devices {
		if device == "cuda" || byIndex && index == strconv.Itoa(i) || strings.HasPrefix(d.UUID, device) {
			return d.Name, nil
		}
	}
	return "", fmt.Errorf("no GPU is %s", device)
}

// grid is what to measure.
func (f *profileFlags) grid(card *models.Card, s scale) (profile.Sweep, error) {
	g := profile.Sweep{
		Shares: f.shares, Batches: f.batches, Processes: f.processes,
		WindowSeconds: f.window.Seconds(), PrecisionPercent: f.precision, LeastWindows: leastWindows, MostWindows: f.windows,
	}
	g.Quick = f.quick
	if len(g.Shares) == 0 {
		g.Shares = s.shares
		if f.quick && s.unit == profile.Percent {
			g.Shares = quickShares
		}
	}
	if len(g.Batches) == 0 {
		g.Batches = card.Batches
		if f.quick && len(g.Batches) > 2 {
			g.Batches = []int{g.Batches[0], g.Batches[len(g.Batches)-1]}
		}
	}
	for _, share := range g.Shares {
		if share > s.total || s.unit == profile.GPCs && !slices.Contains(s.shares, share) {
			if s.unit == profile.GPCs {
				return g, fmt.Errorf("--shares %d: the GPU is cut into %v GPCs", share, s.shares)
			}
			return g, fmt.Errorf("--shares %d: want 1 to %d percent", share, s.total)
		}
		if most := slices.Max(g.Processes); s.percent(share) < float64(most) {
			return g, fmt.Errorf("--shares %d: is less than 1 percent for each of %d processes; take larger shares or fewer --processes", share, most)
		}
	}
	return g, nil
}

// printSweep prints what was found.
func printSweep(w io.Writer, r *sweep.Report) {
	h := &r.Profile.Header
	t := table.NewWriter()
	t.SetStyle(table.StyleLight)
	t.SetOutputMirror(w)
	t.AppendHeader(table.Row{"batch", "knee", "images/s there", "a batch", "best", "with"})
	knees := map[int]int{}
	for _, k := range h.Knees {
		knees[k.Batch] = k.Share
	}
	for _, batch := range h.Sweep.Batches {
		var best profile.Point
		row := table.Row{batch, "-", "-", "-", "out of memory", "-"}
		for _, p := range r.Profile.Points {
			if p.Batch == batch && p.Total() > best.Total() {
				best = p
			}
			if p.Batch == batch && p.Share == knees[batch] && !p.OOM && row[1] == "-" { // the fewest processes come first
				row[1], row[2], row[3] = shareText(h.Unit, p.Share), fmt.Sprintf("%.1f", p.Total()), milliseconds(p.Latency)
			}
		}
		if best.Batch == 0 && !slices.ContainsFunc(r.Profile.Points, func(p profile.Point) bool { return p.Batch == batch }) {
			continue
		}
		if best.Batch != 0 {
			row[4] = fmt.Sprintf("%.1f", best.Total())
			row[5] = fmt.Sprintf("%s, %d processes", shareText(h.Unit, best.Share), best.Processes)
		}
		t.AppendRow(row)
	}
	t.Render()
	fmt.Fprintf(w, "%d points: %d were there, %d measured now; %d left out as they could not help\n", len(r.Profile.Points), r.Before, r.New, r.Saved)
	if h.PersistentMiB > 0 {
		fmt.Fprintf(w, "a process holds %.1f MiB, and its largest batch %.1f MiB more\n", h.PersistentMiB, h.EphemeralMiB)
	}
	if n := len(h.Unsteady); n > 0 {
		fmt.Fprintf(w, "%d points varied by more than %v %% to the last; the header names them\n", n, h.Sweep.PrecisionPercent)
	}
	if n := len(h.LoadBound); n > 0 {
		fmt.Fprintf(w, "%d points are bounded by the load: the model waits for pictures, so their throughput is the node's\n", n)
	}
	if n := len(r.Late); n > 0 {
		fmt.Fprintf(w, "%d points left out: --quick had no time for them\n", n)
	}
	for _, c := range r.Left {
		fmt.Fprintf(w, "left out: share %d, batch %d, %d processes: %v\n", c.Share, c.Batch, c.Processes, sweep.ErrNotFilled)
	}
}

func shareText(unit profile.Unit, share int) string {
	if unit == profile.GPCs {
		return fmt.Sprintf("%d GPCs", share)
	}
	return fmt.Sprintf("%d %%", share)
}

func milliseconds(d time.Duration) string {
	return fmt.Sprintf("%.2f ms", float64(d)/float64(time.Millisecond))
}

// profilePlace is where a profile and its card's knees go.
type profilePlace struct {
	file string // the profile
	// card is the card to write the knees into; copied is true where that is a copy of
	// a shipped one, to be made. Both are empty with --keep-card.
	card   string
	copied bool
}

// place finds where the profile goes, and fails before anything is measured where it
// cannot be written there.
func (f *profileFlags) place(card *models.Card, shipped bool) (p profilePlace, err error) {
	dir := f.out
	switch {
	case dir != "":
	case shipped:
		dir = "profiles"
	default:
		dir = card.Dir
	}
	if dir != card.Dir {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return p, fmt.Errorf("make folder for the profile: %w", err)
		}
	}
	if err := writable(dir); err != nil {
		return p, fmt.Errorf("folder for the profile: %w; --out names another", err)
	}
	p.file = filepath.Join(dir, card.Name+".csv")
	if f.keepCard {
		return p, nil
	}
	p.card = card.File
	if p.copied = shipped; shipped {
		p.card = filepath.Join(dir, card.Name, filepath.Base(card.File))
	} else if err := writable(card.Dir); err != nil {
		return p, fmt.Errorf("card %s cannot be changed: %w; --keep-card leaves it as it is", card.File, err)
	}
	return p, nil
}

// writable tries whether files can be made in a folder.
func writable(dir string) error {
	tmp, err := os.CreateTemp(dir, ".penstock-*")
	if err != nil {
		return err
	}
	return errors.Join(tmp.Close(), os.Remove(tmp.Name()))
}

// writeKnees says where the profile went and writes its knees into the card.
func (p *profilePlace) writeKnees(w io.Writer, card *models.Card, of profile.Profile) error {
	fmt.Fprintf(w, "profile: %s\n", p.file)
	knee, ok := of.KneeFor(card.SLO)
	if !ok {
		fmt.Fprintln(w, "card:    as it was: a knee needs two shares at least")
		return nil
	}
	percent := func(share int) float64 {
		text := strconv.FormatFloat(of.Header.Percent(share), 'f', 1, 64)
		rounded, _ := strconv.ParseFloat(text, 64) // it was one a moment ago
		return rounded
	}
	var knees []models.Knee
	for _, k := range of.Header.Knees {
		knees = append(knees, models.Knee{Batch: k.Batch, Percent: percent(k.Share)})
	}
	if p.card == "" {
		fmt.Fprintf(w, "card:    left as it is; its knees would be\n%s", models.KneeLines(percent(knee.Share), knees))
		return nil
	}
	if p.copied {
		if err := copyFolder(filepath.Dir(p.card), card.Dir); err != nil {
			return fmt.Errorf("copy card: %w", err)
		}
	}
	if err := models.WriteKnees(p.card, percent(knee.Share), knees); err != nil {
		return fmt.Errorf("%w\nthe profile is in %s; write into the card by hand:\n%s", err, p.file, models.KneeLines(percent(knee.Share), knees))
	}
	if p.copied {
		fmt.Fprintf(w, "card:    %s, a copy with the knees: %s is built in and cannot be changed; `models: [%s]` in a configuration takes the copy\n",
			p.card, card.Name, filepath.Dir(filepath.Dir(p.card)))
		return nil
	}
	fmt.Fprintf(w, "card:    %s, knee_percent %v\n", p.card, percent(knee.Share))
	return nil
}

// copyFolder copies the files of a folder.
func copyFolder(to, from string) error {
	entries, err := os.ReadDir(from)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err
	}
	for _, e := range entries {
		data, err := os.ReadFile(filepath.Join(from, e.Name()))
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(to, e.Name()), data, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// sweepProgress shows how far a sweep is: a line that is written over on a terminal,
// a line a point elsewhere.
type sweepProgress struct {
	w        io.Writer
	terminal bool
	unit     profile.Unit
	began    time.Time
	first    int // done when it began
	wide     int // of the line that stands
}

func newSweepProgress(w io.Writer, terminal bool, unit profile.Unit) *sweepProgress {
	return &sweepProgress{w: w, terminal: terminal, unit: unit, first: -1}
}

func (s *sweepProgress) hear(p sweep.Progress) {
	if s.first < 0 {
		s.began, s.first = time.Now(), p.Done
	}
	cell := fmt.Sprintf("%s, batch %d, %d processes", shareText(s.unit, p.Cell.Share), p.Cell.Batch, p.Cell.Processes)
	left := ""
	if done := p.Done - s.first; done > 0 {
		rest := time.Since(s.began) * time.Duration(p.Cells-p.Done) / time.Duration(done)
		left = fmt.Sprintf(", %s left", rest.Round(time.Second))
	}
	if !s.terminal {
		if p.Ended != nil {
			fmt.Fprintf(s.w, "%d of %d%s: %s: %s\n", p.Done, p.Cells, left, cell, endedText(p.Ended))
		}
		return
	}
	if p.Ended != nil && (p.Ended.Left != nil || p.Ended.Point.OOM) {
		s.over("")
		fmt.Fprintf(s.w, "\r%s: %s\n", cell, endedText(p.Ended))
	}
	const width = 30
	filled := width * p.Done / p.Cells
	line := fmt.Sprintf("[%s%s] %d of %d%s", strings.Repeat("#", filled), strings.Repeat(".", width-filled), p.Done, p.Cells, left)
	if p.Ended == nil {
		line += ": " + cell
	}
	s.over(line)
}

// over writes over the line that stands.
func (s *sweepProgress) over(line string) {
	fmt.Fprintf(s.w, "\r%-*s", s.wide, line)
	s.wide = len(line)
}

// end leaves the line.
func (s *sweepProgress) end() {
	if s.terminal && s.wide > 0 {
		fmt.Fprintln(s.w)
	}
}

func endedText(e *sweep.Ended) string {
	switch {
	case e.Left != nil:
		return "left out: " + e.Left.Error()
	case e.Point.OOM:
		return "out of memory"
	}
	text := fmt.Sprintf("%.1f images/s, %s a batch, ±%.1f %%", e.Point.Total(), milliseconds(e.Point.Latency), 100*e.Precision)
	if !e.Stable {
		text += ", not stable"
	}
	if e.LoadBound {
		text += fmt.Sprintf(", bounded by the load (%.0f %% in batches)", 100*e.Busy)
	}
	return text
}
