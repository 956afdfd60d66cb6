package operator

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/testing/must"
)

// TestHTTPAgents asks agents that answer, and hostile ones.
func TestHTTPAgents(t *testing.T) {
	release := make(chan struct{})
	t.Cleanup(func() { close(release) })
	status := func(code int) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/drained" || r.URL.Query().Get("segment") != "f-1" {
				code = http.StatusTeapot
			}
			w.WriteHeader(code)
		}
	}
	first := true
	for name, c := range map[string]struct {
		handler http.HandlerFunc
		want    bool
		silent  bool
		fails   bool
	}{
		"yes":   {handler: status(http.StatusOK), want: true},
		"no":    {handler: status(http.StatusServiceUnavailable)},
		"error": {handler: status(http.StatusInternalServerError), fails: true},
		"ends the connection, then yes": {handler: func(w http.ResponseWriter, r *http.Request) {
			if first {
				first = false
				panic(http.ErrAbortHandler)
			}
		}, want: true},
		"redirects for ever": {handler: func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, r.URL.String(), http.StatusFound)
		}, fails: true},
		"never answers": {handler: func(w http.ResponseWriter, r *http.Request) { <-release }, silent: true},
		"endless body": {handler: func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusServiceUnavailable)
			for r.Context().Err() == nil {
				w.Write(make([]byte, 1<<16))
			}
		}},
		"no agent": {silent: true},
	} {
		t.Run(name, func(t *testing.T) {
			var port int
			if c.handler != nil {
				s := httptest.NewUnstartedServer(c.handler)
				s.Config.ErrorLog = nil
				s.Start()
				port = int(must.Get(netip.ParseAddrPort(s.Listener.Addr().String()))(t).Port())
				t.Cleanup(s.CloseClientConnections)
			} else {
				l := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
				port = l.Addr().(*net.TCPAddr).Port
				l.Close()
			}
			start := time.Now()
			got, err := NewHTTPAgents(port).Ask(context.Background(), "127.0.0.1", drained, "f-1")
			switch {
			case got != c.want || errors.Is(err, ErrSilent) != c.silent || (err != nil) != (c.fails || c.silent):
				t.Errorf("%v, %v; want %v, silent %v, an error %v", got, err, c.want, c.silent, c.fails)
			case c.silent && time.Since(start) < silence:
				t.Errorf("called silent after %s, want %s", time.Since(start), silence)
			}
		})
	}
}

// TestHTTPRates reads pages of rates, and hostile ones.
func TestHTTPRates(t *testing.T) {
	release := make(chan struct{})
	t.Cleanup(func() { close(release) })
	page := func(text string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/rates" {
				w.WriteHeader(http.StatusTeapot)
			}
			fmt.Fprint(w, text)
		}
	}
	for name, c := range map[string]struct {
		handler http.HandlerFunc
		want    int // functions
		silent  bool
		fails   bool
	}{
		"two functions":    {handler: page(`{"functions":[{"name":"f","offered":18446744073709551615},{"name":"g","offered":0,"ready":true}]}`), want: 2},
		"no functions":     {handler: page(`{"functions":[]}`)},
		"negative counter": {handler: page(`{"functions":[{"name":"f","offered":-1}]}`), fails: true},
		"garbage":          {handler: page("\x00<html>"), fails: true},
		"empty":            {handler: page(""), fails: true},
		"error":            {handler: func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) }, fails: true},
		"never answers":    {handler: func(http.ResponseWriter, *http.Request) { <-release }, silent: true},
		"stops in the middle": {handler: func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprint(w, `{"functions":[`)
			w.(http.Flusher).Flush()
			<-release
		}, silent: true},
		"endless": {handler: func(w http.ResponseWriter, r *http.Request) {
			for text := `{"functions":[`; r.Context().Err() == nil; text = strings.Repeat(`{"name":"f"},`, 1000) {
				fmt.Fprint(w, text)
			}
		}, fails: true},
	} {
		t.Run(name, func(t *testing.T) {
			s := httptest.NewServer(c.handler)
			t.Cleanup(s.CloseClientConnections)
			port := int(must.Get(netip.ParseAddrPort(s.Listener.Addr().String()))(t).Port())
			got, err := NewHTTPAgents(port).Rates(t.Context(), "127.0.0.1")
			if err == nil && len(got) != c.want || errors.Is(err, ErrSilent) != c.silent || (err != nil) != (c.fails || c.silent) {
				t.Errorf("%v, %v; want %d functions, silent %v, an error %v", got, err, c.want, c.silent, c.fails)
			}
		})
	}
}
