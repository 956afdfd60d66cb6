package fleet

import (
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/control/runclock"
	"github.com/penstock/penstock/internal/testing/must"
)

// sleeper starts a program that does nothing, and waits until it runs.
func sleeper(t *testing.T) *os.Process {
	t.Helper()
	c := exec.Command("sleep", "1000")
	must.OK(t, c.Start())
	t.Cleanup(func() {
		c.Process.Kill()
		c.Wait()
	})
	return c.Process
}

// stop stops or continues a process and waits until the kernel says so.
func signalStop(t *testing.T, b *bed, p *os.Process, stop bool) {
	t.Helper()
	sig := syscall.SIGCONT
	if stop {
		sig = syscall.SIGSTOP
	}
	must.OK(t, p.Signal(sig))
	b.eventually("the process has the state", func() bool { return stopped(p.Pid) == stop })
}

// TestFailOver checks when an instance leaves a process for its shadow: only if it is stopped, and the shadow is not.
func TestFailOver(t *testing.T) {
	for name, c := range map[string]struct {
		process, shadow bool // stopped
		overdue, killed bool
	}{
		"stopped":             {process: true, overdue: true, killed: true},
		"slow":                {overdue: true},
		"no deadline missed":  {process: true},
		"shadow stopped, too": {process: true, shadow: true, overdue: true},
		"only shadow stopped": {shadow: true, overdue: true},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, configs.DeviceCPU, nil, "governor")
			config := named("a", 20)
			if config.SLO = 20 * time.Millisecond; !c.overdue {
				config.SLO = time.Hour
			}
			must.OK(t, n.add(config))
			n.turns()
			f, in := n.functions.find("a"), n.instance("a", 0)
			active, shadow := in.pair.Active(), in.pair.Shadow()
			if shadow == nil || shadow.State != control.Loaded {
				t.Fatalf("the shadow is %+v", shadow)
			}
			b, process, standby := &bed{f, t}, sleeper(t), sleeper(t)
			in.processes.of(active.Generation).pid, in.processes.of(shadow.Generation).pid = process.Pid, standby.Pid
			signalStop(t, b, process, c.process)
			signalStop(t, b, standby, c.shadow)

			b.dial().Send(1)
			b.eventually("the request is in flight", func() bool { return f.port.Stats().InFlight == 1 })
			time.Sleep(30 * time.Millisecond) // longer than the short objective
			now := runclock.Now()
			in.watch(now)
			if active.Role == control.Kill {
				t.Fatal("killed at the first sight: the node may just have continued")
			}
			in.watch(now + WatchPeriod)
			if killed := active.Role == control.Kill; killed != c.killed {
				t.Errorf("killed: %v, want %v", killed, c.killed)
			}
			signalStop(t, b, process, false)
		})
	}
}
