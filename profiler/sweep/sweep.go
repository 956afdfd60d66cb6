package sweep

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/penstock/penstock/models/profile"
)

// Options say what to sweep.
type Options struct {
	// File is where the profile goes; File + PartialSuffix while it is not complete.
	File string
	// Header says what is measured and where; Sweep in it is the grid and the rule.
	// Date is used where nothing was measured yet.
	Header profile.Header
	// Again forgets what was measured before.
	Again bool
	// Budget, if not 0, is the time after which no point is begun: a point is left out
	// if Elapsed and the longest point so far exceed it. The profile is complete then.
	Budget time.Duration
	// Elapsed is the time that counts against Budget; nil counts from Run's beginning.
	Elapsed func() time.Duration
	// Progress, if not nil, hears of each point before it is measured, with ended nil,
	// and after.
	Progress func(Progress)
}

// Progress is how far a sweep is.
type Progress struct {
	Cell Cell
	// Done of Cells are measured or left out.
	Done, Cells int
	// Ended says how the cell went, nil while it is measured.
	Ended *Ended
}

// Ended is how a cell went.
type Ended struct {
	Point profile.Point
	Measured
	// Left is why the cell was left out of the profile; nil where it is in it.
	Left error
}

// Report is how a sweep went.
type Report struct {
	Profile profile.Profile
	// Before is how many points were there already, New how many were measured now.
	Before, New int
	// Saved is how many cells of the grid were not measured because they could not
	// help.
	Saved int
	// Left are the cells that the load could not fill, Late those that Options.Budget
	// had no time for.
	Left, Late []Cell
}

// Run measures what is missing of a profile and returns the whole of it. When ctx ends
// it returns its cause; what was measured is in the partial file, and the next Run goes
// on from there.
//
// A point that runs out of memory is recorded as that, one whose batches the load does
// not fill is left out and told. Any other error of the runner ends the sweep.
func Run(ctx context.Context, runner Runner, o Options) (r Report, err error) {
	if o.Again {
		if err := forget(o.File + PartialSuffix); err != nil {
			return r, err
		}
		r.Profile = profile.Profile{Header: o.Header}
	} else if r.Profile, err = resume(o.File, o.Header); err != nil {
		return r, err
	}
	p := &r.Profile
	r.Before = len(p.Points)
	if o.Elapsed == nil {
		began := time.Now()
		o.Elapsed = func() time.Duration { return time.Since(began) }
	}
	s := sweep{Options: o, runner: runner, report: &r, left: map[Cell]bool{}, late: map[Cell]bool{}}
	for more := !p.Header.Complete; more; {
		if more, err = s.step(ctx); err != nil {
			return r, err
		}
	}
	s.countLeft()
	if len(p.Points) == 0 {
		return r, fmt.Errorf("no point could be measured: %w; measure smaller --batches, 1 is always filled", ErrNotFilled)
	}
	if !p.Header.Complete {
		p.Header.Complete, p.Header.Knees = true, profile.Knees(p.Points)
		if err := save(o.File, *p); err != nil {
			return r, err
		}
	}
	return r, nil
}

// sweep is a Run.
type sweep struct {
	Options
	runner     Runner
	report     *Report
	left, late map[Cell]bool // late ones are left, too
	longest    time.Duration // that a point took
}

// next is the next cell to measure, and how many there are with it; ok is false if there is none.
func (s *sweep) next() (c Cell, remaining int, ok bool) {
	return next(*s.Header.Sweep, s.Header.Unit, s.report.Profile.Points, s.left)
}

// step measures the next cell, or leaves it out; more is false if there is none.
func (s *sweep) step(ctx context.Context) (more bool, err error) {
	p := &s.report.Profile
	c, remaining, ok := s.next()
	if !ok {
		return false, nil
	}
	began := s.Elapsed()
	if s.Budget > 0 && len(p.Points) > 0 && began+s.longest > s.Budget {
		s.left[c], s.late[c] = true, true
		return true, nil
	}
	if err := context.Cause(ctx); err != nil {
		return false, err
	}
	s.tell(c, remaining, nil)
	ended, err := s.measure(ctx, c)
	if err != nil {
		return false, err
	}
	s.longest = max(s.longest, s.Elapsed()-began)
	if ended.Left != nil {
		s.left[c] = true
	} else {
		add(p, ended)
		s.report.New++
		if err := save(s.File, *p); err != nil {
			return false, err
		}
	}
	_, remaining, _ = s.next()
	s.tell(c, remaining, &ended)
	return true, nil
}

