package aggregate

import (
	"testing"

	"github.com/penstock/penstock/wire"
)

func TestAnswerEarly(t *testing.T) {
	b := newHarness(t, nil)
	slot := b.whole(address(1), 1)
	held := b.a.Stats().HeldBytes
	credit := b.a.Credit(address(1))

	if r := b.answerEarly(slot); r.Credit != credit {
		t.Errorf("credit is %d with the answer, want %d as before: the slot is not free", r.Credit, credit)
	}
	if s := b.a.Stats(); s.HeldBytes != held || s.InFlight != 1 {
		t.Errorf("%d bytes held, %d slots in flight; want %d and 1", s.HeldBytes, s.InFlight, held)
	}

	t.Run("answered once", func(t *testing.T) {
		result := wire.Result{Status: wire.StatusOK}
		if _, ok := b.a.Origin(slot); ok {
			t.Error("the slot still has a request")
		}
		if b.a.End(b.now, slot, &result, nil, &b.events) || b.a.AnswerEarly(b.now, slot, &result) {
			t.Error("the request was ended twice")
		}
	})
	t.Run("answered again if asked", func(t *testing.T) {
		b.pass(2 * againAfter)
		e := b.send(address(1), fragment{id: 1, again: true})
		if len(e.Again) != 1 || e.Again[0].Status != wire.StatusLate || len(e.Complete) != 0 {
			t.Errorf("answered again %+v, whole %v; want late once", e.Again, e.Complete)
		}
	})
	t.Run("slot not reused", func(t *testing.T) {
		if other := b.whole(address(1), 2); other == slot {
			t.Errorf("slot %d was reused before it was free", slot)
		}
	})
	t.Run("freed once", func(t *testing.T) {
		before := b.a.Credit(address(1))
		if !b.free(slot) || b.free(slot) {
			t.Error("want the slot freed once")
		}
		if got := b.a.Credit(address(1)); got != before+1 {
			t.Errorf("credit is %d after Free, want %d", got, before+1)
		}
	})
	b.atEnd()
}
