package guest

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/internal/procstat"
	"github.com/penstock/penstock/internal/testing/grouptest"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/wait"
	"github.com/penstock/penstock/orchestrator/cgroup"
	"github.com/penstock/penstock/shm/cpuset"
)

// patience bounds every wait. It detects hangs and is long enough for slow machines.
const patience = 30 * time.Second

func TestMain(m *testing.M) {
	syscall.Umask(0o022)
	MaybeLaunch()
	if len(os.Args) == 2 && os.Args[1] == unmapVerb {
		unmapEnvironment()
	}
	os.Exit(m.Run())
}

// listen starts a server, and checks that it leaves no guest.
func listen(t *testing.T, o Options, devices ...Device) *Server {
	t.Helper()
	o.Dir, o.Log = t.TempDir(), zerolog.New(zerolog.NewTestWriter(t))
	if o.User.Name == "" {
		o.User = control.GuestUser{Name: "self", UID: os.Getuid(), GID: os.Getgid()}
	}
	if o.StopTimeout == 0 {
		o.StopTimeout = 50 * time.Millisecond
	}
	s, err := Listen(o)
	must.OK(t, err)
	s.SetDevices(devices)
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if left := s.list(); len(left) > 0 {
			t.Errorf("guests are left: %+v", left)
		}
	})
	return s
}

func dial(t *testing.T, s *Server) *control.GuestLink {
	t.Helper()
	link, err := control.DialGuests(s.o.Dir)
	must.OK(t, err)
	t.Cleanup(func() { link.Close() })
	return link
}

// running is a call of Run.
type running struct {
	result Result
	err    error
	output string // standard output and error
	done   chan struct{}
	reader *bufio.Reader
	drain  *os.File
}

// runScript runs a shell script as a guest.
func runScript(t *testing.T, s *Server, script string, change ...func(*Command)) *running {
	t.Helper()
	r, w, err := os.Pipe()
	must.OK(t, err)
	self, err := os.Executable()
	must.OK(t, err)
	shell, err := exec.LookPath("sh")
	must.OK(t, err)
	c := Command{Path: shell, Args: []string{"sh", "-c", script}, Self: self, Stdout: w, Stderr: w}
	for _, f := range change {
		f(&c)
	}
	link := dial(t, s)
	run := &running{done: make(chan struct{}), reader: bufio.NewReader(r), drain: r}
	go func() {
		defer close(run.done)
		run.result, run.err = Run(link, c)
		w.Close()
	}()
	t.Cleanup(func() { r.Close() })
	return run
}

// line waits for a line of output.
func (r *running) line(t *testing.T, want string) {
	t.Helper()
	r.drain.SetReadDeadline(time.Now().Add(patience))
	for {
		text, err := r.reader.ReadString('\n')
		r.output += text
		if strings.Contains(text, want) {
			return
		}
		if err != nil {
			t.Fatalf("no line with %q: %v: %s", want, err, r.output)
		}
	}
}

// end waits until Run has returned, and for the end of the output.
func (r *running) end(t *testing.T) {
	t.Helper()
	select {
	case <-r.done:
	case <-time.After(patience):
		t.Fatal("Run does not return")
	}
	r.drain.SetReadDeadline(time.Now().Add(patience))
	rest, err := io.ReadAll(r.reader)
	if err != nil {
		t.Errorf("read output: %v", err)
	}
	r.output += string(rest)
}

var (
	cpu = Device{Kind: OnCPU}
	mps = Device{
		Kind: InMPS, Client: map[string]string{"CUDA_MPS_PIPE_DIRECTORY": "/pipe", "CUDA_VISIBLE_DEVICES": "GPU-1"},
		Own: map[string]string{"CUDA_MPS_PIPE_DIRECTORY": "/none", "CUDA_VISIBLE_DEVICES": "GPU-1"},
	}
	byTime = Device{Kind: Beside, Own: mps.Own, Why: "no program"}
)

