package cuda

import (
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

// codes maps a CUresult to its name without CUDA_ERROR_, and its meaning.
var codes = map[Code]struct{ name, text string }{
	1:   {"INVALID_VALUE", "an argument is out of its range"},
	2:   {"OUT_OF_MEMORY", "out of memory"},
	3:   {"NOT_INITIALIZED", "the driver is not initialised"},
	4:   {"DEINITIALIZED", "the driver is shutting down"},
	34:  {"STUB_LIBRARY", "the library is the toolkit's stub, not the driver"},
	36:  {"CALL_REQUIRES_NEWER_DRIVER", "the call needs a newer driver"},
	46:  {"DEVICE_UNAVAILABLE", "the device is busy or in a mode that allows no further context"},
	100: {"NO_DEVICE", "no device"},
	101: {"INVALID_DEVICE", "no such device"},
	102: {"DEVICE_NOT_LICENSED", "the device has no licence"},
	200: {"INVALID_IMAGE", "the module's image is not valid"},
	201: {"INVALID_CONTEXT", "no context is bound to this thread, or it was closed"},
	202: {"CONTEXT_ALREADY_CURRENT", "the context is bound already"},
	205: {"MAP_FAILED", "mapping failed"},
	206: {"UNMAP_FAILED", "unmapping failed"},
	207: {"ARRAY_IS_MAPPED", "the array is mapped"},
	208: {"ALREADY_MAPPED", "already mapped"},
	209: {"NO_BINARY_FOR_GPU", "the module has no code for this device"},
	210: {"ALREADY_ACQUIRED", "already acquired"},
	211: {"NOT_MAPPED", "not mapped"},
	214: {"ECC_UNCORRECTABLE", "memory failed beyond what ECC corrects"},
	215: {"UNSUPPORTED_LIMIT", "the device has no such limit"},
	216: {"CONTEXT_ALREADY_IN_USE", "the context is in use by another thread"},
	217: {"PEER_ACCESS_UNSUPPORTED", "the devices cannot reach each other's memory"},
	218: {"INVALID_PTX", "the PTX does not compile"},
	219: {"INVALID_GRAPHICS_CONTEXT", "no such graphics context"},
	220: {"NVLINK_UNCORRECTABLE", "NVLink failed beyond what it corrects"},
	221: {"JIT_COMPILER_NOT_FOUND", "the driver's PTX compiler is not installed"},
	222: {"UNSUPPORTED_PTX_VERSION", "the PTX is of a version that the driver does not know"},
	223: {"JIT_COMPILATION_DISABLED", "compiling PTX is switched off"},
	224: {"UNSUPPORTED_EXEC_AFFINITY", "the device has no such execution affinity"},
	225: {"UNSUPPORTED_DEVSIDE_SYNC", "the code waits in a way that the device does not support"},
	226: {"CONTAINED", "the device contained a fault of this process"},
	300: {"INVALID_SOURCE", "the module's source is not valid"},
	301: {"FILE_NOT_FOUND", "file not found"},
	302: {"SHARED_OBJECT_SYMBOL_NOT_FOUND", "a shared object lacks a symbol"},
	303: {"SHARED_OBJECT_INIT_FAILED", "a shared object did not load"},
	304: {"OPERATING_SYSTEM", "a system call failed"},
	400: {"INVALID_HANDLE", "no such stream, event, module or graph"},
	401: {"ILLEGAL_STATE", "not in a state that allows this"},
	402: {"LOSSY_QUERY", "the answer would be incomplete"},
	500: {"NOT_FOUND", "no such name"},
	600: {"NOT_READY", "not finished yet"},
	700: {"ILLEGAL_ADDRESS", "a kernel reached an address that is not mapped"},
	701: {"LAUNCH_OUT_OF_RESOURCES", "the launch asks for more than a multiprocessor has"},
	702: {"LAUNCH_TIMEOUT", "a kernel ran too long"},
	704: {"PEER_ACCESS_ALREADY_ENABLED", "peer access is on already"},
	705: {"PEER_ACCESS_NOT_ENABLED", "peer access is off"},
	708: {"PRIMARY_CONTEXT_ACTIVE", "the primary context is open already"},
	709: {"CONTEXT_IS_DESTROYED", "the context is destroyed"},
	710: {"ASSERT", "an assertion in a kernel failed"},
	711: {"TOO_MANY_PEERS", "too many peers"},
	712: {"HOST_MEMORY_ALREADY_REGISTERED", "the memory is registered already"},
	713: {"HOST_MEMORY_NOT_REGISTERED", "the memory is not registered"},
	714: {"HARDWARE_STACK_ERROR", "a kernel's call stack broke"},
	715: {"ILLEGAL_INSTRUCTION", "a kernel ran an illegal instruction"},
	716: {"MISALIGNED_ADDRESS", "a kernel used a misaligned address"},
	717: {"INVALID_ADDRESS_SPACE", "a kernel used an address of the wrong space"},
	718: {"INVALID_PC", "a kernel's program counter left its program"},
	719: {"LAUNCH_FAILED", "a kernel failed"},
	720: {"COOPERATIVE_LAUNCH_TOO_LARGE", "the cooperative launch does not fit the device at once"},
	721: {"TENSOR_MEMORY_LEAK", "a kernel left tensor memory allocated"},
	800: {"NOT_PERMITTED", "not permitted"},
	801: {"NOT_SUPPORTED", "not supported"},
	802: {"SYSTEM_NOT_READY", "a daemon that the device needs is not running"},
	803: {"SYSTEM_DRIVER_MISMATCH", "kernel driver and libcuda are of different versions"},
	804: {"COMPAT_NOT_SUPPORTED_ON_DEVICE", "the device does not support forward compatibility"},
	805: {"MPS_CONNECTION_FAILED", "the MPS daemon or server does not answer"},
	806: {"MPS_RPC_FAILURE", "the MPS server failed during the call"},
	807: {"MPS_SERVER_NOT_READY", "the MPS server accepts no clients while it recovers from a fault"},
	808: {"MPS_MAX_CLIENTS_REACHED", "the MPS server has all the clients it can have"},
	809: {"MPS_MAX_CONNECTIONS_REACHED", "the device has all the connections it can have"},
	810: {"MPS_CLIENT_TERMINATED", "the MPS server ended this client"},
	811: {"CDP_NOT_SUPPORTED", "the device does not launch kernels from kernels"},
	812: {"CDP_VERSION_MISMATCH", "the code launches kernels from kernels by another version"},
	900: {"STREAM_CAPTURE_UNSUPPORTED", "not allowed while a stream is captured"},
	901: {"STREAM_CAPTURE_INVALIDATED", "the capture broke at an earlier error"},
	902: {"STREAM_CAPTURE_MERGE", "two captures would be merged"},
	903: {"STREAM_CAPTURE_UNMATCHED", "the capture was not begun on this stream"},
	904: {"STREAM_CAPTURE_UNJOINED", "a stream that joined the capture was not joined back"},
	905: {"STREAM_CAPTURE_ISOLATION", "the capture would depend on work outside it"},
	906: {"STREAM_CAPTURE_IMPLICIT", "the capture would wait for the legacy stream"},
	907: {"CAPTURED_EVENT", "the event is part of a capture"},
	908: {"STREAM_CAPTURE_WRONG_THREAD", "the capture was begun by another thread"},
	909: {"TIMEOUT", "timed out"},
	910: {"GRAPH_EXEC_UPDATE_FAILURE", "the executable graph does not allow this change"},
	911: {"EXTERNAL_DEVICE", "an external device failed"},
	912: {"INVALID_CLUSTER_SIZE", "the cluster has an invalid size"},
	913: {"FUNCTION_NOT_LOADED", "the function is not loaded"},
	914: {"INVALID_RESOURCE_TYPE", "the resource is of the wrong type"},
	915: {"INVALID_RESOURCE_CONFIGURATION", "the resources do not match"},
	999: {"UNKNOWN", "unknown error of the driver"},
}

// String is the name in cuda.h: "CUDA_ERROR_OUT_OF_MEMORY".
func (c Code) String() string {
	if c == 0 {
		return "CUDA_SUCCESS"
	}
	if known, ok := codes[c]; ok {
		return "CUDA_ERROR_" + known.name
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

// Error returns a text like "cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY (2): out of memory".
func (e *Error) Error() string {
	text := fmt.Sprintf("%s: %v (%d)", e.Op, e.Code, int32(e.Code))
	if known, ok := codes[e.Code]; ok {
		text += ": " + known.text
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

// Results of a call in addition to the driver's codes.
const (
	missing = -1 // PCU_MISSING: the library has no such symbol
	noCgo   = -2 // this build cannot call C
)

// check turns the result of the driver's function symbol into an error.
func check(symbol string, code int32) error {
	if code == 0 {
		return nil
	}
	return refused(symbol, code)
}

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
