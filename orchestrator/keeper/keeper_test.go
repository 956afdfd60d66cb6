package keeper

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/penstock/penstock/internal/procstat"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/openfiles"
	"github.com/penstock/penstock/internal/testing/wait"
	"github.com/penstock/penstock/internal/unixsock"
)

const patience = 30 * time.Second

// shell is a command that runs a shell script.
func shell(id, script string) Command {
	return Command{ID: id, Path: "/bin/sh", Args: []string{"sh", "-c", script}, Env: os.Environ()}
}

// idle is a process that prints that it runs, and waits.
func idle(id string) Command { return shell(id, "echo runs; exec sleep 1000") }

// remote is a keeper whose clients connect one after the other.
type remote struct {
	*Local
	served chan error
}

func serve(t *testing.T) *remote {
	t.Helper()
	r := &remote{Local: NewLocal(), served: make(chan error, 100)}
	t.Cleanup(func() { r.Close() })
	return r
}

// connect connects the next client.
func (r *remote) connect(t *testing.T) *Remote {
	t.Helper()
	ours, theirs, err := SocketPair()
	must.OK(t, err)
	go func() { r.served <- r.Serve(ours) }()
	c, err := Connect(theirs)
	must.OK(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

// each runs a test with both keepers, which must behave alike.
func each(t *testing.T, test func(*testing.T, Keeper)) {
	t.Run("local", func(t *testing.T) {
		l := NewLocal()
		defer l.Close()
		test(t, l)
	})
	t.Run("remote", func(t *testing.T) { test(t, serve(t).connect(t)) })
}

func start(t *testing.T, k Keeper, c Command) *Process {
	t.Helper()
	p, err := k.Start(c)
	must.OK(t, err)
	t.Cleanup(p.closeFiles)
	return p
}

// line reads a line of a process's output.
func line(t *testing.T, f *os.File) string {
	t.Helper()
	f.SetReadDeadline(time.Now().Add(patience))
	l, err := bufio.NewReader(f).ReadString('\n')
	if err != nil {
		t.Fatalf("read output: %v", err)
	}
	return strings.TrimSpace(l)
}

func exitOf(t *testing.T, p *Process) Exit {
	t.Helper()
	select {
	case e := <-p.Exit:
		return e
	case <-time.After(patience):
		t.Fatalf("process %s does not exit", p.ID)
		return Exit{}
	}
}

func TestStart(t *testing.T) {
	each(t, func(t *testing.T, k Keeper) {
		dir := t.TempDir()
		c := shell("a", `dd bs=64k count=1 <&3 2>/dev/null; echo " $PWD $((${#LARGE}))"; echo wrong >&2; echo back >&3; exit 3`)
		c.Greeting, c.Dir = []byte("greeting"), dir
		c.Env = append(c.Env, "LARGE="+strings.Repeat("x", 100<<10), "MORE="+strings.Repeat("y", 100<<10), "EVEN="+strings.Repeat("z", 100<<10))
		p := start(t, k, c)
		if got, want := line(t, p.Stdout), fmt.Sprintf("greeting %s %d", dir, 100<<10); got != want {
			t.Errorf("it says %q, want %q", got, want)
		}
		if got := line(t, p.Stderr); got != "wrong" {
			t.Errorf("it complains %q", got)
		}
		if got := line(t, p.Link); got != "back" {
			t.Errorf("over the link it says %q", got)
		}
		if e := exitOf(t, p); e != (Exit{Code: 3}) {
			t.Errorf("it exited as %+v", e)
		}
		if parent := k.PID(); parent != os.Getpid() {
			t.Errorf("its parent is %d, want %d", parent, os.Getpid())
		}
	})
}

func TestStartFails(t *testing.T) {
	each(t, func(t *testing.T, k Keeper) {
		if _, err := k.Start(Command{ID: "a", Path: "/nowhere/program"}); err == nil || !strings.Contains(err.Error(), "/nowhere/program: no such file") {
			t.Errorf("no program: %v", err)
		}
		if _, err := k.Start(Command{ID: "a", Path: "/bin/sh", CPUs: []int{1000}}); err == nil || !strings.Contains(err.Error(), "CPUs 1000") {
			t.Errorf("no CPU: %v", err)
		}
		start(t, k, idle("a"))
		if _, err := k.Start(idle("a")); err == nil || !strings.Contains(err.Error(), "exists already") {
			t.Errorf("a second one: %v", err)
		}
	})
}

func TestForgetFreesID(t *testing.T) {
	each(t, func(t *testing.T, k Keeper) {
		p := start(t, k, idle("a"))
		k.Forget("a") // it still runs: no effect
		k.Signal("a", syscall.SIGKILL)
		exitOf(t, p)
		if _, err := k.Start(idle("a")); err == nil {
			t.Error("an id that is held was free")
		}
		k.Forget("a")
		start(t, k, idle("a"))
	})
}

func TestExitSignal(t *testing.T) {
	each(t, func(t *testing.T, k Keeper) {
		p := start(t, k, idle("a"))
		k.Signal("a", syscall.SIGTERM)
		if e := exitOf(t, p); e != (Exit{Code: -1, Signal: syscall.SIGTERM, Ours: true}) {
			t.Errorf("ours: %+v", e)
		}
		p = start(t, k, idle("b"))
		must.OK(t, syscall.Kill(p.PID, syscall.SIGKILL))
		k.Signal("b", syscall.SIGKILL) // usually too late
		if e := exitOf(t, p); e.Signal != syscall.SIGKILL {
			t.Errorf("another's: %+v", e)
		}
		p = start(t, k, shell("c", "kill -SEGV $$"))
		if e := exitOf(t, p); e != (Exit{Code: -1, Signal: syscall.SIGSEGV}) {
			t.Errorf("its own: %+v", e)
		}
	})
}

func TestProcessGroupEnds(t *testing.T) {
	each(t, func(t *testing.T, k Keeper) {
		const grandchildren = 100 // the kernel ends the last of them after their parent
		p := start(t, k, shell("a", fmt.Sprintf("for i in $(seq %d); do sleep 1000 & all=\"$all $!\"; done; echo $all; exit 0", grandchildren)))
		var left []int
		for _, field := range strings.Fields(line(t, p.Stdout)) {
			pid, err := strconv.Atoi(field)
			must.OK(t, err)
			left = append(left, pid)
		}
		if len(left) != grandchildren {
			t.Fatalf("%d children, want %d", len(left), grandchildren)
		}
		exitOf(t, p)
		for _, pid := range left {
			if runs(pid) {
				t.Errorf("its child %d runs on", pid)
			}
		}
	})
}

// runs reports whether a process exists and is no zombie.
func runs(pid int) bool {
	stat, _ := procstat.Read(pid)
	return !stat.Ended()
}

// headless makes the test binary a process whose first thread has ended.
const headless = "PENSTOCK_TEST_HEADLESS"

func init() {
	if os.Getenv(headless) == "" {
		return
	}
	runtime.LockOSThread() // the first one: this runs before main
	time.AfterFunc(patience, func() { os.Exit(0) })
	_, _, _ = unix.Syscall(unix.SYS_EXIT, 0, 0, 0)
}

func TestGroupRunsWithoutFirstThread(t *testing.T) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), headless+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	must.OK(t, cmd.Start())
	group := cmd.Process.Pid
	wait.For(t, "its first thread to end", func() bool { return !runs(group) })
	if !groupRuns(group) {
		t.Error("a process counts as ended when its first thread has ended")
	}
	_ = unix.Kill(-group, unix.SIGKILL)
	_ = cmd.Wait() // it was killed
	if groupRuns(group) {
		t.Error("a process that was waited for counts as running")
	}
}

