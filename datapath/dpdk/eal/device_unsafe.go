//go:build dpdk

package eal

// #cgo noescape pst_send
// #cgo nocallback pst_send
// #include <stdlib.h>
// #include "shim.h"
import "C"

import (
	"errors"
	"fmt"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Info is what a driver reports about its port.
type Info struct {
	MAC [6]byte
	// PCI is true for a device on that bus, false for one made of software.
	PCI bool
	// Socket is the NUMA node, or -1 if there is none.
	Socket int

	driver string // as "net_af_packet"
	queues int    // the limit for receive queues, and for transmit queues
}

// Config of a port.
type Config struct {
	Queues      int // receive queues, and as many transmit queues
	Descriptors int // per queue, within the driver's limits
	MTU         int
	// Checksums asks the NIC to verify received checksums and to fill sent ones.
	Checksums bool
}

// Taken is the part of a Config that the driver accepted.
type Taken struct {
	MTU, RxDescriptors, TxDescriptors int
	// FillsChecksums: the NIC fills those of sent frames. RSS: it spreads flows over queues.
	FillsChecksums, RSS bool
}

// Counters are the driver's counts of lost frames, since the port was started.
type Counters struct {
	Missed uint64 // no descriptor was free: the poller was late
	NoMbuf uint64 // no mbuf was free
}

// Device is an Ethernet port that DPDK owns. Only one goroutine at a time may configure it.
//
//	OpenDevice ──> Configure ──> Start ──────────────> Close
//	                               │ ^                  ^
//	                         Leave v │ Return           │
//	                              absent ───────────────┘
type Device struct {
	id     C.uint16_t
	spec   string
	info   Info
	port   *C.struct_pst_port // shared with pollers and sinks, also while the device is absent
	pool   *Pool
	config Config
	taken  Taken
	// iface is the index of the kernel's interface that the device uses, 0 if there is none.
	// network is a socket in the network namespace in which the device was opened. Any thread
	// can query the namespace's interfaces through it.
	iface   uint32
	network int
	run     bool
	absent  bool // there is no device with that id now
}

// OpenDevice finds a NIC by its PCI address, which Options.Allow names, or makes a virtual
// device: "net_af_packet0,iface=veth1". It uses a device that exists already (a port of
// rings) as it is.
func OpenDevice(spec string) (*Device, error) {
	name, _, _ := strings.Cut(spec, ",")
	d := &Device{spec: spec, network: -1}
	if interfaceOf(spec) != "" {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return nil, fmt.Errorf("open a socket to ask for %s: %w", interfaceOf(spec), err)
		}
		d.network = fd
	}
	cname := C.CString(name)
	defer C.free(unsafe.Pointer(cname))
	err := error(nil)
	if C.pst_find(cname, &d.id) == 0 {
		err = d.readInfo()
	} else {
		err = d.attach()
	}
	if err != nil {
		d.closeNetwork()
		return nil, err
	}
	return d, nil
}

func (d *Device) closeNetwork() {
	if d.network >= 0 {
		unix.Close(d.network)
		d.network = -1
	}
}

// attach makes a virtual device, or takes a NIC.
func (d *Device) attach() error {
	name, _, _ := strings.Cut(d.spec, ",")
	cname, cspec := C.CString(name), C.CString(d.spec)
	defer C.free(unsafe.Pointer(cname))
	defer C.free(unsafe.Pointer(cspec))
	if err := code(C.pst_probe(cspec, cname, &d.id)); err != nil {
		return fmt.Errorf("attach %s: %w", d.spec, explainProbe(name, err))
	}
	d.absent = false
	return d.readInfo()
}

// errProbe replaces -1, with which DPDK reports any failure.
var errProbe = errors.New("DPDK could not attach it")

func explainProbe(name string, err error) error {
	if errors.Is(err, unix.EPERM) { // -1
		err = errProbe
	}
	switch {
	case !strings.HasPrefix(name, "net_"):
		return fmt.Errorf("%w: no such NIC, or the kernel's driver holds it; `penstock doctor` prints the command that binds it to vfio-pci", err)
	case unix.Geteuid() != 0:
		return fmt.Errorf("%w: run as root, or with CAP_NET_ADMIN and CAP_NET_RAW (DPDK's message is on stderr)", err)
	}
	return fmt.Errorf("%w: no such driver, or a wrong argument or interface (DPDK's message is on stderr)", err)
}

