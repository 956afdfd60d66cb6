package mig

import (
	"fmt"
	"slices"
	"strings"
)

// Do takes the steps in order. If told is not nil, Do calls it after each step.
//
// If MIG mode is off, it refuses before the first change (ErrMode). If a step fails, Do
// undoes the steps before it in reverse, so that all GPUs are divided as before; the
// error is then a *Failure. An instance that is created again has a new id, and its MIG
// device a new UUID.
func Do(s Session, steps []Step, report func(Step)) error {
	for _, step := range steps {
		if step.Op == EnableMode {
			return fmt.Errorf("%s: %w: %v, then apply again", named(step.Index, step.GPU), ErrMode, step)
		}
	}
	for i, step := range steps {
		if err := s.Take(step); err != nil {
			f := &Failure{Step: step, Err: err, Done: steps[:i]}
			f.Left, f.UndoErr = Undo(s, steps[:i])
			return f
		}
		if report != nil {
			report(step)
		}
	}
	return nil
}

// Undo undoes steps that were taken, in reverse order. If one cannot be undone, it
// returns the steps that are left, and why.
func Undo(s Session, steps []Step) (left []Step, err error) {
	for i, step := range slices.Backward(steps) {
		back := step.Inverse()
		if back.Op == DestroyCompute {
			if back.Compute.ID, err = computeID(s, back); err != nil {
				return steps[:i+1], err
			}
		}
		if err := s.Take(back); err != nil {
			return steps[:i+1], err
		}
	}
	return nil, nil
}

// Inverse returns the step that undoes a step.
func (s Step) Inverse() Step {
	switch s.Op {
	case DestroyCompute:
		s.Op = CreateCompute
	case CreateCompute:
		s.Op = DestroyCompute
	case DestroyInstance:
		s.Op = CreateInstance
	case CreateInstance:
		s.Op = DestroyInstance
	}
	return s
}

// computeID finds the id that the driver gave to the compute instance of a step: the
// youngest of that size in its GPU instance.
func computeID(s Session, step Step) (int, error) {
	gpus, err := s.GPUs()
	if err != nil {
		return 0, err
	}
	for _, g := range gpus {
		for _, i := range g.Instances {
			if g.UUID != step.GPU || i.Start != step.Start {
				continue
			}
			for at := len(i.Compute) - 1; at >= 0; at-- {
				if i.Compute[at].Slices == step.Compute.Slices {
					return i.Compute[at].ID, nil
				}
			}
		}
	}
	return 0, fmt.Errorf("%v: it is no longer there", step)
}

// Failure is the error of a change that stopped half-way.
type Failure struct {
	// Step is the step that failed, and Err is why.
	Step Step
	Err  error
	// Done are the steps before it. Left are those of them that are still in effect;
	// empty if all were undone.
	Done, Left []Step
	// UndoErr is why the next step could not be undone; nil if all were undone.
	UndoErr error
}

func (f *Failure) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%v", f.Err)
	switch {
	case len(f.Done) == 0:
		b.WriteString("; nothing was changed")
	case f.UndoErr == nil:
		fmt.Fprintf(&b, "; the %s before it %s undone, and the GPUs are cut as before", count(len(f.Done)), wasOrWere(len(f.Done)))
	default:
		fmt.Fprintf(&b, "; %d of the %s before it %s undone, then %v; these remain:", len(f.Done)-len(f.Left), count(len(f.Done)), wasOrWere(len(f.Done)-len(f.Left)), f.UndoErr)
		for _, s := range f.Left {
			fmt.Fprintf(&b, "\n  %v", s)
		}
	}
	return b.String()
}

// Unwrap returns both causes.
func (f *Failure) Unwrap() []error {
	if f.UndoErr == nil {
		return []error{f.Err}
	}
	return []error{f.Err, f.UndoErr}
}

func count(n int) string {
	if n == 1 {
		return "1 step"
	}
	return fmt.Sprintf("%d steps", n)
}

func wasOrWere(n int) string {
	if n == 1 {
		return "was"
	}
	return "were"
}
