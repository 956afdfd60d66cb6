//go:build dpdk && cgo

package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/penstock/penstock/datapath/dpdk/eal"
	"github.com/penstock/penstock/datapath/ingest"
	"github.com/penstock/penstock/datapath/udp"
	"github.com/penstock/penstock/research/generate"
)

// portKind is a kind of port and its sender.
type portKind struct {
	name, device, sender string
	// bridged ports create their own interface, and a bridge connects it to the cable.
	bridged string
}

const (
	kernelSender = "a kernel UDP socket across veth, UDP_SEGMENT cut before the cable"
	trainSender  = "a kernel UDP socket across veth, UDP_SEGMENT trains whole (UDP_GRO)"
	memifFeed    = "DPDK in the same process, bursts of 64"
)

var portKinds = []portKind{
	{name: "udp", sender: trainSender},
	{name: "udp, cut", sender: kernelSender},
	{name: "af_packet", device: "net_af_packet0,iface=node0", sender: kernelSender},
	{name: "tap", device: "net_tap0,iface=dtap0", sender: kernelSender, bridged: "dtap0"},
	{name: "af_xdp", device: "net_af_xdp0,iface=node0", sender: kernelSender},
	{name: "memif", sender: memifFeed},
}

const portFragments, portFragmentBytes = 147, 1024

// measurePorts measures every kind in its own network namespaces, which it removes at
// the end. The report records what the machine lacks.
func measurePorts(ctx context.Context, o DPDKOptions) (list []PortIngest, err error) {
	camera, node, err := newNetworks()
	if err != nil {
		return nil, err
	}
	defer camera.close()
	defer node.close()
	for _, k := range portKinds {
		if err := ctx.Err(); err != nil {
			return list, err
		}
		o.report("port " + k.name)
		p, err := k.measure(camera, node, o.Each)
		p.Port, p.Sender = k.name, k.sender
		if err != nil {
			p.Lacks = err.Error()
		}
		list = append(list, p)
	}
	return list, nil
}

func (k portKind) measure(camera, node *network, each time.Duration) (p PortIngest, err error) {
	if k.name == "memif" {
		return measureMemif(each)
	}
	if err := layCable(camera, node, k); err != nil {
		return p, err
	}
	defer camera.run("ip", "link", "del", "cam0")
	var src ingest.Source
	var stop func() error
	node.do(func() { src, stop, err = k.open(node) })
	if err != nil {
		return p, err
	}
	defer func() { err = errors.Join(err, stop()) }()
	if k.bridged != "" {
		if err := bridge(node, k.bridged); err != nil {
			return p, err
		}
		defer node.run("ip", "link", "del", "br0")
	}
	var s *ingestSender
	camera.do(func() { s, err = newIngestSender(dpdkTo, portFragments, portFragmentBytes) })
	if err != nil {
		return p, err
	}
	return receiveFrom(src, &socketSender{s: s}, each)
}

// open opens the source in the node's network.
func (k portKind) open(node *network) (ingest.Source, func() error, error) {
	if k.device == "" {
		if err := run("ip", "addr", "add", dpdkTo.Addr().String()+"/24", "dev", "node0"); err != nil {
			return nil, nil, err
		}
		all, err := udp.Open(udp.Options{Listen: dpdkTo, SlabBytes: 64 << 20, RecvBuffer: receiveBuffer, HugePages: true}, 1)
		if err != nil {
			return nil, nil, err
		}
		s := all[0]
		return s, func() error { return errors.Join(s.Close(), s.CloseSlab()) }, nil
	}
	group, s, err := openPort(k.device, manyMbufs)
	if err != nil {
		return nil, nil, err
	}
	return s, func() error { return errors.Join(s.Close(), s.CloseSlab(), group.Close()) }, nil
}

// sender sends requests from its own thread until stop. The receiver reports what has
// arrived.
type sender interface {
	start() (stop func())
	sent() uint64 // datagrams
	came(n uint64)
}