func (d *Device) readInfo() error {
	var i C.struct_pst_info
	if err := code(C.pst_info(d.id, &i)); err != nil {
		return fmt.Errorf("read capabilities of DPDK port %s: %w", d.spec, err)
	}
	d.iface = d.interfaceIndex()
	d.info = Info{
		driver: C.GoString(&i.driver[0]), PCI: i.pci != 0, Socket: int(i.socket), queues: int(min(i.max_rxq, i.max_txq, C.PST_QUEUES)),
	}
	for b := range d.info.MAC {
		d.info.MAC[b] = byte(i.mac[b])
	}
	return nil
}

// Info is what the driver reports.
func (d *Device) Info() Info { return d.info }

// Configure sets up the port with a pool for everything it receives. Call it once.
func (d *Device) Configure(c Config, pool *Pool) (Taken, error) {
	if err := d.configure(c, pool); err != nil {
		return Taken{}, err
	}
	if d.port = C.pst_port_new(); d.port == nil {
		return Taken{}, unix.ENOMEM
	}
	d.pool, d.config = pool, c
	d.port.base, d.port.bytes, d.port.pool, d.port.id = pool.base(), C.uint64_t(pool.memory.Size()), pool.handle(), d.id
	return d.taken, nil
}

func (d *Device) configure(c Config, pool *Pool) error {
	if c.Queues < 1 || c.Queues > d.info.queues {
		return fmt.Errorf("configure DPDK port %s: %d queues: driver %s has 1 to %d", d.spec, c.Queues, d.info.driver, d.info.queues)
	}
	cc := C.struct_pst_config{
		rxq: C.uint16_t(c.Queues), txq: C.uint16_t(c.Queues), rxd: C.uint16_t(c.Descriptors), txd: C.uint16_t(c.Descriptors),
		mtu: C.uint16_t(c.MTU), rss: 1,
	}
	if c.Checksums {
		cc.checksum_rx, cc.checksum_tx = 1, 1
	}
	if err := code(C.pst_configure(d.id, &cc, pool.handle())); err != nil {
		return fmt.Errorf("configure DPDK port %s (%s): %d queues of %d descriptors, MTU %d: %w", d.spec, d.info.driver, c.Queues, c.Descriptors, c.MTU, err)
	}
	d.taken = Taken{
		MTU: int(cc.mtu), RxDescriptors: int(cc.rxd), TxDescriptors: int(cc.txd),
		FillsChecksums: cc.checksum_tx != 0, RSS: cc.rss != 0,
	}
	return nil
}

// Start lets frames in. Queues need pollers, or they fill.
func (d *Device) Start() error {
	if err := code(C.pst_start(d.id, d.port)); err != nil {
		return fmt.Errorf("start DPDK port %s: %w", d.spec, err)
	}
	d.run = true
	return nil
}

// Close stops and releases the port. Its pollers must be stopped, and its sinks closed. Mbufs
// that were handed over stay with their owners.
func (d *Device) Close() (err error) {
	if d.run {
		err = code(C.pst_stop(d.id, d.port))
	}
	if !d.absent {
		err = errors.Join(err, code(C.pst_remove(d.id)))
	}
	d.closeNetwork()
	C.pst_release(unsafe.Pointer(d.port))
	d.port = nil
	if err != nil {
		return fmt.Errorf("close DPDK port %s: %w", d.spec, err)
	}
	return nil
}

// Leave releases a device that has disappeared, so that it can Return. Its pollers must be
// stopped, and no goroutine may send. Errors of its driver no longer matter.
func (d *Device) Leave() error {
	if d.run {
		C.pst_stop(d.id, d.port)
		d.run = false
	}
	if err := code(C.pst_remove(d.id)); err != nil && !errors.Is(err, unix.ENODEV) { // ENODEV: already gone
		return fmt.Errorf("release DPDK port %s: %w", d.spec, err)
	}
	d.absent = true
	return nil
}

// Return makes or takes a device again after Leave, and configures it as before. Pollers may
// start then. Its rules are lost.
func (d *Device) Return() (Taken, error) {
	err := d.attach()
	if err == nil {
		err = d.configure(d.config, d.pool)
	}
	if err == nil {
		d.port.id = d.id
		storeWord(&d.port.removed, 0)
		err = d.Start()
	}
	if err != nil && !d.absent {
		err = errors.Join(err, d.Leave())
	}
	if err != nil {
		return Taken{}, err
	}
	return d.taken, nil
}

// Absent reports whether Leave was called, and Return has not succeeded since.
func (d *Device) Absent() bool { return d.absent }

