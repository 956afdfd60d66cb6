package check

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// pciAddress is the address of a PCI device as DPDK and sysfs write it.
var pciAddress = regexp.MustCompile(`^[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]$`)

// Classes of PCI devices (PCI ID assignment, base classes 02h and 06h).
const (
	ethernetClass = "0x0200"
	bridgeClass   = "0x0604"
)

// Kernel drivers that DPDK shares a card with (doc/guides/nics/mlx5.rst), and those that give
// it a whole card (doc/guides/linux_gsg/linux_drivers.rst).
var (
	sharedDrivers  = []string{"mlx4_core", "mlx5_core"}
	handingDrivers = []string{"vfio-pci", "uio_pci_generic", "igb_uio", "uio_hv_generic"}
)

// portName is a port without its arguments.
func portName(port string) string {
	name, _, _ := strings.Cut(port, ",")
	return name
}

func isPCI(port string) bool { return pciAddress.MatchString(portName(port)) }

const pciDevices = "/sys/bus/pci/devices"

func pciFile(address, name string) string {
	return filepath.Join(pciDevices, strings.ToLower(address), name)
}

func (m *machine) driver(address string) string { return m.files.link(pciFile(address, "driver")) }

// dpdkPorts has one finding: the port that is configured. If none is, it has one per network card.
func dpdkPorts(_ context.Context, m *machine) (list []Finding) {
	d, configured := m.dpdk()
	switch {
	case configured && isPCI(d.Port):
		address := strings.ToLower(portName(d.Port))
		return []Finding{m.networkCard(address).fatalIf(true).about("nic " + address)}
	case configured:
		return []Finding{m.virtualPort(d.Port, cmp.Or(d.MTU, 1500)).about("port " + portName(d.Port))}
	}
	for _, address := range m.files.names(pciDevices) {
		if class, _ := m.files.text(pciFile(address, "class")); strings.HasPrefix(class, ethernetClass) {
			list = append(list, m.networkCard(address).about("nic "+address))
		}
	}
	if len(list) == 0 {
		list = append(list, fail("none on PCI; DPDK can use virtual ports (docs/networking.md)", "").about("network cards"))
	}
	return list
}

// networkCard says which driver holds a card, and how DPDK gets the card.
func (m *machine) networkCard(address string) Finding {
	const listCards = "lspci -D -d ::0200   # lists the network cards"
	class, err := m.files.text(pciFile(address, "class"))
	switch {
	case err != nil:
		return fail("no such PCI device", listCards)
	case !strings.HasPrefix(class, ethernetClass):
		return fail(fmt.Sprintf("not a network card: a PCI device of class %s", class), listCards)
	}

	driver := m.driver(address)
	switch {
	case slices.Contains(sharedDrivers, driver):
		return pass(driver + ", which DPDK can share")
	case slices.Contains(handingDrivers, driver):
		if held := m.heldInGroup(address); driver == "vfio-pci" && len(held) > 0 {
			return fail("vfio-pci, but kernel drivers hold other devices of its IOMMU group: "+strings.Join(held, ", "),
				"bind them to vfio-pci too, or put the card into another slot")
		}
		return pass(driver)
	case driver == "":
		return fail("bound to no driver", bindCommand(address, driver))
	}

	text := "bound to the kernel's driver " + driver
	interfaces := m.interfaces(address)
	if len(interfaces) > 0 {
		text += " as " + strings.Join(interfaces, ", ")
	}
	if route := m.defaultRoute(); slices.Contains(interfaces, route) {
		return fail(text+", which has the default route: DPDK would cut this machine off its network",
			"configure another card, or a virtual port on this one: net_af_packet0,iface="+route)
	}
	return fail(text, bindCommand(address, driver))
}

// bindCommand gives a card to vfio-pci.
func bindCommand(address, driver string) string {
	command := "modprobe vfio-pci && echo vfio-pci > " + pciFile(address, "driver_override")
	if driver != "" {
		command += fmt.Sprintf(" && echo %s > %s", address, pciFile(address, "driver/unbind"))
	}
	return command + fmt.Sprintf(" && echo %s > /sys/bus/pci/drivers_probe", address)
}

// interfaces are the network interfaces of a card. Between a virtio card and its interface is
// a bus.
func (m *machine) interfaces(address string) (names []string) {
	for _, pattern := range []string{"net/*", "virtio*/net/*"} {
		paths, _ := filepath.Glob(m.files.path(pciFile(address, pattern))) // the patterns are valid
		for _, path := range paths {
			names = append(names, filepath.Base(path))
		}
	}
	return names
}

// heldInGroup are the other devices of a card's IOMMU group that kernel drivers hold. Bridges
// may be held.
func (m *machine) heldInGroup(address string) (held []string) {
	for _, other := range m.files.names(pciFile(address, "iommu_group/devices")) {
		driver := m.driver(other)
		class, _ := m.files.text(pciFile(other, "class"))
		if other == address || driver == "" || slices.Contains(handingDrivers, driver) || strings.HasPrefix(class, bridgeClass) {
			continue
		}
		held = append(held, other+" bound to "+driver)
	}
	return held
}

// defaultRoute is the interface of the IPv4 default route, empty if there is none.
func (m *machine) defaultRoute() string {
	table, _ := m.files.text("/proc/net/route")
	for line := range strings.Lines(table) {
		if fields := strings.Fields(line); len(fields) > 1 && fields[1] == "00000000" {
			return fields[0]
		}
	}
	return ""
}

// virtualPort checks the interface that a virtual port uses.
func (m *machine) virtualPort(port string, mtu int) Finding {
	name, arguments, _ := strings.Cut(port, ",")
	iface := ""
	for argument := range strings.SplitSeq(arguments, ",") {
		if value, found := strings.CutPrefix(argument, "iface="); found {
			iface = value
		}
	}
	switch {
	case strings.HasPrefix(name, "net_tap"):
		if !m.files.exists("/dev/net/tun") {
			return fail("no /dev/net/tun", "modprobe tun").fatalIf(true)
		}
		return pass("makes the interface " + cmp.Or(iface, "dtap0"))
	case !strings.HasPrefix(name, "net_af_packet") && !strings.HasPrefix(name, "net_af_xdp"):
		return pass("virtual")
	case iface == "":
		return fail(port+" has no iface=", name+",iface=NAME").fatalIf(true)
	}

	dir := "/sys/class/net/" + iface
	state, err := m.files.text(dir + "/operstate")
	if err != nil {
		return fail("no such interface: "+iface, "ip -brief link   # lists the interfaces").fatalIf(true)
	}
	f := pass(fmt.Sprintf("on %s, %s", iface, state))
	if state == "down" {
		f.OK, f.Fix = false, "ip link set "+iface+" up"
	}
	if n, err := m.files.number(dir + "/mtu"); err == nil && n > mtu {
		f.OK = false
		f.Text += fmt.Sprintf(", MTU %d: packets above %d bytes do not fit the port's buffers", n, mtu)
		f.Fix = fmt.Sprintf("source.dpdk.mtu: %d, or ip link set %s mtu %d", n, iface, mtu)
	}
	return f
}
