package testbed

import (
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/penstock/penstock/node"
)

// ForeignTime measures how busy other programs keep the machine's CPUs during a
// measurement: their CPU time, and the time that a hypervisor takes (steal).
type ForeignTime struct {
	total, busy, own time.Duration // at the start
}

// NewForeignTime starts the measurement.
func NewForeignTime() (f ForeignTime, err error) {
	f.total, f.busy, f.own, err = readTimes()
	return f, err
}

// End stops the measured node and returns Part.
func (f ForeignTime) End(nd *node.Node) (float64, error) {
	if err := nd.Stop(); err != nil {
		return 0, err
	}
	return f.Part()
}

// Part returns the part of all CPUs' time since the start that other programs used.
// This process's own time includes that of its children that have ended, and their
// children.
func (f ForeignTime) Part() (float64, error) {
	total, busy, own, err := readTimes()
	if err != nil || total <= f.total {
		return 0, err
	}
	return max(0, float64((busy-f.busy)-(own-f.own))/float64(total-f.total)), nil
}

func readTimes() (total, busy, own time.Duration, err error) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, 0, 0, fmt.Errorf("read CPU times: %w", err)
	}
	if total, busy, err = cpuTimes(string(text)); err != nil {
		return 0, 0, 0, err
	}
	for _, who := range []int{unix.RUSAGE_SELF, unix.RUSAGE_CHILDREN} {
		var r unix.Rusage
		if err := unix.Getrusage(who, &r); err != nil {
			return 0, 0, 0, fmt.Errorf("read own CPU time: %w", err)
		}
		own += time.Duration(r.Utime.Nano() + r.Stime.Nano())
	}
	return total, busy, own, nil
}

// cpuTimes reads the first line of /proc/stat (proc_stat(5)), which counts in ticks of
// 10 ms. Its last two fields are already included in the first two.
func cpuTimes(stat string) (total, busy time.Duration, err error) {
	const tick = 10 * time.Millisecond // USER_HZ
	var user, nice, system, idle, iowait, irq, softirq, steal time.Duration
	line, _, _ := strings.Cut(stat, "\n")
	if _, err := fmt.Sscanf(line, "cpu %d %d %d %d %d %d %d %d", &user, &nice, &system, &idle, &iowait, &irq, &softirq, &steal); err != nil {
		return 0, 0, fmt.Errorf("read CPU times: %q: %w", line, err)
	}
	busy = user + nice + system + irq + softirq + steal
	return (busy + idle + iowait) * tick, busy * tick, nil
}
