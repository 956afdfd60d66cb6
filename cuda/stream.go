package cuda

import (
	"math"
	"time"
)

// Stream is a queue of work that the device does in order. It is a plain value. The zero
// Stream is CUDA's default stream.
type Stream struct{ handle uint64 }

// streamNonBlocking is CU_STREAM_NON_BLOCKING.
const streamNonBlocking = 1

// NewStream makes a stream that does not wait for the default stream. The caller owns it
// until Destroy.
func (c *Context) NewStream() (Stream, error) {
	handle, err := cuStreamCreate.get(out, streamNonBlocking)
	return Stream{handle}, err
}

// NewPriorityStream makes a stream like NewStream, with a priority. A lower number is a
// higher priority; 0 is that of NewStream. When there is a free place, a multiprocessor
// takes a thread block of the stream with the lowest number. It does not interrupt a block
// that runs. The driver clamps numbers outside StreamPriorities. A graph runs at the
// priority of the stream on which it is launched. Under MPS the order holds between
// processes too.
func (c *Context) NewPriorityStream(priority int) (Stream, error) {
	handle, err := cuStreamCreateWithPriority.get(out, streamNonBlocking, uint64(priority))
	return Stream{handle}, err
}

// StreamPriorities returns the numbers of the lowest and of the highest priority that a
// stream can have, such as 0 and -5. They are equal if the device has no priorities. It
// needs a bound thread.
func (c *Context) StreamPriorities() (lowest, highest int, err error) {
	priorities, err := cuCtxGetStreamPriorityRange.pair(out, out)
	return int(int32(priorities[0])), int(int32(priorities[1])), err
}

// StreamOf wraps a CUstream that other code made.
func StreamOf(handle uintptr) Stream { return Stream{uint64(handle)} }

// Handle returns the CUstream.
func (s Stream) Handle() uintptr { return uintptr(s.handle) }

// Synchronize waits until all queued work is done. The error may come from any work queued
// before, on this stream or another: CUDA reports errors late.
func (s Stream) Synchronize() error { return cuStreamSynchronize.do(s.handle) }

// Query reports whether all queued work is done. It does not wait.
func (s Stream) Query() (done bool, err error) { return cuStreamQuery.settled(s.handle) }

// settled calls a function that returns notReady for work that is not done. It makes no error of that.
func (f *function) settled(handle uint64) (done bool, err error) {
	code := f.code(handle)
	if Code(code) == notReady {
		return false, nil
	}
	return code == 0, f.check(code)
}

// Destroy releases the stream. Queued work still completes.
func (s Stream) Destroy() error { return cuStreamDestroy.do(s.handle) }

// Wait queues a wait. Work that is queued on s afterwards begins once the work that e
// recorded, before this call, is done.
func (s Stream) Wait(e Event) error { return cuStreamWaitEvent.do(s.handle, e.handle, 0) }

// Copy queues a copy of n bytes. The driver finds the direction from the addresses. If one
// side is host memory that is not pinned, the call itself may wait for the copy.
func (s Stream) Copy(dst, src Pointer, n int) error {
	return cuMemcpyAsync.do(uint64(dst), uint64(src), uint64(n), s.handle)
}

// Set queues a write of value to n bytes.
func (s Stream) Set(dst Pointer, value byte, n int) error {
	return cuMemsetD8Async.do(uint64(dst), uint64(value), uint64(n), s.handle)
}

// WriteValue queues a write of one word, 4-byte aligned. The write happens after all work
// queued before is done and its results are visible to all. If the word is in pinned host
// memory, a CPU can poll it to learn of the end of a batch without a call into CUDA.
func (s Stream) WriteValue(dst Pointer, value uint32) error {
	return cuStreamWriteValue32.do(s.handle, uint64(dst), uint64(value), 0)
}

// Event is a mark in a stream. It is a plain value.
type Event struct{ handle uint64 }

// Flags of cuEventCreate.
const (
	eventBlocking = 0x1
	eventNoTiming = 0x2
)

// NewEvent makes an event. Elapsed needs events made with timing. Synchronize on it spins.
// The caller owns it until Destroy.
func (c *Context) NewEvent(timing bool) (Event, error) {
	if timing {
		return newEvent(0)
	}
	return newEvent(eventNoTiming)
}

// NewBlockingEvent makes an event without timing whose Synchronize puts the thread to
// sleep. No CPU is busy, but Synchronize returns some ten microseconds later.
func (c *Context) NewBlockingEvent() (Event, error) { return newEvent(eventBlocking | eventNoTiming) }

func newEvent(flags uint64) (Event, error) {
	handle, err := cuEventCreate.get(out, flags)
	return Event{handle}, err
}

// Record queues the event on s. The event is done when all work queued before it is. A new
// Record replaces the one before.
func (e Event) Record(s Stream) error { return cuEventRecord.do(e.handle, s.handle) }

// Query reports whether the last Record is done; it returns true if there was none. It
// does not wait.
func (e Event) Query() (done bool, err error) { return cuEventQuery.settled(e.handle) }

// Synchronize waits until the last Record is done.
func (e Event) Synchronize() error { return cuEventSynchronize.do(e.handle) }

// Destroy releases the event. A queued wait for it still ends.
func (e Event) Destroy() error { return cuEventDestroy.do(e.handle) }

// Elapsed returns the time between two records of events with timing, precise to half a
// microsecond. If one is not done, the error is ErrNotReady.
func Elapsed(from, to Event) (time.Duration, error) {
	result, err := cuEventElapsedTime.get(out, from.handle, to.handle)
	milliseconds := math.Float32frombits(uint32(result))
	return time.Duration(float64(milliseconds) * float64(time.Millisecond)), err
}
