package udp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"

	"golang.org/x/sys/unix"
)

// sockaddrBytes is the size of a sockaddr_in6, the larger of the two
// structures. Both begin with a family of 16 bits in the machine's byte order,
// and a port in network order. In IPv4, 4 bytes of address follow. In IPv6, 4
// bytes of flow label follow, 16 of address, and 4 of scope id in the machine's
// byte order (linux/in.h, linux/in6.h).
const (
	sockaddrBytes  = unix.SizeofSockaddrInet6
	sockaddr4Bytes = unix.SizeofSockaddrInet4
)

var (
	errNoAddress = errors.New("no address")
	errFamily    = errors.New("an IPv6 address, but the source listens on IPv4")
)

// zoneNames caches the last scope id as text. netip wants a zone as a string,
// and all link-local cameras of a network have the same zone.
type zoneNames struct {
	id   uint32
	name string
}

// decode reads a sockaddr that the kernel wrote. An IPv4 address becomes one
// even if it came through an IPv6 socket. It allocates only if the zone of a
// link-local address differs from the last one.
func (z *zoneNames) decode(b *[sockaddrBytes]byte) netip.AddrPort {
	port := binary.BigEndian.Uint16(b[2:])
	switch binary.NativeEndian.Uint16(b[:]) {
	case unix.AF_INET:
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[4:8])), port)
	case unix.AF_INET6:
		addr := netip.AddrFrom16([16]byte(b[8:24])).Unmap()
		if id := binary.NativeEndian.Uint32(b[24:]); id != 0 && addr.IsLinkLocalUnicast() {
			if id != z.id {
				z.id, z.name = id, strconv.FormatUint(uint64(id), 10)
			}
			addr = addr.WithZone(z.name)
		}
		return netip.AddrPortFrom(addr, port)
	}
	return netip.AddrPort{}
}

// encodeAddress writes a sockaddr for the kernel, in the socket's family.
func encodeAddress(b *[sockaddrBytes]byte, to netip.AddrPort, inet6 bool) (size int, err error) {
	addr := to.Addr()
	if !addr.IsValid() {
		return 0, errNoAddress
	}
	binary.BigEndian.PutUint16(b[2:], to.Port())
	if !inet6 {
		if addr = addr.Unmap(); !addr.Is4() {
			return 0, errFamily
		}
		binary.NativeEndian.PutUint16(b[:], unix.AF_INET)
		a4 := addr.As4()
		copy(b[4:8], a4[:])
		clear(b[8:sockaddr4Bytes])
		return sockaddr4Bytes, nil
	}
	binary.NativeEndian.PutUint16(b[:], unix.AF_INET6)
	clear(b[4:8])
	a16 := addr.As16()
	copy(b[8:24], a16[:])
	id, err := scopeID(addr.Zone())
	if err != nil {
		return 0, err
	}
	binary.NativeEndian.PutUint32(b[24:], id)
	return sockaddrBytes, nil
}

// scopeID returns the number of a zone, given as decode's text or as an
// interface's name.
func scopeID(zone string) (uint32, error) {
	if zone == "" {
		return 0, nil
	}
	if id, err := strconv.ParseUint(zone, 10, 32); err == nil {
		return uint32(id), nil
	}
	iface, err := net.InterfaceByName(zone)
	if err != nil {
		return 0, fmt.Errorf("zone %q: %w", zone, err)
	}
	return uint32(iface.Index), nil
}

// bindAddress converts at to the form that bind wants.
func bindAddress(at netip.AddrPort) (unix.Sockaddr, error) {
	addr := at.Addr().Unmap()
	if addr.Is4() {
		return &unix.SockaddrInet4{Port: int(at.Port()), Addr: addr.As4()}, nil
	}
	id, err := scopeID(addr.Zone())
	if err != nil {
		return nil, err
	}
	return &unix.SockaddrInet6{Port: int(at.Port()), Addr: addr.As16(), ZoneId: id}, nil
}

// boundAddress converts the address that the kernel bound to netip's form.
func boundAddress(bound unix.Sockaddr, zone string) netip.AddrPort {
	switch a := bound.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(a.Addr), uint16(a.Port))
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(a.Addr).WithZone(zone), uint16(a.Port))
	}
	return netip.AddrPort{}
}
