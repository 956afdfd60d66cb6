package partition

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/manager/policy/gslice"
)

// h200 is how an H200 splits by eights: 15 groups and a remainder of 12.
var h200 = func() []int {
	return append(slices.Repeat([]int{8}, 15), 12)
}()

func id(name string) gslice.ID { return gslice.ID{IF: name} }

// begin divides among newcomers.
func begin(t *testing.T, groupSMs []int, percents ...float64) []Order {
	t.Helper()
	var claims []Claim
	for i, p := range percents {
		claims = append(claims, Claim{ID: id(fmt.Sprintf("f%02d", i)), Percent: p})
	}
	orders, err := divide(groupSMs, claims, nil)
	must.OK(t, err)
	return orders
}

// settled returns the claims of instances whose processes run as ordered.
func settled(orders []Order, percents ...float64) []Claim {
	var claims []Claim
	for i, o := range orders {
		claims = append(claims, Claim{ID: o.ID, Percent: percents[i], Ordered: o.Now, Busy: o.Now})
	}
	return claims
}

// follow divides groups once. Processes obey at once.
func follow(t *testing.T, groupSMs []int, claims []Claim) {
	t.Helper()
	orders, err := divide(groupSMs, claims, nil)
	must.OK(t, err)
	for i, o := range orders {
		claims[i].Ordered, claims[i].Busy = o.Now, o.Now
	}
}

func sms(groupSMs, groups []int) (n int) {
	for _, g := range groups {
		n += groupSMs[g]
	}
	return n
}

func TestDivide(t *testing.T) {
	even := slices.Repeat([]int{2}, 66)
	for _, c := range []struct {
		name     string
		groupSMs []int
		percents []float64
		want     []int // multiprocessors
	}{
		{"all of it", h200, []float64{100}, []int{132}},
		{"halves: the odd group goes to the first", h200, []float64{50, 50}, []int{68, 64}},
		{"as measured: 42 % each leaves some free", h200, []float64{42, 42}, []int{60, 56}},
		{"a little is a group", h200, []float64{1}, []int{8}},
		{"a group is 6.06 %", h200, []float64{6.0625}, []int{8}},
		{"and a little more is two, where they are free", h200, []float64{8, 8}, []int{12, 16}},
		{"thirds", h200, []float64{33.328125, 33.328125, 33.328125}, []int{44, 48, 40}},
		{"by twos there is no odd group", even, []float64{50, 30, 20}, []int{66, 40, 26}},
		{"by twos a percentage is met", even, []float64{10, 5}, []int{14, 8}},
		{"the smallest cost the largest", h200, []float64{90, 2, 2, 2, 2, 2}, []int{92, 8, 8, 8, 8, 8}},
		{"more wanted than there is", h200, []float64{100, 100}, []int{68, 64}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var got []int
			for _, o := range begin(t, c.groupSMs, c.percents...) {
				got = append(got, sms(c.groupSMs, o.Target))
				if o.Waits() {
					t.Errorf("%v waits for %v, and everything is free", o.Now, o.Target)
				}
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("multiprocessors %v, want %v", got, c.want)
			}
		})
	}
}

func TestDivideOneEach(t *testing.T) {
	percents := slices.Repeat([]float64{0.5}, len(h200)-1)
	orders := begin(t, h200, append(percents, 90)...)
	for _, o := range orders {
		if len(o.Now) != 1 {
			t.Errorf("%v has groups %v, want one", o.ID, o.Now)
		}
	}
	claims := make([]Claim, len(h200)+1)
	if _, err := divide(h200, claims, nil); !errors.Is(err, ErrTooMany) {
		t.Errorf("17 instances and 16 groups: error %v, want ErrTooMany", err)
	}
}

