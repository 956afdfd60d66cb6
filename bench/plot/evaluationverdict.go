package main

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"slices"
	"strings"

	"github.com/penstock/penstock/bench/evaluate"
)

// leastDifference is what a difference must come to, in percent, beside runs that do not
// overlap.
const leastDifference = 1

// leastRuns are how many of each there must be: one has no spread.
const leastRuns = 2

// comparison is a variant beside a baseline, of one case at one load.
type comparison struct {
	name     string
	level    float64
	baseline string
	percent  float64 // of the baseline's goodput, above (or, negative, below) it; infinite where that is 0
	misses   bool    // the baseline has answers outside its objective
	failed   bool    // all the variant's runs failed: it answers nothing
}

func (c comparison) String() string {
	if c.failed {
		return c.name + " (all runs failed)"
	}
	if math.IsInf(c.percent, 1) {
		return fmt.Sprintf("%s at %.0f %% beside %s (which has nothing)", c.name, 100*c.level, c.baseline)
	}
	return fmt.Sprintf("%s at %.0f %% beside %s (%+.1f %%)", c.name, 100*c.level, c.baseline, c.percent)
}

// compare holds a variant's goodput against each baseline's. Neither below nor above is
// what differs by less than the runs among themselves, or by leastDifference. A variant that
// failed in all its runs has no goodput; a baseline that did is nothing to be held against.
// open is how many comparisons there are not runs enough for.
func (e *evaluation) compare(variant string) (below, above, same []comparison, open int) {
	most := 1 // levels of a case of which nothing is measured yet
	cases := e.of(evaluate.KindLoads)
	for _, c := range cases {
		most = max(most, len(e.levels(c.Name)))
	}
	for _, c := range cases {
		if !slices.Contains(c.Variants, variant) {
			continue
		}
		levels := e.levels(c.Name)
		failures, _ := e.failed(c.Name, variant)
		failed := len(e.results(c.Name, variant)) == 0 && failures >= leastRuns
		for _, v := range e.Variants {
			if !v.Baseline || !slices.Contains(c.Variants, v.Name) {
				continue
			}
			if count, _ := e.failed(c.Name, v.Name); count > 0 && len(e.results(c.Name, v.Name)) == 0 {
				continue
			}
			if len(levels) == 0 {
				open += most
			}
			for _, level := range levels {
				mine, theirs := e.loads(c.Name, variant, level), e.loads(c.Name, v.Name, level)
				if len(theirs) < leastRuns || !failed && len(mine) < leastRuns {
					open++
					continue
				}
				ours, base := spreadBy(keptUp(mine), goodput), spreadBy(keptUp(theirs), goodput)
				if failed {
					ours = spread{runs: failures}
				}
				if min(ours.runs, base.runs) < leastRuns {
					continue // the sender's fault
				}
				x := comparison{c.Name, level, v.Label, 0, spreadBy(keptUp(theirs), within).median < 99, failed}
				if ours.median != base.median {
					x.percent = 100 * (ours.median - base.median) / base.median
				}
				switch {
				case math.Abs(x.percent) < leastDifference:
					same = append(same, x)
				case ours.below(base):
					below = append(below, x)
				case base.below(ours):
					above = append(above, x)
				default:
					same = append(same, x)
				}
			}
		}
	}
	return below, above, same, open
}

// verdict is what the numbers say of the claim that a variant is never below a baseline
// beyond the spread, and above it wherever the baseline misses its objective.
type verdict struct {
	variant string
	// all are the comparisons, missing those in which the baseline misses the objective
	// for more than 1 %, open those that there are not runs enough for.
	all, missing, open int
	below              []comparison
	not                []comparison // of missing: those in which the variant is not above
}

func (e *evaluation) verdictOf(variant string) verdict {
	below, above, same, open := e.compare(variant)
	v := verdict{variant: e.label(variant), all: len(below) + len(above) + len(same), open: open, below: below}
	for _, c := range slices.Concat(below, same) {
		if c.misses {
			v.missing++
			v.not = append(v.not, c)
		}
	}
	for _, c := range above {
		if c.misses {
			v.missing++
		}
	}
	byPercent := func(a, b comparison) int { return cmp.Compare(a.percent, b.percent) }
	slices.SortFunc(v.below, byPercent)
	slices.SortFunc(v.not, byPercent)
	return v
}

// never and above are the two halves, briefly.
func (v verdict) never() string {
	if len(v.below) == 0 {
		return fmt.Sprintf("**true** (%d)", v.all) + v.more()
	}
	return fmt.Sprintf("**false**: below in %d of %d", len(v.below), v.all) + v.more()
}

