package udp

import (
	"fmt"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Move changes the port of a group of sources. The new port is bound but not received from
// until Commit. Either Commit or Abort ends the Move.
//
// After Commit a source receives from both ports for a while. An answer leaves through the
// port to which its client last sent.
type Move struct {
	sources []*Source
	opened  []*Source // each holds the socket for the source of the same index, and nothing else
}

// OpenMove opens a port for sources that OpenSeveral opened together. Its errors are those of
// Open.
func OpenMove(sources []*Source, listen netip.AddrPort) (*Move, error) {
	m := &Move{sources: sources}
	for i, s := range sources {
		o := s.options
		o.Listen = listen
		opened := &Source{socket: -1, event: -1, former: formerPort{socket: -1}, inet6: s.inet6}
		m.opened = append(m.opened, opened)
		if err := opened.listen(o, i, len(sources)); err != nil {
			m.Abort()
			return nil, fmt.Errorf("open UDP port %v: %w", listen, err)
		}
	}
	return m, nil
}

// Abort closes the port.
func (m *Move) Abort() {
	for _, s := range m.opened {
		_ = s.closeDescriptors()
	}
}

// Commit makes the sources receive from the new port, and closes the old one after linger. It
// waits for reads and sends in progress.
func (m *Move) Commit(linger time.Duration) {
	for i, s := range m.sources {
		s.adopt(m.opened[i], linger)
	}
	// Let datagrams in only now: the kernel spreads clients over all sockets of the port.
	for _, s := range m.sources {
		_ = attachFilter(s.socket, int(s.shedder.steps.Load()))
	}
}

// adopt makes the socket of opened the source's; the source's own becomes the former one for
// linger.
func (s *Source) adopt(opened *Source, linger time.Duration) {
	defer s.lock()()
	if s.closed.Load() {
		_ = opened.closeDescriptors()
		return
	}
	s.closeFormerLocked() // of an earlier Move
	s.former.socket, s.socket = s.socket, opened.socket
	s.local.Store(opened.local.Load())
	s.gro, s.recvBuffer = opened.gro, opened.recvBuffer
	s.dropsBefore = s.kernelDrops.Load()
	s.reader.fromFormer = true // what was read and is not delivered yet
	s.former.clients.reset()
	s.former.moves++
	this := s.former.moves
	time.AfterFunc(linger, func() { s.closeFormer(this) })
}

// lock takes mu for writing, which wakes a Receive that sleeps while it holds mu. It returns
// the function that unlocks.
func (s *Source) lock() (unlock func()) {
	s.awaited.Add(1)
	s.Wake()
	s.mu.Lock()
	s.awaited.Add(-1)
	return s.mu.Unlock
}

// closeFormer closes the socket of the port before a Move.
func (s *Source) closeFormer(move int) {
	defer s.lock()()
	if move == s.former.moves && !s.closed.Load() {
		s.closeFormerLocked()
	}
}

// closeFormerLocked needs mu held for writing.
func (s *Source) closeFormerLocked() {
	if s.former.socket >= 0 {
		_ = unix.Close(s.former.socket)
		s.former.socket = -1
		s.former.clients.reset()
	}
}

// formerPort is the old port after a Move.
type formerPort struct {
	socket  int       // -1 unless it is open
	moves   int       // the number of Moves
	clients clientSet // those that use the new port while both are open
}

// maxClients bounds a clientSet. Clients beyond it are answered through the former port.
const maxClients = 1 << 16

// clientSet is a set of addresses. Any goroutine may use it.
type clientSet struct {
	mu sync.Mutex // guards the following
	at map[netip.AddrPort]struct{}
}

func (c *clientSet) reset() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at = nil
}

func (c *clientSet) add(client netip.AddrPort) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.at == nil {
		c.at = map[netip.AddrPort]struct{}{}
	}
	if len(c.at) < maxClients {
		c.at[client] = struct{}{}
	}
}

func (c *clientSet) remove(client netip.AddrPort) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.at, client)
}

func (c *clientSet) has(client netip.AddrPort) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, ok := c.at[client]
	return ok
}