// 12 functions share an H200, and one group is not enough for the model of one of them.
func TestDivideMinimum(t *testing.T) {
	percents := append(slices.Repeat([]float64{8}, 11), 3)
	claims := settled(begin(t, h200, percents...), percents...)
	last := len(claims) - 1
	if got := claims[last].Ordered; len(got) != 1 {
		t.Fatalf("3 %% is groups %v, want one", got)
	}
	claims[last].Min = 2
	for range 3 {
		follow(t, h200, claims)
	}
	if got := claims[last].Ordered; len(got) != 2 {
		t.Errorf("it is on groups %v, want two", got)
	}
	for _, c := range claims[:last] {
		if len(c.Ordered) == 0 {
			t.Errorf("%v has nothing", c.ID)
		}
	}
	// A share that asks for more than it needs is a share like any other.
	claims[last].Percent = 30
	orders, err := divide(h200, claims, nil)
	if err != nil || len(orders[last].Target) < 4 {
		t.Errorf("30 %% is %v (%v), want four groups or more", orders[last].Target, err)
	}
}

func TestDivideScarceGroups(t *testing.T) {
	four := slices.Repeat([]int{8}, 4)
	for _, c := range []struct {
		name      string
		minGroups []int
		want      []int
	}{
		{"one of three needs two", []int{0, 0, 2}, []int{1, 1, 2}},
		{"two of three need two, and there is one more", []int{0, 2, 2}, []int{1, 2, 1}},
		{"who needs more than there is gets one, and the next its two", []int{3, 0, 2}, []int{1, 1, 2}},
		{"nobody can have more", []int{2, 2, 2, 2}, []int{1, 1, 1, 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var claims []Claim
			for i, n := range c.minGroups {
				claims = append(claims, Claim{ID: id(fmt.Sprint(i)), Percent: 1, Min: n})
			}
			orders, err := divide(four, claims, nil)
			must.OK(t, err)
			var got []int
			for _, o := range orders {
				got = append(got, len(o.Target))
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("%v groups, want %v", got, c.want)
			}
		})
	}
}

func TestDivideErrors(t *testing.T) {
	for _, bad := range [][]int{{8, 12, 8}, {8, 0}, {-1}} {
		if _, err := divide(bad, []Claim{{Percent: 5}}, nil); err == nil {
			t.Errorf("groups of %v were accepted", bad)
		}
	}
	if orders, err := divide(nil, nil, nil); err != nil || len(orders) != 0 {
		t.Errorf("nobody and nothing: %v, %v", orders, err)
	}
}

func TestDivideGrowth(t *testing.T) {
	before := begin(t, h200, 50, 50)
	claims := settled(before, 75, 25)
	orders, err := divide(h200, claims, nil)
	must.OK(t, err)
	grows, shrinks := orders[0], orders[1]
	if !slices.Equal(grows.Now, before[0].Now) || !grows.Waits() {
		t.Errorf("the one that grows is ordered %v, want it to stay on %v and wait", grows.Now, before[0].Now)
	}
	if shrinks.Waits() || len(shrinks.Now) >= len(before[1].Now) {
		t.Errorf("the one that shrinks is ordered %v of %v, want its cut at once", shrinks.Now, before[1].Now)
	}
	// It has been ordered, and has not moved yet.
	claims[1].Ordered = shrinks.Now
	if orders, _ = divide(h200, claims, nil); !slices.Equal(orders[0].Now, before[0].Now) {
		t.Errorf("ordered %v while the neighbour is still on its groups", orders[0].Now)
	}
	claims[1].Busy = shrinks.Now
	if orders, _ = divide(h200, claims, nil); orders[0].Waits() || sms(h200, orders[0].Now) < 96 {
		t.Errorf("ordered %v when the neighbour has left, want 75 %%", orders[0].Now)
	}
}

func TestDivideNewClaim(t *testing.T) {
	old := begin(t, h200, 90)
	claims := append(settled(old, 50), Claim{ID: id("new"), Percent: 50})
	orders, err := divide(h200, claims, nil)
	must.OK(t, err)
	if now := orders[1].Now; len(now) == 0 || !orders[1].Waits() {
		t.Errorf("the newcomer is ordered %v of %v, want the free ones at once", now, orders[1].Target)
	}
	for _, g := range orders[1].Now {
		if slices.Contains(old[0].Now, g) {
			t.Errorf("group %d is the old one's", g)
		}
	}
	// It has to wait if no group is free.
	old = begin(t, h200, 100)
	orders, err = divide(h200, append(settled(old, 50), Claim{ID: id("new"), Percent: 50}), nil)
	if err != nil || len(orders[1].Now) != 0 {
		t.Errorf("ordered %v (%v), want nothing yet", orders[1].Now, err)
	}
}

