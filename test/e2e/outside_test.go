package e2e

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/penstock/penstock/client"
	"github.com/penstock/penstock/internal/testing/must"
)

// The addresses of a cable between this machine and an outside host.
// 198.18.0.0/15 is reserved for such tests (RFC 2544).
const (
	nodeOutside = "198.18.77.1"
	hostOutside = "198.18.77.2"
)

// outside is another host: a network namespace that a thread inside it keeps
// alive.
type outside struct{ jobs chan func() }

// newOutside makes a host that reaches this machine through a cable (veth), so
// that its address is not a loopback address.
func newOutside(t *testing.T) *outside {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root to make a network namespace")
	}
	if _, err := exec.LookPath("ip"); err != nil {
		t.Skip("needs ip (apt-get install iproute2)")
	}
	o := &outside{jobs: make(chan func())}
	made := make(chan error, 1)
	path := ""
	go func() {
		runtime.LockOSThread() // never unlocked: the namespace ends with the thread
		err := unix.Unshare(unix.CLONE_NEWNET)
		path = fmt.Sprintf("/proc/%d/task/%d/ns/net", os.Getpid(), unix.Gettid())
		made <- err
		for job := range o.jobs {
			job()
		}
	}()
	if err := <-made; err != nil {
		t.Fatalf("make network namespace: %v", err)
	}
	t.Cleanup(func() { close(o.jobs) })

	here, there := fmt.Sprintf("pse%d", os.Getpid()), "out0"
	ip := func(arguments ...string) {
		t.Helper()
		must.OK(t, runIP(arguments...))
	}
	ip("link", "add", here, "type", "veth", "peer", "name", there, "netns", path)
	t.Cleanup(func() { runIP("link", "del", here) })
	ip("addr", "add", nodeOutside+"/24", "dev", here)
	ip("link", "set", here, "up")
	for _, arguments := range [][]string{
		{"addr", "add", hostOutside + "/24", "dev", there},
		{"link", "set", there, "up"},
		{"link", "set", "lo", "up"},
	} {
		var err error
		if o.do(func() { err = runIP(arguments...) }); err != nil {
			t.Fatal(err)
		}
	}
	return o
}

func runIP(arguments ...string) error {
	if out, err := exec.Command("ip", arguments...).CombinedOutput(); err != nil {
		return fmt.Errorf("ip %v: %w: %s", arguments, err, out)
	}
	return nil
}

// do runs job on the host.
func (o *outside) do(job func()) {
	done := make(chan struct{})
	o.jobs <- func() {
		defer close(done)
		job()
	}
	<-done
}

func atNode(port int) string { return net.JoinHostPort(nodeOutside, strconv.Itoa(port)) }

// socket opens a UDP socket on the host to a port of the node's.
func (o *outside) socket(t *testing.T, port int) (c net.Conn) {
	t.Helper()
	var err error
	o.do(func() { c, err = net.Dial("udp", atNode(port)) })
	must.OK(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

// dial opens a client on the host.
func (o *outside) dial(t *testing.T, port int, options client.Options) (c *client.Client) {
	t.Helper()
	var err error
	o.do(func() {
		c, err = client.Dial(context.Background(), atNode(port), options)
	})
	must.OK(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}
