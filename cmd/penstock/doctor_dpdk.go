package main

import (
	"bytes"
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/penstock/penstock/configs"

	"github.com/penstock/penstock/shm/cpuset"
)

// dpdkMachine is the machine that the doctor examines for DPDK: its kernel's files
// below root, "/" but in tests, and the version of DPDK in this build, empty
// where there is none.
type dpdkMachine struct {
	root    string
	version string
}

// dpdkWish is what the configuration wants of DPDK.
type dpdkWish struct {
	configured bool
	port       string // PCI address, or a virtual device's name and arguments
	lcores     []int
	huge       bool
	memoryMiB  int
	mtu        int
}

// pciAddress is a PCI device's as DPDK and sysfs write it.
var pciAddress = regexp.MustCompile(`^[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]$`)

// physical reports whether the port wished for is a PCI device.
func (w dpdkWish) physical() bool {
	name, _, _ := strings.Cut(w.port, ",")
	return pciAddress.MatchString(name)
}

// examineDPDK says whether packets can come from DPDK here: the build, memory, IOMMU,
// ports, cores. It reads, and changes nothing.
func examineDPDK(m dpdkMachine, w dpdkWish) []finding {
	list := []finding{m.build(w), m.hugePages(w), m.iommu(w)}
	switch {
	case w.configured && !w.physical():
		list = append(list, m.virtual(w))
	default:
		list = append(list, m.cards(w)...)
	}
	return append(list, m.numa(w), m.cores(w), m.memlock(w))
}

// The command that gets DPDK on Debian and Ubuntu.
const getDPDK = "apt-get install libdpdk-dev pkg-config && make build-dpdk"

func (m dpdkMachine) build(w dpdkWish) finding {
	f := finding{what: "dpdk", ok: m.version != ""}
	switch {
	case f.ok && w.configured:
		f.say = m.version + "; packets come from " + w.port
	case f.ok:
		f.say = m.version + "; packets come from kernel sockets, as configured"
	case w.configured:
		f.fatal = true
		f.say, f.mend = fmt.Sprintf("the configuration wants %s, and this is built without DPDK", w.port), getDPDK
	default:
		f.say, f.mend = "built without; packets come from kernel sockets", getDPDK
	}
	return f
}

// hugePages counts what is free, by size. A hugetlbfs need not be mounted: packet memory
// has no file (--in-memory).
func (m dpdkMachine) hugePages(w dpdkWish) finding {
	f := finding{what: "dpdk huge pages"}
	wantedMiB := cmp.Or(w.memoryMiB, 256)
	freeMiB := 0
	var sizes []string
	for _, size := range []struct {
		name string
		mib  int
	}{{"1048576kB", 1024}, {"2048kB", 2}} {
		n, err := m.number("/sys/kernel/mm/hugepages/hugepages-" + size.name + "/free_hugepages")
		if err != nil || n == 0 {
			continue
		}
		freeMiB += n * size.mib
		sizes = append(sizes, fmt.Sprintf("%d of %d MiB", n, size.mib))
	}
	switch {
	case w.configured && !w.huge:
		f.ok, f.say = true, fmt.Sprintf("not asked for: %d MiB of ordinary pages", wantedMiB)
	case freeMiB < wantedMiB:
		f.fatal = w.configured
		f.say = fmt.Sprintf("free: %s; want %d MiB", cmp.Or(strings.Join(sizes, ", "), "none"), wantedMiB)
		// Beside those that somebody has.
		had, _ := m.number("/proc/sys/vm/nr_hugepages")
		f.mend = fmt.Sprintf("sysctl vm.nr_hugepages=%d", had+(wantedMiB-freeMiB+1)/2)
	default:
		f.ok, f.say = true, "free: "+strings.Join(sizes, ", ")
	}
	return f
}

