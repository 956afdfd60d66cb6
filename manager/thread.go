package manager

import (
	"os"
	"runtime"
	"strconv"

	"golang.org/x/sys/unix"
)

// dataPathNice is the priority of the data path's threads: they run for
// microseconds at a time and are waited for, the control loop and its JSON run for
// longer and are not.
const dataPathNice = -15

// processNice is that of the manager's other threads. Any of them may be what Go's scheduler
// wakes a thread of the data path by: with an ordinary priority it would wait for a CPU
// behind those that do not sleep.
const processNice = -10

// lockDataPath locks a goroutine of the data path to a thread of its own, with a
// higher priority where the process may ask for one (root, or CAP_SYS_NICE); it
// runs without it as well.
func lockDataPath() {
	runtime.LockOSThread()
	_ = unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), dataPathNice)
}

// RaiseProcess gives the threads that this process has, and those that they start, a higher
// priority than others', where it may ask for one. It is for a process that is a manager
// and nothing else.
func RaiseProcess() {
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return
	}
	for _, t := range tasks {
		if id, err := strconv.Atoi(t.Name()); err == nil {
			_ = unix.Setpriority(unix.PRIO_PROCESS, id, processNice)
		}
	}
}
