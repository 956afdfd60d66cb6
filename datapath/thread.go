package datapath

import (
	"runtime"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/penstock/penstock/shm/cpuset"
)

// threadNice is the priority of the data path's threads. They run for microseconds at a time, and
// clients wait for them. The control loop and its JSON run for longer, and no client waits for
// them.
const threadNice = -15

// processNice is the priority of the manager's other threads. Go's scheduler may use any of them to
// wake a thread of the data path. With an ordinary priority that thread would wait for a CPU behind
// busy threads.
const processNice = -10

// spareProcs are for the control loop, HTTP and the garbage collector. The data path's threads
// block in system calls and must never wait for a place to run when they return.
const spareProcs = 4

// dataPath counts the data path's threads of all functions.
var dataPath struct {
	mu      sync.Mutex
	threads int
}

// lockThread locks a goroutine of the data path to its own thread. The thread gets a higher
// priority if the process has the right to set it (root, or CAP_SYS_NICE), and runs without it
// otherwise. Each such thread gets a place to run (GOMAXPROCS). The goroutine calls leave when it
// ends, and the thread ends with it.
func lockThread() (leave func()) {
	runtime.LockOSThread()
	_ = unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), threadNice)
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

// RaiseProcess gives the threads of this process, and those that they start, a higher priority, if
// it has the right to. It is only for a process that is nothing but a manager, because its child
// processes would inherit that priority. Threads of the data path keep theirs.
func RaiseProcess() {
	// A thread inherits from the one that started it. So a second pass finds any that was started
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

// niceOf is the nice value of a thread. The system call returns 20 minus it, which is never
// negative.
func niceOf(thread int) (int, error) {
	raw, err := unix.Getpriority(unix.PRIO_PROCESS, thread)
	return 20 - raw, err
}
