package functions

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/control"
)

// frames receives what a Screen writes.
type frames chan string

func (f frames) Write(p []byte) (int, error) {
	f <- string(p)
	return len(p), nil
}

// next returns the next write that contains a text.
func (f frames) next(t *testing.T, want string) string {
	t.Helper()
	for {
		select {
		case frame := <-f:
			if strings.Contains(frame, want) {
				return frame
			}
		case <-time.After(time.Minute):
			t.Fatalf("wait for a frame with %q", want)
		}
	}
}

func TestScreen(t *testing.T) {
	out, keys, resized, results := make(frames), make(chan byte), make(chan os.Signal), make(chan sampleResult)
	sizes := make(chan [2]int, 1)
	width, height := 120, 24
	s := Screen{
		Out: out, Keys: keys, Resized: resized, Interval: time.Millisecond, Window: time.Minute, Colour: true,
		Read: func(ctx context.Context) (control.Sample, error) {
			select {
			case r := <-results:
				return r.sample, r.err
			case <-ctx.Done():
				return control.Sample{}, ctx.Err()
			}
		},
		Size: func() (int, int) {
			select {
			case size := <-sizes:
				width, height = size[0], size[1]
			default:
			}
			return width, height
		},
	}
	ended := make(chan error, 1)
	go func() { ended <- s.Run(t.Context()) }()

	results <- sampleResult{sample: sampleAt(10)}
	out.next(t, enterScreen)
	out.next(t, "measuring")
	results <- sampleResult{sample: sampleAt(12)}
	if frame := out.next(t, "last 2.0 s"); !strings.Contains(frame, "face") || !strings.Contains(frame, "100.0") {
		t.Errorf("frame %q", frame)
	}

	results <- sampleResult{err: errors.New("manager hangs")}
	if frame := out.next(t, "no answer for"); !strings.Contains(frame, "manager hangs") || !strings.Contains(frame, red) {
		t.Errorf("frame after an error %q", frame)
	}
	results <- sampleResult{sample: sampleAt(13)}
	out.next(t, "last 3.0 s")

	sizes <- [2]int{30, 3}
	resized <- os.Interrupt
	frame := out.next(t, "more lines")
	if n := strings.Count(frame, "\r\n"); n != 2 || strings.Contains(frame, "state") {
		t.Errorf("frame of 3 lines and 30 columns: %q", frame)
	}

	keys <- 'x'
	out.next(t, "more lines")
	keys <- 'q'
	out.next(t, leaveScreen)
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestScreenUnreachable(t *testing.T) {
	want := errors.New("no node")
	s := Screen{Read: func(context.Context) (control.Sample, error) { return control.Sample{}, want }}
	if err := s.Run(t.Context()); !errors.Is(err, want) {
		t.Errorf("error %v, want %v", err, want)
	}
}
