package e2e

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"image"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/internal/testing/cameratest"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/nodetest"
	"github.com/penstock/penstock/internal/testing/videotest"
	"github.com/penstock/penstock/internal/testing/wait"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/models/picture"
	"github.com/penstock/penstock/node"
	"github.com/penstock/penstock/wire"
)

// The pictures of these tests.
const cameraWidth, cameraHeight = 64, 48

// cameraCard writes a card of a model that answers with a digest of the tensor.
func cameraCard(t *testing.T, channels int) string {
	t.Helper()
	path := nodetest.Card(t, "digest", 1024)
	text, err := os.ReadFile(path)
	must.OK(t, err)
	size := fmt.Sprintf("size: [%d, %d, %d]", cameraHeight, cameraWidth, channels)
	must.OK(t, os.WriteFile(path, bytes.Replace(text, []byte("size: [1, 1024, 1]"), []byte(size), 1), 0o600))
	return path
}

// cameraAnswer is a line of examples/cameras/answers.py.
type cameraAnswer struct {
	Picture uint32    `json:"picture"`
	Status  string    `json:"status"`
	Missing int       `json:"missing"`
	Values  []float32 `json:"values"`
	Boxes   []struct {
		Box [4]float64 `json:"box"`
	} `json:"boxes"`
}

// answersAt starts examples/cameras/answers.py, and returns its address and its lines.
func answersAt(t *testing.T) (address string, lines <-chan cameraAnswer) {
	t.Helper()
	address = freePort(t).String()
	out := startProgram(t, "/usr/bin/python3", absolute(t, "../../examples/cameras/answers.py"), address)
	all := make(chan cameraAnswer, 1000)
	go func() {
		defer close(all)
		for scanner := bufio.NewScanner(out); scanner.Scan(); {
			var a cameraAnswer
			if err := json.Unmarshal(scanner.Bytes(), &a); err != nil {
				t.Errorf("answers.py printed %q: %v", scanner.Text(), err)
				return
			}
			select {
			case all <- a:
			default: // the test has seen enough
			}
		}
	}()
	return address, all
}

// startProgram starts a program, which ends with the test, and returns its output.
func startProgram(t *testing.T, name string, arguments ...string) *os.File {
	t.Helper()
	out, in, err := os.Pipe()
	must.OK(t, err)
	command := exec.Command(name, arguments...)
	command.Stdout = in
	var stderr bytes.Buffer
	command.Stderr = &stderr
	err = command.Start()
	in.Close()
	must.OK(t, err)
	t.Cleanup(func() {
		command.Process.Signal(syscall.SIGKILL)
		command.Wait()
		out.Close()
		if t.Failed() {
			t.Logf("%s %q: %s", name, arguments, &stderr)
		}
	})
	return out
}

// cameraFrames are frames in which each pixel differs from its neighbours.
func cameraFrames(format wire.PictureFormat, n int) (frames [][]byte) {
	bytes, _ := wire.Picture{Format: format, Width: cameraWidth, Height: cameraHeight}.Bytes()
	for i := range n {
		frame := make([]byte, bytes)
		for at := range frame {
			frame[at] = byte(at*7 + at>>8 + i*31)
		}
		frames = append(frames, frame)
	}
	return frames
}

// rgbOf returns frames of a format as RGB.
func rgbOf(format wire.PictureFormat, colours wire.Colours, frames [][]byte) (all [][]byte) {
	in := models.Input{Height: cameraHeight, Width: cameraWidth, Channels: 3, WireType: models.U8, WireLayout: models.HWC}
	shape := wire.Picture{Format: format, Width: cameraWidth, Height: cameraHeight, Colours: colours}
	for _, pixels := range frames {
		rgb, _ := picture.Resize(&picture.Raw{Shape: shape, Pix: pixels}, &in)
		all = append(all, rgb)
	}
	return all
}

// clipOf writes frames to a file of raw video.
func clipOf(t *testing.T, frames [][]byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "clip.raw")
	must.OK(t, os.WriteFile(path, bytes.Join(frames, nil), 0o600))
	return path
}

