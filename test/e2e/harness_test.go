// Package e2e runs whole nodes, `penstock up` with all its processes, and provokes failures
// in them.
package e2e

import (
	"bytes"
	"context"
	"encoding/binary"
	"flag"
	"fmt"
	"io"
	"math"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/penstock/penstock/client"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/internal/freeport"
	"github.com/penstock/penstock/libml/null"
	"github.com/penstock/penstock/node"
	"github.com/penstock/penstock/wire"
)

// penstock is the binary under test, built once.
var penstock string

// patience bounds every wait. It detects hangs and is long enough for slow machines.
const patience = 60 * time.Second

func TestMain(m *testing.M) {
	syscall.Umask(0o022) // the tests' runtime folders must be private, also if new files are group-writable by default
	if role := os.Getenv(roleVariable); role != "" {
		os.Exit(play(role)) // this binary is also the hostile process of a card
	}
	if signal.Ignored(os.Interrupt) { // as in the background of a shell: children would ignore it, too
		signal.Notify(make(chan os.Signal, 1), os.Interrupt)
	}
	parallel()
	dir, err := openFolder("", "penstock-e2e-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Setenv("XDG_RUNTIME_DIR", filepath.Join(dir, "run")) // the tests' nodes register here
	penstock = filepath.Join(dir, "penstock")
	build := exec.Command("go", "build", "-ldflags", "-s -w", "-o", penstock, "../../cmd/penstock")
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build penstock: %v\n%s", err, out)
		os.Exit(1)
	}
	code := m.Run()
	removeMPS()
	os.RemoveAll(dir)
	os.Exit(code)
}

// parallel lets twice as many tests run at a time as there are CPUs, unless the command line
// sets the number. Most tests wait for processes to start and to end.
func parallel() {
	const name = "test.parallel"
	flag.Parse()

	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == name })
	if given {
		return
	}
	if err := flag.Set(name, strconv.Itoa(2*runtime.GOMAXPROCS(0))); err != nil {
		panic(err)
	}
}

// freePort finds an unused port of the loopback address.
func freePort(t testing.TB) netip.AddrPort {
	t.Helper()
	at, err := freeport.Find()
	if err != nil {
		t.Fatal(err)
	}
	return at
}

// openFolder makes a folder whose files the functions' processes may use.
func openFolder(parent, pattern string) (string, error) {
	dir, err := os.MkdirTemp(parent, pattern)
	if err == nil {
		err = os.Chmod(dir, 0o755)
	}
	return dir, err
}

// unconfined is the configuration for functions that remove files of their tests.
const unconfined = "sandbox: off\n"

func testContext(t testing.TB) context.Context { return contextWithin(t, patience) }

// longContext is testContext for a program that waits several times, each time for up to patience.
func longContext(t testing.TB) context.Context { return contextWithin(t, 5*patience) }

func contextWithin(t testing.TB, limit time.Duration) context.Context {
	ctx, cancel := context.WithTimeoutCause(t.Context(), limit, fmt.Errorf("no patience left after %s", limit))
	t.Cleanup(cancel)
	return ctx
}

// start starts a node and ensures that all its processes end with the test.
func start(t testing.TB, config string, environment ...string) *node.Node {
	t.Helper()
	return startWith(t, node.Options{Config: config, Environment: environment})
}

// startWith starts a node with more options. Each line of its log must be valid (checkRecord).
func startWith(t testing.TB, o node.Options) *node.Node {
	t.Helper()
	var log lines
	o.Binary = penstock
	if o.Log == nil {
		o.Log = &log
	} else {
		o.Log = io.MultiWriter(&log, o.Log)
	}
	n, err := node.Start(testContext(t), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		n.Kill()
		log.check(t)
		if t.Failed() {
			t.Logf("node said:\n%s", n.Log())
		}
		waitFor(t, "the node's processes to end", func() bool { return len(processes(n.Dir)) == 0 })
	})
	return n
}

// waitFor polls until done returns true.
func waitFor(t testing.TB, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !done(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited %s for %s", patience, what)
		}
	}
}

// process is a process of a node. It is found by the runtime folder in its environment or
// arguments.
type process struct {
	pid     int
	command string // manager, orchestrator, gateway, if
}

// processes finds the processes of the node with that runtime folder. A child that has not executed
// its program yet looks like its parent, and is left out.
func processes(dir string) (found []process) {
	commandLine := func(pid string) []byte {
		text, _ := os.ReadFile(filepath.Join("/proc", pid, "cmdline"))
		return text
	}
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		var pid int
		if _, err := fmt.Sscanf(e.Name(), "%d", &pid); err != nil {
			continue
		}
		arguments := commandLine(e.Name())
		if len(arguments) == 0 {
			continue
		}
		stat, err := os.ReadFile(filepath.Join("/proc", e.Name(), "stat"))
		if err != nil {
			continue
		}
		fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:])) // state, parent, ...
		if bytes.Equal(arguments, commandLine(fields[1])) {
			continue
		}
		words := strings.Split(strings.TrimRight(string(arguments), "\x00"), "\x00")
		environment, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "environ"))
		if strings.Contains(string(arguments), dir) || strings.Contains(string(environment), dir) {
			command := filepath.Base(words[0])
			if len(words) > 1 {
				command = words[1]
			}
			found = append(found, process{pid: pid, command: command})
		}
	}
	return found
}