// TestNextClient tests the purpose of the package: a client ends, and the next one takes
// over its processes.
func TestNextClient(t *testing.T) {
	r := serve(t)
	first := r.connect(t)
	c := shell("a", "echo early; dd bs=64k count=1 <&3 >/dev/null 2>&1; echo late; exec sleep 1000")
	c.Note = json.RawMessage(`{"n":1}`)
	a := start(t, first, c)
	b := start(t, first, idle("b"))
	gone := start(t, first, shell("gone", "exit 0"))
	exitOf(t, gone)
	first.Forget("gone")
	first.Note("a", json.RawMessage(`{"n":2}`))
	if got := line(t, a.Stdout); got != "early" {
		t.Errorf("it says %q", got)
	}
	// The kernel does the same when a process dies.
	a.closeFiles()
	b.closeFiles()
	first.link.Close()
	<-first.done

	// Without a client: one process exits, and its peers see no end of file.
	syscall.Kill(b.PID, syscall.SIGKILL)
	time.Sleep(50 * time.Millisecond)

	second := r.connect(t)
	held := second.Held()
	slices.SortFunc(held, func(a, b *Process) int { return strings.Compare(a.ID, b.ID) })
	if len(held) != 2 || held[0].ID != "a" || held[1].ID != "b" {
		t.Fatalf("held: %+v", held)
	}
	for _, p := range held {
		t.Cleanup(p.closeFiles)
	}
	if p := held[0]; p.PID != a.PID || string(p.Note) != `{"n":2}` || p.Exited || !p.Started.Equal(a.Started) {
		t.Errorf("a is %+v", p)
	}
	if e := exitOf(t, held[1]); e != (Exit{Code: -1, Signal: syscall.SIGKILL}) || held[1].PID != b.PID {
		t.Errorf("b exited as %+v", e)
	}
	must.Get(held[0].Link.Write([]byte("go\n")))(t)
	if got := line(t, held[0].Stdout); got != "late" {
		t.Errorf("it says %q", got)
	}
	second.Signal("a", syscall.SIGKILL)
	exitOf(t, held[0])
	second.Forget("a")
	second.Forget("b")
	second.Close()
	if err := <-r.served; err != nil {
		t.Errorf("serve: %v", err)
	}
	if held := r.connect(t).Held(); len(held) != 0 {
		t.Errorf("held: %+v", held)
	}
}

