package mps

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/penstock/penstock/control/runclock"
	"github.com/penstock/penstock/cuda/nvml"
	"github.com/penstock/penstock/internal/testing/mpsfake"
	"github.com/penstock/penstock/internal/testing/must"
	fakenvml "github.com/penstock/penstock/internal/testing/nvmlfake"
	"github.com/penstock/penstock/internal/testing/wait"
	"github.com/penstock/penstock/orchestrator/sandbox"
)

// TestMain runs this binary as an owner that crashes, if a test started it as one. It also checks
// that nothing is left.
func TestMain(m *testing.M) {
	syscall.Umask(0o022) // keeps the tests' runtime folders private, even if the umask lets the group write
	sandbox.MaybeLaunch()
	if len(os.Args) > 2 && os.Args[1] == "own" {
		os.Exit(own(os.Args[2]))
	}
	remove, err := mpsfake.Build()
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	runclock.Process() // ticks until the process ends
	goroutines := runtime.NumGoroutine()
	code := m.Run()
	remove()
	if code == 0 && !wait.Until(func() bool { return runtime.NumGoroutine() <= goroutines }) {
		fmt.Printf("%d goroutines are left\n", runtime.NumGoroutine()-goroutines)
		code = 1
	}
	os.Exit(code)
}

// own starts a daemon, prints its state, and waits to be killed.
func own(options string) int {
	var o Options
	if err := json.Unmarshal([]byte(options), &o); err != nil {
		return 2
	}
	d, err := Start(context.Background(), o)
	if err != nil {
		fmt.Println(err)
		return 1
	}
	json.NewEncoder(os.Stdout).Encode(d.State())
	select {}
}

const gpu = "GPU-11111111-0000-0000-0000-000000000000"

// patience bounds every wait. It detects hangs and is long enough for slow machines.
const patience = time.Minute

// harness is a harness: a runtime folder with fake programs.
type harness struct {
	t        *testing.T
	programs *mpsfake.Programs
	o        Options
}

func newHarness(t *testing.T, b mpsfake.Behaviour) *harness {
	t.Helper()
	programs, err := mpsfake.Install(t.TempDir())
	must.OK(t, err)
	dir, err := os.MkdirTemp("/tmp", "mps") // short, because a socket's path is limited
	must.OK(t, err)
	x := &harness{t: t, programs: programs, o: Options{
		Dir: dir, UUID: gpu, Program: programs.Control(),
		// A test of a hang sets a shorter timeout.
		StartTimeout: patience, AnswerTimeout: patience, QuitTimeout: patience,
	}}
	x.o.Log = zerolog.Nop()
	x.behave(b)
	t.Cleanup(func() {
		pipe := pipeFolder(dir, gpu)
		if left := belonging(folder{pipe: pipe}); len(left) > 0 {
			t.Errorf("processes %v are left", left)
			killAll(folder{pipe: pipe})
		}
		if _, err := os.Stat(pipe); err == nil {
			t.Errorf("%s is left", pipe)
		}
		os.RemoveAll(dir)
	})
	return x
}

func (x *harness) behave(b mpsfake.Behaviour) {
	x.t.Helper()
	must.OK(x.t, x.programs.Behave(b))
}

func (x *harness) start() *Daemon {
	x.t.Helper()
	d, err := Start(context.Background(), x.o)
	must.OK(x.t, err)
	return d
}

func (x *harness) close(d *Daemon) {
	x.t.Helper()
	if err := d.Close(); err != nil {
		x.t.Error(err)
	}
}

// until waits for a state.
func (x *harness) until(d *Daemon, what string, is func(State) bool) State {
	x.t.Helper()
	for deadline := time.After(patience); ; {
		if s := d.State(); is(s) {
			return s
		}
		select {
		case <-d.Changes():
		case <-deadline:
			x.t.Fatalf("never: %s; it is %+v", what, d.State())
		}
	}
}

func kill(t *testing.T, pid int) {
	t.Helper()
	must.OK(t, syscall.Kill(pid, syscall.SIGKILL))
}