// iommu looks for what lets a process without the kernel's help own a card: groups of
// an IOMMU and vfio-pci, or vfio-pci told to do without.
func (m dpdkMachine) iommu(w dpdkWish) finding {
	f := finding{what: "iommu, vfio"}
	if w.configured && !w.physical() {
		f.ok, f.say = true, "not needed: "+w.port+" is no PCI device"
		return f
	}
	f.fatal = w.configured && !m.bifurcated(w.port)
	groups, _ := os.ReadDir(m.path("/sys/kernel/iommu_groups"))
	_, err := os.Stat(m.path("/sys/bus/pci/drivers/vfio-pci"))
	loaded := err == nil
	unsafe, _ := m.text("/sys/module/vfio/parameters/enable_unsafe_noiommu_mode")
	switch {
	case len(groups) > 0 && loaded:
		f.ok, f.say = true, fmt.Sprintf("%d groups, vfio-pci loaded", len(groups))
	case len(groups) > 0:
		f.say, f.mend = fmt.Sprintf("%d groups, but vfio-pci is not loaded", len(groups)), "modprobe vfio-pci"
	case loaded && unsafe == "Y":
		f.ok, f.say = true, "no IOMMU; vfio-pci does without, and a card can write anywhere in memory"
	default:
		f.say = "no IOMMU: only cards that share with their kernel driver (mlx5), and virtual ports, can be used"
		if cpu, _ := m.text("/proc/cpuinfo"); strings.Contains(cpu, "GenuineIntel") {
			f.mend = "switch VT-d on in the firmware, add intel_iommu=on iommu=pt to the kernel's command line, and start again"
		} else {
			f.mend = "switch the IOMMU on in the firmware, add iommu=pt to the kernel's command line, and start again"
		}
		f.mend += "; in a virtual machine that nobody else uses: modprobe vfio enable_unsafe_noiommu_mode=1 && modprobe vfio-pci"
	}
	return f
}

// Kernel drivers beside which DPDK works on the same card (doc/guides/nics/mlx5.rst),
// and those that hand a card over whole (doc/guides/linux_gsg/linux_drivers.rst).
var (
	sharedDrivers = []string{"mlx4_core", "mlx5_core"}
	handedOver    = []string{"vfio-pci", "uio_pci_generic", "igb_uio", "uio_hv_generic"}
)

func (m dpdkMachine) bifurcated(port string) bool {
	address, _, _ := strings.Cut(port, ",")
	return slices.Contains(sharedDrivers, m.link("/sys/bus/pci/devices/"+address+"/driver"))
}

// cards examines the card that is configured, or every network card of the machine.
func (m dpdkMachine) cards(w dpdkWish) []finding {
	const devices = "/sys/bus/pci/devices"
	if w.configured {
		address, _, _ := strings.Cut(w.port, ",")
		return []finding{m.card(strings.ToLower(address), true)}
	}
	var list []finding
	entries, _ := os.ReadDir(m.path(devices))
	for _, e := range entries {
		if class, _ := m.text(devices + "/" + e.Name() + "/class"); strings.HasPrefix(class, ethernetClass) {
			list = append(list, m.card(e.Name(), false))
		}
	}
	if len(list) == 0 {
		list = append(list, finding{what: "network cards", say: "none on PCI; DPDK has virtual ports (docs/dpdk.md)"})
	}
	return list
}

// ethernetClass begins the class of a PCI device that is an Ethernet controller,
// gpuClass that of a display or 3D controller, nvidiaVendor is NVIDIA (PCI ID
// assignment, base classes 02h and 03h).
const (
	ethernetClass = "0x0200"
	gpuClass      = "0x03"
	nvidiaVendor  = "0x10de"
)

