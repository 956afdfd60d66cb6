package orchestrator

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/control/budget"
	"github.com/penstock/penstock/cuda/nvml"
	"github.com/penstock/penstock/orchestrator/guest"
	"github.com/penstock/penstock/orchestrator/mps"
)

// fakeGuests is a server of guests, which a test suspects or not.
type fakeGuests struct {
	ended chan struct{}

	mu     sync.Mutex
	device guest.Device
	guilty bool   // a guest inside MPS is there
	held   string // the answer of Held
	blamed []bool // the calls of Fault
}

func (f *fakeGuests) Ended() <-chan struct{} { return f.ended }
func (f *fakeGuests) Restore() error         { return nil }
func (f *fakeGuests) Close() error           { return nil }

func (f *fakeGuests) SetDevice(d guest.Device) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.device = d
}

func (f *fakeGuests) Fault(_ string, blame bool) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.blamed = append(f.blamed, blame)
	return blame && f.guilty
}

func (f *fakeGuests) Held() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.held
}

// has returns the device, and the calls of Fault.
func (f *fakeGuests) has() (guest.Device, []bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.device, slices.Clone(f.blamed)
}

func TestGuestBlamed(t *testing.T) {
	for _, guilty := range []bool{true, false} {
		t.Run(fmt.Sprint(guilty), func(t *testing.T) {
			runGPUNode(t, nil, func(n *node) {
				n.guests.guilty = guilty
				n.startFour()
				n.spawner.generation(1).fault("illegal address")
				for _, generation := range []uint32{1, 2} {
					p := n.untilProcess(generation, "it is lost", func(p control.ObservedProcess) bool { return p.State == control.Failed && p.DeviceLost })
					if p.Blameless != guilty {
						t.Errorf("process %d is blameless: %v, want %v", generation, p.Blameless, guilty)
					}
				}
				if _, blamed := n.guests.has(); !slices.Equal(blamed, []bool{true}) {
					t.Errorf("guests were told of faults %v, want one", blamed)
				}
			})
		})
	}
}

// TestGuestEnds ends a guest that has failed the GPU while all functions are idle.
func TestGuestEnds(t *testing.T) {
	t.Run("after a fault", func(t *testing.T) {
		runGPUNode(t, nil, func(n *node) {
			n.guests.guilty = true
			n.startFour()
			n.machine.daemon().set(func(d *fakeMPS) { d.health = mps.Fault })
			n.guests.ended <- struct{}{}
			n.untilProcess(1, "it is lost", func(p control.ObservedProcess) bool {
				return p.State == control.Failed && p.DeviceLost && p.Blameless
			})
			n.machine.daemon().set(func(d *fakeMPS) { d.health = mps.Well })
			n.want(newInstance(4, control.Serve, 30))
			n.untilState(4, control.Active)
			n.guests.ended <- struct{}{} // of the same fault
			synctest.Wait()
			n.untilState(4, control.Active)
		})
	})
	t.Run("well", func(t *testing.T) {
		runGPUNode(t, nil, func(n *node) {
			n.startFour()
			n.guests.ended <- struct{}{}
			time.Sleep(time.Second)
			synctest.Wait()
			n.untilState(1, control.Active)
			if _, blamed := n.guests.has(); len(blamed) > 0 {
				t.Errorf("guests were told of faults %v", blamed)
			}
		})
	})
}

