package udp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/penstock/penstock/datapath/ingest"
	"github.com/penstock/penstock/datapath/slab"
	"github.com/penstock/penstock/internal/testing/ingesttest"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/shm"
)

// openMembers opens n sources of one port, to be closed when the test ends.
func openMembers(t *testing.T, o Options, n int) []*Source {
	t.Helper()
	if !o.Listen.IsValid() {
		o.Listen = loopback4
	}
	all, err := Open(o, n)
	must.OK(t, err)
	t.Cleanup(func() {
		for _, s := range all {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		}
		for _, s := range all {
			if err := s.CloseSlab(); err != nil {
				t.Error(err)
			}
		}
	})
	return all
}

// clientOf returns a client whose datagrams go to that member.
func clientOf(t *testing.T, all []*Source, member int) client {
	t.Helper()
	for range 1000 {
		c := newClient(t, reachable(all[0].LocalAddr()))
		c.send([]byte("whose"))
		if memberOf(t, all) == member {
			return c
		}
		c.Close()
	}
	t.Fatalf("none of 1000 clients comes to member %d", member)
	return client{}
}

func reachable(to netip.AddrPort) netip.AddrPort {
	if to.Addr().IsUnspecified() {
		return netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), to.Port())
	}
	return to
}

// memberOf receives the one datagram that is there, and returns the member that received it.
func memberOf(t *testing.T, all []*Source) int {
	t.Helper()
	batch := make([]ingest.Datagram, 2)
	for deadline := time.Now().Add(ingesttest.Patience); time.Now().Before(deadline); {
		for i, s := range all {
			n, err := s.Receive(batch, 1)
			must.OK(t, err)
			if n > 0 {
				ingesttest.Release(s, batch[0])
				return i
			}
		}
	}
	t.Fatal("a datagram came to nobody")
	return 0
}

// Each member of a port passes the suite of a single source.
func TestMembersPassTheSuite(t *testing.T) {
	const members = 3
	for name, member := range map[string]int{"first": 0, "last": members - 1} {
		t.Run(name, func(t *testing.T) {
			open := func(t *testing.T, slabBytes int, payloads [][]byte) ingesttest.Twin {
				t.Helper()
				all, err := Open(Options{Listen: loopback4, SlabBytes: members * slabBytes}, members)
				must.OK(t, err)
				c := clientOf(t, all, member)
				for i, s := range all {
					if i == member {
						continue
					}
					t.Cleanup(func() {
						if err := errors.Join(s.Close(), s.CloseSlab()); err != nil {
							t.Error(err)
						}
					})
				}
				s := all[member]
				twin := ingesttest.CloseAtEnd(t, ingesttest.Twin{Source: fresh{s, s.Stats()}, CloseSlab: s.CloseSlab, From: c.addr(), Sent: c.receive})
				c.send(payloads...)
				return twin
			}
			ingesttest.Run(t, ingesttest.Kind{
				Open:      open,
				OpenQuiet: func(t *testing.T) ingesttest.Twin { return open(t, 1<<20, nil) },
			})
		})
	}
}

// fresh counts from the time when the test's client was found.
type fresh struct {
	*Source
	before ingest.Stats
}

func (f fresh) Stats() ingest.Stats {
	s := f.Source.Stats()
	s.Datagrams -= f.before.Datagrams
	s.Bytes -= f.before.Bytes
	return s
}