func TestDivideTaken(t *testing.T) {
	all := []int{0, 1, 2, 3}
	four := []int{8, 8, 8, 8}
	claims := []Claim{{ID: id("a"), Percent: 100, Ordered: []int{0}, Busy: []int{0}}}
	orders, err := divide(four, claims, []int{2, 3})
	if err != nil || !slices.Equal(orders[0].Now, []int{0}) || !slices.Equal(orders[0].Target, all) {
		t.Errorf("%+v (%v), want it to wait for the dead one's groups", orders, err)
	}
	orders, err = divide(four, claims, nil)
	if err != nil || !slices.Equal(orders[0].Now, all) {
		t.Errorf("%+v (%v), want all groups", orders, err)
	}
}

func TestDivideKeepsGroups(t *testing.T) {
	before := begin(t, h200, 20, 20, 20, 20)
	orders, err := divide(h200, settled(before, 20, 30, 20, 20), nil)
	must.OK(t, err)
	for i, o := range orders {
		for _, g := range before[i].Now {
			if !slices.Contains(o.Target, g) {
				t.Errorf("%v lost group %d", o.ID, g)
			}
		}
		if i != 1 && len(o.Target) != len(before[i].Now) {
			t.Errorf("%v has %v, had %v", o.ID, o.Target, before[i].Now)
		}
	}
}

// Each set of groups that a process ever used costs it device memory.
func TestDivideReturnsToSets(t *testing.T) {
	claims := []Claim{{ID: id("a"), Percent: 50}, {ID: id("b"), Percent: 50}}
	sets := []map[string]bool{{}, {}}
	for i := range 1000 {
		claims[0].Percent = 10 + float64(i*37%81)
		claims[1].Percent = 100 - claims[0].Percent
		for range 3 {
			follow(t, h200, claims)
			for i, c := range claims {
				sets[i][fmt.Sprint(c.Ordered)] = true
			}
		}
	}
	for i, s := range sets {
		if len(s) > 2*len(h200) {
			t.Errorf("%v was on %d sets of groups, want at most %d", claims[i].ID, len(s), 2*len(h200))
		}
	}
}

// A process that has not left its groups yet gets them back first.
func TestDivideBusyFirst(t *testing.T) {
	claims := []Claim{
		{ID: id("a"), Percent: 50, Ordered: []int{4}, Busy: []int{4, 5}},
		{ID: id("b"), Percent: 50, Ordered: []int{0, 1}, Busy: []int{0, 1}},
	}
	orders, err := divide(slices.Repeat([]int{8}, 6), claims, nil)
	must.OK(t, err)
	if got := orders[0].Now; !slices.Contains(got, 4) || !slices.Contains(got, 5) {
		t.Errorf("ordered %v, want 4 and 5 among them", got)
	}
}

// drawGroups draws a device: groups of one size, perhaps with an odd last one.
func drawGroups(t *rapid.T, least int) []int {
	unit := rapid.SampledFrom([]int{2, 8}).Draw(t, "unit")
	groups := slices.Repeat([]int{unit}, rapid.IntRange(least, 24).Draw(t, "groups"))
	if rapid.Bool().Draw(t, "odd") {
		groups = append(groups, rapid.IntRange(1, 2*unit-1).Draw(t, "remainder"))
	}
	return groups
}

func drawPercents(t *rapid.T, n int) []float64 {
	out, left := make([]float64, n), 100.0
	for i := range out {
		out[i] = math.Floor(64*rapid.Float64Range(0, left).Draw(t, "percent")) / 64
		left -= out[i]
	}
	return out
}