// stop stops a process, and returns when all its threads have stopped. Before that it may still
// answer.
func stop(t *testing.T, pid int) {
	t.Helper()
	must.OK(t, syscall.Kill(pid, syscall.SIGSTOP))
	wait.For(t, "all threads to stop", func() bool {
		threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
		return len(threads) > 0 && !slices.ContainsFunc(threads, func(path string) bool {
			stat, err := os.ReadFile(path)
			_, state, _ := strings.Cut(string(stat), ") ")
			return err == nil && !strings.HasPrefix(state, "T")
		})
	})
}

func TestDaemon(t *testing.T) {
	x := newHarness(t, mpsfake.Behaviour{ServerAfter: 50 * time.Millisecond, Clients: []int{4, 5}})
	d := x.start()
	s := d.State()
	if !s.Serving || s.Why != "" || !alive(s.Daemon) || !alive(s.Server) || s.Losses != 0 {
		t.Errorf("started as %+v", s)
	}
	want := map[string]string{"CUDA_MPS_PIPE_DIRECTORY": pipeFolder(x.o.Dir, gpu), "CUDA_MPS_LOG_DIRECTORY": folderOf(x.o.Dir, gpu).log, "CUDA_VISIBLE_DEVICES": gpu}
	for name, value := range want {
		if got := d.Environment()[name]; got != value || environOf(s.Daemon)[name] != value || environOf(s.Server)[name] != value {
			t.Errorf("%s is %q, of the daemon %q, of the server %q", name, got, environOf(s.Daemon)[name], environOf(s.Server)[name])
		}
	}
	clients, err := d.Clients(context.Background())
	if err != nil || !slices.Equal(clients, []Client{{4, s.Server}, {5, s.Server}}) {
		t.Errorf("clients %v, %v", clients, err)
	}
	if h, err := d.Health(context.Background()); h != Well || err != nil {
		t.Errorf("health %v, %v", h, err)
	}
	for _, pids := range [][]int{{3}, {5, 3, 4}} {
		if err := d.EndWork(context.Background(), pids); err != nil {
			t.Error(err)
		}
	}
	if got := x.programs.Terminated(); !slices.Equal(got, []int{4, 5}) {
		t.Errorf("ended the work of %v, want that of the clients 4 and 5", got)
	}
	x.close(d)
	if alive(s.Daemon) || alive(s.Server) {
		t.Error("it lives on")
	}
}

func TestEnvironment(t *testing.T) {
	t.Setenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "10")
	t.Setenv("CUDA_VISIBLE_DEVICES", "3")
	x := newHarness(t, mpsfake.Behaviour{})
	d := x.start()
	defer x.close(d)
	env := environOf(d.State().Daemon)
	if p, ok := env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"]; ok || env["CUDA_VISIBLE_DEVICES"] != gpu {
		t.Errorf("percentage %q, devices %q", p, env["CUDA_VISIBLE_DEVICES"])
	}
}

