// Package client sends pictures to a Penstock manager and brings the results
// back. It keeps to docs/wire.md: it is within the manager's credit, paces
// itself, sends again what a retransmit wish names, and puts results in pieces
// together.
//
// A request's way:
//
//		Send ──> queued ──credit──> flying ──answer──────> Deliver
//		           │                  │ └─ wish: the pieces named go again
//		           │                  │ └─ silence for ResendAfter: piece 0 goes again
//		           │                  │ └─ busy, with a new cookie: piece 0 goes again
//		           ├── late           │
//		           └── Timeout ───────┴─────────────────> Deliver with an error
//
//	 1. Send queues the request and never blocks (client.go). A queued request that
//	    can no longer be answered in time is dropped (queue.go).
//	 2. The sending goroutine takes it when the credit allows, and puts its
//	    pieces on the wire as the pace allows (send.go, credit.go, pace.go,
//	    transmit.go).
//	 3. The receiving goroutine finds the request that a datagram answers
//	    (receive.go).
//	 4. Whichever goroutine ends the request delivers it, once.
//
// One lock, Client.mu, guards the requests; nothing is sent, received or
// delivered under it. Deliver runs under Client.deliverMu alone, which is taken
// with mu free.
package client

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/penstock/penstock/wire"
)

// The errors that a Result may carry, and that Send returns.
var (
	// ErrUnanswered is a request's end when no whole answer came within Timeout.
	ErrUnanswered = errors.New("no answer within the timeout")
	// ErrLate is a request's end when it waited for credit for so long that its answer
	// would have come too late: after its Deadline, or after the function's objective.
	// Not one byte of it left. (A request that was sent in vain is answered
	// wire.StatusLate.)
	ErrLate = errors.New("late: no credit in time, not sent")
	// ErrUnsent is a request's end when the credit did not allow to send it
	// within Timeout: not one byte of it left.
	ErrUnsent = errors.New("no credit within the timeout")
	// ErrResultSize is a request's end when its answer is larger than
	// MaxResultBytes.
	ErrResultSize = errors.New("result larger than allowed")
	// ErrClosed is a request's end when the client is closed, and what Send
	// returns after.
	ErrClosed = errors.New("client closed")
	// ErrQueueFull is returned by Send when QueueLimit requests wait.
	ErrQueueFull = errors.New("queue full")
	// ErrPictureSize is returned by Send for a picture without bytes, or with
	// more than wire.MaxPieces pieces hold.
	ErrPictureSize = errors.New("picture empty or too large")
)

// StatusError is the error that Do returns for an answer other than ok.
type StatusError wire.Status

func (e StatusError) Error() string { return "answered " + wire.Status(e).String() }

// Options say how a client behaves; the zero value is a good client.
type Options struct {
	// Deliver is called for the end of each request that Send accepted, exactly
	// once, from one goroutine at a time. The Result and its Payload belong to
	// the client again when Deliver returns. It should be quick, for answers wait
	// behind it; it may call Send, and must not call Do or Close. May be nil.
	Deliver func(*Result)
	// PieceBytes is how a picture is split, wire.DefaultPieceBytes by default. A
	// manager refuses pieces below 512 bytes by default, unless the picture is one.
	PieceBytes int
	// Pad fills each datagram up to a multiple of wire.PaddingUnit, so that
	// payloads keep their alignment where a receiver packs datagrams together.
	Pad bool
	// InFlight is how many requests may be in flight before the first answer
	// says, 8 by default.
	InFlight int
	// QueueLimit is how many requests may wait for credit, 8,192 by default. Their wait
	// is bounded by time as well, see ErrLate.
	QueueLimit int
	// PaceBytes is how many bytes a second leave at most, headers included; 0
	// leaves the speed to the credit alone.
	PaceBytes int64
	// BurstBytes is how many bytes may leave at once where there is a pace:
	// 128 KiB by default, which fits the receive buffer that Linux gives a socket
	// by default (net.core.rmem_default is 208 KiB, and counts overhead too).
	BurstBytes int
	// Timeout is when a request ends unanswered or unsent, counted from Send; 2 s
	// by default.
	Timeout time.Duration
	// ResendAfter is the silence after which piece 0 is sent again, to learn how
	// the request is doing; it doubles with each time. 100 ms by default. A request
	// that lost pieces asks sooner: see package recovery.
	ResendAfter time.Duration
	// MaxResultBytes bounds a result's payload, 16 MiB by default.
	MaxResultBytes int
	// NoSegmentation sends each datagram by itself even where the kernel could
	// cut a train of them (UDP_SEGMENT).
	NoSegmentation bool
}