func TestGuestMemory(t *testing.T) {
	runGPUNode(t, nil, func(n *node) {
		inWorker := newInstance(2, control.Serve, 30)
		inWorker.Worker, inWorker.MemoryBytes = "cold", 8<<30
		n.want(newInstance(1, control.Serve, 30), inWorker)
		n.untilState(1, control.Active)
		n.untilState(2, control.Active)
		worker := n.spawner.generation(2).id
		n.machine.gpus.Put("GPU-1", nvml.Process{PID: worker, UsedBytes: 3 << 30, MPS: true})
		d, _ := n.guests.has()
		if d.ContextBytes != contextBytes || d.RestartBytes != contextBytes+1200 || len(d.WorkerBytes) != 1 || d.WorkerBytes[worker] != 8<<30 {
			t.Errorf("functions need %d and %d, workers %v", d.ContextBytes, d.RestartBytes, d.WorkerBytes)
		}
		if u, ok := d.Memory(); !ok || u.FreeBytes != 97<<30 || u.Processes[worker] != 3<<30 {
			t.Errorf("the GPU has %+v, %v", u, ok)
		}
		n.machine.gpus.Refuse(nvml.ErrNoDevice)
		if _, ok := d.Memory(); ok {
			t.Error("memory is known without NVML")
		}
		n.machine.gpus.Refuse(nil)
	})

	// A function finds too little memory.
	const reason = "link model: cuda: out of memory"
	runGPUNode(t, func(spec) life { return life{failsToLoad: reason} }, func(n *node) {
		n.guests.held = "guests have GPU memory: python 9 MiB"
		n.want(newInstance(1, control.Serve, 30))
		if p := n.untilState(1, control.Failed); !strings.Contains(p.Reason, reason+"; "+n.guests.held) {
			t.Errorf("failed: %q", p.Reason)
		}
	})
}

func TestGuestDevice(t *testing.T) {
	runGPUNode(t, nil, func(n *node) {
		n.startFour()
		d, _ := n.guests.has()
		if d.Kind != guest.InMPS || d.Wait != "" || d.Client["CUDA_MPS_PIPE_DIRECTORY"] != "/run/mps" || d.Own["CUDA_MPS_PIPE_DIRECTORY"] != "no-mps" || d.Own["CUDA_VISIBLE_DEVICES"] != "GPU-1" {
			t.Errorf("guests may use %+v", d)
		}
		n.machine.daemon().set(func(d *fakeMPS) { d.state.Serving, d.state.Why = false, "the MPS daemon ended" })
		time.Sleep(time.Second)
		synctest.Wait()
		if d, _ := n.guests.has(); !strings.Contains(d.Wait, "the MPS daemon ended") {
			t.Errorf("without MPS guests wait for %q", d.Wait)
		}
	})
	runGPUNode(t, nil, func(n *node) {
		n.machine.noMPS = &mps.Problem{Why: "no program"}
		n.want(newInstance(1, control.Serve, 30))
		n.untilState(1, control.Active)
		if d, _ := n.guests.has(); d.Kind != guest.Beside || !strings.Contains(d.Why, "no program") || d.Own["CUDA_VISIBLE_DEVICES"] != "GPU-1" {
			t.Errorf("with time slices guests may use %+v", d)
		}
	})
	runNode(t, nil, func(n *node) {
		n.want(newDesired(1, control.Serve, 30))
		n.untilState(1, control.Active)
		if d, _ := n.guests.has(); d.Kind != guest.OnCPU || d.Wait != "" {
			t.Errorf("on a CPU guests may use %+v", d)
		}
	})
}

// needGroups opens groups for guests on this machine.
func needGroups(t *testing.T) *guestGroups {
	t.Helper()
	g, err := openGuestGroups(strconv.FormatInt(time.Now().UnixNano(), 36), zerolog.Nop())
	if err != nil {
		t.Skipf("not on this machine: needs control groups: %v", err)
	}
	return g
}

