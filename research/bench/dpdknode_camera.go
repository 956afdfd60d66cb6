//go:build dpdk && cgo

package bench

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"github.com/penstock/penstock/datapath/dpdk"
	"github.com/penstock/penstock/datapath/ingest"
	"github.com/penstock/penstock/internal/testbed"
	"github.com/penstock/penstock/shm"
	"github.com/penstock/penstock/wire"
)

// camera sends requests to one function and receives the answers. One goroutine uses
// it. It polls for answers without sleeping.
type camera interface {
	send(r *request) error
	// receive returns a datagram, valid until the next call, or nil after the deadline.
	receive(deadline time.Time) ([]byte, error)
	close() error
}

func (o *DPDKNodeOptions) openCamera(ctx context.Context, source, socket string, port uint16) (camera, error) {
	switch source {
	case "memif":
		return openMemifCamera(ctx, "net_memif1,role=client,id=0,rsize=11,socket-abstract=no,socket="+socket, port, o.load())
	case "tap":
		if err := raiseTap(); err != nil {
			return nil, err
		}
		return openSocketCamera(netip.AddrPortFrom(nodeAddress, port))
	}
	return openSocketCamera(netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), port))
}

// socketCamera is a UDP socket.
type socketCamera struct {
	conn   *net.UDPConn
	trains bool // the kernel cuts trains into datagrams
	room   []byte
	poll   func(fd uintptr) bool
	n      int
	err    error
}

func openSocketCamera(to netip.AddrPort) (*socketCamera, error) {
	conn, err := net.DialUDP("udp4", nil, net.UDPAddrFromAddrPort(to))
	if err != nil {
		return nil, fmt.Errorf("open camera: %w", err)
	}
	_ = conn.SetWriteBuffer(4 << 20) // a smaller buffer is slower, not wrong
	_ = conn.SetReadBuffer(4 << 20)
	c := &socketCamera{conn: conn, trains: true, room: make([]byte, wire.MaxDatagram)}
	c.poll = func(fd uintptr) bool {
		c.n, _, c.err = unix.Recvfrom(int(fd), c.room, unix.MSG_DONTWAIT)
		return true
	}
	return c, nil
}

func (c *socketCamera) send(r *request) error {
	train := r.size
	if c.trains {
		train *= min(64, wire.MaxDatagram/r.size)
	}
	for at := 0; at < len(r.bytes); {
		b := r.bytes[at:min(at+train, len(r.bytes))]
		var control []byte
		if len(b) > r.size {
			control = segmentControl(uint16(r.size))
		}
		_, _, err := c.conn.WriteMsgUDP(b, control, nil)
		if errors.Is(err, unix.EIO) && c.trains { // the interface does not compute checksums
			c.trains, train = false, r.size
			continue
		}
		if err != nil {
			return fmt.Errorf("send request: %w", err)
		}
		at += len(b)
	}
	return nil
}

func (c *socketCamera) receive(deadline time.Time) ([]byte, error) {
	raw, err := c.conn.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("receive answer: %w", err)
	}
	for {
		if err := raw.Read(c.poll); err != nil {
			return nil, fmt.Errorf("receive answer: %w", err)
		}
		switch {
		case c.err == nil:
			return c.room[:c.n], nil
		case !errors.Is(c.err, unix.EAGAIN) && !errors.Is(c.err, unix.EINTR):
			return nil, fmt.Errorf("receive answer: %w", c.err)
		case time.Now().After(deadline):
			return nil, nil
		}
		unix.Syscall(unix.SYS_SCHED_YIELD, 0, 0, 0)
	}
}

func (c *socketCamera) close() error { return c.conn.Close() }

// memifCamera is the peer of a node's memif.
type memifCamera struct {
	group   *dpdk.Group
	src     *dpdk.Source
	to      netip.AddrPort
	packets []ingest.Packet
	batch   [1]ingest.Datagram
	span    [1]ingest.Span
	room    []byte
}

// cameraMemory is a camera's memory: for a request, its answers, and DPDK itself.
const cameraMemory = 64 << 20

