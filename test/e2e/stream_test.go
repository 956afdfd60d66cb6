package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"image"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/penstock/penstock/gateway/functions"
	video "github.com/penstock/penstock/gateway/stream"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/nodetest"
	"github.com/penstock/penstock/internal/testing/null"
	"github.com/penstock/penstock/internal/testing/videotest"
	"github.com/penstock/penstock/internal/testing/wait"
)

// Each frame of a file has the box of the picture, also if the function gets the frames as they are or shrunk to its max_picture.
// The annotated video has as many frames. A function that the node does not have is an error.
func TestStream(t *testing.T) {
	videotest.NeedFFmpeg(t)
	for name, c := range map[string]struct {
		keys string
		side int // of a frame; the photo has 512 pixels
	}{
		"card's pictures":    {"", 512},
		"frames as they are": {", max_picture: 512x512", 512},
		"shrunk":             {", max_picture: 256x256", 418}, // 4 bytes per pixel, and a frame has 1.5
	} {
		t.Run(name, func(t *testing.T) { testStream(t, c.keys, c.side) })
	}
}

func testStream(t *testing.T, keys string, side int) {
	nd := start(t, "functions: [{name: face, port: 0, slo: 5s"+keys+"}]\n")
	dir := t.TempDir()
	picture, clip, drawn := filepath.Join(dir, "astronaut.jpg"), filepath.Join(dir, "astronaut.mp4"), filepath.Join(dir, "out.mp4")
	must.OK(t, os.WriteFile(picture, photoOf(t), 0o600))
	const frames = 10
	videotest.Run(t, "-loop", "1", "-i", picture, "-frames:v", fmt.Sprint(frames), "-pix_fmt", "yuv444p", clip)

	command := exec.Command(penstock, "stream", clip, "--runtime-dir", nd.Dir, "--to", "face", "-o", "jsonl", "--annotate", drawn)
	var stderr bytes.Buffer
	command.Stderr = &stderr
	text, err := command.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, stderr.Bytes())
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	if len(lines) != frames {
		t.Errorf("%d lines for %d frames", len(lines), frames)
	}
	want := image.Rect(179*side/512, 82*side/512, 274*side/512, 177*side/512)
	for i, text := range lines {
		var line video.Line
		must.OK(t, json.Unmarshal([]byte(text), &line))
		if line.Frame != uint64(i) || line.Width != side || line.Height != side || line.Status != "ok" || len(line.Found) != 1 || line.Found[0].Label != "face" || len(line.StagesMS) != 5 {
			t.Fatalf("line %d: %s", i, text)
		}
		b := line.Found[0].Box
		box := image.Rect(b[0], b[1], b[2], b[3])
		common, both := box.Intersect(want), box.Union(want)
		if 10*common.Dx()*common.Dy() < 8*both.Dx()*both.Dy() {
			t.Errorf("frame %d has a face at %v, want %v", i, box, want)
		}
	}
	out, err := exec.Command(penstock, "stream", drawn, "--runtime-dir", nd.Dir, "--to", "face").CombinedOutput()
	if err != nil || !strings.Contains(string(out), fmt.Sprintf("face: %d frames, %d ok, 0 skipped", frames, frames)) {
		t.Errorf("annotated video: %v, %s", err, out)
	}

	out, err = exec.Command(penstock, "stream", clip, "--runtime-dir", nd.Dir, "--to", "fase").CombinedOutput()
	if err == nil || !strings.Contains(string(out), `no such function: "fase"; the node has ["face"]`) {
		t.Errorf("unknown function: %v, %s", err, out)
	}
}

// A sender of MPEG-TS over UDP needs no session: its frames have the box of the picture.
func TestStreamMPEGTS(t *testing.T) {
	videotest.NeedFFmpeg(t)
	nd := start(t, "functions: [{name: face, port: 0, slo: 5s}]\n")
	picture := filepath.Join(t.TempDir(), "astronaut.jpg")
	must.OK(t, os.WriteFile(picture, photoOf(t), 0o600))
	address := "udp://" + freePort(t).String()
	out := startProgram(t, penstock, "stream", address, "--runtime-dir", nd.Dir, "--to", "face", "-o", "jsonl")
	startProgram(t, "ffmpeg", append(append([]string{"-loglevel", "error", "-nostdin", "-re", "-loop", "1", "-i", picture}, videotest.H264(10)...),
		"-f", "mpegts", address+"?pkt_size=1316")...)
	read := make(chan video.Line)
	go func() {
		defer close(read)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			var line video.Line
			if json.Unmarshal(lines.Bytes(), &line) == nil && line.Status == "ok" {
				read <- line
				return
			}
		}
	}()
	select {
	case line, ok := <-read:
		if !ok || len(line.Found) != 1 || line.Found[0].Label != "face" {
			t.Errorf("the first answer is %+v", line)
		}
	case <-nodetest.Context(t).Done():
		t.Error("no answer")
	}
}