func TestRun(t *testing.T) {
	s := listen(t, Options{}, cpu)
	dir, err := os.Getwd()
	must.OK(t, err)
	for _, test := range []struct {
		name, script string
		want         Result
		output       string
	}{
		{"success", "echo hello", Result{}, "hello\n"},
		{"status", "exit 7", Result{Status: 7}, ""},
		{"killed", "kill -KILL $$", Result{Status: 137, Signal: unix.SIGKILL}, ""},
		{"terminated", "kill -TERM $$", Result{Status: 143, Signal: unix.SIGTERM}, ""},
		{"folder", "pwd", Result{}, dir + "\n"},
		{"environment", "echo $EXTRA $CUDA_MPS_CLIENT_PRIORITY", Result{}, "more\n"},
		{"priority", "cut -d' ' -f41 /proc/self/stat", Result{}, "5\n"}, // SCHED_IDLE
		{"first victim", "cat /proc/self/oom_score_adj", Result{}, "1000\n"},
		{"leftovers", "sleep 1000 & echo", Result{}, "\n"},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := runScript(t, s, test.script, func(c *Command) { c.Environment = []string{"EXTRA=more"} })
			r.end(t)
			notes, output, ok := strings.Cut(r.output, "switched off\n")
			if !ok || !strings.Contains(notes, "no control group") {
				t.Errorf("output %q does not say what is missing", r.output)
			}
			if r.err != nil || r.result != test.want || output != test.output {
				t.Errorf("got %+v, %v, %q; want %+v, %q", r.result, r.err, output, test.want, test.output)
			}
		})
	}
	t.Run("CPUs", func(t *testing.T) {
		allowed, err := cpuset.Allowed()
		if err != nil {
			t.Skipf("not on this machine: %v", err)
		}
		last := allowed[len(allowed)-1]
		s := listen(t, Options{CPUs: []int{last, 1000}}, cpu)
		r := runScript(t, s, "grep Cpus_allowed_list /proc/self/status")
		if r.end(t); !strings.Contains(r.output, fmt.Sprintf("Cpus_allowed_list:\t%d\n", last)) {
			t.Errorf("got %q, want CPU %d alone", r.output, last)
		}
	})
	t.Run("any bytes", func(t *testing.T) {
		shell := filepath.Join(t.TempDir(), "caf\xe9")
		if err := os.Symlink("/bin/sh", shell); err != nil {
			t.Skipf("not on this machine: %v", err)
		}
		r := runScript(t, s, `printf '%s' "$1$EXTRA" | od -An -tx1`, func(c *Command) {
			c.Path, c.Args, c.Environment = shell, append(c.Args, "sh", "\xe9\xff"), []string{"EXTRA=\xfe"}
		})
		if r.end(t); r.result.Status != 0 || !strings.Contains(r.output, " e9 ff fe\n") {
			t.Errorf("got %+v, %v, %q; want the bytes e9 ff fe", r.result, r.err, r.output)
		}
	})
	t.Run("no program", func(t *testing.T) {
		r := runScript(t, s, "", func(c *Command) { c.Path = "/nonexistent" })
		if r.end(t); r.result.Status != StatusNotFound {
			t.Errorf("got %+v, want status %d: %s", r.result, StatusNotFound, r.output)
		}
	})
	t.Run("no right", func(t *testing.T) {
		r := runScript(t, s, "", func(c *Command) { c.Path = "/etc/passwd" })
		if r.end(t); r.result.Status != StatusNoExec {
			t.Errorf("got %+v, want status %d: %s", r.result, StatusNoExec, r.output)
		}
	})
}

func TestPlace(t *testing.T) {
	const show = `echo "pipe=$CUDA_MPS_PIPE_DIRECTORY priority=$CUDA_MPS_CLIENT_PRIORITY limit=$CUDA_MPS_PINNED_DEVICE_MEM_LIMIT gpu=$CUDA_VISIBLE_DEVICES"`
	t.Setenv("CUDA_MPS_PIPE_DIRECTORY", "/another")
	own := func(c *Command) { c.Own = true }
	memory := func(c *Command) { c.MemoryBytes = 2 << 30 }
	wait := mps
	wait.Wait = "waiting for MPS"
	for _, test := range []struct {
		name    string
		device  Device
		change  []func(*Command)
		output  string // empty: refused
		refused string
	}{
		{"client", mps, nil, "pipe=/pipe priority=1 limit= gpu=GPU-1", ""},
		{"memory", mps, []func(*Command){memory}, "pipe=/pipe priority=1 limit=0=2048M gpu=GPU-1", ""},
		{"own", mps, []func(*Command){own}, "pipe=/none priority= limit= gpu=GPU-1", ""},
		{"own with memory", mps, []func(*Command){own, memory}, "", "only inside MPS"},
		{"time slices", byTime, nil, "pipe=/none priority= limit= gpu=GPU-1", ""},
		{"MPS restarts", wait, nil, "", "waiting for MPS"},
		{"own while MPS restarts", wait, []func(*Command){own}, "pipe=/none priority= limit= gpu=GPU-1", ""},
		{"no device yet", Device{Wait: "starting"}, []func(*Command){own}, "", "starting"},
		{"cpu", cpu, nil, "pipe=/another priority= limit= gpu=", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := listen(t, Options{}, test.device)
			r := runScript(t, s, show, test.change...)
			r.end(t)
			if test.refused != "" {
				if r.err == nil || !strings.Contains(r.err.Error(), test.refused) {
					t.Errorf("got %v, want a refusal with %q", r.err, test.refused)
				}
				return
			}
			if !slices.Contains(strings.Split(r.output, "\n"), test.output) {
				t.Errorf("got %q (%v), want %q", r.output, r.err, test.output)
			}
			if says := strings.Contains(r.output, "take turns: no program"); says != (test.device.Kind == Beside) {
				t.Errorf("output %q: says that functions take turns: %v", r.output, says)
			}
		})
	}
}

