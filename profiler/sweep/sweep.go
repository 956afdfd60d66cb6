package sweep

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/penstock/penstock/models/profile"
)

// Options describe a sweep.
type Options struct {
	// File is the profile's file; File + PartialSuffix while it is not complete.
	File string
	// Header describes what is measured and where. Its Sweep is the grid and the rule.
	// Its Date is used if nothing was measured yet.
	Header profile.Header
	// Again discards earlier measurements.
	Again bool
	// Budget, if not 0, is the time after which no point begins. A point is left out
	// if Elapsed plus the longest point so far exceeds Budget. The profile is complete
	// then.
	Budget time.Duration
	// Elapsed returns the time that counts against Budget; nil counts from the
	// beginning of Run.
	Elapsed func() time.Duration
	// Progress, if not nil, is called for each point before it is measured, with Ended
	// nil, and after.
	Progress func(Progress)
}

// Progress is the progress of a sweep.
type Progress struct {
	Cell Cell
	// Done of Cells are measured or left out.
	Done, Cells int
	// Ended is the result of the cell, nil while it is being measured.
	Ended *Ended
}

// Ended is the result of a cell.
type Ended struct {
	Point profile.Point
	Measured
	// Left is why the profile omits the cell; nil if the profile has it.
	Left error
}

// Report is the result of a sweep.
type Report struct {
	Profile profile.Profile
	// Before counts the points that already existed, New those that were measured now.
	Before, New int
	// Saved counts the cells of the grid that were not measured because they could not
	// help.
	Saved int
	// Wrong counts the cells of the grid at whose shares the model answers wrongly.
	Wrong int
	// Left are the cells that the load could not fill. Late are those for which
	// Options.Budget left no time.
	Left, Late []Cell
}

// Run measures the missing points of a profile and returns the whole profile. When ctx
// ends, it returns ctx's cause. The partial file then has all measured points, and the
// next Run continues from there.
//
// A point that runs out of memory is recorded as such. A point whose batches the load
// does not fill is left out and reported. Any other error of the runner ends the
// sweep.
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
	switch {
	case len(p.Points) == 0 && len(p.Header.Wrong) > 0:
		return r, fmt.Errorf("no point could be measured: %w at all of these shares; choose other --shares", ErrWrongAnswers)
	case len(p.Points) == 0:
		return r, fmt.Errorf("no point could be measured: %w; choose smaller --batches (a batch of 1 is always full)", errNotFilled)
	}
	if !p.Header.Complete {
		p.Header.Complete, p.Header.Knees = true, profile.Knees(p.Points)
		if err := save(o.File, *p); err != nil {
			return r, err
		}
	}
	return r, nil
}

// sweep is the state of a Run.
type sweep struct {
	Options
	runner     Runner
	report     *Report
	left, late map[Cell]bool // late cells are in left, too
	longest    time.Duration // time of the longest point
}

// next returns the next cell to measure, and the number of remaining cells including
// it. ok is false if there is none.
func (s *sweep) next() (c Cell, remaining int, ok bool) {
	return next(&s.report.Profile, s.left)
}

// step measures the next cell, or leaves it out. more is false if there is none.
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
	s.notify(c, remaining, nil)
	ended, err := s.measure(ctx, c)
	if err != nil {
		return false, err
	}
	s.longest = max(s.longest, s.Elapsed()-began)
	switch {
	case errors.Is(ended.Left, ErrWrongAnswers):
		p.Header.Wrong = append(p.Header.Wrong, profile.Wrong{Share: c.Share, Processes: c.Processes})
		p.Header.LoadBound = slices.DeleteFunc(p.Header.LoadBound, func(q profile.LoadBound) bool { return p.Header.AnswersWrongly(q.Share, q.Processes) })
		p.Header.Unsteady = slices.DeleteFunc(p.Header.Unsteady, func(q profile.Unsteady) bool { return p.Header.AnswersWrongly(q.Share, q.Processes) })
		p.Points = slices.DeleteFunc(p.Points, func(q profile.Point) bool { return p.Header.AnswersWrongly(q.Share, q.Processes) })
	case ended.Left != nil:
		s.left[c] = true
	default:
		add(p, ended)
		s.report.New++
	}
	if err := save(s.File, *p); err != nil {
		return false, err
	}
	_, remaining, _ = s.next()
	s.notify(c, remaining, &ended)
	return true, nil
}

// measure measures a cell. ended.Left is set if the load does not fill it, or the model answers wrongly.
func (s *sweep) measure(ctx context.Context, c Cell) (ended Ended, err error) {
	ended.Point = profile.Point{Share: c.Share, Batch: c.Batch, Processes: c.Processes}
	ended.Measured, err = measure(ctx, s.runner, ruleOf(*s.Header.Sweep), c)
	switch {
	case ctx.Err() != nil:
		return ended, context.Cause(ctx)
	case errors.Is(err, ErrOutOfMemory):
		ended.Point.OOM = true
	case errors.Is(err, errNotFilled), errors.Is(err, ErrWrongAnswers):
		ended.Left = err
	case err != nil:
		return ended, fmt.Errorf("measure share %d, batch %d, %d processes: %w", c.Share, c.Batch, c.Processes, err)
	default:
		ended.Point = point(c, ended.Measured)
	}
	return ended, nil
}

func (s *sweep) notify(c Cell, remaining int, ended *Ended) {
	if s.Progress != nil {
		cells := len(Cells(*s.Header.Sweep, s.Header.Unit))
		s.Progress(Progress{Cell: c, Done: cells - remaining, Cells: cells, Ended: ended})
	}
}

// countLeft reports the cells that were not measured.
func (s *sweep) countLeft() {
	r := s.report
	for _, c := range Cells(*s.Header.Sweep, s.Header.Unit) {
		_, found := r.Profile.Find(c.Share, c.Batch, c.Processes)
		switch {
		case r.Profile.Header.AnswersWrongly(c.Share, c.Processes):
			r.Wrong++
		case s.late[c]:
			r.Late = append(r.Late, c)
		case s.left[c]:
			r.Left = append(r.Left, c)
		case !found:
			r.Saved++
		}
	}
}

// point returns the recorded values of a cell: throughput to a thousandth, latency to
// a microsecond, memory to a tenth.
func point(c Cell, m Measured) profile.Point {
	return profile.Point{
		Share: c.Share, Batch: c.Batch, Processes: c.Processes,
		Throughput: max(1./1000, round(m.Rate/float64(c.Processes), 1000)), // 0 means out of memory
		Latency:    max(time.Microsecond, m.Latency.Round(time.Microsecond)),
		MemoryMiB:  round(float64(c.Processes)*(m.Memory.PersistentMiB+m.Memory.EphemeralMiB), 10),
	}
}

func round(x, parts float64) float64 { return math.Round(x*parts) / parts }

// add inserts a point at its place and updates the header.
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

// Estimate returns the min and max time of a grid. It assumes that each of its points
// is measured and that ten batches take no longer than a window.
func Estimate(grid profile.Sweep) (least, most time.Duration) {
	const (
		warmUp = 2                      // windows
		share  = 200 * time.Millisecond // until a share is in force
		load   = 1500 * time.Millisecond
	)
	loads := time.Duration(len(grid.Batches)*len(grid.Processes)) * load
	points := time.Duration(len(Cells(grid, profile.Percent)))
	window := time.Duration(grid.WindowSeconds * float64(time.Second))
	point := func(windows int) time.Duration { return share + time.Duration(warmUp+windows)*window }
	return loads + points*point(grid.MinWindows), loads + points*point(grid.MaxWindows)
}
