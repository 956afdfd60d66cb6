package manager

import (
	"bytes"
	"encoding/json"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/datapath"
	"github.com/penstock/penstock/internal/testing/datapathtest"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/shm"
	"github.com/penstock/penstock/wire"
)

// timesOf is a request that ran for that long and was answered at a time.
func timesOf(sent int64, infer time.Duration, s wire.Status) *datapath.Times {
	t := &datapath.Times{RequestID: uint32(infer / time.Millisecond), Status: s, Batch: 2, Sent: sent, Released: sent}
	t.Inferred = sent
	t.Gathered = sent - int64(infer)
	t.Dispatched, t.Complete, t.Received, t.FirstFragment = t.Gathered, t.Gathered, t.Gathered, t.Gathered
	return t
}

func TestOutliers(t *testing.T) {
	var o outliers
	now := int64(time.Hour)
	for i := range 100 { // the slowest are in the middle
		o.note(timesOf(now, time.Duration(min(i, 99-i))*time.Millisecond, wire.StatusOK))
	}
	o.note(timesOf(now, time.Second, wire.StatusLate))
	o.note(timesOf(now, 2*time.Second, wire.StatusFailed))

	clock := time.Unix(1000, 0)
	got := o.list(now, clock)
	if len(got) != outliersKept+2 {
		t.Fatalf("%d outliers, want %d", len(got), outliersKept+2)
	}
	for _, x := range got[:outliersKept] {
		if x.Request < 46 || x.Status != "ok" || x.StagesMicros[stageInfer] != float64(x.Request)*1000 {
			t.Errorf("outlier %+v, want one of 46 ms or more", x)
		}
		if want := clock.Add(-time.Duration(x.Request) * time.Millisecond); !x.Began.Equal(want) {
			t.Errorf("began at %v, want %v", x.Began, want)
		}
	}
	if got[outliersKept].Status != "late" || got[outliersKept+1].Status != "failed" {
		t.Errorf("outliers %+v", got[outliersKept:])
	}

	// One window later they are still there, and after two they are gone.
	now += int64(outlierWindow) + 1
	o.note(timesOf(now, time.Millisecond, wire.StatusOK))
	if n := len(o.list(now, clock)); n != outliersKept+3 {
		t.Errorf("%d outliers after one window, want %d", n, outliersKept+3)
	}
	now += 2*int64(outlierWindow) + 1
	if n := len(o.list(now, clock)); n != 0 {
		t.Errorf("%d outliers after silence, want none", n)
	}
	o.note(timesOf(now, time.Millisecond, wire.StatusOK))
	if n := len(o.list(now, clock)); n != 1 {
		t.Errorf("%d outliers after the first new request, want it alone", n)
	}
	if n := testing.AllocsPerRun(100, func() { o.note(timesOf(now, time.Second, wire.StatusOK)) }); n != 0 {
		t.Errorf("%v allocations per request", n)
	}
}

func TestSamplePath(t *testing.T) {
	b := newNode(t, configs.DeviceCPU, nil, "governor", named("a", 20))
	fm := b.metrics.of("a")
	fm.Answered(timesOf(shm.Now(), 7*time.Millisecond, wire.StatusOK))
	page := httptest.NewRecorder()
	b.asked(func() { b.sample(page, nil) })
	var s control.Sample
	if err := json.NewDecoder(page.Body).Decode(&s); err != nil {
		t.Fatal(err)
	}
	if len(s.Functions) != 1 || len(s.Status.Functions) != 1 || len(s.Functions[0].Latency) != len(s.BoundsMillis)+1 {
		t.Fatalf("sample %+v", s)
	}
	f := s.Functions[0]
	for i, n := range f.Latency {
		inside := i < len(s.BoundsMillis) && s.BoundsMillis[i] >= 7 && (i == 0 || s.BoundsMillis[i-1] < 7)
		if (n == 1) != inside {
			t.Errorf("bucket %d has %d requests", i, n)
		}
	}
	if f.Ran != 1 || f.BatchSum != 2 || f.Stages[stageInfer] != (control.StageSample{Seconds: 0.007, Count: 1}) || len(f.Outliers) != 1 {
		t.Errorf("sample %+v", f)
	}
	if len(f.Results) != wire.NumStatuses || len(f.Stages) != len(control.StageNames) {
		t.Errorf("%d results, %d stages", len(f.Results), len(f.Stages))
	}
}

func TestPicturePath(t *testing.T) {
	b := newBed(t, configs.Default(), 100)
	b.m.functions = []*function{b.function}
	node := &nodeBed{Manager: b.m, t: t}
	ask := func(function string) *httptest.ResponseRecorder {
		page := httptest.NewRecorder()
		node.asked(func() { b.m.picture(page, httptest.NewRequest("GET", control.PicturePath+"?function="+function, nil)) })
		return page
	}
	for function, want := range map[string]string{"test": "`pictures: 1/s`", "other": "other"} {
		if page := ask(function); page.Code != 400 || !strings.Contains(page.Body.String(), want) {
			t.Errorf("%s: %d %q, want %q", function, page.Code, page.Body, want)
		}
	}

	b.port.SetPictures(configs.PictureRate("10/s").Interval())
	c, s := b.owner(0, 1), b.dial()
	before := time.Now()
	s.Send(3)
	c.Answer(c.Await(1), nil)
	s.Next()
	b.eventually("the picture is copied", func() bool { return b.port.PictureNumber() == 1 })
	var p control.Picture
	if err := json.NewDecoder(ask("test").Body).Decode(&p); err != nil {
		t.Fatal(err)
	}
	if p.Number != 1 || !bytes.Equal(p.Pixels, datapathtest.Picture(3)) || !p.From.IsValid() || p.Kind != wire.KindRaw || p.ModelVersion != 7 {
		t.Errorf("picture %d of %d bytes from %v", p.Number, len(p.Pixels), p.From)
	}
	if after := time.Now(); p.Answered.Before(before) || p.Answered.After(after) || p.Latency <= 0 || p.Latency > after.Sub(before) {
		t.Errorf("answered at %v after %v, want between %v and %v", p.Answered, p.Latency, before, after)
	}
}

// Tensors and pictures that are too large are not kept.
func TestPicturesRefused(t *testing.T) {
	b := beganWith(t, configs.DeviceCPU, nil, named("a", 20))
	inputs := map[string]models.Input{
		"tensor": {Height: 32, Width: 32, Channels: 3, WireType: models.F32},
		"large":  {Height: 2048, Width: 2048, Channels: 3, WireType: models.U8},
	}
	find := b.find
	b.find = func(name string) (*models.Card, error) {
		c, err := find(name)
		if in, ok := inputs[name]; ok {
			c.Input = in
		}
		return c, err
	}
	for name, words := range map[string][]string{
		"tensor": {"pictures is 1/s, and model tensor takes 3 channels of f32", "u8"},
		"large":  {"pictures is 1/s, and model large takes pictures of 12582912 bytes"},
	} {
		f := named(name, 20)
		f.Pictures = "1/s"
		refused(t, b.add(f), append(words, "add function "+name)...)
		f = named("a", 20)
		f.Model, f.Pictures = name, "1/s"
		refused(t, b.edited(f), append(words, "reconfigure function a")...)
	}
}
