package gateway

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
)

// phone returns a browser that trusts a certificate by its fingerprint. It has no cookies yet.
func phone(t *testing.T, want string) *http.Client {
	t.Helper()
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	trusted := func(s tls.ConnectionState) error {
		c := s.PeerCertificates[0]
		if got := fingerprint(c.Raw); got != want {
			t.Errorf("certificate %s, want the announced one, %s", got, want)
		}
		roots := x509.NewCertPool()
		roots.AddCert(c)
		if _, err := c.Verify(x509.VerifyOptions{Roots: roots, DNSName: "127.0.0.1"}); err != nil {
			t.Errorf("certificate: %v", err)
		}
		return nil
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true, VerifyConnection: trusted}}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Jar: jar, Transport: transport, Timeout: 30 * time.Second}
}

// fetch returns the status and the body of a page.
func fetch(t *testing.T, c *http.Client, url string) (int, string) {
	t.Helper()
	response, err := c.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(text)
}

func TestRunPhone(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	invited, ended := make(chan Invitation, 1), make(chan error, 1)
	o := Options{Address: netip.MustParseAddrPort("127.0.0.1:0"), Dir: fakeNode(t, oneBox), Log: zerolog.Nop()}
	go func() { ended <- RunPhone(ctx, o, func(i Invitation) { invited <- i }) }()
	i := <-invited
	base, _, _ := strings.Cut(i.URL, "?")

	first, second := phone(t, i.Fingerprint), phone(t, i.Fingerprint)
	if status, text := fetch(t, first, base); status != http.StatusUnauthorized || !strings.Contains(text, "`penstock gateway --phone`") {
		t.Errorf("without a token: %d %s", status, text)
	}
	if status, text := fetch(t, first, base+"?token=wrong"); status != http.StatusUnauthorized {
		t.Errorf("with a wrong token: %d %s", status, text)
	}
	if response, err := first.Head(i.URL); err != nil || response.StatusCode != http.StatusUnauthorized {
		t.Errorf("HEAD: %v, %v", response, err) // it must not use up the token
	}
	if status, text := fetch(t, first, i.URL); status != http.StatusOK || !strings.Contains(text, "<title>Penstock</title>") {
		t.Errorf("with the token: %d %.100s", status, text)
	}
	if status, text := fetch(t, first, base+"api/state"); status != http.StatusOK {
		t.Errorf("with the cookie: %d %.100s", status, text)
	}
	if status, text := fetch(t, first, i.URL); status != http.StatusOK {
		t.Errorf("the same phone again: %d %.100s", status, text)
	}
	if status, text := fetch(t, second, i.URL); status != http.StatusForbidden || !strings.Contains(text, "already used") {
		t.Errorf("another phone: %d %.100s", status, text)
	}
	if status, text := fetch(t, second, base+"api/state"); status != http.StatusUnauthorized {
		t.Errorf("another phone without the token: %d %.100s", status, text)
	}
	first.CloseIdleConnections()
	second.CloseIdleConnections()
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestRunPhoneAddressTaken(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	o := Options{Address: netip.MustParseAddrPort(taken.Addr().String()), Dir: t.TempDir(), Log: zerolog.Nop()}
	if err := RunPhone(t.Context(), o, func(Invitation) {}); err == nil || !strings.Contains(err.Error(), "--phone=ADDRESS:PORT") {
		t.Errorf("%v, want a hint", err)
	}
}