func TestStop(t *testing.T) {
	s := listen(t, Options{}, cpu)
	// The program ignores SIGTERM, and so does a process in another session.
	const script = `trap "" TERM; setsid sh -c 'trap "" TERM; echo there; while :; do sleep 1000; done' & while :; do sleep 1000; done`
	r := runScript(t, s, script, func(c *Command) { c.Name = "stubborn" })
	r.line(t, "there")
	pids := groupOfOnly(t, s).PIDs()
	if len(pids) < 2 {
		t.Errorf("the guest has processes %v, want several", pids)
	}
	for _, name := range []string{"other", ""} {
		if _, err := s.change(control.GuestOrder{Stop: name}); err == nil {
			t.Errorf("stopped guest %q, which does not exist", name)
		}
	}
	if done, err := s.change(control.GuestOrder{Stop: "stubborn"}); err != nil {
		t.Fatalf("stop: %s, %v", done, err)
	}
	r.end(t)
	if r.result.Signal != unix.SIGKILL || !strings.Contains(r.output, "penstock guest stop") {
		t.Errorf("got %+v, %q; want it killed, and why", r.result, r.output)
	}
	for _, pid := range pids {
		wait.For(t, fmt.Sprintf("process %d to end", pid), func() bool { // it loses its environment a little earlier
			stat, _ := procstat.Read(pid)
			return stat.Ended()
		})
	}
}

func groupOfOnly(t *testing.T, s *Server) Group {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.guests) != 1 {
		t.Fatalf("there are %d guests, want 1", len(s.guests))
	}
	return s.guests[0].group
}

func TestPause(t *testing.T) {
	s := listen(t, Options{StopTimeout: patience}, cpu) // SIGTERM reaches a paused process when it runs again
	r := runScript(t, s, `sh -c 'while :; do :; done' & echo there; while :; do :; done`)
	r.line(t, "there")
	group := groupOfOnly(t, s)
	wait.For(t, "two processes that burn CPU time", func() bool { return len(group.PIDs()) == 2 && group.CPUTime() > 0 })
	order := func(o control.GuestOrder, state string) {
		t.Helper()
		must.Get(s.change(o))(t)
		if list := s.list(); len(list) != 1 || list[0].State != state {
			t.Errorf("got %+v, want it %s", list, state)
		}
	}
	order(control.GuestOrder{Pause: "sh"}, control.GuestPaused)
	order(control.GuestOrder{Pause: "sh"}, control.GuestPaused)
	wait.For(t, "its processes to stop", func() bool { return states(group) == "TT" })
	before := wait.Still(t, "the paused guest's CPU time", 100*time.Millisecond, group.CPUTime) // the clock may tick late
	order(control.GuestOrder{Resume: "sh"}, control.GuestRunning)
	wait.For(t, "CPU time after resume", func() bool { return group.CPUTime() > before })
	order(control.GuestOrder{Pause: "sh"}, control.GuestPaused)
	if _, err := s.change(control.GuestOrder{Stop: "sh"}); err != nil {
		t.Error(err)
	}
	if r.end(t); r.result.Signal != unix.SIGTERM {
		t.Errorf("a paused guest ended with %+v, want SIGTERM", r.result)
	}
}

// states has a letter per process of a group.
func states(g Group) (letters string) {
	for _, pid := range g.PIDs() {
		if stat, err := procstat.Read(pid); err == nil {
			letters += string(rune(stat.State()))
		}
	}
	return letters
}

