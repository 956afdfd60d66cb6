// Package cudafake is a CUDA driver library that needs no GPU: a C source that cc builds into
// libcuda.so.1. Package cuda loads it instead of the real driver when the environment variable
// PENSTOCK_LIBCUDA names it. Device memory is host memory, streams are threads, and copies copy.
// The library has the functions of NVIDIA's management library as well, which package cuda/nvml loads if NVML names it.
// Kernels are recorded, or run as C functions that a test supplies. The library can refuse calls,
// run out of memory, delay, fault and lack functions, and it counts what is not released.
//
// In the process of a test:
//
//	func TestMain(m *testing.M) { cudafake.Main(m) }
//
//	func TestX(t *testing.T) {
//	cudafake.Check(t)                                    // nothing is left at the end
//	cudafake.Apply(t, cudafake.Refuse("cuMemAlloc_v2", 3, 2)) // until the test's end
//
// For a child process:
//
//	path, err := cudafake.Build(dir)
//	child.Env = append(os.Environ(), cudafake.Library(path), cudafake.Env(cudafake.Memory(64<<20)))
//
// driver/driver.c lists what it supports.
package cudafake

import (
	"embed"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/testing/must"
)

//go:embed driver
var source embed.FS

const (
	libraryEnv  = "PENSTOCK_LIBCUDA"
	settingsEnv = "PENSTOCK_FAKE"
	// libraryName is the file that Build makes, with the real driver's name.
	libraryName = "libcuda.so.1"
)

// Option changes what Build builds.
type Option struct {
	without string
	kernels string
}

// Without omits functions from the library, as an old driver does. Names include the version:
// "cuGreenCtxCreate".
func Without(symbols ...string) Option { return Option{without: strings.Join(symbols, " ")} }

// Kernels is C source to build in. For a kernel NAME of a module, the function
//
//	#include "fake.h"
//	void fake_kernel_NAME(const struct fake_launch *launch)
//
// runs on the stream's thread when the kernel is due. driver/fake.h has what it can use.
func Kernels(c string) Option { return Option{kernels: c} }

