package loadgen

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"

	"github.com/penstock/penstock/loadgen/arrival"
)

// Trial is the result of one tried rate.
type Trial struct {
	PerSecond float64 `json:"rate_rps"`
	// Held means that the system met its objective at this rate. P99Millis,
	// WithinSLO (percent) and GoodputRPS are the measured figures.
	Held       bool    `json:"held"`
	P99Millis  float64 `json:"p99_ms"`
	WithinSLO  float64 `json:"within_slo"`
	GoodputRPS float64 `json:"goodput_rps"`
}

// Probe tries a rate, in requests per second.
type Probe func(ctx context.Context, perSecond float64) (Trial, error)

// Search describes a search for the highest rate.
type Search struct {
	// Start is the first rate tried. Max is never exceeded; 0 is no bound.
	Start, Max float64
	// Precision is the relative width at which the search ends. 0.05 means that
	// the result is at most 5 % below a rate that fails.
	Precision float64
	// Confirm is how often a rate must fail in a row before the search rejects
	// it. Use more than 1 if other programs on the machine disturb probes. 0
	// means 1.
	Confirm int
}

// Found is the result of a search.
type Found struct {
	// PerSecond is the highest rate that held, 0 if none did. Failed is the
	// lowest rate above it that failed, 0 if Max held.
	PerSecond float64 `json:"max_rate_rps"`
	Failed    float64 `json:"failed_rate_rps"`
	// Best is the trial at PerSecond. Trials are all trials in order.
	Best   Trial   `json:"best"`
	Trials []Trial `json:"trials"`
	// Precision is the requested one. Interrupted means that the search ended
	// before it reached Precision.
	Precision   float64 `json:"precision"`
	Interrupted bool    `json:"interrupted,omitempty"`
}

// minRate ends a search downwards: one request in a hundred seconds. A probe of
// some seconds cannot tell it from zero.
const minRate = 0.01

// FindMaxRate searches for the highest rate that holds. It assumes that a
// system that holds a rate holds every lower one. It doubles (or halves) the
// rate until it knows a rate that holds and one that fails. Then it bisects
// between them, by their geometric mean, until they are within the precision.
//
// When ctx ends, FindMaxRate returns what it has found so far, without an
// error.
func FindMaxRate(ctx context.Context, s Search, probe Probe) (*Found, error) {
	if !(s.Start >= minRate) || !(s.Precision > 0) || s.Max < 0 || s.Max > 0 && s.Start > s.Max {
		return nil, fmt.Errorf("search for a rate: start %v, max %v, precision %v", s.Start, s.Max, s.Precision)
	}
	found := &Found{Precision: s.Precision}
	try := func(perSecond float64) (bool, error) {
		for range max(s.Confirm, 1) {
			trial, err := probe(ctx, perSecond)
			if ctx.Err() != nil {
				return false, errInterrupted
			}
			if err != nil {
				return false, fmt.Errorf("try %.4g requests per second: %w", perSecond, err)
			}
			found.Trials = append(found.Trials, trial)
			if trial.Held {
				found.PerSecond, found.Best = perSecond, trial
				return true, nil
			}
		}
		found.Failed = perSecond
		return false, nil
	}
	err := s.narrow(try)
	if errors.Is(err, errInterrupted) {
		found.Interrupted = true
		err = nil
	}
	if err != nil {
		return nil, err
	}
	return found, nil
}

var errInterrupted = errors.New("interrupted")

// narrow is the search itself. try reports whether a rate holds.
func (s Search) narrow(try func(perSecond float64) (bool, error)) error {
	low, high, err := s.bracket(try)
	if err != nil || low == 0 {
		return err
	}
	for high/low > 1+s.Precision {
		middle := math.Sqrt(low) * math.Sqrt(high)
		held, err := try(middle)
		if err != nil {
			return err
		}
		if held {
			low = middle
		} else {
			high = middle
		}
	}
	return nil
}

