package control

// The way of a state, from Publish on one side to the channel on the other:
//
//	1 Publish encodes it and keeps it as the latest        (any goroutine)
//	2 talk's writer sends the latest, at once and then each RepeatEvery
//	3 the guard bounds each frame, zmq4 reads it            (frameGuard, zmtpConn)
//	4 decode looks at the version, then at the whole        (check.go)
//	5 the latest wins in a channel of one                   (offer)
//
// Around it: the manager's end listens and takes one peer at a time, the
// orchestrator's end dials again whenever the connection breaks. A connection
// breaks when the peer is gone, is silent for SilentAfter, does not read, or says
// what decode refuses.

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

	"github.com/rs/zerolog"

	"github.com/penstock/penstock/control/runclock"
	"github.com/penstock/penstock/internal/unixsock"
)

// ManagerLink is the manager's end: it publishes Desired and hears Observed.
// All methods may be called from any goroutine.
type ManagerLink struct {
	l        link[Observed]
	listener *Listener
}

// ListenManager opens the manager's end in the runtime folder dir (made if it is
// not there) and waits for an orchestrator in the background. ErrInUse is
// returned when another manager listens there.
//
// Publish soon, if only an empty state: until then the orchestrator hears nothing
// and takes the manager for silent.
func ListenManager(dir string, log zerolog.Logger) (*ManagerLink, error) {
	listener, err := openListener("unix", filepath.Join(dir, linkSocketName))
	if err != nil {
		return nil, fmt.Errorf("open manager's link: %w", err)
	}
	m := &ManagerLink{listener: listener}
	m.l.init("orchestrator", decodeObserved, log)
	m.l.background.Add(1)
	go m.accept()
	return m, nil
}

// Publish makes d what the orchestrator is told from now on. It sets the version,
// keeps nothing of d, and never blocks on the peer. A state that the peer would
// refuse (Desired.Check), or that is too long, is an error and changes nothing.
func (m *ManagerLink) Publish(d Desired) error {
	d.Version = Version
	if err := d.Check(); err != nil {
		return fmt.Errorf("publish desired state: %w", err)
	}
	return m.l.publish(d)
}

// Observed gives the states that the orchestrator repeats, the unchanged ones
// too. It holds one: a reader that is late finds the latest. It is closed by Close.
func (m *ManagerLink) Observed() <-chan Observed { return m.l.in }

// PeerAlive reports whether a valid state came within SilentAfter of this process's
// running time (package runclock).
func (m *ManagerLink) PeerAlive() bool { return m.l.alive() }

// Restore is Listener.Restore of the link's socket.
func (m *ManagerLink) Restore() (restored bool, err error) { return m.listener.Restore() }

// Close ends the link, waits for its goroutines, and removes the socket file.
func (m *ManagerLink) Close() error {
	m.l.cancel()
	err := m.listener.Close()
	m.l.finish()
	return err
}

// maxStrangers is how many connections may be in their handshake at once. One
// peer is expected; the rest is for a probe or two.
const maxStrangers = 8

func (m *ManagerLink) accept() {
	defer m.l.background.Done()
	strangers := make(chan struct{}, maxStrangers)
	for {
		c, err := m.listener.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			// Out of descriptors, most likely; the next attempt may succeed.
			m.l.log.Error().Err(err).Msg("accept orchestrator")
			m.l.sleep(RepeatEvery)
			continue
		}
		select {
		case strangers <- struct{}{}:
		default:
			c.Close()
			continue
		}
		m.l.background.Add(1)
		go func() {
			defer m.l.background.Done()
			m.l.serve(c, true, func() { <-strangers })
		}()
	}
}

// OrchestratorLink is the orchestrator's end: it publishes Observed and hears
// Desired. All methods may be called from any goroutine.
type OrchestratorLink struct {
	l      link[Desired]
	exists atomic.Bool
}

// DialOrchestrator opens the orchestrator's end in the runtime folder dir. The
// manager need not be there: the link dials again, for ever, each RepeatEvery.
func DialOrchestrator(dir string, log zerolog.Logger) (*OrchestratorLink, error) {
	path := filepath.Join(dir, linkSocketName)
	if err := checkSocketPath(path); err != nil {
		return nil, fmt.Errorf("open orchestrator's link: %w", err)
	}
	o := &OrchestratorLink{}
	o.l.init("manager", decodeDesired, log)
	o.l.background.Add(1)
	go o.dial(path)
	return o, nil
}

// Publish makes s what the manager is told from now on; see ManagerLink.Publish.
func (o *OrchestratorLink) Publish(s Observed) error {
	s.Version = Version
	if err := s.Check(); err != nil {
		return fmt.Errorf("publish observed state: %w", err)
	}
	return o.l.publish(s)
}

// Desired gives the states that the manager repeats; see ManagerLink.Observed.
func (o *OrchestratorLink) Desired() <-chan Desired { return o.l.in }

// PeerAlive is ManagerLink.PeerAlive.
func (o *OrchestratorLink) PeerAlive() bool { return o.l.alive() }

// PeerExists reports whether a process holds the manager's end, as the kernel tells:
// it is connected, or it listens. If PeerAlive is false then, the peer is stopped or hangs.
func (o *OrchestratorLink) PeerExists() bool { return o.exists.Load() }

