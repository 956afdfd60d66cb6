package configs

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"github.com/penstock/penstock/models/document"
)

// Source is the origin of all functions' datagrams. The zero value is the kernel's UDP sockets,
// bound to Config.Listen. Each socket has its own slab.
type Source struct {
	// A port that DPDK polls, in place of listen, slab and receivers. The penstock that reads it must
	// be built with DPDK (make build-dpdk).
	DPDK *DPDK `yaml:"dpdk" required:"true" want:"{port: ..., addresses: [...]}"`
}

// Words are the forms of the key that are no map.
func (s *Source) Words() []string { return []string{"udp"} }

// SetWord takes one of Words.
func (s *Source) SetWord(string) { s.DPDK = nil }

// DPDK is one Ethernet port that the manager owns and polls.
type DPDK struct {
	// A NIC's PCI address, or a virtual device of DPDK's with its arguments, like
	// net_af_packet0,iface=veth1.
	Port string `yaml:"port" required:"true" want:"a PCI address like 0000:3b:00.0, or a virtual device like net_af_packet0,iface=veth1" example:"0000:3b:00.0"`
	// The port's IP addresses. The manager answers ARP, neighbour discovery and echo for them.
	Addresses []netip.Addr `yaml:"addresses" required:"true" minItems:"1" maxItems:"16" unique:"true" pattern:"^[0-9a-fA-F.:]+(%.*)?$" want:"an IP address alone, like 10.0.0.2" example:"[10.0.0.2]"`
	// Receive queues, and threads that receive.
	Queues int `yaml:"queues" default:"1" min:"1" max:"64"`
	// CPUs that poll, one per queue; the manager chooses if left out.
	LCores []int `yaml:"lcores" maxItems:"64" unique:"true" min:"0" max:"1023" example:"[2]"`
	// Largest IP packet of the network, in bytes. The minimum is that of IPv6 (RFC 8200, 5).
	MTU int `yaml:"mtu" default:"1500" min:"1280" max:"9600"`
	// Packet memory of all functions.
	Memory Size `yaml:"memory" default:"512MiB" min:"64MiB" max:"256GiB"`
	// false: small pages, for tests.
	HugePages bool `yaml:"huge_pages" default:"true"`
	// Packets that the memory holds; as many as fit if left out.
	Mbufs int `yaml:"mbufs" min:"4096" max:"67108864" example:"131072"`
	// More arguments for DPDK's environment abstraction layer.
	EAL []string `yaml:"eal" default:"[]" want:"an EAL argument, like --log-level=8"`
}

// maxPortText bounds DPDK.Port, in bytes.
const maxPortText = 1 << 10

// DefaultDPDK is a port with all defaults. Keys without a default are missing.
func DefaultDPDK() (d DPDK) {
	document.SetDefaults(&d)
	return d
}

// check finds faults of a source that the rules of the single keys do not cover.
func (s *Source) check(root document.Value) {
	d := s.DPDK
	if d == nil {
		return
	}
	if root.Has("listen") {
		root.Find("listen").Reject("is for kernel sockets, and source is dpdk; want source.dpdk.addresses")
	}
	if root.Has("slab") {
		root.Find("slab").Reject("is for kernel sockets, and source is dpdk; want source.dpdk.memory")
	}
	at := root.Find("source", "dpdk")
	if d.Port != "" {
		if err := checkPort(d.Port); err != nil {
			at.Find("port").Reject("%v", err)
		}
	}
	for i, addr := range d.Addresses {
		at := at.Find("addresses", i)
		switch {
		case !addr.IsValid(): // already reported
		case addr.Zone() != "":
			at.Reject("is %q, want the address without a zone: the port is the only one", addr)
		case addr.Is4In6():
			at.Reject("is %q, want it written %s", addr, addr.Unmap())
		case addr.IsUnspecified(), addr.IsLoopback(), addr.IsMulticast(), addr == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
			at.Reject("is %q, want an address that another machine can send to", addr)
		}
	}
	switch n := len(d.LCores); {
	case n == 0:
	case !at.Has("queues"):
		d.Queues = n
	case n != d.Queues:
		at.Find("lcores").Reject("names %d CPUs for %d queues, want one per queue", n, d.Queues)
	}
	for i, argument := range d.EAL {
		if instead, own := ownArgument(argument); own {
			at.Find("eal", i).Reject("is %q, which the manager sets itself; %s", argument, instead)
		}
	}
}

