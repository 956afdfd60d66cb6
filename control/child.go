package control

// The link between the orchestrator and a child is a socket pair. The child inherits its
// end as ChildFD. Each direction carries JSON objects, one per packet of the socket (SOCK_SEQPACKET): an
// orchestrator that dies while it reads or writes leaves no partial one to the next.
//
//	orchestrator                         child
//	1 socket pair, Greeting, spawn
//	2 Order{start, version} ───────────> OpenChild checks the version
//	3 ReadNotice  <───── Notice{version, pid, starting}, the handshake
//	4 Order{wake, share, drain} ───────> Orders
//	5 ReadNotice  <───── Notify{loaded … draining, or failed and why}
//	6 Close ───────────────────────────> Orders is closed: the child must end
//
// In both directions, end of file means that the other side has ended.
//
// A worker hosts several inference functions, its members. Each member has the same
// conversation over the worker's link: its orders and notices carry its name. Its first
// order is a start, and its last notice says that it has exited.

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/penstock/penstock/control/runclock"
	"github.com/penstock/penstock/internal/unixsock"
)

// maxChildBytes is the max length of an order or notice. The longest valid one is a
// failure whose reason quotes a framework.
const maxChildBytes = 64 << 10

var childLimits = unixsock.Limits{SendBytes: maxChildBytes, ReceiveBytes: maxChildBytes}

// childLink is one end of the socket pair.
type childLink struct {
	*unixsock.Link
	mu sync.Mutex // guards the write deadline
}

// newChildLink takes ownership of f, and closes it.
func newChildLink(f *os.File) (*childLink, error) {
	l, err := unixsock.OpenLink(f, childLimits)
	if err != nil {
		return nil, fmt.Errorf("open child link: %w", err)
	}
	return &childLink{Link: l}, nil
}

func (l *childLink) send(message any) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	err := runclock.Within(writeTimeout, l.SetWriteDeadline, func() error { return l.Send(message) })
	switch {
	case err == nil:
		return nil
	case errors.Is(err, os.ErrDeadlineExceeded):
		err = fmt.Errorf("%w: the peer does not read", ErrPeerTimeout)
	case isClosed(err), errors.Is(err, net.ErrClosed): // the reader closes this end when the peer has gone
		err = fmt.Errorf("%w: %w", ErrHungUp, err)
	}
	return fmt.Errorf("send to peer: %w", err)
}

// receive returns the next message, which is valid until the next call. io.EOF means that the peer has ended.
func (l *childLink) receive() ([]byte, error) {
	text, _, err := l.Receive()
	if err != nil && err != io.EOF {
		err = fmt.Errorf("receive from peer: %w", err)
	}
	return text, err
}

// Parent is the orchestrator's end of the link to one child.
type Parent struct {
	l              *childLink
	versionChecked bool
}

// Greeting encodes the first order as it is written to the link.
func Greeting(s Start) ([]byte, error) {
	s.Version = Version
	b, err := unixsock.NewLink(nil, childLimits).Encode(Order{Do: DoStart, Start: &s})
	if err != nil {
		return nil, fmt.Errorf("encode start: %w", err)
	}
	return b, nil
}

// NewParent opens the orchestrator's end of a link to a child, and takes ownership of f.
// shook: another orchestrator has already read the child's first notice.
func NewParent(f *os.File, shook bool) (*Parent, error) {
	l, err := newChildLink(f)
	if err != nil {
		return nil, err
	}
	return &Parent{l: l, versionChecked: shook}, nil
}

// Order sends o. Any goroutine may call it. It returns ErrPeerTimeout if the child leaves its
// orders unread, and ErrHungUp if the child has closed its end or exited. It sets the
// version of a Start.
func (p *Parent) Order(o Order) error {
	if o.Start != nil {
		start := *o.Start
		start.Version = Version
		o.Start = &start
	}
	return p.l.send(o)
}

// ReadNotice waits for the child's next notice. Only one goroutine may call it. The first
// notice is the handshake; for a child of another version it returns a *VersionError. It
// returns io.EOF when the child has gone, or after Close.
func (p *Parent) ReadNotice() (Notice, error) {
	var n Notice
	line, err := p.l.receive()
	if err != nil {
		return n, err
	}
	if !p.versionChecked {
		if err := peekVersion("child", line); err != nil {
			return n, err
		}
		p.versionChecked = true
	}
	if err := decodeStrict(line, &n); err != nil {
		return n, fmt.Errorf("read notice: %w", err)
	}
	if !n.State.Known() {
		return n, fmt.Errorf("read notice: %w: state %q", ErrBadMessage, n.State)
	}
	return n, nil
}

