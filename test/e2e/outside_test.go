package e2e

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"testing"

	"github.com/penstock/penstock/client"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/nodetest"
)

// The addresses of a cable between this machine and an outside host.
// 198.18.0.0/15 is reserved for such tests (RFC 2544).
const (
	nodeOutside = "198.18.77.1"
	hostOutside = "198.18.77.2"
)

// outside is another host.
type outside struct{ *nodetest.Place }

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
	o := &outside{nodetest.NewPlace(t, nil)}

	here, there := fmt.Sprintf("pse%d", os.Getpid()), "out0"
	ip := func(arguments ...string) {
		t.Helper()
		must.OK(t, runIP(arguments...))
	}
	ip("link", "add", here, "type", "veth", "peer", "name", there, "netns", o.Path)
	t.Cleanup(func() { runIP("link", "del", here) })
	ip("addr", "add", nodeOutside+"/24", "dev", here)
	ip("link", "set", here, "up")
	for _, arguments := range [][]string{
		{"addr", "add", hostOutside + "/24", "dev", there},
		{"link", "set", there, "up"},
		{"link", "set", "lo", "up"},
	} {
		var err error
		if o.Do(func() { err = runIP(arguments...) }); err != nil {
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

func atNode(port int) string { return net.JoinHostPort(nodeOutside, strconv.Itoa(port)) }

// socket opens a UDP socket on the host to a port of the node's.
func (o *outside) socket(t *testing.T, port int) (c net.Conn) {
	t.Helper()
	var err error
	o.Do(func() { c, err = net.Dial("udp", atNode(port)) })
	must.OK(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

// dial opens a client on the host.
func (o *outside) dial(t *testing.T, port int, options client.Options) (c *client.Client) {
	t.Helper()
	var err error
	o.Do(func() {
		c, err = client.Dial(context.Background(), atNode(port), options)
	})
	must.OK(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}