// awaitDigests waits until the picture of each frame has been answered. Every answer with status ok
// must be about one of the frames.
func awaitDigests(t *testing.T, answers <-chan cameraAnswer, frames [][]byte) {
	t.Helper()
	missing := map[float32]bool{}
	known := map[float32]bool{}
	for _, frame := range frames {
		missing[nodetest.Digest(frame)], known[nodetest.Digest(frame)] = true, true
	}
	for ctx := nodetest.Context(t); len(missing) > 0; {
		select {
		case a, ok := <-answers:
			if !ok {
				t.Fatal("answers.py has ended")
			}
			if a.Status != "ok" {
				continue // packets may get lost on a busy machine
			}
			if len(a.Values) != 1 || !known[a.Values[0]] {
				t.Fatalf("answer %+v is about none of the frames", a)
			}
			delete(missing, a.Values[0])
		case <-ctx.Done():
			t.Fatalf("%d of %d frames were not answered", len(missing), len(frames))
		}
	}
}

// awaitRefusal waits until a function has refused pictures for that reason.
func awaitRefusal(t *testing.T, nd *node.Node, name, why string) {
	t.Helper()
	var last *control.CameraStatus
	wait.For(t, "refused pictures of "+name, func() bool {
		f, err := nd.Function(name)
		last = f.Camera
		return err == nil && last != nil && last.Refused > 0
	})
	if last.RefusedWhy != why {
		t.Errorf("%s says %q, want %q", name, last.RefusedWhy, why)
	}
	out, err := exec.Command(penstock, "if", "list", "--runtime-dir", nd.Dir).CombinedOutput()
	if err != nil || !strings.Contains(strings.Join(strings.Fields(string(out)), " "), why) {
		t.Errorf("penstock if list: %v, %s; want %q", err, out, why)
	}
}

// portOf returns the port of a function.
func portOf(t *testing.T, nd *node.Node, name string) string {
	t.Helper()
	f, err := nd.Function(name)
	must.OK(t, err)
	return strconv.Itoa(f.Port)
}

const videoWant = ", want 64 x 48 rgb8"

// TestCameraFFmpeg sends uncompressed video over RTP with ffmpeg. The digests show that each pixel
// is in its place in the tensor, also if the camera sends blue first.
func TestCameraFFmpeg(t *testing.T) {
	t.Parallel()
	videotest.NeedFFmpeg(t)
	frames := cameraFrames(wire.FormatRGB8, 5)
	clip, card := clipOf(t, frames), cameraCard(t, 3)
	rgbTo, rgb := answersAt(t)
	bgrTo, bgr := answersAt(t)
	nd := start(t, fmt.Sprintf(`
functions:
  - {name: rgb, model: %[1]s, port: 0, format: rfc4175, answers_to: "%[2]s"}
  - {name: bgr, model: %[1]s, port: 0, format: rfc4175-bgr, answers_to: "%[3]s"}
  - {name: size, model: %[1]s, port: 0, format: rfc4175}
  - {name: pixels, model: %[1]s, port: 0, format: rfc4175}
`, card, rgbTo, bgrTo))
	send := func(function, pixels, size string) {
		startProgram(t, "ffmpeg", "-loglevel", "error", "-nostdin", "-re", "-stream_loop", "-1", "-f", "rawvideo", "-pix_fmt", "rgb24",
			"-s", fmt.Sprintf("%dx%d", cameraWidth, cameraHeight), "-r", "10", "-i", clip,
			"-c:v", "rawvideo", "-pix_fmt", pixels, "-s", size, "-f", "rtp", "-rtpflags", "skip_rtcp",
			fmt.Sprintf("rtp://127.0.0.1:%s?pkt_size=1370", portOf(t, nd, function)))
	}
	send("rgb", "rgb24", "64x48")
	awaitDigests(t, rgb, frames)
	send("bgr", "bgr24", "64x48")
	awaitDigests(t, bgr, frames)

	send("size", "rgb24", "32x48")
	awaitRefusal(t, nd, "size", "the camera's lines end after 32 pixels"+videoWant)
	send("pixels", "uyvy422", "64x48")
	awaitRefusal(t, nd, "pixels", "the camera sends 128 bytes of a line, which divide a group (3 bytes, 1 x 1 pixels)"+videoWant)
}