// Counters reads the driver's counters.
func (d *Device) Counters() (Counters, error) {
	if d.absent {
		return Counters{}, nil
	}
	var missed, noMbuf C.uint64_t
	if err := code(C.pst_lost(d.id, &missed, &noMbuf)); err != nil {
		return Counters{}, fmt.Errorf("read counters of DPDK port %s: %w", d.spec, err)
	}
	return Counters{uint64(missed), uint64(noMbuf)}, nil
}

// Link reports whether the link is up, and its speed if the driver knows it.
func (d *Device) Link() (up bool, mbps int) {
	if d.absent {
		return false, 0
	}
	var speed C.uint32_t
	up = C.pst_link(d.id, &speed) == 1
	return up, int(speed)
}

// Removed reports whether the device reported its removal (hot unplug).
func (d *Device) Removed() bool { return loadWord(&d.port.removed) != 0 }

// Rules steer a UDP destination port to a queue.
type Rules []unsafe.Pointer

// Steer makes a NIC put IPv4 and IPv6 datagrams for a UDP port into a queue (rte_flow). If
// the driver cannot, the error says why, and nothing has changed.
func (d *Device) Steer(udpPort uint16, queue int) (Rules, error) {
	var rules Rules
	why := (*C.char)(C.malloc(256))
	defer C.free(unsafe.Pointer(why))
	for v6 := range 2 {
		rule := C.pst_flow(d.id, C.int(v6), C.uint16_t(udpPort), C.uint16_t(queue), why, 256)
		if rule == nil {
			err := fmt.Errorf("steer UDP port %d of DPDK port %s to queue %d: %s", udpPort, d.spec, queue, C.GoString(why))
			return nil, errors.Join(err, d.Unsteer(rules))
		}
		rules = append(rules, rule)
	}
	return rules, nil
}

// Unsteer removes rules.
func (d *Device) Unsteer(rules Rules) (err error) {
	for _, rule := range rules {
		if e := code(C.pst_flow_destroy(d.id, rule)); e != nil {
			err = errors.Join(err, fmt.Errorf("remove a rule of DPDK port %s: %w", d.spec, e))
		}
	}
	return err
}

// Offload says what the NIC fills in a sent frame: the UDP checksum, and IPv4's; 0 for
// nothing.
type Offload uint32

// FillChecksums returns such an offload, for headers of these lengths in bytes.
func FillChecksums(ether, ip int, v6 bool) Offload {
	o := Offload(ether | ip<<8)
	if v6 {
		o |= 1 << 24
	}
	return o
}

// Send sends frames in mbufs of the pool, at most Burst: mbufs holds their offsets, lengths
// their sizes. It frees those that it cannot send within a millisecond, from sent on. Only
// one goroutine at a time may use a queue.
func (d *Device) Send(queue int, mbufs []uint64, lengths []uint32, offloads []Offload) (sent int) {
	if len(mbufs) == 0 {
		return 0
	}
	if d.absent {
		d.pool.Free(mbufs)
		return 0
	}
	_, _ = lengths[len(mbufs)-1], offloads[len(mbufs)-1]
	return int(C.pst_send(d.id, C.uint16_t(queue), d.port.base, (*C.uint64_t)(&mbufs[0]), (*C.uint32_t)(&lengths[0]),
		(*C.uint32_t)(&offloads[0]), C.uint32_t(len(mbufs))))
}

// interfaceOf returns the kernel's interface that a virtual device uses (iface=…), empty if
// it has none.
func interfaceOf(spec string) string {
	for _, arg := range strings.Split(spec, ",")[1:] {
		if name, ok := strings.CutPrefix(arg, "iface="); ok {
			return name
		}
	}
	return ""
}

// interfaceIndex returns the index of that interface, 0 if there is none.
func (d *Device) interfaceIndex() uint32 {
	r, err := unix.NewIfreq(interfaceOf(d.spec))
	if err != nil || unix.IoctlIfreq(d.network, unix.SIOCGIFINDEX, r) != nil {
		return 0
	}
	return r.Uint32()
}

// InterfaceThere reports whether the kernel's interface that the device uses still exists and
// is the same one. It returns true if the device uses none.
func (d *Device) InterfaceThere() bool {
	return interfaceOf(d.spec) == "" || d.iface != 0 && d.interfaceIndex() == d.iface
}

// InterfaceMade reports whether the interface for an absent device exists, or its driver
// makes it.
func (d *Device) InterfaceMade() bool {
	return interfaceOf(d.spec) == "" || strings.HasPrefix(d.spec, "net_tap") || d.interfaceIndex() != 0
}