// All datagrams of a client go to one member, every member has clients, and each member
// receives into its own part of the one slab.
func TestAClientStaysWithOneMember(t *testing.T) {
	const members, clients, each, size = 3, 48, 20, 500
	listen := map[string]netip.AddrPort{"IPv4": loopback4, "v4 any": netip.MustParseAddrPort("0.0.0.0:0")}
	if hasIPv6() {
		listen["IPv6"] = netip.MustParseAddrPort("[::1]:0")
		listen["v4 on dual"] = netip.MustParseAddrPort("[::]:0")
	}
	for name, at := range listen {
		t.Run(name, func(t *testing.T) {
			all := openMembers(t, Options{Listen: at, SlabBytes: members << 20, RecvBuffer: 4 << 20}, members)
			part := uint64(all[0].slab.Room())
			for i, s := range all {
				if s.LocalAddr() != all[0].LocalAddr() || s.Slab().File() != all[0].Slab().File() {
					t.Errorf("member %d listens on %v, with a slab of its own: %v", i, s.LocalAddr(), s.Slab().File().Name())
				}
			}
			var senders []client
			for range clients {
				senders = append(senders, newClient(t, reachable(all[0].LocalAddr())))
			}
			payload := make([]byte, size)
			for n := range each {
				for i, c := range senders {
					binary.LittleEndian.PutUint32(payload, uint32(i))
					binary.LittleEndian.PutUint32(payload[4:], uint32(n))
					c.send(payload)
				}
			}
			owner, got := map[uint32]int{}, map[uint32]int{}
			batch := make([]ingest.Datagram, 64)
			left := clients * each
			for deadline := time.Now().Add(ingesttest.Patience); left > 0; {
				if time.Now().After(deadline) {
					t.Fatalf("%d datagrams did not come", left)
				}
				for i, s := range all {
					n, err := s.Receive(batch, 1)
					must.OK(t, err)
					for _, d := range batch[:n] {
						if lo := uint64(i) * part; d.First.Offset < lo || d.First.Offset >= lo+part {
							t.Errorf("member %d received to %d, its part is %d to %d", i, d.First.Offset, lo, lo+part)
						}
						b := ingesttest.Payload(s, d)
						id, number := binary.LittleEndian.Uint32(b), binary.LittleEndian.Uint32(b[4:])
						if had, known := owner[id]; known && had != i {
							t.Errorf("client %d came to member %d, and before to %d", id, i, had)
						}
						if owner[id] = i; int(number) != got[id] {
							t.Errorf("datagram %d of client %d came as number %d", number, id, got[id])
						}
						got[id]++
						if d.From != senders[id].addr() {
							t.Errorf("datagram of %v comes from %v", senders[id].addr(), d.From)
						}
						left--
					}
					for _, d := range batch[:n] {
						ingesttest.Release(s, d)
					}
				}
			}
			var sum ingest.Stats
			for i, s := range all {
				have := s.Stats()
				if have.Datagrams == 0 {
					t.Errorf("member %d has no client of %d", i, clients) // 3 × (2/3)^48
				}
				sum.Datagrams += have.Datagrams
				sum.Bytes += have.Bytes
				sum.SlabBytes += have.SlabBytes
			}
			if sum.Datagrams != clients*each || sum.Bytes != clients*each*size || sum.SlabBytes != uint64(all[0].Slab().Size()) {
				t.Errorf("the members count %+v, want %d datagrams of %d bytes, and a slab of %d", sum, clients*each, size, all[0].Slab().Size())
			}
		})
	}
}

// A port in use is refused, whether its holder has one socket or several, and whether it
// allows sharing or not.
func TestSeveralPortTaken(t *testing.T) {
	for name, n := range map[string]int{"one": 1, "several": 3} {
		holder := openMembers(t, Options{SlabBytes: 1 << 20}, n)
		at := holder[0].LocalAddr()
		for _, m := range []int{1, 2} {
			_, err := Open(Options{Listen: at, SlabBytes: 1 << 20}, m)
			if !errors.Is(err, unix.EADDRINUSE) || !strings.Contains(err.Error(), "in use by another process") {
				t.Errorf("%d sources on a port that %s has: %v, want that it is taken", m, name, err)
			}
		}
	}
	// Another socket that allows sharing.
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	must.OK(t, err)
	defer unix.Close(fd)
	address, err := bindAddress(loopback4)
	if err = errors.Join(err, share(fd), unix.Bind(fd, address)); err != nil {
		t.Fatal(err)
	}
	bound, err := unix.Getsockname(fd)
	must.OK(t, err)
	at := boundAddress(bound, "")
	for _, n := range []int{1, 2} {
		if _, err := Open(Options{Listen: at, SlabBytes: 1 << 20}, n); !errors.Is(err, unix.EADDRINUSE) {
			t.Errorf("%d sources on a port that a stranger shares: %v, want that it is taken", n, err)
		}
	}
}

