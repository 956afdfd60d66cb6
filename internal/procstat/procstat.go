// Package procstat reads what the kernel says of processes in /proc/PID/stat.
package procstat

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// Tick is the unit of times in /proc: USER_HZ is 100.
const Tick = 10 * time.Millisecond

// The numbers of fields in proc_pid_stat(5).
const (
	Parent       = 4
	ProcessGroup = 5
	UserTime     = 14 // in ticks, followed by system time, and both of children that it waited for
	ChildTime    = 17
	Threads      = 20
	StartTime    = 22 // in ticks since boot
	AddressSpace = 23
	StartCode    = 26
	EnvStart     = 50
	EnvEnd       = 51
)

// Fields are the fields of a process.
type Fields []string // from the third on

// Read reads the fields of a process. The error is fs.ErrNotExist if there is no such process.
func Read(pid int) (Fields, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return nil, fmt.Errorf("read state of process: %w", err)
	}
	return parse(string(text))
}

// parse cuts off the second field, a name in parentheses that may contain anything.
func parse(text string) (Fields, error) {
	f := Fields(strings.Fields(text[strings.LastIndexByte(text, ')')+1:]))
	if len(f) <= EnvEnd-3 {
		return nil, fmt.Errorf("read state of process: %d fields in %.100q, want %d", len(f)+2, text, EnvEnd)
	}
	return f, nil
}

// State is the letter of the state, such as 'T' for stopped by a signal; 0 without fields.
func (f Fields) State() byte {
	if len(f) == 0 {
		return 0
	}
	return f[0][0]
}

// Ended reports whether the process, or the thread, is no more than an entry of a table.
func (f Fields) Ended() bool { return f.State() == 0 || f.State() == 'Z' || f.State() == 'X' }

// Number returns a field by its number. It is 0 for what is no number of at most 64 bits without a sign.
func (f Fields) Number(field int) uint64 {
	if len(f) <= field-3 {
		return 0
	}
	n, _ := strconv.ParseUint(f[field-3], 10, 64)
	return n
}

// CPUTime is that of the process, and of children that it waited for.
func (f Fields) CPUTime() (sum time.Duration) {
	for field := UserTime; field <= ChildTime; field++ {
		sum += time.Duration(f.Number(field)) * Tick
	}
	return sum
}

// PIDs lists the processes that exist.
func PIDs() (pids []int, err error) {
	folder, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	defer folder.Close()
	names, err := folder.Readdirnames(-1)
	for _, name := range names {
		if pid, failed := strconv.Atoi(name); failed == nil {
			pids = append(pids, pid)
		}
	}
	if len(pids) == 0 {
		err = errors.Join(err, errors.New("list processes: /proc has none"))
	}
	return pids, err
}
