package swap

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
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
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/penstock/penstock/cuda/swap/turns"
	"github.com/penstock/penstock/internal/testing/logtest"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/swaptest"
	"github.com/penstock/penstock/internal/testing/wait"
)

const mib = 1 << 20

// patience is how long a test waits for a condition before it fails.
const patience = 60 * time.Second

// sanitizer builds everything in C with a sanitizer of the compiler: "thread" or "address".
var sanitizer = os.Getenv("PENSTOCK_SANITIZE")

var built struct {
	sync.Once
	dir, reason string
	preload     string
}

// build compiles the library, the driver and the guest, once.
func build(t *testing.T) string {
	t.Helper()
	swaptest.Require(t)
	built.Do(func() {
		dir, err := os.MkdirTemp("", "swap")
		if err != nil {
			built.reason = err.Error()
			return
		}
		built.dir, built.preload = dir, filepath.Join(dir, swaptest.Library)
		var flags []string
		if sanitizer != "" {
			flags = append(flags, "-fsanitize="+sanitizer)
			name := "lib" + sanitizer[:1] + "san.so" // of gcc; it must come first
			path, err := exec.Command("cc", "-print-file-name="+name).Output()
			if err != nil {
				built.reason = err.Error()
				return
			}
			built.preload = strings.TrimSpace(string(path)) + " " + built.preload
		}
		if err := swaptest.Build(".", dir, flags...); err != nil {
			built.reason = err.Error()
		}
	})
	if built.reason != "" {
		t.Fatal(built.reason)
	}
	return built.dir
}

func TestMain(m *testing.M) {
	code := m.Run()
	os.RemoveAll(built.dir)
	os.Exit(code)
}

// harness is a server, and a GPU that guests share.
type harness struct {
	*Server
	t          *testing.T
	path, file string
	memory     int64
	config     Config
	stop       func()
}

func newHarness(t *testing.T, memory int64, config ...Config) *harness {
	h := &harness{t: t, path: filepath.Join(t.TempDir(), "swap"), file: filepath.Join(t.TempDir(), "gpu"), memory: memory}
	for _, h.config = range config {
	}
	build(t)
	h.serve()
	t.Cleanup(func() { h.stop() })
	return h
}

func (h *harness) serve() {
	listener, err := Listen(h.path)
	must.OK(h.t, err)
	config := h.config
	config.LimitBytes, config.UID, config.Log = h.memory, os.Getuid(), zerolog.New(zerolog.NewTestWriter(h.t))
	h.Server = New(config)
	ctx, cancel := context.WithCancel(h.t.Context())
	done := make(chan error, 1)
	server := h.Server
	go func() { done <- server.Serve(ctx, listener) }()
	h.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			h.t.Error(err)
		}
	})
}

// program is a guest that runs.
type program struct {
	*exec.Cmd
	t      *testing.T
	in     io.WriteCloser
	out    *bufio.Scanner
	stderr *logtest.Log
	lines  []string
}

func (h *harness) start(mode, how string, memory, rounds int) *program {
	h.t.Helper()
	p := &program{t: h.t, stderr: &logtest.Log{}}
	p.Cmd = exec.Command(filepath.Join(build(h.t), "guest"), mode, how, fmt.Sprint(memory), fmt.Sprint(rounds))
	p.Env = append(os.Environ(), "LD_PRELOAD="+built.preload, "PENSTOCK_SWAP="+h.path)
	p.Env = append(p.Env, swaptest.Environment(build(h.t), h.file, h.memory)...)
	p.Stderr = p.stderr
	stdout, err := p.StdoutPipe()
	must.OK(h.t, err)
	p.out = bufio.NewScanner(stdout)
	if p.in, err = p.StdinPipe(); err != nil {
		h.t.Fatal(err)
	}
	must.OK(h.t, p.Start())
	h.t.Cleanup(func() {
		p.Process.Kill()
		p.Wait()
	})
	return p
}

