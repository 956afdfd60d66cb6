package udp

import "time"

// If more arrives than a receiver can copy out of its socket, the socket's buffer stays full.
// Each datagram then waits for as long as the whole buffer lasts. The kernel drops single
// datagrams, so nearly every request lacks one. Shedding makes the kernel drop whole requests
// instead, before they take room (filter.go), and only the excess. The type shedding decides
// how many; it is pure.
//
//	calm ── more than half of the room is taken, and stays so ──> shedding
//	shedding ── nothing shed and little waiting for calmAfter ──> calm

const (
	// lookEvery is the min time between two looks (samples of the socket).
	lookEvery = 2 * time.Millisecond
	// staleAfter is the interval above which a sample says nothing about the receiver's
	// capacity, because the receiver was not running. Everything is accepted until the next
	// sample.
	staleAfter = 20 * time.Millisecond
	// keptBacklog is how much may be left waiting, as the time in which the receiver takes
	// it. It is enough to keep the receiver busy between two samples.
	keptBacklog = 4 * time.Millisecond
	// goneAfter is the time in which any backlog above keptBacklog is to be worked off.
	goneAfter = 20 * time.Millisecond
	// calmAfter is how long there must be nothing to shed before the overrun counts as ended.
	calmAfter = time.Second
	// toldAfter is how long an overrun lasts before it is reported, with what has been shed.
	toldAfter = 100 * time.Millisecond

	// leastWanted is the part of the receiver's capacity that is let in, however much waits.
	leastWanted = 1. / 4
	// forget is the weight that a sample leaves to the earlier intervals: some 16 samples
	// count.
	forget = 15. / 16
	// tryMore is the growth of the estimated capacity per sample that found the receiver
	// idle. The true capacity is not visible in such a sample.
	tryMore = 1 + 1./64
	// tryLeast is the same as a part of what is offered, for a receiver that took nothing.
	tryLeast = 1. / 128
	// messageOverhead is what the kernel counts for a message in addition to its bytes. It
	// consists of the kernel's own two structures (some 550 bytes), and of what a buffer of a
	// power of two leaves free. A fragment of 1 KB counts as 2.3 KB.
	messageOverhead = 1300

	// leastAccepted is the min part that is always accepted, so that there is something to
	// measure.
	leastAccepted = 1. / 32
	// leastChange is the min change of the accepted part: each change cuts some of the
	// requests that are on their way.
	leastChange = 1. / 32
)

// sight is one sample of a socket. waiting is what waits in it now, in the kernel's bytes.
// bytes and messages are what the receiver has taken since the socket was opened; a message
// is a chain of datagrams. drops counts messages that the kernel dropped, because the buffer
// was full or because of a filter. cut counts messages that the filter cut to almost nothing,
// which are not in messages. emptied reports whether the receiver has emptied the socket
// since the last sample, so that it may have been idle.
type sight struct {
	waiting         int
	bytes, messages uint64
	cut             uint64
	drops           uint32 // wraps
	emptied         bool
}

// shedding decides how much of a socket's requests is let in. With a room, the zero value is
// ready and lets everything in. Times are those of shm.Now.
type shedding struct {
	// room is the socket's receive buffer, in the kernel's bytes.
	room int

	on       bool
	accepted float64 // part of the requests, while on

	looked int64 // time of the last sample; 0 before the first
	last   sight
	full   bool // more than half of the room was taken

	// While on. taken and offered are sums of bytes over the last intervals. working and all
	// are the nanoseconds of these intervals.
	taken, working  float64
	offered, all    float64
	messageBytes    float64
	began, littleAt int64 // littleAt: since when there was nothing to shed
	told            bool
	shed            float64 // ns x part of the requests
}

// next returns when the next sample is due.
func (s *shedding) next() int64 { return s.looked + int64(lookEvery) }

