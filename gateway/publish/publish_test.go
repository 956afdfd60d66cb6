package publish

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"image"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/penstock/penstock/client"
	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/gateway/functions"
	"github.com/penstock/penstock/gateway/stream"
	"github.com/penstock/penstock/internal/testing/logtest"
	"github.com/penstock/penstock/internal/testing/openfiles"
	"github.com/penstock/penstock/internal/testing/wait"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/wire"
)

const patience = 30 * time.Second

// running is a Set that runs in the background.
type running struct {
	*Set
	log  logtest.Log
	stop func() // returns when Run has ended
}

// newSet makes a Set that tries again at once.
func newSet(specs ...configs.Publish) *running {
	r := &running{}
	r.Set = NewSet(specs, "test", zerolog.New(&r.log))
	for _, one := range r.receivers {
		one.pause = time.Millisecond
	}
	return r
}

func (r *running) start(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		r.Run(ctx)
	}()
	r.stop = func() {
		cancel()
		<-ended
	}
	t.Cleanup(r.stop)
}

// found is an answer of a stream with boxes of these classes.
func found(streamName string, frame uint64, classes ...uint16) *Answer {
	a := &Answer{Time: time.Now(), Kind: wire.KindBoxes, Line: stream.Line{Stream: streamName, Function: "face", Frame: frame, Status: "ok"}}
	for _, c := range classes {
		a.Found = append(a.Found, functions.Item{Label: fmt.Sprint("class", c), Class: c, Score: 0.5, Box: []int{1, 2, 3, 4}})
	}
	return a
}

// fakeSink is a sink that a test controls.
type fakeSink struct {
	opened func() error
	sent   func(ctx context.Context, m message) error

	mu     sync.Mutex
	frames []uint64
}

func (f *fakeSink) open(context.Context) error {
	if f.opened != nil {
		return f.opened()
	}
	return nil
}

func (f *fakeSink) lost() <-chan struct{} { return nil }

func (f *fakeSink) close() {}

func (f *fakeSink) send(ctx context.Context, m message) error {
	if f.sent != nil {
		if err := f.sent(ctx, m); err != nil {
			return err
		}
	}
	var a Answer
	if err := json.Unmarshal(m.text, &a); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.frames = append(f.frames, a.Frame)
	return nil
}

func (f *fakeSink) got() []uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]uint64(nil), f.frames...)
}

// spec is a receiver that gets all answers.
func spec(name string) configs.Publish {
	return configs.Publish{Name: name, Kind: configs.PublishJSONL, File: "/nowhere/answers.jsonl", Timeout: time.Second}
}

// withSinks makes a Set whose receivers have these sinks.
func withSinks(sinks ...*fakeSink) *running {
	var specs []configs.Publish
	for i := range sinks {
		specs = append(specs, spec(fmt.Sprint("receiver", i)))
	}
	r := newSet(specs...)
	for i, s := range sinks {
		r.receivers[i].sink = s
	}
	return r
}

// A receiver that takes nothing costs its own answers only. Each of them is counted.
func TestStuckReceiver(t *testing.T) {
	openfiles.CheckLeaks(t)
	stuck := &fakeSink{sent: func(ctx context.Context, _ message) error {
		<-ctx.Done()
		return ctx.Err()
	}}
	good := &fakeSink{}
	set := withSinks(stuck, good)
	set.drain = 10 * time.Millisecond
	set.start(t)

	const answers = 3 * maxWaiting
	for i := range uint64(answers) {
		set.Publish(found("door", i))
		if i == 0 {
			wait.For(t, "the stuck receiver", func() bool { return set.Status()[0].Waiting == 0 })
		}
		wait.For(t, "the good receiver", func() bool { return set.Status()[1].Sent == i+1 })
	}
	status := set.Status()[0]
	// One answer is on its way.
	if status.Sent != 0 || status.Waiting != maxWaiting || status.Dropped != answers-maxWaiting-1 {
		t.Errorf("%+v", status)
	}
	if got := good.got(); len(got) != answers || got[answers-1] != answers-1 {
		t.Errorf("the good receiver got %d answers", len(got))
	}
	set.stop()
	if !strings.Contains(set.log.String(), "answers were not delivered") {
		t.Error(set.log.String())
	}
}

// After failures the receiver gets the same answer again, in order, and the state says what happened.
func TestFailures(t *testing.T) {
	openfiles.CheckLeaks(t)
	var mu sync.Mutex
	failures := 3
	sink := &fakeSink{sent: func(_ context.Context, m message) error {
		mu.Lock()
		defer mu.Unlock()
		if failures > 0 {
			failures--
			return errors.New("no room")
		}
		return nil
	}}
	set := withSinks(sink)
	set.Publish(found("door", 1))
	set.Publish(found("door", 2))
	if s := set.Status()[0]; s.State != Starting || s.Waiting != 2 {
		t.Errorf("%+v", s)
	}
	set.start(t)
	wait.For(t, "both answers", func() bool { return set.Status()[0].Sent == 2 })
	if s := set.Status()[0]; s.State != Running || s.Error != "" || s.Waiting != 0 || s.Dropped != 0 || fmt.Sprint(sink.got()) != "[1 2]" {
		t.Errorf("%+v, got %v", s, sink.got())
	}
	log := set.log.String()
	if strings.Count(log, "receiver takes no answers; trying again") != 1 || !strings.Contains(log, "no room") || strings.Count(log, "receiver takes answers") != 1 {
		t.Error(log)
	}
}

