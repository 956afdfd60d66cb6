package fleet

import (
	"errors"
	"fmt"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"pgregory.net/rapid"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/wait"
	"github.com/penstock/penstock/manager/policy/gslice"
	"github.com/penstock/penstock/manager/policy/partition"
	"github.com/penstock/penstock/manager/sharing"
	"github.com/penstock/penstock/models"
)

func TestShadowTakesGroups(t *testing.T) {
	b := newNode(t, "cuda", h200(), sharing.MechanismMPS, named("a", 40), named("b", 60))
	b.turns()
	dead, p := b.serves("a")
	groups := slices.Clone(p.on)
	next, _ := b.shadow("a")
	// Its connection breaks first. The orchestrator has not observed its end yet; until then
	// no other instance gets its groups.
	b.instance("a", 0).lost(dead)
	b.turn()
	if s, _ := b.shadow("a"); s != next {
		t.Errorf("shadow %d, want %d to wait for the orchestrator's word", s, next)
	}
	b.instance("a", 0).endAwait(dead)
	b.turns()
	serves, p := b.serves("a")
	if serves != next || !slices.Equal(p.on, groups) {
		t.Errorf("generation %d serves on %v, want %d on %v", serves, p.on, next, groups)
	}
	if s, shadow := b.shadow("a"); s == next || shadow.state != control.Loaded {
		t.Errorf("shadow %d %+v, want another", s, shadow)
	}
}

func TestNewFunctionAwaitsGroups(t *testing.T) {
	b := newNode(t, "cuda", h200(), sharing.MechanismMPS, wanting("a", 100))
	b.turns()
	b.stuck = true
	must.OK(t, b.add(wanting("new", 50)))
	b.turns()
	in := b.instance("new", 0)
	if got := b.ordered("new"); in.pair.Active() != nil || len(got) != 0 {
		t.Fatalf("it is ordered %v, and a has not left anything", got)
	}
	for _, d := range b.told.Processes {
		if d.IF == "new" && (d.Role != control.Shadow || d.SMGroups != nil) {
			t.Errorf("desired %+v, want it loaded and not woken", d)
		}
	}
	b.stuck = false
	b.turns()
	if _, p := b.serves("new"); len(p.on) == 0 {
		t.Error("it serves on nothing")
	}
}

// If shares are not tuned, shares that were set by hand are the desired shares. That includes
// a share that was set while the function's model was loading.
func TestSharesByHandPersist(t *testing.T) {
	b := newNode(t, "cuda", h200(), sharing.MechanismMPS, wanting("a", 50), wanting("b", 50))
	b.cfg.Shares.Tune = false
	b.turns()
	must.OK(t, b.add(wanting("new", 50)))
	want := map[string]float64{"a": 30, "b": 20, "new": 40}
	for _, name := range []string{"a", "b", "new"} {
		must.OK(t, b.setShare(name, want[name]))
	}
	b.turns()
	b.serves("new")
	for name, percent := range want {
		if got := b.instance(name, 0).pair.Share(); got != percent {
			t.Errorf("%s has %v %%, want the %v that it was given", name, got, percent)
		}
	}
	must.OK(t, b.remove("a"))
	b.turns()
	if got := b.instance("b", 0).pair.Share(); got != 20 {
		t.Errorf("b has %v %% when a has gone, want the 20 that it was given", got)
	}
}

func TestAddWithoutGroup(t *testing.T) {
	two := h200()
	two.GroupSMs, two.SMs = []int{8, 8}, 16
	b := newNode(t, "cuda", two, sharing.MechanismMPS, named("a", 30), named("b", 30))
	b.turns()
	err := b.add(named("c", 30))
	if !errors.Is(err, partition.ErrTooMany) || !strings.Contains(err.Error(), "change: shadow") {
		t.Errorf("error %v, want ErrTooMany that names `change: shadow`", err)
	}
	b.turns()
	b.serves("a")
	shadows := named("c", 30)
	shadows.Change = configs.ChangeShadow
	if err := b.add(shadows); err != nil {
		t.Errorf("one on percentages needs no group: %v", err)
	}
	b.turns()
	b.serves("c")
	if err := b.add(configs.Function{Name: "d", Instances: 1, Change: configs.ChangeInPlace}); err == nil || !strings.Contains(err.Error(), "partition") {
		t.Errorf("in place on a GPU: error %v, want one that says what would be right", err)
	}
}

