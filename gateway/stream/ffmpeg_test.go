package stream

import (
	"errors"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/openfiles"
	"github.com/penstock/penstock/wire"
)

// patience bounds each wait. On a busy machine ffmpeg needs long to start, and long for each frame.
const patience = 2 * time.Minute

// fakeInput is a source that testdata/ffmpeg reads.
func fakeInput(t *testing.T, behaviour string) Input {
	t.Helper()
	t.Setenv("FAKE_FFMPEG", behaviour)
	program, err := filepath.Abs("testdata/ffmpeg")
	must.OK(t, err)
	address, err := ParseAddress("rtsp://me:pa%20ss@door/main?key=k1234")
	must.OK(t, err)
	return Input{Address: address, FFmpeg: program, FirstFrame: patience, NextFrame: patience, Log: zerolog.Nop()}
}

// readAll reads frames until an error.
func readAll(t *testing.T, in Input) (frames []Frame, err error) {
	t.Helper()
	d, err := Open(in)
	must.OK(t, err)
	defer d.Close()
	for {
		f, err := d.Next()
		if err != nil {
			return frames, err
		}
		frames = append(frames, f)
	}
}

// Each fault of ffmpeg is one clear line, and nothing of it stays.
func TestFaults(t *testing.T) {
	for name, c := range map[string]struct {
		frames int
		want   string // io.EOF's text if the source just ended
		stalls bool
	}{
		"hang":        {0, "no frame came for 50ms; ffmpeg was ended", true},
		"stall":       {1, "no frame came for 50ms; ffmpeg was ended", true},
		"half-stall":  {0, "no frame came for 50ms; ffmpeg was ended", true},
		"half":        {0, "ffmpeg found no video frames", false},
		"half-fail":   {0, "ffmpeg failed: no more data (exit status 1)", false},
		"die":         {1, "ffmpeg was ended by a signal (killed)", false},
		"sizes":       {3, "EOF", false},
		"none":        {0, "ffmpeg found no video frames", false},
		"colours":     {0, "frame too large: 0 × 0 pixels, want at most 64 Mpixel", false},
		"undescribed": {0, "ffmpeg found no video frames", false},
		"huge":        {0, "frame too large: 99999 × 99999 pixels, want at most 64 Mpixel", false},
		"zero":        {0, "frame too large: 0 × 99999 pixels, want at most 64 Mpixel", false},
		"long":        {1, "EOF", false},
		"forged":      {1, "EOF", false},
		"secret":      {0, "ffmpeg failed: cannot open 'rtsp://***@door/main?***' as *** with *** (exit status 1)", false},
		"playlist":    {0, "source names another file or address, which may not be opened: ffmpeg: Protocol 'file' not on whitelist 'http,tcp'!", false},
		"environment": {1, "EOF", false},
	} {
		t.Run(name, func(t *testing.T) {
			openfiles.CheckLeaks(t)
			t.Setenv("FFREPORT", "file=/dev/null")
			in := fakeInput(t, name)
			if c.stalls {
				in.FirstFrame, in.NextFrame = 50*time.Millisecond, 50*time.Millisecond
				if c.frames > 0 {
					in.FirstFrame = patience
				}
			}
			frames, err := readAll(t, in)
			if len(frames) != c.frames || err.Error() != c.want {
				t.Errorf("%d frames, then %q; want %d, %q", len(frames), err, c.frames, c.want)
			}
			if errors.Is(err, io.EOF) != (c.want == "EOF") {
				t.Errorf("%v: EOF is not told from a fault", err)
			}
		})
	}
}

// A process that describes frames and writes none is ended.
func TestFlood(t *testing.T) {
	openfiles.CheckLeaks(t)
	_, err := readAll(t, fakeInput(t, "flood"))
	if err == nil || !strings.Contains(err.Error(), "ended by a signal (killed); its last error was: it described 4096 frames") {
		t.Error(err)
	}
}

