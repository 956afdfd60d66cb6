// Package videotest sends videos with the installed ffmpeg. Its frames are numbered, so that a
// test knows when a frame that it received was sent.
package videotest

import (
	"bytes"
	"fmt"
	"image"
	"image/color"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/freeport"
	"github.com/penstock/penstock/internal/testing/must"
)

// NeedFFmpeg skips the test if ffmpeg is not installed.
func NeedFFmpeg(t testing.TB) {
	t.Helper()
	if _, err := exec.LookPath("ffmpeg"); err != nil {
		t.Skip("ffmpeg is not installed: apt-get install ffmpeg (.ci/run installs it)")
	}
}

// Run runs ffmpeg to its end.
func Run(t testing.TB, args ...string) {
	t.Helper()
	NeedFFmpeg(t)
	out, err := exec.Command("ffmpeg", append([]string{"-hide_banner", "-loglevel", "error", "-nostdin", "-y"}, args...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("ffmpeg %q: %v\n%s", args, err, out)
	}
}

// The frames: 4 × 4 blocks, each a bit of the number and of its check, large enough to survive
// a codec.
const (
	Side  = 128 // pixels of a frame's side
	grid  = 4   // blocks in a row
	block = Side / grid
	bits  = 12 // of a number; the other blocks have the check
	// Numbers is how many numbers there are.
	Numbers = 1 << bits
)

// check is chosen so that a black and a white picture have no number.
func check(n int) int { return (n ^ n>>4 ^ n>>8 ^ 0b0110) & 0b1111 }

// Pixels returns frame n as rgb24.
func Pixels(n int) []byte {
	n %= Numbers
	word := n | check(n)<<bits
	out := make([]byte, 0, 3*Side*Side)
	for y := range Side {
		for x := range Side {
			v := byte(0)
			if word>>(y/block*grid+x/block)&1 == 1 {
				v = 0xff
			}
			out = append(out, v, v, v)
		}
	}
	return out
}

// Number reads the number of a frame that was decoded.
func Number(frame image.Image) (n int, ok bool) {
	if frame.Bounds().Size() != image.Pt(Side, Side) {
		return 0, false
	}
	word := 0
	for i := range grid * grid {
		at := frame.Bounds().Min.Add(image.Pt(i%grid*block+block/2, i/grid*block+block/2))
		if color.GrayModel.Convert(frame.At(at.X, at.Y)).(color.Gray).Y >= 0x80 {
			word |= 1 << i
		}
	}
	n = word & (Numbers - 1)
	return n, check(n) == word>>bits
}

// Sender sends numbered frames at a rate until the test ends or Stop.
type Sender struct {
	mu   sync.Mutex
	sent [Numbers]time.Time

	stop  chan struct{}
	ended sync.WaitGroup
	once  sync.Once
}

// H264 are arguments that encode without delay, with a key frame every second.
func H264(fps int) []string {
	return []string{"-c:v", "libx264", "-preset", "ultrafast", "-tune", "zerolatency", "-pix_fmt", "yuv420p", "-g", fmt.Sprint(fps)}
}

// Send starts a sender. The arguments are those of ffmpeg's output.
func Send(t testing.TB, fps int, output ...string) *Sender {
	t.Helper()
	NeedFFmpeg(t)
	args := append([]string{"-hide_banner", "-loglevel", "error", "-nostdin", "-probesize", "32", "-f", "rawvideo", "-pixel_format", "rgb24",
		"-video_size", fmt.Sprintf("%dx%d", Side, Side), "-framerate", fmt.Sprint(fps), "-i", "pipe:0"}, output...)
	command := exec.Command("ffmpeg", args...)
	var stderr bytes.Buffer
	command.Stderr = &stderr
	in, err := command.StdinPipe()
	if err == nil {
		err = command.Start()
	}
	if err != nil {
		t.Fatalf("start ffmpeg: %v", err)
	}
	s := &Sender{stop: make(chan struct{})}
	s.ended.Go(func() {
		s.write(in, fps)
		in.Close()
		time.AfterFunc(5*time.Second, func() { command.Process.Kill() }) // does nothing to one that has ended
		if err := command.Wait(); err != nil {
			t.Logf("sender: %v %s", err, stderr.Bytes())
		}
	})
	t.Cleanup(s.Stop)
	return s
}

func (s *Sender) write(to io.Writer, fps int) {
	tick := time.NewTicker(time.Second / time.Duration(fps))
	defer tick.Stop()
	for n := 0; ; n++ {
		pixels := Pixels(n)
		s.mu.Lock()
		s.sent[n%Numbers] = time.Now()
		s.mu.Unlock()
		if _, err := to.Write(pixels); err != nil {
			return
		}
		select {
		case <-tick.C:
		case <-s.stop:
			return
		}
	}
}

// SentAt returns when the last frame with that number was given to the encoder.
func (s *Sender) SentAt(n int) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sent[n]
}

// Stop ends the sender. It may be called again.
func (s *Sender) Stop() {
	s.once.Do(func() { close(s.stop) })
	s.ended.Wait()
}

// Port returns an even UDP port that is free, as is the next one (RTP and RTCP).
func Port(t testing.TB) int {
	t.Helper()
	at, err := freeport.Find()
	must.OK(t, err)
	return int(at.Port())
}

// Session writes a session description (SDP) of H.264 over RTP to a port of this machine, and
// returns its file.
func Session(t testing.TB, port int) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "camera.sdp")
	text := fmt.Sprintf("v=0\r\no=- 0 0 IN IP4 127.0.0.1\r\ns=camera\r\nc=IN IP4 127.0.0.1\r\nt=0 0\r\nm=video %d RTP/AVP 96\r\n"+
		"a=rtpmap:96 H264/90000\r\na=fmtp:96 packetization-mode=1\r\n", port)
	must.OK(t, os.WriteFile(file, []byte(text), 0o600))
	return file
}
