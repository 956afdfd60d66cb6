package datapath

import (
	"errors"
	"maps"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/openfiles"
)

func TestFlying(t *testing.T) {
	p := &Port{flights: make([]flight, 4)}
	idle, busy, other := &Queue{port: p}, &Queue{port: p, inFlight: 2}, &Queue{port: p, inFlight: 1}
	p.flights[0] = flight{queue: busy, since: 7}
	p.flights[1] = flight{queue: other, since: 3}
	p.flights[2] = flight{queue: busy, since: 5}

	for _, c := range []struct {
		name   string
		q      *Queue
		slots  []uint32
		oldest time.Duration
	}{
		{"idle", idle, nil, 0},
		{"busy", busy, []uint32{0, 2}, 5},
		{"other", other, []uint32{1}, 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := slices.Sorted(maps.Keys(maps.Collect(c.q.flying))); !slices.Equal(got, c.slots) {
				t.Errorf("slots %v, want %v", got, c.slots)
			}
			if got := c.q.Oldest(); got != c.oldest {
				t.Errorf("oldest %v, want %v", got, c.oldest)
			}
		})
	}

	for slot := range busy.flying {
		if slot > 0 {
			t.Error("flying continues after a break")
		}
		break
	}
}

// Without a file descriptor for each of its queues there is no port, and nothing stays open.
func TestPortWithoutDescriptors(t *testing.T) {
	openfiles.CheckLeaks(t)
	var was unix.Rlimit
	must.OK(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &was))
	failures := 0
	for more := uint64(0); ; more++ {
		s := open(t, loopback(), 1)
		must.OK(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(openfiles.Count(t)) + more, Max: was.Max}))
		p, err := NewPort(s, testOptions(3))
		must.OK(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &was))
		if err == nil {
			p.Stop()
			must.OK(t, p.Close())
			break
		}
		if failures++; p != nil || !errors.Is(err, unix.EMFILE) {
			t.Fatalf("port %v, %v", p, err)
		}
	}
	if failures < 3 {
		t.Errorf("%d attempts failed, want one for each queue", failures)
	}
}