func TestSizes(t *testing.T) {
	openfiles.CheckLeaks(t)
	in := fakeInput(t, "sizes")
	d, err := Open(in)
	must.OK(t, err)
	defer d.Close()
	for i, want := range []struct {
		shape wire.Picture
		pts   time.Duration
	}{
		{wire.Picture{Format: wire.FormatI420, Width: 4, Height: 2}, 0},
		{wire.Picture{Format: wire.FormatNV12, Width: 2, Height: 6}, 500 * time.Millisecond},
		{wire.Picture{Format: wire.FormatI420, Width: 2, Height: 4}, 580 * time.Millisecond}, // without a time: a frame time after the last
	} {
		f, err := d.Next()
		must.OK(t, err)
		if f.Number != uint64(i) || f.Image.Shape != want.shape || f.PTS != want.pts || len(f.Image.Pix) != want.shape.Width*want.shape.Height*3/2 {
			t.Errorf("frame %d is %v at %s, want %v at %s", f.Number, f.Image.Shape, f.PTS, want.shape, want.pts)
		}
		d.Recycle(f.Image)
	}
	if d.Rate() != 12.5 {
		t.Errorf("rate %v, want 12.5", d.Rate())
	}
}

// Close ends a process that hangs, and Next with it.
func TestClose(t *testing.T) {
	openfiles.CheckLeaks(t)
	d, err := Open(fakeInput(t, "hang"))
	must.OK(t, err)
	ended := make(chan error)
	go func() {
		_, err := d.Next()
		ended <- err
	}()
	d.Close()
	if err := <-ended; err == nil {
		t.Error("a frame came from a closed decoder")
	}
}

func TestMissing(t *testing.T) {
	openfiles.CheckLeaks(t)
	in := fakeInput(t, "none")
	for _, program := range []string{"no-such-program", "/no/such/ffmpeg"} {
		in.FFmpeg = program
		if _, err := Open(in); !errors.Is(err, ErrNoFFmpeg) {
			t.Errorf("%s: %v", program, err)
		}
	}
}

// Arguments never have a password, and name what may be opened.
func TestArguments(t *testing.T) {
	for _, c := range []struct {
		source string
		in     Input
		want   []string
		never  []string
		list   string
	}{
		{source: "rtsp://me:secret@door/main", want: []string{"-f concat", "-i pipe:3", "-protocol_whitelist pipe,rtsp,"},
			never: []string{"secret", "door", "file"}, list: "ffconcat version 1.0\nfile 'rtsp://me:secret@door/main'\noption format_whitelist " + formats + ",rtsp\noption rtsp_flags prefer_tcp\n"},
		{source: "rtsp://door/main", want: []string{"-rtsp_flags prefer_tcp -i rtsp://door/main"}, never: []string{"concat", "file"}},
		{source: "http://door/a.m3u8?token=it's", want: []string{"-i pipe:3"}, never: []string{"token", "file"},
			list: "ffconcat version 1.0\nfile 'http://door/a.m3u8?token=it'\\''s'\noption format_whitelist " + formats + moreFormats["http"] + "\n"},
		{source: "udp://239.0.0.1:5004?fifo_size=99", in: Input{Live: true}, want: []string{"-flags low_delay", "-thread_type slice", "-protocol_whitelist udp -format_whitelist " + formats + " -i udp://239.0.0.1:5004?fifo_size=99"}},
		{source: "testdata/ffmpeg", in: Input{Live: true, HWAccel: "vaapi"}, want: []string{"-hwaccel vaapi", "-re", "-protocol_whitelist file -format_whitelist " + formats + " -i file:/"}},
		{source: "testdata/ffmpeg", never: []string{"-re", "low_delay", "hwaccel"}},
		{source: "-", in: Input{Raw: &Raw{Width: 4, Height: 2, Format: "rgb24", Rate: 12.5}}, want: []string{
			"-protocol_whitelist pipe -f rawvideo -pixel_format rgb24 -video_size 4x2 -framerate 12.5 -i pipe:0"}},
	} {
		var err error
		if c.in.Address, err = ParseAddress(c.source); err != nil {
			t.Fatal(err)
		}
		args, list := c.in.arguments()
		text := strings.Join(args, " ")
		for _, want := range c.want {
			if !strings.Contains(text, want) {
				t.Errorf("%s: %s, want %s", c.source, text, want)
			}
		}
		for _, never := range c.never {
			if strings.Contains(text, never) {
				t.Errorf("%s: %s has %s", c.source, text, never)
			}
		}
		if list != c.list {
			t.Errorf("%s: list %q, want %q", c.source, list, c.list)
		}
		if !slices.Contains(args, "-nostdin") {
			t.Errorf("%s: ffmpeg may read the terminal", c.source)
		}
	}
}