// measure measures a cell; ended.Left says that the load does not fill it.
func (s *sweep) measure(ctx context.Context, c Cell) (ended Ended, err error) {
	ended.Point = profile.Point{Share: c.Share, Batch: c.Batch, Processes: c.Processes}
	ended.Measured, err = measure(ctx, s.runner, ruleOf(*s.Header.Sweep), c)
	switch {
	case ctx.Err() != nil:
		return ended, context.Cause(ctx)
	case errors.Is(err, ErrOutOfMemory):
		ended.Point.OOM = true
	case errors.Is(err, ErrNotFilled):
		ended.Left = err
	case err != nil:
		return ended, fmt.Errorf("measure share %d, batch %d, %d processes: %w", c.Share, c.Batch, c.Processes, err)
	default:
		ended.Point = point(c, ended.Measured)
	}
	return ended, nil
}

func (s *sweep) tell(c Cell, remaining int, ended *Ended) {
	if s.Progress != nil {
		cells := len(Cells(*s.Header.Sweep))
		s.Progress(Progress{Cell: c, Done: cells - remaining, Cells: cells, Ended: ended})
	}
}

// countLeft reports the cells that were not measured.
func (s *sweep) countLeft() {
	r := s.report
	for _, c := range Cells(*s.Header.Sweep) {
		if _, there := r.Profile.Find(c.Share, c.Batch, c.Processes); !there && !s.left[c] {
			r.Saved++
		}
		switch {
		case s.late[c]:
			r.Late = append(r.Late, c)
		case s.left[c]:
			r.Left = append(r.Left, c)
		}
	}
}

// point is what is recorded of a cell: throughput to a thousandth, latency to a
// microsecond, memory to a tenth.
func point(c Cell, m Measured) profile.Point {
	return profile.Point{
		Share: c.Share, Batch: c.Batch, Processes: c.Processes,
		Throughput: max(1./1000, round(m.Rate/float64(c.Processes), 1000)), // 0 is out of memory
		Latency:    max(time.Microsecond, m.Latency.Round(time.Microsecond)),
		MemoryMiB:  round(float64(c.Processes)*(m.Memory.PersistentMiB+m.Memory.EphemeralMiB), 10),
	}
}

func round(x, parts float64) float64 { return math.Round(x*parts) / parts }

// add puts a point in its place and notes what the header says of it.
func add(p *profile.Profile, e Ended) {
	i, _ := slices.BinarySearchFunc(p.Points, e.Point, profile.Point.Compare)
	p.Points = slices.Insert(p.Points, i, e.Point)
	h := &p.Header
	h.PersistentMiB = max(h.PersistentMiB, round(e.Memory.PersistentMiB, 10))
	h.EphemeralMiB = max(h.EphemeralMiB, round(e.Memory.EphemeralMiB, 10))
	if !e.Point.OOM && !e.Stable {
		h.Unsteady = append(h.Unsteady, profile.Unsteady{Share: e.Point.Share, Batch: e.Point.Batch, Processes: e.Point.Processes,
			PrecisionPercent: round(100*e.Precision, 10)})
	}
	if !e.Point.OOM && e.LoadBound {
		h.LoadBound = append(h.LoadBound, profile.LoadBound{Share: e.Point.Share, Batch: e.Point.Batch, Processes: e.Point.Processes,
			BusyPercent: round(100*e.Busy, 10)})
	}
}

// Estimate is how long a grid takes, at least and at most, if each of its points is
// measured and ten batches take no longer than a window.
func Estimate(grid profile.Sweep) (least, most time.Duration) {
	const (
		warmUp = 2                      // windows
		share  = 200 * time.Millisecond // until a share is in force
		load   = 1500 * time.Millisecond
	)
	loads := time.Duration(len(grid.Batches)*len(grid.Processes)) * load
	points := time.Duration(len(Cells(grid)))
	window := time.Duration(grid.WindowSeconds * float64(time.Second))
	point := func(windows int) time.Duration { return share + time.Duration(warmUp+windows)*window }
	return loads + points*point(grid.LeastWindows), loads + points*point(grid.MostWindows)
}

func sorted(set map[string]bool) []string { return slices.Sorted(maps.Keys(set)) }
