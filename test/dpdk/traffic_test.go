package dpdk

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"golang.org/x/sys/unix"

	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/nodetest"
	"github.com/penstock/penstock/wire"
)

// device is a kind of port, and how to connect it to the camera's cable.
type device struct {
	name    string
	port    string
	connect func(t *testing.T, l *laboratory) // called when the node runs; may be nil
	lacks   func() string                     // why this machine does not support it; may be nil
}

var devices = []device{
	{name: "af_packet", port: "net_af_packet0,iface=node0"},
	{name: "tap", port: "net_tap0,iface=dtap0", connect: func(t *testing.T, l *laboratory) { l.bridge(t, "dtap0") }, lacks: noTap},
	{name: "af_xdp", port: "net_af_xdp0,iface=node0", lacks: noXDP},
}

func noTap() string {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Sprintf("open /dev/net/tun: %v", err)
	}
	unix.Close(fd)
	return ""
}

// noXDP tries to open an AF_XDP socket, and returns why that is impossible.
func noXDP() string {
	fd, err := unix.Socket(unix.AF_XDP, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Sprintf("this kernel has no AF_XDP sockets (CONFIG_XDP_SOCKETS): %v", err)
	}
	unix.Close(fd)
	return ""
}

// start starts a node on that kind of port, or skips and names what the machine
// lacks.
func (d device) start(t *testing.T, l *laboratory, s setup) *running {
	t.Helper()
	if d.lacks != nil {
		if lacks := d.lacks(); lacks != "" {
			t.Skipf("not on this machine: %s", lacks)
		}
	}
	s.device = d.port
	s.more = append(s.more, ordinaryPages, "memory: 256MiB") // less than the default, to start sooner
	r := l.start(t, s)
	if d.connect != nil {
		d.connect(t, l)
	}
	return r
}

// TestKernelSenders is the acceptance test of every kind
// of port: kernel sockets find the port by ARP or neighbour discovery, and `penstock
// load` checks each answer.
func TestKernelSenders(t *testing.T) {
	for _, d := range devices {
		for _, address := range []string{node4, node6} {
			for _, size := range []int{small, large} {
				family := "IPv4"
				if address == node6 {
					family = "IPv6"
				}
				t.Run(fmt.Sprintf("%s/%s/%dpieces", d.name, family, size/fragmentBytes), func(t *testing.T) {
					l := newLaboratory(t)
					r := d.start(t, l, setup{bytes: size, addresses: []string{address}})
					r.load(t, "50", 2*time.Second).right(t)
					if f := nodetest.Settled(t, r.Node, "fn"); f.Accepted == 0 {
						t.Errorf("nothing was accepted: %+v", f)
					}
				})
			}
		}
	}
}

// TestDefaults sets only the required keys, on ordinary pages.
func TestDefaults(t *testing.T) {
	l := newLaboratory(t)
	r := l.start(t, setup{device: devices[0].port, bytes: large, more: []string{ordinaryPages}})
	r.load(t, "20", time.Second).right(t)
	nodetest.Settled(t, r.Node, "fn")
}

// TestHostProtocols pings the port, and checks the kernel's neighbour
// table.
func TestHostProtocols(t *testing.T) {
	for _, d := range devices {
		t.Run(d.name, func(t *testing.T) {
			l := newLaboratory(t)
			d.start(t, l, setup{})
			for _, address := range []string{node4, node6} {
				for _, bytes := range []int{0, 1, 56, 1400} {
					must.OK(t, ping(address, bytes, patience))
				}
			}
		})
	}
}

// TestVLAN sends frames with one and with two tags, over
// IPv4 and IPv6.
func TestVLAN(t *testing.T) {
	for _, d := range devices {
		t.Run(d.name, func(t *testing.T) {
			l := newLaboratory(t)
			d.start(t, l, setup{})
			for _, tags := range [][]uint16{nil, {7}, {100, 7}} {
				for _, to := range []string{"IPv4", "IPv6"} {
					t.Run(fmt.Sprintf("%s/%v", to, tags), func(t *testing.T) {
						address := address4
						if to == "IPv6" {
							address = address6
						}
						h := newHost(t, address, tags...)
						h.resolve()
						for id := range uint32(5) {
							h.ask(id, nodetest.Picture(small, int(id)))
						}
					})
				}
			}
		})
	}
}

