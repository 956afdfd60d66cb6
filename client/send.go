package client

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/penstock/penstock/wire"
)

// sender holds what only the sending goroutine uses.
type sender struct {
	pace    pace
	timer   *time.Timer
	reading []*request // requests whose pictures the current burst reads
	paths   []*path    // those of the burst
	ended   []*request // to deliver
}

// send is the sending goroutine. It ends requests that took too long, sends a
// burst of fragments, and sleeps when there is nothing to do.
func (c *Client) send() {
	s := &c.sender
	defer s.timer.Stop()
	for {
		c.mu.Lock()
		now := nanotime() // no request is queued later
		c.expireQueuedLocked(now)
		c.expireLocked(now)
		c.fillLocked(now)
		until, paced := c.idleLocked(now)
		c.mu.Unlock()

		var err error
		idle := len(s.reading) == 0
		if !idle {
			for _, p := range s.paths {
				refused, lost := p.socket.flush(&c.counts)
				p.unreachable.Add(refused)
				c.counts.unreachable.Add(refused)
				err = cmp.Or(err, lost)
			}
			c.mu.Lock()
			for _, r := range s.reading {
				r.reading = false
			}
			c.mu.Unlock()
			c.unread.Broadcast()
			s.reading, s.paths = s.reading[:0], s.paths[:0]
		}
		for i, r := range s.ended {
			c.deliver(r)
			s.ended[i] = nil
		}
		s.ended = s.ended[:0]
		if err != nil || idle && !c.sleep(until, paced) {
			return // closed
		}
	}
}

// expireQueuedLocked ends requests that have waited for credit for too long.
func (c *Client) expireQueuedLocked(now int64) {
	if now < c.queued.checkAt {
		return
	}
	c.queued.checkAt = math.MaxInt64
	roundTrip := c.pathLocked(now).credit.roundTrip
	for r, next := c.queued.head, (*request)(nil); r != nil; r = next {
		next = r.links[stageList].next
		dropAt := c.queued.dropAt(r, roundTrip)
		switch {
		case dropAt <= now:
			c.counts.late.Add(1)
			c.giveUpLocked(r, now, ErrLate)
		case r.timeoutAt <= now:
			c.giveUpLocked(r, now, ErrUnsent)
		default:
			c.queued.checkAt = min(c.queued.checkAt, dropAt, r.timeoutAt)
			continue
		}
		c.sender.ended = append(c.sender.ended, r)
	}
}

// expireLocked ends requests that timed out or that no process listens to, and asks
// about those that are silent for too long.
func (c *Client) expireLocked(now int64) {
	s := &c.sender
	refused := c.counts.unreachable.Load()
	if now < c.flying.checkAt && refused == c.flying.refused {
		return
	}
	c.flying.refused = refused
	c.flying.checkAt = math.MaxInt64
	for r, next := c.flying.head, (*request)(nil); r != nil; r = next {
		next = r.links[stageList].next
		if r.needsToken && r.path.hello.refused {
			c.refuseLocked(r, now)
			s.ended = append(s.ended, r)
			continue
		}
		var err error
		unreachable, mayLeave := r.path.unreachable.Load() > r.refused, c.mayLeaveLocked(r)
		switch {
		case unreachable && (r.timeoutAt <= now || !mayLeave && r.path.heard.Load() == 0):
			err = ErrUnreachable
		case r.timeoutAt <= now:
			err = ErrUnanswered
		case mayLeave && unreachable, c.silentAtLocked(r) <= now:
			c.leaveLocked(r.path)
			next = c.flying.head
			continue
		}
		if err != nil {
			c.giveUpLocked(r, now, err)
			s.ended = append(s.ended, r)
			continue
		}
		if r.recovery.Ask(now) {
			r.markResend(0)
			c.flying.sending.pushBack(r)
		}
		c.checkLocked(r)
	}
}

// checkLocked makes expireLocked check r in time.
func (c *Client) checkLocked(r *request) {
	c.flying.checkAt = min(c.flying.checkAt, r.timeoutAt, c.silentAtLocked(r))
	if at := r.recovery.AskAt(); at != 0 {
		c.flying.checkAt = min(c.flying.checkAt, at)
	}
}

