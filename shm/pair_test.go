package shm

import (
	"os"
	"slices"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/testing/must"
	"golang.org/x/sys/unix"
)

var testGeometry = Geometry{Slots: 16, MaxFragments: 4, ResultBytes: 100, PoolBytes: 16 * 128}

// pair is both ends of a channel in one process.
type pair struct {
	g       Geometry
	table   *Table
	channel *Channel
}

type failer interface {
	Helper()
	Fatal(...any)
	Fatalf(string, ...any)
}

func newPair(t *testing.T, g Geometry) *pair {
	t.Helper()
	p := makePair(t, g)
	t.Cleanup(p.close)
	return p
}

func makePair(t failer, g Geometry) *pair {
	t.Helper()
	table, err := NewTable("test", g)
	must.OK(t, err)
	channel, err := NewChannel("test", g)
	must.OK(t, err)
	return &pair{g: g, table: table, channel: channel}
}

func (p *pair) close() {
	p.channel.Close()
	p.table.Close()
}

// consumer attaches, as another process would.
func (p *pair) consumer(t *testing.T, generation uint32) *Consumer {
	t.Helper()
	c := p.attach(t, generation)
	t.Cleanup(func() { c.Close() })
	return c
}

func (p *pair) attach(t failer, generation uint32) *Consumer {
	t.Helper()
	c, err := NewConsumer(generation, p.g, dup(t, p.table.File()), dup(t, p.channel.RingFile()), dup(t, p.channel.RepliesFile()))
	must.OK(t, err)
	return c
}

func dup(t failer, f *os.File) *os.File {
	t.Helper()
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	must.OK(t, err)
	return os.NewFile(uintptr(fd), f.Name())
}

// owner is a consumer that the epoch names and that owns the ring.
func (p *pair) owner(t *testing.T, generation uint32) *Consumer {
	t.Helper()
	c := p.consumer(t, generation)
	p.channel.SetEpoch(generation)
	acquire(t, c)
	return c
}

func acquire(t failer, c *Consumer) {
	t.Helper()
	ok, err := c.Acquire(Now() + int64(patience))
	if !ok || err != nil {
		t.Fatalf("acquire: %v, %v", ok, err)
	}
}

func (p *pair) publish(slots ...uint32) {
	for _, slot := range slots {
		p.table.SetRequest(slot, Request{ID: 1000 + slot})
		p.channel.Publish(slot)
	}
}

// take takes what is published.
func take(c *Consumer) []uint32 {
	dst := make([]uint32, c.g.Slots)
	return dst[:c.Take(dst)]
}

// received is what Receive returns now.
func (p *pair) received(t failer) []uint32 {
	t.Helper()
	var all []uint32
	for {
		dst := make([]uint32, 3)
		n, err := p.channel.Receive(dst, Now())
		must.OK(t, err)
		if n == 0 {
			return all
		}
		all = append(all, dst[:n]...)
	}
}

func complete(c *Consumer, slots ...uint32) {
	c.Start(slots)
	for _, slot := range slots {
		c.Complete(slot, Result{Status: 0, Length: 1})
	}
	c.Flush()
}

func wantSlots(t *testing.T, what string, got []uint32, want ...uint32) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}

// soon runs f and fails the test if it does not return.
func soon(t *testing.T, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
	case <-time.After(patience):
		t.Fatalf("%s does not return", what)
	}
}