// card says which driver holds a network card, and how DPDK gets it.
func (m dpdkMachine) card(address string, wanted bool) finding {
	f := finding{what: "nic " + address}
	dir := "/sys/bus/pci/devices/" + address
	class, err := m.text(dir + "/class")
	if err != nil {
		f.fatal = wanted
		f.say, f.mend = "there is no such PCI device", "lspci -D -d ::0200   # the network cards that there are"
		return f
	}
	if !strings.HasPrefix(class, ethernetClass) {
		f.fatal = wanted
		f.say, f.mend = fmt.Sprintf("no network card, but a PCI device of class %s", class), "lspci -D -d ::0200   # the network cards that there are"
		return f
	}
	driver := m.link(dir + "/driver")
	names := m.interfaces(dir)
	bind := fmt.Sprintf("modprobe vfio-pci && echo vfio-pci > %[1]s/driver_override", dir)
	if driver != "" {
		bind += fmt.Sprintf(" && echo %s > %s/driver/unbind", address, dir)
	}
	bind += fmt.Sprintf(" && echo %s > /sys/bus/pci/drivers_probe", address)
	switch {
	case slices.Contains(sharedDrivers, driver):
		f.ok, f.say = true, fmt.Sprintf("%s, which DPDK works beside", driver)
	case slices.Contains(handedOver, driver):
		f.ok, f.say = true, driver
		if others := m.groupHolders(dir, address); driver == "vfio-pci" && len(others) > 0 {
			f.ok, f.fatal = false, wanted
			f.say = fmt.Sprintf("vfio-pci, but its IOMMU group is not free: %s", strings.Join(others, ", "))
			f.mend = "bind those to vfio-pci too, or put the card into another slot"
		}
	case driver == "":
		f.fatal = wanted
		f.say, f.mend = "no driver holds it", bind
	default:
		f.fatal = wanted
		f.say = "held by the kernel's " + driver
		if len(names) > 0 {
			f.say += " as " + strings.Join(names, ", ")
		}
		if route := m.defaultRoute(); slices.Contains(names, route) {
			f.say += ", which carries the default route: DPDK would take this machine off its network"
			f.mend = "another card for DPDK, or a virtual port on this one: net_af_packet0,iface=" + route
			return f
		}
		f.mend = bind
	}
	return f
}

// interfaces are a card's network interfaces; virtio has a bus between.
func (m dpdkMachine) interfaces(dir string) (names []string) {
	for _, pattern := range []string{"/net/*", "/virtio*/net/*"} {
		found, _ := filepath.Glob(m.path(dir) + pattern)
		for _, path := range found {
			names = append(names, filepath.Base(path))
		}
	}
	return names
}

// groupHolders are the other devices of a card's IOMMU group that a kernel driver
// holds; bridges may.
func (m dpdkMachine) groupHolders(dir, address string) (others []string) {
	const bridgeClass = "0x0604"
	entries, _ := os.ReadDir(m.path(dir + "/iommu_group/devices"))
	for _, e := range entries {
		other := "/sys/bus/pci/devices/" + e.Name()
		driver := m.link(other + "/driver")
		class, _ := m.text(other + "/class")
		if e.Name() == address || driver == "" || slices.Contains(handedOver, driver) || strings.HasPrefix(class, bridgeClass) {
			continue
		}
		others = append(others, e.Name()+" held by "+driver)
	}
	return others
}

// defaultRoute is the interface of the IPv4 default route, empty where there is none.
func (m dpdkMachine) defaultRoute() string {
	text, _ := m.text("/proc/net/route")
	for line := range strings.Lines(text) {
		if fields := strings.Fields(line); len(fields) > 1 && fields[1] == "00000000" {
			return fields[0]
		}
	}
	return ""
}

// virtual examines what a virtual port stands on.
func (m dpdkMachine) virtual(w dpdkWish) finding {
	name, arguments, _ := strings.Cut(w.port, ",")
	f := finding{what: "port " + name, ok: true, say: "virtual"}
	iface := ""
	for argument := range strings.SplitSeq(arguments, ",") {
		if value, found := strings.CutPrefix(argument, "iface="); found {
			iface = value
		}
	}
	switch {
	case strings.HasPrefix(name, "net_tap"):
		if _, err := os.Stat(m.path("/dev/net/tun")); err != nil {
			return finding{what: f.what, fatal: true, say: "there is no /dev/net/tun", mend: "modprobe tun"}
		}
		f.say = "makes the interface " + cmp.Or(iface, "dtap0")
	case strings.HasPrefix(name, "net_af_packet"), strings.HasPrefix(name, "net_af_xdp"):
		if iface == "" {
			return finding{what: f.what, fatal: true, say: w.port + " names no interface", mend: name + ",iface=NAME"}
		}
		state, err := m.text("/sys/class/net/" + iface + "/operstate")
		if err != nil {
			return finding{what: f.what, fatal: true, say: "there is no interface " + iface, mend: "ip -brief link   # the interfaces that there are"}
		}
		f.say = fmt.Sprintf("on %s, %s", iface, state)
		if state == "down" {
			f.ok, f.mend = false, "ip link set "+iface+" up"
		}
		most := cmp.Or(w.mtu, 1500)
		if mtu, err := m.number("/sys/class/net/" + iface + "/mtu"); err == nil && mtu > most {
			f.ok = false
			f.say += fmt.Sprintf(", MTU %d: packets beyond %d bytes do not fit the port's buffers", mtu, most)
			f.mend = fmt.Sprintf("source.dpdk.mtu: %d, or ip link set %s mtu %d", mtu, iface, most)
		}
	}
	return f
}

