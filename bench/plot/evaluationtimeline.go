package main

import (
	"fmt"
	"io/fs"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/penstock/penstock/bench/evaluate"
)

// phase is a part of a time line between two of its events.
type phase struct{ from, to float64 }

// phases are a case's: each begins with an event.
func phases(c evaluate.CaseSetting, length float64) (all []phase) {
	at := map[float64]bool{0: true}
	for _, e := range c.Events {
		at[e.AtSeconds] = true
	}
	starts := slices.Sorted(maps.Keys(at))
	for i, s := range starts {
		end := length
		if i+1 < len(starts) {
			end = starts[i+1]
		}
		all = append(all, phase{s, end})
	}
	return all
}

// during is what a function answered in time in a phase, a second and in percent of what
// was offered.
func during(r *evaluate.Result, name string, p phase) (rate, percent float64) {
	for i := range r.Timeline.Functions {
		f := &r.Timeline.Functions[i]
		if f.Name != name {
			continue
		}
		inTime, offered := 0, 0
		for k, b := range f.Bins {
			if at := (float64(k) + 0.5) * r.Timeline.BinSeconds; at >= p.from && at < p.to {
				inTime, offered = inTime+b.Within, offered+b.Offered
			}
		}
		if offered == 0 {
			return math.NaN(), math.NaN()
		}
		return float64(inTime) / (p.to - p.from), 100 * float64(inTime) / float64(offered)
	}
	return math.NaN(), math.NaN()
}

// timelineTable has a row for each variant and function, and a column for each phase.
func timelineTable(name string) func(dir string) (string, error) {
	return func(dir string) (string, error) {
		e, err := readEvaluation(dir, name)
		if err != nil {
			return "", err
		}
		var text strings.Builder
		for _, c := range e.of(evaluate.KindTimeline) {
			var list [][]string
			for _, v := range c.Variants {
				all := slices.DeleteFunc(e.results(c.Name, v), func(r *evaluate.Result) bool { return r.Timeline == nil })
				if len(all) == 0 {
					continue
				}
				parts := phases(c, all[0].Timeline.Seconds)
				if list == nil {
					head := []string{c.Name, "function"}
					for _, p := range parts {
						head = append(head, fmt.Sprintf("%g–%g s, in time", p.from, p.to))
					}
					list = [][]string{append(head, "p99 of the ok answers", "p99 around changes of share → else", "swaps and moves", "longest standstill", "lost")}
				}
				for _, f := range c.Functions {
					row := []string{e.label(v), fmt.Sprintf("%s, %s", f.Name, milli(f.SLOMillis))}
					for _, p := range parts {
						share := spreadBy(all, func(r *evaluate.Result) float64 { _, s := during(r, f.Name, p); return s })
						made := spreadBy(all, func(r *evaluate.Result) float64 { n, _ := during(r, f.Name, p); return n })
						if share.runs == 0 {
							row = append(row, "")
							continue
						}
						row = append(row, fmt.Sprintf("%s; %s", made.text(number, "/s"), tenths(share.median)+" %"))
					}
					list = append(list, append(row,
						ofFunction(all, f.Name, totalTail).text(short, " ms"),
						around(all, f.Name),
						ofFunction(all, f.Name, func(f *evaluate.FunctionTimeline) float64 { return float64(f.Swaps) }).text(short, ""),
						ofFunction(all, f.Name, func(f *evaluate.FunctionTimeline) float64 { return some(f.SwapIdleMillis) }).text(short, " ms"),
						spreadBy(all, func(r *evaluate.Result) float64 { return float64(r.Lost) }).text(short, "")))
				}
			}
			if list != nil {
				fmt.Fprintf(&text, "%s\n", rows(list...))
			}
			if say := e.ends(c); len(say) > 0 && (name == "fig15" || name == "fig16") {
				fmt.Fprintf(&text, "- %s\n\n", strings.Join(say, "\n- "))
			}
		}
		if text.Len() == 0 {
			return "", fs.ErrNotExist
		}
		return strings.TrimRight(text.String(), "\n") + "\n", nil
	}
}

// A change of share is felt from a little before it is seen, which is every 50 ms, until a
// while after.
const (
	feltBefore = 0.2 // s
	feltAfter  = 0.5
)

