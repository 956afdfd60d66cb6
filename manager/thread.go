package manager

import (
	"runtime"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/penstock/penstock/shm/cpuset"
)

// dataPathNice is the priority of the data path's threads: they run for
// microseconds at a time and are waited for, the control loop and its JSON run for
// longer and are not.
const dataPathNice = -15

// processNice is that of the manager's other threads. Any of them may be what Go's scheduler
// wakes a thread of the data path by: with an ordinary priority it would wait for a CPU
// behind those that do not sleep.
const processNice = -10

// spareProcs are for the control loop, HTTP and the garbage collector: the data path's threads
// block in system calls, and must never wait for a place to run when they come back.
const spareProcs = 4

// dataPath counts the threads of the data path, of all functions.
var dataPath struct {
	mu      sync.Mutex
	threads int
}

// lockDataPath locks a goroutine of the data path to a thread of its own, with a
// higher priority where the process may ask for one (root, or CAP_SYS_NICE); it
// runs without it as well. There is a place to run (GOMAXPROCS) for each. The goroutine calls
// leave when it ends, and the thread ends with it.
func lockDataPath() (leave func()) {
	runtime.LockOSThread()
	_ = unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), dataPathNice)
	dataPath.mu.Lock()
	defer dataPath.mu.Unlock()
	dataPath.threads++
	if procs := dataPath.threads + spareProcs; procs > runtime.GOMAXPROCS(0) {
		runtime.GOMAXPROCS(procs)
	}
	return func() {
		dataPath.mu.Lock()
		defer dataPath.mu.Unlock()
		dataPath.threads--
	}
}

// RaiseProcess gives the threads that this process has, and those that they start, a higher
// priority than others', where it may ask for one. It is for a process that is a manager
// and nothing else: what it starts would have that priority, too. Those of the data path keep theirs.
func RaiseProcess() {
	// A thread inherits from the one that made it, so a second look finds any that was made
	// during the first.
	for range 2 {
		threads, err := cpuset.Threads()
		if err != nil {
			return
		}
		for _, id := range threads {
			if now, err := niceOf(id); err == nil && now > processNice {
				_ = unix.Setpriority(unix.PRIO_PROCESS, id, processNice)
			}
		}
	}
}

// niceOf is the nice value of a thread. The system call gives 20 less it, which is never negative.
func niceOf(thread int) (int, error) {
	raw, err := unix.Getpriority(unix.PRIO_PROCESS, thread)
	return 20 - raw, err
}
