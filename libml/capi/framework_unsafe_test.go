//go:build cgo

package capi_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/penstock/penstock/cuda"
	"github.com/penstock/penstock/internal/testing/capitest"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/libml/capi"
	"github.com/penstock/penstock/libml/device"
	"github.com/penstock/penstock/libml/framework"
	"github.com/penstock/penstock/models"
)

// card returns a card with two outputs and a value for each key.
func card() *models.Card {
	return &models.Card{
		Name: "clothes", Version: 3, Command: []string{"/opt/model", "--fast"}, Model: "/opt/model.weights",
		File: "/opt/card.yaml", Dir: "/opt",
		Input: models.Input{
			Name: "image", Height: 4, Width: 6, Channels: 3, WireType: models.U8, WireLayout: models.HWC,
			TensorType: models.F16, TensorLayout: models.CHW, ReverseChannels: true, Mean: []float32{1, 2, 3}, Std: []float32{4, 5, 6},
		},
		Outputs: []models.Tensor{{Name: "prob", Type: models.F32, Shape: []int64{10}}, {Name: "box", Type: models.F32, Shape: []int64{7, 4}}},
		Batches: []int{1, 2, 8}, SLO: 25 * time.Millisecond, KneePercent: 30, Knees: []models.Knee{{Batch: 1, Percent: 20}},
		Threads: 2, Decoder: models.Decoder{Name: "topk", Params: map[string]any{"k": 5}}, Labels: []string{"shirt", "bag"},
	}
}

func environment() framework.Environment {
	return framework.Environment{Card: card(), Threads: 2, Log: slog.New(slog.DiscardHandler), Device: framework.DeviceCPU}
}

// start returns a framework and locks the thread, because reasons belong to a thread.
func start(t testing.TB) (*capi.Framework, *capitest.Callbacks) {
	t.Helper()
	runtime.LockOSThread()
	t.Cleanup(runtime.UnlockOSThread)
	c := capitest.New()
	t.Cleanup(c.Free)
	f, err := capi.New(c.Table(), c.Self())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Close)
	return f, c
}

// Several inputs are offsets in one memory.
func TestSeveralInputs(t *testing.T) {
	f, c := start(t)
	env := environment()
	env.Card.Inputs = []models.Tensor{{Name: "a", Type: models.F32, Shape: []int64{3}}, {Name: "b", Type: models.I64, Shape: []int64{}}}
	env.Card.Input = models.Input{Height: 1, Width: 20, Channels: 1, WireType: models.U8, TensorType: models.U8, Parts: []models.Part{{At: 0, Bytes: 12}, {At: 128, Bytes: 8}}}
	must.OK(t, f.Init(env))
	if text := c.Environment().Card; !strings.Contains(text, `"inputs":[{"name":"a","shape":[3],"type":"f32"},{"name":"b","shape":[],"type":"i64"}]`) || strings.Contains(text, `"input":`) {
		t.Errorf("the card is %s", text)
	}
	memory, outputs := device.HostBuffer(make([]byte, 256)), device.HostBuffers(make([]byte, 80), make([]byte, 224))
	_, err := f.ConfigureBatch(0, 2, []device.Buffer{memory.Slice(0, 24), memory.Slice(128, 144)}, outputs)
	must.OK(t, err)
	if _, err := f.ConfigureBatch(0, 2, []device.Buffer{memory.Slice(0, 24), memory.Slice(64, 80)}, outputs); err == nil || !strings.Contains(err.Error(), "input 1 is at") {
		t.Errorf("an input at another place: %v", err)
	}
}

// tensors returns buffers in Go's heap for n images.
func tensors(n int) (input []byte, outputs [][]byte) {
	c := card()
	for i := range c.Outputs {
		outputs = append(outputs, make([]byte, n*c.Outputs[i].Bytes()))
	}
	return make([]byte, n*c.Input.TensorBytes()), outputs
}

// ready returns a framework with batches of n configured in slot 0.
func ready(t testing.TB, n int) (f *capi.Framework, c *capitest.Callbacks, input []byte, outputs [][]byte) {
	t.Helper()
	f, c = start(t)
	if err := f.Init(environment()); err != nil {
		t.Fatal(err)
	}
	if err := f.LoadModel(); err != nil {
		t.Fatal(err)
	}
	if _, err := f.LinkModel(); err != nil {
		t.Fatal(err)
	}
	input, outputs = tensors(n)
	if _, err := f.ConfigureBatch(0, n, device.HostBuffers(input), device.HostBuffers(outputs...)); err != nil {
		t.Fatal(err)
	}
	return f, c, input, outputs
}

