package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"

	"rsc.io/qr"

	"github.com/penstock/penstock/gateway"
)

// phoneAuto is the value of --phone without an address.
const phoneAuto = "auto"

const phoneUsage = "serve the page to a phone, over HTTPS on the address of this machine's network, or on ADDRESS or ADDRESS:PORT"

// phoneAddress returns the address that --phone names.
func phoneAddress(flag string) (netip.AddrPort, error) {
	if flag == phoneAuto {
		address, err := networkAddress()
		return netip.AddrPortFrom(address, gateway.PhonePort), err
	}
	if address, err := netip.ParseAddr(flag); err == nil {
		return netip.AddrPortFrom(address, gateway.PhonePort), nil
	}
	address, err := netip.ParseAddrPort(flag)
	if err != nil {
		return address, fmt.Errorf("--phone=%s: want no value, ADDRESS or ADDRESS:PORT, like --phone=192.168.1.5", flag)
	}
	return address, nil
}

// networkAddress is the address from which this machine would send to other networks, or else a
// private one. A phone in the same network reaches it.
func networkAddress() (netip.Addr, error) {
	// A connected UDP socket has a source address, and nothing is sent. The destination is one for
	// documentation (RFC 5737).
	if conn, err := net.Dial("udp4", "192.0.2.1:9"); err == nil {
		defer conn.Close()
		return netip.MustParseAddrPort(conn.LocalAddr().String()).Addr(), nil
	}
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		return netip.Addr{}, fmt.Errorf("find this machine's address: %w; name it with --phone=ADDRESS", err)
	}
	for _, a := range addresses {
		if prefix, err := netip.ParsePrefix(a.String()); err == nil && prefix.Addr().IsPrivate() {
			return prefix.Addr(), nil
		}
	}
	return netip.Addr{}, errors.New("find this machine's address: it is in no network; name it with --phone=ADDRESS")
}

// runPhone serves a node's page to a phone until ctx ends. It prints how to open it.
func runPhone(ctx context.Context, flag string, o gateway.Options) (err error) {
	if o.Address, err = phoneAddress(flag); err != nil {
		return err
	}
	return gateway.RunPhone(ctx, o, func(i gateway.Invitation) {
		how := "On the phone, open"
		if isTerminal(os.Stdout) {
			if err := printCode(os.Stdout, i.URL); err == nil {
				how = "Scan the code with the phone, or open"
			}
		}
		fmt.Printf(`%s %s
The address works once. The phone must be in this machine's network; its browser warns that it does not
know the certificate. Continue if its SHA-256 is
%s
`, how, i.URL, i.Fingerprint)
	})
}

// quietZone is the margin of a QR code, in modules (ISO/IEC 18004 wants 4; phones need less).
const quietZone = 2

// printCode prints a text as a QR code, dark on light whatever the terminal's colours are. A
// character has two modules, one above the other.
func printCode(w io.Writer, text string) error {
	code, err := qr.Encode(text, qr.L)
	if err != nil {
		return fmt.Errorf("make QR code: %w", err)
	}
	const light, reset = "\x1b[97;40m", "\x1b[0m" // white on black: blocks are light
	halves := map[[2]bool]string{{true, true}: " ", {true, false}: "▄", {false, true}: "▀", {false, false}: "█"}
	var b strings.Builder
	for y := -quietZone; y < code.Size+quietZone; y += 2 {
		b.WriteString(light)
		for x := -quietZone; x < code.Size+quietZone; x++ {
			b.WriteString(halves[[2]bool{code.Black(x, y), code.Black(x, y+1)}])
		}
		b.WriteString(reset + "\n")
	}
	_, err = io.WriteString(w, b.String())
	return err
}