// One edit of the configuration may remove one function and add another.
func TestAddAwaitsGroups(t *testing.T) {
	two := h200()
	two.GroupSMs, two.SMs = []int{8, 8}, 16
	b := beganWith(t, "cuda", two, named("a", 30), named("b", 30))
	must.OK(t, b.edited(named("b", 30), named("c", 30)))
	b.turns()
	b.serves("b")
	b.serves("c")
}

// ordered are the groups that instance 0 of a function was ordered to.
func (b *nodeBed) ordered(name string) []int { return b.status(name).Instances[0].SMGroups }

// moving reports whether instance 0 of a function does not run on its groups.
func (b *nodeBed) moving(name string) bool {
	b.t.Helper()
	_, p := b.serves(name)
	return !slices.Equal(p.groups(), b.ordered(name))
}

// modelNeeds sets the minimum number of groups for the models of these names.
func (b *nodeBed) modelNeeds(groups map[string]int) {
	b.needs = func(v victim) int {
		if in := b.instance(v.IF, v.Instance); in != nil {
			if q := in.pair.Process(v.generation); q != nil {
				return groups[q.Card.Name]
			}
		}
		return 0
	}
}

// full returns 12 functions that share an H200 of 16 groups; the last has 3 %.
func full() (functions []configs.Function) {
	for i := range 11 {
		functions = append(functions, named(fmt.Sprintf("f%02d", i), 8.5))
	}
	return append(functions, named("vgg", 3))
}

// While another instance must leave first, the manager starts no process that could not run.
func TestMinimumHoldsStart(t *testing.T) {
	b := newNode(t, "cuda", h200(), sharing.MechanismMPS, named("big", 94), named("vgg", 3))
	b.modelNeeds(map[string]int{"vgg": 3})
	// Repeat until vgg's first process has failed on all groups that are available to it.
	for range 8 {
		b.turn()
	}
	b.stuck = true
	b.turns()
	if q := b.instance("vgg", 0).pair.Active(); q != nil {
		t.Fatalf("generation %d serves", q.Generation)
	}
	began := b.instance("vgg", 0).pair.Last()
	b.turns()
	if now := b.instance("vgg", 0).pair.Last(); now != began {
		t.Errorf("%d processes were started to fail on what is too few", now-began)
	}
	b.stuck = false
	b.turns()
	b.turns()
	if _, p := b.serves("vgg"); len(p.groups()) != 3 {
		t.Errorf("it serves on groups %v, want three", p.groups())
	}
}

// The learned minimum can be any number: the process has run on more groups.
func TestShrinkStopsAtMinimum(t *testing.T) {
	for _, needs := range []int{3, 6} {
		t.Run(fmt.Sprint(needs), func(t *testing.T) {
			b := newNode(t, "cuda", h200(), sharing.MechanismMPS, named("a", 60), named("b", 30))
			b.modelNeeds(map[string]int{"a": needs})
			b.turns()
			first, _ := b.serves("a")
			other, _ := b.serves("b")
			in := b.instance("a", 0)
			setShare(in, 4)
			for range 3 {
				b.turns()
			}
			if next, p := b.serves("a"); next != first || len(p.groups()) != needs || b.moving("a") {
				t.Errorf("generation %d serves on groups %v, want %d on %d of those that it had", next, p.groups(), first, needs)
			}
			// Other functions get the groups that it does not need.
			setShare(b.instance("b", 0), 96)
			b.turns()
			if next, p := b.serves("b"); next != other || len(p.groups()) != 16-needs {
				t.Errorf("generation %d of the other serves on groups %v, want %d on all that are left", next, p.groups(), other)
			}
			setShare(b.instance("b", 0), 30)
			setShare(in, 50)
			b.turns()
			if _, p := b.serves("a"); b.sms(p.groups()) < 60 {
				t.Errorf("it is on groups %v for 50 %%", p.groups())
			}
		})
	}
}

// If a model fails on four groups too, the cause is in the model.
func TestModelRunsNowhere(t *testing.T) {
	b := newNode(t, "cuda", h200(), sharing.MechanismMPS, named("a", 3), named("b", 60))
	b.modelNeeds(map[string]int{"a": 99, "worse": 99})
	for range 4 {
		b.turns()
	}
	in := b.instance("a", 0)
	if got := b.ordered("a"); in.pair.Active() != nil || len(got) != 4 {
		t.Errorf("active %v, ordered %v; want none, on four at most", in.pair.Active(), got)
	}
	if in.failures.reason == "" {
		t.Error("it does not say why")
	}
	// A replacement that runs on no number of groups is given up and forgotten.
	was, _ := b.serves("b")
	end, err := b.replace("b", "worse")
	must.OK(t, err)
	b.needs = func(victim) int { return 99 }
	b.givenUp(end, tooFew)
	if now, _ := b.serves("b"); now != was {
		t.Errorf("generation %d serves; want %d, as before", now, was)
	}
}