func TestEnvironment(t *testing.T) {
	f, c := start(t)
	if err := f.Init(environment()); err != nil {
		t.Fatal(err)
	}
	got := c.Environment()
	text := got.Card
	got.Card = ""
	want := capitest.Environment{
		Size: 88, ABI: 1, Version: 3, Threads: 2, Name: "clothes", Model: "/opt/model.weights", HasModel: true, Device: "cpu",
		Input: capitest.Tensor{Name: "image", Shape: []int64{3, 4, 6}, Bytes: 4 * 6 * 3 * 2, Type: 2, Layout: 2},
		Outputs: []capitest.Tensor{
			{Name: "prob", Shape: []int64{10}, Bytes: 40, Type: 3}, {Name: "box", Shape: []int64{7, 4}, Bytes: 7 * 4 * 4, Type: 3},
		},
		Batches: []int32{1, 2, 8},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("init was given\n%+v, want\n%+v", got, want)
	}
	const asJSON = `{"batches":[1,2,8],"command":["/opt/model","--fast"],"decoder":{"k":5,"name":"topk"},"dir":"/opt","file":"/opt/card.yaml",` +
		`"input":{"antialias":false,"background":[0,0,0],"colour":"bgr","mean":[1,2,3],"name":"image","size":[4,6,3],"std":[4,5,6],` +
		`"tensor":{"layout":"chw","type":"f16"},"wire":{"layout":"hwc","type":"u8"}},"knee_percent":30,"knees":[{"batch":1,"percent":20}],` +
		`"labels":["shirt","bag"],"model":"/opt/model.weights","name":"clothes",` +
		`"outputs":[{"name":"prob","shape":[10],"type":"f32"},{"name":"box","shape":[7,4],"type":"f32"}],"pad_lengths":false,"slo":0.025,"threads":2,"version":3}`
	if text != asJSON || !json.Valid([]byte(text)) {
		t.Errorf("the card is\n%s, want\n%s", text, asJSON)
	}
}

// Keys that the card lacks become NULL, an empty name, or a dense tensor.
func TestEnvironmentWithoutModel(t *testing.T) {
	f, c := start(t)
	env := environment()
	env.Card.Model, env.Card.Input.Name = "", ""
	if err := f.Init(env); err != nil {
		t.Fatal(err)
	}
	if got := c.Environment(); got.HasModel || got.Input.Name != "" {
		t.Errorf("init was given %+v, want a NULL model and an empty name", got)
	}
}

func TestCallbacks(t *testing.T) {
	const n = 2
	f, c, input, outputs := ready(t, n)
	c.Take(capitest.Link, 1<<40)
	if bytes, err := f.LinkModel(); bytes != 1<<40 || err != nil {
		t.Errorf("link model: %d, %v; want the callback's bytes", bytes, err)
	}
	c.Take(capitest.Configure, 77)
	if bytes, err := f.ConfigureBatch(3, 1, device.HostBuffers(input), device.HostBuffers(outputs...)); bytes != 77 || err != nil {
		t.Errorf("configure batch: %d, %v; want the callback's bytes", bytes, err)
	}
	if slot, size := c.Configured(); slot != 3 || size != 1 {
		t.Errorf("slot %d, size %d were configured, want 3, 1", slot, size)
	}
	if _, err := f.ConfigureBatch(0, n, device.HostBuffers(input), device.HostBuffers(outputs...)); err != nil {
		t.Fatal(err)
	}
	each := card().Input.TensorBytes()
	input[0], input[each] = 5, 6
	if err := f.InferBatch(0, n); err != nil {
		t.Fatal(err)
	}
	result := unsafe.Slice((*float32)(unsafe.Pointer(&outputs[0][0])), 2*10)
	if result[0] != 5 || result[10] != 6 {
		t.Errorf("results %v and %v, want 5 and 6", result[0], result[10])
	}
	if err := f.Deinit(); err != nil {
		t.Fatal(err)
	}
	var calls [6]int
	for i := range calls {
		calls[i] = c.Calls(capitest.Callback(i))
	}
	if want := [6]int{1, 1, 2, 3, 1, 1}; calls != want {
		t.Errorf("calls %v, want %v", calls, want)
	}
}

