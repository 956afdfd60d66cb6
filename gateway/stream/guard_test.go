package stream

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/openfiles"
)

func TestGuardPermits(t *testing.T) {
	for _, c := range []struct {
		source, to string
		want       bool
	}{
		{"http://camera.example/a.m3u8", "192.0.2.1:80", true},
		{"http://camera.example/a.m3u8", "10.0.0.1:80", true},
		{"http://camera.example/a.m3u8", "127.0.0.1:9650", false},
		{"http://camera.example/a.m3u8", "127.1.2.3:80", false},
		{"http://camera.example/a.m3u8", "0.0.0.0:80", false},
		{"http://camera.example/a.m3u8", "[::1]:80", false},
		{"http://camera.example/a.m3u8", "[::]:80", false},
		{"http://camera.example/a.m3u8", "[::ffff:127.0.0.1]:80", false},
		{"http://camera.example/a.m3u8", "169.254.169.254:80", false},
		{"http://camera.example/a.m3u8", "[fe80::1%eth0]:80", false},
		{"http://camera.example/a.m3u8", "127.0.0.53:53", true}, // a name server
		{"http://camera.example/a.m3u8", "169.254.20.10:53", true},
		{"http://camera.example/a.m3u8", "[fe80::1%2]:53", true},
		{"http://127.0.0.1@camera.example/?127.0.0.1", "127.0.0.1:80", false},
		{"rtsp://me:p/ss@127.0.0.1:554/main", "127.0.0.1:9000", true},
		{"rtsp://127.0.0.1:554/main", "127.0.0.2:554", false},
		{"rtsp://LocalHost/main", "[::1]:554", true},
		{"rtsp://[fe80::1%25eth0]:554/main", "[fe80::1%2]:554", true},
		{"http://169.254.7.1/a", "169.254.7.1:80", true},
	} {
		a, err := ParseAddress(c.source)
		must.OK(t, err)
		if got := newGuard(a, nil).permits(netip.MustParseAddrPort(c.to)); got != c.want {
			t.Errorf("%s may connect to %s: %v, want %v", c.source, c.to, got, c.want)
		}
	}
	for _, source := range []string{"-", "guard_test.go", "srt://:9000?mode=listener", "srt://0.0.0.0:9000?mode=listener"} {
		a, err := ParseAddress(source)
		must.OK(t, err)
		if newGuard(a, nil) != nil {
			t.Errorf("%s has a guard", source)
		}
	}
}

// TestGuardLeads has sources that lead to another address of this machine, which counts its connections.
func TestGuardLeads(t *testing.T) {
	text, err := os.ReadFile(clip(t, "a.ts", "64x48"))
	must.OK(t, err)
	var reached atomic.Int64
	inner := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Write(text) }))
	inner.Listener.Close()
	if inner.Listener, err = net.Listen("tcp", "127.0.0.2:0"); err != nil {
		t.Skipf("not on this machine: needs a second loopback address: %v", err)
	}
	inner.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			reached.Add(1)
		}
	}
	inner.Start()
	t.Cleanup(inner.Close)
	playlist := func(segment string) string {
		return "#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\n" + segment + "\n#EXT-X-ENDLIST\n"
	}
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/own.m3u8":
			io.WriteString(w, playlist("/a.ts"))
		case "/segment.m3u8":
			io.WriteString(w, playlist(inner.URL+"/a.ts"))
		case "/manifest.mpd":
			fmt.Fprintf(w, `<MPD xmlns="urn:mpeg:dash:schema:mpd:2011" type="static" mediaPresentationDuration="PT1S" profiles="urn:mpeg:dash:profile:isoff-on-demand:2011">
<Period><AdaptationSet mimeType="video/mp4"><Representation id="1" bandwidth="1"><BaseURL>%s/a.ts</BaseURL></Representation></AdaptationSet></Period></MPD>`, inner.URL)
		case "/redirect":
			http.Redirect(w, r, inner.URL+"/a.ts", http.StatusFound)
		case "/key.m3u8":
			io.WriteString(w, strings.Replace(playlist("/a.ts"), "#EXTINF", `#EXT-X-KEY:METHOD=AES-128,URI="`+inner.URL+`/key"`+"\n#EXTINF", 1))
		default:
			w.Write(text)
		}
	}))
	t.Cleanup(web.Close)
	camera := redirectCamera(t, "rtsp://"+inner.Listener.Addr().String()+"/main")

	openfiles.CheckLeaks(t)
	for _, source := range []string{web.URL + "/segment.m3u8", web.URL + "/manifest.mpd", web.URL + "/redirect", web.URL + "/key.m3u8", camera} {
		frames, err := readAll(t, video(t, source))
		if len(frames) > 0 || !strings.Contains(err.Error(), "the source leads to "+inner.Listener.Addr().String()) {
			t.Errorf("%s: %d frames, %v", source, len(frames), err)
		}
	}
	if n := reached.Load(); n > 0 {
		t.Errorf("%d connections", n)
	}
	frames, err := readAll(t, video(t, web.URL+"/own.m3u8"))
	if !errors.Is(err, io.EOF) || len(frames) != 25 {
		t.Errorf("a playlist of its own address: %d frames, %v", len(frames), err)
	}
}

// redirectCamera returns the address of an RTSP server that sends its clients elsewhere.
func redirectCamera(t *testing.T, elsewhere string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must.OK(t, err)
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			sequence := "1"
			for lines := bufio.NewScanner(c); lines.Scan() && lines.Text() != ""; {
				if _, n, ok := strings.Cut(lines.Text(), "CSeq: "); ok {
					sequence = n
				}
			}
			fmt.Fprintf(c, "RTSP/1.0 302 Moved\r\nCSeq: %s\r\nLocation: %s\r\n\r\n", sequence, elsewhere)
			c.Close()
		}
	}()
	return "rtsp://" + l.Addr().String() + "/main"
}