func TestProblem(t *testing.T) {
	device := func(m nvml.ComputeMode) nvml.Session {
		return fakenvml.New(nvml.Device{UUID: gpu, Name: "Fake One", ComputeMode: m})
	}
	for name, c := range map[string]struct {
		behaviour mpsfake.Behaviour
		edit      func(o *Options, short time.Duration)
		why, fix  string // SHORT stands for the timeout, TWICE for twice that
	}{
		"no program": {edit: func(o *Options, _ time.Duration) { o.Program = "/nowhere/mps" }, why: "/nowhere/mps is not a program", fix: "apt-get install nvidia-compute-utils-"},
		"no program, but a driver": {edit: func(o *Options, _ time.Duration) { o.Program, o.Session = "/nowhere/mps", device(nvml.Default) },
			why: "is not a program", fix: "apt-get install nvidia-compute-utils-999"},
		"prohibited": {edit: func(o *Options, _ time.Duration) { o.Session = device(nvml.Prohibited) },
			why: "Fake One is in compute mode prohibited", fix: "nvidia-smi -i " + gpu + " -c DEFAULT"},
		"no folder":     {edit: func(o *Options, _ time.Duration) { o.Dir = "/proc/1" }, why: "lock MPS folder", fix: "--runtime-dir"},
		"refuses":       {behaviour: mpsfake.Behaviour{RefuseStart: "no /dev/nvidiactl:\n permission denied"}, why: "does not start: no /dev/nvidiactl: permission denied"},
		"hangs":         {behaviour: mpsfake.Behaviour{HangStart: true}, edit: func(o *Options, short time.Duration) { o.StartTimeout = short }, why: "does not start: no end of it within SHORT"},
		"dies at once":  {behaviour: mpsfake.Behaviour{DieAtStart: true}, edit: func(o *Options, short time.Duration) { o.StartTimeout = 2 * short }, why: "the MPS daemon "},
		"never answers": {behaviour: mpsfake.Behaviour{Mute: true}, edit: func(o *Options, short time.Duration) { o.StartTimeout, o.AnswerTimeout = 2*short, short/2 }, why: "gave no answer within TWICE: "},
		"is mute once told to start a server": {behaviour: mpsfake.Behaviour{MuteAfterStart: time.Hour}, edit: func(o *Options, short time.Duration) {
			o.StartTimeout, o.AnswerTimeout, o.QuitTimeout = 2*short, short/6, short
		},
			why: "runs, but gave no answer within TWICE: get_server_list: no answer within "},
		"has no server":  {behaviour: mpsfake.Behaviour{NoServer: true}, edit: func(o *Options, short time.Duration) { o.StartTimeout = 2 * short }, why: "the MPS server is not active within TWICE", fix: "nvidia-smi"},
		"has a slow one": {behaviour: mpsfake.Behaviour{ServerAfter: time.Minute}, edit: func(o *Options, short time.Duration) { o.StartTimeout = 2 * short }, why: "the MPS server is not active within TWICE", fix: "nvidia-smi"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			// On a slow machine, short may be too short for what works. Try longer times until the
			// start gets far enough.
			for short := 300 * time.Millisecond; ; short *= 4 {
				x := newHarness(t, c.behaviour)
				if c.edit != nil {
					c.edit(&x.o, short)
				}
				_, err := Start(context.Background(), x.o)
				why := strings.NewReplacer("SHORT", short.String(), "TWICE", (2 * short).String()).Replace(c.why)
				var p *Problem
				if errors.As(err, &p) && strings.Contains(p.Why, why) && !strings.Contains(p.Why, "\n") && strings.Contains(p.Fix, c.fix) {
					return
				}
				if short > 4*time.Second {
					t.Fatalf("%v; %+v", err, p)
				}
			}
		})
	}
}

// output is a log that can be read while it is written.
type output struct {
	mu   sync.Mutex
	text strings.Builder
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(b)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

const slowMessage = "MPS starts slowly; waiting while its daemon runs"

// If the driver is busy with the starts of other nodes, the daemon answers none of the first
// questions in time.
func TestSlowDaemon(t *testing.T) {
	for name, b := range map[string]mpsfake.Behaviour{
		"every answer is late":               {AnswerAfter: 150 * time.Millisecond},
		"it is mute when it starts a server": {MuteAfterStart: 500 * time.Millisecond},
		"its server is late":                 {ServerAfter: 500 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			x := newHarness(t, b)
			log := &output{}
			x.o.Log = zerolog.New(log)
			x.o.AnswerTimeout = 100 * time.Millisecond
			d := x.start()
			if s := d.State(); !s.Serving || s.Losses != 0 {
				t.Errorf("started as %+v", s)
			}
			if n := strings.Count(log.String(), slowMessage); n != 1 {
				t.Errorf("it says %d times that it is slow: %s", n, log)
			}
			x.behave(mpsfake.Behaviour{})
			x.close(d)
		})
	}
}

func TestQuickDaemon(t *testing.T) {
	x := newHarness(t, mpsfake.Behaviour{})
	log := &output{}
	x.o.Log = zerolog.New(log)
	d := x.start()
	x.close(d)
	if strings.Contains(log.String(), "slow") {
		t.Error(log)
	}
}

// The start of a daemon that lives may take long. The reason shows that the timeouts did not end it.
func TestDaemonDiesAtStart(t *testing.T) {
	for name, b := range map[string]mpsfake.Behaviour{
		"before it answers":           {DieAtStart: true},
		"as it is to start a server":  {DieAfterStart: true},
		"while it answers very late":  {DieAfterStart: true, AnswerAfter: 100 * time.Millisecond},
		"and says why, not beginning": {RefuseStart: "no memory"},
	} {
		t.Run(name, func(t *testing.T) {
			x := newHarness(t, b)
			x.o.StartTimeout, x.o.AnswerTimeout = time.Minute, time.Minute
			_, err := Start(context.Background(), x.o)
			var p *Problem
			if !errors.As(err, &p) || !strings.Contains(p.Why, "ended") && !strings.Contains(p.Why, "no memory") {
				t.Errorf("%v", err)
			}
		})
	}
}

