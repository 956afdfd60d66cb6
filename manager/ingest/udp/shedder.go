package udp

import (
	"errors"
	"sync/atomic"

	"github.com/penstock/penstock/shm"
)

// shedder does what shedding decides. It is Receive's own but for steps.
type shedder struct {
	off      bool
	shedding shedding
	receiver int // which of the port's sources
	tell     func(Overrun)
	// messages that came, and those that the filter had cut, and whether the socket was found
	// empty since the last look.
	messages, cut uint64
	emptied       bool
	// steps is what the filter that is attached lets in, of filterSteps.
	steps atomic.Int32
}

// newShedder is of source number i, with a receive buffer of room bytes.
func newShedder(room int, o *Options, i int) *shedder {
	s := &shedder{off: o.NoShedding, shedding: shedding{room: room}, receiver: i, tell: o.OnOverrun}
	s.steps.Store(filterSteps)
	return s
}

// shed looks at the backlog if it is time to, and has the kernel let in what is decided.
func (s *Source) shed() {
	now := shm.Now()
	x := s.shedder
	if x.off || now < x.shedding.next() {
		return
	}
	waiting, drops, ok := socketWaiting(s.socket)
	if !ok {
		s.neverShed(errNoMemInfo)
		return
	}
	news := x.shedding.look(now, sight{waiting: waiting, bytes: s.bytes.Load(), messages: x.messages, cut: x.cut, drops: drops, emptied: x.emptied})
	x.emptied = false
	if steps := x.shedding.steps(); steps != x.steps.Load() {
		err := attachFilter(s.socket, int(steps))
		switch {
		case err == nil:
			x.steps.Store(steps)
		case x.steps.Load() == filterSteps:
			s.neverShed(err)
			return
		}
		// The filter before is still there, and tried to be replaced with the next look.
	}
	if news.Lasted != 0 && x.tell != nil {
		news.Receiver = x.receiver
		x.tell(news)
	}
}

var errNoMemInfo = errors.New("read what waits in the socket (SO_MEMINFO): this kernel does not say")

// neverShed leaves to the kernel what is dropped, as NoShedding does, and tells why.
func (s *Source) neverShed(err error) {
	x := s.shedder
	x.off, x.shedding = true, shedding{}
	if x.steps.Swap(filterSteps) != filterSteps {
		_ = attachFilter(s.socket, filterSteps)
	}
	if x.tell != nil {
		x.tell(Overrun{Receiver: x.receiver, Err: err})
	}
}