func TestInvalidTables(t *testing.T) {
	cases := map[string]struct {
		harm func(*capitest.Callbacks)
		want string
	}{
		"no size":          {func(c *capitest.Callbacks) { c.SetSize(0) }, "size is 0, want sizeof(penstock_framework), 56"},
		"cut short":        {func(c *capitest.Callbacks) { c.SetSize(48) }, "size is 48, want sizeof(penstock_framework), 56"},
		"too long":         {func(c *capitest.Callbacks) { c.SetSize(64) }, "size is 64, want sizeof(penstock_framework), 56"},
		"another ABI":      {func(c *capitest.Callbacks) { c.SetABI(2) }, "abi is 2, want 1"},
		"no init":          {func(c *capitest.Callbacks) { c.Remove(capitest.Init) }, "init is NULL"},
		"no load_model":    {func(c *capitest.Callbacks) { c.Remove(capitest.Load) }, "load_model is NULL"},
		"no link_model":    {func(c *capitest.Callbacks) { c.Remove(capitest.Link) }, "link_model is NULL"},
		"no configure":     {func(c *capitest.Callbacks) { c.Remove(capitest.Configure) }, "configure_batch is NULL"},
		"no infer_batch":   {func(c *capitest.Callbacks) { c.Remove(capitest.Infer) }, "infer_batch is NULL"},
		"no deinit":        {func(c *capitest.Callbacks) { c.Remove(capitest.Deinit) }, "deinit is NULL"},
		"a table of parts": {func(c *capitest.Callbacks) { c.SetSize(8); c.Remove(capitest.Init) }, "size is 8"},
	}
	for name, test := range cases {
		t.Run(name, func(t *testing.T) {
			c := capitest.New()
			defer c.Free()
			test.harm(c)
			_, err := capi.New(c.Table(), c.Self())
			if !errors.Is(err, capi.ErrTable) || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want one of ErrTable with %q", err, test.want)
			}
		})
	}
	if _, err := capi.New(nil, nil); !errors.Is(err, capi.ErrTable) || !strings.Contains(err.Error(), "NULL") {
		t.Errorf("error %v of a table of NULL", err)
	}
}

func TestErrors(t *testing.T) {
	const n = 1
	cases := map[string]struct {
		callback capitest.Callback
		call     func(*capi.Framework) error
	}{
		"init":       {capitest.Init, func(f *capi.Framework) error { return f.Init(environment()) }},
		"load_model": {capitest.Load, (*capi.Framework).LoadModel},
		"link_model": {capitest.Link, func(f *capi.Framework) error { _, err := f.LinkModel(); return err }},
		"configure_batch": {capitest.Configure, func(f *capi.Framework) error {
			in, out := tensors(n)
			_, err := f.ConfigureBatch(0, n, device.HostBuffers(in), device.HostBuffers(out...))
			return err
		}},
		"infer_batch": {capitest.Infer, func(f *capi.Framework) error { return f.InferBatch(0, n) }},
		"deinit":      {capitest.Deinit, (*capi.Framework).Deinit},
	}
	for name, test := range cases {
		t.Run(name, func(t *testing.T) {
			f, c, _, _ := ready(t, n)
			c.Answer(test.callback, 1, "no\nweights\t\xff")
			err := test.call(f)
			want := "no weights ?"
			if name == "infer_batch" { // libml's errors name the other steps
				want = name + ": " + want
			}
			if err == nil || err.Error() != want {
				t.Errorf("error %v, want %q", err, want)
			}
			// The next error does not get this reason.
			c.Answer(test.callback, 1, "")
			if err := test.call(f); err == nil || strings.Contains(err.Error(), "weights") {
				t.Errorf("error %v, want one without the last one's reason", err)
			}
			c.Answer(test.callback, 3, "12 GB")
			if err := test.call(f); !errors.Is(err, cuda.ErrOutOfMemory) || !strings.HasSuffix(err.Error(), "out of memory: 12 GB") ||
				strings.Contains(err.Error(), "cuda") {
				t.Errorf("error %v of PENSTOCK_OUT_OF_MEMORY", err)
			}
			c.Answer(test.callback, 4, "")
			if err := test.call(f); !errors.Is(err, device.ErrLost) || errors.Is(err, cuda.ErrOutOfMemory) {
				t.Errorf("error %v of PENSTOCK_DEVICE_LOST", err)
			}
			c.Answer(test.callback, 6, "0.4 away")
			if err := test.call(f); !errors.Is(err, device.ErrWrongAnswers) || !strings.HasSuffix(err.Error(), "0.4 away") {
				t.Errorf("error %v of PENSTOCK_WRONG_ANSWERS", err)
			}
			c.Answer(test.callback, 2, "")
			if err := test.call(f); errors.Is(err, framework.ErrNoHostStage) != (name == "load_model") {
				t.Errorf("error %v of PENSTOCK_NO_HOST_STAGE", err)
			}
			for _, code := range []int{-1, 5, 17} {
				c.Answer(test.callback, code, "")
				if err := test.call(f); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("returned %d, want PENSTOCK_OK", code)) {
					t.Errorf("error %v of code %d", err, code)
				}
			}
			c.Answer(test.callback, 0, "a warning that is none")
			if err := test.call(f); err != nil {
				t.Errorf("error %v of PENSTOCK_OK", err)
			}
		})
	}
}