// TestBadNetwork loses, doubles and reorders frames. Missing
// fragments are requested again.
func TestBadNetwork(t *testing.T) {
	l := newLaboratory(t)
	r := devices[0].start(t, l, setup{bytes: large})
	for name, treat := range map[string]func(frames [][]byte, id uint32) [][]byte{
		"reordered":     func(f [][]byte, id uint32) [][]byte { return shuffled(f, uint64(id)) },
		"backwards":     func(f [][]byte, _ uint32) [][]byte { return backwards(f) },
		"doubled":       func(f [][]byte, id uint32) [][]byte { return shuffled(append(f, f...), uint64(id)) },
		"doubled later": func(f [][]byte, _ uint32) [][]byte { return append(f, f[:100]...) },
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t, address4)
			h.t = t
			h.resolve()
			for id := range uint32(10) {
				p := nodetest.Picture(large, int(id))
				h.send(treat(h.picture(id, p), id)...)
				h.expect(id, p)
			}
		})
	}
	t.Run("lost", func(t *testing.T) {
		h := newHost(t, address4)
		h.resolve()
		for id := range uint32(10) {
			p := nodetest.Picture(large, int(id))
			frames := h.picture(id, p)
			var sent [][]byte
			for i, f := range frames {
				if i%10 != int(id) {
					sent = append(sent, f)
				}
			}
			h.send(sent...)
			h.again(id, frames)
			h.expect(id, p)
		}
	})
	nodetest.Settled(t, r.Node, "fn")
}

// again sends the fragments that the manager's NACKs request.
func (h *host) again(id uint32, frames [][]byte) {
	h.t.Helper()
	got := h.receive(patience, func(p gopacket.Packet) bool {
		udp, ok := p.Layer(layers.LayerTypeUDP).(*layers.UDP)
		if !ok {
			return false
		}
		nack, err := wire.DecodeNACK(udp.Payload)
		if err != nil || nack.RequestID != id {
			return false
		}
		for i := range nack.Missing {
			h.send(frames[i])
		}
		return true
	})
	if got == nil {
		h.t.Fatalf("the missing fragments of request %d were not wished for", id)
	}
}

func backwards(frames [][]byte) (out [][]byte) {
	for i := len(frames) - 1; i >= 0; i-- {
		out = append(out, frames[i])
	}
	return out
}

// TestNetem is the same with netem between `penstock load`
// and the node, if the kernel has netem.
func TestNetem(t *testing.T) {
	l := newLaboratory(t)
	if err := kernelHas("netem", "loss", "1%"); err != nil {
		t.Skipf("not on this machine: the kernel has no netem (CONFIG_NET_SCH_NETEM): TestBadNetwork does without: %v", err)
	}
	r := devices[0].start(t, l, setup{})
	must.OK(t, run("tc", "qdisc", "add", "dev", "cam0", "root", "netem", "delay", "1ms", "1ms", "loss", "1%", "duplicate", "1%", "reorder", "5%", "50%"))
	if got := r.load(t, "50", 3*time.Second); got.Wrong > 0 || got.OK*100 < got.Sent*90 {
		t.Errorf("%v; want nearly all answered, and right", got)
	}
	nodetest.Settled(t, r.Node, "fn")
}

// TestVethChecksums makes the camera's kernel leave checksums to
// a network card, which a veth is not.
func TestVethChecksums(t *testing.T) {
	l := newLaboratory(t)
	l.checksums(t, false)
	devices[0].start(t, l, setup{}).load(t, "20", time.Second).right(t)
}

// TestTwoFunctions sends to both functions, alternating frame by frame.
func TestTwoFunctions(t *testing.T) {
	l := newLaboratory(t)
	r := devices[0].start(t, l, setup{functions: []string{"{name: other, model: CARD, port: 9001, share_percent: 40}"}})
	first := newHost(t, address4)
	second := newHost(t, netip.AddrPortFrom(address4.Addr(), port+1))
	first.resolve()
	second.resolve()
	for id := range uint32(20) {
		p, q := nodetest.Picture(small, int(id)), nodetest.Picture(small, int(id)+1000)
		a, b := first.picture(id, p), second.picture(id, q)
		for i := range a { // interleaved
			first.send(a[i])
			second.send(b[i])
		}
		first.expect(id, p)
		second.expect(id, q)
	}
	nodetest.Settled(t, r.Node, "fn")
	status, err := r.Status()
	must.OK(t, err)
	for _, f := range status.Functions {
		if f.Accepted != 20 {
			t.Errorf("%s accepted %d pictures, want 20", f.Name, f.Accepted)
		}
	}
}

// TestDoctor runs the doctor in the node's network.
func TestDoctor(t *testing.T) {
	l := newLaboratory(t)
	for iface, ready := range map[string]bool{"node0": true, "nothere": false} {
		text, _ := setup{device: "net_af_packet0,iface=" + iface, more: []string{ordinaryPages}}.config(t)
		out, err := l.doctor(t, text)
		if ready != (err == nil) || !strings.Contains(out, "net_af_packet0,iface="+iface) {
			t.Errorf("doctor on %s: %v\n%s", iface, err, out)
		}
		if !ready && !strings.Contains(out, "no such interface: nothere") {
			t.Errorf("doctor does not say that there is no such interface:\n%s", out)
		}
	}
}
