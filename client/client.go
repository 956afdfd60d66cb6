// Package client sends pictures to a Penstock manager and returns the results.
// It follows docs/wire.md: it stays within the manager's credit and paces
// itself. It sends again the fragments that a NACK names, and
// assembles results from fragments.
//
// The path of a request:
//
//		Send ──> queued ──credit──> flying ──answer──────> Deliver
//		           │                  │ └─ NACK: the fragments named go again
//		           │                  │ └─ silence for ResendAfter: fragment 0 goes again
//		           │                  │ └─ busy, with a new cookie: fragment 0 goes again
//		           │                  │ └─ refused, needs a token: all goes again with one (key.go)
//		           │<─────────────────┤ └─ moved, or its node is silent: to another node (path.go)
//		           ├── late           │
//		           └── Timeout ───────┴─────────────────> Deliver with an error
//
//	 1. Send queues the request and never blocks (client.go). A queued request that
//	    can no longer be answered in time is dropped (queue.go).
//	 2. The sending goroutine takes it when the credit allows, and sends its fragments
//	    as the pace allows (send.go, credit.go, pace.go, transmit.go).
//	 3. The receiving goroutine finds the request that a datagram answers
//	    (receive.go).
//	 4. Whichever goroutine ends the request delivers it, once.
//
// One lock, Client.mu, guards the requests. Sends, receives and deliveries
// happen without it. Deliver runs under Client.deliverMu alone, which is taken
// while mu is free.
package client

import (
	"cmp"
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
	// ErrUnanswered ends a request for which no complete answer came within
	// Timeout.
	ErrUnanswered = errors.New("no answer within the timeout")
	// ErrLate ends a request that waited for credit for so long that its answer
	// would have come too late: after its Deadline, or after the function's
	// objective. No byte of it was sent. (A request that was sent but is late
	// has an answer with StatusLate.)
	ErrLate = errors.New("no credit before the deadline")
	// ErrUnreachable ends a request because no process listens at the address. It
	// comes with the first sign of that (ICMP port unreachable), or after Timeout if
	// the address has answered before: the manager may be restarting.
	ErrUnreachable = errors.New("no process listens at the address")
	// ErrUnsent ends a request that could not be sent within Timeout for lack
	// of credit. No byte of it was sent.
	ErrUnsent = errors.New("no credit within the timeout")
	// ErrResultSize ends a request whose answer is larger than MaxResultBytes.
	ErrResultSize = errors.New("result is larger than MaxResultBytes")
	// ErrKey is in the error of Do if the function has keys: Options.KeyFile is empty, or has another key first.
	ErrKey = errors.New("function needs a key")
	// ErrClosed ends a request when the client is closed. Send returns it
	// afterwards.
	ErrClosed = errors.New("client is closed")
	// ErrQueueFull is returned by Send when QueueLimit requests are waiting.
	ErrQueueFull = errors.New("send queue is full")
	// ErrPictureSize is returned by Send for a picture that is empty, or does
	// not fit wire.MaxFragments fragments.
	ErrPictureSize = errors.New("picture is empty or too large")
	// ErrPictureFormat is wrapped by the error of Send for a RequestOptions.Picture that is not the picture's, or that
	// the function does not take. It is that of a Result from a node that does not read the format.
	ErrPictureFormat = errors.New("function does not take the picture's format and size")
)

// StatusError is the error that Do returns for an answer other than ok.
type StatusError Status

func (e StatusError) Error() string { return "answered " + Status(e).String() }

