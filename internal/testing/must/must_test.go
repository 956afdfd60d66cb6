package must

import (
	"errors"
	"testing"
)

// recorder keeps what a test fails with.
type recorder struct{ failed []any }

func (r *recorder) Helper() {}

func (r *recorder) Fatal(a ...any) { r.failed = append(r.failed, a...) }

func TestOK(t *testing.T) {
	r, err := &recorder{}, errors.New("no")
	OK(r, nil)
	if got := Get("value", error(nil))(r); got != "value" {
		t.Errorf("got %q", got)
	}
	OK(r, err)
	if len(r.failed) != 1 || r.failed[0] != err {
		t.Errorf("failed with %v, want %v once", r.failed, err)
	}
}
