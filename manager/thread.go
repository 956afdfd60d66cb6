package manager

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// dataPathNice is the priority of the data path's threads: they run for
// microseconds at a time and are waited for, the control loop and its JSON run for
// longer and are not.
const dataPathNice = -15

// lockDataPath locks a goroutine of the data path to a thread of its own, with a
// higher priority where the process may ask for one (root, or CAP_SYS_NICE); it
// runs without it as well.
func lockDataPath() {
	runtime.LockOSThread()
	_ = unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), dataPathNice)
}
