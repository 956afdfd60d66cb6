package nodetest

import (
	"fmt"
	"os"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/penstock/penstock/internal/testing/must"
)

// Place is a network namespace. A thread inside it keeps it alive.
type Place struct {
	Path string // of the namespace, for ip link set ... netns
	jobs chan func()
}

// NewPlace makes a network namespace that ends with the test, and also a mount namespace if prepare is not nil.
// Prepare runs inside before everything else.
func NewPlace(t testing.TB, prepare func() error) *Place {
	t.Helper()
	p := &Place{jobs: make(chan func())}
	made := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread, and with it the namespace, ends with the goroutine
		made <- func() error {
			flags := unix.CLONE_NEWNET
			if prepare != nil {
				flags |= unix.CLONE_NEWNS
			}
			if err := unix.Unshare(flags); err != nil {
				return fmt.Errorf("make a network namespace: %w", err)
			}
			p.Path = fmt.Sprintf("/proc/%d/task/%d/ns/net", os.Getpid(), unix.Gettid())
			if prepare != nil {
				return prepare()
			}
			return nil
		}()
		for job := range p.jobs {
			job()
		}
	}()
	must.OK(t, <-made)
	t.Cleanup(func() { close(p.jobs) })
	return p
}

// Do runs job in the place's network; processes that it starts are in that network, too.
func (p *Place) Do(job func()) {
	done := make(chan struct{})
	p.jobs <- func() {
		defer close(done)
		job()
	}
	<-done
}
