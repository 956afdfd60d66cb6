package functions

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/control"
)

// frames receives what Watch writes.
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

func TestWatch(t *testing.T) {
	type result struct {
		control.Sample
		err error
	}
	out, results, sizes := make(frames), make(chan result), make(chan [2]int, 1)
	width, height := 120, 24
	terminal := Terminal{Writer: out, Size: func() (int, int) {
		select {
		case size := <-sizes:
			width, height = size[0], size[1]
		default:
		}
		return width, height
	}}
	read := func(ctx context.Context) (control.Sample, error) {
		select {
		case r := <-results:
			return r.Sample, r.err
		case <-ctx.Done():
			return control.Sample{}, ctx.Err()
		}
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- Watch(ctx, terminal, read, time.Millisecond, time.Minute) }()

	results <- result{Sample: sampleAt(10)}
	out.next(t, enterScreen)
	out.next(t, "measuring")
	results <- result{Sample: sampleAt(12)}
	if frame := out.next(t, "last 2.0 s"); !strings.Contains(frame, "face") || !strings.Contains(frame, "100.0") {
		t.Errorf("frame %q", frame)
	}

	results <- result{err: errors.New("manager hangs")}
	if frame := out.next(t, "no answer for"); !strings.Contains(frame, "manager hangs") || !strings.Contains(frame, "face") {
		t.Errorf("frame after an error %q", frame)
	}
	sizes <- [2]int{30, 3}
	results <- result{Sample: sampleAt(13)}
	if frame := out.next(t, "more lines"); strings.Count(frame, "\r\n") != 2 || strings.Contains(frame, "state") {
		t.Errorf("frame of 3 lines and 30 columns: %q", frame)
	}

	stop()
	out.next(t, leaveScreen)
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestWatchUnreachable(t *testing.T) {
	want := errors.New("no node")
	read := func(context.Context) (control.Sample, error) { return control.Sample{}, want }
	if err := Watch(t.Context(), Terminal{}, read, time.Second, time.Second); !errors.Is(err, want) {
		t.Errorf("error %v, want %v", err, want)
	}
}
