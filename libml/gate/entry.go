package gate

import (
	"fmt"
	"math"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/penstock/penstock/shm"
)

// turn is a shm.Turn.
type turn interface {
	Ask(r shm.Rank) (ok bool, bell uint32)
	Sleep(bell uint32, until int64)
	Alone(now int64) bool
	Awaited() bool
	First(r shm.Rank) bool
	Pass(r shm.Rank)
	Release()
}

// Entry is a process's place among those that share a GPU (shm.Turns). The batches of a level run one after the
// other, over all processes, in the order of their deadlines. A process has the turn of a level while its batch
// runs, from the gather to the outputs. Another batch of the process joins it only if no batch of another process goes before.
// All members of a worker share one Entry. Any goroutine may call the methods.
type Entry struct {
	number int
	close  func() error

	mu     sync.Mutex // guards the rest, and calls of turn but Sleep
	levels []*level   // by level; one for all levels if priorities do not hold between processes
}

// level has the turns of one level.
type level struct {
	turn    turn
	running int      // batches that have the turn
	waiting []*visit // loops that wait for the turn
}

// OpenEntry maps a file of turns in a process that has that entry. It takes ownership of the file.
func OpenEntry(file *os.File, number int) (*Entry, error) {
	turns, err := shm.OpenTurns(file, number)
	if err != nil {
		return nil, fmt.Errorf("open turns on the GPU: %w", err)
	}
	e := &Entry{number: number, close: turns.Close}
	for _, t := range turns.Turns {
		e.levels = append(e.levels, &level{turn: t})
	}
	return e, nil
}

// Number is the number of the entry in its file.
func (e *Entry) Number() int { return e.number }

// PerLevel reports whether each level has its own turns.
func (e *Entry) PerLevel() bool { return len(e.levels) > 1 }

// Close gives up the turns of a process that ends, and unmaps them.
func (e *Entry) Close() {
	for _, l := range e.levels {
		l.turn.Release()
	}
	_ = e.close()
}

// of returns the turns of batches of a level.
func (e *Entry) of(of uint32) *level { return e.levels[min(int(of), len(e.levels)-1)] }

// joins reports whether a batch may begin next to one of the same process that has the turn: if no batch of another
// process goes before. Without priorities one that comes would wait for both, whatever its level, so none must have had a
// turn lately.
func (e *Entry) joins(l *level, now int64, rank shm.Rank) bool {
	if e.PerLevel() {
		return l.turn.First(rank)
	}
	return l.turn.Alone(now)
}

// awaited reports whether another process waits for a turn of any level.
func (e *Entry) awaited() bool {
	return e != nil && slices.ContainsFunc(e.levels, func(l *level) bool { return l.turn.Awaited() })
}

// visit is a loop's part in its process's turns. A visit of no Entry takes none: each batch may begin.
type visit struct {
	of    *Entry
	waits *level   // the loop is in its waiting
	rank  shm.Rank // of the batch that waits
	// asked: the process waits for its turn of that level since bell.
	asked *level
	bell  uint32
	taken *level // by the last batch that was admitted
}

const (
	// turnWait is how long a loop waits for the turn before it picks the batch again. memberWait is how long
	// if another member of its worker has the turn.
	turnWait   = time.Millisecond
	memberWait = 200 * time.Microsecond
)

// take reports whether a batch may begin now. If not, the loop asks again at that time, or calls withdraw.
func (v *visit) take(now int64, rank shm.Rank) (ok bool, retryAt int64) {
	e := v.of
	if e == nil {
		return true, math.MaxInt64
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	l := e.of(rank.Level)
	if v.waits != nil && v.waits != l {
		v.stopWaiting()
	}
	v.asked = nil
	switch {
	case l.running > 0 && !e.joins(l, now, rank):
		return false, now + int64(memberWait)
	case l.running == 0:
		if ok, v.bell = l.turn.Ask(v.wait(l, rank)); !ok {
			v.asked = l
			return false, now + int64(turnWait)
		}
	}
	if v.waits != nil {
		v.leave()
	}
	l.running++
	v.taken = l
	return true, math.MaxInt64
}

// sleep waits until the process has its turn, at most until that time. It returns false at once if the
// process does not wait for it.
func (v *visit) sleep(until int64) bool {
	if v.asked == nil {
		return false
	}
	v.asked.turn.Sleep(v.bell, until)
	return true
}

// wait adds the loop to those that wait for a level. It returns the rank of the first batch of all of them.
func (v *visit) wait(l *level, rank shm.Rank) shm.Rank {
	v.rank = rank
	if v.waits == nil {
		v.waits = l
		l.waiting = append(l.waiting, v)
	}
	return l.first()
}

// first is the rank of the first batch of the process that waits. There must be one.
func (l *level) first() shm.Rank {
	first := l.waiting[0].rank
	for _, v := range l.waiting[1:] {
		if v.rank.Before(first) {
			first = v.rank
		}
	}
	return first
}

// leave takes the loop from those that wait.
func (v *visit) leave() {
	l := v.waits
	v.waits = nil
	i := slices.Index(l.waiting, v)
	l.waiting = slices.Delete(l.waiting, i, i+1)
}

// stopWaiting ends the loop's wait. The process waits on for its other loops.
func (v *visit) stopWaiting() {
	l := v.waits
	v.leave()
	l.release()
}

// joins reports whether a batch may begin next to those of the same process.
func (v *visit) joins(now int64, rank shm.Rank) bool {
	if v.of == nil {
		return true
	}
	v.of.mu.Lock()
	defer v.of.mu.Unlock()
	l := v.of.of(rank.Level)
	return l.running == 0 || v.of.joins(l, now, rank)
}

// withdraw ends the loop's wait, if it waits.
func (v *visit) withdraw() {
	v.asked = nil
	if v.waits == nil {
		return
	}
	v.of.mu.Lock()
	defer v.of.mu.Unlock()
	v.stopWaiting()
}

// held is a batch's turn. The zero value is that of a batch that needs none.
type held struct {
	of    *Entry
	level *level
}

// hold is that of the batch that was admitted last.
func (v *visit) hold() held {
	h := held{v.of, v.taken}
	v.taken = nil
	return h
}

// pass ends the batch's part in the turn. next is the loop's next batch; if it goes before those of other processes, the
// process keeps the turn for it.
func (h *held) pass(v *visit, next *shm.Rank) {
	l := h.level
	if l == nil {
		return
	}
	h.of.mu.Lock()
	defer h.of.mu.Unlock()
	l.running--
	if next != nil && h.of.of(next.Level) == l && (v.waits == nil || v.waits == l) {
		v.wait(l, *next)
	}
	l.release()
}

// release gives up the turn if no batch of the process runs. The process waits on with its other batches.
func (l *level) release() {
	switch {
	case l.running > 0:
	case len(l.waiting) > 0:
		l.turn.Pass(l.first())
	default:
		l.turn.Release()
	}
}