// read waits until the guest prints a line that begins with a word.
func (p *program) read(word string) string {
	p.t.Helper()
	for p.out.Scan() {
		p.lines = append(p.lines, p.out.Text())
		if strings.HasPrefix(p.out.Text(), word) {
			return p.out.Text()
		}
	}
	err := p.Wait()
	p.t.Fatalf("the guest ended (%v) and did not print %q: %q, stderr %s", err, word, p.lines, p.stderr)
	return ""
}

// right waits for the end of a guest that computed what it should.
func (p *program) right() {
	p.t.Helper()
	p.in.Close()
	p.read("right")
	for p.out.Scan() {
	}
	if err := p.Wait(); err != nil {
		p.t.Fatalf("the guest ended: %v, stderr %s", err, p.stderr)
	}
}

// dial connects as a guest does.
func (h *harness) dial(hello string) *net.UnixConn {
	h.t.Helper()
	c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: h.path, Net: "unixpacket"})
	must.OK(h.t, err)
	h.t.Cleanup(func() { c.Close() })
	fmt.Fprint(c, hello)
	return c
}

// until waits for a condition.
func (h *harness) until(what string, condition func() bool) {
	h.t.Helper()
	if !wait.Until(condition) {
		h.t.Fatalf("no %s: %+v", what, h.Guests())
	}
}

func TestSwap(t *testing.T) {
	for _, mode := range []string{"link", "dlsym", "proc"} {
		t.Run(mode, func(t *testing.T) {
			h := newHarness(t, 64*mib)
			a, b := h.start(mode, "work", 48, 40), h.start(mode, "work", 48, 40)
			for _, g := range []*program{a, b} { // both have their memory before either works
				g.read("made")
				g.in.Close()
			}
			a.right()
			b.right()
			if !strings.Contains(a.stderr.String()+b.stderr.String(), "swapped out") {
				t.Errorf("no guest was swapped out: %s%s", a.stderr, b.stderr)
			}
		})
	}
}

func TestThreeGuests(t *testing.T) {
	h := newHarness(t, 64*mib)
	guests := []*program{h.start("proc", "work", 40, 30), h.start("link", "work", 40, 30), h.start("proc", "capture", 40, 20)}
	for _, g := range guests {
		g.in.Close()
	}
	for _, g := range guests {
		g.right()
	}
}

// TestGrowInCapture makes memory during a capture, at a time when the guest must end its turn.
func TestGrowInCapture(t *testing.T) {
	config := Config{Grace: 20 * time.Second, End: func(pid int, _ string) error { return syscall.Kill(pid, syscall.SIGKILL) }}
	t.Run("after stop", func(t *testing.T) {
		h := newHarness(t, 64*mib, config)
		a := h.start("proc", "grow", 36, 4)
		a.read("captures")
		b := h.start("proc", "work", 40, 10)
		h.until("end of the turn", func() bool { return h.Guests()[0].Phase == turns.Stopping })
		a.right()
		b.right()
	})
	t.Run("before stop", func(t *testing.T) { // the guests fit until then
		h := newHarness(t, 64*mib, config)
		a := h.start("proc", "busy", 24, 0)
		a.read("holds")
		b := h.start("proc", "grow", 24, 30)
		b.read("captures")
		b.right()
		h.until("turn of the other guest", func() bool { g := h.Guests(); return len(g) == 1 && g[0].Swaps > 0 && g[0].Phase == turns.Running })
	})
}

// TestExitWhileWaiting ends a guest whose thread waits for its turn. The thread's call fails: the memory
// is not on the GPU.
func TestExitWhileWaiting(t *testing.T) {
	h := newHarness(t, 64*mib)
	a := h.start("proc", "leave", 48, 0)
	a.read("holds")
	b := h.start("proc", "busy", 48, 0)
	b.read("holds")
	h.until("guest without its turn", func() bool { g := h.Guests(); return g[0].Phase == turns.Out && g[1].Phase == turns.Running })
	if err := b.Process.Signal(syscall.SIGSTOP); err != nil { // it keeps its turn
		t.Fatal(err)
	}
	fmt.Fprintln(a.in)
	h.until("thread that waits", func() bool { return h.Guests()[0].Waiting })
	fmt.Fprintln(a.in)
	if line := a.read("launch"); line != "launch: 4" {
		t.Errorf("%s, want CUDA_ERROR_DEINITIALIZED (4)", line)
	}
	if err := a.Wait(); err != nil {
		t.Errorf("guest ended: %v, stderr %s", err, a.stderr)
	}
}