// TestCameraUYVY sends a photo in UYVY. The model finds the face in it.
func TestCameraUYVY(t *testing.T) {
	t.Parallel()
	videotest.NeedFFmpeg(t)
	to, answers := answersAt(t)
	nd := start(t, fmt.Sprintf("functions: [{name: face, port: 0, slo: 5s, format: rfc4175-uyvy, answers_to: \"%s\"}]\n", to))
	photo := filepath.Join(t.TempDir(), "astronaut.jpg")
	must.OK(t, os.WriteFile(photo, photoOf(t), 0o600))
	startProgram(t, "ffmpeg", "-loglevel", "error", "-nostdin", "-re", "-loop", "1", "-framerate", "10", "-i", photo,
		"-vf", "scale=128:128", "-pix_fmt", "uyvy422", "-c:v", "rawvideo", "-f", "rtp", "-rtpflags", "skip_rtcp",
		fmt.Sprintf("rtp://127.0.0.1:%s?pkt_size=1370", portOf(t, nd, "face")))
	want := image.Rect(179, 82, 274, 177) // of the photo, 512 x 512
	for ctx := nodetest.Context(t); ; {
		select {
		case a, ok := <-answers:
			if !ok {
				t.Fatal("answers.py has ended")
			}
			if a.Status != "ok" {
				continue // packets may get lost on a busy machine
			}
			if len(a.Boxes) != 1 {
				t.Fatalf("answer %+v, want one face", a)
			}
			b := a.Boxes[0].Box
			box := image.Rect(int(512*b[0]), int(512*b[1]), int(512*b[2]), int(512*b[3]))
			common, both := box.Intersect(want), box.Union(want)
			if 10*common.Dx()*common.Dy() < 8*both.Dx()*both.Dy() {
				t.Errorf("the face is at %v, want %v", box, want)
			}
			return
		case <-ctx.Done():
			t.Fatal("no picture was answered")
		}
	}
}

// TestCameraYUVOnGPU sends Y, U and V to a node with a GPU, which samples them.
func TestCameraYUVOnGPU(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		keys        string
		format      wire.PictureFormat
		colours     wire.Colours
		groupBytes  int
		group       image.Point
		packetBytes int
	}{
		"4:2:2":                       {"rfc4175-uyvy", wire.FormatUYVY, 0, 4, image.Pt(2, 1), 700},
		"4:2:2 with max_picture":      {"rfc4175-uyvy, max_picture: 64x48, colours: bt709-full", wire.FormatUYVY, wire.BT709 | wire.FullRange, 4, image.Pt(2, 1), 700},
		"4:2:2 of 10 bits in BT.2020": {"rfc4175-uyvy10, colours: bt2020", wire.FormatUYVY10, wire.BT2020, 5, image.Pt(2, 1), 705},
		"RGB of 10 bits":              {"rfc4175-rgb10", wire.FormatRGB10, 0, 15, image.Pt(4, 1), 705},
		"4:2:0":                       {"rfc4175-yyyyuv", wire.FormatYYYYUV, 0, 6, image.Pt(2, 2), 702},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pictures := cameraFrames(row.format, 5)
			frames := rgbOf(row.format, row.colours, pictures)
			to, answers := answersAt(t)
			nd := start(t, onGPU(cameraCard(t, 3), fmt.Sprintf("name: cam, slo: 20s, answers_to: %q, format: %s", to, row.keys)), withGPU(t, false)...)
			port, err := net.Dial("udp", "127.0.0.1:"+portOf(t, nd, "cam"))
			must.OK(t, err)
			stop, stopped := make(chan struct{}), make(chan struct{})
			go func() {
				defer close(stopped)
				defer port.Close()
				for n := 0; ; n++ {
					rtp := cameratest.RTP{
						Timestamp: uint32(n), Stream: 1, Width: cameraWidth / row.group.X, PixelBytes: row.groupBytes, Group: row.group,
						Pixels: pictures[n%len(pictures)], Size: row.packetBytes,
					}
					for _, packet := range rtp.Packets() {
						port.Write(packet)
					}
					select {
					case <-stop:
						return
					case <-time.After(50 * time.Millisecond):
					}
				}
			}()
			t.Cleanup(func() {
				close(stop)
				<-stopped
			})
			awaitDigests(t, answers, frames)
		})
	}
}

