package stream

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/testing/must"
)

func TestAddress(t *testing.T) {
	for _, c := range []struct {
		text, want string // want is the address as it is shown
		live       bool
	}{
		{"-", "standard input", false},
		{"rtsp://door.local:554/main", "rtsp://door.local:554/main", true},
		{"RTSP://me:pass@door/main", "rtsp://***@door/main", true},
		{"rtsp://me:p@ss:w/rd@door/main", "rtsp://***@door/main", true},
		{"udp://@239.0.0.1:5004", "udp://@239.0.0.1:5004", true},
		{"rtsp://door/user=admin_password=1234_channel=1/live", "rtsp://door/***/live", true},
		{"srt://10.0.0.1:9000?passphrase=abcdefghij", "srt://10.0.0.1:9000?***", true},
		{"udp://239.0.0.1:5004?fifo_size=99", "udp://239.0.0.1:5004?fifo_size=99", true},
		{"https://token@cdn/a.m3u8?sig=1#x", "https://***@cdn/a.m3u8?***", true},
		{"/dev/null", "/dev/null", true},
	} {
		a, err := ParseAddress(c.text)
		if err != nil {
			t.Errorf("%s: %v", c.text, err)
			continue
		}
		if a.String() != c.want || a.Live() != c.live {
			t.Errorf("%s: %s, live %v; want %s, %v", c.text, a, a.Live(), c.want, c.live)
		}
	}
}

func TestAddressErrors(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		must.OK(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	for text, want := range map[string]string{
		"":                                    "source is empty",
		dir:                                   "is a folder, want a file",
		filepath.Join(dir, "none.mp4"):        "no such file",
		"gopher://me:secret@host/":            `source begins with "gopher://"; want a file, or one of http,`,
		"concat://a|b":                        `source begins with "concat://"`,
		"rtsp://door/\nfile":                  "control characters",
		"rtsp://" + strings.Repeat("x", 5000): "has 5007 characters, want at most 4096",
	} {
		_, err := ParseAddress(text)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}

	a, err := ParseAddress(write("a.sdp", "v=0\nc=IN IP4 127.0.0.1\nm=video 5004 RTP/AVP 96\n"))
	if err != nil || !a.Live() || strings.Contains(a.protocols, "http") {
		t.Errorf("session description: %+v, %v", a, err)
	}
}

// FuzzAddress looks for passwords that are shown.
func FuzzAddress(f *testing.F) {
	for _, text := range []string{"rtsp://me:hunter2@door/main?a=hunter2", "srt://h?passphrase=hunter2&x=1", "rtsp://d/password=hunter2/x"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if !strings.Contains(text, "://") {
			return
		}
		a, err := ParseAddress(text)
		if err != nil {
			return
		}
		for _, secret := range a.secrets {
			line := a.clean("error at " + a.text + ": " + secret)
			if len(secret) > len(hidden) && strings.Contains(line, secret) && !strings.Contains(a.redacted, secret) {
				t.Errorf("%q: %q shows %q", text, line, secret)
			}
		}
	})
}
