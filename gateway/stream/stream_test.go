package stream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"image"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/penstock/penstock/client"
	"github.com/penstock/penstock/gateway/functions"
	"github.com/penstock/penstock/internal/testing/openfiles"
	"github.com/penstock/penstock/internal/testing/wait"
	"github.com/penstock/penstock/models/picture"
	"github.com/penstock/penstock/wire"
)

// inferrer is an Inferrer that a test answers for.
type inferrer func(ctx context.Context, function string) error

func (f inferrer) LargestPicture(string) int { return 0 }

// raw is a grey frame.
func raw(width, height int) *picture.Raw {
	pixels := make([]byte, width*height*3/2)
	for i := range pixels {
		pixels[i] = 0x80
	}
	return &picture.Raw{Shape: wire.Picture{Format: wire.FormatNV12, Width: width, Height: height}, Pix: pixels}
}

func (f inferrer) Infer(ctx context.Context, function string, photo image.Image) (functions.Answer, []functions.Item, error) {
	if err := f(ctx, function); err != nil {
		return functions.Answer{}, nil, err
	}
	items := []functions.Item{{Label: "cat", Class: 1, Score: 0.5, Box: []int{0, 0, photo.Bounds().Dx(), photo.Bounds().Dy()}}}
	return functions.Answer{Latency: time.Millisecond, Result: client.Result{Stages: client.Stages{Infer: time.Millisecond}}}, items, nil
}

