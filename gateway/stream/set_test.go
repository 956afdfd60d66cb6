package stream

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/penstock/penstock/gateway/functions"
	"github.com/penstock/penstock/internal/testing/logtest"
	"github.com/penstock/penstock/internal/testing/openfiles"
	"github.com/penstock/penstock/internal/testing/wait"
)

// runSet runs a stream until done, and returns its status and the log.
func runSet(t *testing.T, behaviour string, node Inferrer, done func(Status) bool) (last Status, log string) {
	t.Helper()
	in := fakeInput(t, behaviour)
	var text logtest.Log
	set := NewSet([]Spec{{Name: "door", Source: in.Address.text, To: []string{"face"}}}, SetOptions{
		Node: node, FFmpeg: in.FFmpeg, Log: zerolog.New(&text), MinPause: time.Millisecond, MaxPause: 4 * time.Millisecond,
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		set.Run(ctx)
	}()
	wait.For(t, behaviour, func() bool {
		last = set.Status()[0]
		return done(last)
	})
	cancel()
	<-ended
	all, err := json.Marshal(set.Status())
	if err != nil {
		t.Error(err)
	}
	for _, secret := range []string{"pa%20ss", "pa ss", "k1234"} {
		if strings.Contains(string(all), secret) || strings.Contains(text.String(), secret) {
			t.Errorf("%s is shown: %s\n%s", secret, all, &text)
		}
	}
	return last, text.String()
}

// A source that ends or fails is opened again, and what it did stays counted.
func TestSet(t *testing.T) {
	ok := inferrer(func(context.Context, string) error { return nil })
	t.Run("ends", func(t *testing.T) {
		openfiles.CheckLeaks(t)
		last, log := runSet(t, "many", ok, func(s Status) bool { return s.Opened >= 3 && s.Frames > 2*framesOfMany })
		if last.Source != "rtsp://***@door/main?***" || last.Functions[0].Answers["ok"] == 0 || !strings.Contains(log, "stream runs") {
			t.Errorf("%+v\n%s", last, log)
		}
	})
	t.Run("fails", func(t *testing.T) {
		openfiles.CheckLeaks(t)
		last, log := runSet(t, "secret", ok, func(s Status) bool { return s.Opened >= 3 && s.State == Waiting })
		const want = "ffmpeg failed: cannot open 'rtsp://***@door/main?***' as *** with *** (exit status 1)"
		if !strings.Contains(last.Error, want) || !strings.Contains(log, "stream failed") || !strings.Contains(log, want) {
			t.Errorf("%+v\n%s", last, log)
		}
	})
	t.Run("hangs", func(t *testing.T) {
		openfiles.CheckLeaks(t)
		if last, _ := runSet(t, "hang", ok, func(s Status) bool { return s.Opened == 1 }); last.State != Starting {
			t.Errorf("%+v", last)
		}
	})
	t.Run("unknown function", func(t *testing.T) {
		openfiles.CheckLeaks(t)
		unknown := inferrer(func(context.Context, string) error { return fmt.Errorf("%w: \"face\"", functions.ErrUnknown) })
		last, log := runSet(t, "many", unknown, func(s Status) bool { return s.Opened >= 3 })
		if last.Functions[0].Answers[StatusUnknown] == 0 || strings.Count(log, "function takes no frames of the stream") != 1 {
			t.Errorf("%+v\n%s", last, log)
		}
	})
}

// A file that is missing is waited for.
func TestSetMissingFile(t *testing.T) {
	openfiles.CheckLeaks(t)
	set := NewSet([]Spec{{Name: "clip", Source: filepath.Join(t.TempDir(), "none.mp4"), To: []string{"face"}}}, SetOptions{
		Log: zerolog.Nop(), MinPause: time.Millisecond, MaxPause: time.Millisecond,
	})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		set.Run(ctx)
	}()
	wait.For(t, "the error", func() bool { return strings.Contains(set.Status()[0].Error, "no such file") })
	cancel()
	<-ended
}
