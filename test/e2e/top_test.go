package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/penstock/penstock/client"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/nodetest"
	"github.com/penstock/penstock/internal/testing/wait"
)

// openTerminal opens a pseudoterminal of that size: the program's end, and the end of the user.
func openTerminal(t *testing.T, width, height uint16) (program, user *os.File) {
	t.Helper()
	user, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatalf("open a pseudoterminal: %v", err)
	}
	t.Cleanup(func() { user.Close() })
	must.OK(t, unix.IoctlSetPointerInt(int(user.Fd()), unix.TIOCSPTLCK, 0))
	number, err := unix.IoctlGetInt(int(user.Fd()), unix.TIOCGPTN)
	must.OK(t, err)
	program, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	must.OK(t, err)
	t.Cleanup(func() { program.Close() })
	resizeTerminal(t, user, width, height)
	return program, user
}

func resizeTerminal(t *testing.T, user *os.File, width, height uint16) {
	t.Helper()
	must.OK(t, unix.IoctlSetWinsize(int(user.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Col: width, Row: height}))
}

// shown keeps what a program has written since the last reset.
type shown struct {
	mu   sync.Mutex
	text strings.Builder
}

func (s *shown) follow(user *os.File) {
	for buffer := make([]byte, 4096); ; {
		n, err := user.Read(buffer)
		if err != nil {
			return
		}
		s.mu.Lock()
		s.text.Write(buffer[:n])
		s.mu.Unlock()
	}
}

func (s *shown) has(text string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Contains(s.text.String(), text)
}

func (s *shown) reset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.text.Reset()
}

func TestTop(t *testing.T) {
	t.Parallel()
	nd := start(t, oneFunction(nodetest.Card(t, "digest", small)))
	c := nodetest.Dial(t, nd, "fn", client.Options{})

	t.Run("pipe", func(t *testing.T) {
		out, err := run(t, nd.Dir, "top", "--interval", "100ms")
		if err != nil || !strings.Contains(out, "fn") || strings.Contains(out, "\x1b") {
			t.Errorf("top: %v\n%q", err, out)
		}
	})
	t.Run("json", func(t *testing.T) {
		wait.For(t, "answers in top's interval", func() bool {
			// Requests are answered all the time, because top starts to measure at an unknown
			// moment.
			stop, ended := make(chan struct{}), make(chan struct{})
			go func() {
				defer close(ended)
				for {
					select {
					case <-stop:
						return
					default:
						_, _ = c.Do(t.Context(), nodetest.Picture(small, 1), client.RequestOptions{}) // late ones do not matter
					}
				}
			}()
			out, err := run(t, nd.Dir, "top", "-o", "json", "--interval", "500ms")
			close(stop)
			<-ended
			if err != nil {
				t.Fatalf("top: %v\n%s", err, out)
			}
			var live struct {
				Functions []struct {
					Name      string         `json:"name"`
					P99Millis float64        `json:"p99_ms"`
					Results   map[string]int `json:"results"`
				} `json:"functions"`
			}
			if err := json.Unmarshal([]byte(out), &live); err != nil || len(live.Functions) != 1 || live.Functions[0].Name != "fn" {
				t.Fatalf("top: %v\n%s", err, out)
			}
			f := live.Functions[0]
			return f.P99Millis > 0 && f.Results["ok"] > 0
		})
	})
	t.Run("terminal", func(t *testing.T) {
		program, user := openTerminal(t, 160, 24)
		top := exec.Command(penstock, "top", "--interval", "100ms", "--runtime-dir", nd.Dir)
		top.Stdin, top.Stdout, top.Stderr = program, program, program
		top.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
		must.OK(t, top.Start())
		ended := make(chan error, 1)
		go func() { ended <- top.Wait() }()
		t.Cleanup(func() { top.Process.Kill() })
		var screen shown
		go screen.follow(user)

		wait.For(t, "the whole table", func() bool { return screen.has("state") && screen.has("serves") })
		resizeTerminal(t, user, 40, 24)
		wait.For(t, "a narrow table", func() bool {
			screen.reset()
			wait.For(t, "another picture", func() bool { return screen.has("\x1b[J") && screen.has("p99 ms") })
			return !screen.has("state")
		})
		if _, err := user.WriteString("\x03"); err != nil { // Ctrl-C
			t.Fatal(err)
		}
		if err := <-ended; err != nil {
			t.Errorf("top ended with %v", err)
		}
		wait.For(t, "the terminal's first screen", func() bool { return screen.has("\x1b[?1049l") })
	})
}
