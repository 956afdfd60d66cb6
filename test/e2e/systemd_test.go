package e2e

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestSystemd runs a node as systemd would, with the other end of its socket.
func TestSystemd(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "notify")
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	const watchdog = 2 * time.Second
	nd := start(t, oneFunction(nullCard(t, "digest", small)), "NOTIFY_SOCKET="+path, fmt.Sprintf("WATCHDOG_USEC=%d", watchdog.Microseconds()))

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
		waitFor(t, line, func() bool { return strings.Contains(receive(patience)+"\n", line+"\n") })
	}

	awaitReport("READY=1")
	if _, err := run(t, nd.Dir, "if", "list"); err != nil {
		t.Errorf("the manager does not answer, and the node is ready: %v", err)
	}
	manager := 0
	for _, p := range processes(nd.Dir) {
		if p.command == "manager" {
			manager = p.pid
		}
		if p.pid == nd.PID() {
			continue
		}
		// Until a new process has executed its program, it has the environment of its parent.
		waitFor(t, fmt.Sprintf("an environment of %s without the socket", p.command), func() bool {
			environment, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", p.pid))
			return err != nil || !strings.Contains(string(environment), "NOTIFY_SOCKET=")
		})
	}
	if manager == 0 {
		t.Fatal("found no manager")
	}

	// While the manager hangs, the watchdog gets no sign of life. Earlier ones may wait in the
	// socket.
	if err := unix.Kill(manager, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(patience); receive(watchdog) != ""; {
		if time.Now().After(deadline) {
			t.Fatalf("signs of life, and the manager has been stopped for %s", patience)
		}
	}
	if err := unix.Kill(manager, unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	awaitReport("WATCHDOG=1")

	if err := nd.Stop(); err != nil {
		t.Error(err)
	}
	waitFor(t, "STOPPING=1", func() bool { return strings.HasPrefix(receive(patience), "STOPPING=1") })
}