// A long reason is cut and overruns no buffer.
func TestLongReason(t *testing.T) {
	f, c, _, _ := ready(t, 1)
	c.Answer(capitest.Infer, 1, strings.Repeat("x", 8000))
	if err := f.InferBatch(0, 1); err == nil || len(err.Error()) != len("infer_batch: ")+4000 {
		t.Errorf("an error of %d bytes, want 4,000 of reason", len(err.Error()))
	}
}

func TestNegativeBytes(t *testing.T) {
	f, c, in, out := ready(t, 1)
	c.Take(capitest.Link, -1)
	if _, err := f.LinkModel(); err == nil || !strings.Contains(err.Error(), "persistent_bytes is -1") {
		t.Errorf("link model: %v", err)
	}
	c.Take(capitest.Configure, -5)
	if _, err := f.ConfigureBatch(0, 1, device.HostBuffers(in), device.HostBuffers(out...)); err == nil || !strings.Contains(err.Error(), "ephemeral_bytes is -5") {
		t.Errorf("configure batch: %v", err)
	}
}

func TestBatchAllocations(t *testing.T) {
	f, _, _, _ := ready(t, 2)
	if n := testing.AllocsPerRun(1000, func() {
		if err := f.InferBatch(0, 2); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations a batch", n)
	}
}

// Go's garbage collector does not free buffers while C may use them.
func TestPinnedBuffers(t *testing.T) {
	f, _, input, outputs := ready(t, 1)
	result := unsafe.Pointer(&outputs[0][0])
	input[0] = 9
	outputs, input = nil, nil // only the pins keep them now
	var others [][]byte       // of the same size, in any free place
	for range 5 {
		runtime.GC()
		for range 1000 {
			others = append(others, bytes.Repeat([]byte{0xee}, card0.Input.TensorBytes()))
		}
	}
	if err := f.InferBatch(0, 1); err != nil {
		t.Fatal(err)
	}
	if got := *(*float32)(result); got != 9 {
		t.Errorf("result %v, want 9", got)
	}
	runtime.KeepAlive(others)
}

func TestConfigureLeaks(t *testing.T) {
	f, c, _, _ := ready(t, 8)
	round := func(rounds int) (heap, inC int64) {
		for i := range rounds {
			// If a call fails, the buffers of the call before stay.
			code := 0
			if i%5 == 4 {
				code = 1
			}
			c.Answer(capitest.Configure, code, "no")
			for slot := range 4 {
				input, outputs := tensors(8)
				if _, err := f.ConfigureBatch(slot, 8, device.HostBuffers(input), device.HostBuffers(outputs...)); (err != nil) != (code != 0) {
					t.Fatal(err)
				}
			}
		}
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc), capitest.HeapBytes()
	}
	const rounds = 5000
	heap, inC := round(rounds)
	heapThen, inCThen := round(rounds)
	// The smallest leak per call would be larger.
	const least = 16 * rounds
	if grown := heapThen - heap; grown > least {
		t.Errorf("Go's heap grew by %d bytes", grown)
	}
	if grown := inCThen - inC; grown > least {
		t.Errorf("C's heap grew by %d bytes", grown)
	}
}

