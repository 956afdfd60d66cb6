//go:build cgo

package onnx

import (
	"errors"
	"runtime"
	"strings"
	"testing"

	"github.com/penstock/penstock/cuda"
	"github.com/penstock/penstock/internal/testing/cudafake"
	"github.com/penstock/penstock/internal/testing/must"
)

// The smallest size serves before the others are linked. Linking these uses no memory of its
// lane.
func TestSmallestRunsWhileOthersLink(t *testing.T) {
	const small, rest = 1, 2
	entered, gate := make(chan struct{}), make(chan struct{})
	p := &played{}
	made := 0
	p.unmade = func(settings) error {
		p.mu.Lock()
		made++
		n := made
		p.mu.Unlock()
		if n == small+rest {
			close(entered)
			<-gate
		}
		return nil
	}
	r := newRig(t, p)
	r.loaded()
	if _, err := r.f.LinkModel(); err != nil {
		t.Fatal(err)
	}
	if p.sessions != small {
		t.Fatalf("%d sessions when the model is linked, want one", p.sessions)
	}
	one, four := r.tensors(1), r.tensors(4)
	r.configure(0, 1, one)
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		_, err := r.f.ConfigureBatch(0, 4, four.inputs, four.outputs)
		done <- err
	}()
	<-entered
	for i := range byte(20) {
		r.fillWith(one, i)
		r.infer(0, 1)
		if got := r.output(one); !all(got, i) {
			t.Errorf("answered %v while others are linked, want %d", got, i)
		}
	}
	before := r.gpu.scratch[0].readState().mapped
	close(gate)
	must.OK(t, <-done)
	if p.sessions != small+rest {
		t.Errorf("%d sessions for %v", p.sessions, r.card.Batches)
	}
	if after := r.gpu.scratch[0].readState(); after.used != 0 || before == 0 {
		t.Errorf("lane %+v, %d bytes before", after, before)
	}
	r.fillWith(four, 8)
	r.infer(0, 4)
	if got := r.output(four); !all(got, 8) {
		t.Errorf("answered %v", got)
	}
	if n := strings.Count(r.log.String(), "batch size linked"); n != small+rest {
		t.Errorf("%d sizes in the log: %s", n, r.log.String())
	}
}

// A size that cannot be linked releases itself and the larger ones.
func TestLinkFailureKeepsSmallerSizes(t *testing.T) {
	p := &played{weights: 8 * mebi, scratch: 24 * mebi}
	r := newRig(t, p)
	r.card.Batches = []int{1, 2, 4, 8}
	r.gpu.env.Threads = 1
	r.loaded()
	if _, err := r.f.LinkModel(); err != nil {
		t.Fatal(err)
	}
	for _, n := range []int{1, 2} {
		r.tensors(n)
	}
	two, four := r.tensors(2), r.tensors(4)
	cudafake.Set(t, cudafake.Memory(cudafake.Now().Taken()+80*mebi)) // a session of 2 and its try, not of 4
	r.configure(0, 2, two)
	if len(r.gpu.sizes) != 2 || p.sessions != 2 {
		t.Errorf("%d sizes and %d sessions, want 1 and 2", len(r.gpu.sizes), p.sessions)
	}
	if _, err := r.f.ConfigureBatch(0, 4, four.inputs, four.outputs); !errors.Is(err, cuda.ErrOutOfMemory) {
		t.Errorf("got %v", err)
	}
	r.fillWith(two, 2)
	r.infer(0, 2)
	if got := r.output(two); !all(got, 2) {
		t.Errorf("answered %v", got)
	}
	cudafake.Reset() // there is memory again
	r.configure(0, 4, four)
	if len(r.gpu.sizes) != 4 {
		t.Errorf("%d sizes, want all", len(r.gpu.sizes))
	}
}

func TestPersistentBytes(t *testing.T) {
	r := newRig(t, &played{weights: 3 * mebi})
	r.loaded()
	persistent, err := r.f.LinkModel()
	must.OK(t, err)
	// 4 MiB for 3, in each of three sessions.
	if persistent < 12*mebi || persistent > 16*mebi {
		t.Errorf("%d bytes", persistent)
	}
}

// capturer is a backend that notices sessions that are made, run or closed next to a capture, and
// captures next to those. capturing is the lock that prevents both.
type capturer struct {
	*played
	t        *testing.T
	captures int
}

func (b *capturer) session(model []byte, s settings, weights *pool) (session, error) {
	b.held("a session is made")
	made, err := b.newSession(s, weights)
	if err != nil {
		return nil, err
	}
	return &capturerSession{made, b}, nil
}

// held fails the test if another thread could begin a capture now.
func (b *capturer) held(what string) {
	if capturing.TryLock() {
		capturing.Unlock()
		b.t.Errorf("%s while a capture may begin", what)
	}
}

type capturerSession struct {
	*playedSession
	b *capturer
}

func (s *capturerSession) close() {
	s.b.held("a session is closed")
	s.playedSession.close()
}

func (s *capturerSession) bind(inputs, outputs []place) (binding, error) {
	b, err := s.playedSession.bind(inputs, outputs)
	return &capturerBinding{b, s.b}, err
}

type capturerBinding struct {
	binding
	b *capturer
}

func (b *capturerBinding) run(scratch *pool) error {
	b.b.held("a session runs")
	if capturing.TryRLock() {
		capturing.RUnlock()
	} else {
		b.b.mu.Lock()
		b.b.captures++
		b.b.mu.Unlock()
	}
	return b.binding.run(scratch)
}

// Whatever may wait for the whole device waits for the captures of other models in the process.
func TestCapturesAlone(t *testing.T) {
	p := &played{optimised: []byte("optimised")}
	r := newRig(t, p)
	c := &capturer{played: p, t: t}
	r.gpu.backend = c
	r.linked()
	four := r.tensors(4)
	r.configure(0, 4, four)
	r.infer(0, 4)
	r.end()
	if want := len(r.card.Batches) + 1; c.captures != want {
		t.Errorf("%d captures, want %d: of each size, and over libml's buffers", c.captures, want)
	}
}
