package stream

import (
	"context"
	"errors"
	"fmt"
	"image"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/penstock/penstock/gateway/functions"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/openfiles"
	"github.com/penstock/penstock/internal/testing/videotest"
	"github.com/penstock/penstock/wire"
)

// video is the source at an address, with the installed ffmpeg.
func video(t testing.TB, address string) Input {
	t.Helper()
	videotest.NeedFFmpeg(t)
	a, err := ParseAddress(address)
	must.OK(t, err)
	return Input{Address: a, Live: a.Live(), FirstFrame: patience, NextFrame: patience, Log: zerolog.Nop()}
}

// clip writes a second of test pattern, 25 frames.
func clip(t testing.TB, name, size string, codec ...string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	if len(codec) == 0 {
		codec = []string{"-c:v", "libx264", "-pix_fmt", "yuv420p"}
	}
	args := append([]string{"-f", "lavfi", "-i", "testsrc=size=" + size + ":rate=25:duration=1"}, codec...)
	videotest.Run(t, append(args, file)...)
	return file
}

// A file whose size changes gives frames of both sizes, all of them, with their times.
func TestVideoFile(t *testing.T) {
	videotest.NeedFFmpeg(t)
	first, second := clip(t, "a.h264", "320x240"), clip(t, "b.h264", "240x320")
	var all []byte
	for _, file := range []string{first, second} {
		text, err := os.ReadFile(file)
		must.OK(t, err)
		all = append(all, text...)
	}
	file := filepath.Join(t.TempDir(), "both.h264")
	must.OK(t, os.WriteFile(file, all, 0o600))

	openfiles.CheckLeaks(t)
	frames, err := readAll(t, video(t, file))
	if !errors.Is(err, io.EOF) || len(frames) != 50 {
		t.Fatalf("%d frames, %v", len(frames), err)
	}
	for i, f := range frames {
		want := image.Pt(320, 240)
		if i >= 25 {
			want = image.Pt(240, 320)
		}
		if f.Image.Bounds().Size() != want || f.PTS != time.Duration(i)*40*time.Millisecond {
			t.Errorf("frame %d is %v at %s", i, f.Image.Shape, f.PTS)
		}
	}
}

// A frame has the decoder's format if that is 4:2:0, the colours of its source, and the largest even size that fits.
func TestShapes(t *testing.T) {
	videotest.NeedFFmpeg(t)
	for name, c := range map[string]struct {
		source, format string
		largest        int
		want           wire.Picture
	}{
		"4:2:0":      {"64x48", "yuv420p", 64 * 48 * 3 / 2, wire.Picture{Format: wire.FormatI420, Width: 64, Height: 48}},
		"pairs":      {"64x48", "nv12", 0, wire.Picture{Format: wire.FormatNV12, Width: 64, Height: 48}},
		"full range": {"64x48", "yuvj420p", 0, wire.Picture{Format: wire.FormatI420, Width: 64, Height: 48, Colours: wire.FullRange}},
		"BT.709": {"64x48", "rgb24,scale=out_color_matrix=bt709,format=yuv420p,setparams=colorspace=bt709", 64 * 48 * 3 / 2,
			wire.Picture{Format: wire.FormatI420, Width: 64, Height: 48, Colours: wire.BT709}},
		"BT.709 of full range": {"64x48", "rgb24,scale=out_color_matrix=bt709:out_range=pc,format=nv12,setparams=colorspace=bt709:range=pc", 0,
			wire.Picture{Format: wire.FormatNV12, Width: 64, Height: 48, Colours: wire.BT709 | wire.FullRange}},
		"BT.2020, shrunk": {"640x480", "rgb24,scale=out_color_matrix=bt2020,format=yuv420p,setparams=colorspace=bt2020nc", 64 * 48 * 3 / 2,
			wire.Picture{Format: wire.FormatI420, Width: 64, Height: 48, Colours: wire.BT2020}},
		"transparent": {"64x48", "rgba", 0, wire.Picture{Format: wire.FormatI420, Width: 64, Height: 48}},
		"odd":         {"65x49", "yuv444p", 0, wire.Picture{Format: wire.FormatI420, Width: 64, Height: 48}},
		"too large":   {"640x480", "yuv420p", 64 * 48 * 3 / 2, wire.Picture{Format: wire.FormatI420, Width: 64, Height: 48}},
		"a line":      {"640x2", "gray,crop=640:1:exact=1", 0, wire.Picture{Format: wire.FormatI420, Width: 640, Height: 2, Colours: wire.FullRange}},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "a.mkv")
			codec := "rawvideo"
			if name == "odd" {
				codec = "ffv1" // ffmpeg pads the rows of such raw video
			}
			videotest.Run(t, "-f", "lavfi", "-i", "color=c=red:size="+c.source, "-frames:v", "1", "-c:v", codec, "-allow_raw_vfw", "1", "-vf", "format="+c.format, file)
			in := video(t, file)
			in.Largest = c.largest
			frames, err := readAll(t, in)
			if !errors.Is(err, io.EOF) || len(frames) != 1 || frames[0].Image.Shape != c.want {
				t.Fatalf("%v, %v; want %v", frames, err, c.want)
			}
			if p := frames[0].Image.RGBA(image.Pt(2, 2)).RGBAAt(1, 1); c.want.Height > 2 && (p.R < 250 || p.G > 5 || p.B > 5 || p.A != 255) {
				t.Errorf("red is %v", p)
			}
		})
	}
}

