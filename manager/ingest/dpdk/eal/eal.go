//go:build dpdk

package eal

/*
#cgo pkg-config: libdpdk
#cgo CFLAGS: -Wall -Wextra -Werror=implicit-function-declaration
#cgo LDFLAGS: -lrte_net_ring -lrte_bus_vdev
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

// ErrStarted is returned by Start when the environment runs with other options: it
// starts once a process and cannot be taken down for another start.
var ErrStarted = errors.New("DPDK runs with other options in this process")

// Options of the environment. Two ports of one process share it.
type Options struct {
	// Lcores are the threads that poll, and the CPUs that each is pinned to, in EAL's
	// words: "1,2" or "1@4,2@5". Lcore Main is added where it is missing.
	Lcores string
	// Main is the lcore that takes part in nothing but the start: it does not poll.
	Main int
	// MainCPUs is where it may run, as a list of EAL ("0-1"); empty: on CPU Main.
	MainCPUs string
	// MemoryMiB is all of DPDK's memory. It is taken at the start, so that want of it is
	// an error there.
	MemoryMiB int
	// Socket is the NUMA node of the memory: where the NIC is. Negative: any.
	Socket int
	// NoHuge takes ordinary pages: for tests, and ports that the kernel feeds.
	NoHuge bool
	// Allow are the PCI addresses of NICs that DPDK may touch; no other is.
	Allow []string
	// Extra are further arguments, passed on as they are.
	Extra []string
}

// Args are EAL's arguments. Nothing is left on a file system, so that a kill leaves
// nothing either: memory is an unnamed file (--in-memory; --no-huge does that itself),
// one for all pages of a kind (--single-file-segments). Addresses lie far from CUDA's.
func (o Options) Args() []string {
	main := strconv.Itoa(o.Main)
	lcores := main
	if o.MainCPUs != "" {
		lcores = main + "@(" + o.MainCPUs + ")"
	}
	if o.Lcores != "" {
		lcores += "," + o.Lcores
	}
	args := []string{
		"penstock", "--lcores", lcores, "--main-lcore", main,
		"--no-telemetry", "--base-virtaddr", "0x200000000000",
		"--log-level", "lib.*:warning", "--log-level", "*:warning",
	}
	switch {
	case o.NoHuge:
		args = append(args, "--no-huge", "--no-shconf", "-m", strconv.Itoa(o.MemoryMiB))
	case o.Socket >= 0: // -m would spread it over the nodes
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
	lcores  []uint // of those that poll, the free ones
	polling int    // all of those
	started bool
	failed  error
}

// Start starts the environment, the first time. Later calls with the same options do
// nothing; with others they return ErrStarted. A start that failed cannot be tried
// again in this process: DPDK says so.
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
		return fmt.Errorf("%w (and a process has one try: start it anew)", e.failed)
	}
	// The thread that makes others for those that are locked comes from here, not from an
	// lcore (runtime.LockOSThread starts it).
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
		if id != uint(o.Main) {
			e.lcores = append(e.lcores, id)
		}
	}
	e.polling = len(e.lcores)
	if err := leaveAlone(e.lcores, here); err != nil {
		return fmt.Errorf("start DPDK: %w", err)
	}
	return nil
}

// leaveAlone keeps Go's threads off the lcores' CPUs. Go has made threads on lcores
// already, which took their pins and names over: those move to cpus. It makes no more once
// an lcore is locked.
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
			_ = os.WriteFile(comm, []byte("penstock"), 0) // a name, for who looks
		}
	}
	return nil
}

// polling is how many lcores poll, or may.
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
	memory := fmt.Sprintf("; %d MiB of huge pages: penstock doctor says whether there are as many", o.MemoryMiB)
	if o.NoHuge {
		memory = ""
	}
	return fmt.Errorf("start DPDK with %q: %w%s (DPDK has written to stderr what it misses)", strings.Join(o.Args(), " "), err, memory)
}

// ErrNoLcore is returned when every polling lcore has its port.
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

// FreeLcores is how many lcores poll nothing.
func FreeLcores() int {
	e := &environment
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.lcores)
}

// code makes an error of what the shim returns: 0, or a negative errno.
func code(rc C.int) error {
	if rc >= 0 {
		return nil
	}
	return unix.Errno(-rc)
}
