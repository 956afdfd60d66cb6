package partition

import (
	"slices"
	"testing"
	"time"
)

// needs returns a function for Assign.
func needs(minGroups int, infeasible ...int) func() (int, []int) {
	return func() (int, []int) { return minGroups, infeasible }
}

func TestPlacementAssign(t *testing.T) {
	for _, c := range []struct {
		name      string
		placement Placement
		earlier   bool // the process has had groups before
		needs     func() (int, []int)
		want      []int
	}{
		{"before the first order", Placement{}, false, needs(0), nil},
		{"ordered", Placement{Groups: []int{1, 2}}, false, needs(0), []int{1, 2}},
		{"too few for ever", Placement{Groups: []int{1}}, false, needs(2), []int{1}},
		{"too few until more come", Placement{Groups: []int{1}, Waits: true}, false, needs(2), nil},
		{"enough until more come", Placement{Groups: []int{1}, Waits: true}, false, needs(1), []int{1}},
		{"infeasible until more come", Placement{Groups: []int{1}, Waits: true}, false, needs(0, 1), nil},
		{"a running process keeps what remains", Placement{Groups: []int{1}, Waits: true}, true, needs(2), []int{1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := c.placement
			if c.earlier {
				p.Waits = false
				p.Assign(7, c.needs)
				p.Waits = true
			}
			if got := p.Assign(7, c.needs); !slices.Equal(got, c.want) {
				t.Errorf("assigned %v, want %v", got, c.want)
			}
			if got := p.Assigned(7); !slices.Equal(got, c.want) {
				t.Errorf("remembers %v, want %v", got, c.want)
			}
			if p.Forget(7); p.Assigned(7) != nil {
				t.Errorf("remembers %v of a forgotten process", p.Assigned(7))
			}
		})
	}
}

func TestPlacementOrder(t *testing.T) {
	var p Placement
	if p.Order(nil, time.Second) || p.Since != 0 {
		t.Error("the same order counts as a new one")
	}
	if !p.Order([]int{3}, time.Minute) || p.Since != time.Minute || !slices.Equal(p.Groups, []int{3}) {
		t.Errorf("%+v, want group 3 since a minute", p)
	}
}

func TestPlacementVisit(t *testing.T) {
	var p Placement
	visit := func(want int, groups ...int) {
		t.Helper()
		p.Order(groups, 0)
		p.Assign(1, needs(0))
		if got := p.Visit(1); got != want {
			t.Errorf("%d sets on %v, want %d", got, groups, want)
		}
	}
	visit(1, 1)
	visit(0, 1)
	visit(2, 1, 2)
	visit(2, 1) // it returns to an earlier set
	p.Replaced()
	visit(1, 1)
}