// Close closes the link. The child then sees its Orders closed, and ends.
func (p *Parent) Close() error { return p.l.Close() }

// Child is the child's end, which libml uses: of a process, or of a member of a worker.
type Child struct {
	l      *childLink
	start  Start
	member string // empty: of a process
	orders chan Order

	members chan *Child        // of a worker: those that begin
	leave   func(Notice) error // of a member: removes it from its worker, and sends its last notice

	stop     chan struct{}
	stopOnce sync.Once
	read     sync.WaitGroup
}

// maxUnread is how many orders a member may leave unread. Until it has loaded its model it reads
// none, and the orchestrator sends it a few at most.
const maxUnread = 64

// OpenChild opens the end that this process inherited as ChildFD, waits for the Start,
// and completes the handshake. The orchestrator then sees the process as starting.
//
// It returns ErrNotStarted if there is no such end, and ErrPeerTimeout if the orchestrator
// sends nothing. If the orchestrator has another version, OpenChild informs it and
// returns a *VersionError.
func OpenChild() (*Child, error) {
	if err := checkInherited(ChildFD); err != nil {
		return nil, err
	}
	unix.CloseOnExec(ChildFD) // a grandchild with this descriptor would hide this process's death
	return NewChild(os.NewFile(ChildFD, "orchestrator link"))
}

// checkInherited refuses any other kind of file that may be open under the number.
func checkInherited(fd int) error {
	domain, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN)
	if err != nil {
		return fmt.Errorf("%w: no socket is open as descriptor %d (%w); name this program as the command of a card, and `penstock up` starts it",
			ErrNotStarted, fd, err)
	}
	kind, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE)
	if err != nil {
		return fmt.Errorf("%w: descriptor %d: %w", ErrNotStarted, fd, err)
	}
	if domain != unix.AF_UNIX || kind != unix.SOCK_SEQPACKET {
		return fmt.Errorf("%w: descriptor %d is not a link to an orchestrator", ErrNotStarted, fd)
	}
	return nil
}

// NewChild is OpenChild with f. It takes ownership of f.
func NewChild(f *os.File) (*Child, error) {
	l, err := newChildLink(f)
	if err != nil {
		return nil, err
	}
	c := &Child{l: l, orders: make(chan Order), members: make(chan *Child), stop: make(chan struct{})}
	if err := c.shake(); err != nil {
		l.Close()
		return nil, err
	}
	c.read.Go(c.receive)
	return c, nil
}

func (c *Child) shake() error {
	var line []byte
	err := runclock.Within(handshakeTimeout, c.l.SetReadDeadline, func() (err error) {
		line, err = c.l.receive()
		return err
	})
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("wait for start: %w: no message for %v", ErrPeerTimeout, handshakeTimeout)
	}
	if err != nil {
		return fmt.Errorf("wait for start: %w", err)
	}
	var versions struct {
		Start struct {
			Version int `json:"version"`
		} `json:"start"`
	}
	if err := json.Unmarshal(line, &versions); err != nil {
		return fmt.Errorf("wait for start: %w: %w", ErrBadMessage, err)
	}
	if err := checkVersion("orchestrator", versions.Start.Version); err != nil {
		// Best effort: the child's log has this error as well.
		_ = c.l.send(Notice{Version: Version, PID: os.Getpid(), State: Failed, Reason: err.Error()})
		return err
	}
	var o Order
	if err := decodeStrict(line, &o); err != nil {
		return fmt.Errorf("wait for start: %w", err)
	}
	if o.Do != DoStart || o.Start == nil {
		return fmt.Errorf("wait for start: %w: order %q came first", ErrBadMessage, o.Do)
	}
	c.start = *o.Start
	if err := c.l.SetReadDeadline(time.Time{}); err != nil {
		return fmt.Errorf("wait for start: %w", err)
	}
	return c.Notify(Notice{Version: Version, PID: os.Getpid(), State: Starting})
}

// Start returns the orchestrator's first order.
func (c *Child) Start() Start { return c.start }

