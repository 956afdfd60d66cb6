package cuda

import (
	"errors"
	"fmt"
	"strings"
)

// Module is compiled code in a context.
type Module struct{ handle uint64 }

// logBytes is how much of the compiler's words a LoadError keeps.
const logBytes = 8 << 10

// LoadError is PTX that did not compile, or a module that did not load.
type LoadError struct {
	Err error  // an *Error
	Log string // what the driver's compiler said, or ""
}

func (e *LoadError) Error() string {
	if e.Log == "" {
		return fmt.Sprintf("load module: %v", e.Err)
	}
	return fmt.Sprintf("load module: %v: %s", e.Err, e.Log)
}

func (e *LoadError) Unwrap() error { return e.Err }

// Load compiles PTX, or loads a cubin or fatbin, into the context; image is the
// caller's again when it returns. It waits until the kernels that this process has
// on the device are done. A *LoadError carries what the compiler said.
func (c *Context) Load(image []byte) (*Module, error) {
	if len(image) == 0 {
		return nil, &LoadError{Err: &Error{Op: "cuModuleLoadDataEx", Code: 200}}
	}
	handle, log, code := moduleLoad(append(append(make([]byte, 0, len(image)+1), image...), 0))
	if err := check("cuModuleLoadDataEx", code); err != nil {
		return nil, &LoadError{Err: err, Log: strings.TrimSpace(log)}
	}
	return &Module{handle}, nil
}

// Unload gives the module back. None of its kernels is in flight, and no graph
// that has one will be launched.
func (m *Module) Unload() error { return check("cuModuleUnload", moduleUnload(m.handle)) }

// Function returns the kernel of a name (extern "C", or mangled); it is good until
// Unload.
func (m *Module) Function(name string) (Function, error) {
	handle, code := moduleFunction(m.handle, name)
	if err := check("cuModuleGetFunction", code); err != nil {
		return Function{}, fmt.Errorf("kernel %q: %w", name, err)
	}
	return Function{handle}, nil
}

// Function is a kernel. It is a plain value.
type Function struct{ handle uint64 }

// Parameters returns the sizes in bytes of the kernel's parameters, in order, as
// the compiler laid them out: what NewArgs takes. Drivers before CUDA 12.4 do not
// say: ErrNotSupported.
func (f Function) Parameters() ([]int, error) {
	var sizes []int
	for {
		_, bytes, code := functionParameter(f.handle, len(sizes))
		if Code(code) == InvalidValue { // past the last
			return sizes, nil
		}
		if err := check("cuFuncGetParamInfo", code); err != nil {
			return nil, err
		}
		sizes = append(sizes, int(bytes))
	}
}

// Launch queues the kernel on s: grid blocks of block threads each, x first, with
// so much dynamic shared memory a block. The arguments are copied before it
// returns; they must be as many, and as large, as the kernel's parameters, which
// the driver does not check. It allocates nothing. That a kernel faulted is told
// by a later call, and then the error is ErrLost.
func (f Function) Launch(grid, block [3]uint32, sharedBytes uint32, s Stream, args *Args) error {
	return check("cuLaunchKernel", launch(f.handle, grid, block, sharedBytes, s.handle, args))
}

// maxParameters is PCU_MAX_PARAMETERS of shim.h.
const maxParameters = 64

// Args are a kernel's arguments: built once, set in place before each Launch.
// One goroutine at a time.
type Args struct {
	values  []byte
	offsets []uint32
	sizes   []uint32
}

var errArgs = errors.New("a kernel takes up to 64 parameters of 1 to 4096 bytes")

// NewArgs makes arguments of these sizes in bytes, all zero. Each lies at a
// multiple of 16, so that a struct may hold any type. It panics where a kernel
// cannot have such parameters: more than 64, or of less than one byte or more
// than 4096.
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

// Len is how many arguments there are.
func (a *Args) Len() int { return len(a.sizes) }

// Bytes is argument i in place, for a struct passed by value.
func (a *Args) Bytes(i int) []byte {
	return a.values[a.offsets[i]:][:a.sizes[i]:a.sizes[i]]
}

// SetPointer sets argument i, of 8 bytes. Like the setters below it panics where
// the argument is of another size.
func (a *Args) SetPointer(i int, p Pointer) { a.SetUint64(i, uint64(p)) }
