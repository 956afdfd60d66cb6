package guest

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/cuda/swap"
	"github.com/penstock/penstock/cuda/swap/turns"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/swaptest"
)

func TestSwap(t *testing.T) {
	library := filepath.Join(t.TempDir(), "library.so")
	preload := func(c *Command) { c.Swap = library }

	t.Run("socket", func(t *testing.T) {
		if err := os.WriteFile(library, nil, 0o600); err != nil { // the loader ignores it
			t.Fatal(err)
		}
		s := listen(t, Options{}, Device{Kind: Beside, Own: map[string]string{"CUDA_VISIBLE_DEVICES": "GPU-1"}})
		var sockets []string
		for range 2 {
			r := runScript(t, s, "echo in $CUDA_VISIBLE_DEVICES at $"+swap.SocketVariable, preload)
			r.end(t)
			_, socket, ok := strings.Cut(r.output, "in GPU-1 at ")
			if r.err != nil || !ok {
				t.Fatalf("%v: %q", r.err, r.output)
			}
			sockets = append(sockets, strings.TrimSpace(socket))
		}
		if sockets[0] != sockets[1] {
			t.Errorf("guests have the sockets %q", sockets)
		}

		if answer := greet(t, sockets[0]); answer != "ok 7000" {
			t.Errorf("the server answers %q", answer)
		}
	})
	t.Run("reserve", func(t *testing.T) {
		s := listen(t, Options{}, Device{
			Kind: Beside, RestartBytes: 2000, Memory: func() (Usage, bool) { return Usage{FreeBytes: 8000}, true },
		})
		r := runScript(t, s, "echo socket=$"+swap.SocketVariable, preload)
		r.end(t)
		_, socket, _ := strings.Cut(r.output, "socket=")
		if answer := greet(t, strings.TrimSpace(socket)); answer != "ok 5000" {
			t.Errorf("the server answers %q", answer)
		}
	})
	t.Run("with a limit", func(t *testing.T) {
		s := listen(t, Options{}, Device{Kind: Beside})
		r := runScript(t, s, "true", preload, func(c *Command) { c.MemoryBytes = 1 << 30 })
		if r.end(t); r.err == nil || !strings.Contains(r.err.Error(), "--memory limits one guest") {
			t.Errorf("error %v", r.err)
		}
	})
	t.Run("no GPU", func(t *testing.T) {
		s := listen(t, Options{}, Device{Kind: OnCPU})
		r := runScript(t, s, "true", preload)
		if r.end(t); r.err == nil || !strings.Contains(r.err.Error(), "is no GPU") {
			t.Errorf("error %v", r.err)
		}
	})
	t.Run("no library", func(t *testing.T) {
		must.OK(t, os.Remove(library))
		s := listen(t, Options{}, Device{Kind: Beside})
		r := runScript(t, s, "true", preload)
		if r.end(t); r.result.Status != StatusFailed || !strings.Contains(r.output, "preload "+library) {
			t.Errorf("%+v, %v: %q", r.result, r.err, r.output)
		}
	})
}

// buildSwap returns a folder with what swapping guests need.
func buildSwap(t *testing.T) (dir string) {
	t.Helper()
	swaptest.Require(t)
	dir = t.TempDir()
	must.OK(t, swaptest.Build("../../cuda/swap", dir))
	return dir
}

// swapGuests starts guests that share a fake GPU.
type swapGuests struct {
	*Server
	environment []string
	program     string
	library     string
}

func listenSwap(t *testing.T, dir string, o Options) *swapGuests {
	t.Helper()
	const memory = 16 << 20
	return &swapGuests{
		Server: listen(t, o, Device{Kind: Beside}), program: filepath.Join(dir, "guest"),
		environment: swaptest.Environment(dir, filepath.Join(t.TempDir(), "gpu"), memory), library: filepath.Join(dir, swaptest.Library),
	}
}

// run starts a guest with 12 MiB, three quarters of the GPU's memory. That is little work: it gets idle CPU
// time only. The shell runs the commands before it first.
func (s *swapGuests) run(t *testing.T, how string, stdin *os.File, before ...string) *running {
	t.Helper()
	return runScript(t, s.Server, strings.Join(before, "")+fmt.Sprintf("exec %s proc %s 20 1", s.program, how), func(c *Command) {
		c.Swap, c.Environment, c.Name, c.Stdin = s.library, s.environment, how, stdin
	})
}

