package partition

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestMinimumFails(t *testing.T) {
	fine := slices.Repeat([]int{2}, 66)
	odd := len(h200) - 1
	ended := func(groups ...int) Failure { return Failure{Groups: groups, Generation: 1, Newest: 1, Ends: true} }
	kept := func(kept []int, groups ...int) Failure {
		return Failure{Groups: groups, Generation: 1, Newest: 1, Kept: kept}
	}
	seven := []int{0, 1, 2, 3, 4, 5, 6}
	for _, c := range []struct {
		name       string
		groupSMs   []int
		failures   []Failure
		groups     int
		infeasible []int
		excused    bool // the last process
	}{
		{"nothing", h200, nil, 0, nil, false},
		{"a single group", h200, []Failure{ended(3)}, 0, []int{3}, true},
		{"the same group again", h200, []Failure{ended(3), ended(3)}, 0, []int{3}, true},
		{"two single groups", h200, []Failure{ended(3), ended(5)}, 2, []int{3, 5}, true},
		{"the odd group and another", h200, []Failure{ended(odd), ended(3)}, 0, []int{odd, 3}, true},
		{"two groups", h200, []Failure{ended(3, 4)}, 3, nil, true},
		{"fewer than known", h200, []Failure{ended(3, 4), ended(7)}, 3, []int{7}, true},
		{"four groups", h200, []Failure{ended(1, 2, 3, 4)}, 0, nil, false},
		{"six groups after seven", h200, []Failure{kept(seven, 0, 1, 2, 3, 4, 5)}, 7, nil, false},
		{"all groups", []int{8, 8}, []Failure{ended(0, 1)}, 0, nil, false},
		{"no such group", h200, []Failure{ended(99)}, 2, nil, true},
		{"a negative group", h200, []Failure{ended(-1)}, 2, nil, true},
		{"2 multiprocessors", fine, []Failure{ended(0)}, 4, nil, true},
		{"8 multiprocessors", fine, []Failure{ended(0, 1, 2, 3)}, 8, nil, true},
		{"10 multiprocessors", fine, []Failure{ended(0, 1, 2, 3, 4)}, 8, nil, true},
		{"a process that goes on", h200, []Failure{kept([]int{1, 2}, 3)}, 0, []int{3}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			var m Minimum
			excused := false
			for _, f := range c.failures {
				_, excused = m.Fails(c.groupSMs, f)
			}
			groups, infeasible := m.Min()
			if groups != c.groups || !slices.Equal(infeasible, c.infeasible) || excused != c.excused {
				t.Errorf("needs %d groups, not alone %v, excused %v; want %d, %v, %v", groups, infeasible, excused, c.groups, c.infeasible, c.excused)
			}
		})
	}
}

// Only processes that were started before the lesson are excused.
func TestMinimumExcuses(t *testing.T) {
	var m Minimum
	if _, excused := m.Fails(h200, Failure{Groups: []int{1, 2}, Generation: 4, Newest: 5, Ends: true}); !excused {
		t.Error("the first to fail is not excused")
	}
	if _, excused := m.Fails(h200, Failure{Groups: []int{1, 2}, Generation: 5, Newest: 6, Ends: true}); !excused {
		t.Error("a process that existed before the lesson is not excused")
	}
	if learned, excused := m.Fails(h200, Failure{Groups: []int{1, 2}, Generation: 6, Newest: 6, Ends: true}); learned || excused {
		t.Errorf("learned %v, excused %v a process that was started after the lesson", learned, excused)
	}
}

func TestMinimumRuns(t *testing.T) {
	var m Minimum
	if m.Runs([]int{2}) {
		t.Error("remembers a group of a model that runs on all")
	}
	m.Fails(h200, Failure{Groups: []int{3}, Ends: true})
	for _, groups := range [][]int{nil, {3}, {1, 2}} {
		if m.Runs(groups) {
			t.Errorf("remembers that it runs on %v", groups)
		}
	}
	if groups, _ := m.MinToStart([]int{2}); groups != 2 {
		t.Errorf("starts on %d groups, want two: no single one is proven", groups)
	}
	if !m.Runs([]int{2}) || m.Runs([]int{2}) {
		t.Error("want a feasible group to be remembered once")
	}
	if groups, _ := m.MinToStart([]int{2}); groups != 0 {
		t.Errorf("starts on %d groups, want any number on a proven one", groups)
	}
	m.Fails(h200, Failure{Groups: []int{2}, Ends: true})
	if groups, _ := m.MinToStart([]int{2}); groups != 2 {
		t.Errorf("starts on %d groups, want two: the proven one has failed", groups)
	}
}

func TestMinOfOthers(t *testing.T) {
	two, single := Minimum{}, Minimum{}
	two.Fails(h200, Failure{Groups: []int{1, 2}, Ends: true})
	single.Fails(h200, Failure{Groups: []int{4}, Ends: true})
	for _, c := range []struct {
		name       string
		fewest     int
		own        []int
		groups     int
		infeasible []int
	}{
		{"no instance serves", 17, nil, 3, []int{4}},
		{"one serves on fewer", 2, nil, 0, []int{4}},
		{"one serves on as many", 3, nil, 3, []int{4}},
		{"this one serves on the group", 17, []int{4}, 3, nil},
		{"this one serves on it and another", 17, []int{4, 5}, 3, []int{4}},
	} {
		t.Run(c.name, func(t *testing.T) {
			groups, infeasible := MinOfOthers([]Minimum{two, single}, c.fewest, c.own)
			if groups != c.groups || !slices.Equal(infeasible, c.infeasible) {
				t.Errorf("%d groups, not alone %v; want %d, %v", groups, infeasible, c.groups, c.infeasible)
			}
		})
	}
	if _, infeasible := single.Min(); !slices.Equal(infeasible, []int{4}) {
		t.Errorf("its own findings changed to %v", infeasible)
	}
}

// A copy of a Minimum stays as it was, whatever is learned later, and a minimum that was
// learned never asks for more groups than there are.
func TestMinimumCopies(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		groupSMs := drawGroups(t, 2)
		var m Minimum
		for range rapid.IntRange(1, 8).Draw(t, "reports") {
			before := m
			wasGroups, was := before.Min()
			was = slices.Clone(was)
			groups := rapid.SliceOfNDistinct(rapid.IntRange(0, len(groupSMs)-1), 1, len(groupSMs), rapid.ID[int]).Draw(t, "groups")
			if rapid.Bool().Draw(t, "runs") {
				m.Runs(groups)
			} else {
				m.Fails(groupSMs, Failure{Groups: groups, Ends: rapid.Bool().Draw(t, "ends")})
			}
			if g, infeasible := before.Min(); g != wasGroups || !slices.Equal(infeasible, was) {
				t.Fatalf("a copy changed from %d, %v to %d, %v", wasGroups, was, g, infeasible)
			}
			if g, _ := m.Min(); g < wasGroups || g > len(groupSMs) {
				t.Fatalf("%d groups after %d, of %d", g, wasGroups, len(groupSMs))
			}
		}
	})
}
