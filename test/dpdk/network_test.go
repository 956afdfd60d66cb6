package dpdk

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/nodetest"
	"github.com/penstock/penstock/internal/testing/wait"
	"golang.org/x/sys/unix"
)

// The addresses of the laboratory. Hosts that only the raw sender simulates have others
// (sender_test.go), so that this kernel does not answer for them.
const (
	camera4, node4       = "10.77.0.1", "10.77.0.2"
	camera6, node6       = "fd00:77::1", "fd00:77::2"
	cameraMgmt, nodeMgmt = "10.79.0.1", "10.79.0.2"
)

// laboratory is two networks and the cables between them.
type laboratory struct {
	node *place
}

// place is a network namespace.
type place struct{ *nodetest.Place }

// newLaboratory makes the laboratory. It skips the test outside make test-dpdk.
func newLaboratory(t *testing.T) *laboratory {
	t.Helper()
	if penstock == "" {
		t.Skip(why)
	}
	l := &laboratory{node: newPlace(t)}
	must.OK(t, run("ip", "link", "add", "mgmt0", "type", "veth", "peer", "name", "mgmt1", "netns", l.node.Path))
	t.Cleanup(func() { run("ip", "link", "del", "mgmt0") })
	l.node.must(t, "ip", "addr", "add", nodeMgmt+"/24", "dev", "mgmt1")
	l.node.must(t, "ip", "link", "set", "mgmt1", "up")
	l.node.must(t, "ip", "link", "set", "lo", "up")
	must.OK(t, run("ip", "addr", "add", cameraMgmt+"/24", "dev", "mgmt0"))
	must.OK(t, run("ip", "link", "set", "mgmt0", "up"))
	t.Cleanup(func() { run("ip", "link", "del", "cam0") }) // ignore the error: a test may have deleted it
	l.layCable(t)
	return l
}

// layCable connects camera and node.
func (l *laboratory) layCable(t *testing.T) {
	t.Helper()
	must.OK(t, run("ip", "link", "add", "cam0", "type", "veth", "peer", "name", "node0", "netns", l.node.Path))
	l.node.must(t, "ip", "link", "set", "node0", "up")
	// The camera's kernel sends nothing by itself: tests count every frame that is dropped.
	for name, value := range map[string]string{"accept_ra": "0", "router_solicitations": "0"} {
		must.OK(t, os.WriteFile("/proc/sys/net/ipv6/conf/cam0/"+name, []byte(value), 0))
	}
	must.OK(t, run("ip", "addr", "add", camera4+"/24", "dev", "cam0"))
	must.OK(t, run("ip", "addr", "add", camera6+"/64", "dev", "cam0", "nodad"))
	must.OK(t, run("ip", "link", "set", "cam0", "up"))
	l.checksums(t, true)
	// The kernel leaves the cutting of trains (UDP_SEGMENT) to a network card. They would
	// cross a veth uncut, as frames of 64 KiB.
	must.OK(t, run("ethtool", "-K", "cam0", "tx-udp-segmentation", "off", "gso", "off", "tso", "off"))
	wait.For(t, "the cable between camera and node", func() bool {
		state, _ := os.ReadFile("/sys/class/net/cam0/operstate")
		return strings.TrimSpace(string(state)) == "up"
	})
}

// checksums sets whether the camera's kernel computes checksums, as a network card would.
func (l *laboratory) checksums(t *testing.T, filled bool) {
	t.Helper()
	state := "on"
	if filled {
		state = "off"
	}
	must.OK(t, run("ethtool", "-K", "cam0", "tx", state))
}

// bridge connects the node's end of the cable with another of the node's interfaces.
func (l *laboratory) bridge(t *testing.T, iface string) {
	t.Helper()
	l.node.must(t, "ip", "link", "add", "br0", "type", "bridge", "forward_delay", "0", "mcast_snooping", "0")
	l.node.must(t, "ip", "link", "set", "node0", "master", "br0")
	// The kernel's end of a DPDK TAP has the port's own address, too. A bridge would not
	// forward frames to that address.
	l.node.must(t, "ip", "link", "set", iface, "address", "02:00:00:00:ff:01")
	l.node.must(t, "ip", "link", "set", iface, "master", "br0")
	l.node.must(t, "ip", "link", "set", iface, "txqueuelen", "10000", "up")
	l.node.must(t, "ip", "link", "set", "br0", "up")
}

