package sharing

import (
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/penstock/penstock/control/budget"
	"github.com/penstock/penstock/manager/policy/guarantee"
)

// A worker that hosts no process any more has no guarantee, so that its next member gets a new one.
func TestWorkersKeepOnly(t *testing.T) {
	w := newWorkers()
	for _, name := range []string{"left", "used"} {
		w.settle(name, time.Second, guarantee.Action{Guarantee: 0.3, Level: budget.MinLevel}, zerolog.Nop())
	}
	w.keepOnly(func(name string) bool { return name == "used" })
	if len(w.guarantees) != 1 || w.guarantees["used"].Guarantee != 0.3 {
		t.Errorf("guarantees %v, want only that of the worker in use", w.guarantees)
	}
}
