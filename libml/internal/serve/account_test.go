package serve

import (
	"testing"
	"time"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/internal/testing/functiontest"
	"github.com/penstock/penstock/internal/testing/must"
)

// A process measures costs before it serves, if there are guarantees.
func TestMeasureAlone(t *testing.T) {
	h := newGPUHarness(t, functiontest.Card())
	h.wake = control.Order{Level: 1, GuaranteePercent: 50}
	h.GPU.Late.Store(int64(time.Millisecond))
	account := h.linked(h.Fake()).newAccount()
	for _, n := range h.Card.Batches {
		if alone := account.Time(n); alone < 100*time.Microsecond {
			t.Errorf("a batch of %d takes %v alone, want about 1 ms between several", n, alone)
		}
	}
}

// TestAccountEnds drains members of a worker before they get the ring.
func TestAccountEnds(t *testing.T) {
	w := newWorker(t, "")
	h := newGPUHarness(t, functiontest.Card())
	h.worker = w
	f := h.Fake()
	c := h.start(1, f.Build, nil)
	c.await(control.Loaded)
	c.order(control.Order{Do: control.DoWake, Level: 3, GuaranteePercent: 30})
	c.await(control.Ready)
	accounts := w.Balance.Accounts
	if n := accounts(); n != 1 {
		t.Errorf("%d accounts share the balance, want that of the member", n)
	}
	c.order(control.Order{Do: control.DoDrain})
	must.OK(t, c.end())
	if n := accounts(); n != 0 {
		t.Errorf("%d accounts of ended members share the balance", n)
	}
}