// Standard input is read in a container and, with a description, raw.
func TestStandardInput(t *testing.T) {
	for name, c := range map[string]struct {
		file string
		raw  *Raw
	}{
		"container": {clip(t, "a.ts", "320x240"), nil},
		"raw":       {clip(t, "a.yuv", "320x240", "-f", "rawvideo", "-pix_fmt", "gray"), &Raw{320, 240, "gray", 25}},
	} {
		t.Run(name, func(t *testing.T) {
			file, err := os.Open(c.file)
			must.OK(t, err)
			defer file.Close()
			before := os.Stdin
			os.Stdin = file
			defer func() { os.Stdin = before }()

			in := video(t, Stdin)
			in.Raw = c.raw
			frames, err := readAll(t, in)
			if !errors.Is(err, io.EOF) || len(frames) != 25 || frames[24].PTS != 960*time.Millisecond || frames[24].Image.Bounds().Size() != image.Pt(320, 240) {
				t.Errorf("%d frames, %v", len(frames), err)
			}
		})
	}
}

// Each frame comes before its successor is sent: no thread of ffmpeg holds frames back.
func TestDelay(t *testing.T) {
	const frames = 20
	read, write, err := os.Pipe()
	must.OK(t, err)
	defer read.Close()
	defer write.Close()
	before := os.Stdin
	os.Stdin = read
	defer func() { os.Stdin = before }()

	in := video(t, Stdin)
	in.Raw = &Raw{Width: videotest.Side, Height: videotest.Side, Format: "rgb24", Rate: 25}
	d, err := Open(in)
	must.OK(t, err)
	defer d.Close()
	var stalled atomic.Bool
	defer time.AfterFunc(patience, func() {
		stalled.Store(true)
		d.Close()
	}).Stop()
	for n := range frames {
		must.Get(write.Write(videotest.Pixels(n)))(t)
		f, err := d.Next()
		if stalled.Load() {
			t.Fatalf("frame %d did not come before the next one was sent", n)
		}
		must.OK(t, err)
		if got, ok := videotest.Number(f.Image); !ok || got != n {
			t.Fatalf("frame %d is number %d, %v", n, got, ok)
		}
	}
}