// drawInfeasible draws groups on which a model does not run alone. They may not exist.
func drawInfeasible(t *rapid.T) []int {
	return rapid.SliceOfNDistinct(rapid.IntRange(0, 24), 0, 3, rapid.ID[int]).Draw(t, "unfit")
}

// check checks what must hold of every division.
func check(t *rapid.T, groupSMs []int, claims []Claim, taken []int, orders []Order) {
	total, largest := 0, 0
	for _, n := range groupSMs {
		total += n
		largest = max(largest, n)
	}
	least := newDivision(groupSMs, claims, taken).minimum
	ideals := idealsOf(float64(total), float64(groupSMs[0]), claims, least)
	targetOf, nowOf := map[int]gslice.ID{}, map[int]gslice.ID{}
	for _, g := range taken {
		nowOf[g] = id("somebody")
	}
	for _, c := range claims {
		for _, g := range c.Busy {
			nowOf[g] = c.ID
		}
		for _, g := range c.Ordered {
			nowOf[g] = c.ID
		}
	}
	if len(orders) != len(claims) {
		t.Fatalf("%d orders for %d claims", len(orders), len(claims))
	}
	for i, o := range orders {
		if o.ID != claims[i].ID {
			t.Fatalf("order %d is %v's, the claim %v's", i, o.ID, claims[i].ID)
		}
		if len(o.Target) < least[i] {
			t.Fatalf("%v gets %d groups, want %d at least", o.ID, len(o.Target), least[i])
		}
		if off := float64(sms(groupSMs, o.Target)) - ideals[i]; math.Abs(off) > float64(largest) {
			t.Fatalf("%v gets %d multiprocessors, want %v within a group of at most %d", o.ID, sms(groupSMs, o.Target), ideals[i], largest)
		}
		if !slices.IsSorted(o.Target) || !slices.IsSorted(o.Now) {
			t.Fatalf("%+v is not ascending", o)
		}
		for _, g := range o.Target {
			if other, taken := targetOf[g]; taken {
				t.Fatalf("%v and %v shall both have group %d", other, o.ID, g)
			}
			targetOf[g] = o.ID
		}
		for _, g := range o.Now {
			if other, busy := nowOf[g]; busy && other != o.ID {
				t.Fatalf("%v is ordered group %d, which %v may be on", o.ID, g, other)
			}
			nowOf[g] = o.ID
		}
		if len(claims[i].Ordered) > 0 && len(o.Now) == 0 {
			t.Fatalf("%v had %v and is ordered nothing", o.ID, claims[i].Ordered)
		}
	}
}

func TestDivideFair(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		groupSMs := drawGroups(t, 1)
		n := rapid.IntRange(1, len(groupSMs)).Draw(t, "instances")
		var claims []Claim
		for i, p := range drawPercents(t, n) {
			claims = append(claims, Claim{ID: id(fmt.Sprint(i)), Percent: p, Min: rapid.IntRange(0, 4).Draw(t, "least"), Infeasible: drawInfeasible(t)})
		}
		// Any disjoint past.
		var taken []int
		for g := range groupSMs {
			switch of := rapid.IntRange(-2, n-1).Draw(t, "of"); of {
			case -2:
			case -1:
				taken = append(taken, g)
			default:
				c := &claims[of]
				c.Busy = append(c.Busy, g)
				if rapid.Bool().Draw(t, "ordered") {
					c.Ordered = append(c.Ordered, g)
				}
			}
		}
		orders, err := divide(groupSMs, claims, taken)
		must.OK(t, err)
		check(t, groupSMs, claims, taken, orders)

		// If all processes obey at once, and dead ones are observed, orders stop changing.
		rounds := 0
		// Another claim may wait for a group that one gives up, to leave an infeasible group.
		moves := func() bool {
			for i, o := range orders {
				if len(claims[i].Infeasible) > 0 && !slices.Equal(o.Now, claims[i].Ordered) {
					return true
				}
			}
			return false
		}
		for ; slices.ContainsFunc(orders, func(o Order) bool { return o.Waits() }) || moves() || rounds == 0; rounds++ {
			if rounds > 2*len(claims)+2 {
				t.Fatalf("no rest after %d rounds: %+v, claims %+v, sms %v", rounds, orders, claims, groupSMs)
			}
			for i := range claims {
				claims[i].Ordered, claims[i].Busy = orders[i].Now, orders[i].Now
			}
			if orders, err = divide(groupSMs, claims, nil); err != nil {
				t.Fatal(err)
			}
			check(t, groupSMs, claims, nil, orders)
		}
		for i := range claims {
			claims[i].Ordered, claims[i].Busy = orders[i].Now, orders[i].Now
		}
		again, err := divide(groupSMs, claims, nil)
		must.OK(t, err)
		for i := range again {
			if !slices.Equal(again[i].Now, claims[i].Ordered) {
				t.Fatalf("%v is moved from %v to %v, and nothing changed", again[i].ID, claims[i].Ordered, again[i].Now)
			}
		}
	})
}

