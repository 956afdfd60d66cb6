package nodetest

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/penstock/penstock/client"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/wait"
)

func TestProcesses(t *testing.T) {
	dir := t.TempDir()
	sleep := exec.Command("sleep", "600")
	sleep.Env = append(os.Environ(), "NODE="+dir)
	must.OK(t, sleep.Start())
	defer sleep.Wait()
	defer sleep.Process.Kill()

	wait.For(t, "the process to run", func() bool { return len(Processes(dir)) == 1 })
	if got := Processes(dir)[0]; got != (Process{sleep.Process.Pid, "sleep"}) || !Alive(got.PID) {
		t.Errorf("found %+v, alive %t", got, Alive(got.PID))
	}
	Kill(t, sleep.Process.Pid)
	wait.For(t, "the process to end", func() bool { return !Alive(sleep.Process.Pid) }) // a zombie until Wait
}

func TestAnswers(t *testing.T) {
	const bytes = 64
	a := NewAnswers()
	deliver := a.Deliver(bytes)
	deliver(&client.Result{Err: errors.New("timeout")})
	deliver(&client.Result{Status: client.StatusBusy})
	deliver(&client.Result{Status: client.StatusLate})
	deliver(&client.Result{Status: client.StatusOK}) // and no payload
	a.Wait(4)
	if a.Count() != 4 || a.Accepted() != 2 || a.Lost != 1 || a.Wrong != 1 {
		t.Errorf("%s, %d accepted", a, a.Accepted())
	}
}

func TestCounted(t *testing.T) {
	const page = "# HELP penstock_a text\npenstock_a 0\npenstock_b{c=\"d\"} 2\ngo_e 3\n"
	if got := Counted(page); strings.TrimSpace(got) != `penstock_b{c="d"} 2` {
		t.Errorf("counted %q", got)
	}
}