func TestGuestGroup(t *testing.T) {
	groups := needGroups(t)
	g, missing, err := groups.Make("shell", 512<<20, nobody)
	if err != nil {
		t.Skipf("not on this machine: needs a writable control group: %v", err)
	}
	t.Log("missing:", missing)
	if !slices.ContainsFunc(missing, func(err error) bool { return errors.Is(err, guest.ErrNoMemoryLimit) }) {
		file := filepath.Join(g.(*guestGroup).folder, "memory.max")
		if legacy := g.(*guestGroup).legacy["memory"]; legacy != "" {
			file = filepath.Join(legacy, "memory.limit_in_bytes")
		}
		if text, err := os.ReadFile(file); strings.TrimSpace(string(text)) != strconv.Itoa(512<<20) {
			t.Errorf("%s is %q, %v; want 512 MiB", file, text, err)
		}
	}
	t.Cleanup(func() {
		if err := g.Remove(); err != nil {
			t.Error(err)
		}
	})
	if _, _, err := groups.Make("shell", 0, 0); err == nil {
		t.Error("made the same group twice")
	}
	cmd := exec.Command("sh", "-c", `read go; setsid sh -c 'while :; do :; done' & while :; do :; done`)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	if err := g.Add(cmd.Process.Pid); err != nil {
		t.Skipf("not on this machine: needs the right to move processes: %v", err)
	}
	if _, err := stdin.Write([]byte("go\n")); err != nil {
		t.Fatal(err)
	}
	await(t, "two processes and CPU time", func() bool { return len(g.PIDs()) == 2 && g.CPUTime() > 0 })

	if err := g.Freeze(true); err != nil {
		t.Fatal(err)
	}
	// With a normal priority, processes that are not frozen would run now.
	_ = g.(*guestGroup).prioritize(budget.MinLevel) // without the controller they have it already
	var before time.Duration
	await(t, "the frozen group's CPU time to stay the same", func() bool { // its last switch may count late
		before = g.CPUTime()
		time.Sleep(100 * time.Millisecond)
		return g.CPUTime() == before
	})
	if err := g.Freeze(false); err != nil {
		t.Fatal(err)
	}
	await(t, "CPU time after thawing", func() bool { return g.CPUTime() > before })

	// A guest of root may make groups in its own.
	nested := filepath.Join(g.(*guestGroup).folder, "nested")
	if err := os.Mkdir(nested, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := writeInt(filepath.Join(nested, "cgroup.procs"), cmd.Process.Pid); err != nil {
		t.Logf("a nested group takes no process here: %v", err)
	}
	if n := len(g.PIDs()); n != 2 {
		t.Errorf("%d processes with a nested group, want 2", n)
	}
	if err := g.Freeze(true); err != nil {
		t.Fatal(err)
	}
	if err := g.Kill(); err != nil {
		t.Error(err)
	}
	if left := g.PIDs(); len(left) > 0 {
		t.Errorf("processes %v are left", left)
	}
}

const nobody = 65534

// TestGuestLeavesGroup lets processes of two users try to leave their groups, by all folders.
func TestGuestLeavesGroup(t *testing.T) {
	groups := needGroups(t)
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	for _, uid := range []uint32{0, nobody} {
		t.Run(fmt.Sprint("user ", uid), func(t *testing.T) {
			g, missing, err := groups.Make(fmt.Sprint("leaver-", uid), 0, int(uid))
			if err != nil {
				t.Skipf("not on this machine: needs a writable control group: %v", err)
			}
			t.Cleanup(func() {
				if err := errors.Join(g.Kill(), g.Remove()); err != nil {
					t.Error(err)
				}
			})
			script := "read go\n"
			for _, folder := range g.(*guestGroup).folders() {
				script += fmt.Sprintf("echo $$ > %s/cgroup.procs\n", filepath.Dir(folder))
			}
			cmd := exec.Command("sh", "-c", script+"echo; while :; do sleep 1; done")
			cmd.Dir = "/"
			cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Credential: &syscall.Credential{Uid: uid, Gid: uid}}
			stdin, err := cmd.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			stdout, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			defer cmd.Wait()
			defer cmd.Process.Kill()
			if err := g.Add(cmd.Process.Pid); err != nil {
				t.Skipf("not on this machine: needs the right to move processes: %v", err)
			}
			if _, err := stdin.Write([]byte("go\n")); err != nil {
				t.Fatal(err)
			}
			if _, err := stdout.Read(make([]byte, 1)); err != nil {
				t.Fatal(err)
			}
			reported := slices.ContainsFunc(missing, func(err error) bool { return errors.Is(err, guest.ErrCanLeave) })
			left := !slices.Contains(g.PIDs(), cmd.Process.Pid)
			if left != (uid == 0) || reported != left {
				t.Errorf("left its group: %v, reported: %v (%v)", left, reported, missing)
			}
		})
	}
}