// A client that dies while its process is being started leaves it to the next one.
func TestClientDiesInStart(t *testing.T) {
	r := serve(t)
	for i := range 20 {
		first := r.connect(t)
		for _, p := range first.Held() {
			p.closeFiles()
		}
		c := idle(fmt.Sprint(i))
		text, err := json.Marshal(c)
		must.OK(t, err)
		file, err := inMemory(text)
		must.OK(t, err)
		must.OK(t, first.link.Send(message{Op: opStart, ID: c.ID}, file))
		first.link.Close()
		file.Close()
	}
	held := r.connect(t).Held()
	for _, p := range held {
		p.closeFiles()
	}
	if len(held) != 20 {
		t.Errorf("%d of 20 are held", len(held))
	}
}

func TestClientVersion(t *testing.T) {
	r := serve(t)
	first := r.connect(t)
	p := start(t, first, idle("a"))
	first.link.Close()

	ours, theirs, err := SocketPair()
	must.OK(t, err)
	served := make(chan error, 1)
	go func() { served <- r.Serve(ours) }()
	c, err := newLink(theirs)
	must.OK(t, err)
	defer c.Close()
	must.OK(t, c.Send(message{Version: version + 1}))
	if err := <-served; !errors.Is(err, ErrVersion) || !strings.Contains(err.Error(), fmt.Sprintf("version %d", version+1)) {
		t.Errorf("served: %v", err)
	}
	if runs(p.PID) {
		t.Error("its process runs on")
	}
	if m, _, err := receive(c); err != nil || m.Version != version {
		t.Errorf("answered %+v, %v", m, err)
	}
}

func TestKeeperVersion(t *testing.T) {
	ours, theirs, err := SocketPair()
	must.OK(t, err)
	c, err := newLink(ours)
	must.OK(t, err)
	defer c.Close()
	go c.Send(message{Version: version + 1})
	if _, err := Connect(theirs); !errors.Is(err, ErrVersion) {
		t.Errorf("connect: %v", err)
	}
}

// fakeKeeper returns a keeper's end of a connection that the test drives, the client's
// end, and a file to hand over.
func fakeKeeper(t *testing.T) (fake *unixsock.Link, theirs, file *os.File) {
	t.Helper()
	ours, theirs, err := SocketPair()
	must.OK(t, err)
	if fake, err = newLink(ours); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { fake.Close() })
	null, err := os.Open(os.DevNull)
	must.OK(t, err)
	t.Cleanup(func() { null.Close() })
	return fake, theirs, null
}

// A process that exited while no orchestrator was connected is handed over. Its exit
// follows at once, even before the list is complete.
func TestExitBeforeReady(t *testing.T) {
	fake, theirs, file := fakeKeeper(t)
	if err := errors.Join(
		fake.Send(message{Version: version, PID: os.Getpid()}),
		fake.Send(message{Op: opHeld, ID: "a", PID: 1, Exited: true}, file, file, file),
		fake.Send(message{Op: opExited, ID: "a", Exit: &Exit{Code: 3}}),
		fake.Send(message{Op: opReady}),
	); err != nil {
		t.Fatal(err)
	}
	c, err := Connect(theirs)
	must.OK(t, err)
	defer c.Close()

	held := c.Held()
	if len(held) != 1 {
		t.Fatalf("%d processes are held, want 1", len(held))
	}
	defer held[0].closeFiles()
	if e := exitOf(t, held[0]); e.Code != 3 {
		t.Errorf("exited as %+v, want code 3", e)
	}
}

func TestKeeperIsGone(t *testing.T) {
	ours, theirs, err := SocketPair()
	must.OK(t, err)
	l := NewLocal()
	go l.Serve(ours)
	c, err := Connect(theirs)
	must.OK(t, err)
	defer c.Close()
	p := start(t, c, idle("a"))
	l.Close() // kills the process; its exit comes over the socket
	if e := exitOf(t, p); e.Signal != syscall.SIGKILL || !e.Ours {
		t.Errorf("exited as %+v", e)
	}
	if _, err := c.Start(idle("b")); err == nil || !strings.Contains(err.Error(), ErrClosed.Error()) {
		t.Errorf("start: %v", err)
	}
}

