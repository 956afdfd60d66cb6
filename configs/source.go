package configs

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"github.com/penstock/penstock/models/document"
)

// Source says where the datagrams of all functions come from. Its zero value is
// the kernel's UDP sockets, bound to Config.Listen, each with a slab of its own.
type Source struct {
	// DPDK is the port that DPDK polls; nil for kernel UDP. The penstock that reads
	// it must be built with DPDK (make build-dpdk).
	DPDK *DPDK
}

// DPDK is one Ethernet port that the manager owns and polls.
type DPDK struct {
	// Port is a NIC's PCI address, like 0000:3b:00.0, or a virtual device of DPDK's
	// with its arguments, like net_af_packet0,iface=veth1.
	Port string
	// Addresses are the port's IP addresses, on which all functions' UDP ports are
	// reached. Nobody else answers for them: the manager does, ARP, neighbour
	// discovery and echo.
	Addresses []netip.Addr
	// Queues is how many receive queues are polled; LCores are the CPUs that poll
	// them, one each, of the manager's choice where there are none.
	Queues int
	LCores []int
	// MTU is the largest IP packet of the network, in bytes.
	MTU int
	// Memory is the packet memory that all functions share, on huge pages unless
	// told otherwise. Mbufs is how many packets it holds; 0 means as many as fit.
	Memory    Size
	HugePages bool
	Mbufs     int
	Checksums Checksums
	// EAL are more arguments for DPDK's environment.
	EAL []string
}

// Checksums says who verifies the checksums of what is received.
type Checksums string

// ChecksumsAuto leaves to a NIC what it can verify, verifies the rest, and takes
// from a virtual device what its sender's kernel left unfilled for an offload.
// ChecksumsVerify takes nothing that is unfilled, ChecksumsIgnore whatever comes.
const (
	ChecksumsAuto   Checksums = "auto"
	ChecksumsVerify Checksums = "verify"
	ChecksumsIgnore Checksums = "ignore"
)

// Limits of a DPDK port.
const (
	maxPortText  = 1 << 10
	maxAddresses = 16
	maxQueues    = 64
	maxLCore     = 1023
	minMTU       = 1280 // IPv6's least (RFC 8200 5)
	maxMTU       = 9600
	minDPDK      = 64 << 20
	maxDPDK      = 256 << 30
	minMbufs     = 4096
	maxMbufs     = 1 << 26
)

// DefaultDPDK is a port of which only what must be given is not.
func DefaultDPDK() DPDK {
	return DPDK{Queues: 1, MTU: 1500, Memory: 512 << 20, HugePages: true, Checksums: ChecksumsAuto}
}

const sourceRule = "udp, or {dpdk: {port: ..., addresses: [...]}}"

// decode reads the key source of a configuration's root, and what does not go
// with it.
func (s *Source) decode(root document.Map) {
	v := root.May("source")
	if v.Absent() {
		return
	}
	if !v.IsMap() {
		if word := v.Text(sourceRule); word != "udp" && word != "" {
			v.Reject("is %q, want %s", word, sourceRule)
		}
		return
	}
	d := DefaultDPDK()
	m := v.Map("dpdk")
	if d.decode(m.Need("dpdk", "{port: ..., addresses: [...]}")) {
		s.DPDK = &d
	}
	if v := root.May("listen"); !v.Absent() {
		v.Reject("is where kernel sockets listen, and source is dpdk; its addresses stand in source.dpdk.addresses")
	}
	if v := root.May("slab"); !v.Absent() {
		v.Reject("is the memory of kernel sockets, and source is dpdk; its memory stands in source.dpdk.memory")
	}
}

// decode reports whether there is anything to be read.
func (d *DPDK) decode(v document.Value) bool {
	if v.Absent() {
		return false
	}
	m := v.Map("port", "addresses", "queues", "lcores", "mtu", "memory", "huge_pages", "mbufs", "checksums", "eal")
	port := m.Need("port", portRule)
	if d.Port = port.Text(portRule); d.Port != "" {
		if err := CheckPort(d.Port); err != nil {
			port.Reject("%v", err)
		}
	}
	d.decodeAddresses(m.Need("addresses", addressesRule))
	queues, lcores := m.May("queues"), m.May("lcores")
	if !queues.Absent() {
		d.Queues = int(queues.Int(1, maxQueues))
	}
	for _, v := range lcores.List("a list of CPUs, one a queue") {
		cpu := int(v.Int(0, maxLCore))
		if slices.Contains(d.LCores, cpu) {
			v.Reject("is %d, which polls another queue already", cpu)
		}
		d.LCores = append(d.LCores, cpu)
	}
	switch {
	case len(d.LCores) == 0, len(d.LCores) == d.Queues:
	case queues.Absent() && len(d.LCores) <= maxQueues:
		d.Queues = len(d.LCores)
	case d.Queues > 0: // else that is said already
		lcores.Reject("names %d CPUs for %d queues, want one a queue", len(d.LCores), d.Queues)
	}
	if v := m.May("mtu"); !v.Absent() {
		d.MTU = int(v.Int(minMTU, maxMTU))
	}
	size(m.May("memory"), &d.Memory, minDPDK, maxDPDK)
	if v := m.May("huge_pages"); !v.Absent() {
		d.HugePages = v.Bool()
	}
	if v := m.May("mbufs"); !v.Absent() {
		d.Mbufs = int(v.Int(minMbufs, maxMbufs))
	}
	choose(m.May("checksums"), &d.Checksums, ChecksumsAuto, ChecksumsVerify, ChecksumsIgnore)
	for _, v := range m.May("eal").List("a list of DPDK's EAL arguments") {
		argument := v.Text("an EAL argument, like --log-level=8")
		if instead, own := ownArgument(argument); own {
			v.Reject("is %q, which the manager gives itself; %s", argument, instead)
		}
		d.EAL = append(d.EAL, argument)
	}
	return true
}