// onGroups lets a model fail on sets of groups, as a process reports it.
func (b *nodeBed) onGroups(unfit func(name string, groups []int) bool) {
	b.needs = func(v victim) int {
		if p := b.fakes[v]; p != nil && unfit(v.IF, p.to) {
			return len(p.to) + 1
		}
		return 0
	}
}

// Groups differ: one may span two of the GPU's processing clusters. A model that failed on
// one begins on two groups, and gives up the first while it serves.
func TestInfeasibleGroup(t *testing.T) {
	b := newNode(t, "cuda", h200(), sharing.MechanismMPS, full()...)
	bad := -1
	b.onGroups(func(name string, groups []int) bool {
		if name == "vgg" && bad < 0 {
			bad = groups[0]
		}
		return name == "vgg" && slices.Equal(groups, []int{bad})
	})
	for range 3 {
		b.turns()
	}
	generation, p := b.serves("vgg")
	if generation != 2 || len(p.groups()) != 1 || p.groups()[0] == bad {
		t.Errorf("generation %d serves on groups %v, want the second on one that is not %d", generation, p.groups(), bad)
	}
	if b.moving("vgg") {
		t.Errorf("ordered %v, and on others; want it settled on one", b.ordered("vgg"))
	}
	// Its successor also begins there, on one group.
	b.fakes[victim{gslice.ID{IF: "vgg"}, generation}].die(control.Failed, "killed")
	b.instance("vgg", 0).lost(generation)
	b.instance("vgg", 0).endAwait(generation)
	was := slices.Clone(b.ordered("vgg"))
	for range 12 {
		b.turn()
		if got := b.ordered("vgg"); !slices.Equal(got, was) {
			t.Fatalf("ordered %v after a death, want %v", got, was)
		}
	}
	if next, p := b.serves("vgg"); next != 3 || !slices.Equal(p.groups(), was) {
		t.Errorf("generation %d serves on %v, want the third on %v", next, p.groups(), was)
	}
}

// alike gives these functions the same model.
func alike(b *nodeBed, functions ...string) {
	find := b.find
	b.find = func(name string) (*models.Card, error) {
		if slices.Contains(functions, name) {
			name = functions[0]
		}
		return find(name)
	}
}

func TestMinimumOfSameModel(t *testing.T) {
	for _, c := range []struct {
		name  string
		needs int
		want  int // groups of the second
		began uint32
	}{
		{"that it needs two groups", 2, 2, 1},
		{"which group does not do", 1, 1, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newNode(t, "cuda", h200(), sharing.MechanismMPS, named("a", 40), named("vgg", 3))
			alike(b, "vgg", "vgg-2")
			bad := -1
			b.onGroups(func(name string, groups []int) bool {
				if bad < 0 && name != "a" {
					bad = groups[0]
				}
				return name != "a" && (slices.Equal(groups, []int{bad}) || len(groups) < c.needs)
			})
			for range 4 {
				b.turns()
			}
			must.OK(t, b.add(named("vgg-2", 3)))
			for range 4 {
				b.turns()
			}
			if g, p := b.serves("vgg-2"); g != c.began || len(p.groups()) != c.want || slices.Equal(p.groups(), []int{bad}) {
				t.Errorf("generation %d serves on %v, want the first on %d, not on %d alone", g, p.groups(), c.want, bad)
			}
		})
	}
}

func TestMinimumForgotten(t *testing.T) {
	b := newNode(t, "cuda", h200(), sharing.MechanismMPS, full()...)
	b.modelNeeds(map[string]int{"vgg": 2, "two": 2})
	b.turns()
	b.turns()
	for _, c := range []struct {
		model string
		want  int
	}{{"small", 1}, {"two", 2}, {"smaller", 1}} {
		end, err := b.replace("vgg", c.model)
		must.OK(t, err)
		for range 4 {
			b.turns()
		}
		select {
		case err := <-end:
			if err != nil {
				t.Errorf("%s: %v", c.model, err)
			}
		case <-time.After(patience):
			t.Fatalf("%s does not come up", c.model)
		}
		b.turn() // records its end
		if _, p := b.serves("vgg"); len(p.groups()) != c.want {
			t.Errorf("%s serves on groups %v, want %d", c.model, p.groups(), c.want)
		}
	}
}

