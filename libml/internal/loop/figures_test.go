package loop

import (
	"testing"

	"github.com/penstock/penstock/internal/testing/functiontest"
)

func TestFigures(t *testing.T) {
	h := newHarness(t, functiontest.Card())
	l := h.loop(h.Fake())
	if got := l.Figures(); got != (Figures{}) {
		t.Errorf("before the first batch the figures are %+v", got)
	}
	l.Queue.State.Limit = 2.5
	l.figures.publish(l.Queue)
	l.figures.ran.Add(3)
	l.figures.addHandover(100)
	l.figures.addHandover(200)
	want := Figures{Limit: 2.5, Tail: l.Queue.Expected(2), Ran: 3, Handovers: 2, IdleNanos: 200}
	if got := l.Figures(); got != want || got.Tail <= 0 {
		t.Errorf("figures are %+v, want %+v", got, want)
	}
}
