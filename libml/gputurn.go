package libml

import (
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/penstock/penstock/batching"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/control/budget"
	"github.com/penstock/penstock/shm"
)

// gpuTurn is a process's turn on a GPU without MPS (shm.Turn). The process has the turn while a batch of
// it runs, from the gather to the outputs. Another batch joins it only if no other process uses
// the GPU. All members of a worker share one. Any goroutine may call the methods.
type gpuTurn struct {
	entry int

	mu      sync.Mutex // guards the rest
	turn    *shm.Turn
	running int          // batches that have the turn
	waiting []*batchTurn // loops that wait for the turn
}

// openTurn opens the process's turn, which comes after the slabs. It returns nil if the
// processes of the device take no turns.
func (p *process) openTurn(attached control.Attached, files []*os.File) (*gpuTurn, error) {
	if attached.Turn == nil {
		return nil, nil
	}
	file := files[len(files)-1-len(busyFiles(attached, files))]
	open := func() (*gpuTurn, error) {
		turn, err := shm.OpenTurn(file, *attached.Turn)
		if err != nil {
			return nil, fmt.Errorf("open turn on the GPU: %w", err)
		}
		return &gpuTurn{entry: *attached.Turn, turn: turn}, nil
	}
	if p.worker == nil {
		return open()
	}
	w := &p.worker.turns
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.turn != nil && w.turn.entry == *attached.Turn {
		return w.turn, nil
	}
	// The manager gives a worker another entry after all of its members have left.
	turn, err := open()
	if err != nil {
		return nil, err
	}
	w.turn = turn
	return turn, nil
}

// workerTurn is the turn of a worker, which its first member opens.
type workerTurn struct {
	mu   sync.Mutex // guards turn
	turn *gpuTurn
}

// closeTurn gives up the turn of a process that ends, and unmaps it. A worker keeps its turn.
func (p *process) closeTurn() {
	if p.gpuTurn != nil && p.worker == nil {
		p.gpuTurn.turn.Release()
		p.gpuTurn.turn.Close()
	}
}

// batchTurn is a loop's part in its process's turn. The zero value takes no turns: each batch may begin.
type batchTurn struct {
	of    *gpuTurn
	waits bool     // it is in of.waiting
	rank  shm.Rank // of the batch that waits
}

// turnWait is how long a loop waits for the turn before it picks the batch again. memberWait is how long if
// another member of its worker has the turn.
const (
	turnWait   = time.Millisecond
	memberWait = 200 * time.Microsecond
)

// take reports whether a batch may begin now. If not, it has waited for a while. The caller calls it
// again, or withdraw.
func (b *batchTurn) take(rank shm.Rank) bool {
	t := b.of
	t.mu.Lock()
	now := shm.Now()
	switch {
	case t.running > 0 && !t.turn.Alone(now):
		t.mu.Unlock()
		nap(memberWait)
		return false
	case t.running == 0 && !t.turn.Take(b.wait(rank), now+int64(turnWait)):
		t.mu.Unlock()
		return false
	}
	b.stopWaiting()
	t.running++
	t.mu.Unlock()
	return true
}

// wait adds the loop to those that wait. It returns the rank of the first batch of all of them.
func (b *batchTurn) wait(rank shm.Rank) shm.Rank {
	b.rank = rank
	if !b.waits {
		b.waits = true
		b.of.waiting = append(b.of.waiting, b)
	}
	for _, other := range b.of.waiting {
		if other.rank.Before(rank) {
			rank = other.rank
		}
	}
	return rank
}

func (b *batchTurn) stopWaiting() {
	if b.waits {
		b.waits = false
		i := slices.Index(b.of.waiting, b)
		b.of.waiting = slices.Delete(b.of.waiting, i, i+1)
	}
}

// joins reports whether a batch may begin next to one of the same process.
func (b *batchTurn) joins() bool {
	if b.of == nil {
		return true
	}
	b.of.mu.Lock()
	defer b.of.mu.Unlock()
	return b.of.turn.Alone(shm.Now())
}

// withdraw ends the loop's wait, if it waits. The process waits on for its other loops.
func (b *batchTurn) withdraw() {
	if !b.waits {
		return
	}
	b.of.mu.Lock()
	defer b.of.mu.Unlock()
	if b.stopWaiting(); len(b.of.waiting) == 0 {
		b.of.release()
	}
}

// end ends a batch. Loops of the process that wait ask again.
func (b *batchTurn) end() {
	if b.of == nil {
		return
	}
	b.of.mu.Lock()
	defer b.of.mu.Unlock()
	b.of.running--
	b.of.release()
}

// release gives up the turn if no batch of the process runs.
func (t *gpuTurn) release() {
	if t.running == 0 {
		t.turn.Release()
	}
}

// takeTurnOnGPU reports whether the picked batch may begin on the GPU.
func (l *loop) takeTurnOnGPU(done <-chan struct{}) bool {
	if l.turns.gpu.of == nil {
		return true
	}
	l.ring.Settle()
	if l.turns.gpu.take(l.rank(l.batch())) {
		return true
	}
	if l.flights.count == 0 {
		l.announce(done)
	}
	return false
}

// rank is the place of the picked batch among those of all processes.
func (l *loop) rank(batch []batching.Request) shm.Rank {
	rank := shm.Rank{Deadline: earliestDeadline(batch)}
	if !l.choice.Demoted {
		rank.Level = uint32(max(budget.MinLevel, l.account.orderedLevel()))
	}
	return rank
}

// demotedByTurn is the Demotable of a process that takes turns: a batch is demoted by its rank, on whatever
// stream the framework runs it.
type demotedByTurn struct{}

// Demotable returns true.
func (demotedByTurn) Demotable(int, int) bool { return true }
