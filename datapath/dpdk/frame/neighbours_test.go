package frame

import (
	"encoding/binary"
	"net/netip"
	"sync"
	"testing"

	"pgregory.net/rapid"
)

func address(i int) netip.Addr {
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], 10<<24|uint32(i))
	return netip.AddrFrom4(b)
}

func linkTo(i int) *Link {
	return &Link{Peer: MAC{2, 0, 0, byte(i >> 16), byte(i >> 8), byte(i)}, Own: ownMAC}
}

// Unless a set overflows, the table behaves like a map.
func TestNeighboursAreAMap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		type path struct {
			link Link
			own  netip.Addr
		}
		table, model := NewNeighbours(ways), map[netip.Addr]path{}
		for now := range int64(rapid.IntRange(1, 60).Draw(t, "steps")) {
			addr := address(rapid.IntRange(0, ways-1).Draw(t, "address"))
			link := linkTo(rapid.IntRange(0, 3).Draw(t, "link"))
			old, has := model[addr]
			switch rapid.IntRange(0, 3).Draw(t, "what") {
			case 0: // a datagram
				table.Learn(addr, link, own4, now)
				model[addr] = path{*link, own4}
			case 1: // ARP for one of ours
				table.Learn(addr, link, netip.Addr{}, now)
				model[addr] = path{*link, old.own}
			case 2: // other ARP
				table.update(addr, link, now)
				if has {
					model[addr] = path{*link, old.own}
				}
			}
			var got path
			var ok bool
			got.link, got.own, ok = table.Find(addr)
			if want, has := model[addr]; ok != has || got != want {
				t.Fatalf("%v is at %v %v, want %v %v", addr, got, ok, want, has)
			}
		}
	})
}

// An active client is remembered, however many strangers came before, and even
// if as many as a set holds come after. The addresses seen longest ago are
// dropped first.
func TestWhoTalksIsRemembered(t *testing.T) {
	table := NewNeighbours(256)
	now := int64(0)
	for i := range 20_000 {
		now++
		table.Learn(address(i), linkTo(2), netip.Addr{}, now)
	}
	for i := range 1000 {
		now++
		table.Learn(client4, linkTo(i), netip.Addr{}, now)
		for j := range ways - 1 {
			now++
			table.Learn(address(100_000+i*ways+j), linkTo(2), netip.Addr{}, now)
		}
		if l, _, ok := table.Find(client4); !ok || l != *linkTo(i) {
			t.Fatalf("the client is at %v, %v", l, ok)
		}
	}
}

func TestALearnerSparesTheTable(t *testing.T) {
	table := NewNeighbours(64)
	l := Learner{Table: table}
	d := Datagram{From: netip.AddrPortFrom(client4, 1), Link: *linkTo(1)}
	l.Learn(&d, 1)
	table.Learn(client4, linkTo(9), netip.Addr{}, 1) // by ARP, say
	l.Learn(&d, 2)
	if got, _, _ := table.Find(client4); got != *linkTo(9) {
		t.Error("nothing new was learned again")
	}
	l.Learn(&d, 1+relearn)
	if got, _, _ := table.Find(client4); got != *linkTo(1) {
		t.Error("after a while it is not learned again")
	}
	d.Link = *linkTo(2)
	l.Learn(&d, 2+relearn)
	if got, _, _ := table.Find(client4); got != *linkTo(2) {
		t.Error("another way is not learned at once")
	}
}

func TestNeighboursFromManyGoroutines(t *testing.T) {
	table := NewNeighbours(64)
	r := NewResponder(Host{MAC: ownMAC, Addresses: []netip.Addr{own4, own6}}, table)
	ask := unhex(t, linuxARP)
	var all sync.WaitGroup
	for g := range 4 {
		all.Go(func() {
			l := Learner{Table: table}
			for i := range 2000 {
				d := Datagram{From: netip.AddrPortFrom(address(i%200), 1), Link: *linkTo(i % 200)}
				l.Learn(&d, int64(i))
				if got, _, ok := table.Find(address((i + g) % 200)); ok && got != *linkTo((i + g) % 200) {
					t.Errorf("%v is at %v", address((i+g)%200), got)
					return
				}
				r.Answer(int64(i), ask, 0)
			}
		})
	}
	all.Wait()
	if got := r.Stats().ARP; got != 8000 {
		t.Errorf("%d answers, want 8000", got)
	}
}