// An answer that the receiver refuses is counted and not sent again.
func TestRefused(t *testing.T) {
	openfiles.CheckLeaks(t)
	sink := &fakeSink{sent: func(_ context.Context, m message) error {
		if strings.Contains(string(m.text), `"frame":2`) {
			return refusal("it is even")
		}
		return nil
	}}
	set := withSinks(sink)
	set.start(t)
	for i := range uint64(4) {
		set.Publish(found("door", i))
	}
	wait.For(t, "the answers", func() bool { s := set.Status()[0]; return s.Sent == 3 && s.Refused == 1 })
	if fmt.Sprint(sink.got()) != "[0 1 3]" || !strings.Contains(set.log.String(), "receiver refuses the answer: it is even") {
		t.Errorf("%v\n%s", sink.got(), set.log.String())
	}
}

// A model may answer what JSON cannot say.
func TestNaN(t *testing.T) {
	set := withSinks(&fakeSink{})
	a := found("door", 1, 1)
	a.Found[0].Score = float32(math.NaN())
	set.Publish(a)
	if s := set.Status()[0]; s.Refused != 1 || s.Waiting != 0 || !strings.Contains(s.Error, "encode answer of face") {
		t.Errorf("%+v", s)
	}
}

// Run sends what waits when its context ends.
func TestDrain(t *testing.T) {
	openfiles.CheckLeaks(t)
	release := make(chan struct{})
	sink := &fakeSink{sent: func(context.Context, message) error {
		<-release
		return nil
	}}
	set := withSinks(sink)
	set.drain = patience
	set.start(t)
	for i := range uint64(5) {
		set.Publish(found("door", i))
	}
	time.AfterFunc(10*time.Millisecond, func() { close(release) })
	set.stop()
	if fmt.Sprint(sink.got()) != "[0 1 2 3 4]" {
		t.Error(sink.got())
	}
}

// A sink that never returns does not keep Run.
func TestStuckWrite(t *testing.T) {
	openfiles.CheckLeaks(t)
	release := make(chan struct{})
	defer close(release)
	set := withSinks(&fakeSink{sent: func(context.Context, message) error {
		<-release
		return nil
	}})
	set.drain = 5 * time.Millisecond
	set.start(t)
	set.Publish(found("door", 1))
	set.stop()
}

func TestFilter(t *testing.T) {
	at := time.Unix(1000, 0)
	answer := func(after time.Duration, edit ...func(*Answer)) *Answer {
		a := found("door", 0)
		a.Time = at.Add(after)
		for _, e := range edit {
			e(a)
		}
		return a
	}
	boxes := func(classes ...uint16) func(*Answer) {
		return func(a *Answer) { a.Found = found("", 0, classes...).Found }
	}
	classes := func(list ...uint16) func(*Answer) {
		return func(a *Answer) {
			for _, c := range list {
				a.Found = append(a.Found, functions.Item{Class: c})
			}
		}
	}
	late := func(a *Answer) { a.Status = "late" }
	http := func(a *Answer) { a.Stream = configs.FromHTTP }
	other := func(a *Answer) { a.Function = "detect" }

	type step struct {
		answer *Answer
		want   bool
	}
	for name, c := range map[string]struct {
		spec  configs.Publish
		steps []step
	}{
		"all": {configs.Publish{}, []step{{answer(0), true}, {answer(0), true}, {answer(0, late), true}}},
		"every second": {configs.Publish{Every: time.Second}, []step{
			{answer(0), true}, {answer(999 * time.Millisecond), false}, {answer(time.Second), true}, {answer(1500 * time.Millisecond), false},
		}},
		"lanes are separate": {configs.Publish{Every: time.Second}, []step{{answer(0), true}, {answer(0, other), true}, {answer(0), false}}},
		"changes": {configs.Publish{Every: time.Second}, []step{
			{answer(0), true}, {answer(1, boxes(1)), true}, {answer(2, boxes(1)), false}, {answer(3, boxes(1, 1)), true},
			{answer(4, boxes(2, 1)), true}, {answer(5, boxes(1, 2)), false}, {answer(6), true},
		}},
		"best class": {configs.Publish{Every: time.Second}, []step{
			{answer(0, classes(1, 2)), true}, {answer(1, classes(1, 3)), false}, {answer(2, classes(3, 1)), true},
		}},
		"late is no change": {configs.Publish{Every: time.Second}, []step{
			{answer(0, boxes(1)), true}, {answer(1, late), false}, {answer(2, boxes(1)), false}, {answer(time.Second, late), true}, {answer(time.Second+1, boxes(1)), false},
		}},
		"mqtt takes ok only":  {configs.Publish{Kind: configs.PublishMQTT}, []step{{answer(0, late), false}, {answer(0), true}}},
		"http is not limited": {configs.Publish{Every: time.Second}, []step{{answer(0, http), true}, {answer(0, http), true}}},
		"streams":             {configs.Publish{From: []string{"door"}}, []step{{answer(0), true}, {answer(0, http), false}}},
		"only http":           {configs.Publish{From: []string{"http"}}, []step{{answer(0), false}, {answer(0, http), true}}},
		"functions":           {configs.Publish{Functions: []string{"detect"}}, []step{{answer(0), false}, {answer(0, other), true}}},
	} {
		f := newFilter(&c.spec)
		for i, s := range c.steps {
			if got := f.pass(s.answer); got != s.want {
				t.Errorf("%s: step %d: %v, want %v", name, i, got, s.want)
			}
		}
	}
}