func TestStartCancelled(t *testing.T) {
	x := newHarness(t, mpsfake.Behaviour{ServerAfter: time.Minute})
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	if _, err := Start(ctx, x.o); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
}

func TestFolderLock(t *testing.T) {
	x := newHarness(t, mpsfake.Behaviour{})
	d := x.start()
	_, err := Start(context.Background(), x.o)
	var p *Problem
	if !errors.As(err, &p) || !strings.Contains(p.Why, "another orchestrator owns the MPS daemon of "+gpu+" in "+x.o.Dir) {
		t.Error(err)
	}
	if s := d.State(); !s.Serving || !alive(s.Daemon) {
		t.Error("the first one's daemon is hurt")
	}
	x.close(d)
	x.close(x.start())
}

// crash makes another process own the daemon and die.
func (x *harness) crash() State {
	x.t.Helper()
	o := x.o
	o.Session = nil
	text, err := json.Marshal(o)
	must.OK(x.t, err)
	cmd := exec.Command(os.Args[0], "own", string(text))
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	must.OK(x.t, err)
	var s State
	must.OK(x.t, json.NewDecoder(out).Decode(&s))
	cmd.Process.Kill()
	cmd.Wait()
	return s
}

func TestAdoptDaemon(t *testing.T) {
	x := newHarness(t, mpsfake.Behaviour{})
	left := x.crash()
	if !alive(left.Daemon) || !alive(left.Server) {
		t.Fatal("it died with its owner")
	}
	d := x.start()
	if s := d.State(); s.Daemon != left.Daemon || s.Server != left.Server {
		t.Errorf("found %+v, was %+v", s, left)
	}
	x.close(d)
}

func TestOtherSettings(t *testing.T) {
	for name, c := range map[string]struct {
		before func(*harness, State)
	}{
		"it died":         {func(x *harness, s State) { kill(t, s.Daemon) }},
		"its server died": {func(x *harness, s State) { kill(t, s.Server) }},
		"it is mute": {func(x *harness, s State) {
			x.o.AnswerTimeout = 300 * time.Millisecond
			stop(x.t, s.Daemon)
		}},
		"its files are gone": {func(x *harness, s State) { os.Remove(filepath.Join(pipeFolder(x.o.Dir, gpu), controlProgram+".pid")) }},
		"its files lie": {func(x *harness, s State) {
			os.WriteFile(filepath.Join(pipeFolder(x.o.Dir, gpu), controlProgram+".pid"), []byte("1\n"), 0o600)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x := newHarness(t, mpsfake.Behaviour{})
			left := x.crash()
			c.before(x, left)
			d := x.start()
			// The daemon may stay only if just its server died, which it may not notice at once.
			s := x.until(d, "another server", func(s State) bool { return s.Serving && s.Server != 0 && s.Server != left.Server })
			if s.Daemon != left.Daemon && alive(left.Daemon) {
				t.Error("the old one lives on")
			}
			x.close(d)
		})
	}
}

func TestSweep(t *testing.T) {
	x := newHarness(t, mpsfake.Behaviour{})
	left := x.crash()
	must.OK(t, Sweep(x.o.Dir))
	if alive(left.Daemon) || alive(left.Server) {
		t.Errorf("%+v lives on", left)
	}
	d := x.start()
	must.OK(t, Sweep(x.o.Dir))
	if s := d.State(); !s.Serving || !alive(s.Daemon) {
		t.Errorf("the daemon of a running orchestrator is %+v", s)
	}
	x.close(d)
}

func TestDaemonInFault(t *testing.T) {
	x := newHarness(t, mpsfake.Behaviour{})
	x.o.ReplaceTimeout = 200 * time.Millisecond
	left := x.crash()
	x.behave(mpsfake.Behaviour{Fault: true})
	w, err := watch(left.Daemon)
	must.OK(t, err)
	defer w.close()
	go func() {
		<-w.gone
		x.programs.Behave(mpsfake.Behaviour{})
	}()
	d := x.start()
	if s := d.State(); !s.Serving || s.Daemon == left.Daemon {
		t.Errorf("it is %+v, was %+v", s, left)
	}
	x.close(d)
}

