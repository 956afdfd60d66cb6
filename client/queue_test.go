package client

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/wire"
)

func newQueue(objective time.Duration) *queue {
	return &queue{list: list{id: stageList}, objective: int64(objective), checkAt: math.MaxInt64}
}

func TestQueueDrop(t *testing.T) {
	const objective = 20 * time.Millisecond
	for _, row := range []struct {
		name                           string
		objective, deadline, roundTrip time.Duration
		want                           time.Duration // from Intended to the drop; 0: never
	}{
		{"objective unknown", 0, 0, time.Millisecond, 0},
		{"objective", objective, 0, 0, objective},
		{"less a round trip", objective, 0, 3 * time.Millisecond, 17 * time.Millisecond},
		{"a long round trip", objective, 0, time.Second, objective / 2},
		{"a shorter deadline", objective, 5 * time.Millisecond, time.Millisecond, 4 * time.Millisecond},
		{"a longer deadline", objective, time.Second, time.Millisecond, 999 * time.Millisecond},
		{"a deadline before the first answer", 0, time.Second, 0, time.Second},
	} {
		t.Run(row.name, func(t *testing.T) {
			q := newQueue(row.objective)
			r := &request{options: RequestOptions{Deadline: row.deadline}, intended: 1000, timeoutAt: never}
			want := int64(never)
			if row.want > 0 {
				want = 1000 + int64(row.want)
			}
			if got := q.dropAt(r, int64(row.roundTrip)); got != want {
				t.Errorf("late at %d, want %d", got, want)
			}
			if q.push(r, int64(row.roundTrip)); q.checkAt != want {
				t.Errorf("checked at %d, want %d", q.checkAt, want)
			}
		})
	}
}

func TestQueueNext(t *testing.T) {
	q := newQueue(100)
	if r := q.next(0); r != nil {
		t.Fatalf("an empty queue has %+v", r)
	}
	oldest := &request{id: 1, intended: 1000, timeoutAt: never}
	newest := &request{id: 2, intended: 1001, timeoutAt: never}
	q.push(oldest, 0)
	q.push(newest, 0)
	for _, row := range []struct {
		now       int64
		objective int64
		want      *request
	}{
		{1050, 100, oldest},
		{1051, 100, newest},
		{1051, 200, oldest},
		{9999, 0, oldest},
	} {
		q.objective = row.objective
		if got := q.next(row.now); got != row.want {
			t.Errorf("at %d, objective %d: request %d is next, want %d", row.now, row.objective, got.id, row.want.id)
		}
	}
}

// An overloaded server answers as many requests in time as it can process.
func TestQueueOverload(t *testing.T) {
	const (
		objective = 200 // ticks; the server does one request per tick
		ticks     = 100 * objective
	)
	for _, offered := range []float64{0.9, 1.05, 1.2, 2, 10} {
		for _, room := range []int{8, 64, 150} {
			t.Run(fmt.Sprintf("offered %v, room %d", offered, room), func(t *testing.T) {
				q, c := newQueue(objective), credit{more: 8}
				var held []int64 // when each request at the server should have been sent
				inTime, late, due := 0, 0, 0.0
				for now := int64(0); now < ticks; now++ {
					for due += offered; due >= 1; due-- {
						q.push(&request{intended: now, timeoutAt: never}, 0)
					}
					for r, next := q.head, (*request)(nil); r != nil; r = next {
						if next = r.links[stageList].next; q.dropAt(r, 0) <= now {
							q.remove(r)
						}
					}
					for r := q.next(now); r != nil; r = q.next(now) {
						ok, probe := c.allow(now, len(held))
						if !ok {
							break
						}
						c.recordSent(probe)
						q.remove(r)
						held = append(held, r.intended)
					}
					for len(held) > 0 { // the server answers with late what it can no longer begin
						served := now-held[0] < objective
						if served {
							inTime++
						} else {
							late++
						}
						held = held[1:]
						c.recordAnswer(room-len(held), 0)
						if served {
							break
						}
					}
					if int(float64(objective)*offered)+1 < q.n {
						t.Fatalf("%d requests wait at %d", q.n, now)
					}
				}
				if want := 0.98 * min(offered, 1) * ticks; float64(inTime) < want {
					t.Errorf("%d answers in time, %d late; want at least %.0f in time", inTime, late, want)
				}
			})
		}
	}
}

// The deadline sent with a request excludes the round trip.
func TestDeadlineKeepsRoundTrip(t *testing.T) {
	const roundTrip, waited = 3 * time.Millisecond, 5 * time.Millisecond
	c := &Client{options: Options{FragmentBytes: 1024}, queued: *newQueue(20 * time.Millisecond)}
	out := &plainSocket{burst: make([]byte, 0, burstSize)}
	p := &path{socket: out, fragmentBytes: 1024, credit: credit{roundTrip: int64(roundTrip)}}
	r := &request{picture: make([]byte, 8), count: 1, intended: 1000, path: p}
	c.sendFragmentLocked(r, 1000+int64(waited))

	e, err := wire.DecodeExtension(out.burst[wire.HeaderSize:])
	must.OK(t, err)
	if want := 12 * time.Millisecond; e.Deadline != want {
		t.Errorf("the deadline is %v, want %v", e.Deadline, want)
	}
	// A question after the deadline must not look like a request without a deadline.
	r.markResend(0)
	c.sendFragmentLocked(r, 1000+int64(time.Second))
	if e, _ = wire.DecodeExtension(out.burst[out.ends[0]+wire.HeaderSize:]); e.Deadline != time.Microsecond {
		t.Errorf("after the deadline the deadline is %v, want %v", e.Deadline, time.Microsecond)
	}
}
