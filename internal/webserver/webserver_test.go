package webserver

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/testing/must"
	"github.com/rs/zerolog"
)

const testConnections = 16

// serve starts a server. change, if not nil, changes it before.
func serve(t *testing.T, handler http.HandlerFunc, change func(*Server)) *Server {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must.OK(t, err)
	s := New(l, handler, Options{Connections: testConnections, Log: zerolog.Nop()})
	if change != nil {
		change(s)
	}
	ended := make(chan error, 1)
	go func() { ended <- s.Run() }()
	t.Cleanup(func() {
		s.Close()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return s
}

func (s *Server) dial(t *testing.T) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", s.listener.Addr().String())
	must.OK(t, err)
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(20 * time.Second))
	return c
}

func (s *Server) url() string { return "http://" + s.listener.Addr().String() }

// fetch makes a request on a separate connection.
func (s *Server) fetch(t *testing.T) (int, error) {
	t.Helper()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 20 * time.Second}
	response, err := client.Get(s.url())
	if err != nil {
		return 0, err
	}
	response.Body.Close()
	return response.StatusCode, nil
}

func answer(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") }

const stalledPost = "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n"

// Clients that send less than a request lock out no other.
func TestConnectionsWithoutRequest(t *testing.T) {
	read := func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		answer(w, r)
	}
	for name, text := range map[string]string{"nothing": "", "half a header": "GET / HTTP/1.1\r\nHost: lo", "no body": stalledPost} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, read, nil)
			for range 10 * testConnections {
				io.WriteString(s.dial(t), text)
			}
			for range 5 {
				if status, err := s.fetch(t); err != nil || status != http.StatusOK {
					t.Fatalf("%d, %v", status, err)
				}
			}
			s.listener.mu.Lock()
			defer s.listener.mu.Unlock()
			if n := len(s.listener.conns); n > testConnections/2 {
				t.Errorf("%d connections of one address, want at most %d", n, testConnections/2)
			}
		})
	}
}

// A refusal reaches a client that sends no body, and ends the connection.
func TestRefusalCloses(t *testing.T) {
	s := serve(t, func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusUnauthorized) }, nil)
	c := s.dial(t)
	io.WriteString(c, stalledPost)
	began := time.Now()
	text, err := io.ReadAll(c)
	if err != nil || !strings.HasPrefix(string(text), "HTTP/1.1 401") {
		t.Errorf("%q, %v", text, err)
	}
	if took := time.Since(began); took > headerTimeout {
		t.Errorf("the connection ended after %v", took)
	}
}

// A client that has sent its whole request may use the connection again after a refusal.
func TestRefusalKeeps(t *testing.T) {
	s := serve(t, func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusUnauthorized) }, nil)
	c := s.dial(t)
	from := bufio.NewReader(c)
	for i := range 3 {
		body := strings.Repeat("x", i*1<<20)
		fmt.Fprintf(c, "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
		response, err := http.ReadResponse(from, nil)
		if err != nil || response.StatusCode != http.StatusUnauthorized {
			t.Fatalf("%+v, %v", response, err)
		}
		io.Copy(io.Discard, response.Body)
	}
}

// A body has a deadline. The wait for an answer has none of the server.
func TestReadDeadline(t *testing.T) {
	read := make(chan error, 1)
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		_, err := io.Copy(io.Discard, r.Body)
		read <- err
		if err == nil {
			time.Sleep(600 * time.Millisecond)
			if err := r.Context().Err(); err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
			}
		}
	}, func(s *Server) { s.ReadTimeout = 300 * time.Millisecond })

	io.WriteString(s.dial(t), stalledPost+"x")
	if err := <-read; err == nil {
		t.Error("a body that does not come has no deadline")
	}
	response, err := http.Post(s.url(), "text/plain", strings.NewReader("all"))
	if err != nil || response.StatusCode != http.StatusOK {
		t.Errorf("%+v, %v, want an answer after the deadline of the body", response, err)
	}
	if err := <-read; err != nil {
		t.Error(err)
	}
}

// A flood of connections does not take the place of a request in work.
func TestRequestKeepsPlace(t *testing.T) {
	begun, end := make(chan bool), make(chan bool)
	s := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		begun <- true
		<-end
	}, nil)
	status := make(chan error, 1)
	go func() {
		code, err := s.fetch(t)
		if err == nil && code != http.StatusOK {
			err = fmt.Errorf("status %d", code)
		}
		status <- err
	}()
	<-begun
	for range 10 * testConnections {
		s.dial(t)
	}
	close(end)
	if err := <-status; err != nil {
		t.Error(err)
	}
}

// fakeConn is a connection of an address that takes nothing.
type fakeConn struct {
	net.Conn
	address  string
	deadline time.Time
	writes   []int // bytes with a deadline of their own
}

func (f *fakeConn) RemoteAddr() net.Addr {
	return net.TCPAddrFromAddrPort(netip.MustParseAddrPort(f.address))
}
func (f *fakeConn) Close() error                        { return nil }
func (f *fakeConn) SetWriteDeadline(at time.Time) error { f.deadline = at; return nil }
func (f *fakeConn) Write(b []byte) (int, error) {
	if !f.deadline.IsZero() && time.Until(f.deadline) <= writeTimeout {
		f.writes = append(f.writes, len(b))
	}
	f.deadline = time.Time{}
	return len(b), nil
}

// A large answer has a deadline per part: a slow network may take longer for all of it.
func TestWriteDeadline(t *testing.T) {
	f := &fakeConn{}
	c := &conn{Conn: f}
	for _, length := range []int{0, 1, 2*writePart + 1} {
		if n, err := c.Write(make([]byte, length)); n != length || err != nil {
			t.Errorf("%d of %d bytes, %v", n, length, err)
		}
	}
	if want := []int{0, 1, writePart, writePart, 1}; !slices.Equal(f.writes, want) {
		t.Errorf("writes with a deadline of %v bytes, want %v", f.writes, want)
	}
}