// collect runs a stream and returns the numbers of the frames that each function answered.
func collect(t *testing.T, o Options) (frames map[string][]uint64, err error) {
	t.Helper()
	frames = map[string][]uint64{}
	o.Observe = func(r Result) error {
		frames[r.Function] = append(frames[r.Function], r.Frame.Number)
		return nil
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	return frames, Run(ctx, o)
}

// framesOfMany is what testdata/ffmpeg writes for "many".
const framesOfMany = 10

// Every frame of a file goes to each function, in order, and is shown when all have answered.
func TestEveryFrame(t *testing.T) {
	openfiles.CheckLeaks(t)
	in := fakeInput(t, "many")
	var shown []uint64
	frames, err := collect(t, Options{
		Input: in, To: []string{"a", "b"}, Node: inferrer(func(context.Context, string) error { return nil }),
		Shown: func(f Frame, _ *Decoder) error {
			shown = append(shown, f.Number)
			return nil
		},
	})
	want := fmt.Sprint([]uint64{0, 1, 2, 3, 4, 5, 6, 7, 8, 9})
	if err != nil || fmt.Sprint(frames["a"]) != want || fmt.Sprint(frames["b"]) != want || fmt.Sprint(shown) != want {
		t.Errorf("%v, shown %v, %v", frames, shown, err)
	}
}

// A slow function of a live source gets the first frame and then the newest; a fast one does not
// wait for it.
func TestNewestFrame(t *testing.T) {
	openfiles.CheckLeaks(t)
	in := fakeInput(t, "many")
	in.Live = true
	monitor := NewMonitor([]string{"fast", "slow"})
	all := func() bool { return monitor.Snapshot().Frames == framesOfMany }
	var once sync.Once
	frames, err := collect(t, Options{
		Input: in, To: []string{"fast", "slow"}, Monitor: monitor,
		Node: inferrer(func(ctx context.Context, function string) error {
			if function == "slow" {
				once.Do(func() { wait.For(t, "all frames to be read", all) })
			}
			return nil
		}),
	})
	if err != nil || fmt.Sprint(frames["slow"]) != "[0 9]" {
		t.Errorf("slow got frames %v, want 0 and 9; %v", frames["slow"], err)
	}
	fast := frames["fast"]
	if len(fast) == 0 || fast[len(fast)-1] != 9 {
		t.Errorf("fast got frames %v, want the last to be 9", fast)
	}
	for _, f := range monitor.Snapshot().Functions {
		if f.Answers["ok"]+f.Skipped != framesOfMany {
			t.Errorf("%s: %d answers and %d skipped of %d", f.Name, f.Answers["ok"], f.Skipped, framesOfMany)
		}
	}
}

// Errors of requests are statuses of results, and the stream goes on.
func TestStatus(t *testing.T) {
	for _, c := range []struct {
		err  error
		want string
	}{
		{nil, "ok"},
		{fmt.Errorf("request 1: %w", client.StatusError(client.StatusLate)), "late"},
		{client.StatusError(client.StatusFailed), "failed"},
		{client.ErrLate, "late"},
		{client.ErrUnsent, "busy"},
		{client.ErrUnanswered, "lost"},
		{client.ErrUnreachable, "lost"},
		{functions.ErrUnknown, "unknown"},
		{functions.ErrNoPicture, "error"},
	} {
		if got := StatusOf(c.err); got != c.want {
			t.Errorf("%v: %s, want %s", c.err, got, c.want)
		}
	}
	openfiles.CheckLeaks(t)
	monitor := NewMonitor([]string{"a"})
	_, err := collect(t, Options{
		Input: fakeInput(t, "many"), To: []string{"a"}, Monitor: monitor,
		Node: inferrer(func(context.Context, string) error { return client.StatusError(client.StatusBusy) }),
	})
	s := monitor.Snapshot()
	if err != nil || s.Functions[0].Answers["busy"] != framesOfMany || !strings.Contains(s.Summary(), "a: 10 frames, 10 busy, 0 skipped") {
		t.Errorf("%q, %v", s.Summary(), err)
	}
}

// The end of ctx ends a source that hangs and a request in flight.
func TestCancel(t *testing.T) {
	for _, behaviour := range []string{"hang", "stall"} {
		for _, live := range []bool{false, true} {
			t.Run(fmt.Sprint(behaviour, live), func(t *testing.T) {
				openfiles.CheckLeaks(t)
				in := fakeInput(t, behaviour)
				in.Live = live
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				defer cancel()
				if behaviour == "hang" {
					cancel()
				}
				err := Run(ctx, Options{Input: in, To: []string{"a"}, Node: inferrer(func(ctx context.Context, _ string) error {
					cancel()
					<-ctx.Done()
					return ctx.Err()
				})})
				if err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// An observer that fails ends the stream.
func TestObserveError(t *testing.T) {
	for _, live := range []bool{false, true} {
		openfiles.CheckLeaks(t)
		in := fakeInput(t, "stall")
		in.Live = live
		full := errors.New("disk is full")
		err := Run(t.Context(), Options{
			Input: in, To: []string{"a"}, Node: inferrer(func(context.Context, string) error { return nil }),
			Observe: func(Result) error { return full },
		})
		if !errors.Is(err, full) {
			t.Errorf("live %v: %v", live, err)
		}
	}
}

// A deadline is no error either.
func TestDeadline(t *testing.T) {
	openfiles.CheckLeaks(t)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	in := fakeInput(t, "hang")
	if err := Run(ctx, Options{Input: in, To: []string{"a"}, Node: inferrer(func(context.Context, string) error { return nil })}); err != nil {
		t.Error(err)
	}
}

func TestLine(t *testing.T) {
	r := Result{
		Stream: "door", Function: "face", Frame: Frame{Number: 7, PTS: 280 * time.Millisecond, Image: raw(4, 2)},
		Age: 1500 * time.Microsecond, Status: "ok", Items: []functions.Item{{Label: "face", Score: 0.5, Box: []int{1, 0, 3, 2}}}, Skipped: 3,
		Answer: functions.Answer{Latency: time.Millisecond, Result: client.Result{ModelVersion: 2, Stages: client.Stages{Queue: 250 * time.Microsecond}}},
	}
	text, err := json.Marshal(r.Line())
	const want = `{"stream":"door","function":"face","frame":7,"pts":0.28,"width":4,"height":2,"age_ms":1.5,"status":"ok","skipped":3,` +
		`"model_version":2,"latency_ms":1,"stages_ms":{"aggregate":0,"gather":0,"infer":0,"queue":0.25,"reply":0},` +
		`"found":[{"label":"face","class":0,"score":0.5,"box":[1,0,3,2]}]}`
	if err != nil || string(text) != want {
		t.Errorf("%s, %v; want %s", text, err, want)
	}
	r.Status, r.Err, r.Items, r.Skipped, r.Answer = "late", client.ErrLate, nil, 0, functions.Answer{}
	text, err = json.Marshal(r.Line())
	const late = `{"stream":"door","function":"face","frame":7,"pts":0.28,"width":4,"height":2,"age_ms":1.5,"status":"late","error":"no credit before the deadline"}`
	if err != nil || string(text) != late {
		t.Errorf("%s, %v; want %s", text, err, late)
	}
}