const addressesRule = "a list of the port's IP addresses, like [10.0.0.2]"

func (d *DPDK) decodeAddresses(v document.Value) {
	list := v.List(addressesRule)
	if v.IsList() && (len(list) == 0 || len(list) > maxAddresses) {
		v.Reject("has %d elements, want 1 to %d", len(list), maxAddresses)
	}
	for _, v := range list {
		text := v.Text("an IP address")
		if text == "" {
			continue
		}
		addr, err := netip.ParseAddr(text)
		switch {
		case err != nil && strings.Contains(text, "/"):
			v.Reject("is %q, want the address alone, without its network's length: answers go back the way that requests came", text)
		case err != nil:
			v.Reject("is %q, which is no IP address", text)
		case addr.Zone() != "":
			v.Reject("is %q, want the address without a zone: the port is the only one", text)
		case addr.Is4In6():
			v.Reject("is %q, want it written %s", text, addr.Unmap())
		case addr.IsUnspecified(), addr.IsLoopback(), addr.IsMulticast(), addr == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
			v.Reject("is %q, want an address that another machine can send to", text)
		case slices.Contains(d.Addresses, addr):
			v.Reject("is %q, which stands there twice", text)
		default:
			d.Addresses = append(d.Addresses, addr)
		}
	}
}

const portRule = "a PCI address like 0000:3b:00.0, or a virtual device like net_af_packet0,iface=veth1"

var (
	pciPattern    = regexp.MustCompile(`^[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7](,[^\s]+)?$`)
	shortPattern  = regexp.MustCompile(`^[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]$`)
	devicePort    = regexp.MustCompile(`^(net_[a-z_]*[a-z])([0-9]+)(,[^\s]+)?$`)
	unnumbered    = regexp.MustCompile(`^net_[a-z_]*[a-z](,[^\s]+)?$`)
	needsArgument = map[string][]string{
		"net_af_packet": {"iface"},
		"net_af_xdp":    {"iface"},
		"net_tap":       nil,
		"net_pcap":      {"iface", "rx_iface", "rx_iface_in", "rx_pcap"},
		"net_memif":     nil,
		"net_ring":      nil,
		"net_null":      nil,
	}
)

// CheckPort reports what is wrong with the name of a DPDK port.
func CheckPort(port string) error {
	switch {
	case len(port) > maxPortText:
		return fmt.Errorf("has %d bytes, want at most %d", len(port), maxPortText)
	case pciPattern.MatchString(port):
		return nil
	case shortPattern.MatchString(port):
		return fmt.Errorf("is %q, want it with its domain, 0000:%s", port, port)
	case unnumbered.MatchString(port):
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

// ownArguments are those of the EAL that another key of the configuration stands
// for.
var ownArguments = []struct{ names, instead string }{
	{"-l -c --lcores --main-lcore", "source.dpdk.lcores names the CPUs"},
	{"-m --socket-mem --no-huge --in-memory --single-file-segments", "source.dpdk.memory and huge_pages say what memory it has"},
	{"-a --allow --vdev --no-pci", "source.dpdk.port names the port"},
	{"--file-prefix --proc-type", "each manager is a process of its own"},
}

// ownArgument reports whether an EAL argument is one of those, and what to write
// instead.
func ownArgument(a string) (instead string, own bool) {
	name, _, _ := strings.Cut(a, "=")
	for _, o := range ownArguments {
		if slices.Contains(strings.Fields(o.names), name) {
			return o.instead, true
		}
	}
	// The short ones may have their value glued on: -l1,2.
	if len(name) > 2 && name[0] == '-' && name[1] != '-' {
		return ownArgument(name[:2])
	}
	return "", false
}
