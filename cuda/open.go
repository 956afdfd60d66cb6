package cuda

import (
	"cmp"
	"fmt"
	"os"
	"sync"
	"time"
)

// defaultLibrary is the driver's library under the name that the driver's
// installation gives it.
const defaultLibrary = "libcuda.so.1"

// libraryEnv names another library to load in its place.
const libraryEnv = "PENSTOCK_LIBCUDA"

// readyTimeout is how long Open and OpenContext wait for an MPS server that
// takes no clients yet: after a fault it waits until all the clients that it had
// have ended (measured: as long as one of them lingers).
const readyTimeout = 2 * time.Second

var (
	opening sync.Once
	opened  error
	// libraryPath is written once, in opening.
	libraryPath string
)

// Open loads libcuda.so.1, or what the environment variable PENSTOCK_LIBCUDA
// names, and initialises it (cuInit), once a process; later calls return what
// the first did. Under MPS it connects to the daemon, which is when
// CUDA_MPS_ACTIVE_THREAD_PERCENTAGE is read. Any goroutine.
//
// It returns ErrNoDriver when there is no library, ErrNoSymbol with the symbol's
// name when the library lacks one that everything needs, ErrNoDevice when there
// is no GPU, ErrNoCgo in a build without cgo, or another *Error of cuInit.
func Open() error {
	opening.Do(func() { opened = open() })
	return opened
}

func open() error {
	name := cmp.Or(os.Getenv(libraryEnv), defaultLibrary)
	found, text := load(name)
	switch found {
	case loadedLibrary:
	case noLibrary:
		return fmt.Errorf("%w: %s", ErrNoDriver, text)
	case noSymbol:
		return &SymbolError{Symbol: text, Library: name}
	default:
		return ErrNoCgo
	}
	libraryPath = text
	return check("cuInit", whenReady(initialise))
}

// whenReady calls the driver again, up to readyTimeout, while it says that the MPS
// server is not ready: it recovers from a fault, or was killed and another comes up
// (which is 805, as long as the daemon has none to send a client to).
func whenReady(call func() int32) int32 {
	for deadline := time.Now().Add(readyTimeout); ; time.Sleep(2 * time.Millisecond) {
		code := call()
		coming := code == int32(MPSServerNotReady) || code == int32(MPSConnectionFailed)
		if !coming || time.Now().After(deadline) {
			return code
		}
	}
}

// Library is the path of the driver's library, or "" before Open has succeeded.
func Library() string {
	if Open() != nil {
		return ""
	}
	return libraryPath
}

// DriverVersion is the newest CUDA version that the driver serves: 13000 is
// CUDA 13.0.
func DriverVersion() (int, error) {
	if err := Open(); err != nil {
		return 0, err
	}
	version, code := driverVersion()
	return int(version), check("cuDriverGetVersion", code)
}