func TestList(t *testing.T) {
	d := mps
	pid := 0
	d.Memory = func() (Usage, bool) {
		return Usage{FreeBytes: 2 << 30, Processes: map[int]int64{pid: 5 << 20, 1: 7 << 20}}, true
	}
	s := listen(t, Options{}, d)
	first := runScript(t, s, "echo there; read line", func(c *Command) { c.MemoryBytes = 1 << 30; c.Stdin = pipe(t) })
	first.line(t, "there")
	second := runScript(t, s, "echo there; read line", func(c *Command) { c.Own = true; c.Stdin = pipe(t) })
	second.line(t, "there")
	pid = s.list()[0].PID
	list := s.list()
	if len(list) != 2 || list[0].Name != "sh" || list[1].Name != "sh-2" || list[0].Device != InMPS || list[1].Device != Beside {
		t.Fatalf("got %+v", list)
	}
	if list[0].MemoryBytes != 5<<20 || list[0].LimitBytes != 1<<30 || list[1].MemoryBytes != -1 {
		t.Errorf("memory is %d of %d and %d, want what the GPU reports", list[0].MemoryBytes, list[0].LimitBytes, list[1].MemoryBytes)
	}
	link := dial(t, s)
	var a control.GuestAnswer
	if err := errors.Join(link.Send(control.GuestOrder{List: true}), link.Receive(&a)); err != nil || len(a.Guests) != 2 {
		t.Errorf("over the socket: %+v, %v", a, err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	for _, r := range []*running{first, second} {
		if r.end(t); !strings.Contains(r.output, "the node is stopping") {
			t.Errorf("output %q does not say why the guest ended", r.output)
		}
	}
}

// pipe is a standard input without end.
func pipe(t *testing.T) *os.File {
	t.Helper()
	r, w, err := os.Pipe()
	must.OK(t, err)
	t.Cleanup(func() { r.Close(); w.Close() })
	return r
}

func TestFault(t *testing.T) {
	const script = "echo there; read line"
	input := func(c *Command) { c.Stdin = pipe(t) }
	own := func(c *Command) { c.Own = true }
	t.Run("running", func(t *testing.T) {
		s := listen(t, Options{}, mps)
		r := runScript(t, s, script, input)
		r.line(t, "there")
		beside := runScript(t, s, script, input, own)
		beside.line(t, "there")
		if !s.Fault("", "the GPU failed", true) {
			t.Error("the running client is no suspect")
		}
		if r.end(t); r.result.Signal != unix.SIGKILL || !strings.Contains(r.output, "the GPU failed") {
			t.Errorf("got %+v, %q; want it killed at once, and why", r.result, r.output)
		}
		if r = runScript(t, s, script, input); true {
			if r.end(t); r.err == nil || !strings.Contains(r.err.Error(), "--own") {
				t.Errorf("the same command: %v, want a refusal that names --own", r.err)
			}
		}
		for name, change := range map[string]func(*Command){"own": own, "other arguments": func(c *Command) { c.Args = append(c.Args, "x") }} {
			r := runScript(t, s, script, change)
			if r.end(t); r.err != nil {
				t.Errorf("%s: %v, want it to run", name, r.err)
			}
		}
		if list := s.list(); len(list) != 1 || list[0].Device != Beside {
			t.Errorf("guests are %+v, want the one outside MPS", list)
		}
	})
	t.Run("ended", func(t *testing.T) {
		s := listen(t, Options{}, mps)
		r := runScript(t, s, "exit 1")
		r.end(t)
		select {
		case <-s.Ended():
		case <-time.After(patience):
			t.Fatal("its end was not reported")
		}
		if !s.Fault("", "the GPU failed", true) {
			t.Error("a client that has just ended is no suspect")
		}
		if s.Fault("", "the GPU failed", true) {
			t.Error("it is suspected of the next fault as well")
		}
	})
	t.Run("other cause", func(t *testing.T) {
		s := listen(t, Options{}, mps)
		r := runScript(t, s, script, input)
		r.line(t, "there")
		if s.Fault("", "the MPS server ended", false) {
			t.Error("the client is blamed")
		}
		r.end(t)
		r = runScript(t, s, "true")
		if r.end(t); r.err != nil {
			t.Errorf("later: %v", r.err)
		}
	})
	t.Run("no client", func(t *testing.T) {
		s := listen(t, Options{}, mps)
		r := runScript(t, s, script, own)
		r.end(t)
		if s.Fault("", "the GPU failed", true) {
			t.Error("a guest outside MPS is blamed")
		}
	})
	t.Run("time", func(t *testing.T) {
		s := listen(t, Options{HoldTimeout: time.Millisecond}, mps)
		runScript(t, s, "exit 1").end(t)
		s.Fault("", "the GPU failed", true)
		wait.For(t, "the command to be allowed", func() bool {
			r := runScript(t, s, "exit 1")
			r.end(t)
			return r.err == nil
		})
	})
}

// TestEndWork checks that the GPU work of a client of MPS ends before something ends the client, and only then.
func TestEndWork(t *testing.T) {
	for _, row := range []struct {
		name, script string
		own          bool
		order        func(s *Server, g *guest)
		want         int // processes, all of which live
	}{
		{"stop", "echo there; exec sleep 1000", false, func(s *Server, g *guest) { s.stop(g, "") }, 1},
		{"stop, handled", "trap 'exit 0' TERM; echo there; read line", false, func(s *Server, g *guest) { s.stop(g, "") }, 0},
		{"stop, ignored", "trap '' TERM; echo there; read line", false, func(s *Server, g *guest) { s.stop(g, "") }, 1},
		{"outside MPS", "echo there; exec sleep 1000", true, func(s *Server, g *guest) { s.stop(g, "") }, 0},
		{"left behind", "sleep 1000 & echo there; read line", false, func(_ *Server, g *guest) { unix.Kill(g.pid, unix.SIGKILL) }, 1},
		{"fault", "echo there; exec sleep 1000", false, func(s *Server, _ *guest) { s.Fault("", "the GPU failed", true) }, 0},
	} {
		t.Run(row.name, func(t *testing.T) {
			var mu sync.Mutex
			asked := map[int]bool{}
			device := mps
			device.EndWork = func(pids []int) {
				mu.Lock()
				defer mu.Unlock()
				for _, pid := range pids {
					asked[pid] = true
					if stat, _ := procstat.Read(pid); stat.Ended() {
						t.Errorf("process %d has ended before", pid)
					}
				}
			}
			o := Options{}
			if row.name == "stop, handled" {
				o.StopTimeout = patience // a busy shell takes long
			}
			s := listen(t, o, device)
			r := runScript(t, s, row.script, func(c *Command) { c.Own, c.Stdin = row.own, pipe(t) })
			r.line(t, "there")
			s.mu.Lock()
			g := s.guests[0]
			s.mu.Unlock()
			row.order(s, g)
			r.end(t)
			wait.For(t, "the guest to end", func() bool { return len(s.list()) == 0 })
			mu.Lock()
			defer mu.Unlock()
			if len(asked) != row.want {
				t.Errorf("ended the work of %d processes, want %d", len(asked), row.want)
			}
		})
	}

	t.Run("signal", func(t *testing.T) {
		asked := make(chan []int, 1)
		device := mps
		device.EndWork = func(pids []int) {
			select {
			case asked <- pids:
			default: // the end of the guest
			}
		}
		s := listen(t, Options{}, device)
		link := dial(t, s)
		c := Command{Path: "/bin/sleep", Args: []string{"sleep"}}
		program := exec.Command("sleep", "1000")
		must.OK(t, errors.Join(link.Send(control.GuestOrder{Run: c.request()}), program.Start()))
		defer program.Wait()
		defer program.Process.Kill()
		for _, order := range []control.GuestOrder{{Started: program.Process.Pid}, {Ending: true}, {}} {
			var a control.GuestAnswer
			if err := link.Receive(&a); err != nil || a.Error != "" {
				t.Fatalf("%v %s", err, a.Error)
			}
			if order.Ending || order.Started > 0 {
				must.OK(t, link.Send(order))
				continue
			}
			if got := <-asked; a.Done == "" || !slices.Equal(got, []int{program.Process.Pid}) {
				t.Errorf("answer %+v after the work of %v, want Done after that of %d", a, got, program.Process.Pid)
			}
		}
	})
}

// TestForward checks that a signal waits for the end of the program's GPU work, if it ends the program.
func TestForward(t *testing.T) {
	for script, want := range map[string]int{"echo there; exec sleep 1000": 1, "trap 'exit 0' USR1; echo there; read line": 0} {
		program := exec.Command("sh", "-c", script)
		program.Stdin = pipe(t)
		out, err := program.StdoutPipe()
		if err == nil {
			err = program.Start()
		}
		must.OK(t, err)
		if line, err := bufio.NewReader(out).ReadString('\n'); err != nil {
			t.Fatal(line, err)
		}
		time.Sleep(20 * time.Millisecond) // until sleep runs
		asked := 0
		signals := make(chan os.Signal, 1)
		signals <- syscall.SIGUSR1
		close(signals)
		forward(signals, program.Process, func() {
			asked++
			if stat, _ := procstat.Read(program.Process.Pid); stat.Ended() {
				t.Error("the program has ended before")
			}
		})
		program.Wait()
		if asked != want {
			t.Errorf("%s: ended its work %d times, want %d", script, asked, want)
		}
	}
}

// TestHostile connects clients that break the protocol. The server forgets them, and serves others.
func TestHostile(t *testing.T) {
	s := listen(t, Options{}, cpu)
	request := control.GuestOrder{Run: &control.GuestRun{Name: "x", Command: "x", Key: "x"}}
	sleeper := exec.Command("sleep", "1000")
	must.OK(t, sleeper.Start())
	t.Cleanup(func() { sleeper.Process.Kill(); sleeper.Wait() })
	flood := bytes.Repeat([]byte("x"), 160<<10) // longer than a message, and fits a packet
	for name, attack := range map[string]func(*control.GuestLink){
		"silent":  func(*control.GuestLink) {},
		"garbage": func(l *control.GuestLink) { fmt.Fprintln(l, "hello") },
		"nothing": func(l *control.GuestLink) { fmt.Fprintln(l, "{}") },
		"flood":   func(l *control.GuestLink) { l.Write(flood) },
		"bad name": func(l *control.GuestLink) {
			l.Send(control.GuestOrder{Run: &control.GuestRun{Name: "../x", Command: "x"}})
		},
		"long command": func(l *control.GuestLink) {
			l.Send(control.GuestOrder{Run: &control.GuestRun{Name: "x", Command: string(flood[:2000])}})
		},
		"never starts": func(l *control.GuestLink) { l.Send(request); l.Receive(&control.GuestAnswer{}); l.CloseWrite() },
		"foreign": func(l *control.GuestLink) {
			l.Send(request)
			l.Receive(&control.GuestAnswer{})
			l.Send(control.GuestOrder{Started: 1})
		},
		"flood inside": func(l *control.GuestLink) {
			l.Send(request)
			l.Receive(&control.GuestAnswer{})
			l.Send(control.GuestOrder{Started: sleeper.Process.Pid})
			l.Receive(&control.GuestAnswer{})
			l.Write(flood)
		},
		"one more message": func(l *control.GuestLink) {
			l.Send(request)
			l.Receive(&control.GuestAnswer{})
			l.Send(control.GuestOrder{Started: sleeper.Process.Pid})
			l.Receive(&control.GuestAnswer{})
			l.Send(control.GuestOrder{List: true})
		},
	} {
		t.Run(name, func(t *testing.T) {
			link := dial(t, s)
			attack(link)
			link.SetReadDeadline(time.Now().Add(patience))
			for {
				var a control.GuestAnswer
				err := link.Receive(&a)
				if errors.Is(err, os.ErrDeadlineExceeded) {
					t.Fatal("the connection stays open")
				}
				if err != nil {
					break
				}
			}
			wait.For(t, "the guest to be forgotten", func() bool { return len(s.list()) == 0 })
		})
	}
	r := runScript(t, s, "exit 3")
	if r.end(t); r.err != nil || r.result.Status != 3 {
		t.Errorf("an ordinary guest afterwards: %+v, %v", r.result, r.err)
	}
	t.Run("many connections", func(t *testing.T) {
		for range maxConnections + 1 {
			dial(t, s)
		}
		wait.For(t, "another client to be served", func() bool {
			link, err := control.DialGuests(s.o.Dir)
			if err != nil {
				return false
			}
			defer link.Close()
			return errors.Join(link.Send(control.GuestOrder{List: true}), link.Receive(&control.GuestAnswer{})) == nil
		})
	})
}

// TestUser runs programs of root. They get the functions' user, because root could leave a control group.
func TestUser(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	user := func(uid int) *control.GuestUser { return &control.GuestUser{Name: "other", UID: uid, GID: uid} }
	for _, test := range []struct {
		name    string
		device  Device
		own     bool
		user    *control.GuestUser
		want    string // the program's user
		refused string
	}{
		{"CPU", cpu, false, nil, "4001", ""},
		{"MPS", mps, false, nil, "4001", ""},
		{"own", mps, true, nil, "4001", ""},
		{"turns", byTime, false, nil, "4001", ""},
		{"CPU, other", cpu, false, user(4002), "4002", ""},
		{"CPU, root", cpu, false, user(0), "0", ""},
		{"own, other", mps, true, user(4002), "4002", ""},
		{"MPS, the same", mps, false, user(4001), "4001", ""},
		{"MPS, other", mps, false, user(4002), "", "MPS serves only user functions; leave --user out"},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := listen(t, Options{User: control.GuestUser{Name: "functions", UID: 4001, GID: 4001}}, test.device)
			r := runScript(t, s, "echo user $(id -u)", func(c *Command) { c.Own, c.User = test.own, test.user })
			r.end(t)
			if test.refused != "" {
				if r.err == nil || !strings.Contains(r.err.Error(), test.refused) {
					t.Errorf("got %v, want %q", r.err, test.refused)
				}
				return
			}
			if said := strings.Contains(r.output, "runs as user functions"); r.err != nil || !strings.Contains(r.output, "user "+test.want+"\n") || said != (test.user == nil) {
				t.Errorf("got %v, %q; want user %s", r.err, r.output, test.want)
			}
		})
	}
}

