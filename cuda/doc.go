// Package cuda is CUDA's driver API as far as Penstock uses it: devices, the
// primary context, memory, streams, events, kernels from PTX, graphs, green
// contexts, memory that other processes can map. It needs no CUDA to build:
// libcuda.so.1 is opened at run time, and where it is not there, Open says so.
//
// The way of a kernel:
//
//	Open                        1. the library, once a process
//	Find -> Device              2. by "cuda", "cuda:1" or UUID; no context yet
//	Device.Split                   how its multiprocessors can be handed out
//	Device.OpenContext          3. the primary context: 0.1 s, some 550 MB
//	Context.Bind                4. on every thread that calls what follows
//	Context.Load -> Function    5. PTX, compiled by the driver
//	Function.Launch             6. queued on a Stream
//	Stream.Synchronize          7. done, or the error that it ended with
//
// Threads: CUDA's current context belongs to a thread of the operating system.
// A goroutine that calls the methods of Context and of what it gives calls
// runtime.LockOSThread, then Bind, and stays locked. Streams, events, modules,
// graphs and green contexts may be used by any bound thread, and by several at
// once unless a method says otherwise. Open, Devices, Find and the methods of
// Device may be called from anywhere.
//
// Memory: a Pointer is an address that a GPU can use. With unified addressing,
// which Properties.UnifiedAddressing reports and every 64-bit Linux has, an
// address means the same to the CPU and to the GPU. Memory of Go's heap is
// never given to CUDA: a []byte that Register, At or a copy sees comes from
// mmap or from AllocateHost.
//
// Errors: a refused call is an *Error with the driver's code, to be compared
// with errors.Is against ErrOutOfMemory, ErrTooFewSMs, ErrNotReady,
// ErrNotSupported and ErrLost. After ErrLost nothing that this process asks of the device will
// succeed: it must end. A function that the driver lacks is a *SymbolError.
//
// What succeeds allocates nothing in Launch, Copy, Set, WriteValue, Record,
// Query, Synchronize, Wait and Executable.Launch.
//
// Package internal/testing/cudafake builds a driver library that needs no GPU;
// cudatest, beside it, is one suite for both.
package cuda
