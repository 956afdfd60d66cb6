package batching

import (
	"cmp"
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// naiveOrder is the order of an address's requests: its clients alternate, each with its earliest request.
func naiveOrder(requests []Request) (order []uint32) {
	slices.SortFunc(requests, byDeadline)
	clients := map[uint32][]Request{}
	for _, r := range requests {
		clients[r.Client] = append(clients[r.Client], r)
	}
	for len(clients) > 0 {
		var round []Request
		for c, all := range clients {
			round = append(round, all[0])
			if clients[c] = all[1:]; len(all) == 1 {
				delete(clients, c)
			}
		}
		slices.SortFunc(round, byDeadline)
		order = append(order, slots(round)...)
	}
	return order
}

func TestFairnessModel(t *testing.T) {
	const most = 64
	fairness := NewFairness(most)
	rapid.Check(t, func(t *rapid.T) {
		pending := make([]Request, rapid.IntRange(0, most).Draw(t, "pending"))
		for i := range pending {
			pending[i] = Request{
				Slot: uint32(i), Deadline: rapid.Int64Range(0, 30).Draw(t, "deadline"),
				Address: rapid.Uint32Range(0, 3).Draw(t, "address"), Client: rapid.Uint32Range(0, 5).Draw(t, "client"),
			}
		}
		fairness.Rank(pending, 0, 20)

		for address := range uint32(4) {
			var own []Request
			for _, r := range pending {
				if r.Address == address {
					own = append(own, r)
				}
			}
			want := naiveOrder(own)
			slices.SortFunc(own, func(a, b Request) int { return cmp.Compare(a.place&^patient, b.place&^patient) })
			if got := slots(own); !slices.Equal(got, want) && len(want) > 0 {
				t.Fatalf("address %d: order %v, want %v", address, got, want)
			}
			for i, r := range own {
				if oneClient(pending) {
					return
				}
				if int(r.place&^patient) != i || (r.place >= patient) != (r.Deadline > 20) {
					t.Fatalf("address %d: request %d has place %#x and deadline %d", address, i, r.place, r.Deadline)
				}
			}
		}
	})
}

// TestFairnessFlood checks which requests the next batches behind a flood have.
func TestFairnessFlood(t *testing.T) {
	flood := func(address uint32, clients int) (pending []Request) {
		for i := range 60 {
			pending = append(pending, Request{Slot: uint32(i), Deadline: 1000 + int64(i), Address: address, Client: uint32(i % clients)})
		}
		return pending
	}
	quiet := Request{Slot: 99, Deadline: 2000, Address: 2, Client: 77}
	for name, c := range map[string]struct {
		pending []Request
		batch   int // the quiet client's request is in a batch of that size
	}{
		"one port":                   {append(flood(1, 1), quiet), 2},
		"many ports of one address":  {append(flood(1, 60), quiet), 2},
		"the quiet client's address": {append(flood(2, 1), quiet), 2},
		"priority first":             {append(flood(1, 1), quiet, Request{Slot: 70, Deadline: 3000, Priority: 1, Address: 1}), 3},
		"no flood":                   {[]Request{quiet}, 1},
		"two more ports there":       {append(flood(2, 3), quiet), 4},
		// Their clients let them wait, although they came first.
		"longer deadlines": {append([]Request{{Slot: 1, Deadline: 20_000, Address: 1}, {Slot: 2, Deadline: 20_001, Address: 2}}, quiet), 1},
		"two objectives":   {[]Request{{Slot: 1, Deadline: 20_000, Address: 1}, {Slot: 2, Deadline: 5000, Address: 2, Client: 77}, quiet}, 1},
	} {
		NewFairness(64).Rank(c.pending, 0, 10_000)
		n, _ := Pick(c.pending, 0, c.batch, each)
		if batch := slots(c.pending[:n]); !slices.Contains(batch, 99) {
			t.Errorf("%s: the batch is %v, want it to have 99", name, batch)
		}
	}
}

func TestRankAllocations(t *testing.T) {
	fairness := NewFairness(256)
	pending := make([]Request, 256)
	for i := range pending {
		pending[i] = Request{Slot: uint32(i), Deadline: int64(i * 37 % 256), Address: uint32(i % 7), Client: uint32(i % 31)}
	}
	if n := testing.AllocsPerRun(100, func() { fairness.Rank(pending, 0, time.Second) }); n != 0 {
		t.Errorf("%v allocations, want none", n)
	}
	fairness.stamp = 1<<32 - 1 // it wraps
	fairness.Rank(pending, 0, time.Second)
	fairness.Rank(pending[:1], 0, time.Second)
	if pending[0].place != 0 {
		t.Errorf("place %d of the only request", pending[0].place)
	}
}

func BenchmarkRank(b *testing.B) {
	for _, n := range []int{8, 64, 1024} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			fairness, pending := NewFairness(n), make([]Request, n)
			now := int64(0)
			for i := range pending {
				pending[i] = Request{Slot: uint32(i), Deadline: int64(i), Address: uint32(i % 5), Client: uint32(i % 11)}
			}
			for b.Loop() {
				fairness.Rank(pending, now, time.Second)
				batch, _ := Pick(pending, now, 8, func(int) time.Duration { return 0 })
				now++
				for i := range batch {
					pending[i].Deadline = now + int64(n)
				}
			}
		})
	}
}
