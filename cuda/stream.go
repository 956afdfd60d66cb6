package cuda

import "time"

// Stream is a queue of work that the device does in order. It is a plain value;
// the zero Stream is CUDA's default stream.
type Stream struct{ handle uint64 }

// NewStream makes a stream that does not wait for the default stream. It is the
// caller's until Destroy.
func (c *Context) NewStream() (Stream, error) {
	handle, code := streamCreate()
	return Stream{handle}, check("cuStreamCreate", code)
}

// NewPriorityStream makes a stream as NewStream does. The multiprocessors take the thread
// blocks of streams with lower numbers first, at the next free place: a block that runs is
// not interrupted. 0 is the priority of NewStream. The driver clamps numbers outside
// StreamPriorities. A graph runs at the priority of the stream that it is launched on. Under
// MPS the order holds between processes too.
func (c *Context) NewPriorityStream(priority int) (Stream, error) {
	handle, code := streamCreatePriority(priority)
	return Stream{handle}, check("cuStreamCreateWithPriority", code)
}

// StreamPriorities returns the numbers of the lowest and of the highest priority that a
// stream can have, such as 0 and -5. They are equal if the device has no priorities. It
// needs a bound thread.
func (c *Context) StreamPriorities() (lowest, highest int, err error) {
	lowest, highest, code := streamPriorities()
	return lowest, highest, check("cuCtxGetStreamPriorityRange", code)
}

// StreamOf is a stream that somebody else made, by its CUstream.
func StreamOf(handle uintptr) Stream { return Stream{uint64(handle)} }

// Handle is the CUstream.
func (s Stream) Handle() uintptr { return uintptr(s.handle) }

// Synchronize waits until all that was queued is done. The error may be that of
// any work queued before, on this stream or another: CUDA reports late.
func (s Stream) Synchronize() error { return check("cuStreamSynchronize", streamSynchronize(s.handle)) }

// Query says whether all that was queued is done. It does not wait.
func (s Stream) Query() (done bool, err error) {
	return settled("cuStreamQuery", streamQuery(s.handle))
}

func settled(symbol string, code int32) (done bool, err error) {
	switch Code(code) {
	case 0:
		return true, nil
	case notReady:
		return false, nil
	}
	return false, refused(symbol, code)
}

// Destroy gives the stream back; what is queued on it is still done.
func (s Stream) Destroy() error { return check("cuStreamDestroy_v2", streamDestroy(s.handle)) }

// Wait queues a wait: what is queued next on s begins once what e recorded, before
// this call, is done.
func (s Stream) Wait(e Event) error {
	return check("cuStreamWaitEvent", streamWait(s.handle, e.handle))
}

// Copy queues a copy of n bytes in any direction, which the driver finds from the
// addresses. Where one side is host memory that is not pinned, the call itself
// may wait for the copy.
func (s Stream) Copy(dst, src Pointer, n int) error {
	return check("cuMemcpyAsync", streamCopy(s.handle, uint64(dst), uint64(src), uint64(n)))
}

// Set queues the setting of n bytes to value.
func (s Stream) Set(dst Pointer, value byte, n int) error {
	return check("cuMemsetD8Async", streamSet(s.handle, uint64(dst), value, uint64(n)))
}

// WriteValue queues the writing of one word, 4-byte aligned, after all that was
// queued before is done and can be seen by everybody: in pinned host memory it is
// what a CPU polls to learn of the end of a batch without a call into CUDA.
func (s Stream) WriteValue(dst Pointer, value uint32) error {
	return check("cuStreamWriteValue32_v2", streamWrite(s.handle, uint64(dst), value))
}

// Event is a mark in a stream. It is a plain value.
type Event struct{ handle uint64 }

// Flags of cuEventCreate.
const (
	eventBlocking = 0x1
	eventNoTiming = 0x2
)

// NewEvent makes an event; only with timing can Elapsed use it. Synchronize spins
// on it. It is the caller's until Destroy.
func (c *Context) NewEvent(timing bool) (Event, error) {
	if timing {
		return newEvent(0)
	}
	return newEvent(eventNoTiming)
}

// NewBlockingEvent makes an event without timing whose Synchronize puts the thread
// to sleep: no CPU is busy, and the answer comes some ten microseconds later.
func (c *Context) NewBlockingEvent() (Event, error) { return newEvent(eventBlocking | eventNoTiming) }

func newEvent(flags uint32) (Event, error) {
	handle, code := eventCreate(flags)
	return Event{handle}, check("cuEventCreate", code)
}

// Handle is the CUevent.
func (e Event) Handle() uintptr { return uintptr(e.handle) }

// Record queues the event on s: it is done when all that was queued before is.
// Recording again forgets the record before.
func (e Event) Record(s Stream) error { return check("cuEventRecord", eventRecord(e.handle, s.handle)) }

// Query says whether the last Record is done, and true where there was none. It
// does not wait.
func (e Event) Query() (done bool, err error) { return settled("cuEventQuery", eventQuery(e.handle)) }

// Synchronize waits until the last Record is done.
func (e Event) Synchronize() error { return check("cuEventSynchronize", eventSynchronize(e.handle)) }

// Destroy gives the event back; a wait that was queued for it still ends.
func (e Event) Destroy() error { return check("cuEventDestroy_v2", eventDestroy(e.handle)) }

// Elapsed is the time between two records, both done, of events with timing, to
// half a microsecond. ErrNotReady where one is not done.
func Elapsed(from, to Event) (time.Duration, error) {
	milliseconds, code := eventElapsed(from.handle, to.handle)
	if err := check("cuEventElapsedTime", code); err != nil {
		return 0, err
	}
	return time.Duration(float64(milliseconds) * float64(time.Millisecond)), nil
}