// Build builds the library in an existing folder and returns its path. It needs a C compiler: the
// one in CC, otherwise cc.
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
	for _, name := range []string{"fake.h", "gpus.h", "driver.c", "nvml.c"} {
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

// Library returns the environment setting that makes package cuda load a library.
func Library(path string) string { return libraryEnv + "=" + path }

// NVML returns the environment setting that makes package cuda/nvml load the same library.
func NVML(path string) string { return "PENSTOCK_LIBNVML=" + path }

// Setting changes one behaviour of the driver; driver.c lists them.
type Setting string

// Refuse makes a driver's function return code: in the nth call from now on, or in every call if
// nth is 0. The name includes the version.
func Refuse[C ~int | ~int32](call string, nth int, code C) Setting {
	if nth > 0 {
		return Setting(fmt.Sprintf("%s#%d=%d", call, nth, code))
	}
	return Setting(fmt.Sprintf("%s=%d", call, code))
}

// Delay makes every call of a driver's function take that long.
func Delay(call string, d time.Duration) Setting {
	return Setting(fmt.Sprintf("%s~%dus", call, d.Microseconds()))
}

// Fault loses the device in the nth run of a kernel from now on (0: the next, "*": any kernel), as
// an illegal access does. Every later call returns code.
func Fault[C ~int | ~int32](kernel string, nth int, code C) Setting {
	return Setting(fmt.Sprintf("kernel:%s#%d=%d", kernel, max(nth, 1), code))
}

// Lose loses the device immediately.
func Lose[C ~int | ~int32](code C) Setting { return Setting(fmt.Sprintf("lost=%d", code)) }

// Late makes every operation on a stream take that long.
func Late(d time.Duration) Setting { return Setting(fmt.Sprintf("late=%dus", d.Microseconds())) }

// Wave makes a kernel take that long per block of a multiprocessor.
func Wave(d time.Duration) Setting { return Setting(fmt.Sprintf("wave=%dus", d.Microseconds())) }

// Turns makes the kernels of all processes with the same file take turns, as clients of MPS on a
// GPU that one kernel fills. Kernels on streams of a higher priority do not wait, unless Flat is set
// as well. The file exists and can be written.
func Turns(path string) Setting { return Setting("turns=" + path) }

// Flat makes stream priorities have no effect on Turns.
const Flat Setting = "flat"

// Full are settings of a GPU that all processes with the same file share. A large kernel fills it for
// 13 ms, which is long compared with the delays of a busy machine.
func Full(path string) []Setting {
	return []Setting{SMs(16), Wave(50 * time.Microsecond), Turns(path)}
}

// Hold stops all streams before their next operation; Release lets them continue.
const (
	Hold    Setting = "hold"
	Release Setting = "release"
)

// Memory sets the memory of each device in bytes; the default is 1 GiB.
func Memory(bytes int64) Setting { return Setting("memory=" + strconv.FormatInt(bytes, 10)) }

// Devices sets the number of devices, up to 8. The default is that of the environment variable
// PENSTOCK_FAKE_GPUS, otherwise 1. Device i has (8-i)/8 of the multiprocessors and memory of device 0.
func Devices(n int) Setting { return Setting("devices=" + strconv.Itoa(n)) }

// SMs sets the number of multiprocessors of each device, up to 256; the default is 132.
func SMs(n int) Setting { return Setting("sms=" + strconv.Itoa(n)) }

// Report keeps the accounts of a process in a file from its start. ReadReport can read them after
// the process has ended, however it ended.
func Report(path string) Setting { return Setting("report=" + path) }

// heldPriorities is what the orchestrator keeps if stream priorities hold on a device, with its UUID and number.
const heldPriorities = `{"format":1,"uuid":%q,"name":"Penstock Fake %d","driver":"CUDA 13000",` +
	`"stream_priorities":{"hold":true,"alone_us":1,"high_us":1,"equal_us":100}}`

// Cache makes a cache folder in dir for nodes, which then do not measure stream priorities: without Full that proves
// nothing. It returns an environment setting.
func Cache(dir string) (string, error) {
	folder := filepath.Join(dir, "cache", "penstock")
	err := os.MkdirAll(folder, 0o755)
	for device := range maxDevices {
		text := fmt.Sprintf(heldPriorities, UUID(device), device)
		err = errors.Join(err, os.WriteFile(filepath.Join(folder, "priorities-"+UUID(device)+".json"), []byte(text), 0o600))
	}
	if err != nil {
		return "", fmt.Errorf("make cache folder: %w", err)
	}
	return "XDG_CACHE_HOME=" + filepath.Dir(folder), nil
}

// MIG divides a device into two instances, whose UUIDs are Instance(0) and Instance(1).
func MIG(device int) Setting { return Setting("mig=" + strconv.Itoa(device)) }

// UUID returns the UUID of a device.
func UUID(device int) string { return uuid("GPU", device) }

// Instance returns the UUID of a MIG instance.
func Instance(i int) string { return uuid("MIG", maxDevices+i) }

func uuid(kind string, number int) string {
	b := make([]byte, 16)
	for i := range b {
		b[i] = byte(0x10*number + i)
	}
	b[0] = 0xfa
	return fmt.Sprintf("%s-%x-%x-%x-%x-%x", kind, b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// Condition is how a device is.
type Condition struct {
	// Fault is the cuda.Code with which the next work on the device fails, and then every call of that process. Other processes
	// cannot open the device.
	Fault int32
	// Gone: the device fell off the bus. Its processes are lost, new ones do not see it, and NVML reports it as lost.
	Gone bool
	// Opens is how long a process waits until it has opened the device.
	Opens time.Duration
}

// Conditions is a file with the conditions of all devices, which processes share while they run.
type Conditions struct{ file *os.File }

// maxDevices and conditionBytes are as in gpus.h.
const (
	maxDevices     = 8
	conditionBytes = 4 + 4 + 8
)

// NewConditions makes the file. All devices work.
func NewConditions(path string) (*Conditions, error) {
	f, err := os.Create(path)
	if err == nil {
		err = f.Truncate(maxDevices * conditionBytes)
	}
	return &Conditions{f}, err
}

// Setting makes a driver read the file.
func (c *Conditions) Setting() Setting { return Setting("gpus=" + c.file.Name()) }

// Set changes the condition of a device, in all processes.
func (c *Conditions) Set(device int, to Condition) error {
	b := make([]byte, conditionBytes)
	binary.NativeEndian.PutUint32(b, uint32(to.Fault))
	if to.Gone {
		b[4] = 1
	}
	binary.NativeEndian.PutUint64(b[8:], uint64(to.Opens))
	_, err := c.file.WriteAt(b, int64(device*conditionBytes))
	return err
}

// Env returns the environment setting that passes settings to a child process's driver.
func Env(settings ...Setting) string {
	words := make([]string, len(settings))
	for i, s := range settings {
		words[i] = string(s)
	}
	return settingsEnv + "=" + strings.Join(words, " ")
}

// Accounts count what is not released, and what was done. driver.c has them in this order.
type Accounts struct {
	Contexts        int64 // retained and not released
	Allocations     int64
	Bytes           int64 // of the Allocations and Memories that this process made
	HostAllocations int64
	Registrations   int64
	Reservations    int64
	Memories        int64 // cuMemCreate and imports
	Mappings        int64
	Streams, Events int64
	Modules         int64
	Graphs          int64
	Executables     int64
	Greens          int64
	Launches        int64 // completed, since the process began
	Lost            int64 // the code with which the device was lost
	GreenBytes      int64 // memory of green contexts, which the driver never releases
}

const accountsBytes = 17 * 8

// Out returns a copy with only the counts of unreleased things.
func (a Accounts) Out() Accounts {
	a.Launches, a.Lost, a.GreenBytes = 0, 0, 0
	return a
}

// Taken returns the bytes of device memory in use. A Memory setting of this size has no free
// memory.
func (a Accounts) Taken() int64 { return a.Bytes + a.GreenBytes }

// ReadReport reads the file of a process with Report.
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

// Launch is a completed run of a kernel.
type Launch struct {
	Name        string
	Grid, Block [3]uint32
	SharedBytes uint32
	SMs         uint32 // of its context
	Stream      uintptr
	Priority    int // of its stream
	// Arguments are the values of the parameters, up to 512 bytes together.
	Arguments [][]byte
}

// Main builds the driver with options, makes this process load it, runs the tests and exits. The
// process fails if anything is unreleased at the end. In a child process that was given a library
// it does not build one.
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

// Apply changes this process's driver until the end of the test, when Reset removes all settings.
func Apply(t testing.TB, settings ...Setting) {
	t.Helper()
	t.Cleanup(Reset)
	Set(t, settings...)
}

// Set changes this process's driver.
func Set(t testing.TB, settings ...Setting) {
	t.Helper()
	must.OK(t, Change(settings...))
}

// Change is Set for a process that runs no test.
func Change(settings ...Setting) error {
	for _, s := range settings {
		if err := set(s); err != nil {
			return err
		}
	}
	return nil
}

// Reset undoes Set and the loss of the device, and clears the recorded launches. Unreleased
// resources remain.
func Reset() { reset() }

// Now returns the accounts of this process.
func Now() Accounts { return now() }

// Launches returns the kernels that ran since the last Reset, the oldest first, up to 1024.
func Launches() []Launch { return launches() }

// Check makes a test fail if the unreleased resources at its end differ from those now.
func Check(t testing.TB) {
	t.Helper()
	before := Now().Out()
	t.Cleanup(func() {
		if after := Now().Out(); after != before {
			t.Errorf("left on the fake GPU:\nbefore %+v\nafter  %+v", before, after)
		}
	})
}