// receiveFrom measures a source that a sender feeds.
func receiveFrom(src ingest.Source, s sender, each time.Duration) (p PortIngest, err error) {
	end, err := newIngestEnd(src, portFragments, portFragmentBytes, time.Second, 100*time.Millisecond)
	if err != nil {
		return p, err
	}
	defer end.table.Close()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	stop := s.start()
	defer stop()
	loop := func(length time.Duration) error {
		for until := time.Now().Add(length); time.Now().Before(until); {
			n, err := end.receive(10 * time.Millisecond)
			if err != nil {
				return err
			}
			s.came(uint64(n))
		}
		return nil
	}
	if err := loop(each / 4); err != nil { // warm up memory, and let the neighbours find each other
		return p, err
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	sent, fragments, began := s.sent(), end.aggregate.Stats().Fragments, time.Now()
	if err := loop(each); err != nil {
		return p, err
	}
	took := time.Since(began).Seconds()
	runtime.ReadMemStats(&after)
	sent, fragments = s.sent()-sent, end.aggregate.Stats().Fragments-fragments
	if fragments == 0 {
		return p, fmt.Errorf("nothing came of %d datagrams", sent)
	}
	p.SentPerSecond, p.ReceivedPerSecond = float64(sent)/took, float64(fragments)/took
	p.BytesPerSecond = p.ReceivedPerSecond * portFragmentBytes
	p.LostPercent = max(0, 100*(1-float64(fragments)/float64(max(sent, 1))))
	p.AllocsPerDatagram = float64(after.Mallocs-before.Mallocs) / float64(fragments)
	stop()
	return p, end.empty()
}

// socketSender is an ingestSender that gives up lost datagrams. Otherwise its window
// would never open again.
type socketSender struct {
	s     *ingestSender
	count atomic.Uint64 // sent; and received or given up
	ended atomic.Uint64
	last  atomic.Int64 // time of the last receipt, time.Now in ns
}

func (s *socketSender) sent() uint64  { return s.count.Load() }
func (s *socketSender) came(n uint64) { s.ended.Add(n); s.last.Store(time.Now().UnixNano()) }

// givenUpAfter is the silence after which datagrams in flight count as lost.
const givenUpAfter = 20 * time.Millisecond

func (s *socketSender) start() (stop func()) {
	return sendUntilStopped(func(stopping *atomic.Bool) {
		defer s.s.conn.Close()
		for id := uint32(0); !stopping.Load(); id++ {
			for i := range s.s.fragments {
				binary.LittleEndian.PutUint32(s.s.request[i*s.s.datagram+4:], id)
			}
			for from := 0; from < s.s.fragments && !stopping.Load(); from += s.s.train {
				n := min(s.s.train, s.s.fragments-from)
				waitForRoom(stopping, &s.count, &s.ended, &s.last, uint64(window/s.s.datagram), uint64(n))
				b := s.s.request[from*s.s.datagram : (from+n)*s.s.datagram]
				if _, _, err := s.s.conn.WriteMsgUDP(b, s.s.control, nil); err == nil {
					s.count.Add(uint64(n))
				}
			}
		}
	})
}

// waitForRoom waits until n more fit into the window, or gives up what is in it.
func waitForRoom(stopping *atomic.Bool, count, ended *atomic.Uint64, last *atomic.Int64, most, n uint64) {
	begin := time.Now().UnixNano()
	for !stopping.Load() && count.Load()+n > ended.Load()+most {
		unix.Syscall(unix.SYS_SCHED_YIELD, 0, 0, 0)
		if now := time.Now().UnixNano(); now-max(last.Load(), begin) > int64(givenUpAfter) {
			ended.Store(count.Load())
		}
	}
}

// sendUntilStopped runs send on its own thread.
func sendUntilStopped(send func(stopping *atomic.Bool)) (stop func()) {
	var stopping atomic.Bool
	var done sync.WaitGroup
	done.Go(func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		send(&stopping)
	})
	return sync.OnceFunc(func() {
		stopping.Store(true)
		done.Wait()
	})
}

