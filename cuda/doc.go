// Package cuda is the part of CUDA's driver API that Penstock uses: devices, the
// primary context, memory, streams, events, kernels from PTX, graphs, green contexts,
// and memory that other processes can map. It needs no CUDA to build. Open loads
// libcuda.so.1 at run time, and returns an error if it is missing.
//
// The way of a kernel:
//
//	Open                        1. the library, once per process
//	Find -> Device              2. by "cuda", "cuda:1" or UUID; no context yet
//	Device.Split                   the groups of its multiprocessors
//	Device.OpenContext          3. the primary context: 0.1 s, some 550 MB
//	Context.Bind                4. on every thread that makes the calls below
//	Context.Load -> Function    5. PTX, compiled by the driver
//	Function.Launch             6. queued on a Stream
//	Stream.Synchronize          7. done, or the error that it ended with
//
// Threads: CUDA's current context belongs to a thread of the operating system. Before a
// goroutine calls methods of Context, or of objects that Context returns, it calls
// runtime.LockOSThread, then Bind. It stays locked. Any bound thread may use streams,
// events, modules, graphs and green contexts, and several threads at once unless a
// method says otherwise. Any goroutine may call Open, Devices, Find and the methods of
// Device.
//
// Memory: a Pointer is an address that a GPU can use. With unified addressing, an
// address means the same to the CPU and to the GPU. Every 64-bit Linux has it.
// Memory of Go's heap is never given to CUDA: a []byte passed to Register, At or a copy comes from mmap or from AllocateHost.
//
// Errors: a refused call returns an *Error with the driver's code. Compare it with
// errors.Is to ErrOutOfMemory, ErrTooFewSMs, ErrNotReady, ErrNotSupported and ErrLost.
// After ErrLost no request of this process to the device will succeed, so the process
// must end. A function that the driver lacks is a *SymbolError.
//
// These methods allocate nothing if they succeed: Launch, Copy, Set, WriteValue,
// Record, Query, Synchronize, Wait and Executable.Launch.
//
// Package internal/testing/cudafake builds a driver library that needs no GPU. Package
// cudatest, next to it, is one test suite for both libraries.
package cuda