// needGStreamer skips a test without GStreamer's RTP elements.
func needGStreamer(t *testing.T) {
	t.Helper()
	for _, element := range []string{"rawvideoparse", "rtpvrawpay", "udpsink"} {
		if err := exec.Command("gst-inspect-1.0", "--exists", element).Run(); err != nil {
			t.Skipf("GStreamer's %s is not on this machine: %v; install gstreamer1.0-tools, -plugins-base and -plugins-good", element, err)
		}
	}
}

// TestCameraGStreamer is TestCameraFFmpeg with GStreamer.
func TestCameraGStreamer(t *testing.T) {
	t.Parallel()
	needGStreamer(t)
	card := cameraCard(t, 3)
	for format, row := range map[string]struct {
		key  string
		clip wire.PictureFormat // of what GStreamer reads
	}{
		"rgb":  {"rfc4175", wire.FormatRGB8},
		"bgr":  {"rfc4175-bgr", wire.FormatBGR8},
		"uyvp": {"rfc4175-uyvy10", wire.FormatUYVY10},
		"i420": {"rfc4175-yyyyuv", wire.FormatI420},
	} {
		clip := cameraFrames(row.clip, 5)
		frames, key := rgbOf(row.clip, 0, clip), row.key
		to, answers := answersAt(t)
		nd := start(t, fmt.Sprintf("functions: [{name: cam, model: %s, port: 0, format: %s, answers_to: \"%s\"}]\n", card, key, to))
		const seconds = 60
		startProgram(t, "gst-launch-1.0", "-q", "filesrc", "location="+clipOf(t, slices.Repeat(clip, seconds*20/len(frames))), "!",
			"rawvideoparse", "format="+format, fmt.Sprintf("width=%d", cameraWidth), fmt.Sprintf("height=%d", cameraHeight), "framerate=20/1", "!",
			"rtpvrawpay", "mtu=1400", "!", "udpsink", "host=127.0.0.1", "port="+portOf(t, nd, "cam"))
		awaitDigests(t, answers, frames)
	}
}

// needAravis skips a test without aravis.
func needAravis(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("arv-fake-gv-camera-0.8"); err != nil {
		t.Skip("arv-fake-gv-camera-0.8 is not on this machine; install aravis-tools")
	}
	const use = "import gi; gi.require_version('Aravis', '0.8'); from gi.repository import Aravis"
	if out, err := exec.Command("/usr/bin/python3", "-c", use).CombinedOutput(); err != nil {
		t.Skipf("aravis for Python is not on this machine; install python3-gi and gir1.2-aravis-0.8: %s", out)
	}
}

// ramps are the pictures that aravis's camera sends.
func ramps() (frames [][]byte) {
	const shades = 255
	for i := range shades {
		frame := make([]byte, cameraWidth*cameraHeight)
		for at := range frame {
			frame[at] = byte((at%cameraWidth + at/cameraWidth + i) % shades)
		}
		frames = append(frames, frame)
	}
	return frames
}

