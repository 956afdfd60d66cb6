package e2e

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/nodetest"
	"github.com/penstock/penstock/internal/testing/wait"
	"golang.org/x/sys/unix"
)

// says runs the binary to its end, and returns its standard error.
func says(t *testing.T, arguments ...string) string {
	t.Helper()
	var said bytes.Buffer
	cmd := exec.CommandContext(nodetest.Context(t), penstock, arguments...)
	cmd.Stderr = &said
	var exit *exec.ExitError
	if err := cmd.Run(); !errors.As(err, &exit) || exit.ExitCode() != 1 {
		t.Errorf("%v: %v, want exit status 1", arguments, err)
	}
	return said.String()
}

func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "node.yaml")
	must.OK(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// TestLogLastError checks that the final error is JSON if the log is JSON, for
// programs that collect logs.
func TestLogLastError(t *testing.T) {
	t.Parallel()
	taken, err := net.ListenPacket("udp", "127.0.0.1:0")
	must.OK(t, err)
	defer taken.Close()
	card := nodetest.Card(t, "digest", small)
	wrong := write(t, "htp: 127.0.0.1:0\ndrain_timeout: soon\n")
	busy := write(t, fmt.Sprintf("http: 127.0.0.1:0\nfunctions: [{name: fn, model: %s, port: %d}]\n", card, taken.LocalAddr().(*net.UDPAddr).Port))
	for name, test := range map[string]struct {
		arguments []string
		want      []string // of the fatal lines' errors
	}{
		"a configuration that is wrong": {[]string{"up", "--config", wrong}, []string{wrong + ":1:1: unknown key", wrong + ":2:16: drain_timeout: is"}},
		"a manager's":                   {[]string{"manager", "--config", wrong}, []string{wrong + ":1:1:", wrong + ":2:16:"}},
		"an orchestrator's":             {[]string{"orchestrator", "--config", wrong}, []string{wrong + ":1:1:", wrong + ":2:16:"}},
		"a port that is taken":          {[]string{"up", "--config", busy}, []string{"address already in use"}},
		"a flag that is not there":      {[]string{"up", "--bogus"}, []string{"unknown flag: --bogus"}},
		"a process of nobody":           {[]string{"if"}, []string{"as the command of a card"}},
		"a holder of nothing":           {[]string{"weights"}, []string{""}},
	} {
		t.Run(name, func(t *testing.T) {
			if test.arguments[0] != "if" && test.arguments[0] != "weights" {
				test.arguments = append(test.arguments, "--runtime-dir", t.TempDir())
			}
			var fatal []string
			said := says(t, test.arguments...)
			for line := range strings.Lines(said) {
				var record struct{ Level, Error, Message, Process, Time string }
				if err := json.Unmarshal([]byte(line), &record); err != nil {
					t.Fatalf("no line of JSON: %s", line)
				}
				if record.Level != "fatal" {
					continue
				}
				fatal = append(fatal, record.Error)
				if record.Message == "" || record.Process == "" || record.Time == "" {
					t.Errorf("lacks something: %s", line)
				}
			}
			if len(fatal) != len(test.want) {
				t.Fatalf("%d fatal lines, want %d:\n%s", len(fatal), len(test.want), said)
			}
			for i, want := range test.want {
				if !strings.Contains(fatal[i], want) {
					t.Errorf("said %q, want %q", fatal[i], want)
				}
			}
		})
	}
	t.Run("for people", func(t *testing.T) {
		console := write(t, "log: {format: console}\ndevice: cuda:77\n")
		for want, said := range map[string]string{
			"penstock: device cuda:77":  says(t, "orchestrator", "--config", console, "--runtime-dir", t.TempDir()),
			"penstock: ":                says(t, "if", "list", "--runtime-dir", t.TempDir()),
			"penstock: unknown command": says(t, "if", "lst"),
		} {
			if last := said[strings.LastIndexByte(strings.TrimSuffix(said, "\n"), '\n')+1:]; !strings.HasPrefix(last, want) {
				t.Errorf("said %q, want %q", last, want)
			}
		}
	})
}

// logging is a node with one function whose log goes into a pipe.
type logging struct {
	*testing.T
	dir, page string
	up        *exec.Cmd
	reader    *os.File
}

func startLogging(t *testing.T) *logging {
	t.Helper()
	n := &logging{T: t, dir: t.TempDir(), page: freePort(t).String()}
	config := write(t, fmt.Sprintf("http: %s\n%s", n.page, oneFunction(nodetest.Card(t, "digest", small))))
	reader, writer, err := os.Pipe()
	must.OK(t, err)
	n.reader = reader
	t.Cleanup(func() { reader.Close() })
	n.up = exec.Command(penstock, "up", "--config", config, "--runtime-dir", n.dir)
	n.up.Stdout, n.up.Stderr = writer, writer
	must.OK(t, n.up.Start())
	t.Cleanup(func() { n.up.Process.Kill() })
	writer.Close()
	return n
}

func (n *logging) ready() {
	n.Helper()
	wait.For(n.T, "the node to be ready", func() bool {
		response, err := http.Get("http://" + n.page + "/readyz")
		if err != nil {
			return false
		}
		response.Body.Close()
		return response.StatusCode == http.StatusOK
	})
}

// share orders a share, which the manager logs.
func (n *logging) share(percent string) {
	n.Helper()
	if out, err := run(n.T, n.dir, "if", "share", "fn", percent); err != nil {
		n.Fatalf("share: %v\n%s", err, out)
	}
}

func (n *logging) end() {
	n.Helper()
	n.up.Process.Signal(syscall.SIGTERM)
	ended := make(chan error, 1)
	go func() { ended <- n.up.Wait() }()
	select {
	case err := <-ended:
		if err != nil {
			n.Errorf("it ended so: %v", err)
		}
	case <-time.After(patience):
		n.Fatal("it does not end")
	}
}

// TestLogReaderExits checks that the node of `penstock up 2>&1 | head -1`
// continues to run.
func TestLogReaderExits(t *testing.T) {
	t.Parallel()
	n := startLogging(t)
	if line, err := bufio.NewReaderSize(n.reader, 16).ReadString('\n'); err != nil {
		t.Fatalf("read a line: %q, %v", line, err)
	}
	n.reader.Close() // the manager and the orchestrator log more lines until they are ready
	n.ready()
	before := nodetest.Processes(n.dir)
	n.share("40")
	n.share("60")
	after := map[nodetest.Process]bool{}
	for _, p := range nodetest.Processes(n.dir) {
		after[p] = true
	}
	for _, p := range before {
		// The launcher becomes a function's process, which a change of share may replace.
		if p.Command != "launch" && p.Command != "if" && !after[p] {
			t.Errorf("the %s of process %d has died", p.Command, p.PID)
		}
	}
	n.end()
}

// TestLogUnread checks that a stopped terminal does not stop the node.
func TestLogUnread(t *testing.T) {
	t.Parallel()
	n := startLogging(t)
	if _, err := unix.FcntlInt(n.reader.Fd(), unix.F_SETPIPE_SZ, os.Getpagesize()); err != nil {
		t.Fatal(err)
	}
	n.ready()
	var unread int
	for i := 0; unread < os.Getpagesize()-512; i++ {
		n.share(fmt.Sprint(20 + i%50))
		was := unread
		var err error
		if unread, err = unix.IoctlGetInt(int(n.reader.Fd()), unix.TIOCINQ); err != nil {
			t.Fatal(err)
		}
		if i > 200 {
			t.Fatalf("%d bytes wait to be read, %d before the last order: want a full pipe", unread, was)
		}
	}
	n.share("30")
	n.share("40")
	n.share("50")
	n.ready()
	n.end()
}
