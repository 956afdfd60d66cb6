// Package null is the framework "null": no model. A batch takes a configured time, answers can be
// computed from the pictures, and the framework fails on demand. Benchmarks use it to measure
// Penstock alone; tests use it as a bad inference function.
//
// PENSTOCK_NULL is its behaviour, as a list of words separated by commas. If it is empty, batches
// take no time.
//
//	busy=1ms           CPU time of a batch (a CPU share slows it down)
//	busy_per_image=1ms additional CPU time per image
//	sleep=1ms          a batch waits for that time (a CPU share does not matter)
//	nan                every output is not a number
//	fail=STEP          init, load, link, configure or infer returns an error
//	fail_after=N       batches after the first N return an error
//	hang_after=N       the batch after the first N never returns
//	crash_after=N      the batch after the first N kills the process (SIGKILL)
//	host_stage=no      LoadModel returns framework.ErrNoHostStage
//
// On a GPU, kernels on the slot's stream compute the answers, and there are more words:
//
//	spin=2ms           a batch keeps all multiprocessors of an H200 busy for that
//	                   time; on half of them it takes twice as long
//	spin_per_image=1ms additional time per image
//	fault_after=N      the batch after the first N writes to an invalid address,
//	                   which loses the device
//	wrong=18-28/36-60  LinkModel returns device.ErrWrongAnswers if MPS gives the process
//	                   so many multiprocessors
//	allocate=BYTES     LinkModel allocates that much of the device's memory, as
//	                   weights that can be evicted
//
// The warm-up batches count, and on a GPU both slots are warmed up.
package null

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/penstock/penstock/cuda"
	"github.com/penstock/penstock/libml/device"
	"github.com/penstock/penstock/libml/framework"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/models/document"
)

// Variable is the name of the environment variable with the framework's behaviour.
const Variable = "PENSTOCK_NULL"

// ErrOrdered is returned by the steps that fail on demand.
var ErrOrdered = errors.New("failure ordered by " + Variable)

// Behaviour is the cost of a batch, and the failures. The zero value takes no time and does not
// fail.
type Behaviour struct {
	Busy, BusyPerImage time.Duration // CPU time of the calling thread
	Sleep              time.Duration
	NaN                bool
	Fail               string // a step: init, load, link, configure, infer
	// The first batch, counted from 1, that fails, hangs, kills the process, or loses the
	// GPU; 0 for none.
	FailAt, HangAt, CrashAt, FaultAt int64
	NoHostStage                      bool
	// On a GPU only.
	Spin, SpinPerImage time.Duration // work, in time of all multiprocessors of an H200
	Allocate           int64         // bytes
	Wrong              []Range       // numbers of multiprocessors
}

// Range is a range of numbers, with its ends.
type Range struct{ First, Last int }

// needsGPU returns a word of the behaviour that requires a GPU, or "".
func (b *Behaviour) needsGPU() string {
	switch {
	case b.Spin > 0:
		return "spin"
	case b.SpinPerImage > 0:
		return "spin_per_image"
	case b.FaultAt > 0:
		return "fault_after"
	case b.Allocate > 0:
		return "allocate"
	case len(b.Wrong) > 0:
		return "wrong"
	}
	return ""
}

var (
	words = []string{
		"busy", "busy_per_image", "sleep", "nan", "fail", "fail_after", "hang_after", "crash_after", "host_stage",
		"spin", "spin_per_image", "fault_after", "allocate", "wrong",
	}
	steps = []string{"init", "load", "link", "configure", "infer"}
)

// parseBehaviour reads PENSTOCK_NULL.
func parseBehaviour(s string) (Behaviour, error) {
	var b Behaviour
	for word := range strings.SplitSeq(s, ",") {
		if word = strings.TrimSpace(word); word == "" {
			continue
		}
		key, value, _ := strings.Cut(word, "=")
		var err error
		switch key {
		case "busy":
			b.Busy, err = duration(value)
		case "busy_per_image":
			b.BusyPerImage, err = duration(value)
		case "sleep":
			b.Sleep, err = duration(value)
		case "nan":
			if b.NaN = value == ""; !b.NaN {
				err = errors.New("want no value")
			}
		case "fail":
			if b.Fail = value; !slices.Contains(steps, value) {
				err = fmt.Errorf("want one of %s", strings.Join(steps, ", "))
			}
		case "fail_after":
			b.FailAt, err = after(value)
		case "hang_after":
			b.HangAt, err = after(value)
		case "crash_after":
			b.CrashAt, err = after(value)
		case "host_stage":
			if b.NoHostStage = value == "no"; !b.NoHostStage {
				err = errors.New("want no")
			}
		case "spin":
			b.Spin, err = duration(value)
		case "spin_per_image":
			b.SpinPerImage, err = duration(value)
		case "fault_after":
			b.FaultAt, err = after(value)
		case "allocate":
			if b.Allocate, err = strconv.ParseInt(value, 10, 63); err != nil || b.Allocate < 0 {
				err = errors.New("want a number of bytes")
			}
		case "wrong":
			b.Wrong, err = ranges(value)
		default:
			err = fmt.Errorf("unknown word%s", document.Correct(key, words))
		}
		if err != nil {
			return Behaviour{}, fmt.Errorf("read %s: %q: %w", Variable, word, err)
		}
	}
	return b, nil
}