func openMemifCamera(ctx context.Context, device string, port uint16, eal []string) (_ *memifCamera, err error) {
	c := &memifCamera{to: netip.AddrPortFrom(nodeAddress, port)}
	o := dpdk.Options{
		Port: device, Addresses: []netip.Addr{cameraAddress}, Queues: 1, MTU: 1500,
		Memory: cameraMemory, Mbufs: 8192, EAL: eal, Log: zerolog.Nop(),
	}
	if runtime.NumCPU() >= testbed.MinCPUs { // the load has its own CPUs
		o.BusyPoll = time.Second
	}
	if c.group, err = dpdk.Open(o); err != nil {
		return nil, fmt.Errorf("open camera: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.close())
		}
	}()
	c.group.Know(nodeAddress, dpdk.MACOf(nodeAddress))
	all, err := c.group.Listen(0, 1)
	if err != nil {
		return nil, fmt.Errorf("open camera: %w", err)
	}
	c.src = all[0]
	limit, cancel := context.WithTimeoutCause(ctx, 10*time.Second, errors.New("the two ends of memif have not found each other in ten seconds"))
	defer cancel()
	for !c.group.Link() {
		if err := testbed.Pause(limit, 10*time.Millisecond); err != nil {
			return nil, fmt.Errorf("open camera: %w", err)
		}
	}
	return c, nil
}

func (c *memifCamera) send(r *request) error {
	c.packets = c.packets[:0]
	for i := range r.fragments() {
		c.packets = append(c.packets, ingest.Packet{To: c.to, Data: r.fragment(i)})
	}
	for left := c.packets; len(left) > 0; {
		n, err := c.src.Send(left)
		left = left[n:]
		if err != nil && !errors.Is(err, dpdk.ErrQueueFull) { // the node will empty the queue soon
			return fmt.Errorf("send request: %w", err)
		}
	}
	return nil
}

func (c *memifCamera) receive(deadline time.Time) ([]byte, error) {
	n, err := c.src.Receive(c.batch[:], shm.Now()+int64(time.Until(deadline)))
	if err != nil || n == 0 {
		return nil, err
	}
	first := c.batch[0].First
	c.room = append(c.room[:0], c.src.Slab().Bytes()[first.Offset:][:first.Length]...)
	c.span[0] = first
	c.src.Release(c.span[:])
	return c.room, nil
}

func (c *memifCamera) close() (err error) {
	if c.src != nil {
		err = errors.Join(c.src.Close(), c.src.CloseSlab())
	}
	return errors.Join(err, c.group.Close())
}

// raiseTap gives the kernel's end of the node's TAP device an address and a queue, and
// sets it up. It may be called repeatedly.
func raiseTap() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("set up %s: %w", tapName, err)
	}
	defer unix.Close(fd)
	set := func(what string, request uint, fill func(*unix.Ifreq) error) {
		if err != nil {
			return
		}
		var r *unix.Ifreq
		if r, err = unix.NewIfreq(tapName); err == nil {
			if err = fill(r); err == nil {
				err = unix.IoctlIfreq(fd, request, r)
			}
		}
		if err != nil {
			err = fmt.Errorf("set %s of %s: %w", what, tapName, os.NewSyscallError("ioctl", err))
		}
	}
	address, mask := cameraAddress.As4(), []byte{255, 255, 255, 0}
	set("address", unix.SIOCSIFADDR, func(r *unix.Ifreq) error { return r.SetInet4Addr(address[:]) })
	set("netmask", unix.SIOCSIFNETMASK, func(r *unix.Ifreq) error { return r.SetInet4Addr(mask) })
	set("txqueuelen", unix.SIOCSIFTXQLEN, func(r *unix.Ifreq) error { r.SetUint32(10000); return nil })
	set("flags", unix.SIOCSIFFLAGS, func(r *unix.Ifreq) error { r.SetUint16(unix.IFF_UP | unix.IFF_RUNNING); return nil })
	return err
}
