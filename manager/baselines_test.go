package manager

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/shm"
	"github.com/penstock/penstock/wire"
)

// whole is a function without shares.
func whole(name string) configs.Function {
	return configs.Function{Name: name, Instances: 1, Change: configs.ChangeNone}
}

func TestAFunctionWithoutSharesMayUseTheWholeDevice(t *testing.T) {
	for name, node := range map[string]func() *nodeBed{
		"under MPS": func() *nodeBed {
			return newNode(t, "cuda", h200(), mechanismMPS, whole("a"), whole("b"), named("c", 30))
		},
		"on a CPU": func() *nodeBed { return newNode(t, "cpu", nil, "cgroup-v2", whole("a"), whole("b"), named("c", 30)) },
	} {
		b := node()
		b.turns()
		for _, p := range b.told.Processes {
			if none := p.IF != "c"; (p.SharePercent == 0) != none || none && len(p.SMGroups) > 0 {
				t.Errorf("%s: %s is desired with %v %% and groups %v", name, p.IF, p.SharePercent, p.SMGroups)
			}
		}
		s := b.status("a")
		if s.Change != "none" || s.SharePercent != 100 || !s.Instances[0].Whole || s.Instances[0].SharePercent != 100 {
			t.Errorf("%s: status says %+v", name, s)
		}
		if s := b.status("c"); s.Change == "none" || s.Instances[0].Whole || s.SharePercent != 30 {
			t.Errorf("%s: of c, status says %+v", name, s)
		}
		// Nobody gives it one by hand, and c may have all that there is to share.
		if err := b.setShare("a", 40); err == nil || !strings.Contains(err.Error(), "change is none") {
			t.Errorf("%s: a share by hand: %v", name, err)
		}
		if err := b.setShare("c", 100); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		// Nor does Algorithm 1.
		first, _ := b.serves("a")
		b.tune(time.Now().Add(time.Hour))
		b.turns()
		if next, _ := b.serves("a"); next != first || b.instance("a", 0).pair.Share() != 0 {
			t.Errorf("%s: generation %d became %d", name, first, next)
		}
		// A dead process's shadow takes over all the same.
		shadow, _ := b.shadow("a")
		_, p := b.serves("a")
		p.die(control.Failed, "killed")
		b.turns()
		if next, _ := b.serves("a"); next != shadow {
			t.Errorf("%s: generation %d took over, want its shadow, %d", name, next, shadow)
		}
		// Functions come, change their model and go.
		if err := b.add(whole("d")); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		b.turns()
		end, err := b.replace("d", "e")
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for range 3 {
			b.turns()
		}
		if err := <-end; err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if err := b.remove("a"); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		b.turns()
		if b.function("a") != nil {
			t.Errorf("%s: a is still there", name)
		}
	}
}

// Instances of a function without shares are alike, and so are used alike.
func TestInstancesWithoutSharesShareTheRequestsEvenly(t *testing.T) {
	f := whole("a")
	f.Instances = 3
	b := newNode(t, "cpu", nil, "cgroup-v2", f)
	b.turns()
	fn := b.function("a")
	for slot := range uint32(9) {
		fn.publish(fn.receivers[0], slot, 0)
	}
	for i, in := range fn.instances {
		if in.inFlight != 3 {
			t.Errorf("instance %d has %d requests of 9, want 3", i, in.inFlight)
		}
	}
	if got := fn.sharePercent(); got != 100 {
		t.Errorf("together they may use %v %%, want 100", got)
	}
}

func TestWithoutMPSByConfigurationNobodyHasAShare(t *testing.T) {
	alone := h200()
	alone.GroupSMs = nil
	b := newNode(t, "cuda", alone, mechanismTimeSlicing)
	b.cfg.MPS = false
	for _, name := range []string{"a", "b"} {
		if err := b.add(configs.Function{Name: name, Instances: 1}); err != nil {
			t.Fatal(err)
		}
	}
	b.turns()
	for _, p := range b.told.Processes {
		if p.SharePercent != 0 {
			t.Errorf("%s is desired with %v %%", p.IF, p.SharePercent)
		}
	}
	if s := b.status("a"); s.Change != "none" || s.SharePercent != 100 {
		t.Errorf("status says %+v", s)
	}
	other, _ := b.serves("b")
	next, _ := b.shadow("a")
	b.fault("a")
	b.turns()
	if got, _ := b.serves("b"); got != other {
		t.Error("b was swapped for a's fault")
	}
	if got, _ := b.serves("a"); got != next {
		t.Errorf("generation %d serves a, want its shadow, %d", got, next)
	}
	for says, f := range map[string]configs.Function{
		"change of function c": {Name: "c", Instances: 1, Change: configs.ChangeShadow},
		"share of function c":  {Name: "c", Instances: 1, SharePercent: 30},
	} {
		if err := b.add(f); err == nil || !strings.Contains(err.Error(), says) || !strings.Contains(err.Error(), "mps is false") {
			t.Errorf("added %+v: %v, want an error that says %q", f, err, says)
		}
	}
}