// around is a function's p99 in the bins around changes of share, whosever, and in the
// others: medians of bins, and of runs.
func around(all []*evaluate.Result, name string) string {
	near, far := make([]float64, 0, len(all)), make([]float64, 0, len(all))
	for _, r := range all {
		var felt, other []float64
		begun := map[string]bool{} // its first share is no change
		var changes []float64
		for _, e := range r.Timeline.Events {
			if e.What == "share" {
				if begun[e.Function] {
					changes = append(changes, e.AtSeconds)
				}
				begun[e.Function] = true
			}
		}
		for i := range r.Timeline.Functions {
			f := &r.Timeline.Functions[i]
			if f.Name != name {
				continue
			}
			for k, b := range f.Bins {
				if b.OK == 0 {
					continue
				}
				from := float64(k) * r.Timeline.BinSeconds
				to := from + r.Timeline.BinSeconds
				if slices.ContainsFunc(changes, func(at float64) bool { return to > at-feltBefore && from < at+feltAfter }) {
					felt = append(felt, b.P99Millis)
				} else {
					other = append(other, b.P99Millis)
				}
			}
		}
		near, far = append(near, spreadOf(felt).median), append(far, spreadOf(other).median)
	}
	n, f := spreadOf(near), spreadOf(far)
	if n.runs == 0 || f.runs == 0 {
		return "–"
	}
	return n.text(short, "") + " → " + f.text(short, " ms")
}

// ends says of each variant whether at the end, in the last quarter, all is answered in
// time.
func (e *evaluation) ends(c evaluate.CaseSetting) (list []string) {
	for _, v := range c.Variants {
		all := slices.DeleteFunc(e.results(c.Name, v), func(r *evaluate.Result) bool { return r.Timeline == nil })
		if len(all) == 0 {
			continue
		}
		length := all[0].Timeline.Seconds
		var less []string
		for _, f := range c.Functions {
			s := spreadBy(all, func(r *evaluate.Result) float64 {
				_, p := during(r, f.Name, phase{0.75 * length, length})
				return p
			})
			if s.runs > 0 && s.median < 99 {
				less = append(less, f.Name+" "+s.text(tenths, " %"))
			}
		}
		answer := "**true**."
		if len(less) > 0 {
			answer = "**false**: " + strings.Join(less, ", ") + "."
		}
		list = append(list, fmt.Sprintf("%s answers 99 %% in time in the last quarter: %s", e.label(v), answer))
	}
	return list
}

// ofFunction is the spread over runs of what by says of a function.
func ofFunction(all []*evaluate.Result, name string, by func(*evaluate.FunctionTimeline) float64) spread {
	return spreadBy(all, func(r *evaluate.Result) float64 {
		for i := range r.Timeline.Functions {
			if r.Timeline.Functions[i].Name == name {
				return by(&r.Timeline.Functions[i])
			}
		}
		return math.NaN()
	})
}

func convergenceTable(dir string) (string, error) {
	e, err := readEvaluation(dir, "fig12c-14")
	if err != nil {
		return "", err
	}
	list := [][]string{{"objective", "rule", "t90", "goodput", "p99 of the ok answers", "not within the objective", "mean batch"}}
	for _, c := range e.of(evaluate.KindTimeline) {
		for _, v := range c.Variants {
			all := e.results(c.Name, v)
			if len(all) == 0 {
				continue
			}
			list = append(list, []string{c.Name, e.label(v), ofOnly(all, t90Millis).text(short, " ms"), ofOnly(all, goodRate).text(number, "/s"), ofOnly(all, totalTail).text(short, " ms"),
				ofOnly(all, lateShare).text(tenths, " %"), ofOnly(all, func(f *evaluate.FunctionTimeline) float64 { return f.Total.MeanBatch }).text(short, "")})
		}
	}
	if len(list) == 1 {
		return "", fs.ErrNotExist
	}
	text := rows(list...)
	if say := e.convergenceVerdicts(); len(say) > 0 {
		text += "\n- " + strings.Join(say, "\n- ") + "\n"
	}
	return text, nil
}

func totalTail(f *evaluate.FunctionTimeline) float64 { return some(f.Total.P99Millis) }