// Options configure a client; the zero value gives a well-behaved client.
type Options struct {
	// Deliver is called for the end of each request that Send accepted, exactly
	// once, from one goroutine at a time. When Deliver returns, the client
	// reuses the Result and its Payload. Deliver should be quick, because other
	// answers wait for it. It may call Send, and must not call Do or Close. It
	// may be nil.
	Deliver func(*Result)
	// FragmentBytes is the size of a picture's fragments, wire.DefaultFragmentBytes by
	// default. By default a manager refuses fragments below 512 bytes, unless the
	// picture is a single fragment.
	FragmentBytes int
	// LocalFragmentBytes is FragmentBytes if the address is one of this machine, whose loopback device takes large
	// datagrams; FragmentBytes by default.
	LocalFragmentBytes int
	// InFlight is how many requests may be in flight before the first answer
	// sets the credit, 8 by default.
	InFlight int
	// QueueLimit is how many requests may wait for credit, 8,192 by default.
	// Time also bounds their wait, see ErrLate.
	QueueLimit int
	// PaceBytes is the max number of bytes sent per second, headers included.
	// With 0, only the credit limits the speed.
	PaceBytes int64
	// BurstBytes is how many bytes may be sent at once if there is a pace: 128
	// KiB by default. That fits the receive buffer that Linux gives a socket by
	// default (net.core.rmem_default is 208 KiB, and includes overhead).
	BurstBytes int
	// Timeout is how long after Send a request ends unanswered or unsent; 2 s
	// by default. Each new fragment of an answer begins it again.
	Timeout time.Duration
	// ResendAfter is the silence after which fragment 0 is sent again, to ask
	// about the request. It doubles with each question. 100 ms by default. A
	// request that lost fragments asks sooner: see package recovery.
	ResendAfter time.Duration
	// KeyFile is a file with a key of the function (docs/wire.md). The client reads the first key again when it needs a
	// token. It may be empty if the function has no keys.
	KeyFile string
	// Trusted are networks to whose nodes the client may be moved (docs/wire.md), in addition to the addresses that it
	// was given.
	Trusted []netip.Prefix
	// MaxResultBytes is the max size of a result's payload. The default is the largest answer, 64 MiB.
	MaxResultBytes int

	plain       bool // use a plainSocket even on Linux
	socketBytes int
}

// The defaults of Options.
const (
	defaultInFlight       = 8
	defaultQueueLimit     = 8192
	defaultBurstBytes     = 128 << 10
	defaultTimeout        = 2 * time.Second
	defaultResendAfter    = 100 * time.Millisecond
	defaultMaxResultBytes = wire.MaxFragments * wire.DefaultFragmentBytes

	// defaultSocketBytes is the requested size of the send and receive buffers. The
	// kernel limits it to net.core.wmem_max and rmem_max.
	defaultSocketBytes = 4 << 20
)

// complete fills in the defaults and checks the other options.
func (o *Options) complete() error {
	o.FragmentBytes = cmp.Or(o.FragmentBytes, wire.DefaultFragmentBytes)
	o.InFlight = cmp.Or(o.InFlight, defaultInFlight)
	o.QueueLimit = cmp.Or(o.QueueLimit, defaultQueueLimit)
	o.BurstBytes = cmp.Or(o.BurstBytes, defaultBurstBytes)
	o.MaxResultBytes = cmp.Or(o.MaxResultBytes, defaultMaxResultBytes)
	o.socketBytes = cmp.Or(o.socketBytes, defaultSocketBytes)
	o.Timeout = cmp.Or(o.Timeout, defaultTimeout)
	o.ResendAfter = cmp.Or(o.ResendAfter, defaultResendAfter)
	o.LocalFragmentBytes = cmp.Or(o.LocalFragmentBytes, o.FragmentBytes)
	switch n, local := o.FragmentBytes, o.LocalFragmentBytes; {
	case min(n, local) < 1 || max(n, local) > wire.MaxFragmentBytes:
		return fmt.Errorf("fragment bytes %d, %d on this machine: want 1 to %d", n, local, wire.MaxFragmentBytes)
	case o.InFlight < 0, o.QueueLimit < 0, o.BurstBytes < 0, o.MaxResultBytes < 0, o.PaceBytes < 0, o.Timeout < 0, o.ResendAfter < 0:
		return errors.New("options: want no negative value")
	}
	return nil
}

// RequestOptions are the options of one request. The zero value is an ordinary
// request.
type RequestOptions struct {
	// Deadline is how long after Intended an answer is still useful, at most a
	// minute. 0 means the function's latency objective, which the first answer
	// contains. A request with a longer deadline waits behind those with shorter
	// ones. Options.Timeout still ends it.
	Deadline time.Duration
	// Priority is higher for requests that should go first.
	Priority uint8
	// Stream identifies one of the client's streams. A function that keeps a state
	// per stream runs the requests of a stream in the order in which they arrive.
	Stream uint32
	// LowestScore, up to 1, is the score below which the answer has nothing. 0, or less than the card's threshold, means the
	// card's. wire.Narrow keeps only some classes of an answer.
	LowestScore float64
	// Picture is the format and shape of the picture, if they are not the card's. The function must have max_picture.
	Picture wire.Picture
	// Intended is the scheduled send time; the zero time means now. An
	// open-loop generator measures latency from it, however long the request
	// waits for credit.
	Intended time.Time
	// Tag is returned in the Result.
	Tag uint64
}