// Close ends the link and waits for its goroutines.
func (o *OrchestratorLink) Close() error {
	o.l.cancel()
	o.l.finish()
	return nil
}

func (o *OrchestratorLink) dial(path string) {
	defer o.l.background.Done()
	var dialer net.Dialer
	for o.l.ctx.Err() == nil {
		c, err := dialer.DialContext(o.l.ctx, "unix", path)
		o.exists.Store(err == nil)
		if err == nil {
			o.l.serve(c.(*net.UnixConn), false, func() {})
		}
		// After a refusal as after a failure: the other side may be another one soon.
		o.l.sleep(RepeatEvery)
	}
}

// link is what both ends share; In is what the peer publishes.
type link[In any] struct {
	peer   string // what the peer is, for the log
	decode func([]byte) (In, error)
	log    zerolog.Logger

	ctx        context.Context
	cancel     context.CancelFunc
	background sync.WaitGroup

	in      chan In
	closeIn sync.Once
	heard   atomic.Int64  // when the last valid state came, by runclock.Now, plus 1; 0 never
	changed chan struct{} // holds one: out is newer than what was sent

	mu      sync.Mutex
	out     []byte // the latest own state, encoded; nil before the first
	current *zmtpConn
	lastErr string // what was last logged about a broken connection
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
	l.tell()
	return nil
}

// tell has the writer send what out is now.
func (l *link[In]) tell() {
	select {
	case l.changed <- struct{}{}:
	default:
	}
}

func (l *link[In]) alive() bool {
	heard := l.heard.Load()
	return heard != 0 && runclock.Now()-time.Duration(heard-1) < SilentAfter
}

// finish waits for the background and closes what it wrote to.
func (l *link[In]) finish() {
	l.background.Wait()
	l.closeIn.Do(func() { close(l.in) })
}

func (l *link[In]) sleep(d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-l.ctx.Done():
	}
}

// serve talks over c until it breaks. shaken is called once the handshake is over.
func (l *link[In]) serve(c *net.UnixConn, server bool, shaken func()) {
	// From here on Close reaches the connection, in the handshake too.
	defer context.AfterFunc(l.ctx, func() { c.Close() })()

	z, err := l.shake(c, server)
	shaken()
	if err == nil {
		err = l.talk(z)
		z.close()
	}
	l.note(err)
}

func (l *link[In]) shake(c *net.UnixConn, server bool) (*zmtpConn, error) {
	if _, err := unixsock.Peer(c, os.Getuid()); err != nil {
		c.Close()
		return nil, err
	}
	return openZMTP(c, server)
}

// talk is the one conversation with the peer; a second peer is refused as long as
// the first lives, which is SilentAfter at most.
func (l *link[In]) talk(z *zmtpConn) error {
	l.mu.Lock()
	if l.current != nil {
		l.mu.Unlock()
		return fmt.Errorf("%w: one %s is connected already", ErrInUse, l.peer)
	}
	l.current = z
	l.mu.Unlock()

	done := make(chan struct{})
	written := make(chan error, 1)
	go func() {
		err := l.write(z, done)
		z.close() // ends read, too
		written <- err
	}()
	err := l.read(z)

	// The place is free before the peer sees the end: who comes back at once finds it so.
	l.mu.Lock()
	l.current = nil
	l.mu.Unlock()
	close(done)
	z.close() // ends a write that waits
	if werr := <-written; werr != nil && errors.Is(err, net.ErrClosed) {
		err = werr
	}
	l.tell() // whoever writes now: of a change that the last writer took for its own
	return err
}

func (l *link[In]) write(z *zmtpConn, done <-chan struct{}) error {
	repeat := time.NewTicker(RepeatEvery)
	defer repeat.Stop()
	for {
		l.mu.Lock()
		out := l.out
		l.mu.Unlock()
		if out != nil {
			if err := z.send(out); err != nil {
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

func (l *link[In]) read(z *zmtpConn) error {
	for first := true; ; first = false {
		m, err := z.receive()
		if err != nil {
			return err
		}
		state, err := l.decode(m)
		if err != nil {
			return err
		}
		l.heard.Store(int64(runclock.Now()) + 1)
		offer(l.in, state)
		if first {
			l.mu.Lock()
			l.lastErr = ""
			l.mu.Unlock()
			l.log.Info().Str("peer", l.peer).Msg("peer connected")
		}
	}
}

// note logs how a connection ended, the same reason once: a peer of another
// version comes back each RepeatEvery.
func (l *link[In]) note(err error) {
	if l.ctx.Err() != nil {
		return
	}
	level := zerolog.WarnLevel
	if errors.Is(err, io.EOF) || isClosed(err) {
		level = zerolog.InfoLevel // it went away, as processes do
	}
	l.mu.Lock()
	again := err.Error() == l.lastErr
	l.lastErr = err.Error()
	l.mu.Unlock()
	if !again {
		l.log.WithLevel(level).Err(err).Str("peer", l.peer).Msg("peer disconnected")
	}
}

// offer puts v into a channel of one, in place of what nobody took.
func offer[T any](c chan T, v T) {
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
