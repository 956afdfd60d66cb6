package client

import (
	"errors"
	"net"
	"time"

	"github.com/penstock/penstock/wire"
)

// receive is the receiving goroutine of a path.
func (c *Client) receive(p *path) {
	for handle := func(b []byte, at int64) { c.handle(p, b, at) }; ; {
		err := p.socket.receive(handle)
		switch {
		case err == nil:
		case errors.Is(err, net.ErrClosed):
			return
		case isRefused(err):
			p.unreachable.Add(1)
			c.counts.unreachable.Add(1)
			c.wakeSender()
		default:
			c.counts.receiveError.Add(1)
			time.Sleep(time.Millisecond) // do not spin on a permanent error
		}
	}
}

// handle processes one datagram, which arrived at that time.
func (c *Client) handle(p *path, b []byte, at int64) {
	h, err := wire.DecodeHeader(b)
	if err == nil {
		p.heard.Store(at)
		switch h.Type {
		case wire.TypeResult, wire.TypeBusy:
			err = c.handleAnswer(p, b, at)
		case wire.TypeNACK:
			err = c.handleNACK(p, b, at)
		case wire.TypeHello, wire.TypeProof:
			err = c.handleHello(p, b, at)
		default:
			err = wire.ErrType // a manager sends no pictures
		}
	}
	if err != nil {
		c.counts.malformed[wire.ReasonOf(err)].Add(1)
	}
}

// handleAnswer processes a fragment of an answer. With the last fragment it delivers
// the answer.
func (c *Client) handleAnswer(p *path, b []byte, at int64) error {
	h, result, payload, err := wire.DecodeResult(b)
	if err != nil {
		return err
	}
	c.mu.Lock()
	r := c.findLocked(h.RequestID)
	// The node before may still answer a request that went to another one.
	before := r != nil && r.path != p && r.hops > 0 && result.Status == wire.StatusOK && h.Count == 1
	if r == nil || r.path != p && !before {
		c.countStrayLocked(h.RequestID)
		c.mu.Unlock()
		return nil
	}
	if before && r.flying && !r.probe {
		r.path.credit.recordUnanswered()
	}
	if result.Cookie != 0 {
		p.cookie = result.Cookie
	}
	c.queued.setObjective(int64(result.Objective))
	p.largest = int(result.LargestPicture)
	if result.Status == wire.StatusMoved {
		c.moveLocked(r, &result, at)
		c.mu.Unlock()
		c.wakeSender()
		return nil
	}
	if c.asksForProofLocked(r, &result) || c.asksForTokenLocked(r, &result, at) {
		c.mu.Unlock()
		c.wakeSender()
		return nil
	}
	if h.Total > uint32(min(c.options.MaxResultBytes, 1<<32-1)) {
		c.giveUpLocked(r, at, ErrResultSize)
		c.mu.Unlock()
		c.deliver(r)
		c.wakeSender()
		return nil
	}
	if result.Status == wire.StatusOK && result.LargestPicture == 0 && r.options.Picture.Format != 0 {
		c.giveUpLocked(r, at, ErrPictureFormat) // the model ran on what the node took for a picture of the card
		c.mu.Unlock()
		c.deliver(r)
		c.wakeSender()
		return nil
	}
	if h.Count > 1 {
		if !c.assembleLocked(r, &h, &result, payload, at) {
			c.mu.Unlock()
			return nil
		}
		payload = r.answer.bytes
	}
	r.result.setAnswer(&result, payload)
	c.endLocked(r, at)
	if r.resend.total == 0 && result.Status == wire.StatusOK && !before {
		p.credit.recordRoundTrip(at - r.sentAt - int64(result.Stages()))
	}
	p.credit.recordAnswer(int(result.Credit), c.sentSinceLocked(p, at-p.credit.roundTrip))
	c.mu.Unlock()

	c.counts.answers.Add(1)
	c.wakeSender()
	c.deliver(r)
	return nil
}

// asksForProofLocked reports whether an answer only asks for proof of the client's address, and
// then sees to it.
func (c *Client) asksForProofLocked(r *request, result *wire.Result) bool {
	if result.Status != wire.StatusBusy || result.Credit != 0 || result.Cookie == 0 {
		return false
	}
	prove, answered := r.proof.asked(result.Cookie)
	if prove {
		c.proveLocked(r, 1)
	}
	return !answered
}

// assembleLocked adds a fragment to an answer and reports whether the answer is complete.
func (c *Client) assembleLocked(r *request, h *wire.Header, result *wire.Result, fragment []byte, at int64) (complete bool) {
	first := r.answer.received == 0
	fresh, fits := r.answer.add(h, fragment)
	if !fits {
		c.counts.foreign.Add(1)
		return false
	}
	if fresh {
		r.timeoutAt = at + int64(c.options.Timeout)
	} else {
		c.counts.duplicates.Add(1)
	}
	if first {
		c.assembling++
		r.answer.roundTrip = at - r.sentAt - int64(result.Stages())
	}
	if r.answer.received == int(h.Count) {
		return true
	}
	before := r.recovery.AskAt()
	r.recovery.Answered(at, r.answer.roundTrip, fresh && int(h.Index) == r.answer.asked.Last())
	c.askEarlierLocked(r, before)
	return false
}

// proveLocked sends the first fragments of a request again, with the cookie. One is enough for a cookie: the manager
// keeps an answer that it sends only to an address with proof.
func (c *Client) proveLocked(r *request, fragments int) {
	c.counts.proofs.Add(1)
	r.recovery.Prove()
	r.proof.echo(r.path.cookie)
	for index := range fragments {
		r.markResend(index)
	}
	if !r.inList(sendingList) {
		c.flying.sending.pushFront(r)
	}
}

// sentSinceLocked returns how many requests in flight were sent on a path after that
// time.
func (c *Client) sentSinceLocked(p *path, at int64) int {
	n := 0
	for r := c.flying.tail; r != nil && r.sentAt > at; r = r.links[stageList].prev {
		if r.path == p {
			n++
		}
	}
	return n
}

// handleNACK sends again the fragments that a NACK names.
func (c *Client) handleNACK(p *path, b []byte, at int64) error {
	w, err := wire.DecodeNACK(b)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.requests[w.RequestID]
	if r == nil || r.path != p {
		c.countStrayLocked(w.RequestID)
		return nil
	}
	if int(w.Count) != r.count || int(w.Total) != len(r.picture) {
		c.counts.foreign.Add(1)
		return nil
	}
	c.counts.nacks.Add(1)
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
		r.markResend(index)
	}
	c.flying.sending.pushFront(r) // it is older than the requests that are being sent
	c.wakeSender()
	return nil
}

// askEarlierLocked wakes the sender if r's next question is now due earlier
// than before: the sender may be asleep for longer.
func (c *Client) askEarlierLocked(r *request, before int64) {
	at := r.recovery.AskAt()
	if at == 0 {
		return // fragments are being sent; the silence begins after them
	}
	c.checkLocked(r)
	if at < before {
		c.wakeSender()
	}
}

// countStrayLocked counts a datagram for which no request is in flight. If the id
// was given out, it is a duplicate. Otherwise it is foreign.
func (c *Client) countStrayLocked(id uint32) {
	if c.requests[id] == nil && wire.SerialBefore(id, c.nextID) {
		c.counts.duplicates.Add(1)
	} else {
		c.counts.foreign.Add(1)
	}
}