// newPlace makes a network namespace whose kernel sends nothing by itself.
func newPlace(t *testing.T) *place {
	t.Helper()
	return &place{nodetest.NewPlace(t, func() error {
		if err := showNetwork(); err != nil {
			return err
		}
		// Disable the kernel's neighbour discovery on interfaces that DPDK owns.
		for _, which := range []string{"all", "default"} {
			if err := os.WriteFile("/proc/sys/net/ipv6/conf/"+which+"/disable_ipv6", []byte("1"), 0); err != nil {
				return fmt.Errorf("switch IPv6 off: %w", err)
			}
		}
		return nil
	})}
}

func (p *place) run(name string, args ...string) (err error) {
	p.Do(func() { err = run(name, args...) })
	return err
}

func (p *place) must(t *testing.T, name string, args ...string) {
	t.Helper()
	must.OK(t, p.run(name, args...))
}

// kernelHas tries a tc discipline on an interface of this process's network, and returns
// the kernel's error.
func kernelHas(discipline ...string) error {
	if err := run("ip", "link", "add", "try0", "type", "veth", "peer", "name", "try1"); err != nil {
		return err
	}
	defer run("ip", "link", "del", "try0")
	return run("tc", append([]string{"qdisc", "add", "dev", "try0", "root"}, discipline...)...)
}

// ping sends an echo request with that many bytes from the camera's kernel, and checks
// that the same bytes return.
func ping(address string, bytes int, patience time.Duration) error {
	family, protocol, request := unix.AF_INET, unix.IPPROTO_ICMP, byte(8) // RFC 792
	var to unix.Sockaddr
	if addr := netip.MustParseAddr(address); addr.Is4() {
		to = &unix.SockaddrInet4{Addr: addr.As4()}
	} else {
		family, protocol, request = unix.AF_INET6, unix.IPPROTO_ICMPV6, 128 // RFC 4443
		to = &unix.SockaddrInet6{Addr: addr.As16()}
	}
	// Each network has its own setting for which groups may open such a socket (icmp(7)).
	if err := os.WriteFile("/proc/sys/net/ipv4/ping_group_range", []byte("0 2147483647"), 0); err != nil {
		return err
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, protocol)
	if err != nil {
		return fmt.Errorf("open ping socket: %w", err)
	}
	defer unix.Close(fd)
	timeout := unix.NsecToTimeval(int64(patience))
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout); err != nil {
		return err
	}
	const header = 8
	packet := make([]byte, header+bytes)
	packet[0] = request
	for i := range bytes {
		packet[header+i] = byte(i * 7)
	}
	if err := unix.Sendto(fd, packet, 0, to); err != nil {
		return fmt.Errorf("ping %s: %w", address, err)
	}
	answer := make([]byte, len(packet)+1)
	n, _, err := unix.Recvfrom(fd, answer, 0)
	if err != nil {
		return fmt.Errorf("ping %s: no answer: %w", address, err)
	}
	if string(answer[header:n]) != string(packet[header:]) {
		return fmt.Errorf("ping %s: %d bytes came back, and not those sent", address, n-header)
	}
	return nil
}

const patience = wait.Patience

func TestLaboratory(t *testing.T) {
	l := newLaboratory(t)
	if err := ping(node4, 56, time.Second); err == nil {
		t.Error("somebody answers for the node's address, and no node runs")
	}
	l.node.must(t, "ip", "link", "show", "node0")
	if err := run("ip", "link", "show", "node0"); err == nil {
		t.Error("the node's interface is in the camera's network")
	}
	if out, _ := exec.Command("ip", "-o", "link").Output(); strings.Contains(string(out), "eth0") {
		t.Errorf("the machine's own interfaces are here:\n%s", out)
	}
	var names []string
	l.node.Do(func() {
		entries, _ := os.ReadDir("/sys/class/net")
		for _, e := range entries {
			names = append(names, e.Name())
		}
	})
	if got := strings.Join(names, " "); got != "lo mgmt1 node0" {
		t.Errorf("the node sees %q in /sys/class/net, want lo mgmt1 node0", got)
	}
	if err := kernelHas("netem", "loss", "1%"); err != nil {
		t.Logf("no netem here, the test's own sender loses and reorders instead: %v", err)
	}
}
