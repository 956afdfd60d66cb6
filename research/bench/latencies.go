package bench

import (
	"context"
	"sync"
	"time"

	"github.com/penstock/penstock/client"
	"github.com/penstock/penstock/loadgen"
	"github.com/penstock/penstock/shm"
)

// latencies collects the latencies of ok answers.
type latencies struct {
	mu         sync.Mutex // guards byFunction
	byFunction map[string][]time.Duration
}

// dialer returns a dialer whose streams record the requests of d's. They skip those of the warm-up.
func (l *latencies) dialer(d loadgen.Dialer, warmup time.Duration) loadgen.Dialer {
	began := shm.Now()
	return func(ctx context.Context, f loadgen.Function, stream int, deliver func(*client.Result)) (loadgen.Sender, error) {
		s := &timedSender{intended: map[uint64]int64{}}
		var err error
		s.Sender, err = d(ctx, f, stream, func(r *client.Result) {
			if at := s.take(r.Tag); r.Err == nil && r.Status == client.StatusOK && at >= began+int64(warmup) {
				l.mu.Lock()
				l.byFunction[f.Name] = append(l.byFunction[f.Name], time.Duration(shm.Nanos(r.Received)-at))
				l.mu.Unlock()
			}
			deliver(r)
		})
		return s, err
	}
}

// timedSender records the scheduled times of its requests.
type timedSender struct {
	loadgen.Sender

	mu       sync.Mutex // guards intended
	intended map[uint64]int64
}

func (s *timedSender) Send(picture []byte, intended int64, tag uint64) error {
	s.mu.Lock()
	s.intended[tag] = intended
	s.mu.Unlock()
	return s.Sender.Send(picture, intended, tag)
}

// take removes the scheduled time of a request.
func (s *timedSender) take(tag uint64) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	at := s.intended[tag]
	delete(s.intended, tag)
	return at
}
