package topology

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// A claimed CPU is a lock, by flock(2), on a file of the kernel about the CPU. The file exists on every machine, any user may
// lock it, and the kernel releases the lock when the process ends.
func lockFile(root string, cpu int) string {
	return filepath.Join(root, topologyFolder(cpu), "core_id")
}

// Claim holds CPUs until Release, or until the process ends.
type Claim struct {
	Busy  []int // CPUs that another process has
	files []*os.File
}

// Take claims those of the CPUs that no other process has. A CPU without a file, as in some containers, cannot be claimed and
// counts as free.
func Take(root string, cpus []int) *Claim {
	c := &Claim{}
	for _, cpu := range cpus {
		f, err := os.Open(lockFile(root, cpu))
		if err != nil {
			continue
		}
		c.files = append(c.files, f)
		if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == unix.EWOULDBLOCK {
			c.Busy = append(c.Busy, cpu)
		}
	}
	return c
}

// Release gives the CPUs back.
func (c *Claim) Release() {
	for _, f := range c.files {
		f.Close()
	}
	c.files = nil
}

// Owners returns the process that has claimed each of the CPUs, from the kernel's list of locks (proc_locks(5)). A process of
// another PID namespace is 0.
func Owners(root string, cpus []int) map[int]int {
	text, _ := os.ReadFile("/proc/locks")
	holders := map[string]int{} // by device and inode
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) >= 6 && f[1] == "FLOCK" {
			holders[f[5]], _ = strconv.Atoi(f[4])
		}
	}
	owners := map[int]int{}
	for _, cpu := range cpus {
		var s unix.Stat_t
		if unix.Stat(lockFile(root, cpu), &s) != nil {
			continue
		}
		if pid, ok := holders[fmt.Sprintf("%02x:%02x:%d", unix.Major(s.Dev), unix.Minor(s.Dev), s.Ino)]; ok {
			owners[cpu] = pid
		}
	}
	return owners
}