// TestMemoryWithoutContext makes memory before the first context. It fails, and the program can go on.
func TestMemoryWithoutContext(t *testing.T) {
	h := newHarness(t, 64*mib)
	a := h.start("proc", "early", 48, 4)
	if line := a.read("early"); line != "early: 201" {
		t.Errorf("%s, want CUDA_ERROR_INVALID_CONTEXT (201)", line)
	}
	a.right()
}

// TestExitWhileSwappedIn ends a guest while its memory comes back to a full GPU.
func TestExitWhileSwappedIn(t *testing.T) {
	h := newHarness(t, 64*mib)
	h.takeOutside(1)
	a := h.start("proc", "leave", 48, 0)
	a.read("holds")
	b := h.start("proc", "busy", 48, 0)
	b.read("holds")
	h.until("guest without its turn", func() bool { g := h.Guests(); return g[0].Phase == turns.Out && g[1].Phase == turns.Running })
	h.takeOutside(60 * mib)
	must.OK(t, b.Process.Kill())
	fmt.Fprintln(a.in)
	h.until("guest that gets its turn", func() bool { g := h.Guests(); return len(g) == 1 && g[0].Phase != turns.Out && !g[0].Waiting })
	fmt.Fprintln(a.in)
	if line := a.read("launch"); line != "launch: 4" {
		t.Errorf("%s, want CUDA_ERROR_DEINITIALIZED (4)", line)
	}
}

// Guests that fit together take no turns.
func TestFit(t *testing.T) {
	h := newHarness(t, 128*mib)
	a, b := h.start("proc", "work", 48, 30), h.start("proc", "busy", 48, 0)
	a.right()
	b.read("holds")
	if text := a.stderr.String(); text != "" {
		t.Errorf("stderr: %s", text)
	}
}

// takeOutside makes the fake GPU count memory of this process, as if a function had it.
func (h *harness) takeOutside(bytes int64) {
	h.t.Helper()
	f, err := os.OpenFile(h.file, os.O_RDWR|os.O_CREATE, 0o600)
	must.OK(h.t, err)
	defer f.Close()
	slot := binary.NativeEndian.AppendUint64(nil, uint64(os.Getpid())) // and 4 bytes of padding
	slot = binary.NativeEndian.AppendUint64(slot, uint64(bytes))
	must.Get(f.WriteAt(slot, 0))(h.t)
}

// Guests take turns while a function has memory, and run at once when it has given it back.
func TestChangingFunctions(t *testing.T) {
	h := newHarness(t, 128*mib)
	h.takeOutside(64 * mib) // the guests have 80 of 128
	for range 2 {
		h.start("proc", "busy", 48, 0)
	}
	h.until("swap", func() bool { g := h.Guests(); return len(g) == 2 && g[0].Swaps > 0 && g[1].Swaps > 0 })
	h.takeOutside(0)
	h.until("guests that run at once", func() bool {
		return !slices.ContainsFunc(h.Guests(), func(g Guest) bool { return g.Phase != turns.Running })
	})
}

func TestFork(t *testing.T) {
	h := newHarness(t, 64*mib)
	a, b := h.start("proc", "forked", 48, 20), h.start("dlsym", "forked", 48, 20)
	a.right()
	b.right()
}

func TestThreads(t *testing.T) {
	h := newHarness(t, 64*mib)
	a, b := h.start("proc", "threads", 48, 0), h.start("proc", "threads", 48, 0)
	a.right()
	b.right()
}

