package cputime

import (
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/procstat"
	"github.com/penstock/penstock/internal/testing/must"
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

// busyLoop is a shell script that uses CPU time for a moment.
const busyLoop = "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done"

// TestForeign: the time of a child and of its children is not foreign, while they run and afterwards.
func TestForeign(t *testing.T) {
	f, err := NewForeign()
	must.OK(t, err)
	before := treeTime(f.root)
	child := exec.Command("sh", "-c", "sh -c '"+busyLoop+"; echo done; read line'; true")
	in, err := child.StdinPipe()
	must.OK(t, err)
	out, err := child.StdoutPipe()
	must.OK(t, err)
	must.OK(t, child.Start())
	out.Read(make([]byte, 1)) // the loop has ended, its process has not
	running := treeTime(f.root) - before
	in.Close()
	must.OK(t, child.Wait())
	used := child.ProcessState.UserTime() + child.ProcessState.SystemTime()
	if ended := treeTime(f.root) - before; running < used/2 || ended < used-2*procstat.Tick {
		t.Errorf("own time grew by %v while the child ran, and by %v; the child used %v", running, ended, used)
	}
	if part, err := f.Part(); err != nil || part < 0 || part > 1 {
		t.Errorf("part %v, %v", part, err)
	}
}

// TestForeignTree: a process outside the tree is foreign.
func TestForeignTree(t *testing.T) {
	child := exec.Command("sh", "-c", busyLoop+"; echo done; read line")
	in, _ := child.StdinPipe()
	out, err := child.StdoutPipe()
	must.OK(t, err)
	must.OK(t, child.Start())
	defer child.Wait()
	defer in.Close()
	f := Foreign{root: child.Process.Pid}
	must.Get(f.Part())(t)
	out.Read(make([]byte, 1))
	own := treeTime(os.Getpid())
	if tree := treeTime(f.root); tree == 0 || tree > own {
		t.Errorf("the child's tree used %v, this process and its tree %v", tree, own)
	}
}
