// Package null is the framework "null": no model, no device. A batch takes as
// long as it is told to, answers can be computed from the pictures, and it
// misbehaves on demand. Benchmarks measure Penstock around it; tests see how
// Penstock stands a bad inference function.
//
// PENSTOCK_NULL says what it does, as a list of words with commas between; empty
// means batches that take no time.
//
//	busy=1ms           a batch uses so much CPU time (a CPU share slows it down)
//	busy_per_image=1ms and so much more for each image of it
//	sleep=1ms          a batch waits so long (a CPU share does not matter)
//	nan                every output is not a number
//	fail=STEP          init, load, link, configure or infer returns an error
//	fail_after=N       batches after the first N return an error
//	hang_after=N       the batch after the first N never returns
//	crash_after=N      the batch after the first N kills the process (SIGKILL)
//	host_stage=no      LoadModel returns libml.ErrNoHostStage
//
// The warm-up batches count.
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
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/penstock/penstock/libml"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/models/document"
)

// Variable names the environment variable that says what the framework does.
const Variable = "PENSTOCK_NULL"

// ErrOrdered is returned by the steps that are told to fail.
var ErrOrdered = errors.New("failure ordered by " + Variable)

// Behaviour is what a batch costs and what goes wrong. The zero value is a
// framework that takes no time and behaves.
type Behaviour struct {
	Busy, BusyPerImage time.Duration // CPU time of the calling thread
	Sleep              time.Duration
	NaN                bool
	Fail               string // a step: init, load, link, configure, infer
	// The batch, counted from 1, that is the first to fail, to hang, or to kill the
	// process; 0 for none.
	FailAt, HangAt, CrashAt int64
	NoHostStage             bool
}

var (
	words = []string{"busy", "busy_per_image", "sleep", "nan", "fail", "fail_after", "hang_after", "crash_after", "host_stage"}
	steps = []string{"init", "load", "link", "configure", "infer"}
)

// ParseBehaviour reads what PENSTOCK_NULL says.
func ParseBehaviour(s string) (Behaviour, error) {
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
		default:
			err = fmt.Errorf("unknown word%s", document.Meant(key, words))
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

// after reads how many batches go well and returns the one that follows.
func after(s string) (int64, error) {
	n, err := strconv.ParseInt(s, 10, 32)
	if err != nil || n < 0 {
		return 0, errors.New("want a number of batches")
	}
	return n + 1, nil
}

// Framework is the null framework for one card.
type Framework struct {
	behaviour *Behaviour // nil: as the environment says, read by Init
	card      *models.Card
	batches   map[key]batch
	ran       atomic.Int64
}

type key struct{ slot, n int }

type batch struct {
	input   []byte
	outputs [][]byte
}

var _ libml.Framework = (*Framework)(nil)

// New returns a framework that does what PENSTOCK_NULL says.
func New() *Framework { return new(Framework) }

// NewWith returns a framework that does as b says.
func NewWith(b Behaviour) *Framework { return &Framework{behaviour: &b} }

func (f *Framework) step(name string) error {
	if f.behaviour.Fail == name {
		return fmt.Errorf("%s: %w", name, ErrOrdered)
	}
	return nil
}

// Init reads the behaviour.
func (f *Framework) Init(env libml.Environment) error {
	if f.behaviour == nil {
		b, err := ParseBehaviour(os.Getenv(Variable))
		if err != nil {
			return err
		}
		f.behaviour = &b
	}
	f.card, f.batches = env.Card, make(map[key]batch)
	return f.step("init")
}

// LoadModel has nothing to load.
func (f *Framework) LoadModel() error {
	if f.behaviour.NoHostStage {
		return libml.ErrNoHostStage
	}
	return f.step("load")
}

// LinkModel has nothing to link.
func (f *Framework) LinkModel() (persistentBytes int64, err error) { return 0, f.step("link") }

// ConfigureBatch remembers the buffers.
func (f *Framework) ConfigureBatch(slot, n int, input []byte, outputs [][]byte) (ephemeralBytes int64, err error) {
	if len(input) != n*f.card.Input.TensorBytes() || len(outputs) != len(f.card.Outputs) {
		return 0, fmt.Errorf("batch of %d: input has %d bytes and there are %d outputs", n, len(input), len(outputs))
	}
	f.batches[key{slot, n}] = batch{input, slices.Clone(outputs)}
	return 0, f.step("configure")
}

// InferBatch takes its time, then answers each image as Digest and Value say.
func (f *Framework) InferBatch(slot, n int) error {
	b, ok := f.batches[key{slot, n}]
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

	size := f.card.Input.TensorBytes()
	for i := range n {
		digest := Digest(b.input[i*size : (i+1)*size])
		for o := range b.outputs {
			bytes := f.card.Outputs[o].Bytes()
			out := b.outputs[o][i*bytes : (i+1)*bytes]
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

// Deinit forgets the buffers.
func (f *Framework) Deinit() error {
	f.batches = nil
	return nil
}

// Digest sums up one image of the batch tensor: every byte and its place counts.
// It is 24 bits, what a float32 holds exactly.
func Digest(image []byte) uint32 {
	var sum, weight uint64 = 0, 1
	for len(image) >= 8 {
		sum += binary.LittleEndian.Uint64(image) * weight
		weight += 2 // odd, so that no byte is multiplied away
		image = image[8:]
	}
	for _, b := range image {
		sum += uint64(b) * weight
		weight += 2
	}
	return uint32(sum * 0x9e3779b97f4a7c15 >> 40) // the golden ratio spreads all bits to the top
}

// Value is element e of output o for an image of that digest.
func Value(digest uint32, o, e int) float32 {
	return float32((digest + uint32(o)<<16 + uint32(e)) & 0xffffff)
}

// spin uses the CPU for d of the thread's own CPU time; the caller is locked to
// its thread, or what other goroutines use on it counts too.
func spin(d time.Duration) {
	if d <= 0 {
		return
	}
	for end := threadTime() + d; threadTime() < end; {
	}
}

// threadTime is the CPU time that the calling thread has used.
func threadTime() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts); err != nil {
		panic(err) // the clock is as old as the kernel's threads
	}
	return time.Duration(ts.Nano())
}