func duration(s string) (time.Duration, error) {
	d, err := time.ParseDuration(s)
	if err != nil || d < 0 || d > time.Hour {
		return 0, errors.New("want a duration from 0 to 1h, like 1ms")
	}
	return d, nil
}

// ranges reads ranges of numbers, as in 18-28/36-60.
func ranges(s string) (list []Range, err error) {
	for text := range strings.SplitSeq(s, "/") {
		var r Range
		if n, err := fmt.Sscanf(text, "%d-%d", &r.First, &r.Last); n != 2 || err != nil || r.First < 1 || r.Last < r.First {
			return nil, errors.New("want ranges of numbers, like 18-28/36-60")
		}
		list = append(list, r)
	}
	return list, nil
}

// after reads how many batches succeed and returns the number of the next one.
func after(s string) (int64, error) {
	n, err := strconv.ParseInt(s, 10, 32)
	if err != nil || n < 0 {
		return 0, errors.New("want a number of batches")
	}
	return n + 1, nil
}

// Framework is the null framework for one card.
type Framework struct {
	behaviour *Behaviour // nil: Init reads it from the environment
	card      *models.Card
	mu        sync.RWMutex                // guards batches
	batches   [device.Slots]map[int]batch // of a slot, by size
	ran       atomic.Int64
	name      string                 // of the GPU; "": on the CPU
	stream    func(slot int) uintptr // of the next batch
	gpu       *gpu                   // from LinkModel on
}

type batch struct {
	inputs  []device.Buffer
	outputs []device.Buffer
	kernels *launches // on a GPU
}

var (
	_ framework.Framework = (*Framework)(nil)
	_ framework.Demotable = (*Framework)(nil)
	_ framework.Evictable = (*Framework)(nil)
)

// New returns a framework with the behaviour of PENSTOCK_NULL.
func New() *Framework { return new(Framework) }

// NewWith returns a framework with the behaviour b.
func NewWith(b Behaviour) *Framework { return &Framework{behaviour: &b} }

func (f *Framework) step(name string) error {
	if f.behaviour.Fail == name {
		return fmt.Errorf("%s: %w", name, ErrOrdered)
	}
	return nil
}

// Init reads the behaviour.
func (f *Framework) Init(env framework.Environment) error {
	if f.behaviour == nil {
		b, err := parseBehaviour(os.Getenv(Variable))
		if err != nil {
			return err
		}
		f.behaviour = &b
	}
	f.card = env.Card
	for slot := range f.batches {
		f.batches[slot] = make(map[int]batch)
	}
	if env.Stream != nil {
		if n := len(f.card.Inputs); n > 1 {
			return fmt.Errorf("null model has %d inputs, and reads one on a GPU", n)
		}
		if f.name, f.stream = env.Device, env.BatchStream; f.stream == nil {
			f.stream = env.Stream
		}
	} else if word := f.behaviour.needsGPU(); word != "" {
		return fmt.Errorf("read %s: %q is for a GPU, and the function runs on the CPU", Variable, word)
	}
	return f.step("init")
}

// LoadModel has nothing to load.
func (f *Framework) LoadModel() error {
	if f.behaviour.NoHostStage {
		return framework.ErrNoHostStage
	}
	return f.step("load")
}

// LinkModel loads the kernels on a GPU; otherwise it has nothing to link.
func (f *Framework) LinkModel() (persistentBytes int64, err error) {
	if err := f.step("link"); err != nil || f.name == "" {
		return 0, err
	}
	for _, o := range f.card.Outputs {
		if o.Type != models.F32 {
			return 0, fmt.Errorf("output %s is %s: framework null answers f32 on a GPU", o.Name, o.Type)
		}
	}
	if f.gpu, err = openGPU(f.name, f.card.MaxBatch(), f.behaviour.Allocate); err != nil {
		return 0, err
	}
	sms, err := f.gpu.context.SMs()
	if err != nil {
		return 0, err
	}
	if slices.ContainsFunc(f.behaviour.Wrong, func(r Range) bool { return r.First <= sms && sms <= r.Last }) {
		return 0, fmt.Errorf("%w: ordered by %s for %d multiprocessors", device.ErrWrongAnswers, Variable, sms)
	}
	return max(int64(f.gpu.scratchBytes()), f.gpu.evictableBytes()), nil
}