// Result is the end of a request.
type Result struct {
	ID  uint32
	Tag uint64
	// Status is that of the answer, StatusUnanswered if there is none. Err is then the reason.
	Status Status
	Err    error
	// Payload is the model's answer, if Status is StatusOK. Kind says what reads it: wire.DecodeTopK,
	// wire.DecodeBoxes or wire.DecodeRaw.
	Kind    wire.Kind
	Payload []byte
	// Batch is the number of requests in this request's batch, 0 if it did not run.
	Batch        int
	ModelVersion uint32
	// Credit is how many more requests of this client the manager had room for.
	Credit int
	// Missing is the number of missing fragments, with StatusIncomplete.
	Missing int
	// Objective is the latency objective of the function.
	Objective time.Duration
	// NeedsToken is set, with StatusRefused, if the function does not accept the client's key, or it has none.
	NeedsToken bool
	// PictureBytes is the size of the function's pictures. Only StatusRefused has it; 0 means that it is not known.
	PictureBytes int
	// LargestPicture is the size of the largest RequestOptions.Picture that the function takes; 0 means none.
	LargestPicture int
	// Stages divide the time that the request spent in the node.
	Stages Stages
	// Intended is that of RequestOptions. Queued is when Send was called, Sent when
	// the first fragment was sent (the zero time if none was). Received is when the answer's last
	// fragment arrived, or when the request ended without an answer. All are of Go's monotonic clock.
	Intended, Queued, Sent, Received time.Time
	// Resends is the number of fragments that were sent again.
	Resends int
}

// Stages are the times that a request spent in the stages of the manager, in whole microseconds. The time of a stage
// that it did not reach is 0.
//
//	Aggregate  first fragment arrived -> request complete
//	Queue      complete -> taken into a batch
//	Gather     taken -> fragments gathered into the batch tensor
//	Infer      gathered -> inferred
//	Reply      inferred -> answer leaves
type Stages struct {
	Aggregate, Queue, Gather, Infer, Reply time.Duration
}

// Times returns the times in the order of wire.StageNames.
func (s Stages) Times() [len(wire.StageNames)]time.Duration {
	return [...]time.Duration{s.Aggregate, s.Queue, s.Gather, s.Infer, s.Reply}
}

// setAnswer sets all that is from the manager.
func (r *Result) setAnswer(a *wire.Result, payload []byte) {
	r.Status, r.Kind, r.Payload = statusOf(a.Status), a.Kind, payload
	r.Batch, r.ModelVersion, r.Credit, r.Missing = int(a.Batch), a.ModelVersion, int(a.Credit), int(a.Missing)
	r.Objective, r.PictureBytes, r.LargestPicture, r.NeedsToken = a.Objective, int(a.PictureBytes), int(a.LargestPicture), a.NeedsToken
	r.Stages = Stages{a.Aggregate, a.Queue, a.Gather, a.Infer, a.Reply}
}

// Client is one UDP socket per node that it uses. Any goroutine may call its methods.
type Client struct {
	options Options
	given   []netip.AddrPort // the addresses of Dial
	follows bool             // it can be moved
	// fragmentBytes is the min size of a fragment on all paths.
	fragmentBytes int
	sender        sender
	counts        counts

	wake      chan struct{} // tells the sender that there is new work
	closing   chan struct{}
	loops     sync.WaitGroup
	closeOnce sync.Once

	deliverMu sync.Mutex // held while Deliver runs

	mu       sync.Mutex          // guards all below, and the requests
	unread   sync.Cond           // on mu: a request's picture is no longer being read
	requests map[uint32]*request // all requests that have not ended, by id
	queued   queue               // requests that wait for credit
	flying   flights
	nextID   uint32
	closed   bool
	// paths are all that are open. home is the node of requests, but away is until then, unless it is nil.
	paths      []*path
	home, away *path
	awayUntil  int64
	// assembling counts the requests of which some fragments of the answer have arrived, but not all.
	assembling int
	free       []*request
}

