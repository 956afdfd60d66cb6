package testbed

import (
	"os/exec"
	"testing"
	"time"
)

func TestCPUTimes(t *testing.T) {
	total, busy, err := cpuTimes("cpu  100 20 30 400 50 1 2 7 60 0\ncpu0 1 1 1 1\n")
	if err != nil || total != 6100*time.Millisecond || busy != 1600*time.Millisecond {
		t.Errorf("total %v, busy %v, %v; want 6.1s and 1.6s", total, busy, err)
	}
	for _, text := range []string{"", "cpu 1 2 3", "intr 1"} {
		if _, _, err := cpuTimes(text); err == nil {
			t.Errorf("%q: no error", text)
		}
	}
}

// The time of a child process is not foreign.
func TestForeignTime(t *testing.T) {
	f, err := NewForeignTime()
	if err != nil {
		t.Fatal(err)
	}
	child := exec.Command("sh", "-c", "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done")
	if err := child.Run(); err != nil {
		t.Fatal(err)
	}
	if part, err := f.Part(); err != nil || part < 0 || part > 1 {
		t.Errorf("part %v, %v", part, err)
	}
	_, _, own, err := readTimes()
	if used := child.ProcessState.UserTime() + child.ProcessState.SystemTime(); err != nil || own-f.own < used {
		t.Errorf("own time grew by %v, the child used %v; %v", own-f.own, used, err)
	}
}