// fakeCamera starts aravis's camera, which loses that many packets per thousand, and lets it send
// to a function.
func fakeCamera(t *testing.T, nd *node.Node, function string, lost int) {
	t.Helper()
	free, err := net.ListenPacket("udp", "127.0.0.1:3956")
	if err != nil {
		t.Fatalf("the camera needs the port of GigE Vision: %v; stop the program that uses it", err)
	}
	free.Close()
	startProgram(t, "arv-fake-gv-camera-0.8", "-i", "127.0.0.1", "-s", "TEST", "-r", strconv.Itoa(lost))
	const controlPort = "0100007F:0F74" // 127.0.0.1:3956
	wait.For(t, "the camera to listen", func() bool {
		// Of this thread: the main thread may be in the network of another test.
		sockets, err := os.ReadFile("/proc/thread-self/net/udp")
		return err == nil && strings.Contains(string(sockets), controlPort)
	})
	out := startProgram(t, "/usr/bin/python3", absolute(t, "../../examples/cameras/gige.py"), "127.0.0.1", "127.0.0.1", portOf(t, nd, function),
		strconv.Itoa(cameraWidth), strconv.Itoa(cameraHeight), "Mono8")
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatalf("gige.py printed %q: %v", line, err)
	}
}

// TestCameraAravis sends pictures of aravis's GigE Vision camera. There is one at a time: each
// listens on the port of the standard.
func TestCameraAravis(t *testing.T) {
	needAravis(t)
	card, colour := cameraCard(t, 1), cameraCard(t, 3)
	known := map[float32]bool{}
	for _, frame := range ramps() {
		var rgb []byte
		for _, grey := range frame {
			rgb = append(rgb, grey, grey, grey)
		}
		known[nodetest.Digest(frame)], known[nodetest.Digest(rgb)] = true, true
	}
	config := func(to, model string) string {
		return fmt.Sprintf("aggregate: {deadline: 200ms}\nfunctions: [{name: cam, model: %s, port: 0, format: gvsp, answers_to: \"%s\"}]\n", model, to)
	}
	anySize := func(to string) string {
		return strings.Replace(config(to, colour), "gvsp,", "gvsp, max_picture: 64x48,", 1)
	}
	// await waits for so many answers with each status.
	await := func(t *testing.T, answers <-chan cameraAnswer, want map[string]int) {
		t.Helper()
		for ctx := nodetest.Context(t); ; {
			select {
			case a, ok := <-answers:
				if !ok {
					t.Fatal("answers.py has ended")
				}
				if a.Status == "ok" && (len(a.Values) != 1 || !known[a.Values[0]]) {
					t.Fatalf("answer %+v is about no picture of the camera", a)
				}
				if want[a.Status]--; want["ok"] <= 0 && want["incomplete"] <= 0 && want["refused"] <= 0 {
					return
				}
			case <-ctx.Done():
				t.Fatalf("answers that are missing: %v", want)
			}
		}
	}
	t.Run("pictures", func(t *testing.T) {
		to, answers := answersAt(t)
		fakeCamera(t, start(t, config(to, card)), "cam", 0)
		await(t, answers, map[string]int{"ok": 30})
	})
	t.Run("lost packets", func(t *testing.T) {
		to, answers := answersAt(t)
		nd := start(t, config(to, card))
		fakeCamera(t, nd, "cam", 100)
		await(t, answers, map[string]int{"ok": 10, "incomplete": 10})
		if f, err := nd.Function("cam"); err != nil || f.Camera.Incomplete == 0 || f.Lost != 0 {
			t.Errorf("%v; status is %+v", err, f.Camera)
		}
	})
	t.Run("any pixel format", func(t *testing.T) {
		to, answers := answersAt(t)
		fakeCamera(t, start(t, anySize(to)), "cam", 0)
		await(t, answers, map[string]int{"ok": 30})
	})
	t.Run("another pixel format", func(t *testing.T) {
		to, answers := answersAt(t)
		nd := start(t, config(to, colour))
		fakeCamera(t, nd, "cam", 0)
		await(t, answers, map[string]int{"refused": 3})
		awaitRefusal(t, nd, "cam", "the camera sends 64 x 48 Mono8, want 64 x 48 RGB8")
	})
}