func TestCloseLeaks(t *testing.T) {
	c := capitest.New()
	defer c.Free()
	round := func(rounds int) int64 {
		for range rounds {
			f, err := capi.New(c.Table(), c.Self())
			if err != nil {
				t.Fatal(err)
			}
			if err := f.Init(environment()); err != nil {
				t.Fatal(err)
			}
			f.Close()
		}
		return capitest.HeapBytes()
	}
	const rounds = 2000
	before := round(rounds)
	const least = 16 * rounds // malloc's smallest block, so the smallest leak
	if grown := round(rounds) - before; grown > least {
		t.Errorf("C's heap grew by %d bytes", grown)
	}
}

// Outside of a node's process every function returns an error and nothing crashes.
func TestPrograms(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if s := capitest.Stream(0); s != 0 {
		t.Errorf("a stream %#x before link_model", s)
	}
	if code, at, bytes, why := capitest.Weights("x"); code != 1 || at != 0 || bytes != 0 || !strings.Contains(why, "before link_model") {
		t.Errorf("weights: %d, %#x, %d, %q", code, at, bytes, why)
	}
	if code, why := capitest.Run(nil, nil); code != 1 || !strings.Contains(why, "it is NULL") {
		t.Errorf("run of NULL: %d, %q", code, why)
	}
}

func TestStreamsAndWeights(t *testing.T) {
	f, _ := start(t)
	defer capi.SetRunning(f)()
	env := environment()
	env.Device = "GPU-1"
	env.Stream = func(slot int) uintptr {
		if slot == 3 {
			panic("no slot 3")
		}
		return uintptr(0x1000 + slot)
	}
	env.Weights = func(file string) (framework.Weights, error) {
		switch file {
		case "held":
			return framework.Weights{Address: 0x7000, Bytes: 12}, nil
		case "panic":
			panic("no weights")
		case "lost":
			// libml's error if there are no shared weights.
			return framework.Weights{}, fmt.Errorf("%w: %w", framework.ErrNoWeights, &cuda.Error{Op: "cuMemMap", Code: 700})
		}
		return framework.Weights{}, fmt.Errorf("%w: nobody holds %s", framework.ErrNoWeights, file)
	}
	if err := f.Init(env); err != nil {
		t.Fatal(err)
	}
	if s := capitest.Stream(1); s != 0 {
		t.Errorf("stream %#x before link_model", s)
	}
	if _, err := f.LinkModel(); err != nil {
		t.Fatal(err)
	}
	for slot, want := range map[int]uintptr{-1: 0, 0: 0x1000, 1: 0x1001, 3: 0, 4: 0} {
		if s := capitest.Stream(slot); s != want {
			t.Errorf("stream of slot %d is %#x, want %#x", slot, s, want)
		}
	}
	for file, want := range map[string]struct {
		code  int
		at    uintptr
		bytes uint64
		why   string
	}{
		"held":  {0, 0x7000, 12, ""},
		"other": {5, 0, 0, "penstock_weights: no shared weights: nobody holds other"},
		"lost": {4, 0, 0, "penstock_weights: no shared weights: cuMemMap: CUDA_ERROR_ILLEGAL_ADDRESS (700): " +
			"an illegal memory access was encountered"},
		"panic": {1, 0, 0, "penstock_weights: panic: no weights: this is a bug in libpenstock; report it"},
	} {
		code, at, bytes, why := capitest.Weights(file)
		if code != want.code || at != want.at || bytes != want.bytes || why != want.why {
			t.Errorf("weights %s: %d, %#x, %d, %q; want %+v", file, code, at, bytes, why, want)
		}
	}
	env.Weights = nil
	if err := f.Init(env); err != nil {
		t.Fatal(err)
	}
	if code, _, _, why := capitest.Weights("held"); code != 5 || !strings.Contains(why, "load the weights yourself") {
		t.Errorf("weights of a process without: %d, %q", code, why)
	}
}

// inGo computes what capitest's infer_batch does.
type inGo struct {
	framework.Framework
	input  []byte
	output []byte
}

func (g *inGo) InferBatch(_, n int) error {
	picture := card0.Input.TensorBytes()
	results := card0.Outputs[0].Bytes()
	for i := range n {
		*(*float32)(unsafe.Pointer(&g.output[i*results])) = float32(g.input[i*picture])
	}
	return nil
}

var card0 = card()

// BenchmarkInferBatch measures a batch's call: to C through the table, and to Go through the interface.
func BenchmarkInferBatch(b *testing.B) {
	f, _, input, outputs := ready(b, 1)
	for name, framework := range map[string]framework.Framework{"c": f, "go": &inGo{nil, input, outputs[0]}} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for range b.N {
				if err := framework.InferBatch(0, 1); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