// numa compares where card, cores and GPUs sit.
func (m dpdkMachine) numa(w dpdkWish) finding {
	f := finding{what: "numa", ok: true}
	online, err := m.list("/sys/devices/system/node/online")
	if err != nil || len(online) < 2 {
		f.say = "one node: card, cores and GPU are near each other"
		return f
	}
	var parts []string
	card := -1
	if w.physical() {
		address, _, _ := strings.Cut(w.port, ",")
		card = m.node(address)
		parts = append(parts, fmt.Sprintf("card on node %s", nodeName(card)))
	}
	gpus := map[int]bool{}
	entries, _ := os.ReadDir(m.path("/sys/bus/pci/devices"))
	for _, e := range entries {
		dir := "/sys/bus/pci/devices/" + e.Name()
		vendor, _ := m.text(dir + "/vendor")
		class, _ := m.text(dir + "/class")
		if vendor == nvidiaVendor && strings.HasPrefix(class, gpuClass) {
			n := m.node(e.Name())
			gpus[n] = true
			parts = append(parts, fmt.Sprintf("GPU %s on node %s", e.Name(), nodeName(n)))
		}
	}
	far := false
	for _, core := range w.lcores {
		n := m.nodeOf(core, online)
		parts = append(parts, fmt.Sprintf("core %d on node %s", core, nodeName(n)))
		far = far || card >= 0 && n != card
	}
	f.say = fmt.Sprintf("%d nodes", len(online))
	if len(parts) > 0 {
		f.say += ": " + strings.Join(parts, ", ")
	}
	if far {
		cpus, _ := m.text(fmt.Sprintf("/sys/devices/system/node/node%d/cpulist", card))
		f.ok, f.mend = false, fmt.Sprintf("source.dpdk.lcores: of %s, the card's node", cpus)
	}
	if card >= 0 && len(gpus) > 0 && !gpus[card] {
		f.ok = false
		f.say += "; every packet crosses from the card's node to the GPU's"
		f.mend = cmp.Or(f.mend, "put card and GPU into slots of one node")
	}
	return f
}

// nodeName writes a node, or that the kernel knows none.
func nodeName(n int) string {
	if n < 0 {
		return "unknown"
	}
	return strconv.Itoa(n)
}

// node is a PCI device's, -1 where the kernel knows none.
func (m dpdkMachine) node(address string) int {
	n, err := m.number("/sys/bus/pci/devices/" + strings.ToLower(address) + "/numa_node")
	if err != nil {
		return -1
	}
	return n
}

// nodeOf is a core's.
func (m dpdkMachine) nodeOf(core int, nodes []int) int {
	for _, n := range nodes {
		cpus, _ := m.list(fmt.Sprintf("/sys/devices/system/node/node%d/cpulist", n))
		if slices.Contains(cpus, core) {
			return n
		}
	}
	return -1
}