// EvictableBytes is Behaviour.Allocate, in whole pages of the driver.
func (f *Framework) EvictableBytes() int64 { return f.gpu.evictableBytes() }

// Evict frees what Behaviour.Allocate has allocated.
func (f *Framework) Evict() error { return f.gpu.weights.Evict() }

// Load allocates it again.
func (f *Framework) Load() error { return f.gpu.weights.Restore() }

// Demotable returns true.
func (f *Framework) Demotable(int, int) bool { return true }

// ConfigureBatch remembers the buffers.
func (f *Framework) ConfigureBatch(slot, n int, inputs, outputs []device.Buffer) (ephemeralBytes int64, err error) {
	if err := framework.CheckBuffers(f.card, n, inputs, outputs); err != nil {
		return 0, err
	}
	b := batch{inputs: slices.Clone(inputs), outputs: slices.Clone(outputs)}
	if f.gpu != nil {
		b.kernels = f.gpu.prepare(f.card, slot, n, b, f.behaviour)
	}
	f.mu.Lock()
	f.batches[slot][n] = b
	f.mu.Unlock()
	return 0, f.step("configure")
}

// InferBatch takes its time, then writes Value of each image's Digest to the outputs.
func (f *Framework) InferBatch(slot, n int) error {
	f.mu.RLock()
	b, ok := f.batches[slot][n]
	f.mu.RUnlock()
	if !ok {
		return fmt.Errorf("batch of %d in slot %d is not configured", n, slot)
	}
	batch := f.ran.Add(1)
	do := f.behaviour
	switch {
	case do.CrashAt > 0 && batch >= do.CrashAt:
		return unix.Kill(os.Getpid(), unix.SIGKILL)
	case do.HangAt > 0 && batch >= do.HangAt:
		for {
			time.Sleep(time.Hour)
		}
	case do.FailAt > 0 && batch >= do.FailAt, do.Fail == "infer":
		return ErrOrdered
	}
	spin(do.Busy + time.Duration(n)*do.BusyPerImage)
	if do.Sleep > 0 {
		time.Sleep(do.Sleep)
	}
	if b.kernels != nil {
		return b.kernels.queue(cuda.StreamOf(f.stream(slot)), do.FaultAt > 0 && batch >= do.FaultAt)
	}

	for i := range n {
		digest := uint32(0)
		for k, input := range b.inputs {
			size := input.Len() / n
			digest += uint32(k+1) * Digest(input.Slice(i*size, (i+1)*size).Bytes())
		}
		for o := range b.outputs {
			bytes := f.card.Outputs[o].Bytes()
			out := b.outputs[o].Slice(i*bytes, (i+1)*bytes).Bytes()
			if f.card.Outputs[o].Type != models.F32 {
				fillBytes(out, digest, o)
				continue
			}
			for e := 0; e < len(out)/4; e++ {
				v := Value(digest, o, e)
				if do.NaN {
					v = float32(math.NaN())
				}
				binary.LittleEndian.PutUint32(out[4*e:], math.Float32bits(v))
			}
		}
	}
	return nil
}

// Deinit forgets the buffers and frees the memory on a GPU.
func (f *Framework) Deinit() error {
	f.batches = [device.Slots]map[int]batch{}
	if f.gpu == nil {
		return nil
	}
	err := f.gpu.close()
	f.gpu = nil
	return err
}

// Digest returns a sum of one image of the batch tensor that depends on every byte and its place.
// It has 24 bits, which a float32 represents exactly.
func Digest(image []byte) uint32 {
	var sum, weight uint64 = 0, 1
	for len(image) >= 8 {
		sum += binary.LittleEndian.Uint64(image) * weight
		weight += 2 // odd, so that every byte changes the sum
		image = image[8:]
	}
	for _, b := range image {
		sum += uint64(b) * weight
		weight += 2
	}
	return uint32(sum * 0x9e3779b97f4a7c15 >> 40) // the golden ratio distributes all bits to the top
}

// Value returns element e of output o for an image with that digest.
func Value(digest uint32, o, e int) float32 {
	return float32((digest + uint32(o)<<16 + uint32(e)) & 0xffffff)
}

// fillBytes fills an image's output o of another type than f32: each byte is 0 or 1, by digest.
func fillBytes(out []byte, digest uint32, o int) {
	for e := range out {
		out[e] = byte(digest>>(e%24)+uint32(o)) & 1
	}
}

// spin uses d of the thread's CPU time. The caller must be locked to its thread; otherwise the time
// of other goroutines on it would count.
func spin(d time.Duration) {
	if d <= 0 {
		return
	}
	for end := threadTime() + d; threadTime() < end; {
	}
}

// threadTime returns the CPU time that the calling thread has used.
func threadTime() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts); err != nil {
		panic(err) // every kernel has this clock
	}
	return time.Duration(ts.Nano())
}
