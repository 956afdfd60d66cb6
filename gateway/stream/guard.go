package stream

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strings"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/penstock/penstock/internal/seccomp"
)

// A source from the network may name other addresses: by a redirect, a playlist or a name server. ffmpeg resolves
// and connects by itself, so the kernel asks the gateway at each system call of ffmpeg that names an address (seccomp's
// user notification). The gateway refuses addresses that only this machine, or its own link, can reach.
//
//	1 install  a thread gets the filter
//	2 start    the thread starts ffmpeg, which inherits the filter
//	3 serve    answers the kernel until ffmpeg has ended
//
// ffmpeg has several threads, so one of them could change an address between question and call. The guard does not
// protect against an attacker that controls ffmpeg itself.

// guard answers the kernel for one ffmpeg. One goroutine uses it.
type guard struct {
	allowed []netip.Addr // the source's own
	refused func(netip.AddrPort)
	fd      int // of the kernel's questions
}

// newGuard returns the guard of an address. It is nil if the address is not of the network, or is that of all
// interfaces: then ffmpeg waits for senders. refused gets each address that ffmpeg may not reach.
func newGuard(a Address, refused func(netip.AddrPort)) *guard {
	host := a.host()
	if a.kind != network || host == "" {
		return nil
	}
	g := &guard{refused: refused}
	if strings.EqualFold(host, "localhost") {
		g.allowed = []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()}
	} else if ip, err := netip.ParseAddr(host); err == nil {
		g.allowed = []netip.Addr{ip.Unmap().WithZone("")}
		if ip.IsUnspecified() {
			return nil
		}
	}
	return g
}

// host is the host of an address of the network.
func (a Address) host() string {
	_, rest, _ := strings.Cut(a.text, "://")
	if end := strings.IndexAny(rest, "?#"); end >= 0 {
		rest = rest[:end]
	}
	rest = rest[strings.LastIndexByte(rest, '@')+1:]
	host, _, _ := strings.Cut(rest, "/")
	return (&url.URL{Host: host}).Hostname()
}

// dnsPort is the port of a name server. Many machines have one at a loopback address; some clouds and clusters have it at
// a link-local one.
const dnsPort = 53

// permits reports whether ffmpeg may reach an address.
func (g *guard) permits(to netip.AddrPort) bool {
	ip := to.Addr().Unmap().WithZone("")
	switch {
	case slices.Contains(g.allowed, ip):
		return true
	case ip.IsLoopback(), ip.IsLinkLocalUnicast():
		return to.Port() == dnsPort
	}
	return !ip.IsUnspecified() // Linux takes it for loopback
}

// asked are the system calls that name an address.
var asked = []uint32{unix.SYS_CONNECT, unix.SYS_SENDTO, unix.SYS_SENDMSG, unix.SYS_SENDMMSG}

// filter returns the program that lets the kernel ask. io_uring would send without these calls.
func filter() []bpf.Instruction {
	p := append(seccomp.Begin(),
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.SYS_IO_URING_SETUP, SkipTrue: 1},
		bpf.RetConstant{Val: unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)},
	)
	for _, number := range asked {
		p = append(p, bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: number, SkipTrue: 1}, bpf.RetConstant{Val: unix.SECCOMP_RET_USER_NOTIF})
	}
	return append(p, bpf.RetConstant{Val: unix.SECCOMP_RET_ALLOW})
}

// install gives the calling thread the guard's filter. The thread's goroutine must be locked to it and never unlocked.
func (g *guard) install() (err error) {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("set no_new_privs: %w", err)
	}
	g.fd, err = seccomp.Install(filter(), unix.SECCOMP_FILTER_FLAG_NEW_LISTENER)
	return err
}

// serve answers the kernel until the other end of stop is closed. It closes both descriptors.
func (g *guard) serve(stop *os.File) {
	defer unix.Close(g.fd)
	defer stop.Close()
	poll := []unix.PollFd{{Fd: int32(g.fd), Events: unix.POLLIN}, {Fd: int32(stop.Fd()), Events: unix.POLLIN}}
	for {
		_, err := unix.Poll(poll, -1)
		if err != nil && !errors.Is(err, unix.EINTR) || poll[1].Revents != 0 {
			return
		}
		if poll[0].Revents&unix.POLLIN == 0 {
			continue
		}
		q, err := receive(g.fd)
		if err != nil {
			continue // its thread has ended meanwhile
		}
		answer(g.fd, q, g.judge(q))
	}
}

// judge reports whether a system call may go on.
func (g *guard) judge(q question) bool {
	memory, err := os.Open(fmt.Sprintf("/proc/%d/mem", q.thread))
	if err != nil {
		return false
	}
	defer memory.Close()
	for _, name := range q.names(memory) {
		to, ok := name.read(memory)
		if !ok {
			return false
		}
		if to.IsValid() && !g.permits(to) {
			g.refused(to)
			return false
		}
	}
	return true
}

// name is the place of a system call's address: a struct sockaddr in ffmpeg's memory.
type name struct {
	at     uint64
	length uint64
	broken bool // it cannot be found
}

// Sizes and offsets of structures on 64-bit machines (socket.h).
const (
	msghdrBytes  = 56
	mmsghdrBytes = 64
	maxMessages  = 64 // of one sendmmsg; glibc's resolver sends two
)

// names returns the places of a call's addresses. A call on a connected socket has none.
func (q question) names(memory io.ReaderAt) (list []name) {
	header := func(at uint64) name {
		var h [msghdrBytes]byte
		if _, err := memory.ReadAt(h[:], int64(at)); err != nil {
			return name{broken: true}
		}
		return name{at: binary.NativeEndian.Uint64(h[:]), length: uint64(binary.NativeEndian.Uint32(h[8:]))}
	}
	switch q.number {
	case unix.SYS_CONNECT:
		list = []name{{at: q.arguments[1], length: q.arguments[2]}}
	case unix.SYS_SENDTO:
		list = []name{{at: q.arguments[4], length: q.arguments[5]}}
	case unix.SYS_SENDMSG:
		list = []name{header(q.arguments[1])}
	case unix.SYS_SENDMMSG:
		if q.arguments[2] > maxMessages {
			return []name{{broken: true}}
		}
		for i := range q.arguments[2] {
			list = append(list, header(q.arguments[1]+i*mmsghdrBytes))
		}
	}
	return slices.DeleteFunc(list, func(n name) bool { return n.at == 0 && !n.broken })
}

// read reads an address. It is the zero value if it is of no internet.
func (n name) read(memory io.ReaderAt) (to netip.AddrPort, ok bool) {
	const familyBytes, portEnd, v4, v6 = 2, 4, 16, 28
	if n.broken || n.length < familyBytes {
		return to, n.length < familyBytes && !n.broken
	}
	text := make([]byte, min(n.length, v6))
	if _, err := memory.ReadAt(text, int64(n.at)); err != nil {
		return to, false
	}
	switch family := binary.NativeEndian.Uint16(text); {
	case family == unix.AF_INET && len(text) >= v4:
		ip, _ := netip.AddrFromSlice(text[4:8])
		return netip.AddrPortFrom(ip, binary.BigEndian.Uint16(text[familyBytes:portEnd])), true
	case family == unix.AF_INET6 && len(text) >= v6-4: // without the scope
		ip, _ := netip.AddrFromSlice(text[8:24])
		return netip.AddrPortFrom(ip, binary.BigEndian.Uint16(text[familyBytes:portEnd])), true
	}
	return to, true
}