// measureMemif uses two ports of shared memory in one process: one belongs to the
// source, the other sends.
func measureMemif(each time.Duration) (p PortIngest, err error) {
	dir, err := os.MkdirTemp("", "penstock-memif-")
	if err != nil {
		return p, err
	}
	defer os.RemoveAll(dir)
	where := ",id=0,rsize=11,socket-abstract=no,socket=" + filepath.Join(dir, "s")
	group, src, err := openPort("net_memif0,role=server"+where, manyMbufs)
	if err != nil {
		return p, err
	}
	defer func() { err = errors.Join(err, src.Close(), src.CloseSlab(), group.Close()) }()
	s, err := newMemifSender("net_memif1,role=client"+where, group.MAC())
	if err != nil {
		return p, err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	return receiveFrom(src, s, each)
}

// memifSender makes frames in its own mbufs and sends them in bursts.
type memifSender struct {
	pool    *eal.Pool
	device  *eal.Device
	headers []byte
	count   atomic.Uint64
	ended   atomic.Uint64
	last    atomic.Int64
}

func newMemifSender(device string, to [6]byte) (_ *memifSender, err error) {
	t := generate.Traffic{From: dpdkFrom, To: dpdkTo, Fragments: portFragments, FragmentBytes: portFragmentBytes}
	s := &memifSender{headers: t.Headers(to)}
	if s.pool, err = eal.NewPool("memif-sender", 8192, 2048+eal.HeadroomBytes, -1, false); err != nil {
		return nil, err
	}
	if s.device, err = eal.OpenDevice(device); err != nil {
		return nil, errors.Join(err, s.pool.Close())
	}
	_, err = s.device.Configure(eal.Config{Queues: 1, Descriptors: 2048, MTU: 1500}, s.pool)
	if err == nil {
		err = s.device.Start()
	}
	if err != nil {
		return nil, errors.Join(err, s.close())
	}
	for until := time.Now().Add(5 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if up, _ := s.device.Link(); up {
			return s, nil
		}
		if time.Now().After(until) {
			return nil, errors.Join(errors.New("the two ends of memif do not find each other"), s.close())
		}
	}
}

func (s *memifSender) close() error { return errors.Join(s.device.Close(), s.pool.Close()) }

func (s *memifSender) sent() uint64  { return s.count.Load() }
func (s *memifSender) came(n uint64) { s.ended.Add(n); s.last.Store(time.Now().UnixNano()) }

func (s *memifSender) start() (stop func()) {
	return sendUntilStopped(func(stopping *atomic.Bool) {
		var mbufs, data [eal.Burst]uint64
		var lengths [eal.Burst]uint32
		var offloads [eal.Burst]eal.Offload
		payload := make([]byte, portFragmentBytes)
		memory := s.pool.Memory().Bytes()
		next := uint64(0)
		for !stopping.Load() {
			waitForRoom(stopping, &s.count, &s.ended, &s.last, window/portFragmentBytes, eal.Burst)
			if s.pool.Alloc(mbufs[:], data[:]) != nil {
				unix.Syscall(unix.SYS_SCHED_YIELD, 0, 0, 0)
				continue
			}
			for i := range mbufs {
				n := copy(memory[data[i]:], s.headers)
				generate.Fragment(memory[data[i]:], uint32((next+uint64(i))/portFragments), int((next+uint64(i))%portFragments), portFragments, portFragmentBytes)
				n += copy(memory[data[i]+uint64(n):], payload)
				lengths[i] = uint32(n)
			}
			sent := s.device.Send(0, mbufs[:], lengths[:], offloads[:])
			next += uint64(sent)
			s.count.Add(uint64(sent))
		}
	})
}

// network is a network namespace. A thread inside it keeps it alive.
type network struct {
	jobs chan func()
	path string
}

func newNetworks() (camera, node *network, err error) {
	if camera, err = newNetwork(); err != nil {
		return nil, nil, err
	}
	if node, err = newNetwork(); err != nil {
		camera.close()
		return nil, nil, err
	}
	return camera, node, nil
}

func newNetwork() (*network, error) {
	n := &network{jobs: make(chan func())}
	made := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the namespace ends with the thread
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err == nil {
			n.path = fmt.Sprintf("/proc/%d/task/%d/ns/net", os.Getpid(), unix.Gettid())
			err = errors.Join(
				os.WriteFile("/proc/sys/net/ipv6/conf/default/disable_ipv6", []byte("1"), 0),
				run("ip", "link", "set", "lo", "up"))
		}
		made <- err
		for job := range n.jobs {
			job()
		}
	}()
	if err := <-made; err != nil {
		close(n.jobs)
		return nil, fmt.Errorf("make a network namespace: %w", err)
	}
	return n, nil
}

func (n *network) close() { close(n.jobs) }

func (n *network) do(job func()) {
	done := make(chan struct{})
	n.jobs <- func() {
		defer close(done)
		job()
	}
	<-done
}

func (n *network) run(name string, args ...string) (err error) {
	n.do(func() { err = run(name, args...) })
	return err
}

func run(name string, args ...string) error {
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s %v: %w: %s", name, args, err, out)
	}
	return nil
}

// steps runs commands in a network until one fails.
func (n *network) steps(commands ...[]string) error {
	for _, c := range commands {
		if err := n.run(c[0], c[1:]...); err != nil {
			return err
		}
	}
	return nil
}

// layCable connects the networks with a veth pair, whose ends are cam0 and node0.
func layCable(camera, node *network, k portKind) error {
	if err := camera.steps(
		[]string{"ip", "link", "add", "cam0", "type", "veth", "peer", "name", "node0", "netns", node.path},
		[]string{"ip", "addr", "add", dpdkFrom.Addr().String() + "/24", "dev", "cam0"},
		[]string{"ip", "link", "set", "cam0", "txqueuelen", "10000", "up"},
	); err != nil {
		return err
	}
	if k.sender == kernelSender {
		if err := camera.run("ethtool", "-K", "cam0", "tx-udp-segmentation", "off", "gso", "off", "tso", "off"); err != nil {
			return err
		}
	}
	return node.run("ip", "link", "set", "node0", "up")
}

func bridge(node *network, iface string) error {
	return node.steps(
		[]string{"ip", "link", "add", "br0", "type", "bridge", "forward_delay", "0", "mcast_snooping", "0"},
		[]string{"ip", "link", "set", "node0", "master", "br0"},
		// A TAP's kernel end has the port's own address; a bridge would not forward its
		// frames.
		[]string{"ip", "link", "set", iface, "address", "02:00:00:00:ff:01"},
		[]string{"ip", "link", "set", iface, "master", "br0"},
		[]string{"ip", "link", "set", iface, "txqueuelen", "10000", "up"},
		[]string{"ip", "link", "set", "br0", "up"},
	)
}
