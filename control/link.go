package control

// The way of a state, from Publish on one side to the channel on the other:
//
//	1 Publish encodes it and keeps it as the latest        (any goroutine)
//	2 talk's writer sends the latest, at once and then each RepeatEvery
//	3 zmtp reads it within limits                           (package zmtp)
//	4 decode checks the version, then the whole state       (check.go)
//	5 the latest wins in a channel of one                   (offer)
//
// The manager's end listens, and accepts one peer at a time. The orchestrator's end dials
// again whenever the connection breaks. A connection breaks when the peer is gone, is
// silent for PeerTimeout, does not read, or sends a message that decode refuses.

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-zeromq/zmq4"
	"github.com/rs/zerolog"

	"github.com/penstock/penstock/control/runclock"
	"github.com/penstock/penstock/control/zmtp"
	"github.com/penstock/penstock/internal/unixsock"
)

// ManagerLink is the manager's end: it publishes Desired and receives Observed. Any
// goroutine may call its methods.
type ManagerLink struct {
	l        link[Observed]
	listener *Listener
}

// ListenManager opens the manager's end in the runtime folder dir, which it makes if
// needed. It waits for an orchestrator in the background. It returns ErrInUse if another
// manager listens there.
//
// Publish soon, even if the state is empty. Until then the orchestrator receives nothing,
// and treats the manager as silent.
func ListenManager(dir string, log zerolog.Logger) (*ManagerLink, error) {
	listener, err := openListener("unix", filepath.Join(dir, linkSocketName))
	if err != nil {
		return nil, fmt.Errorf("open manager's link: %w", err)
	}
	m := &ManagerLink{listener: listener}
	m.l.init("orchestrator", decodeObserved, log)
	m.l.background.Go(m.accept)
	return m, nil
}

// Publish makes d the state that the orchestrator receives from now on. It sets the
// version, keeps no reference to d, and never blocks on the peer. If the peer would refuse the
// state (Desired.Check), or if it is too long, Publish returns an error and changes
// nothing.
func (m *ManagerLink) Publish(d Desired) error {
	d.Version = Version
	if err := d.Check(); err != nil {
		return fmt.Errorf("publish desired state: %w", err)
	}
	return m.l.publish(d)
}

// Observed returns the channel of the states that the orchestrator repeats, unchanged ones
// too. It holds one, so a late reader gets the latest. Close closes the channel.
func (m *ManagerLink) Observed() <-chan Observed { return m.l.in }

// PeerAlive reports whether a valid state arrived within the last PeerTimeout of this
// process's running time (package runclock).
func (m *ManagerLink) PeerAlive() bool { return m.l.alive() }

// Restore makes the file of the link's socket again; see Listener.Restore.
func (m *ManagerLink) Restore() (restored bool, err error) { return m.listener.Restore() }

// Close ends the link, waits for its goroutines, and removes the socket file.
func (m *ManagerLink) Close() error {
	m.l.cancel()
	err := m.listener.Close()
	m.l.finish()
	return err
}

// maxMessageBytes is the max length of a Desired or Observed. A process takes about 200
// bytes in either, so there is room for about 5,000 processes.
const maxMessageBytes = 1 << 20

var linkLimits = zmtp.Limits{Bytes: maxMessageBytes, Parts: 1, Timeout: PeerTimeout}

// maxConnections is the max number of connections at once. One is for the peer, the rest for an occasional probe.
const maxConnections = 8

func (m *ManagerLink) accept() {
	failed := func(err error) { m.l.log.Error().Err(err).Msg("cannot accept orchestrator") }
	unixsock.Serve(m.l.ctx, m.listener, maxConnections, failed, func(c *net.UnixConn) { m.l.serve(c, true) })
}

// OrchestratorLink is the orchestrator's end: it publishes Observed and receives Desired.
// Any goroutine may call its methods.
type OrchestratorLink struct {
	l      link[Desired]
	exists atomic.Bool
}

// DialOrchestrator opens the orchestrator's end in the runtime folder dir. The manager
// need not exist yet: the link dials again every RepeatEvery, for ever.
func DialOrchestrator(dir string, log zerolog.Logger) (*OrchestratorLink, error) {
	path := filepath.Join(dir, linkSocketName)
	if err := checkSocketPath(path); err != nil {
		return nil, fmt.Errorf("open orchestrator's link: %w", err)
	}
	o := &OrchestratorLink{}
	o.l.init("manager", decodeDesired, log)
	o.l.background.Go(func() { o.dial(path) })
	return o, nil
}

// Publish makes s the state that the manager receives from now on; see
// ManagerLink.Publish.
func (o *OrchestratorLink) Publish(s Observed) error {
	s.Version = Version
	if err := s.Check(); err != nil {
		return fmt.Errorf("publish observed state: %w", err)
	}
	return o.l.publish(s)
}

// Desired returns the channel of the states that the manager repeats; see
// ManagerLink.Observed.
func (o *OrchestratorLink) Desired() <-chan Desired { return o.l.in }

// PeerAlive is like ManagerLink.PeerAlive.
func (o *OrchestratorLink) PeerAlive() bool { return o.l.alive() }

// PeerExists reports whether a process holds the manager's end, according to the kernel:
// it is connected, or it listens. If PeerAlive is then false, the peer is stopped or
// hangs.
func (o *OrchestratorLink) PeerExists() bool { return o.exists.Load() }

// Close ends the link and waits for its goroutines.
func (o *OrchestratorLink) Close() error {
	o.l.cancel()
	o.l.finish()
	return nil
}

func (o *OrchestratorLink) dial(path string) {
	var dialer net.Dialer
	for o.l.ctx.Err() == nil {
		c, err := dialer.DialContext(o.l.ctx, "unix", path)
		o.exists.Store(err == nil)
		if err == nil {
			o.l.serve(c.(*net.UnixConn), false)
		}
		// Retry after a refusal as well: another peer may soon be on the other side.
		o.l.sleep(RepeatEvery)
	}
}

