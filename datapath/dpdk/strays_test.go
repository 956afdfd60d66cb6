//go:build dpdk && cgo

package dpdk

import (
	"net/netip"
	"testing"
	"time"

	"github.com/penstock/penstock/datapath/dpdk/frame"
	"github.com/penstock/penstock/internal/testing/ingesttest"
	"github.com/penstock/penstock/internal/testing/wait"
)

// A sender of frames that no function takes, faster than the group's thread handles them,
// loses only such frames. It takes no function's mbufs.
func TestStraysUnread(t *testing.T) {
	b := newBed(t, Options{Mbufs: 1024})
	s := b.listen(9000)
	stray := frame.NewResponder(frame.Host{MAC: clientMAC, Addresses: []netip.Addr{client4.Addr()}}, nil).Announcements()[0]
	copy(stray[38:42], own4.AsSlice()) // it asks for our address
	func() {
		b.senders[0].mu.Lock() // the group's own thread gets no further than the first
		defer b.senders[0].mu.Unlock()
		for put := 0; put < 3000; {
			wait.For(t, "room on the wire", func() bool {
				n, err := b.wire.Put(b.pool, 0, stray)
				put += n
				return err == nil
			})
		}
		b.send(s, client4, []byte("a function's"))
		release(s, ingesttest.Receive(t, s, 1, 1)...)
	}()
	b.eventually("each is counted", func() bool {
		stats := b.Group.Stats()
		return stats.Frames[frame.ARP]+stats.Missed == 3000 && stats.Missed > 0
	})
}

// A driver that does not release a device that has disappeared is asked once.
func TestReleasePortTwice(t *testing.T) {
	b := newBed(t, Options{})
	done := make(chan struct{})
	go func() {
		b.letGo()
		b.letGo()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(ingesttest.Patience):
		t.Fatal("it waits for a poller that has stopped")
	}
}