// openNothing keeps this process from opening files until the returned function is called.
func openNothing(t *testing.T) (unlimit func()) {
	t.Helper()
	var was unix.Rlimit
	must.OK(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &was))
	must.OK(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 3, Max: was.Max}))
	unlimit = func() {
		must.OK(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &was))
	}
	t.Cleanup(unlimit)
	return unlimit
}

// TestOutOfDescriptors: a process whose files could not be received is ended and forgotten.
// The connection still works.
func TestOutOfDescriptors(t *testing.T) {
	fake, theirs, file := fakeKeeper(t)
	next := func(want op, id string) {
		t.Helper()
		fake.SetReadDeadline(time.Now().Add(patience))
		m, files, err := receive(fake)
		unixsock.CloseAll(files)
		if err != nil || m.Op != want || m.ID != id {
			t.Fatalf("the keeper got %+v, %v; want %s of %q", m, err, want, id)
		}
	}
	// In the list of held processes.
	if err := errors.Join(
		fake.Send(message{Version: version, PID: os.Getpid()}),
		fake.Send(message{Op: opHeld, ID: "held", PID: 1}, file, file, file),
		fake.Send(message{Op: opReady}),
	); err != nil {
		t.Fatal(err)
	}
	client, err := newLink(theirs)
	must.OK(t, err)
	unlimit := openNothing(t)
	c, err := connect(client)
	unlimit()
	must.OK(t, err)
	defer c.Close()
	if held := c.Held(); len(held) != 0 {
		t.Errorf("held: %+v", held)
	}
	next("", "")
	next(opSignal, "held")
	must.OK(t, fake.Send(message{Op: opExited, ID: "held", Exit: &Exit{Code: -1}}))
	next(opForget, "held")

	// In answer to a start.
	failed := make(chan error, 1)
	go func() {
		_, err := c.Start(idle("a"))
		failed <- err
	}()
	next(opStart, "a")
	unlimit = openNothing(t)
	must.OK(t, fake.Send(message{Op: opStarted, ID: "a", PID: 1}, file, file, file))
	err = <-failed
	unlimit()
	if !errors.Is(err, unix.EMFILE) {
		t.Errorf("start: %v, want %v", err, unix.EMFILE)
	}
	next(opSignal, "a")
	must.OK(t, fake.Send(message{Op: opExited, ID: "a", Exit: &Exit{Code: -1}}))
	next(opForget, "a")
	select {
	case <-c.Gone():
		t.Error("the connection is closed")
	default:
	}
	fake.Close()
	select {
	case <-c.Gone():
	case <-time.After(patience):
		t.Error("the connection is not closed after the keeper's end")
	}
}

// TestKeeperDescriptors: the keeper refuses a command that it could not receive, and
// starts the next one.
func TestKeeperDescriptors(t *testing.T) {
	r := serve(t)
	c := r.connect(t)
	file, err := inMemory([]byte("{}"))
	must.OK(t, err)
	defer file.Close()
	wait := make(chan startResult, 1)
	c.mu.Lock()
	c.starting["a"] = wait
	c.mu.Unlock()
	unlimit := openNothing(t)
	must.OK(t, c.link.Send(message{Op: opStart, ID: "a"}, file))
	result := <-wait
	unlimit()
	if result.process != nil || !strings.Contains(result.err.Error(), unix.EMFILE.Error()) {
		t.Errorf("started %v, %v; want %v", result.process, result.err, unix.EMFILE)
	}
	if got := line(t, start(t, c, idle("a")).Stdout); got != "runs" {
		t.Errorf("it says %q", got)
	}
}

func TestLeaks(t *testing.T) {
	files, goroutines := openfiles.Count(t), runtime.NumGoroutine()
	l := NewLocal()
	ours, theirs, err := SocketPair()
	must.OK(t, err)
	served := make(chan error, 1)
	go func() { served <- l.Serve(ours) }()
	c, err := Connect(theirs)
	must.OK(t, err)
	for i := range 5 {
		p, err := c.Start(idle(fmt.Sprint(i)))
		must.OK(t, err)
		if i%2 == 0 {
			c.Signal(p.ID, syscall.SIGKILL)
			exitOf(t, p)
			c.Forget(p.ID)
		}
		p.closeFiles()
	}
	_, _ = c.Start(Command{ID: "x", Path: "/nowhere"})
	c.Close()
	if err := <-served; err != nil && !errors.Is(err, io.EOF) {
		t.Error(err)
	}
	l.Close()
	var f, g int
	if !wait.Until(func() bool {
		f, g = openfiles.Count(t), runtime.NumGoroutine()
		return f <= files && g <= goroutines
	}) {
		t.Fatalf("%d files were open and %d are; %d goroutines, and %d", files, f, goroutines, g)
	}
}
