package udp

import "time"

// A receiver that is offered more than it can copy out of its socket finds the socket's
// buffer full for good: what it takes has waited for as long as the whole buffer lasts, and
// the kernel drops single datagrams, so that nearly every request lacks one. Shedding has the
// kernel drop whole requests instead, before they take room (filter.go), as many as are too
// many. shedding decides how many; it is pure.
//
//	calm ── more than half of the room is taken, and stays so ──> shedding
//	shedding ── nothing shed and little waiting for calmAfter ──> calm

const (
	// lookEvery is between two looks at the socket, at least.
	lookEvery = 2 * time.Millisecond
	// staleAfter is an interval that says nothing of what the receiver can take: it was
	// not there. Everything is accepted until the next look.
	staleAfter = 20 * time.Millisecond
	// keptBacklog is how much may be left waiting, as the time in which the receiver takes
	// it: enough that it does not run out of work between two looks.
	keptBacklog = 4 * time.Millisecond
	// goneAfter is the time in which more than that is to be worked off.
	goneAfter = 20 * time.Millisecond
	// calmAfter is how long nothing need be shed before the overrun has ended.
	calmAfter = time.Second
	// toldAfter is how long an overrun lasts before it is told, with what has been shed.
	toldAfter = 100 * time.Millisecond

	// leastWanted is of what the receiver takes what is let in however much waits.
	leastWanted = 1. / 4
	// forget is what a look leaves of the rates' earlier intervals: some 16 looks count.
	forget = 15. / 16
	// tryMore is by how much the receiver is thought to take more with each look that
	// found it without work, for then it was not seen what it can take.
	tryMore = 1 + 1./64
	// tryLeast is the same as a part of what is offered, for one that was seen taking nothing.
	tryLeast = 1. / 128
	// messageOverhead is what the kernel counts for a message beside its bytes: its own two
	// structures (some 550 bytes) and what a buffer of a power of two leaves free. A piece of
	// 1 KB counts as 2.3 KB.
	messageOverhead = 1300

	// leastAccepted is accepted whatever happens, so that there is something to go by.
	leastAccepted = 1. / 32
	// leastChange is by how much the part that is accepted has to change: each change cuts
	// some of the requests that are on their way.
	leastChange = 1. / 32
)

// sight is what a look finds in a socket: what waits in it now, in the kernel's bytes, and
// what came to it since it was opened: what the receiver has taken, in bytes and in messages
// (chains of datagrams); messages that the kernel dropped, be it for want of room
// or by a filter, and those that the filter cut to almost nothing, which are not in
// messages; and whether the receiver has emptied it since the last look, so that it may
// have been without work.
type sight struct {
	waiting         int
	bytes, messages uint64
	cut             uint64
	drops           uint32 // wraps
	emptied         bool
}

// shedding is how much of a socket's requests its receiver lets in. With a room, the zero
// value is ready and lets everything in. Times are shm.Now's.
type shedding struct {
	// room is the socket's receive buffer, in the kernel's bytes.
	room int

	on       bool
	accepted float64 // part of the requests, while on

	looked int64 // the last look; 0 before the first
	last   sight
	full   bool // more than half of the room was taken

	// While on. taken and offered are sums of bytes over the last intervals, of which
	// working and all are the nanoseconds.
	taken, working  float64
	offered, all    float64
	messageBytes    float64
	began, littleAt int64 // littleAt is since when there was nothing to shed
	told            bool
	shed            float64 // ns x part of the requests
}

// next is when to look again.
func (s *shedding) next() int64 { return s.looked + int64(lookEvery) }

// look takes what is found in the socket at next or later. It returns what to tell, if
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
			return Overrun{} // too few looks were in time to say anything of it
		}
		return s.news(now, true)
	}
	if !s.told && now-s.began >= int64(toldAfter) {
		s.told = true
		return s.news(now, false)
	}
	return Overrun{}
}

// measure keeps what is offered, and what the receiver takes where there is more than it takes.
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

// payload is how many bytes of datagrams the kernel's bytes hold, roughly.
func (s *shedding) payload(kernel int) float64 {
	return float64(kernel) * s.messageBytes / (s.messageBytes + messageOverhead)
}

// decide has as much accepted as the receiver takes; for a while less where too much waits, and
// nothing less where little does.
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

// steps is what is to be let in, of filterSteps.
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

// Overrun is news of a receiver that is offered more than it can take.
type Overrun struct {
	// Receiver is which of the port's sources.
	Receiver int
	// Lasted is how long it has been so, 0 where there is no news. It includes the second
	// without that Ended waits for.
	Lasted time.Duration
	// Shed is the part of the requests that was shed in this time, 0 to 1.
	Shed  float64
	Ended bool
	// Err, if set, says why this receiver sheds nothing however much comes: the kernel refuses
	// what it takes. It is told once, at the first look or when something was to be shed.
	Err error
}
