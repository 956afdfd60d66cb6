package cuda

import (
	"errors"
	"fmt"
	"strings"
)

// Module is compiled code in a context.
type Module struct{ handle uint64 }

// logBytes is the max length of the compiler's log in a LoadError.
const logBytes = 8 << 10

// LoadError is returned for PTX that does not compile, or a module that does not load.
type LoadError struct {
	Err error  // an *Error
	Log string // log of the driver's compiler, or ""
}

func (e *LoadError) Error() string {
	if e.Log == "" {
		return fmt.Sprintf("load module: %v", e.Err)
	}
	return fmt.Sprintf("load module: %v: %s", e.Err, e.Log)
}

func (e *LoadError) Unwrap() error { return e.Err }

// Load compiles PTX, or loads a cubin or fatbin, into the context. It does not keep
// image. It waits until this process's kernels on the device are done. A *LoadError has
// the compiler's log.
func (c *Context) Load(image []byte) (*Module, error) {
	if len(image) == 0 {
		return nil, &LoadError{Err: &Error{Op: "cuModuleLoadDataEx", Code: 200}}
	}
	var log [logBytes]byte
	handle, err := cuModuleLoadDataEx.special(func(address uint64) ([2]uint64, int32) {
		return moduleLoad(address, append(image[:len(image):len(image)], 0), log[:])
	})
	if err != nil {
		return nil, &LoadError{Err: err, Log: strings.TrimSpace(untilZero(log[:]))}
	}
	return &Module{handle}, nil
}

// Unload releases the module. None of its kernels may be in flight, and no graph that
// contains one may be launched afterwards.
func (m *Module) Unload() error { return cuModuleUnload.do(m.handle) }

// Function returns the kernel with a name (extern "C", or mangled). It is valid until
// Unload.
func (m *Module) Function(name string) (Function, error) {
	text := append([]byte(name), 0)
	handle, err := with(cuModuleGetFunction, &text[0], out, m.handle, buffer)
	if err != nil {
		return Function{}, fmt.Errorf("kernel %q: %w", name, err)
	}
	return Function{handle}, nil
}

// Function is a kernel. It is a plain value.
type Function struct{ handle uint64 }

// Launch queues the kernel on s: grid blocks of block threads each, x first, with
// sharedBytes of dynamic shared memory per block. It copies the arguments before it
// returns. Their number and sizes must match the kernel's parameters, which the driver
// does not check. It allocates nothing. If the kernel faults, a later call returns
// ErrLost.
func (f Function) Launch(grid, block [3]uint32, sharedBytes uint32, s Stream, args *Args) error {
	code := cuLaunchKernel.absent()
	if code == 0 {
		code = launch(cuLaunchKernel.address, f.handle, grid, block, sharedBytes, s.handle, args)
	}
	return cuLaunchKernel.check(code)
}

// maxParameters is PCU_MAX_PARAMETERS of shim.h.
const maxParameters = 64

// Args are a kernel's arguments. They are made once, and set in place before each
// Launch. Only one goroutine at a time may use them.
type Args struct {
	values  []byte
	offsets []uint32
	sizes   []uint32
}

var errArgs = errors.New("a kernel takes up to 64 parameters of 1 to 4096 bytes")

// NewArgs makes arguments of these sizes in bytes, all zero. Each is at a multiple of
// 16, so that a struct may contain any type. It panics if a kernel cannot have such
// parameters: more than 64 of them, or one of less than 1 or more than 4096 bytes.
func NewArgs(sizes ...int) *Args {
	a := &Args{offsets: make([]uint32, len(sizes)), sizes: make([]uint32, len(sizes))}
	if len(sizes) > maxParameters {
		panic(errArgs)
	}
	end := 0
	for i, size := range sizes {
		if size < 1 || size > 4096 {
			panic(errArgs)
		}
		a.offsets[i], a.sizes[i] = uint32(end), uint32(size)
		end += (size + 15) &^ 15
	}
	a.values = alignedBytes(end)
	return a
}

// Bytes returns argument i in place, for a struct passed by value.
func (a *Args) Bytes(i int) []byte {
	return a.values[a.offsets[i]:][:a.sizes[i]:a.sizes[i]]
}

// SetPointer sets argument i, of 8 bytes. Like the setters in args_unsafe.go, it panics
// if the argument has another size.
func (a *Args) SetPointer(i int, p Pointer) { a.SetUint64(i, uint64(p)) }
