package serve

import (
	"errors"
	"testing"

	"github.com/penstock/penstock/internal/testing/functiontest"
)

func TestExit(t *testing.T) {
	e := new(exit)
	if e.requested() || e.failed.get() != nil {
		t.Error("requested at first")
	}
	e.end(&e.failed, functiontest.ErrFake)
	e.end(&e.failed, errors.New("a later one"))
	if !e.requested() || e.failed.get() != functiontest.ErrFake {
		t.Errorf("requested %v because of %v, want the first error", e.requested(), e.failed.get())
	}
	if e.deviceLost.get() != nil || e.peerGone.get() != nil {
		t.Errorf("other reasons: %v, %v", e.deviceLost.get(), e.peerGone.get())
	}
}
