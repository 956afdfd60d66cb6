package aggregate

import (
	"testing"
	"time"

	"github.com/penstock/penstock/wire"
)

func TestAutoSlots(t *testing.T) {
	const mib = 1 << 20
	for _, row := range []struct {
		name                 string
		slab, request, slots int
	}{
		{"small requests", 64 * mib, 784, maxAutoSlots},
		{"face", 64 * mib, 128 * 128 * 3, 1024},
		{"detect", 64 * mib, 416 * 416 * 3, 128},
		{"small slab", mib, 416 * 416 * 3, minSlots},
		{"a request larger than the slab", mib, 2 * mib, minSlots},
	} {
		if got := AutoSlots(row.slab, row.request); got != row.slots {
			t.Errorf("%s: %d slots, want %d", row.name, got, row.slots)
		}
	}
}

// The number of open slots is rate × objective, plus the reserve.
func TestOpenSlots(t *testing.T) {
	const objective = 25 * time.Millisecond
	for _, row := range []struct {
		name      string
		perSecond float64
		want      int
	}{
		{"slow", 100, minSlots},
		{"fast", 20_000, 500},
		{"too fast", 1e6, maxAutoSlots},
	} {
		t.Run(row.name, func(t *testing.T) {
			want := row.want
			if want < maxAutoSlots && want > minSlots {
				want = want * reservePart / (reservePart - 1)
			}
			o := newOpen(&Config{Slots: maxAutoSlots, Follow: true})
			now := int64(time.Hour)
			answer := func(perSecond float64, d time.Duration) {
				for end := now + int64(d); now < end; now += int64(1e9 / perSecond) {
					o.answered(now, objective)
				}
			}
			near := func(when string, want int) {
				t.Helper()
				if got := int(o.slots.Load()); got < want*98/100 || got > want*102/100+1 {
					t.Errorf("%s: %d slots are open, want %d", when, got, want)
				}
			}
			near("at the start", minSlots)
			answer(row.perSecond, time.Second)
			near("after a second", want)
			now += int64(time.Hour)
			answer(row.perSecond, time.Second)
			near("after an idle hour", want)
			answer(10, time.Minute)
			near("at 10 per second", minSlots)
		})
	}
}

// The speed of a server changes. The open slots never limit what it answers in time, and the
// server never holds more than it can answer in time.
func TestOpenSlotsFollow(t *testing.T) {
	const objective = int64(20 * time.Millisecond)
	o := newOpen(&Config{Slots: maxAutoSlots, Follow: true})
	now := int64(time.Hour)
	for _, perSecond := range []int64{1000, 100_000, 5000, 50_000} {
		var latency int64
		for end := now + int64(3*time.Second); now < end; {
			// All open slots are taken. Each request is answered after all before it, or
			// after a millisecond.
			latency = max(o.slots.Load()*int64(time.Second)/perSecond, int64(time.Millisecond))
			now += latency / o.slots.Load()
			o.answered(now, time.Duration(objective))
		}
		if rate := o.slots.Load() * int64(time.Second) / latency; rate < perSecond*98/100 {
			t.Errorf("%d slots are open and let the server answer %d per second, it could %d", o.slots.Load(), rate, perSecond)
		}
		if o.slots.Load() > minSlots && latency > objective*6/5 {
			t.Errorf("%d slots are open, so an answer takes %v of %v", o.slots.Load(), time.Duration(latency), time.Duration(objective))
		}
	}
}

// A client's credit grows with the rate of its answers.
func TestCreditFollowsRate(t *testing.T) {
	credit := func(follow bool) uint16 {
		b := newHarness(t, func(c *Config) { c.Slots, c.Follow, c.SLO = 256, follow, 25*time.Millisecond })
		var got uint16
		for id := range 1100 {
			slot := b.whole(camera, id)
			b.now += int64(100 * time.Microsecond)
			got = b.end(slot, wire.StatusOK, "").Credit
		}
		return got
	}
	// 10,000 per second × 25 ms = 250 open slots.
	if all, following := credit(false), credit(true); following < all*9/10 || following <= 57 {
		t.Errorf("credit %d, want nearly %d", following, all)
	}
}
