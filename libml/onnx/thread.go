//go:build cgo

package onnx

import (
	"runtime"

	"github.com/penstock/penstock/cuda"
)

// thread is an operating system thread that is bound to a context. ONNX Runtime keeps state
// per thread (handles of cuBLAS and cuDNN), so one thread makes, runs and closes a session.
type thread struct {
	work chan func() error
	done chan error
}

func newThread(c *cuda.Context) (*thread, error) {
	t := &thread{work: make(chan func() error), done: make(chan error)}
	go t.loop(c)
	if err := <-t.done; err != nil {
		return nil, err
	}
	return t, nil
}

func (t *thread) loop(c *cuda.Context) {
	runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
	err := c.Bind()
	t.done <- err
	if err != nil {
		return
	}
	for f := range t.work {
		t.done <- f()
	}
	close(t.done)
}

// do calls f on the thread, and waits. Only one goroutine may call it at a time.
func (t *thread) do(f func() error) error {
	t.work <- f
	return <-t.done
}

// end ends the thread, and waits for its end.
func (t *thread) end() {
	close(t.work)
	<-t.done
}

// closeElsewhere closes a context on another thread: Close unbinds its thread, and the
// caller's thread belongs to libml's device.
func closeElsewhere(c *cuda.Context) error {
	t, err := newThread(c)
	if err != nil {
		return err
	}
	defer t.end()
	return t.do(c.Close)
}
