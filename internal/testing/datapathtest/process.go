// Package datapathtest has both ends of the data path for tests: clients that send requests to a
// port, and processes that answer them.
package datapathtest

import (
	"os"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/shm"
	"github.com/penstock/penstock/wire"
)

// Patience bounds waits for things that should happen at once, so that a hang fails the test.
const Patience = 30 * time.Second

// Queue is what a process needs of a dataplane.Queue.
type Queue interface {
	Files() []*os.File
	HandOver(generation uint32)
}

// Process is an inference function's end of a queue. The test is its thread.
type Process struct {
	*shm.Consumer
	t testing.TB
}

// Attach attaches to a queue as the process of a generation would.
func Attach(t testing.TB, q Queue, g shm.Geometry, generation uint32) *Process {
	t.Helper()
	files := q.Files()
	c, err := shm.NewConsumer(generation, g, dup(t, files[0]), dup(t, files[1]), dup(t, files[2]))
	must.OK(t, err)
	t.Cleanup(func() { c.Close() })
	return &Process{c, t}
}

// Own is Attach for a process that gets the ring at once. It locks the test to its thread.
func Own(t testing.TB, q Queue, g shm.Geometry, generation uint32) *Process {
	t.Helper()
	runtime.LockOSThread()
	t.Cleanup(runtime.UnlockOSThread)
	p := Attach(t, q, g, generation)
	q.HandOver(generation)
	p.TakeRing()
	return p
}

// TakeRing waits until the process has the ring.
func (p *Process) TakeRing() {
	p.t.Helper()
	if owned, err := p.Acquire(shm.Now() + int64(Patience)); !owned || err != nil {
		p.t.Fatalf("acquire: %v, %v", owned, err)
	}
}

// Await waits until n requests are published and takes them.
func (p *Process) Await(n int) []uint32 {
	p.t.Helper()
	slots, deadline := make([]uint32, n), shm.Now()+int64(Patience)
	taken := 0
	for taken < n {
		if shm.Now() > deadline {
			p.t.Fatalf("took %d requests, want %d", taken, n)
		}
		p.Wait(deadline)
		taken += p.Take(slots[taken:])
	}
	return slots
}

// Answer answers each of slots with payload and status ok.
func (p *Process) Answer(slots []uint32, payload []byte) {
	p.t.Helper()
	p.Start(slots)
	for _, slot := range slots {
		r := Honest(p.Request(slot).Complete, copy(p.ResultBuffer(slot), payload))
		for shm.Now() < r.Inferred {
		}
		p.Complete(slot, r)
	}
	p.Flush()
}

// Honest returns a valid result for a batch of one with payloadBytes of payload. Each stage takes
// a microsecond.
func Honest(complete int64, payloadBytes int) shm.Result {
	return shm.Result{
		Status: uint8(wire.StatusOK), Kind: uint8(wire.KindRaw), Batch: 1, ModelVersion: 7, Length: uint32(payloadBytes),
		Dispatched: complete + 1_000, Gathered: complete + 2_000, Inferred: complete + 3_000,
	}
}

func dup(t testing.TB, f *os.File) *os.File {
	t.Helper()
	raw, err := f.SyscallConn()
	must.OK(t, err)
	copied := -1
	must.OK(t, raw.Control(func(fd uintptr) { copied, err = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0) }))
	must.OK(t, err)
	return os.NewFile(uintptr(copied), f.Name())
}
