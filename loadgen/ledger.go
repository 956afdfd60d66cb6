package loadgen

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/penstock/penstock/client"
	"github.com/penstock/penstock/loadgen/answer"
	"github.com/penstock/penstock/shm"
)

// ledger tracks all outstanding requests of one function and counts those that
// ended. Any goroutine may use it.
type ledger struct {
	slo time.Duration
	// references has the right answer to each picture; nil if answers are not
	// checked.
	references []answer.Answer

	mu       sync.Mutex
	entries  []entry
	free     []uint32 // indices of entries that are not open
	open     int
	stats    functionStats
	comparer answer.Comparer
	// drained is closed once the ledger is ending and nothing is open.
	drained chan struct{}
	ending  bool
	closed  bool
}

// entry is an outstanding request.
type entry struct {
	intended int64
	picture  int32
	// use rises each time the entry is opened. A tag of an earlier use is stale.
	use     uint32
	counted bool
	open    bool
}

func newLedger(f *Function, references []answer.Answer) *ledger {
	return &ledger{
		slo:        f.SLO,
		references: references,
		stats:      newFunctionStats(len(f.Pictures)),
		comparer:   answer.Comparer{Tolerance: f.Tolerance},
		drained:    make(chan struct{}),
	}
}

// begin opens an entry and returns its tag. lag is how far the scheduler is
// behind schedule.
func (l *ledger) begin(intended int64, lag time.Duration, picture int, counted bool) (tag uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.free) == 0 {
		l.free = append(l.free, uint32(len(l.entries)))
		l.entries = append(l.entries, entry{})
	}
	i := l.free[len(l.free)-1]
	l.free = l.free[:len(l.free)-1]
	e := &l.entries[i]
	*e = entry{intended: intended, picture: int32(picture), use: e.use + 1, counted: counted, open: true}
	l.open++
	l.stats.offered++
	if counted {
		l.stats.sent++
		l.stats.lag.record(lag)
	}
	return uint64(e.use)<<32 | uint64(i)
}

// reply ends a request. It drops a reply whose request is not open: a duplicate,
// or a reply after the grace time. A request that the client gave up counts as
// unanswered. If the client dropped it as late, it counts as dropped.
func (l *ledger) reply(r *client.Result) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	e, ok := l.endLocked(r.Tag)
	if !ok {
		return
	}
	if r.Err != nil {
		switch {
		case !e.counted:
		case errors.Is(r.Err, client.ErrLate):
			l.stats.dropped++
		default:
			l.stats.giveUp(r.Err, r.Sent.IsZero())
		}
		return
	}
	if r.Status == client.StatusOK {
		l.checkLocked(int(e.picture), answer.Answer{Kind: r.Kind, Payload: r.Payload})
	}
	if e.counted {
		l.stats.reply(r, time.Duration(shm.Nanos(r.Received)-e.intended), l.slo)
	}
}

func (l *ledger) endLocked(tag uint64) (entry, bool) {
	i := uint32(tag)
	if int(i) >= len(l.entries) || !l.entries[i].open || l.entries[i].use != uint32(tag>>32) {
		return entry{}, false
	}
	e := l.entries[i]
	l.entries[i].open = false
	l.free = append(l.free, i)
	l.open--
	if l.ending && l.open == 0 {
		close(l.drained)
		l.ending = false
	}
	return e, true
}

// maxDifferences is how many wrong answers are described; the others are only
// counted.
const maxDifferences = 5

func (l *ledger) checkLocked(picture int, got answer.Answer) {
	t := &l.stats
	if l.references != nil {
		t.checked++
		if err := l.comparer.Compare(got, l.references[picture]); err != nil {
			t.wrong++
			if len(t.differences) < maxDifferences {
				t.differences = append(t.differences, fmt.Sprintf("picture %d: %v", picture, err))
			}
		}
	}
	if t.first[picture].Payload == nil {
		// Not nil even if empty: an answer without boxes is an answer.
		t.first[picture] = answer.Answer{Kind: got.Kind, Payload: append(make([]byte, 0, len(got.Payload)), got.Payload...)}
	}
}

// drain returns a channel that is closed when no request is open. It is called
// once, after the last begin.
func (l *ledger) drain() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open == 0 {
		close(l.drained)
	} else {
		l.ending = true
	}
	return l.drained
}

// close makes the ledger ignore replies.
func (l *ledger) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
}
