//go:build cgo

package onnx

import (
	"errors"
	"runtime"
	"testing"

	"pgregory.net/rapid"

	"github.com/penstock/penstock/cuda"
	"github.com/penstock/penstock/internal/testing/cudafake"
	"github.com/penstock/penstock/internal/testing/must"
)

// bound locks the test to its thread and binds it to the fake's context, until the test ends.
func bound(t *testing.T) *cuda.Context {
	t.Helper()
	cudafake.Check(t)
	cudafake.Reset()
	runtime.LockOSThread()
	devices, err := cuda.Devices()
	must.OK(t, err)
	c, err := devices[0].OpenContext()
	if err == nil {
		err = c.Bind()
	}
	must.OK(t, err)
	t.Cleanup(func() {
		cudafake.Reset()
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		runtime.UnlockOSThread()
	})
	return c
}

func somePool(t *testing.T, c *cuda.Context) *pool {
	t.Helper()
	p, err := newPool(c.Device())
	must.OK(t, err)
	t.Cleanup(func() {
		if err := p.close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

const mebi = 1 << 20

func TestPoolAllocations(t *testing.T) {
	c := bound(t)
	rapid.Check(t, func(t *rapid.T) {
		p, err := newPool(c.Device())
		must.OK(t, err)
		defer p.close()
		live := allocations{}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			if len(live) > 0 && rapid.Bool().Draw(t, "give back") {
				live.releaseOne()
				continue
			}
			bytes := rapid.IntRange(1, 5*mebi).Draw(t, "bytes")
			at := p.allocate(bytes)
			live.check(t, at, bytes)
			live[at] = bytes
			write(t, at, bytes)
		}

		used := live.used()
		if s := p.readState(); s.used != used || s.mapped < used || s.peak < used || s.refused != nil {
			t.Fatalf("%+v, used %d", s, used)
		}
		p.trim(0)
		for at, bytes := range live {
			write(t, at, bytes)
		}
		if s := p.readState(); s.mapped < used {
			t.Fatalf("trim left %d bytes for %d", s.mapped, used)
		}
	})
}

// allocations are those of a pool that were not released: addresses and lengths.
type allocations map[cuda.Pointer]int

// releaseOne releases any one of them.
func (a allocations) releaseOne() {
	for at := range a {
		release(at)
		delete(a, at)
		return
	}
}

// used returns the bytes of all, in units of the pool's alignment.
func (a allocations) used() (sum int64) {
	for _, bytes := range a {
		sum += int64((bytes + 511) &^ 511)
	}
	return sum
}

// check fails if a new allocation overlaps another, is not aligned, or does not lie as low as
// it could.
func (a allocations) check(t *rapid.T, at cuda.Pointer, bytes int) {
	end := cuda.Pointer(0) // of the highest allocation
	for other, n := range a {
		if at < other+cuda.Pointer(n) && other < at+cuda.Pointer(bytes) {
			t.Fatalf("%d bytes at %#x lie in %d at %#x", bytes, at, n, other)
		}
		end = max(end, other+cuda.Pointer(n))
	}
	if at == 0 || at%512 != 0 {
		t.Fatalf("%d bytes at %#x", bytes, at)
	}
	if end > 0 && at > end+511 {
		t.Fatalf("%#x, though all above %#x is free", at, end)
	}
}

// write fails if the allocation has no memory.
func write(t *rapid.T, at cuda.Pointer, bytes int) {
	s := cuda.Stream{}
	must.OK(t, errors.Join(s.Set(at, 1, bytes), s.Synchronize()))
}

func TestPoolTrim(t *testing.T) {
	p := somePool(t, bound(t))
	first, second := p.allocate(4*mebi), p.allocate(3*mebi)
	if s := p.readState(); s.mapped != 8*mebi || s.peak != 7*mebi {
		t.Errorf("%+v", s)
	}
	release(first)
	p.trim(0)
	if s := p.readState(); s.mapped != 4*mebi || s.used != 3*mebi || s.peak != 7*mebi {
		t.Errorf("after trim: %+v", s)
	}
	release(second)
	p.resetPeak()
	if s := p.readState(); s.used != 0 || s.peak != 0 {
		t.Errorf("when all is given back: %+v", s)
	}
	if again := p.allocate(mebi); again != first {
		t.Errorf("%#x and not %#x", again, first)
	}
}

// Without memory a pool returns nothing, and reports the reason, until the next mark.
func TestPoolWithoutMemory(t *testing.T) {
	p := somePool(t, bound(t))
	kept := p.allocate(2 * mebi)
	cudafake.Set(t, cudafake.Memory(8*mebi))
	at := p.allocate(64 * mebi)
	if s := p.readState(); !errors.Is(s.refused, cuda.ErrOutOfMemory) || at != 0 || s.mapped != 2*mebi {
		t.Errorf("%#x, %+v", at, s)
	}
	if at := p.allocate(2 * mebi); at != 0 {
		t.Errorf("%#x after a refusal", at)
	}
	null := cuda.Stream{}
	if err := errors.Join(null.Set(kept, 2, 2*mebi), null.Synchronize()); err != nil {
		t.Error(err)
	}
	p.resetPeak()
	cudafake.Reset()
	if at := p.allocate(64 * mebi); at == 0 || p.readState().refused != nil || p.readState().mapped != 66*mebi {
		t.Errorf("with memory again: %#x, %+v", at, p.readState())
	}
}

func TestPoolWithoutAddresses(t *testing.T) {
	c := bound(t)
	cudafake.Set(t, cudafake.Refuse("cuMemAddressReserve", 0, cuda.OutOfMemory))
	defer cudafake.Reset()
	if _, err := newPool(c.Device()); !errors.Is(err, cuda.ErrOutOfMemory) {
		t.Errorf("no addresses: %v", err)
	}
}
