package webserver

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
)

// CheckSite returns why a browser must not make a request, and nil if it may. Pages of other sites
// may link to this server, and nothing else. Programs that are no browsers do not send these headers.
// http.CrossOriginProtection is not enough: it lets every GET pass.
func CheckSite(r *http.Request) error {
	for _, origin := range r.Header["Origin"] {
		u, err := url.Parse(origin)
		if err != nil || u.Host == "" || !strings.EqualFold(u.Host, r.Host) {
			return fmt.Errorf("origin %q is another site, want requests of this server's own pages", origin)
		}
	}
	for _, site := range r.Header["Sec-Fetch-Site"] {
		link := r.Method == http.MethodGet && r.Header.Get("Sec-Fetch-Mode") == "navigate" && r.Header.Get("Sec-Fetch-Dest") == "document"
		if site != "same-origin" && site != "none" && !link {
			return fmt.Errorf("request of another site (Sec-Fetch-Site: %q), want requests of this server's own pages", site)
		}
	}
	return nil
}

// CheckLoopbackHost returns an error if the Host of a request to a loopback address is no name of that
// address. A page of another site that resolves its own name to this machine has that name (DNS
// rebinding).
func CheckLoopbackHost(r *http.Request) error {
	if r.Host == "" {
		return nil // HTTP/1.0 of a program: each browser sends a Host
	}
	name, port, err := net.SplitHostPort(r.Host)
	if err != nil {
		name, port = r.Host, "80"
		if bare, ok := strings.CutPrefix(name, "["); ok {
			name = strings.TrimSuffix(bare, "]")
		}
	}
	_, portErr := strconv.ParseUint(port, 10, 16)
	address, err := netip.ParseAddr(name)
	if portErr == nil && (strings.EqualFold(name, "localhost") || err == nil && address.IsLoopback()) {
		return nil
	}
	return fmt.Errorf("host %q is no name of this machine's loopback address, want localhost or 127.0.0.1", r.Host)
}