// badGroups fail as told.
type badGroups struct{ make, add, kill, limit error }

func (b badGroups) Make(string, int64, int) (Group, []error, error) {
	return badGroup{b, Marked{"unused"}}, []error{cmp.Or(b.limit, errors.New("no pids controller"))}, b.make
}

type badGroup struct {
	badGroups
	Marked
}

func (b badGroup) Add(int) error { return b.add }
func (b badGroup) Kill() error   { return b.kill }

func TestBadGroups(t *testing.T) {
	failed := errors.New("it failed")
	for _, test := range []struct {
		name   string
		groups badGroups
		says   string
	}{
		{"make", badGroups{make: failed}, "memory has no limit"},
		{"add", badGroups{add: failed}, "memory has no limit"},
		{"kill", badGroups{kill: failed}, "no pids controller"},
		{"limit", badGroups{limit: fmt.Errorf("%w: %w", cgroup.ErrNoMemoryLimit, failed)}, "memory has no limit: it failed"},
		{"leave", badGroups{limit: fmt.Errorf("%w: %w", cgroup.ErrCanLeave, failed)}, "not enforced: "},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := listen(t, Options{Groups: test.groups}, cpu)
			stdin, hold, err := os.Pipe()
			must.OK(t, err)
			defer stdin.Close()
			r := runScript(t, s, "read line; exit 3", func(c *Command) { c.MemoryBytes, c.Stdin = 1<<40, stdin })
			wait.For(t, "the guest", func() bool { l := s.list(); return len(l) == 1 && l[0].State == control.GuestRunning })
			if l := s.list(); (l[0].LimitBytes == 0) != (test.name != "kill" && test.name != "leave") {
				t.Errorf("the guest's limit is %d", l[0].LimitBytes)
			}
			want := map[string][]string{"make": {"end"}, "add": {"end"}, "leave": {"end", "memory"}}[test.name]
			if l := s.list(); !slices.Equal(l[0].NotEnforced, want) {
				t.Errorf("not enforced: %q, want %q", l[0].NotEnforced, want)
			}
			hold.Close()
			if r.end(t); r.err != nil || r.result.Status != 3 || !strings.Contains(r.output, test.says) {
				t.Errorf("got %+v, %v, %q; want it to run, and %q", r.result, r.err, r.output, test.says)
			}
			wait.For(t, "the guest to be forgotten", func() bool { return len(s.list()) == 0 })
		})
	}
}

