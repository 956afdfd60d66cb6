package datapath

import (
	"math"
	"os"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/penstock/penstock/shm"
)

// Queue passes the requests of a port to one instance of its function: to the process whose
// generation has the ring. Its reply thread passes the results back.
//
// Any goroutine may call its methods.
type Queue struct {
	port    *Port
	index   int
	log     zerolog.Logger
	channel *shm.Channel
	stopped atomic.Bool // tells the reply thread to end

	// Guarded by Port.mu.
	inFlight int  // requests
	serving  bool // a process has the ring
	pace     pace
	arrivals int // requests since the queue was made
	window   Window
	// The reply thread answers for processes that cannot: requests that these generations had
	// started, and requests that have waited since before expireBefore.
	abandoned    []uint32
	expireBefore time.Duration

	// resting: the reply thread only waits for replies; it does not check deadlines.
	resting atomic.Bool
}

// forever is later than any runclock.Now.
const forever = time.Duration(math.MaxInt64)

func newQueue(p *Port, name string, index int) (*Queue, error) {
	channel, err := shm.NewChannel(name, p.geometry)
	if err != nil {
		return nil, err
	}
	return &Queue{port: p, index: index, log: p.log.With().Int("instance", index).Logger(), channel: channel}, nil
}

// stop tells the reply thread to end.
func (q *Queue) stop() {
	q.stopped.Store(true)
	q.channel.Wake()
}

// Files returns what a process maps: the request table, the ring and the replies. The queue
// owns them.
func (q *Queue) Files() []*os.File {
	return []*os.File{q.port.table.File(), q.channel.RingFile(), q.channel.RepliesFile()}
}

// HandOver gives the ring to the process of a generation, as soon as the present owner releases
// it.
func (q *Queue) HandOver(generation uint32) { q.channel.SetEpoch(generation) }

// Epoch is the generation that should have the ring.
func (q *Queue) Epoch() uint32 { return q.channel.Epoch() }

// Owner is the generation that has the ring according to the process that took it. Processes
// write it: it may have any value.
func (q *Queue) Owner() uint32 { return q.channel.Owner() }

// SetServing tells whether a process has the ring. A queue without a process gets a request
// only if no other queue has one.
func (q *Queue) SetServing(serving bool) {
	q.port.mu.Lock()
	q.serving = serving
	q.port.mu.Unlock()
}

// Abandon takes the ring from the process of a generation that has ended. The reply thread
// first handles the requests that the process had finished. Then it answers `failed` for those
// that the process had started. The next process gets the others. Abandon reports whether the process
// had started any.
func (q *Queue) Abandon(generation uint32) (started bool) {
	q.port.mu.Lock()
	q.abandoned = append(q.abandoned, generation)
	for slot := range q.flying {
		stage, by := q.channel.Stage(slot)
		started = started || stage == shm.StageStarted && by == generation
	}
	q.port.mu.Unlock()
	q.channel.Disown(generation)
	q.channel.Wake()
	return started
}

// PassOn passes requests to the queues that will answer them soonest: those that no process has taken, and if the queue's
// own process has ended, all that none has started. A queue that is still open keeps them if no other has a process.
func (q *Queue) PassOn() {
	p := q.port
	p.mu.Lock()
	defer p.mu.Unlock()
	for slot, fl := range q.flying {
		to := p.soonest()
		stage, _ := q.channel.Stage(slot)
		taken := stage == shm.StageStarted || stage == shm.StagePending && q.serving
		if to == q || !to.serving && q.index < p.open || taken || q.channel.Withdraw(slot) != nil {
			continue
		}
		fl.queue = to
		q.inFlight--
		to.inFlight++
		to.arrivals++
		to.channel.Publish(slot)
	}
}

// ExpireBefore answers `failed` for all requests that have waited since before that time, as Oldest
// counts.
func (q *Queue) ExpireBefore(at time.Duration) {
	q.port.mu.Lock()
	q.expireBefore = at
	q.port.mu.Unlock()
	q.channel.Wake()
}

// Rouse wakes a reply thread that rests although a request is in flight. The control loop calls
// it at each tick, because publishing a request must not cost a system call.
func (q *Queue) Rouse() {
	if !q.resting.Load() {
		return
	}
	q.port.mu.Lock()
	flying := q.inFlight > 0
	q.port.mu.Unlock()
	if flying {
		q.channel.Wake()
	}
}

// Oldest returns since when the oldest unanswered request has waited, by runclock.Now; 0 if there is
// none. A request waits from when it was published. One whose deadline is later than the objective may
// wait longer, and counts later by that time: perhaps in the future.
func (q *Queue) Oldest() time.Duration {
	q.port.mu.Lock()
	defer q.port.mu.Unlock()
	oldest := time.Duration(0)
	for _, fl := range q.flying {
		if oldest == 0 || fl.since < oldest {
			oldest = fl.since
		}
	}
	return oldest
}

// Overdue reports whether the deadline of a request in flight has passed, by shm.Now.
func (q *Queue) Overdue(now int64) bool {
	q.port.mu.Lock()
	defer q.port.mu.Unlock()
	for slot, fl := range q.flying {
		if fl.answered || q.port.table.Request(slot).Deadline <= now {
			return true
		}
	}
	return false
}

// flying yields the requests in flight and their slots. It stops after the last one. The slot that
// was freed last is taken first, so slots that were never needed are not visited. The caller holds
// Port.mu, and ends no request meanwhile.
func (q *Queue) flying(yield func(slot uint32, fl *flight) bool) {
	flights := q.port.flights
	for slot, left := 0, q.inFlight; left > 0; slot++ {
		if fl := &flights[slot]; fl.queue == q {
			if !yield(uint32(slot), fl) {
				return
			}
			left--
		}
	}
}

// Arrivals counts the requests since the queue was made.
func (q *Queue) Arrivals() int {
	q.port.mu.Lock()
	defer q.port.mu.Unlock()
	return q.arrivals
}

// Window returns the window statistics so far.
func (q *Queue) Window() Window {
	q.port.mu.Lock()
	defer q.port.mu.Unlock()
	return q.window
}

// NextWindow begins a new window.
func (q *Queue) NextWindow() {
	q.port.mu.Lock()
	defer q.port.mu.Unlock()
	q.window = q.window.next()
}