// ages is an Inferrer of numbered frames. It keeps the time from the sender to each answer.
type ages struct {
	node   video.Node
	sender *videotest.Sender

	mu   sync.Mutex
	ages []age
}

// age is that of an answer; spent is the part of it that inference took.
type age struct {
	answered   time.Time
	age, spent time.Duration
}

// LargestPicture implements stream.Inferrer.
func (a *ages) LargestPicture(string) int { return 0 }

func (a *ages) Infer(ctx context.Context, function string, photo image.Image) (functions.Answer, []functions.Item, error) {
	answer, items, err := a.node.Infer(ctx, function, photo)
	now := time.Now()
	if n, ok := videotest.Number(photo); ok && err == nil {
		a.mu.Lock()
		a.ages = append(a.ages, age{answered: now, age: now.Sub(a.sender.SentAt(n)), spent: answer.Stages.Infer})
		a.mu.Unlock()
	}
	return answer, items, err
}

// streamFor is how long the benchmarks of streams send.
var streamFor = flag.Duration("stream", time.Minute, "duration of each benchmark of streams")

// sendNumbered sends H.264 over RTP to a function whose batches take that long, and returns the ages.
func sendNumbered(b *testing.B, fps int, batch time.Duration) []age {
	videotest.NeedFFmpeg(b)
	nd := start(b, fmt.Sprintf("functions: [{name: slow, model: %s, port: 0}]\n", nodetest.Card(b, "slow", videotest.Side*1024)), fmt.Sprintf("%s=sleep=%s", null.Variable, batch))
	set := functions.NewSet(nd.Dir, nil, zerolog.Nop())
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	must.OK(b, set.Refresh(ctx))
	go set.Run(ctx)
	wait.For(b, "the function to serve", func() bool { return set.Ready("slow") == nil })

	port := videotest.Port(b)
	address, err := video.ParseAddress(videotest.Session(b, port))
	must.OK(b, err)
	sender := videotest.Send(b, fps, append(videotest.H264(fps), "-f", "rtp", fmt.Sprintf("rtp://127.0.0.1:%d", port))...)
	node := &ages{node: video.Node{Functions: set}, sender: sender}
	sending, stop := context.WithTimeout(ctx, *streamFor)
	defer stop()
	must.OK(b, video.Run(sending, video.Options{Input: video.Input{Address: address, Live: true, Log: zerolog.Nop()}, To: []string{"slow"}, Node: node}))
	sender.Stop()
	return node.ages
}

func percentile(ages []time.Duration, percent int) time.Duration {
	slices.Sort(ages)
	return ages[(len(ages)-1)*percent/100]
}

func reportMillis(b *testing.B, d time.Duration, name string) {
	b.ReportMetric(float64(d)/float64(time.Millisecond), name)
}

// BenchmarkStreamAge sends 25 frames per second to a function that can answer 5. The age of the
// answers must not grow: the median of the last minute (the last third of a shorter run) is at
// most 1.2 times that of the first.
func BenchmarkStreamAge(b *testing.B) {
	for b.Loop() {
		all := sendNumbered(b, 25, 200*time.Millisecond)
		if len(all) == 0 {
			b.Fatal("no frame was answered")
		}
		part := min(time.Minute, *streamFor/3)
		begin, end := all[0].answered.Add(part), all[len(all)-1].answered.Add(-part)
		var every, first, last []time.Duration
		for _, a := range all {
			every = append(every, a.age)
			if a.answered.Before(begin) {
				first = append(first, a.age)
			}
			if a.answered.After(end) {
				last = append(last, a.age)
			}
		}
		before, after := percentile(first, 50), percentile(last, 50)
		reportMillis(b, before, "first-p50-ms")
		reportMillis(b, after, "last-p50-ms")
		reportMillis(b, percentile(every, 99), "p99-ms")
		b.ReportMetric(float64(len(all))/streamFor.Seconds(), "answers/s")
		if float64(after) > 1.2*float64(before) {
			b.Errorf("answers get older: median %s in the first %s, %s in the last", before, part, after)
		}
	}
}

// BenchmarkStreamLatency sends 30 frames per second. An answer comes at most three frame times
// after the frame was given to the encoder, inference not counted.
func BenchmarkStreamLatency(b *testing.B) {
	const fps = 30
	for b.Loop() {
		var over []time.Duration
		for _, a := range sendNumbered(b, fps, 10*time.Millisecond) {
			over = append(over, a.age-a.spent)
		}
		if len(over) == 0 {
			b.Fatal("no frame was answered")
		}
		reportMillis(b, percentile(over, 50), "p50-ms")
		reportMillis(b, percentile(over, 99), "p99-ms")
		b.ReportMetric(float64(len(over))/streamFor.Seconds(), "answers/s")
		if p99 := percentile(over, 99); p99 > 3*time.Second/fps {
			b.Errorf("p99 is %s, want at most three frame times", p99)
		}
	}
}

