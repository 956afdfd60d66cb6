package evaluate

import (
	"errors"
	"fmt"
	"slices"
)

// check reports the first value that no call can have written. Without this check a result
// built on a damaged report is wrong unnoticed.
func (r *Report) check() error {
	for i, c := range r.Capacity {
		if !(c.PerSecond > 0) {
			return fmt.Errorf("capacity of %s is %v requests a second, want more than 0", c.Model, c.PerSecond)
		}
		if slices.ContainsFunc(r.Capacity[:i], func(o Capacity) bool { return o.Model == c.Model }) {
			return fmt.Errorf("capacity of %s stands twice, want it once", c.Model)
		}
	}
	type run struct {
		name, variant string
		run           int
	}
	seen := map[run]bool{}
	for i := range r.Results {
		x := &r.Results[i]
		current := run{x.Case, x.Variant, x.Run}
		err := r.checkResult(x)
		if err == nil && seen[current] {
			err = errors.New("stands twice, want it once")
		}
		if err != nil {
			return fmt.Errorf("result of %s, %s, run %d %w", x.Case, x.Variant, x.Run, err)
		}
		seen[current] = true
	}
	return nil
}

// checkResult completes an error that begins with "result of ...".
func (r *Report) checkResult(x *Result) error {
	at := slices.IndexFunc(r.Cases, func(c CaseSetting) bool { return c.Name == x.Case })
	switch {
	case at < 0:
		return errors.New("is of a case that is none of the report's, want it under cases")
	case !slices.Contains(r.Cases[at].Variants, x.Variant):
		return errors.New("is of a variant that the case does not have, want it among the case's variants")
	case x.Run < 1:
		return errors.New("has no number, want runs from 1")
	case x.TookSeconds < 0:
		return fmt.Errorf("took %v s, want 0 or more", x.TookSeconds)
	case x.Error != "":
		return nil // an unfinished report
	}
	c := &r.Cases[at]
	switch c.Kind {
	case kindLoads, kindClosed:
		if len(x.Loads) == 0 {
			return errors.New("has no loads, want them, or an error that says why there are none")
		}
		for i := range x.Loads {
			if err := x.Loads[i].check(c); err != nil {
				return fmt.Errorf("at load %d %w", i+1, err)
			}
		}
	case kindTimeline:
		if x.Timeline == nil {
			return errors.New("has no timeline, want one, or an error that says why there is none")
		}
		if err := x.Timeline.check(c); err != nil {
			return fmt.Errorf("in its timeline %w", err)
		}
	case kindBare:
		if len(x.Points) == 0 {
			return errors.New("has no points, want them, or an error that says why there are none")
		}
	default:
		return fmt.Errorf("is of a case of kind %q, want %s, %s, %s or %s", c.Kind, kindLoads, kindClosed, kindTimeline, kindBare)
	}
	return nil
}

func (l *Load) check(c *CaseSetting) error {
	switch {
	case c.Kind == kindLoads && !(l.Level > 0):
		return fmt.Errorf("has level %v, want more than 0", l.Level)
	case min(l.OfferedRPS, l.AnsweredRPS, l.GoodputRPS) < 0:
		return fmt.Errorf("has rates of %v offered, %v answered and %v within the objective, want 0 or more", l.OfferedRPS, l.AnsweredRPS, l.GoodputRPS)
	}
	var names []string
	for i := range l.Functions {
		names = append(names, l.Functions[i].Name)
		if err := l.Functions[i].check(); err != nil {
			return err
		}
	}
	return c.checkNames(names)
}

// checkNames returns an error if the names are not exactly those of the case's functions.
func (c *CaseSetting) checkNames(names []string) error {
	var want []string
	for _, f := range c.Functions {
		want = append(want, f.Name)
	}
	slices.Sort(want)
	slices.Sort(names)
	if !slices.Equal(names, want) {
		return fmt.Errorf("has functions %q, want the case's, %q", names, want)
	}
	return nil
}

func (f *FunctionLoad) check() error {
	if min(f.OfferedRPS, f.AnsweredRPS, f.GoodputRPS) < 0 {
		return fmt.Errorf("has rates of %s of %v offered, %v answered and %v within the objective, want 0 or more", f.Name, f.OfferedRPS, f.AnsweredRPS, f.GoodputRPS)
	}
	return nil
}

func (t *Timeline) check(c *CaseSetting) error {
	if !(t.BinSeconds > 0) || !(t.Seconds > 0) {
		return fmt.Errorf("has %v s in bins of %v s, want more than 0", t.Seconds, t.BinSeconds)
	}
	var names []string
	for i := range t.Functions {
		f := &t.Functions[i]
		names = append(names, f.Name)
		if len(f.Bins) == 0 {
			return fmt.Errorf("has no bins of %s, want them", f.Name)
		}
		if err := f.Total.check(); err != nil {
			return err
		}
	}
	return c.checkNames(names)
}

// checkComplete returns an error for the first measurement that is incomplete for the figure that
// the report belongs to. Otherwise it would never be measured again.
func (r *Report) checkComplete(figure *Figure) error {
	for i := range r.Results {
		x := &r.Results[i]
		if x.Error != "" {
			continue
		}
		at := slices.IndexFunc(figure.Cases, func(c Case) bool { return c.Name == x.Case })
		if at < 0 {
			continue // no result depends on it
		}
		if err := r.resultFor(&figure.Cases[at], x); err != nil {
			return fmt.Errorf("result of %s, %s, run %d %w", x.Case, x.Variant, x.Run, err)
		}
	}
	return nil
}

// resultFor completes an error that begins with "result of ...".
func (r *Report) resultFor(c *Case, x *Result) error {
	if c.Kind == kindLoads || c.Kind == kindTimeline {
		for _, f := range c.Functions {
			if f.PerSecond == 0 && r.capacity(f.Model) == 0 {
				return fmt.Errorf("rests on the capacity of %s, want it under capacity", f.Model)
			}
		}
	}
	if c.Kind == kindLoads {
		var levels []float64
		for i := range x.Loads {
			levels = append(levels, x.Loads[i].Level)
		}
		if !slices.Equal(levels, c.Levels) {
			return fmt.Errorf("has loads of levels %v, want %v", levels, c.Levels)
		}
	}
	for i := range x.Loads {
		l := &x.Loads[i]
		if !(l.Seconds > 0) {
			return fmt.Errorf("at load %d has %v seconds, want more than 0", i+1, l.Seconds)
		}
		for j := range l.Functions {
			if err := l.Functions[j].counted(); err != nil {
				return fmt.Errorf("at load %d %w", i+1, err)
			}
		}
	}
	for i, p := range x.Points {
		if p.Error == "" && !(p.ImagesPerSecond > 0) {
			return fmt.Errorf("at point %d has %v images a second, want more than 0, or an error that says why there are none", i+1, p.ImagesPerSecond)
		}
	}
	if x.Timeline != nil {
		for i := range x.Timeline.Functions {
			if err := x.Timeline.Functions[i].Total.counted(); err != nil {
				return fmt.Errorf("in its timeline %w", err)
			}
		}
	}
	return nil
}

// counted returns an error if the outcome of some requests is unknown.
func (f *FunctionLoad) counted() error {
	if sum := f.OK + f.Late + f.Incomplete + f.Busy + f.Refused + f.Failed + f.Unanswered; sum != f.Sent {
		return fmt.Errorf("has %d requests sent to %s and %d accounted for, want as many", f.Sent, f.Name, sum)
	}
	return nil
}
