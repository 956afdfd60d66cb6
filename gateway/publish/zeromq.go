package publish

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-zeromq/zmq4"
	"github.com/rs/zerolog"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/control/zmtp"
)

// The limits of what a subscriber can ask for.
const (
	maxTopics = 64
	maxTopic  = 256 // bytes
)

// errTopics is returned to a subscriber that wants too many topics.
var errTopics = errors.New("subscriber has too many topics")

// zeromq publishes messages to the subscribers of a socket. Each has a queue, so that a slow one
// loses its own answers.
type zeromq struct {
	spec    *configs.Publish
	dropped *atomic.Uint64
	log     zerolog.Logger

	listener net.Listener
	closing  chan struct{}      // closed: subscribers get what waits, and no more
	end      context.CancelFunc // ends all connections
	served   sync.WaitGroup

	mu            sync.Mutex // guards below
	subscriptions map[*subscription]bool
}

// subscription is a connection with its topics. The mutex of zeromq guards the topics.
type subscription struct {
	conn   *zmtp.Conn
	queue  *queue
	topics map[string]bool
}

func (z *zeromq) open(context.Context) error {
	l, err := zmtp.Listen(z.spec.Address)
	if err != nil {
		return err
	}
	ctx, end := context.WithCancel(context.Background())
	z.listener, z.closing, z.end, z.subscriptions = l, make(chan struct{}), end, map[*subscription]bool{}
	limits := zmtp.Limits{Bytes: 1 + maxTopic, Parts: 1, Timeout: z.spec.Timeout, Idle: true}
	z.served.Go(func() { zmtp.Serve(ctx, l, zmq4.Pub, limits, z.log, z.serve) })
	return nil
}

// lost never ends: a socket has no peer that it needs.
func (z *zeromq) lost() <-chan struct{} { return make(chan struct{}) }

// close lets subscribers read what waits for them, for a moment.
func (z *zeromq) close() {
	if z.listener == nil {
		return // open failed
	}
	close(z.closing)
	z.listener.Close()
	defer time.AfterFunc(drainTimeout/2, z.end).Stop()
	z.served.Wait()
	z.end()
	z.listener = nil
}

func (m *message) topic() string { return m.stream + "/" + m.function }

// send puts a message into the queue of each subscription that has its topic.
func (z *zeromq) send(_ context.Context, m message) error {
	topic := []byte(m.topic())
	z.mu.Lock()
	defer z.mu.Unlock()
	for s := range z.subscriptions {
		for wanted := range s.topics {
			if bytes.HasPrefix(topic, []byte(wanted)) {
				s.queue.put(m)
				break
			}
		}
	}
	return nil
}

// serve runs the connection of a subscriber.
func (z *zeromq) serve(c *zmtp.Conn) error {
	s := &subscription{conn: c, queue: newQueue(), topics: map[string]bool{}}
	s.queue.dropped = z.dropped
	z.mu.Lock()
	z.subscriptions[s] = true
	z.mu.Unlock()

	defer func() {
		z.mu.Lock()
		delete(z.subscriptions, s)
		z.mu.Unlock()
	}()
	return c.Exchange(func() error { return z.read(s) }, func(ended <-chan struct{}) error { return s.write(z.closing, ended) })
}

// read follows the topics of a subscriber: messages of one byte, 1 to begin and 0 to end, and the
// first bytes of the topics.
func (z *zeromq) read(s *subscription) error {
	for {
		m, err := s.conn.Next()
		if err != nil {
			return err
		}
		text, _, err := m.Part(1 + maxTopic)
		if err != nil || len(text) == 0 {
			return err
		}
		z.mu.Lock()
		switch topic := string(text[1:]); {
		case text[0] == 0:
			delete(s.topics, topic)
		case len(s.topics) < maxTopics || s.topics[topic]:
			s.topics[topic] = true
		default:
			err = fmt.Errorf("%w, want at most %d", errTopics, maxTopics)
		}
		z.mu.Unlock()
		if err != nil {
			return err
		}
	}
}

// write sends the messages of the queue, which drops old ones.
func (s *subscription) write(closing, ended <-chan struct{}) error {
	for {
		m, ok := s.queue.take()
		if !ok {
			select {
			case <-s.queue.more:
			case <-closing:
				return nil
			case <-ended:
				return nil
			}
			continue
		}
		if err := s.conn.Send([]byte(m.topic()), m.text, m.payload); err != nil {
			return fmt.Errorf("send answer: %w", err)
		}
	}
}