// A stopped daemon does not answer, but its clients continue. A slow answer alone is no reason to
// take their contexts.
func TestSlowAnswers(t *testing.T) {
	x := newHarness(t, mpsfake.Behaviour{})
	x.o.AnswerTimeout = 500 * time.Millisecond // each answer starts a process, which takes long on a busy machine
	d := x.start()
	defer x.close(d)
	before := d.State()
	stop(t, before.Daemon)
	for range 4 {
		if h, err := d.Health(context.Background()); h != Well || err == nil {
			t.Errorf("health of a stopped daemon: %v, %v", h, err)
		}
	}
	if _, err := d.Clients(context.Background()); err == nil {
		t.Error("a stopped daemon lists clients")
	}
	syscall.Kill(before.Daemon, syscall.SIGCONT)
	x.until(d, "it answers again", func(State) bool {
		h, err := d.Health(context.Background())
		return h == Well && err == nil
	})
	if s := d.State(); s != before {
		t.Errorf("it is %+v, was %+v", s, before)
	}
}

// Otherwise a machine that always starts slowly would never have MPS again.
func TestReplaceTimeout(t *testing.T) {
	x := newHarness(t, mpsfake.Behaviour{})
	x.o.AnswerTimeout, x.o.ReplaceTimeout = 50*time.Millisecond, 200*time.Millisecond
	d := x.start()
	defer x.close(d)
	first := d.State()
	x.behave(mpsfake.Behaviour{MuteAfterStart: 500 * time.Millisecond})
	kill(t, first.Daemon)
	// With 200 ms each time no daemon would ever serve: none answers within 500 ms.
	x.until(d, "it serves again", func(s State) bool { return s.Serving && s.Daemon != first.Daemon })
	x.behave(mpsfake.Behaviour{})
}

func TestDaemonDies(t *testing.T) {
	x := newHarness(t, mpsfake.Behaviour{})
	d := x.start()
	defer x.close(d)
	first := d.State()
	// While the daemon refuses to start again, no process may use CUDA.
	x.behave(mpsfake.Behaviour{RefuseStart: "not now"})
	kill(t, first.Daemon)
	x.until(d, "it says why it does not serve", func(s State) bool { return !s.Serving && strings.Contains(s.Why, "not now") })
	x.behave(mpsfake.Behaviour{})
	s := x.until(d, "it serves again", func(s State) bool { return s.Serving })
	if s.Daemon == first.Daemon || s.Server == first.Server || s.Losses != 1 || s.Why != "" {
		t.Errorf("it is %+v, was %+v", s, first)
	}
}

func TestServerDies(t *testing.T) {
	x := newHarness(t, mpsfake.Behaviour{})
	d := x.start()
	defer x.close(d)
	first := d.State()
	kill(t, first.Server)
	s := x.until(d, "there is another server", func(s State) bool { return s.Serving && s.Server != 0 && s.Server != first.Server })
	if s.Daemon != first.Daemon || s.Losses != 1 {
		t.Errorf("it is %+v, was %+v", s, first)
	}
	kill(t, s.Server)
	x.until(d, "and another", func(t State) bool { return t.Losses == 2 && t.Server != 0 && t.Server != s.Server })
}

func TestNoOtherServer(t *testing.T) {
	x := newHarness(t, mpsfake.Behaviour{})
	x.o.StartTimeout, x.o.AnswerTimeout = time.Minute, time.Minute // these timeouts must not be the reason for the replacement
	d := x.start()
	defer x.close(d)
	first := d.State()
	x.behave(mpsfake.Behaviour{MuteDaemon: first.Daemon})
	began := time.Now()
	kill(t, first.Server)
	s := x.until(d, "there is another server", func(s State) bool { return s.Serving && s.Server != 0 && s.Server != first.Server })
	if s.Daemon == first.Daemon || alive(first.Daemon) || s.Losses != 1 {
		t.Errorf("it is %+v, was %+v", s, first)
	}
	if took := time.Since(began); took < defaultRenewTimeout {
		t.Errorf("the daemon was replaced after %v; it has %v", took, defaultRenewTimeout)
	}
}