// link is the common part of both ends. In is the type that the peer publishes.
type link[In any] struct {
	peer   string // kind of peer, for the log
	decode func([]byte) (In, error)
	log    zerolog.Logger

	ctx        context.Context
	cancel     context.CancelFunc
	background sync.WaitGroup

	in       chan In
	closeIn  sync.Once
	received atomic.Int64  // runclock.Now of the last valid state, plus 1; 0: never
	changed  chan struct{} // holds one value: out is newer than what was sent

	mu      sync.Mutex
	out     []byte // this side's latest state, encoded; nil before the first
	current *zmtp.Conn
	lastErr string // the reason last logged for a broken connection
}

func (l *link[In]) init(peer string, decode func([]byte) (In, error), log zerolog.Logger) {
	l.peer, l.decode, l.log = peer, decode, log
	l.ctx, l.cancel = context.WithCancel(context.Background())
	l.in = make(chan In, 1)
	l.changed = make(chan struct{}, 1)
}

func (l *link[In]) publish(state any) error {
	b, err := json.Marshal(state)
	if err != nil {
		return fmt.Errorf("publish state: %w", err)
	}
	if len(b) > maxMessageBytes {
		return fmt.Errorf("publish state: %w: %d bytes, at most %d", ErrTooLong, len(b), maxMessageBytes)
	}
	l.mu.Lock()
	l.out = b
	l.mu.Unlock()
	l.sendState()
	return nil
}

// sendState wakes the writer to send the present value of out.
func (l *link[In]) sendState() {
	select {
	case l.changed <- struct{}{}:
	default:
	}
}

func (l *link[In]) alive() bool {
	heard := l.received.Load()
	return heard != 0 && runclock.Now()-time.Duration(heard-1) < PeerTimeout
}

// finish waits for the background goroutines, and closes the channel that they write to.
func (l *link[In]) finish() {
	l.background.Wait()
	l.closeIn.Do(func() { close(l.in) })
}

func (l *link[In]) sleep(d time.Duration) {
	select {
	case <-time.After(d):
	case <-l.ctx.Done():
	}
}

// serve runs the connection c until it breaks.
func (l *link[In]) serve(c *net.UnixConn, server bool) {
	// From here on Close reaches the connection, even during the handshake.
	defer context.AfterFunc(l.ctx, func() { c.Close() })()

	z, err := l.shake(c, server)
	if err == nil {
		err = l.exchange(z)
		z.Close()
	}
	l.note(err)
}

func (l *link[In]) shake(c *net.UnixConn, server bool) (*zmtp.Conn, error) {
	if _, err := unixsock.Peer(c, os.Getuid()); err != nil {
		c.Close()
		return nil, err
	}
	return zmtp.Open(c, zmq4.Pair, server, linkLimits)
}

// exchange exchanges states with the peer. It refuses a second peer while the first one is
// connected. A dead first peer blocks the second for at most PeerTimeout.
func (l *link[In]) exchange(z *zmtp.Conn) error {
	l.mu.Lock()
	if l.current != nil {
		l.mu.Unlock()
		return fmt.Errorf("%w: one %s is connected already", ErrInUse, l.peer)
	}
	l.current = z
	l.mu.Unlock()

	read := func() error {
		err := l.read(z)
		// Free the place before the peer sees the end, so that a peer that reconnects at once
		// finds it free.
		l.mu.Lock()
		l.current = nil
		l.mu.Unlock()
		return err
	}
	err := z.Exchange(read, func(ended <-chan struct{}) error { return l.write(z, ended) })
	l.sendState() // wakes the present writer: the last one may have taken the signal of a change
	return err
}

func (l *link[In]) write(z *zmtp.Conn, done <-chan struct{}) error {
	repeat := time.NewTicker(RepeatEvery)
	defer repeat.Stop()
	for {
		l.mu.Lock()
		out := l.out
		l.mu.Unlock()
		if out != nil {
			if err := z.Send(out); err != nil {
				return fmt.Errorf("send state: %w", err)
			}
		}
		select {
		case <-done:
			return nil
		case <-l.changed:
		case <-repeat.C:
		}
	}
}

func (l *link[In]) read(z *zmtp.Conn) error {
	for first := true; ; first = false {
		m, err := z.Next()
		if err != nil {
			return err
		}
		text, err := io.ReadAll(m)
		if err != nil {
			return err
		}
		state, err := l.decode(text)
		if err != nil {
			return err
		}
		l.received.Store(int64(runclock.Now()) + 1)
		offerDesired(l.in, state)
		if first {
			l.mu.Lock()
			l.lastErr = ""
			l.mu.Unlock()
			l.log.Info().Str("peer", l.peer).Msg("peer connected")
		}
	}
}

// note logs how a connection ended. It logs the same reason once, as a peer of another
// version reconnects every RepeatEvery.
func (l *link[In]) note(err error) {
	if l.ctx.Err() != nil {
		return
	}
	level := zerolog.WarnLevel
	if errors.Is(err, io.EOF) || isClosed(err) {
		level = zerolog.InfoLevel // a normal exit
	}
	l.mu.Lock()
	again := err.Error() == l.lastErr
	l.lastErr = err.Error()
	l.mu.Unlock()
	if !again {
		l.log.WithLevel(level).Err(err).Str("peer", l.peer).Msg("peer disconnected")
	}
}

// offerDesired puts v into a channel of one, and replaces a value that was not read.
func offerDesired[T any](c chan T, v T) {
	for {
		select {
		case c <- v:
			return
		default:
		}
		select {
		case <-c:
		default:
		}
	}
}
