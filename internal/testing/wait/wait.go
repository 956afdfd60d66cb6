// Package wait waits in tests for facts that no event announces, such as the state of another process.
package wait

import (
	"reflect"
	"testing"
	"time"
)

// Patience bounds every wait. It detects hangs and is long enough for slow machines.
const Patience = 90 * time.Second

// For polls until fact returns true. After Patience the test fails at once and says what it waited for.
func For(t testing.TB, what string, fact func() bool) {
	t.Helper()
	if !Until(fact) {
		t.Fatalf("waited %s for %s", Patience, what)
	}
}

// Still polls until the value has been the same for a time, and returns it.
func Still[V any](t testing.TB, what string, lasts time.Duration, value func() V) V {
	t.Helper()
	last, since := value(), time.Now()
	For(t, what+" to stay the same", func() bool {
		if now := value(); !reflect.DeepEqual(now, last) {
			last, since = now, time.Now()
		}
		return time.Since(since) >= lasts
	})
	return last
}

// Until polls until fact returns true, and reports whether that took less than Patience. Goroutines other than
// the test's own use it.
func Until(fact func() bool) bool { return Within(Patience, fact) }

// Within is Until with another bound.
func Within(limit time.Duration, fact func() bool) bool {
	pause := 100 * time.Microsecond
	for end := time.Now().Add(limit); !fact(); time.Sleep(pause) {
		if time.Now().After(end) {
			return false
		}
		pause = min(2*pause, 10*time.Millisecond)
	}
	return true
}
