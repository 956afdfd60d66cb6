package udp

import "time"

// A receiver that is offered more than it can copy out of its socket finds the socket's
// buffer full for good: what it takes has waited for as long as the whole buffer lasts, and
// the kernel drops single datagrams, so that nearly every request lacks one. Shedding has the
// kernel drop whole requests instead, before they take room (filter.go), as many as are too
// many. shedding decides how many; it is pure.
//
//	calm ── backlog stands above half of the room ──> shedding
//	shedding ── nothing shed and no backlog for calmAfter ──> calm

const (
	// lookEvery is between two looks at the backlog, at least.
	lookEvery = 2 * time.Millisecond
	// staleAfter is an interval that says nothing of what the receiver can take: it was
	// not there.
	staleAfter = 20 * time.Millisecond
	// keptBacklog is how much is left waiting, as the time in which the receiver takes
	// it: enough that it never runs out of work between two looks.
	keptBacklog = 4 * time.Millisecond
	// goneAfter is the time in which more than that is to be worked off.
	goneAfter = 10 * time.Millisecond
	// calmAfter is how long nothing need be shed before the overrun has ended.
	calmAfter = time.Second
	// toldAfter is how long an overrun lasts before it is told, with what has been shed.
	toldAfter = 100 * time.Millisecond

	// leastAccepted is accepted whatever happens, so that the receiver sees what comes.
	leastAccepted = 1. / 32
	// moreAccepted is added with each look that finds little waiting: all of it in a
	// quarter of a second.
	moreAccepted = 1. / 128
	// mostLess bounds what one look takes away.
	mostLess = 1. / 2
)

// shedding is how much of a socket's requests its receiver lets in. The zero value with a
// room is ready, and accepts everything. Times are shm.Now's.
type shedding struct {
	// room is the socket's receive buffer, in the kernel's bytes, as backlog is.
	room int

	on       bool
	accepted float64 // part of the requests, while on

	looked  int64  // the last look; 0 before the first
	drained uint64 // bytes by then
	backlog int
	full    bool // more than half of the room was taken

	began, calmSince int64
	told             bool
	shed             float64 // ns x part of the requests
}

// next is when to look again.
func (s *shedding) next() int64 { return s.looked + int64(lookEvery) }

// look takes what waits in the socket, and all that was ever taken out of it. It returns
// what to tell, if anything.
func (s *shedding) look(now int64, backlog int, drained uint64) (news Overrun) {
	interval, taken, before := now-s.looked, drained-s.drained, s.backlog
	s.looked, s.drained, s.backlog = now, drained, backlog
	if interval > int64(staleAfter) {
		s.full = false
		return Overrun{}
	}
	if !s.on {
		standing := s.full && backlog >= before-before/16
		s.full = backlog >= s.room/2
		if !s.full || !standing {
			return Overrun{}
		}
		*s = shedding{room: s.room, on: true, accepted: 1, looked: now, drained: drained, backlog: backlog, began: now}
	}
	s.shed += float64(interval) * (1 - s.accepted)
	kept := min(float64(taken)*float64(keptBacklog)/float64(interval), float64(s.room)/4)
	switch over := float64(backlog) - kept; {
	case over > 0:
		// What comes in is to be what was taken less a part of what is too much.
		arrived := float64(taken) + float64(backlog-before)
		wanted := float64(taken) - over*float64(interval)/float64(goneAfter)
		if wanted < arrived {
			s.accepted *= max(wanted/arrived, mostLess)
		}
		s.accepted = max(s.accepted, leastAccepted)
		s.calmSince = 0
	case s.accepted < 1:
		if over < -kept/2 {
			s.accepted = min(1, s.accepted+moreAccepted)
		}
	case s.calmSince == 0:
		s.calmSince = now
	case now-s.calmSince >= int64(calmAfter):
		s.on, s.full = false, false
		return s.news(now, true)
	}
	if !s.told && now-s.began >= int64(toldAfter) {
		s.told = true
		return s.news(now, false)
	}
	return Overrun{}
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
	// Lasted is how long it has been so, 0 where there is no news. It includes the second
	// without that Ended waits for.
	Lasted time.Duration
	// Shed is the part of the requests that was shed in this time, 0 to 1.
	Shed  float64
	Ended bool
	// Receiver is which of the port's sources.
	Receiver int
}
