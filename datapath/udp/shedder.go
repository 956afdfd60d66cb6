package udp

import (
	"errors"
	"sync/atomic"

	"github.com/penstock/penstock/shm"
)

// shedder carries out what shedding decides. Only Receive uses it, except steps.
type shedder struct {
	off      bool
	shedding shedding
	receiver int // index among the port's sources
	tell     func(Overrun)
	// Since the last sample: emptied reports whether the socket was found empty. Since the
	// beginning: messages counts those that came, cut those that the filter had cut.
	messages, cut uint64
	emptied       bool
	// steps is how much the attached filter lets in, in units of 1/filterSteps.
	steps atomic.Int32
}

// newShedder is for source number i, with a receive buffer of room bytes.
func newShedder(room int, o *Options, i int) *shedder {
	s := &shedder{off: o.NoShedding, shedding: shedding{room: room}, receiver: i, tell: o.OnOverrun}
	s.steps.Store(filterSteps)
	return s
}

// shed samples the backlog if that is due, and sets the kernel's filter as decided.
func (s *Source) shed() {
	now := shm.Now()
	x := s.shedder
	if x.off || now < x.shedding.next() {
		return
	}
	waiting, drops, ok := socketQueue(s.socket)
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
		// The old filter is still attached; the next sample tries to replace it again.
	}
	if news.Lasted != 0 && x.tell != nil {
		news.Receiver = x.receiver
		x.tell(news)
	}
}

var errNoMemInfo = errors.New("read the socket's queue (SO_MEMINFO): not supported by this kernel")

// neverShed leaves all drops to the kernel, as NoShedding does, and reports why.
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