// BenchmarkStreamCPU measures the CPU time of `penstock stream` and its ffmpeg per frame of 1080p. The reference, in the same
// run, is ffmpeg that only decodes.
func BenchmarkStreamCPU(b *testing.B) {
	videotest.NeedFFmpeg(b)
	nd := start(b, "functions: [{name: face, port: 0, slo: 5s, max_picture: 1920x1080}]\n")
	const frames = 150
	clip := filepath.Join(b.TempDir(), "a.mp4")
	videotest.Run(b, "-f", "lavfi", "-i", "testsrc2=size=1920x1080", "-frames:v", fmt.Sprint(frames), "-c:v", "libx264", "-preset", "ultrafast", "-pix_fmt", "yuv420p", clip)

	perFrame := func(command ...string) time.Duration {
		c := exec.Command(command[0], command[1:]...)
		if out, err := c.CombinedOutput(); err != nil {
			b.Fatalf("%v: %s", err, out)
		}
		return (c.ProcessState.UserTime() + c.ProcessState.SystemTime()) / frames // its child ffmpeg included
	}
	var decode, stream []time.Duration
	for b.Loop() {
		decode = append(decode, perFrame("ffmpeg", "-nostdin", "-i", clip, "-c:v", "wrapped_avframe", "-f", "null", "-"))
		stream = append(stream, perFrame(penstock, "stream", clip, "--to", "face", "--runtime-dir", nd.Dir))
	}
	before, all := percentile(decode, 50), percentile(stream, 50)
	reportMillis(b, before, "decode-ms/frame")
	reportMillis(b, all-before, "rest-ms/frame")
}

// A gateway keeps the streams of its configuration running, and ffmpeg ends with it.
func TestConfiguredStream(t *testing.T) {
	videotest.NeedFFmpeg(t)
	dir := t.TempDir()
	picture, clip := filepath.Join(dir, "astronaut.jpg"), filepath.Join(dir, "astronaut.mp4")
	must.OK(t, os.WriteFile(picture, photoOf(t), 0o600))
	videotest.Run(t, "-loop", "1", "-i", picture, "-frames:v", "10", "-pix_fmt", "yuv444p", clip)
	answers := filepath.Join(dir, "answers.jsonl")
	nd, url := startWithGateway(t, fmt.Sprintf("streams: [{name: clip, source: %s, to: [face]}, {name: door, source: 'rtsp://me:secret@127.0.0.1:1/', to: [face]}]\n"+
		"publish: [{name: log, kind: jsonl, file: %s}, {name: hook, kind: webhook, address: 'http://me:secret@127.0.0.1:1/secret'}]\n", clip, answers))

	var text []byte
	streams := func() (list []video.Status) {
		response, err := http.Get(url + "/api/streams")
		if err != nil {
			return nil
		}
		defer response.Body.Close()
		if text, err = io.ReadAll(response.Body); err == nil {
			_ = json.Unmarshal(text, &list) // an error of the gateway is no list
		}
		return list
	}
	// The clip begins again at its end, and the camera is tried again.
	again := func() bool {
		list := streams()
		return len(list) == 2 && list[0].Opened >= 2 && list[0].Functions[0].Answers["ok"] > 0 && list[1].Opened >= 2 && list[1].Error != ""
	}
	wait.For(t, "the clip to play twice", again)
	if strings.Contains(string(text), "secret") || strings.Contains(nd.Log(), "secret") {
		t.Errorf("a password is shown: %s", text)
	}
	published := func() bool {
		lines, err := os.ReadFile(answers)
		return err == nil && bytes.Contains(lines, []byte(`"stream":"clip","function":"face"`)) && bytes.Contains(lines, []byte(`"found":[{"label":"face"`))
	}
	wait.For(t, "a published answer", published)
	response, err := http.Get(url + "/api/wall/face")
	must.OK(t, err)
	response.Body.Close()
	if media := response.Header.Get("Content-Type"); media != "image/jpeg" {
		t.Errorf("the wall's picture is %q", media)
	}

	nodetest.Kill(t, nodetest.Child(t, nd, "gateway"))
	wait.For(t, "the gateway to be away", func() bool { return !gatewayReady(url, "face") })
	wait.For(t, "the clip to play twice again", again)
	nd.Kill()
	wait.For(t, "ffmpeg to end", func() bool { return !runs(clip) })
}

// runs reports whether a process has the text in its arguments.
func runs(text string) bool {
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	return slices.ContainsFunc(files, func(file string) bool {
		line, err := os.ReadFile(file)
		return err == nil && bytes.Contains(line, []byte(text))
	})
}