// right waits for the end of a guest that computed what it should.
func (r *running) right(t *testing.T) {
	t.Helper()
	if r.end(t); r.err != nil || r.result.Status != 0 || !strings.Contains(r.output, "right") {
		t.Errorf("guest ended: %+v, %v: %s", r.result, r.err, r.output)
	}
}

// TestBlocking hangs a guest that has the turn. It is ended, and the other guest finishes.
func TestBlocking(t *testing.T) {
	dir := buildSwap(t)
	for _, row := range []struct {
		name, how string
		stops     bool
	}{
		{"endless kernel", "endless", false},
		{"stopped", "busy", true},
	} {
		t.Run(row.name, func(t *testing.T) {
			s := listenSwap(t, dir, Options{Grace: 100 * time.Millisecond})
			a := s.run(t, row.how, nil)
			a.line(t, "holds")
			if row.stops {
				must.OK(t, syscall.Kill(s.list()[0].PID, syscall.SIGSTOP))
			}

			s.run(t, "work", nil).right(t)
			if a.end(t); a.result.Signal == 0 || !strings.Contains(a.output, "penstock run: the guest kept others from the GPU: ") {
				t.Errorf("%+v, %v: %s; want it ended, and why", a.result, a.err, a.output)
			}
		})
	}
}

// TestPauseSwap pauses a guest that has the turn.
func TestPauseSwap(t *testing.T) {
	dir := buildSwap(t)
	t.Run("leaves the GPU", func(t *testing.T) {
		s := listenSwap(t, dir, Options{})
		stdin, line, err := os.Pipe()
		must.OK(t, err)
		defer stdin.Close()
		defer line.Close()
		a := s.run(t, "work", stdin)
		a.line(t, "made") // and waits for a line
		must.Get(s.change(control.GuestOrder{Pause: "work"}))(t)
		if g := s.parts[0].swap.server.Guests(); len(g) != 1 || g[0].Phase != turns.Out {
			t.Errorf("guests %+v, want one that is out", g)
		}
		s.run(t, "work", nil).right(t)
		must.Get(s.change(control.GuestOrder{Resume: "work"}))(t)
		fmt.Fprintln(line)
		a.right(t)
	})
	t.Run("stop", func(t *testing.T) {
		s := listenSwap(t, dir, Options{StopTimeout: patience / 2})
		stdin, line, err := os.Pipe()
		must.OK(t, err)
		defer stdin.Close()
		defer line.Close()
		a := s.run(t, "work", stdin, `trap "" TERM; `)
		a.line(t, "made")
		must.Get(s.change(control.GuestOrder{Pause: "work"}))(t)
		fmt.Fprintln(line) // the program works when it runs again
		must.Get(s.change(control.GuestOrder{Stop: "work"}))(t)
		a.right(t)
	})
	t.Run("does not", func(t *testing.T) {
		s := listenSwap(t, dir, Options{Grace: 100 * time.Millisecond})
		a := s.run(t, "open", nil)
		a.line(t, "holds")
		if _, err := s.change(control.GuestOrder{Pause: "open"}); err == nil || !strings.Contains(err.Error(), "did not give up the GPU within 100ms") {
			t.Errorf("error %v", err)
		}
		if list := s.list(); len(list) != 1 || list[0].State != control.GuestRunning {
			t.Errorf("guests %+v, want one that runs", list)
		}
		s.change(control.GuestOrder{Stop: "open"})
		a.end(t)
	})
}

// greet returns the answer of a swap server to a guest on a GPU with 8,000 free bytes.
func greet(t *testing.T, socket string) string {
	t.Helper()
	c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: socket, Net: "unixpacket"})
	must.OK(t, err)
	defer c.Close()
	fmt.Fprint(c, "hello 3 00000000000000000000000000000000 8000 8000")
	answer := make([]byte, 100)
	n, err := c.Read(answer)
	must.OK(t, err)
	return string(answer[:n])
}