// server is a web server with a password.
func server(t *testing.T, files map[string]string) (address string) {
	t.Helper()
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		user, password, _ := r.BasicAuth()
		if user != "me" || password != "top secret" {
			w.Header().Set("WWW-Authenticate", `Basic realm="camera"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		io.WriteString(w, files[r.URL.Path])
	}))
	t.Cleanup(web.Close)
	return strings.TrimPrefix(web.URL, "http://")
}

// commandLine is that of ffmpeg.
func commandLine(t *testing.T, d *Decoder) string {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", d.process.process.Pid))
	must.OK(t, err)
	return string(text)
}

// ffmpeg sends the password of an address, which its command line and its errors do not show.
func TestPassword(t *testing.T) {
	text, err := os.ReadFile(clip(t, "a.ts", "320x240"))
	must.OK(t, err)
	address := server(t, map[string]string{"/a.ts": string(text)})
	d, err := Open(video(t, "http://me:top%20secret@"+address+"/a.ts"))
	must.OK(t, err)
	defer d.Close()
	// A process that is just being started has no command line yet. After the first frame it waits
	// until the others are read.
	if _, err := d.Next(); err != nil {
		t.Error(err)
	}
	if line := commandLine(t, d); strings.Contains(line, "secret") || !strings.Contains(line, "ffmpeg") {
		t.Errorf("command line %q", line)
	}

	camera := videotest.NewCamera(t, "me", "top secret")
	for _, source := range []string{"http://me:wrong%20one@" + address + "/a.ts", "rtsp://me:wrong%20one@" + camera.Address + "/main"} {
		_, err = readAll(t, video(t, source))
		if err == nil || strings.Contains(err.Error(), "wrong") || !strings.Contains(err.Error(), "401") {
			t.Errorf("wrong password: %v", err)
		}
	}
}

// A playlist from the network cannot name files, with and without a password.
func TestPlaylist(t *testing.T) {
	file := clip(t, "a.ts", "320x240")
	playlist := "#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nfile://" + file + "\n#EXT-X-ENDLIST\n"
	address := server(t, map[string]string{"/a.m3u8": playlist})
	open := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, playlist) }))
	t.Cleanup(open.Close)
	for _, source := range []string{"http://me:top%20secret@" + address + "/a.m3u8", open.URL + "/a.m3u8"} {
		frames, err := readAll(t, video(t, source))
		if len(frames) > 0 || !strings.Contains(err.Error(), "source names another file or address") {
			t.Errorf("%s: %d frames, %v", source, len(frames), err)
		}
	}
}

// Files of common formats are read.
func TestFormats(t *testing.T) {
	for name, codec := range map[string][]string{
		"a.mp4": nil, "a.mov": nil, "a.mkv": nil, "a.ts": nil, "a.flv": nil, "a.nut": nil, "a.h264": nil, "a.m4v": {"-c:v", "mpeg4"},
		"a.mpg": {"-c:v", "mpeg2video"}, "a.avi": {"-c:v", "mpeg4"}, "a.wmv": {"-c:v", "wmv2"}, "a.mjpeg": {"-c:v", "mjpeg"}, "a.gif": {"-c:v", "gif"},
		"a.y4m": {"-pix_fmt", "yuv420p"}, "a.png": {"-frames:v", "1"}, "a.jpg": {"-frames:v", "1"}, "a.bmp": {"-frames:v", "1"}, "a.tiff": {"-frames:v", "1"},
	} {
		t.Run(name, func(t *testing.T) {
			frames, err := readAll(t, video(t, clip(t, name, "64x48", codec...)))
			if want := 25; !errors.Is(err, io.EOF) || len(frames) != want && (len(frames) != 1 || len(codec) == 0 || codec[0] != "-frames:v") {
				t.Errorf("%d frames, %v; want %d", len(frames), err, want)
			}
		})
	}
}

// A file that names others is refused, however late its format shows, and on standard input too.
func TestFileNamesOthers(t *testing.T) {
	other := clip(t, "other.mp4", "64x48", "-c:v", "libx264", "-pix_fmt", "yuv420p", "-movflags", "+dash+frag_keyframe+empty_moov")
	manifest := `<MPD xmlns="urn:mpeg:dash:schema:mpd:2011" type="static" mediaPresentationDuration="PT1S" profiles="urn:mpeg:dash:profile:isoff-on-demand:2011">
<Period><AdaptationSet mimeType="video/mp4"><Representation id="1" codecs="avc1.64000a" bandwidth="1" width="64" height="48"><BaseURL>file://` + other + `</BaseURL></Representation></AdaptationSet></Period></MPD>`
	comment := "<!-- " + strings.Repeat("x", 100) + " -->\n"
	for name, text := range map[string]string{
		"dash.mpd":       `<?xml version="1.0"?>` + "\n" + manifest,
		"comment.mpd":    comment + `<?xml version="1.0"?>` + manifest,
		"comment.mp4":    comment + manifest,
		"playlist.m3u8":  "#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nfile://" + other + "\n#EXT-X-ENDLIST\n",
		"concat.txt":     "ffconcat version 1.0\nfile '" + other + "'\n",
		"image.svg":      `<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"><image href="` + other + `"/></svg>`,
		"text.txt":       "only text\n",
		"session.v0.txt": "\nv=0\nm=video 5004 RTP/AVP 96\n",
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), name)
			must.OK(t, os.WriteFile(file, []byte(text), 0o600))
			frames, err := readAll(t, video(t, file))
			if len(frames) > 0 || !strings.Contains(err.Error(), "source is no video of a known format") && !strings.Contains(err.Error(), "Invalid data found") {
				t.Errorf("%d frames, %v", len(frames), err)
			}

			input, err := os.Open(file)
			must.OK(t, err)
			defer input.Close()
			before := os.Stdin
			os.Stdin = input
			defer func() { os.Stdin = before }()
			if frames, err := readAll(t, video(t, Stdin)); len(frames) > 0 || errors.Is(err, io.EOF) {
				t.Errorf("standard input: %d frames, %v", len(frames), err)
			}
		})
	}
}

// numbers is an Inferrer that reads the numbers of videotest's frames.
type numbers struct{ seen chan int }

func (n numbers) LargestPicture(string) int { return 0 }

func (n numbers) Infer(ctx context.Context, _ string, photo image.Image) (functions.Answer, []functions.Item, error) {
	number, ok := videotest.Number(photo)
	if !ok {
		return functions.Answer{}, nil, nil
	}
	select {
	case n.seen <- number:
	case <-ctx.Done():
	}
	return functions.Answer{}, nil, nil
}