// The defaults of Options.
const (
	defaultInFlight       = 8
	defaultQueueLimit     = 8192
	defaultBurstBytes     = 128 << 10
	defaultTimeout        = 2 * time.Second
	defaultResendAfter    = 100 * time.Millisecond
	defaultMaxResultBytes = 16 << 20

	// socketBytes is asked for as send and receive buffer; the kernel cuts it to
	// net.core.wmem_max and rmem_max.
	socketBytes = 4 << 20
)

// complete fills in the defaults and checks the rest.
func (o *Options) complete() error {
	set := func(v *int, by int) {
		if *v == 0 {
			*v = by
		}
	}
	set(&o.PieceBytes, wire.DefaultPieceBytes)
	set(&o.InFlight, defaultInFlight)
	set(&o.QueueLimit, defaultQueueLimit)
	set(&o.BurstBytes, defaultBurstBytes)
	set(&o.MaxResultBytes, defaultMaxResultBytes)
	if o.Timeout == 0 {
		o.Timeout = defaultTimeout
	}
	if o.ResendAfter == 0 {
		o.ResendAfter = defaultResendAfter
	}
	switch {
	case o.PieceBytes < 1 || o.PieceBytes > wire.MaxPieceBytes-wire.PaddingUnit:
		return fmt.Errorf("piece bytes %d: want 1 to %d", o.PieceBytes, wire.MaxPieceBytes-wire.PaddingUnit)
	case o.InFlight < 0, o.QueueLimit < 0, o.BurstBytes < 0, o.MaxResultBytes < 0, o.PaceBytes < 0, o.Timeout < 0, o.ResendAfter < 0:
		return errors.New("an option is negative")
	}
	return nil
}

// RequestOptions say what one request wants. The zero value wants nothing
// special.
type RequestOptions struct {
	// Deadline is how long after Intended an answer is still worth having; 0 means the
	// function's latency objective, which the first answer tells. A longer one makes the
	// request wait longer for credit. The manager still answers late what it cannot
	// answer within the objective from its arrival.
	Deadline time.Duration
	// Priority is higher for what should go first.
	Priority uint8
	// Intended is when the request was meant to leave, on Now's clock; 0 means
	// now. An open-loop generator counts its latency from it, whatever time the
	// request spends waiting for credit.
	Intended int64
	// Tag comes back in the Result.
	Tag uint64
}

// Result is a request's end. Times are on Now's clock, in nanoseconds.
type Result struct {
	// Result is the manager's answer; it says nothing where Err is set.
	wire.Result
	// Payload is the answer's, of wire.Result's Kind.
	Payload []byte
	// Err is why there is no answer.
	Err error

	ID  uint32
	Tag uint64
	// Intended is as in RequestOptions, Queued when Send was called, Sent when
	// the first piece left (0 if none did), Received when the answer's last piece
	// arrived, or the request ended without.
	Intended, Queued, Sent, Received int64
	// Resends is how many pieces were sent again.
	Resends int
}