// Memory that a thread frees in a stream stays while kernels use it, even if another thread runs out of memory.
func TestTrim(t *testing.T) {
	newHarness(t, 64*mib).start("proc", "trim", 0, 0).right()
}

// A guest that holds its turn without work loses it, and keeps its memory.
func TestIdle(t *testing.T) {
	h := newHarness(t, 64*mib)
	a := h.start("proc", "hold", 48, 0)
	a.read("holds")
	h.start("proc", "work", 48, 20).right()
	h.until("guest alone", func() bool { return len(h.Guests()) == 1 })
	if g := h.Guests()[0]; g.Phase != turns.Out || g.Swaps != 1 || g.PID != a.Process.Pid {
		t.Errorf("the idle guest is %+v", g)
	}
}

// The end of a guest frees its turn and its memory.
func TestKill(t *testing.T) {
	for _, how := range []string{"busy", "heir"} {
		t.Run(how, func(t *testing.T) {
			h := newHarness(t, 64*mib)
			a := h.start("proc", how, 48, 0)
			a.read("holds")
			var child int
			for _, line := range a.lines {
				fmt.Sscanf(line, "child %d", &child)
			}
			if child != 0 {
				defer syscall.Kill(child, syscall.SIGKILL)
			}
			b := h.start("proc", "work", 48, 10)
			h.until("waiting guest", func() bool { g := h.Guests(); return len(g) == 2 && g[1].MemoryBytes > 0 })
			a.Process.Kill()
			b.right()
			h.until("end", func() bool { return len(h.Guests()) == 0 })
		})
	}
}

// TestHang hangs a guest that has the turn.
func TestHang(t *testing.T) {
	for _, how := range []string{"endless", "open", "stopped", "stranger"} {
		t.Run(how, func(t *testing.T) {
			var ended atomic.Int64
			h := newHarness(t, 64*mib, Config{Grace: 100 * time.Millisecond, End: func(pid int, why string) error {
				ended.Store(int64(pid))
				if !strings.Contains(why, "did not finish its work on the GPU within 100ms") {
					t.Errorf("ended because %s", why)
				}
				if how == "stranger" {
					return errors.New("unknown")
				}
				return syscall.Kill(pid, syscall.SIGKILL)
			}})
			mode := how
			if how == "stopped" || how == "stranger" {
				mode = "busy"
			}
			a := h.start("proc", mode, 48, 0)
			a.read("holds")
			if mode == "busy" {
				must.OK(t, a.Process.Signal(syscall.SIGSTOP))
			}

			b := h.start("proc", "work", 48, 10)
			if how == "stranger" { // it keeps its memory, but not its turn
				h.until("guest alone", func() bool { g := h.Guests(); return len(g) == 1 && g[0].PID == b.Process.Pid })
			} else {
				b.right()
			}
			if ended.Load() != int64(a.Process.Pid) {
				t.Errorf("process %d is ended, want %d", ended.Load(), a.Process.Pid)
			}
		})
	}
}

// TestClock ends a guest by a clock that the test moves, without a wait.
func TestClock(t *testing.T) {
	var clock atomic.Int64
	ended := make(chan int, 1)
	h := newHarness(t, 64*mib, Config{
		Grace: time.Hour,
		Clock: func() time.Duration { return time.Duration(clock.Load()) },
		End:   func(pid int, _ string) error { ended <- pid; return nil },
	})
	read := func(c *net.UnixConn, want string) {
		t.Helper()
		message := make([]byte, 200)
		c.SetReadDeadline(time.Now().Add(patience))
		if n, err := c.Read(message); err != nil || !strings.HasPrefix(string(message[:n]), want) {
			t.Fatalf("received %q, %v; want %q", message[:n], err, want)
		}
	}
	dial := func() *net.UnixConn {
		c := h.dial(fmt.Sprintf("hello 3 07070707070707070707070707070707 %d %d", 64*mib, 64*mib))
		read(c, "ok")
		return c
	}
	need := fmt.Sprintf("need %d -1", 40*mib)

	a, b := dial(), dial()
	fmt.Fprint(a, "ask")
	read(a, "go")
	fmt.Fprint(a, "in 0 -1")
	fmt.Fprint(a, need)
	read(a, "ok")
	fmt.Fprint(b, need)
	read(b, "out")
	fmt.Fprint(b, "gone 0")
	read(b, "ok")
	fmt.Fprint(b, "ask")
	read(a, "wanted")
	clock.Add(int64(time.Second))
	fmt.Fprint(b, "ask")
	read(a, "stop")
	clock.Add(int64(time.Hour))
	fmt.Fprint(b, "ask")
	select {
	case pid := <-ended:
		if pid != os.Getpid() {
			t.Errorf("process %d is ended, want %d", pid, os.Getpid())
		}
	case <-time.After(patience):
		t.Error("no process is ended")
	}
}