// fillLocked passes to the transmitter what credit and pace allow.
func (c *Client) fillLocked(now int64) {
	s := &c.sender
	for budget := s.pace.budget(now); budget > 0; {
		r := c.flying.sending.head
		if r == nil {
			if r = c.queued.next(now); r == nil {
				return
			}
			p := c.pathLocked(now)
			ok, probe := p.credit.allow(now, p.inFlight)
			if !ok || !p.socket.room() {
				return
			}
			p.credit.recordSent(probe)
			p.inFlight++
			c.queued.remove(r)
			c.flying.pushBack(r)
			c.flying.sending.pushBack(r)
			r.path, r.count = p, wire.Fragments(len(r.picture), p.fragmentBytes)
			r.flying, r.probe, r.sentAt, r.refused = true, probe, now, p.unreachable.Load()
			r.recovery.Begin(r.count, c.options.ResendAfter)
			c.checkLocked(r)
		}
		if !r.path.socket.room() {
			return
		}
		size := int64(c.sendFragmentLocked(r, now))
		budget -= size
		s.pace.spend(size)
		if !r.unsent() {
			c.flying.sending.remove(r)
			r.recovery.Sent(now, r.path.credit.roundTrip)
			c.checkLocked(r)
		}
	}
}

// sendFragmentLocked passes the request's next fragment to the transmitter and
// returns the datagram's size.
func (c *Client) sendFragmentLocked(r *request, now int64) int {
	s := &c.sender
	if !r.reading {
		r.reading = true
		s.reading = append(s.reading, r)
	}
	p := r.path
	if !slices.Contains(s.paths, p) {
		s.paths = append(s.paths, p)
	}
	index, again := r.takeFragment()
	if index == 0 {
		c.renewLocked(p, now)
		r.proof.ask(p.cookie)
		r.follows = c.followsLocked(r, now)
	}
	h := wire.FragmentHeader(wire.TypeData, r.id, len(r.picture), p.fragmentBytes, index)
	if again {
		c.counts.resends.Add(1)
	}
	if again || r.hops > 0 { // the node may have answered already
		h.Flags |= wire.FlagRetransmitted
	}
	var e wire.Extension
	dropAt := c.queued.dropAt(r, p.credit.roundTrip)
	var missing wire.Missing
	if index == 0 {
		missing = r.answer.ask(c.windowLocked(p, int(r.answer.size)))
	}
	if index == 0 {
		e = wire.Extension{
			Priority: r.options.Priority, Cookie: p.cookie, Follows: r.follows, Missing: missing, Stream: r.options.Stream,
			LowestScore: score(r.options.LowestScore), Picture: r.options.Picture,
		}
	}
	if e != (wire.Extension{}) || index == 0 && dropAt != never {
		h.Flags |= wire.FlagExtension
		e.SentAt = uint64(now)
		if dropAt != never {
			// If the deadline has passed, the manager must report that. 0 would
			// mean no deadline.
			e.Deadline = max(time.Duration(dropAt-now), 1)
		}
	}
	return p.socket.add(h, e, r.picture[h.Offset:][:h.Length])
}

// score converts a score to the unit of the wire, rounded down. Any score above 0 is at least 1 there.
func score(s float64) uint16 {
	if !(s > 0) {
		return 0
	}
	return uint16(max(min(s, 1)*math.MaxUint16, 1))
}

// windowPart is the part of the receive buffer that the fragments of one question may fill. The kernel counts
// a datagram of 1 KiB as 2,304 bytes.
const windowPart = 8

// windowLocked returns how many fragments of that size a question may ask for. All answers together must fit the
// receive buffer.
func (c *Client) windowLocked(p *path, fragmentBytes int) int {
	return max(1, p.socket.receiveBytes()/windowPart/max(1, c.assembling)/max(1, fragmentBytes))
}

// idleLocked returns when the sender has work to do unless it is woken before,
// and whether it then waits for the pace.
func (c *Client) idleLocked(now int64) (until int64, paced bool) {
	until = math.MaxInt64
	if c.flying.n > 0 {
		until = c.flying.checkAt
	}
	next := c.queued.head
	if next != nil {
		until = min(until, c.queued.checkAt)
		if at := c.pathLocked(now).credit.probeAt; at != 0 {
			until = min(until, at)
		}
	}
	if wait := c.sender.pace.wait(now); wait > 0 && (c.flying.sending.n > 0 || next != nil) {
		if at := now + int64(wait); at < until {
			return at, true
		}
	}
	return until, false
}

// shortSleep is the limit below which sleep takes naps.
const shortSleep = 2 * time.Millisecond

// sleep waits until the given time, or until it is woken. It reports whether
// the client is still open.
func (c *Client) sleep(until int64, paced bool) bool {
	d := time.Duration(until - nanotime())
	if d <= 0 {
		return !c.isClosing()
	}
	if paced && d < shortSleep {
		nap(d)
		return !c.isClosing()
	}
	c.sender.timer.Reset(d)
	select {
	case <-c.wake:
		return true
	case <-c.sender.timer.C:
		return true
	case <-c.closing:
		return false
	}
}

func (c *Client) isClosing() bool {
	select {
	case <-c.closing:
		return true
	default:
		return false
	}
}