// Orders returns the channel of the orders after Start. It is closed when the orchestrator has gone or
// sends an invalid message. The process must then end.
func (c *Child) Orders() <-chan Order { return c.orders }

// Members returns the channel of the members that the orchestrator starts in this worker. It is
// closed with Orders. The caller must Exit each member.
func (c *Child) Members() <-chan *Child { return c.members }

// maxReasonBytes is the max length of a reason. JSON takes up to six bytes for one of it.
const maxReasonBytes = 8 << 10

// Notify sends n to the orchestrator. Any goroutine may call it. It cuts a reason of more than 8 KiB.
func (c *Child) Notify(n Notice) error {
	n.Member = c.member
	n.Reason = strings.ToValidUTF8(n.Reason[:min(len(n.Reason), maxReasonBytes)], "")
	return c.l.send(n)
}

// Exit ends a member: it tells the orchestrator that the member has ended, because of err unless
// that is nil. The member must not be used any more.
func (c *Child) Exit(err error) error {
	c.stopOnce.Do(func() { close(c.stop) })
	n := Notice{State: Stopped, Exited: true}
	if err != nil {
		n.State, n.Reason = Failed, err.Error()
	}
	return c.leave(n)
}

// Close closes the link of a process and waits for the reading goroutine. Orders is then closed.
func (c *Child) Close() error {
	c.stopOnce.Do(func() { close(c.stop) })
	err := c.l.Close()
	c.read.Wait()
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// receive passes on orders until the orchestrator has gone, or breaks the protocol.
func (c *Child) receive() {
	hosted := hostedMembers{worker: c, members: map[string]*Child{}}
	defer hosted.end()
	defer close(c.orders)
	for {
		line, err := c.l.receive()
		if err != nil {
			return
		}
		var o Order
		if err := decodeStrict(line, &o); err != nil {
			return
		}
		if o.Member != "" {
			if !hosted.receive(o) {
				return
			}
			continue
		}
		if o.check() != nil {
			return
		}
		select {
		case c.orders <- o:
		case <-c.stop:
			return
		}
	}
}

// hostedMembers are the members of a worker.
type hostedMembers struct {
	worker *Child

	mu      sync.Mutex // guards members
	members map[string]*Child
}

// receive passes on an order for a member. It returns false if the worker cannot go on.
func (h *hostedMembers) receive(o Order) bool {
	if o.Do == DoStart {
		return h.begin(o)
	}
	h.mu.Lock()
	m := h.members[o.Member]
	h.mu.Unlock()
	if o.check() != nil {
		return false
	}
	if m == nil {
		// It has exited. An earlier orchestrator may have read that, and ended before it noted it.
		return h.worker.l.send(Notice{Member: o.Member, State: Stopped, Exited: true}) == nil
	}
	select {
	case m.orders <- o:
		return true
	default:
		return false // it hangs, and takes no orders
	}
}

func (h *hostedMembers) begin(o Order) bool {
	w := h.worker
	if w.start.Worker == "" || o.Start == nil {
		return false
	}
	m := &Child{l: w.l, start: *o.Start, member: o.Member, orders: make(chan Order, maxUnread), stop: make(chan struct{})}
	m.leave = func(n Notice) error {
		h.mu.Lock() // until the notice is sent: an order in between would be answered before it
		defer h.mu.Unlock()
		delete(h.members, m.member)
		return m.Notify(n)
	}
	h.mu.Lock()
	if h.members[o.Member] != nil {
		h.mu.Unlock()
		return false
	}
	h.members[o.Member] = m
	h.mu.Unlock()
	if m.Notify(Notice{Version: Version, PID: os.Getpid(), State: Starting}) != nil {
		return false
	}
	select {
	case w.members <- m:
		return true
	case <-w.stop:
		return false
	}
}

// end closes the members' orders: the orchestrator has gone.
func (h *hostedMembers) end() {
	close(h.worker.members)
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, m := range h.members {
		close(m.orders)
	}
}

// check refuses an order that must not follow a Start.
func (o Order) check() error {
	switch o.Do {
	case DoWake, DoShare:
		return checkShare("order", o.SharePercent)
	case DoDrain, DoReport, DoPrepared:
		return nil
	default:
		return fmt.Errorf("%w: order %q", ErrBadMessage, o.Do)
	}
}
