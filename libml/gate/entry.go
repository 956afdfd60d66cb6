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
	Release()
	Close() error
}

// Entry is a process's place among those that take turns on a GPU without MPS (shm.Turn). The process has the
// turn while a batch of it runs, from the gather to the outputs. Another batch joins it only if no other
// process uses the GPU. All members of a worker share one. Any goroutine may call the methods.
type Entry struct {
	number int
	turn   turn

	mu      sync.Mutex // guards the rest, and calls of turn but Sleep
	running int        // batches that have the turn
	waiting []*visit   // loops that wait for the turn
}

// OpenEntry maps a file of turns in a process that has that entry. It takes ownership of the file.
func OpenEntry(file *os.File, number int) (*Entry, error) {
	turn, err := shm.OpenTurn(file, number)
	if err != nil {
		return nil, fmt.Errorf("open turn on the GPU: %w", err)
	}
	return &Entry{number: number, turn: turn}, nil
}

// Number is the number of the entry in its file.
func (e *Entry) Number() int { return e.number }

// Close gives up the turn of a process that ends, and unmaps it.
func (e *Entry) Close() {
	e.turn.Release()
	e.turn.Close()
}

// visit is a loop's part in its process's turns. A visit of no Entry takes none: each batch may begin.
type visit struct {
	of    *Entry
	waits bool     // it is in of.waiting
	rank  shm.Rank // of the batch that waits
	// asked: the process waits for its turn since bell.
	asked bool
	bell  uint32
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
	v.asked = false
	switch {
	case e.running > 0 && !e.turn.Alone(now):
		return false, now + int64(memberWait)
	case e.running == 0:
		if ok, v.bell = e.turn.Ask(v.wait(rank)); !ok {
			v.asked = true
			return false, now + int64(turnWait)
		}
	}
	v.stopWaiting()
	e.running++
	return true, math.MaxInt64
}

// sleep waits until the process has its turn, at most until that time. It returns false at once if the
// process does not wait for it.
func (v *visit) sleep(until int64) bool {
	if !v.asked {
		return false
	}
	v.of.turn.Sleep(v.bell, until)
	return true
}

// wait adds the loop to those that wait. It returns the rank of the first batch of all of them.
func (v *visit) wait(rank shm.Rank) shm.Rank {
	v.rank = rank
	if !v.waits {
		v.waits = true
		v.of.waiting = append(v.of.waiting, v)
	}
	for _, other := range v.of.waiting {
		if other.rank.Before(rank) {
			rank = other.rank
		}
	}
	return rank
}

func (v *visit) stopWaiting() {
	if v.waits {
		v.waits = false
		i := slices.Index(v.of.waiting, v)
		v.of.waiting = slices.Delete(v.of.waiting, i, i+1)
	}
}

// joins reports whether a batch may begin next to one of the same process.
func (v *visit) joins() bool {
	if v.of == nil {
		return true
	}
	v.of.mu.Lock()
	defer v.of.mu.Unlock()
	return v.of.turn.Alone(shm.Now())
}

// withdraw ends the loop's wait, if it waits. The process waits on for its other loops.
func (v *visit) withdraw() {
	v.asked = false
	if !v.waits {
		return
	}
	v.of.mu.Lock()
	defer v.of.mu.Unlock()
	if v.stopWaiting(); len(v.of.waiting) == 0 {
		v.of.release()
	}
}

// end ends a batch. Loops of the process that wait ask again.
func (v *visit) end() {
	if v.of == nil {
		return
	}
	v.of.mu.Lock()
	defer v.of.mu.Unlock()
	v.of.running--
	v.of.release()
}

// release gives up the turn if no batch of the process runs.
func (e *Entry) release() {
	if e.running == 0 {
		e.turn.Release()
	}
}
