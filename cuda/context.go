package cuda

import (
	"errors"
	"sync"
)

// ContextFlags says how a thread waits for the device in Synchronize.
type ContextFlags uint32

// How a thread waits (cuda.h, CU_CTX_SCHED_…).
const (
	ScheduleAuto  ContextFlags = 0 // the driver chooses: it spins where there are more CPUs than contexts
	ScheduleSpin  ContextFlags = 1 // shortest answer, one CPU busy
	scheduleYield ContextFlags = 2
	ScheduleBlock ContextFlags = 4 // the thread sleeps
)

// Context is a device's primary context, retained: the same one that CUDA's
// run-time library, and with it ONNX Runtime, uses in this process. It may be
// used by many threads at once, each bound to it.
type Context struct {
	device Device
	handle uint64

	mu     sync.Mutex
	greens map[string]*keptGreen // by groups
}

// OpenContext makes the device's primary context, or joins it where there is one
// already; then flags are those it was made with. The calling thread need not be
// bound, and is not bound by it. It takes about 0.1 s. Where an MPS server
// recovers from a fault it waits, up to two seconds.
func (d Device) OpenContext(flags ContextFlags) (*Context, error) {
	if err := Open(); err != nil {
		return nil, err
	}
	if err := check("cuDevicePrimaryCtxSetFlags_v2", primaryFlags(d.handle, uint32(flags))); err != nil &&
		!isCode(err, 708) { // PRIMARY_CONTEXT_ACTIVE, of drivers before 11
		return nil, err
	}
	var handle uint64
	code := whenReady(func() (code int32) {
		handle, code = primaryRetain(d.handle)
		return code
	})
	if err := check("cuDevicePrimaryCtxRetain", code); err != nil {
		return nil, err
	}
	return &Context{device: d, handle: handle}, nil
}

func isCode(err error, code Code) bool {
	e, ok := err.(*Error)
	return ok && e.Code == code
}

// Device is the device that the context is of.
func (c *Context) Device() Device { return c.device }

// Bind makes the context the calling thread's (cuCtxSetCurrent). The goroutine
// has locked itself to the thread. All methods but Bind, Device and Close, and
// those of all that they return, are called on bound threads.
func (c *Context) Bind() error { return check("cuCtxSetCurrent", contextBind(c.handle)) }

// Close gives the context back, and unbinds the calling thread from it; other
// threads that were bound to it must not call CUDA any more. All that was made
// in it has been destroyed before, or is gone with the last who retains it.
func (c *Context) Close() error {
	err := c.closeGreens()
	if bound, code := contextBound(); code == 0 && bound == c.handle {
		contextBind(0)
	}
	return errors.Join(err, check("cuDevicePrimaryCtxRelease_v2", primaryRelease(c.device.handle)))
}

// SMs is how many multiprocessors kernels of this process can use: all of the
// device's, or under MPS those of its percentage. It needs a bound thread.
func (c *Context) SMs() (int, error) {
	if sms, code := contextAffinity(); code == 0 && sms > 0 {
		return int(sms), nil
	}
	sms, code := deviceAttribute(c.device.handle, attributeSMs)
	return int(sms), check("cuDeviceGetAttribute", code)
}

// Memory is what the device has free and in all, in bytes, other processes'
// counted in.
func (c *Context) Memory() (free, total int64, err error) {
	f, t, code := memoryInfo()
	return int64(f), int64(t), check("cuMemGetInfo_v2", code)
}