const portRule = "a PCI address like 0000:3b:00.0, or a virtual device like net_af_packet0,iface=veth1"

var (
	pciPattern        = regexp.MustCompile(`^[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7](,[^\s]+)?$`)
	shortPattern      = regexp.MustCompile(`^[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]$`)
	devicePort        = regexp.MustCompile(`^(net_[a-z_]*[a-z])([0-9]+)(,[^\s]+)?$`)
	unnumberedPattern = regexp.MustCompile(`^net_[a-z_]*[a-z](,[^\s]+)?$`)
	needsArgument     = map[string][]string{
		"net_af_packet": {"iface"},
		"net_af_xdp":    {"iface"},
		"net_tap":       nil,
		"net_pcap":      {"iface", "rx_iface", "rx_iface_in", "rx_pcap"},
		"net_memif":     nil,
		"net_ring":      nil,
		"net_null":      nil,
	}
)

// checkPort returns an error for an invalid name of a DPDK port.
func checkPort(port string) error {
	switch {
	case len(port) > maxPortText:
		return fmt.Errorf("has %d bytes, want at most %d", len(port), maxPortText)
	case pciPattern.MatchString(port):
		return nil
	case shortPattern.MatchString(port):
		return fmt.Errorf("is %q, want it with its domain, 0000:%s", port, port)
	case unnumberedPattern.MatchString(port):
		name, arguments, _ := strings.Cut(port, ",")
		if arguments != "" {
			arguments = "," + arguments
		}
		return fmt.Errorf("is %q, want a number after the device's name: %s0%s", port, name, arguments)
	}
	found := devicePort.FindStringSubmatch(port)
	if found == nil {
		return fmt.Errorf("is %q, want %s", port, portRule)
	}
	wants, known := needsArgument[found[1]]
	if !known {
		return fmt.Errorf("is %q, and there is no %s here; there are net_af_packet, net_tap, net_af_xdp, net_pcap, net_memif, net_ring and net_null", port, found[1])
	}
	arguments := strings.Split(found[3], ",")
	for _, a := range arguments {
		if name, value, _ := strings.Cut(a, "="); value != "" && slices.Contains(wants, name) {
			return nil
		}
	}
	if len(wants) > 0 {
		return fmt.Errorf("is %q, which names no interface: want %s%s,%s=INTERFACE", port, found[1], found[2], wants[0])
	}
	return nil
}

// ownArguments are the EAL arguments that a key of the configuration replaces.
var ownArguments = []struct{ names, instead string }{
	{"-l -c --lcores --main-lcore", "source.dpdk.lcores names the CPUs"},
	{"-m --socket-mem --no-huge --in-memory --single-file-segments", "source.dpdk.memory and huge_pages say what memory it has"},
	{"-a --allow --vdev --no-pci", "source.dpdk.port names the port"},
	{"--file-prefix --proc-type", "each manager is a primary process"},
}

// ownArgument reports whether an EAL argument is one of ownArguments, and which key replaces it.
func ownArgument(a string) (instead string, own bool) {
	name, _, _ := strings.Cut(a, "=")
	for _, o := range ownArguments {
		if slices.Contains(strings.Fields(o.names), name) {
			return o.instead, true
		}
	}
	// A short option may be followed directly by its value: -l1,2.
	if len(name) > 2 && name[0] == '-' && name[1] != '-' {
		return ownArgument(name[:2])
	}
	return "", false
}
