package sharesim

import (
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"
)

// MixReport is how a mix went.
type MixReport struct {
	Name    string
	Results []Result
	// Worth is the weighted goodput, in device seconds; Division that of the best fixed
	// division that keeps the same functions at 99 %, 0 if there is none.
	Worth, Division float64
}

// Simulate runs mixes, next to the best fixed divisions if divide is true.
func Simulate(mixes []Mix, divide bool) ([]MixReport, error) {
	reports := make([]MixReport, len(mixes))
	errs := make([]error, len(mixes))
	var group sync.WaitGroup
	tokens := make(chan struct{}, runtime.GOMAXPROCS(0))
	for i := range mixes {
		group.Add(1)
		go func() {
			defer group.Done()
			tokens <- struct{}{}
			defer func() { <-tokens }()
			reports[i], errs[i] = mixes[i].simulate(divide)
		}()
	}
	group.Wait()
	for _, err := range errs {
		if err != nil {
			return nil, err
		}
	}
	return reports, nil
}

func (m *Mix) simulate(divide bool) (MixReport, error) {
	r := MixReport{Name: m.Name}
	var err error
	if r.Results, err = Run(m.Config); err != nil {
		return r, err
	}
	keep := make([]bool, len(r.Results))
	for i := range r.Results {
		r.Worth += r.Results[i].worth()
		keep[i] = r.Results[i].Share() >= kept
	}
	if divide {
		r.Division, _, err = BestDivision(m.Config, keep)
	}
	return r, err
}

// fewest is how many requests within its guarantee a function must have to be judged.
const fewest = 300

// Summary sums up the mixes of a group.
type Summary struct {
	Group string `json:"group"`
	Mixes int    `json:"mixes"`
	// Functions have at least 300 requests within their guarantee. Below of them have less
	// than 99 % of these in time; of Infeasible of those, Decide had said so for at least a
	// twentieth of the run.
	Functions  int `json:"functions"`
	Below      int `json:"below_99_percent"`
	Infeasible int `json:"below_99_percent_and_reported"`
	// WorstPercent is of the function that has the fewest in time.
	WorstPercent float64 `json:"worst_in_time_percent"`
	// InTimePercent is of all requests within a guarantee, which are WithinPercent of all.
	InTimePercent float64 `json:"in_time_percent"`
	WithinPercent float64 `json:"within_percent"`
	// GoodputSeconds is the goodput weighted by device time, of all mixes.
	GoodputSeconds float64 `json:"goodput_seconds"`
	// Ratios are of weighted goodput to that of the best fixed division, of the mixes that
	// have one; ascending.
	Ratios []float64 `json:"ratios"`
	// Short describes the functions below 99 % and the mixes below 99 % of the division.
	Short []string `json:"short"`
}

// reported is which part of the run Decide must have said that a function is infeasible.
const reported = 0.05

// Summarize sums up reports.
func Summarize(group string, reports []MixReport) Summary {
	s := Summary{Group: group, Mixes: len(reports), WorstPercent: 100}
	requests, within, good := 0, 0, 0
	for _, m := range reports {
		s.GoodputSeconds += m.Worth
		if m.Division > 0 {
			ratio := m.Worth / m.Division
			s.Ratios = append(s.Ratios, ratio)
			if ratio < kept {
				s.Short = append(s.Short, fmt.Sprintf("%s: goodput is %.3f of the best fixed division's", m.Name, ratio))
			}
		}
		for _, r := range m.Results {
			requests += r.Requests
			within += r.Within
			good += r.WithinGood
			if r.Within < fewest {
				continue
			}
			percent := 100 * float64(r.WithinGood) / float64(r.Within)
			s.Functions++
			s.WorstPercent = min(s.WorstPercent, percent)
			if percent >= 100*kept {
				continue
			}
			s.Below++
			if r.Infeasible >= reported {
				s.Infeasible++
			}
			s.Short = append(s.Short, fmt.Sprintf("%s: %s (%v, a batch of 1 takes %v) has %.2f %% of %d in time", m.Name, r.Function.Name,
				r.Function.Objective.Round(100*time.Microsecond), r.Function.Time(1).Round(10*time.Microsecond), percent, r.Within))
		}
	}
	slices.Sort(s.Ratios)
	s.InTimePercent = 100 * float64(good) / float64(max(1, within))
	s.WithinPercent = 100 * float64(within) / float64(max(1, requests))
	return s
}

// Ratio returns the smallest and the median of the ratios, and how many are below 99 %.
func (s *Summary) Ratio() (smallest, median float64, below int) {
	if len(s.Ratios) == 0 {
		return 0, 0, 0
	}
	below, _ = slices.BinarySearch(s.Ratios, kept)
	return s.Ratios[0], s.Ratios[len(s.Ratios)/2], below
}
