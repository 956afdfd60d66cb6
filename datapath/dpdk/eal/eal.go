//go:build dpdk

package eal

/*
#cgo pkg-config: libdpdk
#cgo CFLAGS: -Wall -Wextra -Werror=implicit-function-declaration
#cgo LDFLAGS: -lrte_bus_vdev
#include "shim.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"

	rte "github.com/yerden/go-dpdk/eal"
	"golang.org/x/sys/unix"

	"github.com/penstock/penstock/shm/cpuset"
)

// ErrStarted is returned by Start when the environment runs with other options. It starts
// once per process and cannot be stopped for another start.
var ErrStarted = errors.New("DPDK runs with other options in this process")

// Options of the environment. Two ports of one process share it.
type Options struct {
	// Lcores are the threads that poll, and the CPUs that each is pinned to, in EAL's syntax:
	// "1,2" or "1@4,2@5". Lcore 0 only takes part in the start.
	Lcores string
	// MainCPUs are the CPUs on which lcore 0 may run, as a list of EAL ("0-1"); empty: CPU 0.
	MainCPUs string
	// MemoryMiB is all of DPDK's memory. It is allocated at the start, so that a shortage is
	// an error there.
	MemoryMiB int
	// Socket is the NUMA node of the memory, which should be the NIC's. Negative: any.
	Socket int
	// NoHuge uses ordinary pages, for tests and for ports that the kernel feeds.
	NoHuge bool
	// Allow holds the PCI addresses of the NICs that DPDK may use; it uses no other.
	Allow []string
	// Extra holds further arguments, which are passed on unchanged.
	Extra []string
}

// Args returns EAL's arguments. Nothing is left on a file system, so a killed process leaves
// nothing either. Memory is an unnamed file (--in-memory; --no-huge implies that), one for
// all pages of a kind (--single-file-segments). Addresses are far from CUDA's.
func (o Options) Args() []string {
	lcores := "0"
	if o.MainCPUs != "" {
		lcores = "0@(" + o.MainCPUs + ")"
	}
	if o.Lcores != "" {
		lcores += "," + o.Lcores
	}
	args := []string{
		"penstock", "--lcores", lcores, "--main-lcore", "0",
		"--no-telemetry", "--base-virtaddr", "0x200000000000",
		"--log-level", "lib.*:warning", "--log-level", "*:warning",
	}
	switch {
	case o.NoHuge:
		args = append(args, "--no-huge", "--no-shconf", "-m", strconv.Itoa(o.MemoryMiB))
	case o.Socket >= 0: // -m would spread the memory over the nodes
		args = append(args, "--in-memory", "--single-file-segments", "--socket-mem", strings.Repeat("0,", o.Socket)+strconv.Itoa(o.MemoryMiB))
	default:
		args = append(args, "--in-memory", "--single-file-segments", "-m", strconv.Itoa(o.MemoryMiB))
	}
	if len(o.Allow) == 0 {
		args = append(args, "--no-pci", "--iova-mode", "va")
	}
	for _, address := range o.Allow {
		args = append(args, "--allow", address)
	}
	return append(args, o.Extra...)
}

var environment struct {
	mu      sync.Mutex // guards the following
	args    []string
	lcores  []uint // free lcores among those that poll
	polling int    // number of lcores that poll, free or not
	started bool
	failed  error
}

// Start starts the environment on the first call. Later calls with the same options do
// nothing; with other options they return ErrStarted. After a failed start, this process
// cannot try again: DPDK refuses.
func Start(o Options) error {
	e := &environment
	e.mu.Lock()
	defer e.mu.Unlock()
	args := o.Args()
	switch {
	case e.started && slices.Equal(args, e.args):
		return nil
	case e.started:
		return fmt.Errorf("start DPDK with %q: %w: %q", strings.Join(args, " "), ErrStarted, strings.Join(e.args, " "))
	case e.failed != nil:
		return fmt.Errorf("%w (a process can try only once; restart it)", e.failed)
	}
	// Locking starts the runtime's template thread, which creates threads on behalf of locked
	// ones. Start it here, so that it does not inherit the pin of an lcore.
	runtime.LockOSThread()
	runtime.UnlockOSThread()
	here, err := cpuset.Allowed()
	if err != nil {
		return fmt.Errorf("start DPDK: %w", err)
	}
	if _, err := rte.Init(args); err != nil {
		e.failed = explainStart(o, err)
		return e.failed
	}
	e.args, e.started = args, true
	for _, id := range rte.Lcores() {
		if id != 0 {
			e.lcores = append(e.lcores, id)
		}
	}
	e.polling = len(e.lcores)
	if err := leaveAlone(e.lcores, here); err != nil {
		return fmt.Errorf("start DPDK: %w", err)
	}
	return nil
}

// leaveAlone keeps Go's threads off the lcores' CPUs. Go has already made threads on lcores,
// which inherited the lcores' pins and names. leaveAlone moves those to cpus. Go makes no
// more there once an lcore is locked.
func leaveAlone(lcores []uint, cpus []int) error {
	own, pins := map[int]bool{}, map[string]bool{}
	for _, id := range lcores {
		var pin []int
		var failed error
		err := rte.ExecOnLcore(id, func(*rte.LcoreCtx) {
			runtime.LockOSThread()
			own[unix.Gettid()] = true
			pin, failed = cpuset.OfThread(0)
		})
		if err := errors.Join(err, failed); err != nil {
			return fmt.Errorf("lock lcore %d: %w", id, err)
		}
		pins[cpuset.Format(pin)] = true
	}
	threads, err := cpuset.Threads()
	if err != nil {
		return err
	}
	for _, id := range threads {
		pin, err := cpuset.OfThread(id)
		if err != nil || own[id] || !pins[cpuset.Format(pin)] {
			continue
		}
		if err := cpuset.PinThread(id, cpus); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("move a thread off an lcore's CPU: %w", err)
		}
		comm := fmt.Sprintf("/proc/self/task/%d/comm", id)
		if name, err := os.ReadFile(comm); err == nil && strings.HasPrefix(string(name), "rte-worker-") {
			_ = os.WriteFile(comm, []byte("penstock"), 0) // a name for people who list the threads
		}
	}
	return nil
}

// polling returns the number of lcores that poll, or may poll.
func polling() int {
	e := &environment
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.polling
}

// Started reports whether the environment runs.
func Started() bool {
	e := &environment
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.started
}

func explainStart(o Options, err error) error {
	memory := fmt.Sprintf("; it needs %d MiB of huge pages, see `penstock doctor`", o.MemoryMiB)
	if o.NoHuge {
		memory = ""
	}
	return fmt.Errorf("start DPDK with %q: %w%s (DPDK's message is on stderr)", strings.Join(o.Args(), " "), err, memory)
}

// ErrNoLcore is returned when every polling lcore has a port.
var ErrNoLcore = errors.New("no lcore is left to poll")

// takeLcore takes an lcore that polls nothing yet.
func takeLcore() (uint, error) {
	e := &environment
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.lcores) == 0 {
		return 0, ErrNoLcore
	}
	id := e.lcores[0]
	e.lcores = e.lcores[1:]
	return id, nil
}

func giveLcore(id uint) {
	e := &environment
	e.mu.Lock()
	defer e.mu.Unlock()
	e.lcores = append([]uint{id}, e.lcores...)
}

// FreeLcores is the number of lcores that poll nothing.
func FreeLcores() int {
	e := &environment
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.lcores)
}

// code converts the shim's result to an error: 0, or a negative errno.
func code(rc C.int) error {
	if rc >= 0 {
		return nil
	}
	return unix.Errno(-rc)
}
