package loop

import (
	"testing"
	"time"
)

// A busy loop gets its share of the time, whatever its batches.
func TestGovernorBusy(t *testing.T) {
	for _, percent := range []float64{5, 30, 60, 95} {
		for _, batch := range []time.Duration{200 * time.Microsecond, 5 * time.Millisecond, 80 * time.Millisecond} {
			g := newGovernor(1, 1)
			share := &Share{Percent: percent, Governor: true}
			now, busy := int64(0), int64(0)
			for now < int64(20*time.Second) {
				ended := now + int64(batch)
				busy += int64(batch)
				now = ended + int64(g.spend(share, now, ended))
			}
			got := 100 * float64(busy) / float64(now)
			if got < percent*0.99 || got > percent*1.01 {
				t.Errorf("share %v %%, batches of %v: busy %.2f %% of the time", percent, batch, got)
			}
		}
	}
}

// After an idle time a batch runs without a pause.
func TestGovernorIdle(t *testing.T) {
	g := newGovernor(1, 1)
	share := &Share{Percent: 50, Governor: true}
	began := int64(time.Second)
	if pause := g.spend(share, began, began+int64(4*time.Millisecond)); pause != 0 {
		t.Fatalf("pause %v after a batch that its savings cover", pause)
	}
}

// The governor does nothing if a cgroup enforces the share, or there is none.
func TestGovernorOff(t *testing.T) {
	g := newGovernor(1, 1)
	for _, share := range []*Share{nil, {Percent: 10}, {Percent: 100, Governor: true}} {
		if pause := g.spend(share, 0, int64(time.Second)); pause != 0 {
			t.Fatalf("share %+v: pause %v, want none", share, pause)
		}
	}
}

// One thread of four CPUs uses a quarter of them.
func TestGovernorThreads(t *testing.T) {
	g := newGovernor(4, 1)
	share := &Share{Percent: 25, Governor: true}
	if pause := g.spend(share, 0, int64(time.Second)); pause != 0 {
		t.Fatalf("pause %v, want none: one thread of four CPUs is 25 %%", pause)
	}
}
