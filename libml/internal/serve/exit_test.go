package serve

import (
	"errors"
	"testing"

	"github.com/penstock/penstock/internal/testing/functiontest"
)

func TestExit(t *testing.T) {
	other := errors.New("a later one")
	for _, c := range []struct {
		name    string
		request func(e *exit, err error)
		reason  func(e *exit) error
	}{
		{"failure", (*exit).fail, (*exit).failure},
		{"lost device", (*exit).loseDevice, (*exit).lostDevice},
		{"lost peer", (*exit).losePeer, (*exit).lostPeer},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := new(exit)
			if e.requested() || c.reason(e) != nil {
				t.Error("requested at first")
			}
			c.request(e, functiontest.ErrFake)
			c.request(e, other)
			if !e.requested() || c.reason(e) != functiontest.ErrFake {
				t.Errorf("requested %v because of %v, want the first error", e.requested(), c.reason(e))
			}
			reasons := 0
			for _, err := range []error{e.failure(), e.lostDevice(), e.lostPeer()} {
				if err != nil {
					reasons++
				}
			}
			if reasons != 1 {
				t.Errorf("%d reasons, want one", reasons)
			}
		})
	}
}