// The load of a figure: 12 functions on an H200, the light ones with 4 %. The fourth one's model
// needs two groups, and had the odd group as one of them.
func TestDivideOddByShare(t *testing.T) {
	percents := []float64{4, 11.84, 12.14, 4.45, 10.05, 10.05, 4, 10.34, 4, 8.91, 10.05, 10.17}
	var claims []Claim
	for i, p := range percents {
		c := Claim{ID: id(fmt.Sprintf("f%02d", i)), Percent: p, Ordered: []int{i}}
		if i == 3 {
			c.Min, c.Ordered = 2, []int{3, 15}
		}
		c.Busy = c.Ordered
		claims = append(claims, c)
	}
	for range 4 {
		follow(t, h200, claims)
	}
	for i, c := range claims {
		if slices.Contains(c.Ordered, 15) != (i == 2) {
			t.Errorf("%v, of %v %%, is on groups %v; want the odd one given to the largest share", c.ID, c.Percent, c.Ordered)
		}
	}
	if got := sms(h200, claims[3].Ordered); got != 16 {
		t.Errorf("the one that needs two groups has %d multiprocessors, want 16", got)
	}
}

func TestDivideInfeasible(t *testing.T) {
	four := slices.Repeat([]int{8}, 4)
	for _, c := range []struct {
		name   string
		claims []Claim
		want   [][]int // groups of the second, after each division
	}{
		{"one that is free, at once", []Claim{
			{ID: id("a"), Percent: 25, Ordered: []int{0}}, {ID: id("b"), Percent: 25, Ordered: []int{2}, Infeasible: []int{2}},
			{ID: id("c"), Percent: 25, Ordered: []int{3}},
		}, [][]int{{1}, {1}}},
		{"one that a neighbour gives up, and gives the first away then", []Claim{
			{ID: id("a"), Percent: 75, Ordered: []int{0, 1, 3}}, {ID: id("b"), Percent: 25, Ordered: []int{2}, Infeasible: []int{2}},
		}, [][]int{{2}, {3}, {3}}},
		{"none where there is none: it stays", []Claim{
			{ID: id("a"), Percent: 25, Ordered: []int{0}}, {ID: id("b"), Percent: 25, Ordered: []int{1}, Infeasible: []int{1}},
			{ID: id("c"), Percent: 25, Ordered: []int{2}}, {ID: id("d"), Percent: 25, Ordered: []int{3}},
		}, [][]int{{1}, {1}}},
		{"a newcomer begins where it runs", []Claim{
			{ID: id("a"), Percent: 50, Ordered: []int{0}}, {ID: id("b"), Percent: 20, Infeasible: []int{1, 2}},
		}, [][]int{{3}, {3}}},
		{"a newcomer waits for where it runs", []Claim{
			{ID: id("a"), Percent: 75, Ordered: []int{0, 1, 3}}, {ID: id("b"), Percent: 25, Infeasible: []int{2}},
		}, [][]int{nil, {3}, {3}}},
		{"one that shrinks keeps it", []Claim{
			{ID: id("a"), Percent: 75, Ordered: []int{0, 1}}, {ID: id("b"), Percent: 20, Ordered: []int{2, 3}, Infeasible: []int{3}},
		}, [][]int{{2}, {2}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			claims := c.claims
			for i := range claims {
				claims[i].Busy = claims[i].Ordered
			}
			for i, want := range c.want {
				if follow(t, four, claims); !slices.Equal(claims[1].Ordered, want) {
					t.Errorf("division %d: groups %v, want %v; the others %+v", i+1, claims[1].Ordered, want, claims)
				}
			}
		})
	}
}

