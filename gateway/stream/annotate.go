package stream

import (
	"cmp"
	"fmt"
	"image"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/image/draw"

	"github.com/penstock/penstock/models/picture"
)

// Annotator draws results into a video, which ffmpeg encodes. It has a constant frame rate, that
// of the source: a frame stays until the next one that was drawn. One goroutine at a time uses it.
type Annotator struct {
	file, ffmpeg string
	order        []string // functions, for the colours
	marks        map[string][]picture.Mark

	process *process
	frames  *os.File
	errors  *errorLines
	size    image.Point // of the video
	rate    float64
	first   time.Duration // pts of the video's first frame
	written int64         // frames
	last    *image.RGBA
}

const (
	// defaultRate is used if the source announces no rate, or an odd one.
	defaultRate = 25.0
	maxRate     = 240.0
	// maxPause is the longest time that a frame is repeated for. What is missing after it is cut.
	maxPause = 10 * time.Second
	// writeTimeout is how long the encoder may take for one frame, closeTimeout for its end.
	writeTimeout = 30 * time.Second
	closeTimeout = 30 * time.Second
)

// NewAnnotator writes a file whose name says the format. ffmpeg starts with the first frame.
func NewAnnotator(file, ffmpeg string, to []string) (*Annotator, error) {
	path, err := filepath.Abs(file)
	if err != nil {
		return nil, fmt.Errorf("find %s: %w", file, err)
	}
	if filepath.Ext(path) == "" {
		return nil, fmt.Errorf("name %s has no ending that says the format; want one like out.mp4", file)
	}
	return &Annotator{file: path, ffmpeg: cmp.Or(ffmpeg, "ffmpeg"), order: to, marks: map[string][]picture.Mark{}}, nil
}

// Observe takes what a function found.
func (a *Annotator) Observe(r Result) {
	colour := picture.Palette[max(0, slices.Index(a.order, r.Function))%len(picture.Palette)]
	var marks []picture.Mark
	for _, item := range r.Items {
		if item.Box == nil {
			continue
		}
		name := item.Label
		if name == "" {
			name = fmt.Sprintf("%s %d", r.Function, item.Class)
		}
		marks = append(marks, picture.Mark{
			Box: image.Rect(item.Box[0], item.Box[1], item.Box[2], item.Box[3]), Text: fmt.Sprintf("%s %.2f", name, item.Score), Colour: colour,
			Shape: item.Shape,
		})
	}
	a.marks[r.Function] = marks
}

// Write draws what each function found last, and writes the frame.
func (a *Annotator) Write(f Frame, rate float64) error {
	if a.process == nil {
		if err := a.start(f, rate); err != nil {
			return err
		}
	}
	slot := int64(math.Round((f.PTS - a.first).Seconds() * a.rate))
	if slot-a.written > int64(maxPause.Seconds()*a.rate) || slot < a.written-int64(maxPause.Seconds()*a.rate) {
		// A pause, or the source's clock was set.
		slot = a.written
		a.first = f.PTS - time.Duration(float64(slot)/a.rate*float64(time.Second))
	}
	for a.last != nil && a.written < slot {
		if err := a.write(a.last); err != nil {
			return err
		}
	}
	if slot < a.written {
		return nil // another frame has its place
	}

	var marks []picture.Mark
	for _, function := range a.order {
		marks = append(marks, a.marks[function]...)
	}
	canvas := picture.Draw(f.Image, marks)
	if size := canvas.Rect.Size(); size != a.size {
		fitted := image.NewRGBA(image.Rectangle{Max: a.size})
		draw.ApproxBiLinear.Scale(fitted, fitted.Rect, canvas, canvas.Rect, draw.Src, nil)
		canvas = fitted
	}
	a.last = canvas
	return a.write(canvas)
}

func (a *Annotator) start(f Frame, rate float64) error {
	if rate < 1 || rate > maxRate {
		rate = defaultRate
	}
	a.rate, a.first, a.size = rate, f.PTS, f.Image.Bounds().Size()
	in, frames, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("open pipe to ffmpeg: %w", err)
	}
	defer in.Close()
	setPipeSize(frames)
	command := exec.Command(a.ffmpeg, "-hide_banner", "-nostdin", "-nostats", "-loglevel", "level+error",
		"-protocol_whitelist", "pipe", "-f", "rawvideo", "-pixel_format", "rgba", "-video_size", fmt.Sprintf("%dx%d", a.size.X, a.size.Y),
		"-framerate", fmt.Sprint(rate), "-i", "pipe:0",
		"-vf", "pad=ceil(iw/2)*2:ceil(ih/2)*2,format=yuv420p", // what H.264 players want
		"-y", "file:"+a.file)
	command.Env = environment()
	command.Stdin, command.WaitDelay = in, time.Second
	a.errors = &errorLines{}
	command.Stderr = a.errors
	if a.process, err = startProcess(command, nil, nil); err != nil {
		frames.Close()
		return err
	}
	a.frames = frames
	return nil
}

func (a *Annotator) write(canvas *image.RGBA) error {
	_ = a.frames.SetWriteDeadline(time.Now().Add(writeTimeout)) // a pipe takes deadlines
	if _, err := a.frames.Write(canvas.Pix); err != nil {
		return fmt.Errorf("encode %s: %w%s", a.file, err, a.end())
	}
	a.written++
	return nil
}

// end ends an encoder that failed. It returns its first error after a colon.
func (a *Annotator) end() string {
	a.frames.Close()
	_ = a.process.wait(time.Second) // it failed before
	if text := a.errors.first(); text != "" {
		return ": " + text
	}
	return ""
}

// Close completes the file.
func (a *Annotator) Close() error {
	if a.process == nil {
		return nil
	}
	a.frames.Close()
	if err := a.process.wait(closeTimeout); err != nil {
		if text := a.errors.first(); text != "" {
			return fmt.Errorf("encode %s: %s", a.file, text)
		}
		return fmt.Errorf("encode %s: %w", a.file, err)
	}
	return nil
}

// errorLines keeps the beginning of what is written to it. One process writes, and the reader
// waits until it has ended.
type errorLines struct{ text []byte }

// Write implements io.Writer.
func (e *errorLines) Write(p []byte) (int, error) {
	e.text = append(e.text, p[:min(len(p), maxLine-len(e.text))]...)
	return len(p), nil
}

// first is the first error, which has the cause of those after it.
func (e *errorLines) first() string {
	text, _, _ := strings.Cut(strings.TrimSpace(string(e.text)), "\n")
	if m := errorLine.FindStringSubmatch(text); m != nil {
		text = m[1]
	}
	return text
}