// A guest that is never idle gives up its turn after a quantum.
func TestQuantum(t *testing.T) {
	h := newHarness(t, 64*mib)
	h.start("proc", "busy", 48, 0).read("holds")
	h.start("proc", "work", 48, 10).right()
}

// TestContextReset takes a guest's context, and gives it another one.
func TestContextReset(t *testing.T) {
	a := newHarness(t, 64*mib).start("proc", "reset", 48, 4)
	a.read("reset")
	a.right()
}

// TestServerEnds ends the server of a guest that has the turn. It goes on, and gets no more memory.
func TestServerEnds(t *testing.T) {
	h := newHarness(t, 64*mib)
	a := h.start("proc", "reset", 48, 4)
	a.read("reset")
	h.stop()
	wait.For(t, "the guest to lose the server", func() bool { return a.stderr.Count("lost the server") > 0 })
	fmt.Fprintln(a.in)
	a.read("cuMemAlloc_v2(&parts[n].at, large): error 2")
	if err := a.Wait(); err == nil {
		t.Errorf("the guest ended well, without memory; stderr %s", a.stderr)
	}
}

func TestAlone(t *testing.T) {
	h := newHarness(t, 64*mib)
	a := h.start("proc", "alone", 0, 0)
	a.right()
	want := []string{"free 56 of 56 MiB", "free 48 of 56 MiB", "too much: 2", "managed: 801", "mystery: 42", "mystery: 42", "right"}
	if fmt.Sprint(a.lines) != fmt.Sprint(want) {
		t.Errorf("the guest printed %q, want %q", a.lines, want)
	}
	for _, line := range []string{"refused cuMemAllocManaged", "passed 2 calls of cuFakeMystery"} {
		if !strings.Contains(a.stderr.String(), line) {
			t.Errorf("stderr has no %q: %s", line, a.stderr)
		}
	}
}

// The node's socket has a name without a file.
func TestAbstractSocket(t *testing.T) {
	h := newHarness(t, 64*mib)
	h.stop()
	h.path = fmt.Sprintf("@penstock-swap-test-%d", os.Getpid())
	h.serve()
	h.start("proc", "alone", 0, 0).right()
}

// Without a server a guest gets no GPU.
func TestNoServer(t *testing.T) {
	h := newHarness(t, 64*mib)
	h.stop()
	a := h.start("proc", "work", 48, 1)
	a.read("cuDevicePrimaryCtxRetain(&context, 0): error 802")
	if err := a.Wait(); err == nil || !strings.Contains(a.stderr.String(), "the guest gets no GPU") {
		t.Errorf("ended: %v, stderr %s", err, a.stderr)
	}
}

// A guest that cannot start the library's thread gets no GPU, and can try again.
func TestNoThread(t *testing.T) {
	h := newHarness(t, 64*mib)
	a := h.start("proc", "threadless", 48, 4)
	a.read("no thread")
	h.until("end of the connections", func() bool { return len(h.Guests()) == 0 })
	fmt.Fprintln(a.in)
	a.read("made")
	want := []string{"retain: 802", "retain: 802", "retain: 802", "no thread", "memset: 201", "made"}
	if !slices.Equal(a.lines, want) {
		t.Errorf("the guest printed %q, want %q", a.lines, want)
	}
	a.right()
	if text := a.stderr.String(); !strings.Contains(text, "start a thread: Resource temporarily unavailable; the guest gets no GPU") {
		t.Errorf("stderr: %s", text)
	}
}