func TestNoGroupsLeft(t *testing.T) {
	var functions []configs.Function
	for i := range len(h200().GroupSMs) - 1 {
		functions = append(functions, named(fmt.Sprintf("f%02d", i), 5))
	}
	b := newNode(t, "cuda", h200(), sharing.MechanismMPS, append(functions, named("vgg", 5))...)
	b.modelNeeds(map[string]int{"vgg": 2, "two": 2})
	for range 3 {
		b.turns()
	}
	in := b.instance("vgg", 0)
	if in.pair.Active() != nil || in.pair.Last() < 3 {
		t.Errorf("active %v, %d generations; want one that fails again and again", in.pair.Active(), in.pair.Last())
	}
	for _, f := range functions {
		if g, _ := b.serves(f.Name); g != 1 {
			t.Errorf("%s: generation %d serves, want the first", f.Name, g)
		}
	}
	// A replacement without enough groups is given up.
	end, err := b.replace("f03", "two")
	must.OK(t, err)
	b.givenUp(end, tooFew)
	if g, _ := b.serves("f03"); g != 1 {
		t.Errorf("generation %d serves in place of the first", g)
	}
	// A removed function frees its groups.
	must.OK(t, b.remove("f07"))
	for range 3 {
		b.turns()
	}
	if _, p := b.serves("vgg"); len(p.groups()) != 2 {
		t.Errorf("it serves on groups %v; want two", p.groups())
	}
	if err := b.add(named("f07", 5)); !errors.Is(err, partition.ErrTooMany) || !strings.Contains(err.Error(), "need more than one group") {
		t.Errorf("another one where a model needs the group: error %v", err)
	}
}

// If no process serves, the new process starts with its smallest batch size and gets the
// others later. A shadow that replaces a serving process has all of them first.
func TestPartialWarmup(t *testing.T) {
	b := newNode(t, "cuda", h200(), sharing.MechanismMPS, named("a", 50))
	b.small = true
	b.turns()
	first, p := b.serves("a")
	in := b.instance("a", 0)
	s := b.status("a").Instances[0].Processes[0]
	if !p.early || !slices.Equal(s.Batches, []int{1}) || !s.WarmingUp {
		t.Errorf("%+v, status %+v, want it to serve with batches of 1", p, s)
	}
	if got := in.f.memory.ephemeralBytes; got != 1 {
		t.Errorf("%d bytes of a batch, want the smallest one's", got)
	}
	// Its performance until then is no reason to change its share.
	b.reports(in, control.Report{Generation: first, Limit: 1, Fit: control.FitUnder})
	if fit := b.status("a").Fit; fit != control.FitUnknown {
		t.Errorf("fit %q while it grows", fit)
	}
	b.small = false
	b.turns()
	if s := b.status("a").Instances[0].Processes[0]; !slices.Equal(s.Batches, testCard().Batches) || s.WarmingUp {
		t.Errorf("status %+v, want all batch sizes", s)
	}
	if got := in.f.memory.ephemeralBytes; got != 3 {
		t.Errorf("%d bytes of a batch, want the largest one's", got)
	}
	b.small = true
	in.pair.Renew()
	b.turns()
	next, p := b.serves("a")
	if next == first || p.early {
		t.Errorf("generation %d %+v, want another, whole from the beginning", next, p)
	}
	b.fakes[victim{gslice.ID{IF: "a"}, next}].die(control.Failed, "killed")
	b.instance("a", 0).lost(next)
	b.instance("a", 0).endAwait(next)
	b.turns()
	if _, p := b.serves("a"); !p.early || !b.status("a").Instances[0].Processes[0].WarmingUp {
		t.Errorf("%+v, want it early after a death", p)
	}
}