// 114 multiprocessors are 14 groups of 8, and 2.
func TestDivideTinyRemainder(t *testing.T) {
	h100 := append(slices.Repeat([]int{8}, 14), 2)
	orders := begin(t, h100, slices.Repeat([]float64{100.0 / 14}, 14)...)
	given := 0
	for _, o := range orders {
		if len(o.Target) == 2 {
			given++
		}
		if slices.Equal(o.Target, []int{14}) || slices.Equal(o.Now, []int{14}) {
			t.Errorf("%v is on the remainder alone", o.ID)
		}
	}
	if given != 0 {
		t.Errorf("%d have it, and nobody lacks it", given)
	}
	if o := begin(t, h100, 100)[0]; !slices.Contains(o.Target, 14) {
		t.Errorf("100 %% is %v, want the remainder among them", o.Target)
	}
	// A newcomer does not begin on it while the groups that come with it are others'.
	claims := settled(begin(t, h100, 97), 2)
	claims[0].Ordered = slices.DeleteFunc(claims[0].Ordered, func(g int) bool { return g == 14 })
	claims[0].Busy = claims[0].Ordered
	claims = append(claims, Claim{ID: id("new"), Percent: 98})
	for range 4 {
		orders, err := divide(h100, claims, nil)
		must.OK(t, err)
		if slices.Equal(orders[1].Now, []int{14}) {
			t.Error("a newcomer begins on the remainder alone")
		}
		for i, o := range orders {
			claims[i].Ordered, claims[i].Busy = o.Now, o.Now
		}
	}
	// If there are more claims than ordinary groups, one claim gets it alone.
	if orders := begin(t, h100, slices.Repeat([]float64{100.0 / 15}, 15)...); len(orders) != 15 {
		t.Errorf("%d orders", len(orders))
	}
}

// With groups of 2 multiprocessors the shares of 12 functions are met. Small changes of shares
// cause few moves.
func TestDivideSmallGroups(t *testing.T) {
	even := slices.Repeat([]int{2}, 66)
	percents := []float64{4, 11.8, 12.1, 4.4, 9.5, 9.5, 4, 10.3, 4, 8.9, 10, 10.2} // 98.7
	var claims []Claim
	for i, p := range percents {
		claims = append(claims, Claim{ID: id(fmt.Sprintf("f%02d", i)), Percent: p})
	}
	moves := 0
	divide := func() {
		t.Helper()
		for range 4 {
			orders, err := divide(even, claims, nil)
			must.OK(t, err)
			for i, o := range orders {
				if !slices.Equal(claims[i].Ordered, o.Now) {
					moves++
				}
				claims[i].Ordered, claims[i].Busy = o.Now, o.Now
			}
		}
	}
	const rounds = 500
	for round := range rounds {
		for i, p := range percents {
			// Up to a multiprocessor up and down, each in its own time.
			claims[i].Percent = p + 0.75*math.Sin(float64(round*(i+3))/7)
		}
		divide()
		for i, want := range newDivision(even, claims, nil).ideals {
			if got := sms(even, claims[i].Ordered); math.Abs(float64(got)-want) > 2 {
				t.Fatalf("round %d: %v has %d multiprocessors of the %.1f that it asks for", round, claims[i].ID, got, want)
			}
		}
	}
	t.Logf("%d moves", moves)
	if most := rounds * len(claims) / 6; moves > most {
		t.Errorf("%d moves in %d divisions among %d, want %d at most", moves, rounds, len(claims), most)
	}
}
