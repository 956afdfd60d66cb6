// Package cpuset says which CPUs threads may run on (sched_setaffinity(2)). A set is a list
// of the kernel's numbers, in rising order; in text it is the kernel's list, "0-3,8"
// (cpuset(7), "List format").
//
// Threads are pinned here and nowhere else. It is below shm because all who share memory
// divide the CPUs between them, and know nothing of each other.
package cpuset

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// limit is how many CPUs a unix.CPUSet, as glibc's, can hold.
const limit = 1024

// Allowed are the CPUs that the calling thread may run on: the process's, where nobody has
// pinned threads apart. It fails on a machine with more than 1,024 CPUs.
func Allowed() ([]int, error) { return OfThread(0) }

// OfThread are the CPUs that a thread may run on; 0 is the calling one. The error wraps
// unix.ESRCH where there is no such thread.
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

// Pin keeps this process, all its threads and those to come, on cpus, wherever each was
// before. None leaves them where they are.
func Pin(cpus []int) error {
	// A thread inherits from the one that made it, so a second look finds any that was
	// made during the first.
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

// PinThread keeps a thread, and those that it makes, on cpus; 0 is the calling one, which
// its goroutine has locked (runtime.LockOSThread). None leaves it where it is. The error
// wraps unix.ESRCH where there is no such thread, and unix.EINVAL where it may run on none
// of them.
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

// Threads are the ids of this process's threads. Any but the caller's own may be gone.
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
