// Package nodetest runs whole nodes in tests: it writes cards, starts a node, finds its processes, sends
// pictures whose answers it can check, and reads status, metrics and log.
package nodetest

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/internal/procstat"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/wait"
	"github.com/penstock/penstock/node"
	"golang.org/x/sys/unix"
)

// Binary is the program under test. TestMain sets it.
var Binary string

// Context ends with the test, or after wait.Patience.
func Context(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeoutCause(t.Context(), wait.Patience, fmt.Errorf("no patience left after %s", wait.Patience))
	t.Cleanup(cancel)
	return ctx
}

// Start starts a node and ensures that all its processes end with the test.
func Start(t testing.TB, o node.Options) *node.Node {
	t.Helper()
	n, err := Try(t, o)
	must.OK(t, err)
	return n
}

// Try is Start for nodes that may fail to start.
func Try(t testing.TB, o node.Options) (*node.Node, error) {
	t.Helper()
	o.Binary = Binary
	n, err := node.Start(Context(t), o)
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() {
		if t.Failed() {
			metrics, _ := n.Metrics() // if it still runs
			t.Logf("node said:\n%s\nand counted:\n%s", n.Log(), Counted(metrics))
		}
		n.Kill()
		wait.For(t, "the node's processes to end", func() bool { return len(Processes(n.Dir)) == 0 })
	})
	return n, nil
}

// Counted returns the series of a metrics page that are neither 0 nor comments.
func Counted(metrics string) string {
	var kept strings.Builder
	for line := range strings.Lines(metrics) {
		if strings.HasPrefix(line, "penstock_") && !strings.HasSuffix(line, " 0\n") {
			kept.WriteString(line)
		}
	}
	return kept.String()
}

// Card writes a card for a model that computes nothing: it answers with a digest of the picture. Even a slow
// machine meets its objective, so a test loses only what it loses on purpose. More lines end the card.
func Card(t testing.TB, name string, bytes int, lines ...string) string {
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
	must.OK(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// Process is a process of a node.
type Process struct {
	PID     int
	Command string // up, manager, orchestrator, gateway, if, or the name of another program
}

// Processes finds the processes of the node with that runtime folder, by its name in their environment or
// arguments. A child that has not executed its program yet looks like its parent, and is left out.
func Processes(dir string) (found []Process) {
	read := func(pid, file string) []byte {
		text, _ := os.ReadFile(filepath.Join("/proc", pid, file))
		return text
	}
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		arguments, stat := read(e.Name(), "cmdline"), read(e.Name(), "stat")
		if len(arguments) == 0 || len(stat) == 0 {
			continue
		}
		fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:])) // state, parent, ...
		if bytes.Equal(arguments, read(fields[1], "cmdline")) {
			continue
		}
		if !bytes.Contains(arguments, []byte(dir)) && !bytes.Contains(read(e.Name(), "environ"), []byte(dir)) {
			continue
		}
		words := strings.Split(strings.TrimRight(string(arguments), "\x00"), "\x00")
		command := filepath.Base(words[0])
		if command == filepath.Base(Binary) && len(words) > 1 {
			command = words[1]
		}
		found = append(found, Process{pid, command})
	}
	return found
}

// Child returns the process of a node that runs that verb.
func Child(t testing.TB, n *node.Node, verb string) int {
	t.Helper()
	all := Processes(n.Dir)
	for _, p := range all {
		if p.Command == verb {
			return p.PID
		}
	}
	t.Fatalf("the node has no %s; it has %v", verb, all)
	return 0
}

// Kill kills a process.
func Kill(t testing.TB, pid int) {
	t.Helper()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatalf("kill %d: %v", pid, err)
	}
}

// Alive reports whether a process is alive; a zombie is not.
func Alive(pid int) bool {
	stat, _ := procstat.Read(pid)
	return !stat.Ended()
}

// Age returns for how long a process has run.
func Age(pid int) time.Duration {
	stat, err := procstat.Read(pid)
	if err != nil {
		return 0
	}
	var now unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &now)
	return time.Duration(now.Nano()) - time.Duration(stat.Number(procstat.StartTime))*procstat.Tick
}

// Serving waits until a process with all its batch sizes holds the ring, and a shadow is ready.
func Serving(t testing.TB, n *node.Node, function string) (active, shadow control.ProcessStatus) {
	t.Helper()
	wait.For(t, function+" to have an active process and a shadow", func() bool {
		f, err := n.Function(function)
		if err != nil || len(f.Instances) == 0 {
			return false
		}
		active, _ = f.Instances[0].Serving()
		shadow, _ = f.Instances[0].Standby()
		return active.PID != 0 && !active.WarmingUp && shadow.PID != 0
	})
	return active, shadow
}

// ShadowServes waits until the shadow of a process that has ended serves in its place.
func ShadowServes(t testing.TB, n *node.Node, function string, shadow control.ProcessStatus) {
	t.Helper()
	wait.For(t, "the shadow to serve", func() bool {
		now, _ := Serving(t, n, function)
		return now.Generation == shadow.Generation
	})
}

// Settled waits until nothing is in flight and no packet memory is held. It checks that no accepted request
// was lost.
func Settled(t testing.TB, n *node.Node, function string) control.FunctionStatus {
	t.Helper()
	var f control.FunctionStatus
	wait.For(t, "packet memory of "+function+" to come back", func() bool {
		var err error
		f, err = n.Function(function)
		return err == nil && f.Accepted == f.Replied && f.HeldBytes == 0
	})
	if f.Lost != 0 {
		t.Errorf("%s: %d accepted requests were lost", function, f.Lost)
	}
	return f
}

// Share orders a share.
func Share(t testing.TB, n *node.Node, function string, percent float64) {
	t.Helper()
	must.OK(t, n.Order(control.SharePath, control.ShareOrder{Name: function, SharePercent: percent}))
}

// Logged waits until the node's log contains text, because a process's output takes a moment to get there.
func Logged(t testing.TB, n *node.Node, text string) {
	t.Helper()
	wait.For(t, fmt.Sprintf("the log to say %q", text), func() bool { return strings.Contains(n.Log(), text) })
}

// Metric reads one value from /metrics; 0 if the series is missing.
func Metric(t testing.TB, n *node.Node, series string) float64 {
	t.Helper()
	text, err := n.Metrics()
	must.OK(t, err)
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, series+" "); ok {
			v, err := strconv.ParseFloat(strings.TrimSpace(rest), 64)
			if err != nil {
				t.Fatalf("read %q: %v", line, err)
			}
			return v
		}
	}
	return 0
}
