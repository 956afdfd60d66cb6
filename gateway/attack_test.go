package gateway

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/penstock/penstock/internal/freeport"
	"github.com/penstock/penstock/internal/testing/clienttest"
	"github.com/penstock/penstock/internal/testing/must"
)

// runGateway runs a gateway for the fake node that wants a token, which is in authorization.
func runGateway(t *testing.T, answer clienttest.Handler) (address, authorization string) {
	t.Helper()
	at, err := freeport.Find()
	must.OK(t, err)
	o := Options{Address: netip.AddrPortFrom(netip.IPv4Unspecified(), at.Port()), Dir: fakeNode(t, answer), Log: zerolog.Nop()}
	ready, ended := make(chan netip.AddrPort, 1), make(chan error, 1)
	ctx := t.Context()
	go func() { ended <- Run(ctx, o, func(a netip.AddrPort) { ready <- a }) }()
	t.Cleanup(func() {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	<-ready
	token, err := os.ReadFile(filepath.Join(o.Dir, TokenFile))
	must.OK(t, err)
	return at.String(), "Bearer " + strings.TrimSpace(string(token))
}

// Requests without a token and without their bodies do not stop other clients.
func TestStalledRequests(t *testing.T) {
	address, authorization := runGateway(t, oneBox)
	for range maxConnections + 6 {
		c, err := net.Dial("tcp", address)
		must.OK(t, err)
		defer c.Close()
		io.WriteString(c, "POST /v2/models/finder/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n")
	}
	client := http.Client{Timeout: 10 * time.Second}
	request, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+"/v2", nil)
	request.Header.Set("Authorization", authorization)
	response, err := client.Do(request)
	must.OK(t, err)
	response.Body.Close()
	if response.StatusCode != http.StatusOK {
		t.Error(response.Status)
	}
}

// Each error is JSON, also those that net/http makes.
func TestErrorsAreJSON(t *testing.T) {
	web := newGateway(t, oneBox)
	for path, want := range map[string]string{
		"GET /nope":                                       `{"error":"no such path: \"/nope\""}`,
		"GET /v2/models/finder/nope":                      `{"error":"no such path: \"/v2/models/finder/nope\""}`,
		"GET /v2/models/finder/infer":                     `{"error":"method of \"/v2/models/finder/infer\" is GET, want POST"}`,
		"GET /v2/models/nope/config":                      `{"error":"Request for unknown model: no such function: \"nope\"`,
		"GET /v2/models/nope/stats":                       `{"error":"Request for unknown model: no such function: \"nope\"`,
		"POST /inference.GRPCInferenceService/ServerLive": `{"error":`,
		"POST /v2":               `want GET, HEAD"}`,
		"GET /api/clip/nope.jpg": `{"error":"no such path`,
		"GET /api/wall/nope":     `{"error":"function \"nope\" has no picture`,
		"GET /vendor/nope":       `{"error":"no such path`,
	} {
		method, path, _ := strings.Cut(path, " ")
		request, _ := http.NewRequestWithContext(t.Context(), method, web.URL+path, nil)
		response, text := do(t, request)
		if media := response.Header.Get("Content-Type"); !strings.Contains(text, want) || media != "application/json" || response.StatusCode < 404 {
			t.Errorf("%s %s: %s, %s: %s", method, path, response.Status, media, text)
		}
	}
	request, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, web.URL+"/api/camera?function=finder", nil)
	if response, text := do(t, request); response.StatusCode != http.StatusUpgradeRequired || !strings.HasPrefix(text, `{"error":`) {
		t.Error(fmt.Sprint(response.Status, text))
	}
}

// The first request to a gateway that starts finds the functions of its node.
func TestFirstRequest(t *testing.T) {
	address, authorization := runGateway(t, oneBox)
	request, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+"/v2/models/finder", nil)
	request.Header.Set("Authorization", authorization)
	response, err := http.DefaultClient.Do(request)
	must.OK(t, err)
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(response.Body)
		t.Errorf("%d: %s", response.StatusCode, text)
	}
}