// flights are the requests that were sent or are being sent, in this order.
type flights struct {
	list
	sending list   // those with fragments to send now
	checkAt int64  // when one may next need attention
	refused uint64 // counts.unreachable at the last check
}

// Dial opens a client to addr: "host:port", or several with commas between them. All addresses of
// a host count. The client sends to one node, and goes on to the next address if that one is silent or sends the
// client there (docs/wire.md). Dial sends no datagram: only the first answer shows whether a manager
// listens there. The caller closes the client.
func Dial(ctx context.Context, addr string, o Options) (*Client, error) {
	if err := o.complete(); err != nil {
		return nil, fmt.Errorf("dial %s: %w", addr, err)
	}
	if o.KeyFile != "" {
		if _, err := readKeys(o.KeyFile); err != nil {
			return nil, fmt.Errorf("dial %s: %w", addr, err)
		}
	}
	given, err := resolve(ctx, addr)
	if err != nil {
		return nil, fmt.Errorf("dial manager: %w", err)
	}
	c := &Client{
		options:  o,
		given:    given,
		follows:  len(given) > 1 || len(o.Trusted) > 0,
		wake:     make(chan struct{}, 1),
		closing:  make(chan struct{}),
		requests: make(map[uint32]*request),
		queued:   queue{list: list{id: stageList}, checkAt: math.MaxInt64},
		flying:   flights{list: list{id: stageList}, sending: list{id: sendingList}},
		// A client that returns on the same port must not receive the answers
		// to its predecessor's requests.
		nextID: rand.Uint32(),
	}
	c.unread.L = &c.mu
	for i := 0; i < len(given) && c.home == nil; i++ {
		c.mu.Lock()
		c.home, err = c.openLocked(given[i])
		c.mu.Unlock()
	}
	if c.home == nil {
		return nil, fmt.Errorf("dial manager: %w", err)
	}
	c.fragmentBytes = c.home.fragmentBytes
	if c.follows {
		c.fragmentBytes = min(o.FragmentBytes, o.LocalFragmentBytes)
	}
	c.sender = sender{pace: newPace(o.PaceBytes, int64(o.BurstBytes), nanotime()), timer: time.NewTimer(time.Hour)}
	c.loops.Go(c.send)
	return c, nil
}

// isLocal reports whether the address of a connection is one of this machine: then it is the source's too.
func isLocal(conn net.Conn) bool {
	return conn.LocalAddr().(*net.UDPAddr).IP.Equal(conn.RemoteAddr().(*net.UDPAddr).IP)
}

// LocalAddr is the address to which the manager answers.
func (c *Client) LocalAddr() netip.AddrPort {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.pathLocked(nanotime()).conn.LocalAddr().(*net.UDPAddr).AddrPort()
}

// Send queues a picture and returns its request id. Deliver gets the request's
// end, perhaps before Send returns. Send never blocks. It does not copy the
// picture: the caller must not change it until the end is delivered. (One
// picture may be in many requests at once.) Send returns ErrQueueFull,
// ErrPictureSize, ErrPictureFormat and ErrClosed, and then nothing is delivered.
func (c *Client) Send(picture []byte, o RequestOptions) (id uint32, err error) {
	return c.submit(picture, o, nil)
}

// Do sends a picture and waits for its end; Deliver does not get it. When Do
// returns, the caller owns the picture again, and also the result with its
// payload. Do returns ctx's error, StatusError for an answer other than ok, and
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
	case r.NeedsToken && c.options.KeyFile == "":
		return r, fmt.Errorf("request %d: %w: %w: set KeyFile", id, StatusError(r.Status), ErrKey)
	case r.NeedsToken:
		return r, fmt.Errorf("request %d: %w: %w, and not the first of %s", id, StatusError(r.Status), ErrKey, c.options.KeyFile)
	case r.Status == StatusRefused && o.Picture.Format != 0:
		return r, fmt.Errorf("request %d: %w: %w", id, StatusError(r.Status), cmp.Or(o.Picture.Check(len(picture), r.LargestPicture), ErrPictureFormat))
	case r.Status == StatusRefused && r.PictureBytes != 0 && r.PictureBytes != len(picture):
		return r, fmt.Errorf("request %d: %w: the picture has %d bytes, and the function takes %d", id, StatusError(r.Status), len(picture), r.PictureBytes)
	case r.Status != StatusOK:
		return r, fmt.Errorf("request %d: %w", id, StatusError(r.Status))
	}
	return r, nil
}