// nullCard writes a card for a model that computes nothing: it answers with a digest of the
// picture.
func nullCard(t testing.TB, name string, bytes int, lines ...string) string {
	t.Helper()
	text := fmt.Sprintf(`name: %s
version: 1
framework: "null"
input:
  size: [%d, 1024, 1]
  wire: {type: u8, layout: hwc}
  tensor: {type: u8, layout: hwc}
outputs:
  - {name: digest, shape: [1]}
batches: [1, 2, 4, 8]
slo: 10s
decoder: {name: raw}
%s
`, name, bytes/1024, strings.Join(lines, "\n"))
	path := filepath.Join(t.TempDir(), name+".yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// programCard is nullCard for a program with these arguments.
func programCard(t *testing.T, program string, arguments ...string) string {
	t.Helper()
	path := nullCard(t, "digest", small)
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	words := append([]string{program}, arguments...)
	for i, w := range words {
		words[i] = strconv.Quote(w)
	}
	command := "command: [" + strings.Join(words, ", ") + "]"
	if err := os.WriteFile(path, []byte(strings.Replace(string(text), `framework: "null"`, command, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func absolute(t *testing.T, path string) string {
	t.Helper()
	path, err := filepath.Abs(path)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// oneFunction returns a configuration with one function, fn, of that card.
func oneFunction(card string, more ...string) string {
	return fmt.Sprintf(`
log: {level: debug}
shares: {policy: gslice, tune: false}
functions:
  - {name: fn, model: %s, port: 0, share_percent: 50%s}
`, card, strings.Join(more, ""))
}

func address(t *testing.T, n *node.Node, function string) string {
	t.Helper()
	f, err := n.Function(function)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("127.0.0.1:%d", f.Port)
}

func dial(t *testing.T, n *node.Node, function string, o client.Options) *client.Client {
	t.Helper()
	c, err := client.Dial(t.Context(), address(t, n, function), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// picture returns a picture whose bytes depend on i.
func picture(bytes, i int) []byte {
	p := make([]byte, bytes)
	for j := range p {
		p[j] = byte(j*7 + i*13)
	}
	return p
}

// digest returns the null model's answer to a picture.
func digest(p []byte) float32 { return null.Value(null.Digest(p), 0, 0) }

// answers counts how requests ended, and checks each ok answer.
type answers struct {
	mu      sync.Mutex
	ended   int
	by      map[wire.Status]int
	lost    int // ended without an answer
	wrong   int
	changed sync.Cond
}

func newAnswers() *answers {
	a := &answers{by: map[wire.Status]int{}}
	a.changed.L = &a.mu
	return a
}

// deliver returns a client.Options.Deliver. The tag is the number that picture was called
// with.
func (a *answers) deliver(bytes int) func(*client.Result) {
	return func(r *client.Result) {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.ended++
		switch {
		case r.Err != nil:
			a.lost++
		default:
			a.by[r.Result.Status]++
			if r.Status == client.StatusOK {
				if !right(r, bytes) {
					a.wrong++
				}
			}
		}
		a.changed.Broadcast()
	}
}

// count returns how many requests have ended.
func (a *answers) count() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.ended
}

// right reports whether an ok answer is the digest of the picture with that tag.
func right(r *client.Result, bytes int) bool {
	return len(r.Payload) == 4 && math.Float32frombits(binary.LittleEndian.Uint32(r.Payload)) == digest(picture(bytes, int(r.Tag)))
}

func (a *answers) wait(n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for a.ended < n {
		a.changed.Wait()
	}
}

// accepted counts the answers to requests that the node had accepted.
func (a *answers) accepted() uint64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return uint64(a.by[wire.StatusOK] + a.by[wire.StatusLate] + a.by[wire.StatusFailed])
}

func (a *answers) String() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return fmt.Sprintf("%d ended, %v, %d without an answer, %d wrong", a.ended, a.by, a.lost, a.wrong)
}

// send sends n pictures, one per gap.
func send(t *testing.T, c *client.Client, bytes, from, n int, gap time.Duration) {
	t.Helper()
	for i := from; i < from+n; i++ {
		if _, err := c.Send(picture(bytes, i), client.RequestOptions{Tag: uint64(i)}); err != nil {
			t.Fatalf("send request %d: %v", i, err)
		}
		time.Sleep(gap)
	}
}

// logged waits until the node's log contains text, because a process's output takes a moment
// to get there.
func logged(t *testing.T, n *node.Node, text string) {
	t.Helper()
	waitFor(t, fmt.Sprintf("the log to say %q", text), func() bool { return strings.Contains(n.Log(), text) })
}

// settled waits until nothing is in flight and no packet memory is held. It checks that no
// accepted request was lost.
func settled(t *testing.T, n *node.Node, function string) control.FunctionStatus {
	t.Helper()
	var f control.FunctionStatus
	waitFor(t, "memory to come back", func() bool {
		var err error
		f, err = n.Function(function)
		return err == nil && f.Accepted == f.Replied && f.HeldBytes == 0
	})
	if f.Lost != 0 {
		t.Errorf("%d accepted requests were lost", f.Lost)
	}
	return f
}

// metric reads one value from /metrics; 0 if the series is missing.
func metric(t *testing.T, n *node.Node, series string) float64 {
	t.Helper()
	text, err := n.Metrics()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, series+" "); ok {
			var v float64
			if _, err := fmt.Sscan(rest, &v); err != nil {
				t.Fatalf("read %q: %v", line, err)
			}
			return v
		}
	}
	return 0
}