// stuckGroups make groups that cannot be removed, as a process in a driver does.
type stuckGroups struct{ made map[string]bool }

func (s stuckGroups) Make(name string, _ int64, _ int) (Group, []error, error) {
	if s.made[name] {
		return nil, nil, os.ErrExist
	}
	s.made[name] = true
	return stuckGroup{Marked{"unused"}}, nil, nil
}

type stuckGroup struct{ Marked }

func (stuckGroup) Remove() error { return unix.EBUSY }

// TestStuckGroup runs guests of one name, one after the other.
func TestStuckGroup(t *testing.T) {
	s := listen(t, Options{Groups: stuckGroups{map[string]bool{}}}, cpu)
	for range 2 {
		r := runScript(t, s, "exit 3")
		if r.end(t); r.result.Status != 3 || r.output != "" {
			t.Errorf("got %+v, %v, %q; want it to run in a group", r.result, r.err, r.output)
		}
		wait.For(t, "the guest to be forgotten", func() bool { return len(s.list()) == 0 })
	}
}

// slowGroups block in a call until they are released, as a slow kernel does.
type slowGroups struct {
	call              string
	entered, released chan struct{}
}

func (g *slowGroups) block(call string) {
	if call == g.call {
		close(g.entered)
		<-g.released
	}
}