// TestGuestOrchestratorGone ends the orchestrator's side of a guest's connection, as a crash does. The guest has a
// process that ignores SIGTERM and has no mark in its environment.
func TestGuestOrchestratorGone(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, paused := range []bool{false, true} {
		t.Run(fmt.Sprint("paused ", paused), func(t *testing.T) {
			const token = "0123456789abcdef"
			g, _, err := needGroups(t).Make("sh-"+token, 0, 0)
			if err != nil {
				t.Skipf("not on this machine: needs a writable control group: %v", err)
			}
			t.Cleanup(func() { // if the test failed
				_ = g.Kill()
				_ = g.Remove()
			})
			dir := t.TempDir()
			listener, err := control.ListenGuests(dir)
			if err != nil {
				t.Fatal(err)
			}
			defer listener.Close()
			theirs, err := control.DialGuests(dir)
			if err != nil {
				t.Fatal(err)
			}
			conn, err := listener.AcceptUnix()
			if err != nil {
				t.Fatal(err)
			}
			link := control.NewGuestLink(conn)
			defer link.Close()

			result := make(chan guest.Result, 1)
			go func() {
				script := "trap 'exit 3' TERM; (trap '' TERM; exec env -i sleep 1000) & wait"
				r, err := guest.Run(theirs, guest.Command{Path: "/bin/sh", Args: []string{"sh", "-c", script}, Self: self, FindGroup: FindGuestGroup})
				if err != nil {
					t.Error(err)
				}
				result <- r
			}()
			var order control.GuestOrder
			err = errors.Join(link.Receive(&order), link.Send(control.GuestAnswer{Place: &control.GuestPlace{Token: token}}), link.Receive(&order))
			if err != nil {
				t.Fatal(err)
			}
			if err := g.Add(order.Started); err != nil {
				t.Skipf("not on this machine: needs the right to move processes: %v", err)
			}
			if err := link.Send(control.GuestAnswer{Go: &control.GuestGo{}}); err != nil {
				t.Fatal(err)
			}
			marked := guest.Marked{Token: token}
			await(t, "two processes, of which one is marked", func() bool { return len(g.PIDs()) == 2 && len(marked.PIDs()) == 1 })
			if paused {
				if err := g.Freeze(true); err != nil {
					t.Fatal(err)
				}
			}
			link.Close()
			if r := <-result; r.Status != 3 {
				t.Errorf("the guest ended with %+v, want it to handle SIGTERM", r)
			}
			if left := g.PIDs(); len(left) > 0 {
				t.Errorf("processes %v are left", left)
			}
			if folder := g.(*guestGroup).folder; isDir(folder) {
				t.Errorf("the group %s is left", folder)
			}
		})
	}
}

// TestGuestIdle runs a guest and an ordinary process on one CPU. The guest gets what the other leaves.
func TestGuestIdle(t *testing.T) {
	groups := needGroups(t)
	g, missing, err := groups.Make("idle", 0, nobody)
	if err != nil || len(missing) > 0 {
		t.Skipf("not on this machine: needs all controllers: %v, %v", missing, err)
	}
	t.Cleanup(func() {
		if err := g.Kill(); err != nil {
			t.Error(err)
		}
		if err := g.Remove(); err != nil {
			t.Error(err)
		}
	})
	const burn = "read go; while :; do :; done"
	var clocks [2]func() time.Duration
	for i := range clocks {
		cmd := exec.Command("taskset", "-c", strconv.Itoa(allowedCPUs()[0]), "sh", "-c", burn)
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		stdin, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Skipf("not on this machine: %v", err)
		}
		t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
		if i == 0 {
			if err := g.Add(cmd.Process.Pid); err != nil {
				t.Skipf("not on this machine: needs the right to move processes: %v", err)
			}
		}
		clocks[i] = func() time.Duration {
			used, err := cpuTimeOf(cmd.Process.Pid)
			if err != nil {
				t.Fatal(err)
			}
			return used
		}
		if _, err := stdin.Write([]byte("go\n")); err != nil {
			t.Fatal(err)
		}
	}
	await(t, "the ordinary process to run", func() bool { return clocks[1]() > 20*time.Millisecond })
	guestBefore, before := clocks[0](), clocks[1]()
	await(t, "a second of CPU time", func() bool { return clocks[1]()-before > time.Second })
	// With equal weights both would get the same.
	if used, other := clocks[0]()-guestBefore, clocks[1]()-before; used > other/4 {
		t.Errorf("the guest used %v next to %v of an ordinary process, want under a quarter", used, other)
	}
}

func await(t *testing.T, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !done(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited %v for %s", patience, what)
		}
	}
}