// A process reports its hand-overs: the first gave it the ring, each later one was a move.
func TestMovesAreSwaps(t *testing.T) {
	b := newNode(t, "cuda", h200(), sharing.MechanismMPS, named("a", 50))
	b.turns()
	generation, _ := b.serves("a")
	in := b.instance("a", 0)
	report := func(handovers uint64, idle int64) {
		in.report(generation, control.Report{Generation: generation, Handovers: handovers, IdleNanos: idle})
	}
	report(1, 40_000)
	report(1, 40_000)
	report(2, 5_000)
	report(2, 5_000)
	report(4, 7_000) // two at once: only the last one's time is known
	report(5, -1)    // no work waited
	if got := in.f.swaps.Count; got != 4 {
		t.Errorf("%d swaps, want 4 moves", got)
	}
	if got := in.f.swaps.Idle(); got.Count != 3 || got.Last != 7 || got.Max != 40 {
		t.Errorf("idle times %+v, want 40, 5 and 7 µs", got)
	}
	page := httptest.NewRecorder()
	promhttp.HandlerFor(b.metrics.Registry, promhttp.HandlerOpts{}).ServeHTTP(page, httptest.NewRequest("GET", "/metrics", nil))
	for _, want := range []string{
		`penstock_swap_idle_seconds_count{function="a",mechanism="shadow"} 1`,
		`penstock_swap_idle_seconds_count{function="a",mechanism="partition"} 2`,
	} {
		if !strings.Contains(page.Body.String(), want+"\n") {
			t.Errorf("metrics have no %s:\n%s", want, page.Body)
		}
	}
}

// In any order of events and with any delay, no two instances share a group. At the end every
// instance serves on the groups that were ordered for it.
func TestNodeComesToRest(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		b := newNode(t, "cuda", h200(), sharing.MechanismMPS)
		b.log = b.log.Level(5)
		names, need := []string{"a", "b", "c"}, map[string]int{}
		bad := map[string][]int{}
		b.needs = func(v victim) int {
			if p := b.fakes[v]; len(p.to) == 1 && slices.Contains(bad[v.IF], p.to[0]) {
				return max(2, need[v.IF])
			}
			return need[v.IF]
		}
		for range rapid.IntRange(5, 30).Draw(r, "events") {
			name := rapid.SampledFrom(names).Draw(r, "function")
			f := b.functions.find(name)
			switch rapid.SampledFrom([]string{"add", "share", "remove", "break", "kill", "stuck", "free", "replace", "lose", "need", "unfit"}).Draw(r, "event") {
			case "add":
				if f == nil {
					must.OK(t, b.add(named(name, 30)))
				}
			case "share":
				if f != nil {
					setShare(f.instances[0], float64(rapid.IntRange(5, 33).Draw(r, "percent")))
				}
			case "remove":
				if f != nil && !f.removing {
					must.OK(t, b.remove(name))
				}
			case "break":
				if f != nil {
					if q := f.instances[0].pair.Active(); q != nil {
						f.instances[0].lost(q.Generation)
					}
				}
			case "kill", "lose":
				if vs := b.sorted(); len(vs) > 0 {
					v := rapid.SampledFrom(vs).Draw(r, "victim")
					if p := b.fakes[v]; !p.state.Ended() {
						p.lost = len(p.groups()) > 0 && rapid.Bool().Draw(r, "lost")
						p.die(control.Failed, "killed")
					}
				}
			case "stuck":
				b.stuck = true
			case "free":
				b.stuck = false
			case "need":
				need[name] = rapid.IntRange(0, 4).Draw(r, "groups")
			case "unfit":
				bad[name] = rapid.SliceOfN(rapid.IntRange(0, 15), 0, 8).Draw(r, "unfit")
			case "replace":
				if f != nil && !f.removing {
					f.replace(testCard(), f.config, nil, func(error) {})
				}
			}
			for range rapid.IntRange(0, 3).Draw(r, "turns") {
				b.turn()
			}
		}
		b.stuck = false
		for _, f := range b.functions {
			b.devices[0].faults.guard.Forget(f.name)
			f.release()
		}
		b.turns()
		rest := func() bool {
			return !slices.ContainsFunc(b.functions, func(f *function) bool { return !f.instances.serving() || f.removing || b.moving(f.name) })
		}
		wait.Until(func() bool {
			b.turn() // the manager believes some ends only after a while
			return rest()
		})
		for _, f := range b.functions {
			_, p := b.serves(f.name)
			if want := b.ordered(f.name); len(want) == 0 || !slices.Equal(p.groups(), want) {
				t.Fatalf("%s runs on %v, want %v", f.name, p.groups(), want)
			}
		}
		b.Close()
		if t.Failed() {
			r.Fatal("see above")
		}
	})
}