func (v verdict) above() string {
	switch {
	case v.missing == 0:
		return "no baseline misses" + v.more()
	case len(v.not) == 0:
		return fmt.Sprintf("**true** (%d)", v.missing) + v.more()
	}
	return fmt.Sprintf("**false**: not above in %d of %d", len(v.not), v.missing) + v.more()
}

// more says that this is not all.
func (v verdict) more() string {
	if v.open == 0 {
		return ""
	}
	return fmt.Sprintf(" so far (open: %d)", v.open)
}

// penstocks are the variants that are Penstock whole.
var penstocks = []string{"penstock", "penstock-fine", "penstock-shadow"}

// verdicts are in sentences what the numbers say, exceptions named.
func (e *evaluation) verdicts() (list []string) {
	for _, variant := range penstocks {
		v := e.verdictOf(variant)
		if v.all == 0 {
			continue
		}
		with := func(exceptions []comparison) string {
			if len(exceptions) == 0 {
				return "."
			}
			return ": " + listed(exceptions) + "."
		}
		list = append(list, fmt.Sprintf("%s is never below a baseline beyond the spread: %s%s", v.variant, v.never(), with(v.below)))
		if v.missing > 0 {
			list = append(list, fmt.Sprintf("%s is above a baseline, beyond the spread, wherever that misses the objective for more than 1 %%: %s%s", v.variant, v.above(), with(v.not)))
		}
	}
	return list
}

// listed names the first few. A case that failed is named once.
func listed(all []comparison) string {
	const most = 6
	var names []string
	for _, c := range all {
		if name := c.String(); !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	if more := len(names) - most; more > 0 {
		names = append(names[:most], fmt.Sprintf("and %d more", more))
	}
	return strings.Join(names, ", ")
}

// verdictTable has all generated verdicts in one place.
func verdictTable(dir string) (string, error) {
	list := [][]string{{"figure", "", "never below a baseline beyond the spread (comparisons)", "above it wherever it misses the objective (comparisons)"}}
	var more, failures []string
	lost, runs := uint64(0), 0
	for _, f := range evaluationFigures {
		e, err := readEvaluation(dir, f.name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return "", err
		}
		for _, variant := range penstocks {
			if v := e.verdictOf(variant); v.all > 0 {
				list = append(list, []string{f.name, v.variant, v.never(), v.above()})
			}
		}
		if f.name == "fig12c-14" {
			more = append(more, e.convergenceVerdicts()...)
		}
		for _, failure := range e.failures() {
			failures = append(failures, f.name+": "+failure)
		}
		for _, r := range e.Results {
			if r.Error == "" && len(r.Points) == 0 {
				lost, runs = lost+r.Lost, runs+1
			}
		}
	}
	if runs > 0 {
		answer := "**true**"
		if lost > 0 {
			answer = fmt.Sprintf("**false**, %d were", lost)
		}
		more = append(more, fmt.Sprintf("No request that was accepted is lost, in %d runs of all variants: %s.", runs, answer))
	}
	more = append(more, failures...)
	if len(list) == 1 && len(more) == 0 {
		return "", fs.ErrNotExist
	}
	text := ""
	if len(list) > 1 {
		text = rows(list...) + "\n"
	}
	if len(more) > 0 {
		text += "- " + strings.Join(more, "\n- ") + "\n"
	}
	return text, nil
}

func (e *evaluation) convergenceVerdicts() (list []string) {
	var late, slow []string
	cases := e.of(evaluate.KindTimeline)
	compared, judged := 0, 0
	for _, c := range cases {
		mine := e.results(c.Name, "mps-slab")
		if len(mine) == 0 {
			continue
		}
		judged++
		// Of all requests: what a node gives up as late is no answer, and in no percentile of them.
		if p := ofOnly(mine, lateShare); p.most > 1 {
			late = append(late, fmt.Sprintf("%s: %s are not", c.Name, p.text(tenths, " %")))
		}
		if other := e.results(c.Name, "aimd"); len(other) > 0 {
			compared++
			if a, b := ofOnly(mine, t90Millis), ofOnly(other, t90Millis); !a.below(b) {
				slow = append(slow, fmt.Sprintf("%s: %s beside %s", c.Name, a.text(short, " ms"), b.text(short, " ms")))
			}
		}
	}
	if compared > 0 {
		list = append(list, claim("SLAB finds its batch sooner than AIMD, beyond the spread, at each objective", slow))
	}
	if judged > 0 {
		list = append(list, claim("99 % of all requests are answered within the objective with SLAB, the time line's beginning included", late))
	}
	return list
}

// claim is a sentence with its answer: true, or what speaks against it.
func claim(text string, against []string) string {
	if len(against) == 0 {
		return text + ": **true**."
	}
	return text + ": **false**, " + strings.Join(against, "; ") + "."
}
