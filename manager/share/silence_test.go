package share

import (
	"math/rand/v2"
	"testing"
	"time"
)

// silences is how long something was silent in all, looked at every second for so long;
// comes says in which seconds something comes.
func silences(d time.Duration, comes func(second int) bool) (silent []int) {
	var s Silence
	for i := range int(d / time.Second) {
		if s.Look(time.Duration(i)*time.Second, comes(i), DefaultConfig()) {
			silent = append(silent, i)
		}
	}
	return silent
}

func TestSilenceIsLongerThanAnyPauseOfLate(t *testing.T) {
	every := func(period, on int) func(int) bool { return func(i int) bool { return i%period < on } }
	for _, c := range []struct {
		name        string
		comes       func(int) bool
		first, last int // second of silence within an hour; -1 for none
	}{
		{"always", every(1, 1), -1, -1},
		{"never", every(1, 0), 20, 3599},
		{"bursts of 3 s every 6", every(6, 3), -1, -1},
		{"one request every 19 s", every(19, 1), -1, -1},
		// The second pause tells that it may be so long.
		{"one request every 30 s", every(30, 1), 20, 29},
		{"first after a minute, then every second", func(i int) bool { return i >= 60 }, 20, 59},
		{"an end after a steady load", func(i int) bool { return i < 100 }, 119, 3599},
		{"an end after pauses of 30 s", func(i int) bool { return i <= 120 && i%30 == 0 }, 20, 3599},
	} {
		t.Run(c.name, func(t *testing.T) {
			first, last := -1, -1
			if s := silences(time.Hour, c.comes); len(s) > 0 {
				first, last = s[0], s[len(s)-1]
			}
			if first != c.first || last != c.last {
				t.Errorf("silent from second %d to %d, want %d to %d", first, last, c.first, c.last)
			}
		})
	}
}

func TestALongPauseIsForgotten(t *testing.T) {
	// Five minutes, then steadily for d, then nothing: how long until that is silence.
	after := func(d int) int {
		for _, i := range silences(time.Hour, func(i int) bool { return i == 0 || i >= 300 && i <= 300+d }) {
			if i > 300 {
				return i - 300 - d
			}
		}
		return -1
	}
	if got := after(10); got != 590 { // by then the pause is ten minutes ago
		t.Errorf("silent %d s after a pause of 300 s, want 590", got)
	}
	if got := after(601); got != 20 {
		t.Errorf("silent %d s after a load of ten minutes, want 20", got)
	}
}

// A heartbeat that trembles is no silence once its pause is known, however long it beats:
// the longest pause of late is forgotten, not those after it.
func TestAHeartbeatThatTremblesLendsOnce(t *testing.T) {
	for _, period := range []int{15, 25, 40, 60, 250} {
		random := rand.New(rand.NewPCG(uint64(period), 0))
		next, beats := 0, 0
		var s Silence
		for i := range 8 * 3600 {
			came := i == next
			if came {
				beats++
				next += period - random.IntN(1+period/10)
			}
			if s.Look(time.Duration(i)*time.Second, came, DefaultConfig()) && beats > 1 {
				t.Fatalf("one request every %d s or a little less: silent after %d s", period, i)
			}
		}
	}
}
