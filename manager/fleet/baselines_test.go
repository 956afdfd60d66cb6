package fleet

import (
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/client"
	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/control/runclock"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/manager/sharing"
)

// whole is a function without a share, for a node without shares.
func whole(name string) configs.Function { return configs.Function{Name: name, Instances: 1} }

// withoutShares turns shares off on a node without functions, and adds functions.
func withoutShares(b *nodeBed, functions ...configs.Function) *nodeBed {
	b.cfg.Lab.Change = configs.ChangeNone
	for _, f := range functions {
		must.OK(b.t, b.add(f))
	}
	return b
}

func TestWithoutShares(t *testing.T) {
	for name, node := range map[string]func() *nodeBed{
		"under MPS": func() *nodeBed {
			return withoutShares(newNode(t, "cuda", h200(), sharing.MechanismMPS), whole("a"), whole("b"))
		},
		"on a CPU": func() *nodeBed { return withoutShares(newNode(t, "cpu", nil, "cgroup-v2"), whole("a"), whole("b")) },
	} {
		b := node()
		b.turns()
		for _, p := range b.told.Processes {
			if p.SharePercent != 0 || len(p.SMGroups) > 0 {
				t.Errorf("%s: %s is desired with %v %% and groups %v", name, p.IF, p.SharePercent, p.SMGroups)
			}
		}
		s := b.status("a")
		if s.Change != "none" || s.SharePercent != 100 || !s.Instances[0].WholeDevice || s.Instances[0].SharePercent != 100 {
			t.Errorf("%s: status says %+v", name, s)
		}
		// An operator cannot set a share.
		if err := b.setShare("a", 40); err == nil || !strings.Contains(err.Error(), "change is none") {
			t.Errorf("%s: a share by hand: %v", name, err)
		}
		if err := b.add(named("c", 30)); err == nil || !strings.Contains(err.Error(), "share_percent of function c is 30 %") {
			t.Errorf("%s: a function with a share: %v", name, err)
		}
		// Algorithm 1 sets none either.
		first, _ := b.serves("a")
		b.sharing.started = b.sharing.started.Add(-time.Hour)
		b.Tune()
		b.turns()
		if next, _ := b.serves("a"); next != first || b.instance("a", 0).pair.Share() != 0 {
			t.Errorf("%s: generation %d became %d", name, first, next)
		}
		// The shadow of a dead process still takes over.
		shadow, _ := b.shadow("a")
		_, p := b.serves("a")
		p.die(control.Failed, "killed")
		b.turns()
		if next, _ := b.serves("a"); next != shadow {
			t.Errorf("%s: generation %d took over, want its shadow, %d", name, next, shadow)
		}
		// Functions are added, replaced and removed.
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
		if b.functions.find("a") != nil {
			t.Errorf("%s: a is still there", name)
		}
	}
}

// Instances of a function without shares are equal, so they get equally many requests.
func TestWithoutSharesEvenLoad(t *testing.T) {
	f := whole("a")
	f.Instances = 3
	b := withoutShares(newNode(t, "cpu", nil, "cgroup-v2"), f)
	b.turns()
	fn := b.functions.find("a")
	bed := &bed{fn, t}
	s := bed.dial()
	for tag := range uint64(9) {
		s.Send(tag)
	}
	bed.eventually("all are published", func() bool { return fn.port.InFlight() == 9 })
	for i, in := range fn.instances {
		if n := in.queue.Arrivals(); n != 3 {
			t.Errorf("instance %d has %d requests of 9, want 3", i, n)
		}
	}
	if got := b.status("a").SharePercent; got != 100 {
		t.Errorf("together they may use %v %%, want 100", got)
	}
}

func TestFixedBatchFitsModel(t *testing.T) {
	b := newNode(t, "cpu", nil, "cgroup-v2")
	b.cfg.Lab.Batching = control.Batching{Rule: control.BatchFixed, Size: 3}
	if err := b.add(whole("a")); err == nil || !strings.Contains(err.Error(), "want one of the model's, [1 2 4]") {
		t.Errorf("batches of 3: %v", err)
	}
	b.cfg.Lab.Batching.Size = 4
	must.OK(t, b.add(whole("a")))
	b.turns()
	other := testCard()
	other.Name, other.Version, other.Batches = "other", 9, []int{1, 8}
	if err := b.functions.find("a").takes(other, whole("a")); err == nil || !strings.Contains(err.Error(), "[1 8]") {
		t.Errorf("a model without batches of 4: %v", err)
	}
}

// If every request is run, a backlog beyond capacity does not prove that a process
// hangs. A process without any answer does hang.
func TestLongBacklog(t *testing.T) {
	for runLate, hangs := range map[bool]bool{true: false, false: true} {
		cfg := configs.Default()
		cfg.Lab.RunLate = runLate
		b := newBed(t, cfg, 100)
		in, s := b.instances[0], b.dial()
		c := b.owner(0, 1)
		s.Send(1)
		s.Send(2)
		b.eventually("both are published", func() bool { return b.port.InFlight() == 2 })
		slots := c.Await(2)
		old := in.queue.Oldest()
		b.eventually("time moves on", func() bool { return runclock.Now() > old+time.Millisecond })
		c.Answer(slots[1:], nil)
		if e := s.Next(); e.Status != client.StatusOK {
			t.Fatalf("request %d is %v, want ok", e.Tag, e.Status)
		}
		var answered time.Duration
		b.eventually("the answer is noted", func() bool {
			answered = in.queue.LastGood()
			return answered != 0
		})
		in.watch(max(old, answered-1) + 2*b.hangTimeout)
		if hangs {
			if e := s.Next(); e.Status != client.StatusFailed {
				t.Errorf("late requests are run, %v: request %d is %v, want failed", runLate, e.Tag, e.Status)
			}
			continue
		}
		if n := b.port.InFlight(); n != 1 {
			t.Errorf("late requests are run, %v: %d requests in flight, want 1 still", runLate, n)
		}
		in.watch(answered + 2*b.hangTimeout + 1)
		if e := s.Next(); e.Status != client.StatusFailed {
			t.Errorf("late requests are run, %v: request %d is %v after long silence, want failed", runLate, e.Tag, e.Status)
		}
	}
}
