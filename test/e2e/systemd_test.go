package e2e

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/nodetest"
	"github.com/penstock/penstock/internal/testing/wait"
	"golang.org/x/sys/unix"
)

// TestSystemd runs a node as systemd would, with the other end of its socket.
func TestSystemd(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "notify")
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	must.OK(t, err)
	defer socket.Close()
	const watchdog = 2 * time.Second
	nd := start(t, oneFunction(nodetest.Card(t, "digest", small)), "NOTIFY_SOCKET="+path, fmt.Sprintf("WATCHDOG_USEC=%d", watchdog.Microseconds()))

	// receive returns the next report, "" if none arrives in time.
	receive := func(wait time.Duration) string {
		socket.SetReadDeadline(time.Now().Add(wait))
		buffer := make([]byte, 4096)
		n, err := socket.Read(buffer)
		if err != nil {
			return ""
		}
		return string(buffer[:n])
	}
	awaitReport := func(line string) {
		t.Helper()
		wait.For(t, line, func() bool { return strings.Contains(receive(patience)+"\n", line+"\n") })
	}

	awaitReport("READY=1")
	if _, err := run(t, nd.Dir, "if", "list"); err != nil {
		t.Errorf("the manager does not answer, and the node is ready: %v", err)
	}
	manager := 0
	for _, p := range nodetest.Processes(nd.Dir) {
		if p.Command == "manager" {
			manager = p.PID
		}
		if p.PID == nd.PID() {
			continue
		}
		// Until a new process has executed its program, it has the environment of its parent.
		wait.For(t, fmt.Sprintf("an environment of %s without the socket", p.Command), func() bool {
			environment, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", p.PID))
			return err != nil || !strings.Contains(string(environment), "NOTIFY_SOCKET=")
		})
	}
	if manager == 0 {
		t.Fatal("found no manager")
	}

	// While the manager hangs, the watchdog gets no sign of life. Earlier ones may wait in the
	// socket.
	must.OK(t, unix.Kill(manager, unix.SIGSTOP))
	for deadline := time.Now().Add(patience); receive(watchdog) != ""; {
		if time.Now().After(deadline) {
			t.Fatalf("signs of life, and the manager has been stopped for %s", patience)
		}
	}
	must.OK(t, unix.Kill(manager, unix.SIGCONT))
	awaitReport("WATCHDOG=1")

	if err := nd.Stop(); err != nil {
		t.Error(err)
	}
	wait.For(t, "STOPPING=1", func() bool { return strings.HasPrefix(receive(patience), "STOPPING=1") })
}