func (g *slowGroups) Make(string, int64, int) (Group, []error, error) {
	g.block("make")
	return slowGroup{g, Marked{"unused"}}, nil, nil
}

type slowGroup struct {
	*slowGroups
	Marked
}

func (g slowGroup) Add(int) error {
	g.block("add")
	return nil
}

// TestSlowGroups calls the server while the kernel changes a guest's group.
func TestSlowGroups(t *testing.T) {
	for _, call := range []string{"make", "add"} {
		t.Run(call, func(t *testing.T) {
			groups := &slowGroups{call: call, entered: make(chan struct{}), released: make(chan struct{})}
			s := listen(t, Options{Groups: groups}, mps)
			r := runScript(t, s, "exit 3")
			release := sync.OnceFunc(func() { close(groups.released) })
			t.Cleanup(release) // before the server is closed
			within(t, "the call", func() { <-groups.entered })

			within(t, "SetDevices", func() { s.SetDevices([]Device{mps}) })
			within(t, "list", func() {
				if list := s.list(); len(list) != 1 || list[0].State != control.GuestStarting {
					t.Errorf("guests are %+v, want the one that is starting", list)
				}
			})
			within(t, "find", func() {
				if _, err := s.find("sh"); err != nil {
					t.Error(err)
				}
			})
			within(t, "Fault", func() { s.Fault("", "the GPU failed", true) })
			wait.For(t, "the guest to be killed", func() bool { return s.list()[0].State == control.GuestStopping })
			release()
			if r.end(t); r.err == nil || !strings.Contains(r.err.Error(), "the GPU failed") {
				t.Errorf("got %+v, %v; want that it did not start, and why", r.result, r.err)
			}
			wait.For(t, "the guest to be forgotten", func() bool { return len(s.list()) == 0 })
		})
	}
}

// within fails if f does not return.
func within(t *testing.T, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
	case <-time.After(patience):
		t.Fatalf("%s does not return", what)
	}
}

// TestNodeGone ends the server's side of a connection without a reason, as a crash does.
func TestNodeGone(t *testing.T) {
	s := listen(t, Options{}, cpu)
	r := runScript(t, s, "echo there; while :; do sleep 1000; done")
	r.line(t, "there")
	s.mu.Lock()
	s.guests[0].link.Close()
	s.mu.Unlock()
	if r.end(t); r.result.Signal == 0 || !strings.Contains(r.output, "orchestrator ended") {
		t.Errorf("got %+v, %q; want the program ended, and why", r.result, r.output)
	}
}

func TestName(t *testing.T) {
	for command, want := range map[string]string{
		"/usr/bin/python3.12": "python3-12", "a b": "a-b", "": "-", strings.Repeat("x", 100): strings.Repeat("x", 32),
	} {
		if got := NameOf(command); got != want {
			t.Errorf("%q: got %q, want %q", command, got, want)
		}
	}
	if _, err := os.Stat(filepath.Join(t.TempDir(), NameOf("/"))); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("name of / is %q", NameOf("/"))
	}
}

// TestMarkedDuringExec searches a process that executes another program all the time.
func TestMarkedDuringExec(t *testing.T) {
	script := filepath.Join(t.TempDir(), "again")
	must.OK(t, os.WriteFile(script, []byte(`exec sh "$0"`), 0o600))
	m := Marked{Token: token()}
	cmd := exec.Command("sh", script)
	cmd.Env = append(os.Environ(), control.GuestVariable+"="+m.Token)
	must.OK(t, cmd.Start())
	defer cmd.Wait()
	defer cmd.Process.Kill()
	for range 300 {
		if pids := m.PIDs(); !slices.Equal(pids, []int{cmd.Process.Pid}) {
			t.Fatalf("found %v, want process %d", pids, cmd.Process.Pid)
		}
	}
}