func TestHealth(t *testing.T) {
	x := newHarness(t, mpsfake.Behaviour{})
	d := x.start()
	defer x.close(d)
	x.behave(mpsfake.Behaviour{Fault: true})
	if h, err := d.Health(context.Background()); h != Fault || err != nil {
		t.Errorf("health %v, %v", h, err)
	}
	x.behave(mpsfake.Behaviour{Mute: true})
	ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer cancel()
	if h, err := d.Health(ctx); err == nil {
		t.Errorf("health of a mute daemon: %v", h)
	}
	x.behave(mpsfake.Behaviour{})
}

func TestQuitTimeout(t *testing.T) {
	for name, b := range map[string]mpsfake.Behaviour{"quit hangs": {HangQuit: true}, "mute": {Mute: true}} {
		t.Run(name, func(t *testing.T) {
			x := newHarness(t, mpsfake.Behaviour{})
			x.o.AnswerTimeout = 300 * time.Millisecond
			d := x.start()
			x.behave(b)
			s := d.State()
			x.close(d)
			if alive(s.Daemon) || alive(s.Server) {
				t.Error("it lives on")
			}
		})
	}
}

func TestPipeFolder(t *testing.T) {
	x := newHarness(t, mpsfake.Behaviour{})
	short := x.o.Dir
	x.o.Dir = filepath.Join(short, strings.Repeat("d", 120))
	must.OK(t, os.Mkdir(x.o.Dir, 0o700))
	left := x.crash()
	d := x.start() // finds it, although the folder's name is derived
	pipe := d.Environment()["CUDA_MPS_PIPE_DIRECTORY"]
	if len(pipe) > longestPipe || d.State().Daemon != left.Daemon {
		t.Errorf("pipe %s, daemon %d, was %d", pipe, d.State().Daemon, left.Daemon)
	}
	x.close(d)
	if _, err := os.Stat(pipe); err == nil {
		t.Errorf("%s is left", pipe)
	}
}

// Each GPU of a node has a daemon. The end of one leaves the others alone.
func TestTwoGPUs(t *testing.T) {
	x := newHarness(t, mpsfake.Behaviour{})
	d := x.start()
	o := x.o
	o.UUID = "GPU-22222222-0000-0000-0000-000000000000"
	other, err := Start(t.Context(), o)
	must.OK(t, err)
	if d.Environment()["CUDA_MPS_PIPE_DIRECTORY"] == other.Environment()["CUDA_MPS_PIPE_DIRECTORY"] || other.Environment()["CUDA_VISIBLE_DEVICES"] != o.UUID {
		t.Errorf("environments %v and %v", d.Environment(), other.Environment())
	}
	must.OK(t, other.Close())
	if s := d.State(); !s.Serving || s.Losses > 0 {
		t.Errorf("after the other's end: %+v", s)
	}
	x.close(d)
}

func TestFolderOwner(t *testing.T) {
	x := newHarness(t, mpsfake.Behaviour{})
	pipe := pipeFolder(x.o.Dir, gpu)
	other := t.TempDir()
	must.OK(t, os.Symlink(other, pipe))
	_, err := Start(context.Background(), x.o)
	var p *Problem
	if !errors.As(err, &p) || !strings.Contains(p.Why, pipe+" is a symbolic link") || p.Fix != "rm -r "+pipe {
		t.Errorf("%v", err)
	}
	os.Remove(pipe)
}