func (c *Client) submit(picture []byte, o RequestOptions, wait chan Result) (uint32, error) {
	if len(picture) == 0 || wire.Fragments(len(picture), c.fragmentBytes) > wire.MaxFragments || uint64(len(picture)) > 1<<32-1 {
		return 0, ErrPictureSize
	}
	now := nanotime()
	intended := now
	if !o.Intended.IsZero() {
		intended = int64(o.Intended.Sub(origin))
	}
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return 0, ErrClosed
	}
	if o.Picture.Format != 0 {
		if err := o.Picture.Check(len(picture), c.pathLocked(now).largest); err != nil {
			c.mu.Unlock()
			return 0, fmt.Errorf("%w: %w", ErrPictureFormat, err)
		}
	}
	if c.queued.n >= c.options.QueueLimit {
		c.mu.Unlock()
		return 0, ErrQueueFull
	}
	for c.requests[c.nextID] != nil { // only after 2^32 requests within a timeout
		c.nextID++
	}
	r := c.newRequestLocked()
	r.id, r.picture, r.options, r.wait = c.nextID, picture, o, wait
	r.intended, r.queuedAt, r.timeoutAt = intended, now, now+int64(c.options.Timeout)
	c.nextID++
	c.requests[r.id] = r
	c.queued.push(r, c.pathLocked(now).credit.roundTrip)
	id := r.id
	c.mu.Unlock()
	c.wakeSender()
	return id, nil
}

// withdraw ends a request with err, if it has not ended.
func (c *Client) withdraw(id uint32, err error) {
	c.mu.Lock()
	r := c.findLocked(id)
	if r == nil {
		c.mu.Unlock()
		return
	}
	c.giveUpLocked(r, nanotime(), err)
	c.mu.Unlock()
	c.deliver(r)
	c.wakeSender()
}

// findLocked returns the request with that id when its picture is not being
// read. It returns nil if there is none, or if it ended while its picture was
// read. It releases mu while the sender reads the picture.
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
		r.path.credit.recordUnanswered()
	}
	r.result.Err = err
	c.endLocked(r, now)
}

// endLocked removes a request from all lists. The caller, which has set the
// answer, delivers it without holding mu.
func (c *Client) endLocked(r *request, now int64) {
	delete(c.requests, r.id)
	if r.flying {
		c.landLocked(r)
	} else {
		c.queued.remove(r)
	}
	r.result.ID, r.result.Tag = r.id, r.options.Tag
	r.result.Intended, r.result.Queued = timeAt(r.intended), timeAt(r.queuedAt)
	r.result.Sent, r.result.Received = timeAt(r.sentAt), timeAt(now)
	r.result.Resends = r.resend.total
}

// landLocked removes a request in flight from its lists.
func (c *Client) landLocked(r *request) {
	c.flying.remove(r)
	r.path.inFlight--
	if r.inList(sendingList) {
		c.flying.sending.remove(r)
	}
	if r.answer.received > 0 {
		c.assembling--
	}
}

// deliver passes a request's end to its owner, and recycles the request. mu is
// free.
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

// Close ends every remaining request with ErrClosed. It returns when all ends
// are delivered and no goroutine of the client runs any more.
func (c *Client) Close() error {
	var err error
	c.closeOnce.Do(func() {
		c.mu.Lock()
		c.closed = true
		for _, p := range c.paths {
			err = cmp.Or(err, p.conn.Close())
		}
		c.mu.Unlock()
		close(c.closing)
		c.loops.Wait()

		// Send returns ErrClosed and both loops have ended. Only this loop, and
		// a Do that is withdrawing its own request, still end requests.
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
			c.giveUpLocked(r, nanotime(), ErrClosed)
			c.mu.Unlock()
			c.deliver(r)
		}
	})
	if err != nil {
		return fmt.Errorf("close client: %w", err)
	}
	return nil
}