// Client is one UDP socket to one address. Its methods may be called from any
// goroutine.
type Client struct {
	options Options
	conn    *net.UDPConn
	sender  sender
	counts  counts

	wake      chan struct{} // the sender has something new to look at
	closing   chan struct{}
	loops     sync.WaitGroup
	closeOnce sync.Once

	deliverMu sync.Mutex // held while Deliver runs

	mu       sync.Mutex          // guards all below, and the requests
	unread   sync.Cond           // on mu: a request's picture is no longer being read
	requests map[uint32]*request // all that have not ended, by id
	queued   queue               // wait for credit
	flying   list                // in the order that they were sent in
	sending  list                // flying, with pieces to send now
	checkAt  int64               // when the next of the flying may need attention
	credit   credit
	cookie   uint64 // of the last answer that had one
	nextID   uint32
	closed   bool
	free     []*request
}

// Dial opens a client to addr ("host:port"). No datagram is sent: whether
// somebody listens there is not known before the first answer. The caller
// closes the client.
func Dial(ctx context.Context, addr string, o Options) (*Client, error) {
	if err := o.complete(); err != nil {
		return nil, fmt.Errorf("dial %s: %w", addr, err)
	}
	conn, err := new(net.Dialer).DialContext(ctx, "udp", addr)
	if err != nil {
		return nil, fmt.Errorf("dial manager: %w", err)
	}
	c := &Client{
		options:  o,
		conn:     conn.(*net.UDPConn),
		wake:     make(chan struct{}, 1),
		closing:  make(chan struct{}),
		requests: make(map[uint32]*request),
		queued:   queue{list: list{in: inLife}, checkAt: math.MaxInt64},
		flying:   list{in: inLife},
		sending:  list{in: inSending},
		credit:   credit{more: o.InFlight},
		// A client that comes back on the same port must not meet the answers
		// of its forerunner's requests.
		nextID: rand.Uint32(),
	}
	c.unread.L = &c.mu
	// The kernel grants what it allows; less is slower, not wrong.
	_ = c.conn.SetReadBuffer(socketBytes)
	_ = c.conn.SetWriteBuffer(socketBytes)
	raw, err := c.conn.SyscallConn()
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("dial manager: %w", err)
	}
	c.sender = sender{
		out:   newTransmitter(raw, !o.NoSegmentation),
		pace:  newPace(o.PaceBytes, int64(o.BurstBytes), Now()),
		timer: time.NewTimer(time.Hour),
	}
	in := newReceiver(raw)
	c.loops.Add(2)
	go func() {
		defer c.loops.Done()
		c.send()
	}()
	go func() {
		defer c.loops.Done()
		c.receive(in)
	}()
	return c, nil
}

// LocalAddr is the address that the manager answers to.
func (c *Client) LocalAddr() netip.AddrPort {
	return c.conn.LocalAddr().(*net.UDPAddr).AddrPort()
}

// Send queues a picture and returns its request id; its end comes through
// Deliver, perhaps before Send returns. Send never blocks. The picture is not
// copied: the caller must leave it as it is until the request's end is
// delivered (one picture may be in many requests at once). It returns
// ErrQueueFull, ErrPictureSize and ErrClosed, and then nothing is delivered.
func (c *Client) Send(picture []byte, o RequestOptions) (id uint32, err error) {
	return c.submit(picture, o, nil)
}

// Do sends a picture and waits for its end; Deliver does not see it. The
// picture is the caller's again when Do returns, and so is the result with its
// payload. It returns ctx's error, StatusError for an answer other than ok, and
// the errors of Send and of Result.
func (c *Client) Do(ctx context.Context, picture []byte, o RequestOptions) (Result, error) {
	wait := make(chan Result, 1)
	id, err := c.submit(picture, o, wait)
	if err != nil {
		return Result{}, fmt.Errorf("send picture: %w", err)
	}
	var r Result
	select {
	case r = <-wait:
	case <-ctx.Done():
		c.withdraw(id, ctx.Err())
		r = <-wait
	}
	switch {
	case r.Err != nil:
		return r, fmt.Errorf("request %d: %w", id, r.Err)
	case r.Status != wire.StatusOK:
		return r, fmt.Errorf("request %d: %w", id, StatusError(r.Status))
	}
	return r, nil
}

