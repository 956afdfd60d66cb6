package client

import (
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/penstock/penstock/wire"
)

const (
	// messageBytes holds the largest message: UDP_GRO packs at most 64 KiB.
	messageBytes = 64 << 10
	// receiveMessagesMax is how many messages a system call takes.
	receiveMessagesMax = 8
)

// receiver takes datagrams from the socket, many a system call. One goroutine
// uses it. Memory that no message reaches is never touched, so its 512 KiB
// cost little.
type receiver struct {
	raw      syscall.RawConn
	messages [receiveMessagesMax]message
	vectors  [receiveMessagesMax]unix.Iovec
	control  [receiveMessagesMax][controlBytes]byte
	memory   []byte

	read  func(fd uintptr) bool // the system call, built once
	came  int
	errno syscall.Errno
}

func newReceiver(raw syscall.RawConn) *receiver {
	in := &receiver{raw: raw, memory: make([]byte, receiveMessagesMax*messageBytes)}
	_ = raw.Control(func(fd uintptr) {
		// A kernel that cannot pack datagrams brings them one by one.
		_ = unix.SetsockoptInt(int(fd), unix.SOL_UDP, unix.UDP_GRO, 1)
	})
	in.read = func(fd uintptr) bool {
		for i := range in.messages {
			in.vectors[i] = vector(in.buffer(i))
			in.messages[i] = message{}
			in.messages[i].gather(in.vectors[i : i+1])
			in.messages[i].control(in.control[i][:])
		}
		in.came, in.errno = receiveMessages(fd, in.messages[:])
		return in.errno != unix.EAGAIN
	}
	return in
}

func (in *receiver) buffer(i int) []byte { return in.memory[i*messageBytes:][:messageBytes] }

// receive is the receiving goroutine.
func (c *Client) receive(in *receiver) {
	for {
		if err := in.raw.Read(in.read); err != nil {
			return // closed
		}
		switch in.errno {
		case 0:
		case unix.EINTR:
			continue
		case unix.ECONNREFUSED:
			// An ICMP answer to a datagram of ours. Somebody may listen again
			// before the requests time out.
			c.counts.unreachable.Add(1)
			continue
		default:
			c.counts.receiveError.Add(1)
			time.Sleep(time.Millisecond) // an error that stays must not spin
			continue
		}
		at := Now()
		for i := range in.came {
			m := &in.messages[i]
			bytes := in.buffer(i)[:m.size]
			for size := m.segmentSize(in.control[i][:]); len(bytes) > 0; {
				n := min(size, len(bytes))
				c.handle(bytes[:n], at)
				bytes = bytes[n:]
			}
		}
	}
}

// handle takes one datagram, which arrived at that time.
func (c *Client) handle(b []byte, at int64) {
	h, err := wire.DecodeHeader(b)
	if err == nil {
		switch h.Type {
		case wire.TypeResult, wire.TypeBusy:
			err = c.handleAnswer(b, at)
		case wire.TypeWish:
			err = c.handleWish(b, at)
		default:
			err = wire.ErrType // a manager sends no pictures
		}
	}
	if err != nil {
		c.counts.malformed[wire.ReasonOf(err)].Add(1)
	}
}

// handleAnswer takes a piece of an answer, and delivers the answer with its
// last.
func (c *Client) handleAnswer(b []byte, at int64) error {
	h, result, payload, err := wire.DecodeResult(b)
	if err != nil {
		return err
	}
	c.mu.Lock()
	r := c.findLocked(h.RequestID)
	if r == nil || !r.flying {
		c.strayLocked(h.RequestID)
		c.mu.Unlock()
		return nil
	}
	if result.Cookie != 0 {
		c.cookie = result.Cookie
	}
	c.queued.setObjective(int64(result.Objective))
	if result.Status == wire.StatusBusy && result.Credit == 0 && result.Cookie != 0 {
		r.busy++
		prove := result.Cookie != r.echoed
		if prove {
			c.proveLocked(r)
		}
		if prove || r.busy <= r.unproved { // else it is the answer to the proof
			c.mu.Unlock()
			c.wakeSender()
			return nil
		}
	}
	if h.Total > uint32(min(c.options.MaxResultBytes, 1<<32-1)) {
		c.giveUpLocked(r, at, ErrResultSize)
		c.mu.Unlock()
		c.deliver(r)
		c.wakeSender()
		return nil
	}
	if h.Count > 1 {
		fresh, fits := r.answer.add(&h, payload)
		if !fits {
			c.counts.foreign.Add(1)
		} else if !fresh {
			c.counts.duplicates.Add(1)
		}
		if r.answer.got < int(h.Count) {
			if fresh {
				before := r.recovery.AskAt()
				r.recovery.Heard(at)
				c.askEarlierLocked(r, before)
			}
			c.mu.Unlock()
			return nil
		}
		payload = r.answer.bytes
	}
	r.result.Result, r.result.Payload = result, payload
	c.endLocked(r, at)
	if r.resends == 0 && result.Status == wire.StatusOK {
		c.credit.traveled(at - r.sentAt - int64(result.Stages()))
	}
	c.credit.answered(int(result.Credit), c.sentSinceLocked(at-c.credit.roundTrip))
	c.mu.Unlock()

	c.counts.answers.Add(1)
	c.wakeSender()
	c.deliver(r)
	return nil
}

// proveLocked sends piece 0 of a request again, with the cookie: the manager has
// something to say that it says only to an address that has proved itself.
func (c *Client) proveLocked(r *request) {
	c.counts.proofs.Add(1)
	r.recovery.Prove()
	// Each question before this one may draw a busy block with the same cookie. One
	// more is the answer.
	r.echoed, r.unproved = c.cookie, r.questions
	r.sendAgain(0)
	if !r.isIn(inSending) {
		c.sending.pushFront(r)
	}
}

// sentSinceLocked is how many requests in flight were sent after that time.
func (c *Client) sentSinceLocked(at int64) int {
	n := 0
	for r := c.flying.tail; r != nil && r.sentAt > at; r = r.links[inLife].prev {
		n++
	}
	return n
}

// handleWish has the pieces that a wish names sent again.
func (c *Client) handleWish(b []byte, at int64) error {
	w, err := wire.DecodeWish(b)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.requests[w.RequestID]
	if r == nil || !r.flying {
		c.strayLocked(w.RequestID)
		return nil
	}
	if int(w.Count) != r.count || int(w.Total) != len(r.picture) {
		c.counts.foreign.Add(1)
		return nil
	}
	c.counts.wishes.Add(1)
	missing := 0
	for range w.Missing {
		missing++
	}
	before := r.recovery.AskAt()
	if !r.recovery.NACK(at, missing) {
		c.askEarlierLocked(r, before)
		return nil
	}
	for index := range w.Missing {
		r.sendAgain(index)
	}
	c.sending.pushFront(r) // it is older than what is being sent
	c.wakeSender()
	return nil
}

// askEarlierLocked wakes the sender if r's next question, which was due at before,
// is due earlier now: it may be asleep for longer.
func (c *Client) askEarlierLocked(r *request, before int64) {
	at := r.recovery.AskAt()
	if at == 0 {
		return // pieces leave; the silence begins after them
	}
	c.checkLocked(r)
	if at < before {
		c.wakeSender()
	}
}

// strayLocked counts a datagram that speaks of no request in flight: an id that
// was given out is a duplicate's, any other is not ours.
func (c *Client) strayLocked(id uint32) {
	if c.requests[id] == nil && wire.SerialBefore(id, c.nextID) {
		c.counts.duplicates.Add(1)
	} else {
		c.counts.foreign.Add(1)
	}
}
