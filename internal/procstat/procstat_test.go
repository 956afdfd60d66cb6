package procstat

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/wait"
)

func TestRead(t *testing.T) {
	cmd := exec.Command("sleep", "1000")
	must.OK(t, cmd.Start())
	f, err := Read(cmd.Process.Pid)
	if err != nil || f.Ended() || int(f.Number(Parent)) != os.Getpid() || f.Number(Threads) != 1 || f.Number(StartTime) == 0 {
		t.Errorf("read %v, %v", f, err)
	}
	pids, err := PIDs()
	if err != nil || !slices.Contains(pids, cmd.Process.Pid) || !slices.Contains(pids, os.Getpid()) {
		t.Errorf("listed %v, %v", pids, err)
	}

	cmd.Process.Kill()
	wait.For(t, "the process to end", func() bool {
		f, _ = Read(cmd.Process.Pid)
		return f.State() == 'Z'
	})
	if !f.Ended() {
		t.Errorf("a killed process that was not waited for: %v", f)
	}
	cmd.Wait()
	if f, err = Read(cmd.Process.Pid); !errors.Is(err, fs.ErrNotExist) || !f.Ended() {
		t.Errorf("a process that is gone: %v, %v", f, err)
	}
}

func TestParse(t *testing.T) {
	const name = "7 (a) T 9 (b\n)"
	rest := strings.Repeat(" 1", 9) + " 100 200 300 400" + strings.Repeat(" 1", 40)
	f, err := parse(name + " T 9" + rest)
	if err != nil || f.State() != 'T' || f.Number(Parent) != 9 || f.CPUTime() != 10*time.Second {
		t.Errorf("read %v, %v", f, err)
	}
	for _, text := range []string{"", "7 (a)", "7 (a) T 9 1"} {
		if f, err := parse(text); err == nil || f.Number(Parent) != 0 {
			t.Errorf("%q: %v, %v", text, f, err)
		}
	}
}
