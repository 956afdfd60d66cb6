package cuda

import (
	"errors"
	"sync"
)

// Context is a device's primary context, retained. CUDA's run-time library, and so ONNX
// Runtime, uses the same one in this process. Several threads may use it at once, each
// bound to it.
type Context struct {
	device Device
	handle uint64

	mu     sync.Mutex
	greens map[string]*keptGreen // key: the groups
}

// OpenContext makes the device's primary context, or joins it if there is one already.
// The calling thread need not be bound, and OpenContext does not bind it. It takes about
// 0.1 s. If an MPS server is recovering from a fault, it waits up to two seconds.
func (d Device) OpenContext() (*Context, error) {
	if err := Open(); err != nil {
		return nil, err
	}
	handle, err := cuDevicePrimaryCtxRetain.whenReady(out, d.handle)
	if err != nil {
		return nil, err
	}
	return &Context{device: d, handle: handle}, nil
}

func isCode(err error, code Code) bool {
	e, ok := err.(*Error)
	return ok && e.Code == code
}

// Device returns the context's device.
func (c *Context) Device() Device { return c.device }

// Bind makes this the calling thread's current context (cuCtxSetCurrent). The goroutine
// must have locked itself to the thread. All other methods need a bound thread, except
// Device and Close. So do the methods of all objects that they return.
func (c *Context) Bind() error { return cuCtxSetCurrent.do(c.handle) }

// Close releases the context, and unbinds the calling thread from it. Other threads
// that were bound to it must not call CUDA any more. Objects made in the context must
// have been destroyed, or go when its last user releases it.
func (c *Context) Close() error {
	err := c.closeGreens()
	if bound, asked := cuCtxGetCurrent.get(out); asked == nil && bound == c.handle {
		cuCtxSetCurrent.do(0)
	}
	return errors.Join(err, cuDevicePrimaryCtxRelease.do(c.device.handle))
}

// SMs returns how many multiprocessors kernels of this process can use: all of the
// device's, or under MPS those of its percentage. It needs a bound thread.
func (c *Context) SMs() (int, error) {
	// A CUexecAffinityParam is a kind and a number, 32 bits each. Kind 0 is CU_EXEC_AFFINITY_TYPE_SM_COUNT.
	if affinity, err := cuCtxGetExecAffinity.get(out, 0); err == nil && affinity>>32 > 0 {
		return int(affinity >> 32), nil
	}
	sms, err := cuDeviceGetAttribute.get(out, attributeSMs, c.device.handle)
	return int(sms), err
}

// Memory returns the device's free and total memory in bytes. Memory that other
// processes use is not free.
func (c *Context) Memory() (free, total int64, err error) {
	bytes, err := cuMemGetInfo.pair(out, out)
	return int64(bytes[0]), int64(bytes[1]), err
}