// Another process is refused too, as with a single source.
func TestSeveralPortExclusive(t *testing.T) {
	if at := os.Getenv("PENSTOCK_TEST_TAKEN"); at != "" {
		_, err := Open(Options{Listen: netip.MustParseAddrPort(at), SlabBytes: 1 << 20}, 2)
		if !errors.Is(err, unix.EADDRINUSE) {
			t.Fatalf("opened %s: %v, want that it is taken", at, err)
		}
		return
	}
	all := openMembers(t, Options{SlabBytes: 1 << 20}, 3)
	cmd := exec.Command(os.Args[0], "-test.run=^TestSeveralPortExclusive$", "-test.v")
	cmd.Env = append(os.Environ(), "PENSTOCK_TEST_TAKEN="+all[0].LocalAddr().String())
	if out, err := cmd.CombinedOutput(); err != nil || !bytes.Contains(out, []byte("--- PASS")) {
		t.Errorf("the other process: %v\n%s", err, out)
	}
}

// No datagram reaches a socket before the last is bound: the kernel would assign the client
// to another socket later.
func TestSeveralBindFirst(t *testing.T) {
	s := &Source{socket: -1, event: -1}
	must.OK(t, s.listen(Options{Listen: loopback4, RecvBuffer: 1 << 18}, 0, 2))
	defer s.closeDescriptors()
	c := newClient(t, s.LocalAddr())
	c.send([]byte("early"))
	var b [16]byte
	if _, _, err := unix.Recvfrom(s.socket, b[:], unix.MSG_DONTWAIT); !errors.Is(err, unix.EAGAIN) {
		t.Errorf("the first socket received before the second was bound: %v", err)
	}
	must.OK(t, unix.SetsockoptInt(s.socket, unix.SOL_SOCKET, unix.SO_DETACH_FILTER, 0))
	c.send([]byte("late"))
	polls := []unix.PollFd{{Fd: int32(s.socket), Events: unix.POLLIN}}
	timeout := unix.NsecToTimespec(int64(ingesttest.Patience))
	must.Get(ppoll(polls, &timeout))(t)
	if n, _, err := unix.Recvfrom(s.socket, b[:], unix.MSG_DONTWAIT); err != nil || string(b[:n]) != "late" {
		t.Errorf("received %q, %v", b[:n], err)
	}
}

// A member whose part is full does not take the others' room.
func TestAFullPartIsItsMembersAlone(t *testing.T) {
	all := openMembers(t, Options{SlabBytes: 2 * slab.MinBytes}, 2)
	from := []client{clientOf(t, all, 0), clientOf(t, all, 1)}
	batch := make([]ingest.Datagram, 64)
	var held []ingest.Datagram
	for deadline := time.Now().Add(ingesttest.Patience); all[0].Stats().NoRoom == 0; {
		if time.Now().After(deadline) {
			t.Fatal("the first part does not fill")
		}
		from[0].send(make([]byte, 8000))
		n, err := all[0].Receive(batch, shm.Now()+int64(10*time.Millisecond))
		must.OK(t, err)
		held = append(held, slices.Clone(batch[:n])...)
	}
	from[1].send([]byte("room"))
	d := ingesttest.Receive(t, all[1], 1, 1)[0]
	if got := string(ingesttest.Payload(all[1], d)); got != "room" {
		t.Errorf("received %q", got)
	}
	func() {
		defer func() {
			if p := recover(); p != slab.ErrReleasedTwice {
				t.Errorf("releasing another member's datagram: %v, want %v", p, slab.ErrReleasedTwice)
			}
		}()
		ingesttest.Release(all[0], d)
	}()
	ingesttest.Release(all[1], d)
	for _, d := range held {
		ingesttest.Release(all[0], d)
	}
	for i, s := range all {
		if held := s.Stats().HeldBytes; held != 0 {
			t.Errorf("%d bytes of member %d are held", held, i)
		}
	}
}

func TestOpenSeveralRefuses(t *testing.T) {
	for _, n := range []int{-1, 0, maxSources + 1} {
		if _, err := Open(Options{Listen: loopback4}, n); err == nil || !strings.Contains(err.Error(), "1 to 16") {
			t.Errorf("%d sources: %v, want how many there may be", n, err)
		}
	}
	if _, err := Open(Options{Listen: loopback4, SlabBytes: 2*slab.MinBytes - 1}, 2); err == nil || !strings.Contains(err.Error(), "2 parts") {
		t.Errorf("parts that are too small: %v", err)
	}
}
