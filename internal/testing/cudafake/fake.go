// Package cudafake is a CUDA driver library that needs no GPU: a C source, built by
// cc into libcuda.so.1, which the package cuda loads in place of the driver's when
// the environment variable PENSTOCK_LIBCUDA names it. Device memory is the host's,
// streams are threads, copies copy, kernels are recorded, or run as C functions
// that a test brings. It refuses, runs out of memory, is late, faults, lacks
// functions, and counts what is out.
//
// In the process of a test:
//
//	func TestMain(m *testing.M) { cudafake.Main(m) }
//
//	func TestX(t *testing.T) {
//		cudafake.Check(t)                                    // afterwards all is as it was
//		cudafake.Apply(t, cudafake.Refuse("cuMemAlloc_v2", 3, 2)) // until the test's end
//
// For a child process:
//
//	path, err := cudafake.Build(dir)
//	child.Env = append(os.Environ(), cudafake.Library(path), cudafake.Env(cudafake.Memory(64<<20)))
//
// driver/driver.c says what it does and does not do.
package cudafake

import (
	"embed"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

//go:embed driver
var source embed.FS

const (
	libraryEnv  = "PENSTOCK_LIBCUDA"
	settingsEnv = "PENSTOCK_FAKE"
	// libraryName is the file that Build makes, under the driver's own name.
	libraryName = "libcuda.so.1"
)

// Option changes what Build builds.
type Option struct {
	without string
	kernels string
}

// Without leaves functions out of the library, as an old driver does, by their
// names with the version: "cuGreenCtxCreate".
func Without(symbols ...string) Option { return Option{without: strings.Join(symbols, " ")} }

// Kernels is C source to build in: for a kernel NAME of a module,
//
//	#include "fake.h"
//	void fake_kernel_NAME(const struct fake_launch *launch)
//
// is called when its turn on its stream comes, on the stream's thread.
// driver/fake.h says what it can use.
func Kernels(c string) Option { return Option{kernels: c} }

// Build builds the library in a folder, which exists, and returns its path. It
// needs a C compiler, cc or what CC names.
func Build(dir string, options ...Option) (string, error) {
	library := filepath.Join(dir, libraryName)
	args := []string{"-std=gnu11", "-O1", "-g", "-fPIC", "-shared", "-Wall", "-Wl,-soname," + libraryName, "-o", library}
	var sources []string
	write := func(name string, text []byte) error {
		path := filepath.Join(dir, name)
		if strings.HasSuffix(name, ".c") {
			sources = append(sources, path)
		}
		return os.WriteFile(path, text, 0o600)
	}
	for _, name := range []string{"fake.h", "driver.c"} {
		text, err := source.ReadFile("driver/" + name)
		if err != nil {
			return "", err
		}
		if err := write(name, text); err != nil {
			return "", fmt.Errorf("build the fake driver: %w", err)
		}
	}
	for i, o := range options {
		for _, symbol := range strings.Fields(o.without) {
			args = append(args, "-D"+symbol+"=absent_"+symbol)
		}
		if o.kernels != "" {
			if err := write(fmt.Sprintf("kernels%d.c", i), []byte(o.kernels)); err != nil {
				return "", fmt.Errorf("build the fake driver: %w", err)
			}
		}
	}
	compiler := os.Getenv("CC")
	if compiler == "" {
		compiler = "cc"
	}
	args = append(append(args, sources...), "-ldl", "-lpthread", "-lm")
	if out, err := exec.Command(compiler, args...).CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the fake driver: %w: %s", err, out)
	}
	return library, nil
}

// Library is the environment setting by which package cuda loads a library.
func Library(path string) string { return libraryEnv + "=" + path }

// Setting is one thing that the driver does otherwise; driver.c lists them.
type Setting string

// Refuse makes a driver's function, by its name with the version, answer code: the
// nth call from here on, or every one where nth is 0.
func Refuse[C ~int | ~int32](call string, nth int, code C) Setting {
	if nth > 0 {
		return Setting(fmt.Sprintf("%s#%d=%d", call, nth, code))
	}
	return Setting(fmt.Sprintf("%s=%d", call, code))
}

// Delay makes every call of a driver's function take so long.
func Delay(call string, d time.Duration) Setting {
	return Setting(fmt.Sprintf("%s~%dus", call, d.Microseconds()))
}

// Fault loses the device in the nth run of a kernel from here on (0: the next, "*":
// any kernel), as one that goes wrong does: everything answers code from then on.
func Fault[C ~int | ~int32](kernel string, nth int, code C) Setting {
	return Setting(fmt.Sprintf("kernel:%s#%d=%d", kernel, max(nth, 1), code))
}

// Lose loses the device at once.
func Lose[C ~int | ~int32](code C) Setting { return Setting(fmt.Sprintf("lost=%d", code)) }