func TestQueue(t *testing.T) {
	text := func(size int) message { return message{at: time.Now(), text: make([]byte, size)} }
	taken := func(q *queue) (sizes []int) {
		for {
			m, ok := q.take()
			if !ok {
				return sizes
			}
			sizes = append(sizes, len(m.text))
		}
	}
	t.Run("number", func(t *testing.T) {
		q := newQueue()
		for i := range maxWaiting + 2 {
			q.put(text(i))
		}
		if waiting, dropped := q.counts(); waiting != maxWaiting || dropped != 2 {
			t.Errorf("%d wait, %d dropped", waiting, dropped)
		}
		if got := taken(q); len(got) != maxWaiting || got[0] != 2 {
			t.Errorf("%d, the first %v", len(got), got[:1])
		}
	})
	t.Run("bytes", func(t *testing.T) {
		q := newQueue()
		for range 5 {
			q.put(text(maxWaitingBytes / 4))
		}
		if waiting, dropped := q.counts(); waiting != 4 || dropped != 1 {
			t.Errorf("%d wait, %d dropped", waiting, dropped)
		}
		q.put(text(maxWaitingBytes + 1))
		if waiting, dropped := q.counts(); waiting != 0 || dropped != 6 || q.bytes != 0 {
			t.Errorf("%d wait, %d dropped, %d bytes", waiting, dropped, q.bytes)
		}
	})
	t.Run("age", func(t *testing.T) {
		q := newQueue()
		old := text(1)
		old.at = time.Now().Add(-2 * maxAge)
		q.put(old)
		q.put(text(2))
		if got := taken(q); fmt.Sprint(got) != "[2]" {
			t.Error(got)
		}
		if _, dropped := q.counts(); dropped != 1 {
			t.Errorf("%d dropped", dropped)
		}
	})
	t.Run("put back", func(t *testing.T) {
		q := newQueue()
		for i := range maxWaiting {
			q.put(text(i))
		}
		first, _ := q.take()
		q.putBack(first)
		if again, _ := q.take(); len(again.text) != 0 {
			t.Errorf("%d bytes", len(again.text))
		}
		q.put(text(maxWaiting))
		q.putBack(first)
		if waiting, dropped := q.counts(); waiting != maxWaiting || dropped != 1 {
			t.Errorf("%d wait, %d dropped", waiting, dropped)
		}
	})
}

func TestFromHTTP(t *testing.T) {
	f := &functions.Function{Name: "face", Card: &models.Card{}}
	answer := functions.Answer{Result: client.Result{Kind: wire.KindBoxes, ModelVersion: 3}, Latency: 2 * time.Millisecond}
	items := []functions.Item{{Label: "face", Score: 0.5, Box: []int{1, 2, 3, 4}}}
	a := FromHTTP(f, image.Pt(640, 480), &answer, items, 5*time.Millisecond, nil)
	a.Time = time.Unix(0, 0).UTC()
	text, err := json.Marshal(a)
	const want = `{"time":"1970-01-01T00:00:00Z","stream":"http","function":"face","frame":0,"pts":0,"width":640,"height":480,"age_ms":5,"status":"ok","model_version":3,"latency_ms":2,` +
		`"stages_ms":{"aggregate":0,"gather":0,"infer":0,"queue":0,"reply":0},"found":[{"label":"face","class":0,"score":0.5,"box":[1,2,3,4]}]}`
	if err != nil || string(text) != want || a.Kind != wire.KindBoxes {
		t.Errorf("%s, %v, want\n%s", text, err, want)
	}
	if a := FromHTTP(f, image.Pt(1, 1), &functions.Answer{}, nil, 0, client.StatusError(client.StatusLate)); a == nil || a.Status != "late" || a.Error == "" {
		t.Errorf("%+v", a)
	}
	if a := FromHTTP(f, image.Pt(1, 1), &functions.Answer{}, nil, 0, context.Canceled); a != nil {
		t.Errorf("%+v", a)
	}
}