// bracket doubles or halves the rate until it knows a rate that holds and one
// that fails. high equals low if Max holds. low is 0 if the lowest rate fails.
func (s Search) bracket(try func(perSecond float64) (bool, error)) (low, high float64, err error) {
	high = math.Inf(1)
	for rate := s.Start; low == 0 || math.IsInf(high, 1); {
		held, err := try(rate)
		switch {
		case err != nil:
			return 0, 0, err
		case held && rate == s.Max:
			return rate, rate, nil
		case held:
			low, rate = rate, rate*2
			if s.Max > 0 {
				rate = min(rate, s.Max)
			}
		default:
			high, rate = rate, rate/2
			if rate < minRate {
				return 0, high, nil
			}
		}
	}
	return low, high, nil
}

// heldWithinSLO is the min percentage of requests that a held rate answers
// within the objective. p99 must be within the objective, too.
const heldWithinSLO = 99

// ProbeFunction returns a probe that runs the spec with one function at the
// tried rate from beginning to end. The other functions keep their first rates.
func ProbeFunction(spec Spec, function string, o Options) (Probe, error) {
	at := -1
	for i, f := range spec.Functions {
		if f.Name == function {
			at = i
		}
	}
	if at < 0 {
		return nil, fmt.Errorf("probe %q: no such function in the spec", function)
	}
	spec.Schedule = nil
	return func(ctx context.Context, perSecond float64) (Trial, error) {
		run := spec
		run.Functions = append([]Function(nil), spec.Functions...)
		f := &run.Functions[at]
		f.PerSecond = perSecond
		if f.Arrivals.Shape == arrival.Video {
			f.Streams = 0 // more cameras, not faster ones
		}
		report, err := Run(ctx, run, o)
		if err != nil {
			return Trial{}, err
		}
		r := report.Functions[at]
		switch {
		case report.ManagerError != "":
			return Trial{}, fmt.Errorf("the node is gone: %s", report.ManagerError)
		case r.Restarted:
			return Trial{}, errors.New("the node's manager died, or the function was removed and added; see the node's log")
		case r.Removed:
			return Trial{}, fmt.Errorf("the node no longer has function %s", r.Name)
		}
		return Trial{
			PerSecond:  perSecond,
			Held:       r.OK > 0 && r.P99Millis <= r.SLOMillis && r.WithinSLO >= heldWithinSLO,
			P99Millis:  r.P99Millis,
			WithinSLO:  r.WithinSLO,
			GoodputRPS: r.GoodputRPS,
		}, nil
	}, nil
}

// WriteJSON writes the result as one JSON object and a newline.
func (f *Found) WriteJSON(w io.Writer) error {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(f); err != nil {
		return fmt.Errorf("write search: %w", err)
	}
	return nil
}

// WriteTable writes the trials and their result for people.
func (f *Found) WriteTable(w io.Writer) error {
	for _, t := range f.Trials {
		verdict := "fails"
		if t.Held {
			verdict = "holds"
		}
		if _, err := fmt.Fprintf(w, "%10.1f /s  p99 %8.2f ms  within SLO %6.2f %%  %s\n", t.PerSecond, t.P99Millis, t.WithinSLO, verdict); err != nil {
			return fmt.Errorf("write search: %w", err)
		}
	}
	if _, err := fmt.Fprintln(w, f.verdict()); err != nil {
		return fmt.Errorf("write search: %w", err)
	}
	return nil
}

func (f *Found) verdict() string {
	text := fmt.Sprintf("highest rate: %.1f requests per second", f.PerSecond)
	switch {
	case f.PerSecond == 0:
		text = "no rate met the objective"
	case f.Interrupted:
		text += " so far (interrupted)"
	case f.Failed == 0:
		text += ", the highest that was allowed"
	default:
		text += fmt.Sprintf("; %.1f fails (precision %.3g %%)", f.Failed, 100*f.Precision)
	}
	return text
}
