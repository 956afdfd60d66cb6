package cuda

import (
	"cmp"
	"os"
	"sync"
	"time"
)

// defaultLibrary is the driver's library under the name that its installation uses.
const defaultLibrary = "libcuda.so.1"

// libraryEnv names another library to load in its place.
const libraryEnv = "PENSTOCK_LIBCUDA"

// readyTimeout is how long Open and OpenContext wait for an MPS server that accepts no
// clients yet. After a fault the server waits until all its old clients have ended
// (measured: as long as one of them still runs).
const readyTimeout = 2 * time.Second

var (
	opening sync.Once
	opened  error
	// libraryPath is written once, by the call of open in opening.
	libraryPath string
)

// Open loads libcuda.so.1, or the library that the environment variable
// PENSTOCK_LIBCUDA names, and initialises it (cuInit). It does so once per process;
// later calls return the first result. Under MPS it connects to the daemon, and the
// driver reads CUDA_MPS_ACTIVE_THREAD_PERCENTAGE at that moment. Any goroutine may call
// it.
//
// It returns ErrNoDriver if there is no library, and ErrNoDevice if there is no GPU. If
// the library lacks a function that is always needed, it returns ErrNoSymbol with the
// symbol's name. In a build without cgo it returns ErrNoCgo. Other errors are an *Error
// of cuInit.
func Open() error {
	opening.Do(func() { opened = open() })
	return opened
}

func open() error {
	name := cmp.Or(os.Getenv(libraryEnv), defaultLibrary)
	path, err := load(name)
	if err != nil {
		return err
	}
	libraryPath = path
	_, err = cuInit.whenReady(0)
	return err
}

// whenReady repeats get, up to readyTimeout, while the MPS server is not ready. The server is recovering from a fault, or was killed and another is starting.
// In the latter case the code is 805 as long as the daemon has no server for a client.
func (f *function) whenReady(arguments ...uint64) (uint64, error) {
	for deadline := time.Now().Add(readyTimeout); ; time.Sleep(2 * time.Millisecond) {
		result, err := f.get(arguments...)
		coming := isCode(err, MPSServerNotReady) || isCode(err, MPSConnectionFailed)
		if !coming || time.Now().After(deadline) {
			return result, err
		}
	}
}

// Library returns the path of the driver's library, or "" before Open has succeeded.
func Library() string {
	if Open() != nil {
		return ""
	}
	return libraryPath
}

// DriverVersion returns the newest CUDA version that the driver supports: 13000 is CUDA
// 13.0.
func DriverVersion() (int, error) {
	if err := Open(); err != nil {
		return 0, err
	}
	version, err := cuDriverGetVersion.get(out)
	return int(version), err
}