// cores looks whether the cores that poll have nothing else to do.
func (m dpdkMachine) cores(w dpdkWish) finding {
	f := finding{what: "isolated cores"}
	isolated, _ := m.list("/sys/devices/system/cpu/isolated")
	online, _ := m.list("/sys/devices/system/cpu/online")
	wanted := w.lcores
	if len(wanted) == 0 {
		if f.ok = len(isolated) > 0; f.ok {
			f.say = fmt.Sprint(isolated)
			return f
		}
		f.say = "none: a polling core is shared with whatever else runs, and loses packets meanwhile"
		if len(online) > 1 {
			last := online[len(online)-1]
			f.mend = isolate([]int{last})
		}
		return f
	}
	var missing, shared []int
	for _, core := range wanted {
		switch {
		case !slices.Contains(online, core):
			missing = append(missing, core)
		case !slices.Contains(isolated, core):
			shared = append(shared, core)
		}
	}
	switch {
	case len(missing) > 0:
		f.fatal = true
		f.say = fmt.Sprintf("source.dpdk.lcores names %v, and the cores are %v", missing, online)
		f.mend = "source.dpdk.lcores: of those"
	case len(shared) > 0:
		f.say = fmt.Sprintf("%v are shared with whatever else runs", shared)
		f.mend = isolate(shared)
	default:
		f.ok, f.say = true, fmt.Sprintf("%v, all isolated", wanted)
	}
	return f
}

// isolate is what keeps cores free (the kernel's Documentation/admin-guide/
// kernel-parameters.txt).
func isolate(cores []int) string {
	return fmt.Sprintf("add isolcpus=%[1]s nohz_full=%[1]s rcu_nocbs=%[1]s to the kernel's command line, and start again", cpuset.Format(cores))
}

// capIPCLock is CAP_IPC_LOCK's bit in CapEff (linux/capability.h).
const capIPCLock = 14

// memlock compares the limit on locked memory with what vfio and CUDA pin.
func (m dpdkMachine) memlock(w dpdkWish) finding {
	f := finding{what: "memlock"}
	status, _ := m.text("/proc/self/status")
	for line := range strings.Lines(status) {
		if value, found := strings.CutPrefix(line, "CapEff:"); found {
			caps, err := strconv.ParseUint(strings.TrimSpace(value), 16, 64)
			if f.ok = err == nil && caps>>capIPCLock&1 == 1; f.ok {
				f.say = "no limit here (CAP_IPC_LOCK)"
				return f
			}
		}
	}
	wanted := uint64(cmp.Or(w.memoryMiB, 256)) << 20
	limits, err := m.text("/proc/self/limits")
	if err != nil {
		f.say = err.Error()
		return f
	}
	for line := range strings.Lines(limits) {
		value, found := strings.CutPrefix(line, "Max locked memory")
		if fields := strings.Fields(value); found && len(fields) > 0 {
			limit, err := strconv.ParseUint(fields[0], 10, 64)
			if f.ok = fields[0] == "unlimited" || err == nil && limit >= wanted; f.ok {
				f.say = "no limit"
				if err == nil {
					f.say = fmt.Sprintf("%d MiB", limit>>20)
				}
				return f
			}
			f.say = fmt.Sprintf("%d MiB of %d: vfio and CUDA cannot pin the packet memory", limit>>20, wanted>>20)
			f.mend = "ulimit -l unlimited   # in a systemd unit: LimitMEMLOCK=infinity"
		}
	}
	return f
}

func (m dpdkMachine) path(name string) string { return filepath.Join(m.root, name) }

// text is a file's, without the space around it.
func (m dpdkMachine) text(name string) (string, error) {
	text, err := os.ReadFile(m.path(name))
	return string(bytes.TrimSpace(text)), err
}

func (m dpdkMachine) number(name string) (int, error) {
	text, err := m.text(name)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(text)
}

// list reads the kernel's lists of numbers, such as 0-3,8.
func (m dpdkMachine) list(name string) ([]int, error) {
	text, err := m.text(name)
	if err != nil || text == "" {
		return nil, err
	}
	list, err := cpuset.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	return list, nil
}

// link is the last part of where a link points, empty where there is none.
func (m dpdkMachine) link(name string) string {
	target, err := os.Readlink(m.path(name))
	if err != nil {
		return ""
	}
	return filepath.Base(target)
}

// dpdkWishOf is what a configuration wants of DPDK.
func dpdkWishOf(c configs.Config) dpdkWish {
	d := c.Source.DPDK
	if d == nil {
		return dpdkWish{}
	}
	return dpdkWish{configured: true, port: d.Port, lcores: d.LCores, huge: d.HugePages, memoryMiB: int(d.Memory >> 20), mtu: d.MTU}
}