// unmapVerb is the first argument that makes this binary a process without a part of its environment.
const unmapVerb = "unmap-environment"

// unmapEnvironment unmaps all but the first page of this process's environment, which has other data too, and waits. It
// also unmaps the end of the stack, or else the kernel would let the stack grow into the gap.
func unmapEnvironment() {
	e, page := environmentOf(os.Getpid()), uint64(os.Getpagesize())
	first, end := (e.start+page)&^(page-1), (e.end+page)&^(page-1)
	if first >= end {
		fmt.Println("the environment is too small")
		os.Exit(1)
	}
	if _, _, errno := unix.Syscall(unix.SYS_MUNMAP, uintptr(first), uintptr(end-first), 0); errno != 0 {
		fmt.Println(errno)
		os.Exit(1)
	}
	fmt.Println("unmapped")
	for {
		unix.Pause()
	}
}

// TestMarkedUnmapped searches next to a foreign process that has unmapped a part of its environment.
func TestMarkedUnmapped(t *testing.T) {
	foreign := exec.Command(os.Args[0], unmapVerb)
	foreign.Env = []string{"LONG=" + strings.Repeat("x", 4*os.Getpagesize())}
	out, err := foreign.StdoutPipe()
	if err == nil {
		err = foreign.Start()
	}
	must.OK(t, err)
	defer foreign.Wait()
	defer foreign.Process.Kill()
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "unmapped\n" {
		t.Fatal(line, err)
	}
	if e := environmentOf(foreign.Process.Pid); uint64(len(e.text)) >= e.end-e.start {
		t.Fatalf("the process shows %d bytes of %d", len(e.text), e.end-e.start)
	}

	m := Marked{Token: token()}
	marked := exec.Command("sleep", "1000")
	marked.Env = []string{control.GuestVariable + "=" + m.Token}
	must.OK(t, marked.Start())
	defer marked.Wait()
	defer marked.Process.Kill()
	fastest := patience // the machine may be busy
	for range 10 {
		began := time.Now()
		if pids := m.PIDs(); !slices.Equal(pids, []int{marked.Process.Pid}) {
			t.Fatalf("found %v, want process %d", pids, marked.Process.Pid)
		}
		fastest = min(fastest, time.Since(began))
	}
	if fastest > execTimeout/2 {
		t.Errorf("a search takes at least %v", fastest)
	}
}

// TestGuestOrchestratorGone ends the orchestrator's side of a guest's connection, as a crash does. The guest has a
// process that ignores SIGTERM and has no mark in its environment.
func TestGuestOrchestratorGone(t *testing.T) {
	self, err := os.Executable()
	must.OK(t, err)
	for _, paused := range []bool{false, true} {
		t.Run(fmt.Sprint("paused ", paused), func(t *testing.T) {
			const token = "0123456789abcdef"
			g, _, err := cgroup.NewGuests("gone", zerolog.Nop()).Make("sh-"+token, 0, 0)
			if err != nil {
				t.Skipf("not on this machine: needs a writable control group: %v", err)
			}
			t.Cleanup(func() { // if the test failed
				_ = g.Kill()
				_ = g.Remove()
			})
			dir := t.TempDir()
			listener, err := control.ListenGuests(dir)
			must.OK(t, err)
			defer listener.Close()
			theirs, err := control.DialGuests(dir)
			must.OK(t, err)
			conn, err := listener.Accept()
			must.OK(t, err)
			link := control.NewGuestLink(conn.(*net.UnixConn))
			defer link.Close()

			result := make(chan Result, 1)
			go func() {
				script := "trap 'exit 3' TERM; (trap '' TERM; exec env -i sleep 1000) & wait"
				r, err := Run(theirs, Command{Path: "/bin/sh", Args: []string{"sh", "-c", script}, Self: self})
				if err != nil {
					t.Error(err)
				}
				result <- r
			}()
			var order control.GuestOrder
			err = errors.Join(link.Receive(&order), link.Send(control.GuestAnswer{Place: &control.GuestPlace{Token: token}}), link.Receive(&order))
			must.OK(t, err)
			if err := g.Add(order.Started); err != nil {
				t.Skipf("not on this machine: needs the right to move processes: %v", err)
			}
			must.OK(t, link.Send(control.GuestAnswer{Go: &control.GuestGo{}}))
			marked := Marked{Token: token}
			wait.For(t, "two processes, of which one is marked", func() bool { return len(g.PIDs()) == 2 && len(marked.PIDs()) == 1 })
			if paused {
				must.OK(t, g.Freeze(true))
			}
			link.Close()
			if r := <-result; r.Status != 3 {
				t.Errorf("the guest ended with %+v, want it to handle SIGTERM", r)
			}
			if left := g.PIDs(); len(left) > 0 {
				t.Errorf("processes %v are left", left)
			}
			if left := grouptest.Of(os.Getpid()); len(left) > 0 {
				t.Errorf("groups %v are left", left)
			}
		})
	}
}