// Late makes every piece of work on a stream take so long.
func Late(d time.Duration) Setting { return Setting(fmt.Sprintf("late=%dus", d.Microseconds())) }

// Hold stops all streams before their next piece of work; Release lets them go on.
const (
	Hold    Setting = "hold"
	Release Setting = "release"
)

// Memory is how much each device has, in bytes; 1 GiB otherwise.
func Memory(bytes int64) Setting { return Setting("memory=" + strconv.FormatInt(bytes, 10)) }

// Devices is how many there are; 1 otherwise.
func Devices(n int) Setting { return Setting("devices=" + strconv.Itoa(n)) }

// SMs is how many multiprocessors each device has, up to 256; 132 otherwise.
func SMs(n int) Setting { return Setting("sms=" + strconv.Itoa(n)) }

// Report keeps the accounts of a process in a file from its start, so that they
// can be read when it has ended, however it did: ReadReport.
func Report(path string) Setting { return Setting("report=" + path) }

// Env is the environment setting by which a child process's driver takes settings.
func Env(settings ...Setting) string {
	words := make([]string, len(settings))
	for i, s := range settings {
		words[i] = string(s)
	}
	return settingsEnv + "=" + strings.Join(words, " ")
}

// Accounts count what is out, and what was done. driver.c has them in this order.
type Accounts struct {
	Contexts        int64 // retained and not released
	Allocations     int64
	Bytes           int64 // of Allocations and Memories that this process made
	HostAllocations int64
	Registrations   int64
	Imports         int64
	Reservations    int64
	Memories        int64 // cuMemCreate and imports
	Mappings        int64
	Streams, Events int64
	Modules         int64
	Graphs          int64
	Executables     int64
	Greens          int64
	Launches        int64 // that ran, since the process began
	Lost            int64 // the code that the device was lost with
	GreenBytes      int64 // what green contexts took, which the driver never gives back
}

const accountsBytes = 18 * 8

// Out is a without what is not out but was done.
func (a Accounts) Out() Accounts {
	a.Launches, a.Lost, a.GreenBytes = 0, 0, 0
	return a
}

// Taken is how many bytes of device memory are not free: a Memory of that many has no more.
func (a Accounts) Taken() int64 { return a.Bytes + a.GreenBytes }

// ReadReport reads what a process with Report left.
func ReadReport(path string) (Accounts, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return Accounts{}, fmt.Errorf("read the fake driver's report: %w", err)
	}
	if len(data) != accountsBytes {
		return Accounts{}, fmt.Errorf("read the fake driver's report: %d bytes, not %d", len(data), accountsBytes)
	}
	var a Accounts
	_, err = binary.Decode(data, binary.NativeEndian, &a)
	return a, err
}

// Launch is a kernel that ran.
type Launch struct {
	Name        string
	Grid, Block [3]uint32
	SharedBytes uint32
	SMs         uint32 // of the context that it ran in
	Stream      uintptr
	Priority    int // of the stream
	// Arguments are the values of the parameters, up to 512 bytes together.
	Arguments [][]byte
}

// Main builds the driver with options, has this process load it, runs the tests and
// exits; the process fails where something is still out at the end. In a child
// process that was given a library it builds nothing.
func Main(m *testing.M, options ...Option) { os.Exit(run(m, options)) }

func run(m *testing.M, options []Option) int {
	if os.Getenv(libraryEnv) == "" && canControl {
		dir, err := os.MkdirTemp("", "fake-cuda")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(dir)
		path, err := Build(dir, options...)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		os.Setenv(libraryEnv, path)
	}
	code := m.Run()
	if out := Now().Out(); out != (Accounts{}) && code == 0 {
		fmt.Fprintf(os.Stderr, "the tests left on the fake GPU: %+v\n", out)
		return 1
	}
	return code
}

// Apply changes the driver of this process until the test's end, when Reset undoes
// all settings.
func Apply(t testing.TB, settings ...Setting) {
	t.Helper()
	t.Cleanup(Reset)
	Set(t, settings...)
}

// Set changes the driver of this process.
func Set(t testing.TB, settings ...Setting) {
	t.Helper()
	for _, s := range settings {
		if err := set(s); err != nil {
			t.Fatal(err)
		}
	}
}

// Reset undoes Set, also the loss of the device, and forgets what ran. What is out
// stays out.
func Reset() { reset() }

// Now reads the accounts of this process.
func Now() Accounts { return now() }

// Launches are the kernels that ran since the last Reset, the oldest first, up to
// 1024.
func Launches() []Launch { return launches() }

// Check has a test fail where other things are out at its end than now.
func Check(t testing.TB) {
	t.Helper()
	before := Now().Out()
	t.Cleanup(func() {
		if after := Now().Out(); after != before {
			t.Errorf("left on the fake GPU:\nbefore %+v\nafter  %+v", before, after)
		}
	})
}
