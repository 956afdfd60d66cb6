//go:build cgo

package onnx

import (
	"runtime"

	"github.com/penstock/penstock/cuda"
)

// thread is an operating system's thread that is bound to a context. ONNX Runtime
// keeps state by thread (handles of cuBLAS and cuDNN), so that a session is made,
// run and given back by one.
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

// do has the thread do f and waits. One goroutine at a time.
func (t *thread) do(f func() error) error {
	t.work <- f
	return <-t.done
}

// end ends the thread, and returns when it has.
func (t *thread) end() {
	close(t.work)
	<-t.done
}
