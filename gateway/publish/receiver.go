package publish

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/penstock/penstock/configs"
)

// sink brings messages to a receiver. One goroutine uses it.
type sink interface {
	// open prepares for send, after the start and after each failure.
	open(ctx context.Context) error
	// send delivers a message. The error is errRefused if the receiver will not take this message
	// later either. After any other error the message is sent again once open has succeeded.
	send(ctx context.Context, m message) error
	// lost is closed when the connection that open made has ended; nil for a sink without one.
	lost() <-chan struct{}
	// close releases what open took. It may be called without open, or after it failed.
	close()
}

// errRefused is wrapped by errors about a message that a receiver does not take.
var errRefused = errors.New("receiver refuses the answer")

// errLost is returned when a connection ends between two messages.
var errLost = errors.New("receiver closed the connection")

// The pauses after failures: minPause at first, then twice as long each time.
const (
	minPause = time.Second
	maxPause = 30 * time.Second
)

// The states of a receiver.
const (
	Starting = "starting" // nothing was delivered yet
	Running  = "running"
	Waiting  = "waiting" // to try again
)

// receiver sends the messages of its queue.
type receiver struct {
	spec   *configs.Publish
	place  string // where the receiver is, without secrets
	filter *filter
	queue  *queue
	sink   sink
	log    zerolog.Logger
	hide   []string // secrets that no error may show
	pause  time.Duration

	mu      sync.Mutex // guards below
	state   string
	since   time.Time // of state
	err     error
	sent    uint64
	refused uint64
}

// run sends until ctx ends and the queue is empty. hard ends it at once.
func (r *receiver) run(ctx, hard context.Context) {
	pause := r.pause
	for {
		before := r.sentCount()
		err := r.serve(ctx, hard)
		if err == nil || ctx.Err() != nil {
			return
		}
		if r.sentCount() > before {
			pause = r.pause
		}
		r.fail(err, pause)
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return
		}
		pause = min(2*pause, maxPause)
	}
}

// serve sends messages until the receiver fails, or until ctx ends and none is left.
func (r *receiver) serve(ctx, hard context.Context) error {
	defer r.sink.close()
	if err := r.sink.open(hard); err != nil {
		return err
	}
	lost := r.sink.lost()
	if lost != nil {
		r.succeed(0)
	}

	for {
		m, ok := r.queue.take()
		if !ok {
			select {
			case <-r.queue.more:
			case <-lost:
				return errLost
			case <-ctx.Done():
				return nil
			}
			continue
		}
		err := r.sink.send(hard, m)
		switch {
		case errors.Is(err, errRefused):
			r.refuse(err)
		case err != nil:
			r.queue.putBack(m)
			return err
		default:
			r.succeed(1)
		}
	}
}

func (r *receiver) sentCount() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.sent
}

// enterLocked changes the state and reports whether it was another one.
func (r *receiver) enterLocked(state string, err error) (changed bool) {
	changed = r.state != state
	if changed {
		r.state, r.since = state, time.Now()
	}
	r.err = err
	return changed
}

// succeed counts delivered messages. 0 means that the connection is there.
func (r *receiver) succeed(sent uint64) {
	r.mu.Lock()
	r.sent += sent
	changed := r.enterLocked(Running, nil)
	r.mu.Unlock()
	if changed {
		r.log.Info().Str("to", r.place).Msg("receiver takes answers")
	}
}

func (r *receiver) fail(err error, pause time.Duration) {
	err = r.clean(err)
	r.mu.Lock()
	changed := r.enterLocked(Waiting, err)
	r.mu.Unlock()
	if changed {
		r.log.Warn().Err(err).Str("to", r.place).Dur("pause_ms", pause).Msg("receiver takes no answers; trying again after growing pauses")
	} else {
		r.log.Debug().Err(err).Dur("pause_ms", pause).Msg("receiver takes no answers yet")
	}
}

// refuse counts a message that the receiver does not take. It logs the first one in a row.
func (r *receiver) refuse(err error) {
	err = r.clean(err)
	r.mu.Lock()
	first := r.err == nil
	r.enterLocked(Running, err)
	r.refused++
	r.mu.Unlock()
	if first {
		r.log.Warn().Err(err).Str("to", r.place).Msg("receiver refuses an answer, which is dropped")
	}
}

// maxError is the max length of a receiver's error, in bytes: other machines write parts of it.
const maxError = 300

// clean removes the secrets from an error's text.
func (r *receiver) clean(err error) error {
	text := err.Error()
	for _, secret := range r.hide {
		text = strings.ReplaceAll(text, secret, "***")
	}
	text = strings.Map(func(c rune) rune {
		if c < ' ' || c == 0x7f {
			return ' '
		}
		return c
	}, text)
	if len(text) > maxError {
		text = strings.ToValidUTF8(text[:maxError], "") + "..."
	}
	return errors.New(text)
}

// Status is what a receiver does.
type Status struct {
	Name string `json:"name"`
	Kind string `json:"kind"`
	// To is the receiver's place, without passwords, paths and queries of addresses.
	To string `json:"to"`
	// State is Starting, Running or Waiting, for that time. Error is why the last answer was not
	// delivered.
	State        string  `json:"state"`
	StateSeconds float64 `json:"state_s"`
	Error        string  `json:"error,omitempty"`
	// Each answer that passed the filter is counted once: it waits, or it was sent, or it was
	// dropped because the receiver was too slow, or the receiver refused it.
	Waiting int    `json:"waiting"`
	Sent    uint64 `json:"sent"`
	Dropped uint64 `json:"dropped"`
	Refused uint64 `json:"refused"`
}

func (r *receiver) status() Status {
	waiting, dropped := r.queue.counts()
	r.mu.Lock()
	defer r.mu.Unlock()
	s := Status{
		Name: r.spec.Name, Kind: string(r.spec.Kind), To: r.place, State: r.state, StateSeconds: time.Since(r.since).Seconds(),
		Waiting: waiting, Sent: r.sent, Dropped: dropped, Refused: r.refused,
	}
	if r.err != nil {
		s.Error = r.err.Error()
	}
	return s
}

// refusal is an errRefused with its reason.
func refusal(format string, args ...any) error {
	return fmt.Errorf("%w: %w", errRefused, fmt.Errorf(format, args...))
}
