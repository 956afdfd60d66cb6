package gateway

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"sync/atomic"
	"time"
)

// PhonePort is the TCP port for a phone.
const PhonePort = 9652

// Invitation lets one browser in.
type Invitation struct {
	// URL works once: it has the token.
	URL string
	// Fingerprint is the SHA-256 of the certificate, as browsers show it.
	Fingerprint string
}

// RunPhone serves like Run, but over HTTPS, with a certificate that it makes, and for one browser.
// That is the first that opens the invitation, which ready gets. It does not wait for an address
// that is taken.
func RunPhone(ctx context.Context, o Options, ready func(Invitation)) error {
	certificate, err := selfSigned(o.Address.Addr())
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", o.Address.String())
	if err != nil {
		return fmt.Errorf("listen for a phone: %w; choose another address with --phone=ADDRESS:PORT", err)
	}
	a := &access{token: rand.Text(), invitation: &invitation{token: rand.Text()}}
	at := netip.MustParseAddrPort(listener.Addr().String())
	address := url.URL{Scheme: "https", Host: at.String(), Path: "/", RawQuery: url.Values{tokenKey: {a.invitation.token}}.Encode()}
	f := front{
		access: a, listen: func() (net.Listener, error) { return listener, nil },
		tls: &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12},
	}
	return newServer(o).run(ctx, o.Log, f, func(netip.AddrPort) {
		ready(Invitation{address.String(), fingerprint(certificate.Certificate[0])})
	})
}

// certificateLife is how long a certificate is valid; it ends with its gateway.
const certificateLife = 30 * 24 * time.Hour

// selfSigned makes a certificate for an address.
func selfSigned(address netip.Addr) (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("make key of certificate: %w", err)
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("make serial number of certificate: %w", err)
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: "Penstock on " + address.String()}, IPAddresses: []net.IP{address.AsSlice()},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(certificateLife), // phones' clocks differ
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("make certificate: %w", err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}

func fingerprint(der []byte) string {
	sum := sha256.Sum256(der)
	var parts []string
	for _, b := range sum {
		parts = append(parts, fmt.Sprintf("%02X", b))
	}
	return strings.Join(parts, ":")
}

// invitation is a token that one browser exchanges for a cookie.
type invitation struct {
	token string
	used  atomic.Bool
}

// phoneCookie has the token of an invited browser. Cookies of a host are for all its ports, so
// that it differs from tokenCookie.
const phoneCookie = "penstock_phone"

// errUsed is the answer to another browser that opens an invitation.
var errUsed = errors.New("this address was already used by another browser; start `penstock gateway --phone` again for a new one")

// accept answers a request with the invitation's token. The browser gets a cookie, and goes on to
// the same address without the token.
func (a *access) accept(w http.ResponseWriter, r *http.Request) {
	if !a.is(a.tokenOf(r)) {
		if a.invitation.used.Swap(true) {
			writeError(w, http.StatusForbidden, errUsed)
			return
		}
		http.SetCookie(w, &http.Cookie{Name: phoneCookie, Value: a.token, Path: "/", Secure: true, HttpOnly: true, SameSite: http.SameSiteStrictMode})
	}
	redirectWithoutToken(w, r)
}
