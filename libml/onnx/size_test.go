//go:build cgo

package onnx

import (
	"errors"
	"testing"
	"time"

	"github.com/penstock/penstock/cuda"
	"github.com/penstock/penstock/internal/testing/cudafake"
)

func TestSessionPerSize(t *testing.T) {
	r := newRig(t, &played{weights: 3 * mebi}).linked()
	if r.played.sessions != 3 {
		t.Errorf("%d sessions for %v", r.played.sessions, r.card.Batches)
	}
	streams := map[cuda.Stream]bool{}
	for _, s := range r.played.made {
		streams[s.stream] = true
		if s.nhwc || s.tf32 {
			t.Errorf("f32 with %+v", s)
		}
	}
	if len(streams) != 3 {
		t.Errorf("%d streams", len(streams))
	}
}

// ONNX Runtime does some work in the first run of a session. That run must not be a capture.
func TestOneTimeWork(t *testing.T) {
	r := newRig(t, &played{once: true, weights: 4096}).linked()
	b := r.tensors(2)
	r.configure(0, 2, b)
	r.infer(0, 2)
	if got := r.output(b); !all(got, 5) {
		t.Errorf("answered %v", got)
	}
}

func TestFailedSessionWithQueuedWork(t *testing.T) {
	r := newRig(t, &played{})
	r.gpu.backend = &strict{played: r.played, fails: func(settings) bool { return true }}
	r.loaded()
	cudafake.Apply(t, cudafake.Late(20*time.Millisecond))
	if _, err := r.f.LinkModel(); err == nil || errors.Is(err, cuda.ErrLost) {
		t.Errorf("got %v", err)
	}
	time.Sleep(100 * time.Millisecond) // the late work has run
	if cudafake.Now().Lost != 0 {
		t.Error("the device is lost")
	}
}