// Frames over the network are the sender's, in its order.
func TestNetwork(t *testing.T) {
	const fps, enough = 30, 20
	openfiles.CheckLeaks(t) // after the camera has ended
	port := videotest.Port(t)
	camera := videotest.NewCamera(t, "me", "top secret")
	for name, c := range map[string]struct {
		source string
		output []string
	}{
		"rtsp": {"rtsp://me:top%20secret@" + camera.Address + "/main", []string{"-f", "rtp", camera.Source}},
		"rtp":  {videotest.Session(t, port), []string{"-f", "rtp", fmt.Sprintf("rtp://127.0.0.1:%d", port)}},
		"udp":  {fmt.Sprintf("udp://127.0.0.1:%d", port), []string{"-f", "mpegts", fmt.Sprintf("udp://127.0.0.1:%d?pkt_size=1316", port)}},
	} {
		t.Run(name, func(t *testing.T) {
			in := video(t, c.source)
			if !in.Live {
				t.Fatal("source is not live")
			}
			sender := videotest.Send(t, fps, slices.Concat(videotest.H264(fps), c.output)...)
			defer sender.Stop()
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			node := numbers{make(chan int)}
			ended := make(chan error)
			go func() { ended <- Run(ctx, Options{Input: in, To: []string{"a"}, Node: node}) }()

			last, others := -1, 0
			for right := 0; right < enough; {
				select {
				case n := <-node.seen:
					// A lost packet may damage a frame, and its number.
					if n > last && !sender.SentAt(n).IsZero() {
						right++
						last = n
					} else if others++; others > enough {
						t.Fatalf("%d frames were not in the sender's order", others)
					}
				case err := <-ended:
					t.Fatalf("the stream ended: %v", err)
				}
			}
			cancel()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		})
	}
}

// An annotated video has a frame for each of the source, with the boxes on it. A pause of a live
// source is filled with its last frame.
func TestAnnotate(t *testing.T) {
	for name, c := range map[string]struct {
		skip bool // answer every fifth frame only
		size string
	}{
		"every frame": {false, "321x241"},
		"every fifth": {true, "320x240"},
	} {
		t.Run(name, func(t *testing.T) {
			source := clip(t, "a.mp4", c.size, "-c:v", "libx264", "-pix_fmt", "yuv444p")
			openfiles.CheckLeaks(t)
			file := filepath.Join(t.TempDir(), "out.mp4")
			a, err := NewAnnotator(file, "", []string{"a"})
			must.OK(t, err)
			_, err = collectInto(t, Options{
				Input: video(t, source), To: []string{"a"}, Node: inferrer(func(context.Context, string) error { return nil }),
				Shown: func(f Frame, d *Decoder) error {
					if c.skip && f.Number%5 != 0 && f.Number != 24 {
						return nil
					}
					return a.Write(f, d.Rate())
				},
			}, a.Observe)
			must.OK(t, err)
			must.OK(t, a.Close())
			frames, err := readAll(t, video(t, file))
			if !errors.Is(err, io.EOF) || len(frames) != 25 {
				t.Fatalf("%d frames, %v", len(frames), err)
			}
			// The box is the whole picture, and its frame is red.
			for _, f := range frames {
				if p := f.Image.RGBA(f.Image.Bounds().Size()).RGBAAt(1, 120); p.R < 150 || p.G > 100 || p.B > 100 {
					t.Errorf("frame %d has %v at the left, want red", f.Number, p)
				}
			}
		})
	}
}

// collectInto is collect with another observer, too.
func collectInto(t *testing.T, o Options, observe func(Result)) (n int, err error) {
	t.Helper()
	o.Observe = func(r Result) error {
		n++
		observe(r)
		return nil
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	return n, Run(ctx, o)
}

func TestAnnotateErrors(t *testing.T) {
	videotest.NeedFFmpeg(t)
	openfiles.CheckLeaks(t)
	if _, err := NewAnnotator("out", "", nil); err == nil || !strings.Contains(err.Error(), "no ending") {
		t.Error(err)
	}
	frame := Frame{Image: raw(64, 64)}
	for name, want := range map[string]string{
		filepath.Join(t.TempDir(), "none", "out.mp4"): "No such file or directory",
		filepath.Join(t.TempDir(), "out.docx"):        "nable to find a suitable output format",
	} {
		a, err := NewAnnotator(name, "", []string{"a"})
		must.OK(t, err)
		for i := range 1000 { // until the pipe is full, at the latest
			frame.PTS = time.Duration(i) * 40 * time.Millisecond
			if err = a.Write(frame, 25); err != nil {
				break
			}
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
		a.Close()
	}
}
