// Package cpuset reads and sets the CPUs that threads may run on (sched_setaffinity(2)). A
// set is a list of the kernel's CPU numbers in rising order. Its text form is the kernel's
// list, "0-3,8" (cpuset(7), "List format").
//
// No other package pins threads. This package is below shm because all processes that share
// memory divide the CPUs between them, and know nothing of each other.
package cpuset

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// limit is the number of CPUs that a unix.CPUSet can hold, like glibc's.
const limit = 1024

// Allowed returns the CPUs that the calling thread may run on. They are those of the process
// unless its threads were pinned separately. It fails on a machine with more than 1,024 CPUs.
func Allowed() ([]int, error) { return OfThread(0) }

// OfThread returns the CPUs that a thread may run on; 0 is the calling thread. If there is no
// such thread, the error wraps unix.ESRCH.
func OfThread(id int) ([]int, error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(id, &set); err != nil {
		return nil, fmt.Errorf("read the CPUs of thread %d: %w", id, err)
	}
	n := set.Count()
	cpus := make([]int, 0, n)
	for cpu := 0; len(cpus) < n; cpu++ {
		if set.IsSet(cpu) {
			cpus = append(cpus, cpu)
		}
	}
	return cpus, nil
}

// Pin restricts this process to cpus: all its threads and those to come, on whatever CPUs
// each ran before. If cpus is empty, Pin changes nothing.
func Pin(cpus []int) error {
	// A thread inherits the set of the thread that made it, so the second pass finds any
	// thread made during the first.
	for range 2 {
		threads, err := Threads()
		if err != nil {
			return err
		}
		for _, id := range threads {
			if err := PinThread(id, cpus); err != nil && !errors.Is(err, unix.ESRCH) {
				return err
			}
		}
	}
	return nil
}

// PinThread restricts a thread, and the threads that it makes, to cpus. 0 is the calling
// thread, to which its goroutine is locked (runtime.LockOSThread). If cpus is empty,
// PinThread changes nothing. If there is no such thread, the error wraps unix.ESRCH. If the
// thread may run on none of cpus, it wraps unix.EINVAL.
func PinThread(id int, cpus []int) error {
	if len(cpus) == 0 {
		return nil
	}
	var set unix.CPUSet
	for _, cpu := range cpus {
		if cpu < 0 || cpu >= limit {
			return fmt.Errorf("pin thread %d to CPU %d: want CPUs from 0 to %d: %w", id, cpu, limit-1, unix.EINVAL)
		}
		set.Set(cpu)
	}
	if err := unix.SchedSetaffinity(id, &set); err != nil {
		return fmt.Errorf("pin thread %d to CPUs %s: %w", id, Format(cpus), err)
	}
	return nil
}

// Threads returns the ids of this process's threads. Any but the caller's own may have ended.
func Threads() ([]int, error) {
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return nil, fmt.Errorf("list own threads: %w", err)
	}
	ids := make([]int, len(tasks))
	for i, task := range tasks {
		if ids[i], err = strconv.Atoi(task.Name()); err != nil {
			return nil, fmt.Errorf("list own threads: %w", err)
		}
	}
	return ids, nil
}
