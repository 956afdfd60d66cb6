package profiler

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock/client"
	"github.com/penstock/penstock/profiler/sweep"
)

// clients is the number of sockets of a load. Several of them use several of the source's receive calls and of
// the kernel's queues.
const clients = 2

// load sends pictures to a function in a closed loop: the next request when one has ended.
type load struct {
	picture  []byte
	clients  []*client.Client
	stopping atomic.Bool
	open     sync.WaitGroup // requests that have not ended

	mu      sync.Mutex // guards the following
	counted sweep.Window
	err     error // of the first request that failed
}

// newLoad keeps at least inFlight requests in flight until stop.
func newLoad(ctx context.Context, port, inFlight int, picture []byte) (*load, error) {
	l := &load{picture: picture}
	each := (inFlight + clients - 1) / clients
	for range clients {
		var c *client.Client
		c, err := client.Dial(ctx, fmt.Sprintf("127.0.0.1:%d", port), client.Options{
			InFlight: each, QueueLimit: max(8192, each), Timeout: profiledSLO,
			Deliver: func(r *client.Result) { l.ended(c, r) },
		})
		if err != nil {
			l.stop()
			return nil, err
		}
		l.clients = append(l.clients, c)
	}
	for _, c := range l.clients {
		for range each {
			if err := l.send(c); err != nil {
				l.stop()
				return nil, err
			}
		}
	}
	return l, nil
}

func (l *load) send(c *client.Client) error {
	l.open.Add(1)
	_, err := c.Send(l.picture, client.RequestOptions{Deadline: profiledSLO})
	if err != nil {
		l.open.Done()
		return fmt.Errorf("send request: %w", err)
	}
	return nil
}

func (l *load) ended(c *client.Client, r *client.Result) {
	defer l.open.Done()
	var err error
	if !l.stopping.Load() {
		err = l.send(c)
	}

	l.mu.Lock()
	defer l.mu.Unlock()
	if r.Status != client.StatusOK {
		err = fmt.Errorf("a request was answered %s", r.Status)
	}
	if l.err == nil {
		l.err = err
	}
	l.counted.Images++
	if r.Batch > 0 {
		l.counted.Batches += 1 / float64(r.Batch)
		l.counted.BatchTime += (r.Stages.Gather + r.Stages.Infer) / time.Duration(r.Batch)
	}
}

// take returns what was counted since the last call, without the time.
func (l *load) take() (sweep.Window, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	w := l.counted
	l.counted = sweep.Window{}
	return w, l.err
}

// stop waits until all requests have ended.
func (l *load) stop() {
	l.stopping.Store(true)
	l.open.Wait()
	for _, c := range l.clients {
		c.Close()
	}
}
