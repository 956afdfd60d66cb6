package cuda

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
)

// Code is a CUresult.
type Code int32

// The codes that this package handles specially (cuda.h, CUresult).
const (
	InvalidValue        Code = 1
	OutOfMemory         Code = 2
	notInitialized      Code = 3
	noDevice            Code = 100
	InvalidContext      Code = 201
	IllegalAddress      Code = 700
	notReady            Code = 600
	NotSupported        Code = 801
	MPSConnectionFailed Code = 805
	MPSServerNotReady   Code = 807
	InvalidClusterSize  Code = 912
)

// String is the name in cuda.h, if the driver that is loaded knows it: "CUDA_ERROR_OUT_OF_MEMORY".
func (c Code) String() string {
	if name := cuGetErrorName.text(c); name != "" {
		return name
	}
	return fmt.Sprintf("CUresult(%d)", int32(c))
}

// Lost reports whether all later calls of this process will fail. After some of these
// codes, cuda.h says, the process is in an inconsistent state and must be terminated. The
// other codes mean that the device or the MPS server is gone for this process.
func (c Code) Lost() bool {
	switch c {
	case 214, 220, 226, // from the hardware
		700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721, // from a kernel
		805, 806, 807, 810: // from MPS
		return true
	}
	return false
}

// The sentinels that an *Error matches with errors.Is.
var (
	// ErrOutOfMemory is returned if the device, or the host for pinned memory, does not
	// have enough memory.
	ErrOutOfMemory = errors.New("cuda: out of memory")
	// ErrLost is returned if the device or the MPS server has failed permanently for
	// this process; see Code.Lost. The process must end.
	ErrLost = errors.New("cuda: the device is lost to this process")
	// ErrServer is returned if the MPS server failed or was killed. The cause is not a
	// kernel of some process. Such an error also matches ErrLost.
	ErrServer = errors.New("cuda: the MPS server failed")
	// ErrTooFewSMs is returned if a kernel's blocks must run together (a thread block
	// cluster, a cooperative launch) and do not fit. The stream has too few
	// multiprocessors, or they are in different processing clusters (GPCs). On more
	// multiprocessors the kernel may run.
	ErrTooFewSMs = errors.New("cuda: too few multiprocessors for the kernel")
	// ErrNotReady is returned if the work is not complete yet.
	ErrNotReady = errors.New("cuda: not ready")
	// ErrNotSupported is returned if the device, the driver or the way in which an
	// object was made does not allow the call. A *SymbolError matches it as well.
	ErrNotSupported = errors.New("cuda: not supported")
	// ErrNoDevice is returned if there is no device, or none of that name.
	ErrNoDevice = errors.New("cuda: no such device")
)

// Errors of Open.
var (
	// ErrNoDriver is returned when libcuda.so.1 cannot be loaded.
	ErrNoDriver = errors.New("cuda: no driver library")
	// ErrNoSymbol is returned when the library lacks a function.
	ErrNoSymbol = errors.New("cuda: the driver library lacks a function")
	// ErrNoCgo is returned by every function in a build without cgo.
	ErrNoCgo = errors.New("cuda: this build has no cgo; build with CGO_ENABLED=1 and a C compiler")
)

// Error is a call that the driver refused.
type Error struct {
	Op   string // the driver's function, without its version: "cuMemAlloc"
	Code Code
}

// Error returns a text like "cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY (2): out of memory". The names are the driver's.
func (e *Error) Error() string {
	text := fmt.Sprintf("%s: %v (%d)", e.Op, e.Code, int32(e.Code))
	if meaning := cuGetErrorString.text(e.Code); meaning != "" {
		text += ": " + meaning
	}
	return text
}

// Is compares the code with those of the sentinels.
func (e *Error) Is(target error) bool {
	switch target {
	case ErrOutOfMemory:
		return e.Code == OutOfMemory
	case ErrLost:
		return e.Code.Lost()
	case ErrServer:
		return e.Code == 805 || e.Code == 806
	case ErrTooFewSMs:
		return e.Code == 720 || e.Code == InvalidClusterSize
	case ErrNotReady:
		return e.Code == notReady
	case ErrNotSupported:
		return e.Code == NotSupported
	case ErrNoDevice:
		return e.Code == noDevice || e.Code == 101
	}
	return false
}

// SymbolError is a call of a function that the driver library lacks: the driver is too
// old for it.
type SymbolError struct {
	Symbol  string // with its version: "cuMemAlloc_v2"
	Library string // its path
}

func (e *SymbolError) Error() string {
	return fmt.Sprintf("%s has no %s: the driver is too old for it", e.Library, e.Symbol)
}

// Is matches ErrNoSymbol and ErrNotSupported.
func (e *SymbolError) Is(target error) bool {
	return target == ErrNoSymbol || target == ErrNotSupported
}

// untilZero returns a string of C.
func untilZero(b []byte) string {
	text, _, _ := bytes.Cut(b, []byte{0})
	return string(text)
}

// Results of a call in addition to the driver's codes.
const (
	missing = -1 // the library has no such symbol
	noCgo   = -2 // this build cannot call C
)

// refused turns a code other than 0 into an error.
func refused(symbol string, code int32) error {
	switch code {
	case missing:
		return &SymbolError{Symbol: symbol, Library: libraryPath}
	case noCgo:
		return ErrNoCgo
	}
	op := symbol
	if at := strings.LastIndex(symbol, "_v"); at > 0 {
		op = symbol[:at]
	}
	return &Error{Op: op, Code: Code(code)}
}