func TestTry(t *testing.T) {
	x := newHarness(t, mpsfake.Behaviour{})
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	if err := Try(context.Background(), Options{UUID: gpu, Program: x.programs.Control()}); err != nil {
		t.Error(err)
	}
	x.behave(mpsfake.Behaviour{RefuseStart: "no"})
	var p *Problem
	if err := Try(context.Background(), Options{UUID: gpu, Program: x.programs.Control()}); !errors.As(err, &p) {
		t.Error(err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left %v, %v", left, err)
	}
}

func TestRunning(t *testing.T) {
	x := newHarness(t, mpsfake.Behaviour{Clients: []int{7}})
	t.Setenv("PATH", filepath.Dir(x.programs.Control())+":"+os.Getenv("PATH"))
	ctx := context.Background()
	if pid, _, ok := Running(ctx, x.o.Dir, gpu); ok {
		t.Errorf("daemon %d runs", pid)
	}
	d := x.start()
	pid, clients, ok := Running(ctx, x.o.Dir, gpu)
	if want := []Client{{7, d.State().Server}}; !ok || pid != d.State().Daemon || !slices.Equal(clients, want) {
		t.Errorf("daemon %d, clients %v, %v", pid, clients, ok)
	}
	x.close(d)
}

func TestStrangers(t *testing.T) {
	x, y := newHarness(t, mpsfake.Behaviour{}), newHarness(t, mpsfake.Behaviour{})
	d := x.start()
	if s := Strangers(x.o.Dir, gpu); slices.ContainsFunc(s, func(s Stranger) bool { return s.PID == d.State().Daemon }) {
		t.Errorf("its own is one: %v", s)
	}
	want := Stranger{d.State().Daemon, pipeFolder(x.o.Dir, gpu)}
	if s := Strangers(y.o.Dir, gpu); !slices.Contains(s, want) {
		t.Errorf("strangers %v, want %v among them", s, want)
	}
	if s := Strangers(y.o.Dir, "GPU-2"); slices.Contains(s, want) {
		t.Errorf("the daemon of another GPU is one: %v", s)
	}
	// A GPU that accepts one process can have only one daemon.
	y.o.Session = fakenvml.New(nvml.Device{UUID: gpu, Name: "Fake One", ComputeMode: nvml.ExclusiveProcess})
	_, err := Start(context.Background(), y.o)
	var p *Problem
	if !errors.As(err, &p) || !strings.Contains(p.Why, "another MPS daemon") || !strings.Contains(p.Fix, "echo quit | CUDA_MPS_PIPE_DIRECTORY=") {
		t.Errorf("%v", err)
	}
	x.close(d)
}

func TestDaemonUser(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can start processes as another user")
	}
	x := newHarness(t, mpsfake.Behaviour{})
	// The same modes as the orchestrator's runtime folder.
	must.OK(t, errors.Join(os.Chmod(x.o.Dir, 0o711), os.Chmod(filepath.Join(filepath.Dir(x.programs.Control()), "behaviour.json"), 0o644)))
	self, err := os.Executable()
	must.OK(t, err)
	const noOwner = 65534
	x.o.UID = noOwner
	x.o.Confine = sandbox.AsUser(&sandbox.User{Name: "nobody", UID: noOwner, GID: noOwner}, self, x.o.Dir)
	ownerOf := func(path string) uint32 {
		info, err := os.Lstat(path)
		must.OK(t, err)
		return info.Sys().(*syscall.Stat_t).Uid
	}

	// Start takes over a folder from a node without the sandbox.
	must.OK(t, os.Mkdir(folderOf(x.o.Dir, gpu).log, 0o700))
	// Start does not follow links that the daemon's user puts into the folders.
	secret := filepath.Join(t.TempDir(), "secret")
	must.OK(t, errors.Join(os.WriteFile(secret, []byte("] error: secret"), 0o600), os.Symlink(secret, filepath.Join(folderOf(x.o.Dir, gpu).log, "start.log"))))
	d, err := Start(context.Background(), x.o)
	must.OK(t, err)
	state := d.State()
	for what, path := range map[string]string{
		"daemon": fmt.Sprintf("/proc/%d", state.Daemon), "server": fmt.Sprintf("/proc/%d", state.Server),
		"pipe folder": pipeFolder(x.o.Dir, gpu), "log folder": folderOf(x.o.Dir, gpu).log,
	} {
		if uid := ownerOf(path); uid != noOwner {
			t.Errorf("the %s is of user %d, want %d", what, uid, noOwner)
		}
	}
	if text, err := os.ReadFile(secret); err != nil || string(text) != "] error: secret" {
		t.Errorf("a link in the log folder was followed: %q, %v", text, err)
	}
	if err := os.Symlink(secret, d.folder.logFile("server.log")); err == nil {
		if text := d.folder.lastLog(); strings.Contains(text, "secret") {
			t.Errorf("a link in the log folder is read: %s", text)
		}
	}
	if health, err := d.Health(context.Background()); err != nil || health != Well {
		t.Errorf("health %v, %v", health, err)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}