func TestAFixedBatchMustBeOneOfTheModels(t *testing.T) {
	fixed := func(size int, delay time.Duration) configs.Function {
		return configs.Function{Name: "a", Instances: 1, Batching: configs.Batching{Rule: configs.Fixed, Size: size, Delay: delay}}
	}
	b := newNode(t, "cpu", nil, "cgroup-v2")
	for _, c := range []struct {
		f    configs.Function
		says []string
	}{
		{fixed(3, 0), []string{"batching of a", "{fixed: 3, delay: 0s}", "[1 2 4]"}},
		{fixed(2, time.Hour), []string{"batching of a", "1m0s", "shorter"}},
		{configs.Function{Name: "a", Instances: 1, Batching: configs.Batching{Rule: "guess"}}, []string{"guess", "slab"}},
		{configs.Function{Name: "a", Instances: 1, Gather: configs.GatherCopy}, []string{"gather of function a", "cpu"}},
	} {
		err := b.add(c.f)
		for _, word := range c.says {
			if err == nil || !strings.Contains(err.Error(), word) {
				t.Errorf("%+v: error %v does not name %q", c.f, err, word)
			}
		}
	}
	b.cfg.HangTimeout = 5 * time.Millisecond
	if err := b.add(fixed(4, 5*time.Millisecond)); err == nil || !strings.Contains(err.Error(), "hang_timeout is 5ms") {
		t.Errorf("a delay as long as a batch may run: %v", err)
	}
	b.cfg.HangTimeout = 0
	if err := b.add(fixed(4, 5*time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if s := b.status("a"); s.Batching != "{fixed: 4, delay: 5ms}" || s.Late != "answer" || s.Gather != "" {
		t.Errorf("status says %+v", s)
	}
}

func TestAFunctionsOwnWayIsBeforeTheNodes(t *testing.T) {
	b := newNode(t, "cuda", h200(), mechanismMPS)
	b.cfg.Batching, b.cfg.Gather, b.cfg.Late = configs.Batching{Rule: configs.One}, configs.GatherCopy, configs.LateRun
	own := configs.Function{
		Name: "own", Instances: 1, Batching: configs.Batching{Rule: configs.AIMD}, Gather: configs.GatherKernel, Late: configs.LateAnswer, Streams: 2,
	}
	for _, f := range []configs.Function{{Name: "as", Instances: 1}, own} {
		if err := b.add(f); err != nil {
			t.Fatal(err)
		}
	}
	b.turns()
	got := []string{}
	for _, name := range []string{"as", "own"} {
		s := b.status(name)
		got = append(got, s.Batching, s.Gather, s.Late, s.Change)
	}
	if want := []string{"none", "copy", "run", "partition", "aimd", "kernel", "answer", "partition"}; !slices.Equal(got, want) {
		t.Errorf("status says %v, want %v", got, want)
	}
	if s := b.status("own"); s.Streams != 2 {
		t.Errorf("streams are %d, want 2", s.Streams)
	}
}

// Where every request is run, a backlog beyond capacity is no sign of a process that
// hangs; one that answers nothing is.
func TestALongBacklogIsNoHangWhileAnswersCome(t *testing.T) {
	for late, hangs := range map[configs.Late]bool{configs.LateRun: false, configs.LateAnswer: true} {
		b := newBed(t, testCard(), 100)
		b.late = late
		in, s := b.instances[0], b.dial()
		c := b.owner(0, 1)
		s.send(1)
		s.send(2)
		b.eventually("both are published", func() bool { return b.inFlight() == 2 })
		slots := b.take(c, 2)
		old := b.oldest(in)
		b.eventually("time moves on", func() bool { return shm.Now() > old+int64(time.Millisecond) })
		b.answer(c, slots[1:], nil)
		if e := s.next(); e.Status != wire.StatusOK {
			t.Fatalf("request %d is %v, want ok", e.Tag, e.Status)
		}
		answered := in.lastGood.Load()
		in.watch(max(old, answered-1) + 2*int64(b.hangTimeout))
		if hangs {
			if e := s.next(); e.Status != wire.StatusFailed {
				t.Errorf("late: %s: request %d is %v, want failed", late, e.Tag, e.Status)
			}
			continue
		}
		if n := b.inFlight(); n != 1 {
			t.Errorf("late: %s: %d requests in flight, want 1 still", late, n)
		}
		in.watch(answered + 2*int64(b.hangTimeout) + 1)
		if e := s.next(); e.Status != wire.StatusFailed {
			t.Errorf("late: %s: request %d is %v after long silence, want failed", late, e.Tag, e.Status)
		}
	}
}