func (c *Client) submit(picture []byte, o RequestOptions, wait chan Result) (uint32, error) {
	count := wire.Pieces(len(picture), c.options.PieceBytes)
	if len(picture) == 0 || count > wire.MaxPieces || uint64(len(picture)) > 1<<32-1 {
		return 0, ErrPictureSize
	}
	now := Now()
	if o.Intended == 0 {
		o.Intended = now
	}
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return 0, ErrClosed
	}
	if c.queued.n >= c.options.QueueLimit {
		c.mu.Unlock()
		return 0, ErrQueueFull
	}
	for c.requests[c.nextID] != nil { // only after 2^32 requests within a timeout
		c.nextID++
	}
	r := c.newRequestLocked()
	r.id, r.picture, r.count, r.options, r.wait = c.nextID, picture, count, o, wait
	r.queuedAt, r.timeoutAt = now, now+int64(c.options.Timeout)
	c.nextID++
	c.requests[r.id] = r
	c.queued.push(r, c.credit.roundTrip)
	id := r.id
	c.mu.Unlock()
	c.wakeSender()
	return id, nil
}

// withdraw ends a request, if it has not ended, with err.
func (c *Client) withdraw(id uint32, err error) {
	c.mu.Lock()
	r := c.findLocked(id)
	if r == nil {
		c.mu.Unlock()
		return
	}
	c.giveUpLocked(r, Now(), err)
	c.mu.Unlock()
	c.deliver(r)
	c.wakeSender()
}

// findLocked is the request of that id, its picture not being read, or nil when
// there is none, or it ended while its picture was read. mu is free for as long
// as the sender takes to read the picture.
func (c *Client) findLocked(id uint32) *request {
	for {
		r := c.requests[id]
		if r == nil || !r.reading {
			return r
		}
		c.unread.Wait()
	}
}

// giveUpLocked ends a request without an answer.
func (c *Client) giveUpLocked(r *request, now int64, err error) {
	if r.flying && !r.probe {
		c.credit.unanswered()
	}
	r.result.Err = err
	c.endLocked(r, now)
}

// endLocked takes a request out of everything; the caller, who has set what the
// answer says, delivers it with mu free.
func (c *Client) endLocked(r *request, now int64) {
	delete(c.requests, r.id)
	if r.flying {
		c.flying.remove(r)
	} else {
		c.queued.remove(r)
	}
	if r.isIn(inSending) {
		c.sending.remove(r)
	}
	r.result.ID, r.result.Tag = r.id, r.options.Tag
	r.result.Intended, r.result.Queued, r.result.Sent = r.options.Intended, r.queuedAt, r.sentAt
	r.result.Received, r.result.Resends = now, r.resends
}

// deliver tells the owner of a request its end, and recycles it. mu is free.
func (c *Client) deliver(r *request) {
	if r.wait != nil {
		result := r.result
		result.Payload = append([]byte(nil), result.Payload...)
		r.wait <- result
	} else if c.options.Deliver != nil {
		c.deliverMu.Lock()
		c.options.Deliver(&r.result)
		c.deliverMu.Unlock()
	}
	c.mu.Lock()
	c.recycleLocked(r)
	c.mu.Unlock()
}

func (c *Client) wakeSender() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// Close ends every request that has not ended with ErrClosed, and returns when
// all ends are delivered and nothing of the client runs any more.
func (c *Client) Close() error {
	var err error
	c.closeOnce.Do(func() {
		c.mu.Lock()
		c.closed = true
		c.mu.Unlock()
		close(c.closing)
		err = c.conn.Close()
		c.loops.Wait()

		// Submit is refused and both loops are gone: the requests left are
		// nobody's but ours, and those that a Do withdraws at the same time.
		for {
			c.mu.Lock()
			var r *request
			for _, r = range c.requests {
				break
			}
			if r == nil {
				c.mu.Unlock()
				return
			}
			c.giveUpLocked(r, Now(), ErrClosed)
			c.mu.Unlock()
			c.deliver(r)
		}
	})
	if err != nil {
		return fmt.Errorf("close client: %w", err)
	}
	return nil
}