// TestPlaces fills a listener of 8 places, 4 per address.
func TestPlaces(t *testing.T) {
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	must.OK(t, err)
	defer tcp.Close()
	for _, c := range []struct {
		name   string
		before string // an address per letter; upper case: its request is in work
		next   byte
		loses  int // index in before; len(before): the next one; -1: none
	}{
		{"room", "aaabbb", 'c', -1},
		{"the address's longest", "baaaa", 'a', 1},
		{"not the one in work", "Aaaa", 'a', 1},
		{"all of the address in work", "bbAAAA", 'a', 6},
		{"full: of the largest address", "cbbaaaab", 'd', 3},
		{"full: the largest in work", "cbbAAAAb", 'd', 1},
		{"full: all in work", "CBBAAAAB", 'd', 8},
		{"another of the same IPv6 network", "6666", '7', 0},
	} {
		l := newListener(tcp, 8)
		addresses := map[byte]string{'a': "192.0.2.1:1", 'b': "192.0.2.2:1", 'c': "[::ffff:192.0.2.3]:1", 'd': "192.0.2.4:1", '6': "[2001:db8::1]:1", '7': "[2001:db8::2]:1"}
		begin := time.Now()
		enter := func(i int, letter byte) (own, loser *conn) {
			f := &fakeConn{address: addresses[letter|0x20]}
			own = &conn{Conn: f, listener: l, address: addressOf(f), waiting: letter&0x20 != 0, since: begin.Add(time.Duration(i))}
			return own, l.enter(own)
		}
		var conns []*conn
		for i := range c.before {
			own, loser := enter(i, c.before[i])
			if loser != nil {
				t.Fatalf("%s: connection %d has no place", c.name, i)
			}
			conns = append(conns, own)
		}
		next, loser := enter(len(conns), c.next)
		conns = append(conns, next)
		want := (*conn)(nil)
		if c.loses >= 0 {
			want = conns[c.loses]
		}
		if loser != want {
			t.Errorf("%s: %+v lost its place, want %+v", c.name, loser, want)
		}
		for _, own := range conns {
			own.Close()
			own.Close()
		}
		if len(l.conns) > 0 || len(l.count) > 0 {
			t.Errorf("%s: %d connections and %v are left", c.name, len(l.conns), l.count)
		}
	}
}

func TestShutdown(t *testing.T) {
	s := serve(t, answer, nil)
	if status, err := s.fetch(t); err != nil || status != http.StatusOK {
		t.Fatalf("%d, %v", status, err)
	}
	if err := s.Shutdown(context.Background()); err != nil {
		t.Error(err)
	}
}

func TestCheckSite(t *testing.T) {
	type h = http.Header
	for _, c := range []struct {
		name   string
		header h
		method string
		allow  bool
	}{
		{"a program", h{}, "GET", true},
		{"own page", h{"Origin": {"http://127.0.0.1:9651"}, "Sec-Fetch-Site": {"same-origin"}}, "POST", true},
		{"typed address", h{"Sec-Fetch-Site": {"none"}, "Sec-Fetch-Mode": {"navigate"}, "Sec-Fetch-Dest": {"document"}}, "GET", true},
		{"link", h{"Sec-Fetch-Site": {"cross-site"}, "Sec-Fetch-Mode": {"navigate"}, "Sec-Fetch-Dest": {"document"}}, "GET", true},
		{"form", h{"Sec-Fetch-Site": {"cross-site"}, "Sec-Fetch-Mode": {"navigate"}, "Sec-Fetch-Dest": {"document"}}, "POST", false},
		{"frame", h{"Sec-Fetch-Site": {"cross-site"}, "Sec-Fetch-Mode": {"navigate"}, "Sec-Fetch-Dest": {"iframe"}}, "GET", false},
		{"picture of another site", h{"Sec-Fetch-Site": {"cross-site"}, "Sec-Fetch-Mode": {"no-cors"}, "Sec-Fetch-Dest": {"image"}}, "GET", false},
		{"another port of this machine", h{"Sec-Fetch-Site": {"same-site"}, "Sec-Fetch-Mode": {"no-cors"}}, "GET", false},
		{"two sites", h{"Sec-Fetch-Site": {"same-origin", "cross-site"}}, "GET", false},
		{"other origin", h{"Origin": {"http://evil.example"}}, "GET", false},
		{"no origin", h{"Origin": {"null"}}, "GET", false},
		{"two origins", h{"Origin": {"http://127.0.0.1:9651", "http://evil.example"}}, "GET", false},
	} {
		r := httptest.NewRequest(c.method, "http://127.0.0.1:9651/", nil)
		r.Header = c.header
		if err := CheckSite(r); (err == nil) != c.allow {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

func TestCheckLoopbackHost(t *testing.T) {
	for host, allow := range map[string]bool{
		"localhost": true, "LOCALHOST:9651": true, "127.0.0.1:1": true, "127.9.9.9": true, "[::1]": true, "[::1]:9651": true, "::1": true, "localhost:": false,
		"localhost:evil.com": false, "localhost:0x50": false, "localhost:99999": false, "localhost:-1": false, "127.0.0.1:80:evil.com": false,
		"evil.com": false, "evil.com:9651": false, "localhost.evil.com": false, "10.0.0.1": false, "": true,
	} {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Host = host
		if err := CheckLoopbackHost(r); (err == nil) != allow {
			t.Errorf("%q: %v", host, err)
		}
	}
}
