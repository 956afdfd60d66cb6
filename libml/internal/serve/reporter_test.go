package serve

import (
	"testing"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/libml/gate"
)

func TestReporter(t *testing.T) {
	h := newHarness(t, testCard())
	l := h.loop(newFake())
	l.p.start.Generation = 9
	r := &l.reporter
	if got, want := r.report(5), (control.Report{Generation: 9, CPUNanos: 5}); got != want {
		t.Errorf("report before the first batch is %+v, want %+v", got, want)
	}
	l.queue.State.Limit = 2.5
	r.publish(l.queue)
	r.ran.Add(3)
	r.account = gate.NewAccount(0, gate.Config{Level: 3, Exclusive: true, Times: times(8, 0, 2), Size: 1})
	for _, demoted := range []bool{false, true} {
		r.account.End(2, demoted, 0, 4)
	}
	r.addHandover(100)
	r.addHandover(200)
	got := r.report(6)
	want := control.Report{
		Generation: 9, CPUNanos: 6, Limit: 2.5, Ran: 3, TailNanos: int64(l.queue.Expected(2)),
		DeviceNanos: 8, DemotedNanos: 4, EachNanos: 2, Handovers: 2, IdleNanos: 200,
	}
	if got != want || got.TailNanos <= 0 {
		t.Errorf("report is %+v, want %+v", got, want)
	}
}