// Bad messages and floods end their own connection only.
func TestFlood(t *testing.T) {
	h := newHarness(t, 64*mib)
	const hello = "hello 3 07070707070707070707070707070707 67108864 67108864"
	for _, bad := range []string{"x", "hello 2 00 1 1", "hello 3 00 -1 0", "hello 3 00 0 0", "hello 3 00 1 -1", "hello 3 00 1 2", "hello 3 00 1", strings.Repeat("h", 4000)} {
		buffer := make([]byte, 200)
		if n, _ := h.dial(bad).Read(buffer); !strings.HasPrefix(string(buffer[:n]), "no ") && n != 0 {
			t.Errorf("%q is answered by %q", bad, buffer[:n])
		}
	}
	for _, bad := range []string{"need x", "need 5", "need 999999999999999 0", "in -5 0", "in 600000001 0", "in 5 -2", "gone 600000001", "have 1 999999999999999", "launch", "unknown " + strings.Repeat("y", 200)} {
		c := h.dial(hello)
		fmt.Fprint(c, bad)
		io.Copy(io.Discard, c) // ends when the server disconnects
	}
	h.until("end of the strangers", func() bool { return len(h.Guests()) == 0 })

	flooding := h.dial(hello)
	ended := make(chan error, 1)
	go func() {
		for {
			if _, err := fmt.Fprint(flooding, "need 1000000 0"); err != nil {
				ended <- err
				return
			}
		}
	}()
	h.start("proc", "work", 48, 10).right()
	<-ended // it does not read the answers
	h.until("end of the GPU's entry", func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		return len(h.gpus) == 0
	})
}

// The server reads a limited number of messages per second from each guest.
func TestFast(t *testing.T) {
	h := newHarness(t, 64*mib)
	began := time.Now()
	c := h.dial("hello 3 07070707070707070707070707070707 67108864 67108864")
	for range maxPerSecond {
		must.Get(fmt.Fprint(c, "have 0 0"))(t)
	}
	fmt.Fprint(c, "need 1 -1")
	buffer := make([]byte, maxMessage)
	for range 2 { // answers to hello and need
		must.Get(c.Read(buffer))(t)
	}
	if took := time.Since(began); took < time.Second {
		t.Errorf("%d messages are read within %v, want at least 1 s", maxPerSecond+1, took)
	}
}

// A program that connects again and again with bad greetings does not fill the log.
func TestFloodLog(t *testing.T) {
	listener, err := Listen(filepath.Join(t.TempDir(), "swap"))
	must.OK(t, err)
	var log strings.Builder
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- New(Config{UID: os.Getuid(), Log: zerolog.New(&log)}).Serve(ctx, listener) }()
	refuse := func() {
		t.Helper()
		c, err := net.DialUnix("unixpacket", nil, listener.Addr().(*net.UnixAddr))
		must.OK(t, err)
		defer c.Close()
		fmt.Fprint(c, "x")
		io.Copy(io.Discard, c) // ends when the server disconnects
	}
	const flood = 100
	began := time.Now()
	for range flood {
		refuse()
	}
	time.Sleep(1100 * time.Millisecond)
	refuse()
	cancel()
	must.OK(t, <-done)

	lines := strings.Split(strings.TrimSpace(log.String()), "\n")
	ends := len(lines)
	for _, line := range lines {
		var fields struct {
			Others int `json:"others_since_last_line"`
		}
		must.OK(t, json.Unmarshal([]byte(line), &fields))
		ends += fields.Others
	}
	if most := 1 + int(time.Since(began)/time.Second); len(lines) > most || ends != flood+1 {
		t.Errorf("%d lines count %d ends of connections, want at most %d lines and %d ends:\n%s", len(lines), ends, most, flood+1, log.String())
	}
}