// look evaluates a sample that was taken at next or later. It returns what to report, if
// anything.
func (s *shedding) look(now int64, found sight) (news Overrun) {
	interval, before := float64(now-s.looked), s.last
	s.looked, s.last = now, found
	if interval > float64(staleAfter) {
		s.shed += interval * (1 - s.accepted)
		s.full, s.accepted = false, 1
		return Overrun{}
	}
	if !s.on {
		standing := s.full && found.waiting >= before.waiting-before.waiting/16
		s.full = found.waiting >= s.room/2
		if !s.full || !standing || found.emptied {
			return Overrun{}
		}
		*s = shedding{room: s.room, on: true, accepted: 1, looked: now, last: found, began: now}
		if found.messages > 0 {
			s.messageBytes = float64(found.bytes) / float64(found.messages)
		}
	}
	s.measure(interval, before, found)
	s.decide(interval, found.waiting)
	switch {
	case s.accepted < 1:
		s.littleAt = 0
	case s.littleAt == 0:
		s.littleAt = now
	case now-s.littleAt >= int64(calmAfter):
		s.on, s.full = false, false
		if !s.told {
			return Overrun{} // too few samples were in time to report anything
		}
		return s.news(now, true)
	}
	if !s.told && now-s.began >= int64(toldAfter) {
		s.told = true
		return s.news(now, false)
	}
	return Overrun{}
}

// measure updates the offered rate, and the receiver's capacity if more arrives than it
// takes.
func (s *shedding) measure(interval float64, before, found sight) {
	taken := float64(found.bytes - before.bytes)
	if messages := found.messages - before.messages; messages > 0 {
		s.messageBytes = taken / float64(messages)
	}
	shed := s.messageBytes * (float64(found.drops-before.drops) + float64(found.cut-before.cut))
	s.offered = s.offered*forget + max(0, taken+shed+s.payload(found.waiting-before.waiting))
	s.all = s.all*forget + interval
	if !found.emptied {
		s.taken = s.taken*forget + taken
		s.working = s.working*forget + interval
	} else if s.accepted < 1 {
		s.taken = max(s.taken*tryMore, s.taken+tryLeast*s.offered/s.all*s.working)
	}
}

// payload estimates how many bytes of datagrams are in that many of the kernel's bytes.
func (s *shedding) payload(kernel int) float64 {
	return float64(kernel) * s.messageBytes / (s.messageBytes + messageOverhead)
}

// decide accepts as much as the receiver takes. If too much waits, it accepts less for a
// while. While little waits, it does not lower what it accepts.
func (s *shedding) decide(interval float64, waiting int) {
	s.shed += interval * (1 - s.accepted)
	takes, offered := s.taken/s.working, s.offered/s.all
	over := s.payload(waiting) - min(takes*float64(keptBacklog), s.payload(s.room)/4)
	wanted := takes
	if over > 0 {
		wanted = max(takes-over/float64(goneAfter), takes*leastWanted)
	}
	accepted := 1.
	if offered > wanted {
		accepted = max(wanted/offered, leastAccepted)
	}
	if accepted == 1 || accepted >= s.accepted+leastChange || over > 0 && accepted <= s.accepted-leastChange {
		s.accepted = accepted
	}
}

// steps returns how much to let in, in units of 1/filterSteps.
func (s *shedding) steps() int32 {
	if !s.on {
		return filterSteps
	}
	return int32(s.accepted * filterSteps)
}

func (s *shedding) news(now int64, ended bool) Overrun {
	lasted := now - s.began
	return Overrun{Lasted: time.Duration(lasted), Shed: s.shed / float64(max(lasted, 1)), Ended: ended}
}

// Overrun reports that a receiver is offered more than it can take.
type Overrun struct {
	// Receiver is the index among the port's sources.
	Receiver int
	// Lasted is how long the overrun has lasted; 0 means that there is nothing to report. It
	// includes the quiet second that Ended waits for.
	Lasted time.Duration
	// Shed is the part of the requests that was shed during Lasted, 0 to 1.
	Shed  float64
	Ended bool
	// Err, if set, says why this receiver never sheds: the kernel refuses a system call that
	// shedding needs. It is reported once, at the first sample or when something was to be
	// shed.
	Err error
}
