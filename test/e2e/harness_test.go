// Package e2e runs whole nodes, `penstock up` with all its processes, and provokes failures
// in them.
package e2e

import (
	"context"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/penstock/penstock/internal/freeport"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/nodetest"
	"github.com/penstock/penstock/internal/testing/wait"
	"github.com/penstock/penstock/node"
)

// penstock is the binary under test, built once.
var penstock string

const patience = wait.Patience

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
	build := exec.Command("go", "build", "-tags", "null", "-ldflags", "-s -w", "-o", penstock, "../../cmd/penstock")
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build penstock: %v\n%s", err, out)
		os.Exit(1)
	}
	nodetest.Binary = penstock
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
	must.OK(t, err)
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

// longContext is nodetest.Context for a program that waits several times.
func longContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 5*patience)
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
	if o.Log == nil {
		o.Log = &log
	} else {
		o.Log = io.MultiWriter(&log, o.Log)
	}
	t.Cleanup(func() { log.check(t) }) // after the node has ended
	return nodetest.Start(t, o)
}

// programCard is nodetest.Card for a program with these arguments.
func programCard(t *testing.T, program string, arguments ...string) string {
	t.Helper()
	path := nodetest.Card(t, "digest", small)
	text, err := os.ReadFile(path)
	must.OK(t, err)
	words := append([]string{program}, arguments...)
	for i, w := range words {
		words[i] = strconv.Quote(w)
	}
	command := "command: [" + strings.Join(words, ", ") + "]"
	must.OK(t, os.WriteFile(path, []byte(strings.Replace(string(text), `framework: "null"`, command, 1)), 0o600))
	return path
}

func absolute(t *testing.T, path string) string {
	t.Helper()
	path, err := filepath.Abs(path)
	must.OK(t, err)
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
