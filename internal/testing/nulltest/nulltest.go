// Package nulltest is a test suite for the framework "null" on a GPU. Package null's own
// tests run it on the fake driver with a C twin of its kernels, and test/gpu runs it on a
// GPU.
//
//	func TestMain(m *testing.M) { nulltest.Child(); os.Exit(m.Run()) }
//	func TestNull(t *testing.T) { nulltest.Run(t) }
package nulltest

import (
	_ "embed"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/penstock/penstock/cuda"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/null"
	"github.com/penstock/penstock/libml/device"
	"github.com/penstock/penstock/libml/framework"
	"github.com/penstock/penstock/libml/gpu"
	"github.com/penstock/penstock/models"
)

// Twins does on the fake driver what null.cu does on a GPU: for cudafake.Kernels.
//
//go:embed twins/null.c
var Twins string

// Run runs the suite on the first device and leaves nothing on it.
func Run(t *testing.T) {
	for _, test := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"EveryAnswerFollowsFromItsPicture", answers},
		{"TwoBatchesInFlightAreAnsweredEach", together},
		{"NaNIsWhatItSays", noNumbers},
		{"WorkTakesAsLongAsItsMultiprocessorsLet", workScales},
		{"ABatchAllocatesNothing", allocatesNothing},
		{"MemoryIsTakenAndGivenBack", memoryIsTaken},
		{"TooMuchMemoryIsRefused", tooMuchMemory},
		{"EvictedMemoryIsFreeUntilItIsLoaded", evicts},
		{"AFaultLosesTheDevice", faults},
	} {
		t.Run(test.name, func(t *testing.T) {
			runtime.LockOSThread() // never unlocked: cleanups need the bound thread too
			test.run(t)
		})
	}
}

// rig is the framework on a device, as libml uses it, with room for batches of at most
// `most` images.
type rig struct {
	t         must.Test
	card      *models.Card
	device    *gpu.Device
	framework *null.Framework
	tensors   []device.Tensors
	shared    []byte
	context   *cuda.Context // for access to device memory
	stream    cuda.Stream
	stage     []byte
}

const most = 4

// newRig initializes the framework until batches of 1 to most are configured in slots 0
// and 1.
func newRig(t must.Test, in models.Input, b null.Behaviour) *rig {
	t.Helper()
	r := unlinked(t, in, b)
	if _, err := r.framework.LinkModel(); err != nil {
		t.Fatal(err)
	}
	for slot := range 2 {
		for n := 1; n <= most; n++ {
			r.configure(slot, n)
		}
	}
	return r
}

func unlinked(t must.Test, in models.Input, b null.Behaviour) *rig {
	t.Helper()
	r := &rig{t: t, card: &models.Card{
		Name: "null", Input: in, Batches: []int{1, most},
		Outputs: []models.Tensor{{Name: "a", Type: models.F32, Shape: []int64{4}}, {Name: "b", Type: models.F32, Shape: []int64{70, 5}}},
	}}
	var err error
	if r.device, err = gpu.New(in, gpu.Options{Device: "cuda"}); err != nil {
		t.Fatal(err)
	}
	sizes := device.Sizes{Input: most * in.TensorBytes()}
	for i := range r.card.Outputs {
		sizes.Outputs = append(sizes.Outputs, most*r.card.Outputs[i].Bytes())
	}
	if r.shared, err = unix.Mmap(-1, 0, gpu.SharedBytes(sizes), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_ANON); err != nil {
		t.Fatal(err)
	}
	if r.tensors, err = r.device.Tensors(r.shared, sizes); err != nil {
		t.Fatal(err)
	}
	found, err := cuda.Find("cuda")
	must.OK(t, err)
	if r.context, err = found.OpenContext(); err != nil {
		t.Fatal(err)
	}
	must.OK(t, r.context.Bind())
	if r.stream, err = r.context.NewStream(); err != nil {
		t.Fatal(err)
	}
	if r.stage, err = r.context.AllocateHost(sizes.Input); err != nil {
		t.Fatal(err)
	}
	r.framework = null.NewWith(b)
	env := framework.Environment{Card: r.card, Threads: 1, Log: slog.New(slog.DiscardHandler), Device: r.device.Name(), Stream: r.device.Stream}
	must.OK(t, r.framework.Init(env))
	must.OK(t, r.framework.LoadModel())
	return r
}

func (r *rig) close() {
	r.t.Helper()
	err := errors.Join(r.framework.Deinit(), r.context.Bind(), r.stream.Destroy(), r.context.FreeHost(r.stage), r.context.Close())
	if err = errors.Join(err, r.device.Bind(), r.device.Close(), unix.Munmap(r.shared)); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) configure(slot, n int) {
	r.t.Helper()
	var outputs []device.Buffer
	for o, out := range r.tensors[slot].Outputs {
		outputs = append(outputs, out.Slice(0, n*r.card.Outputs[o].Bytes()))
	}
	if _, err := r.framework.ConfigureBatch(slot, n, []device.Buffer{r.tensors[slot].Input.Slice(0, n*r.card.Input.TensorBytes())}, outputs); err != nil {
		r.t.Fatal(err)
	}
}

// fill writes n images that depend on seed into a slot's input and returns them.
func (r *rig) fill(slot, n, seed int) []byte {
	r.t.Helper()
	images := r.stage[:n*r.card.Input.TensorBytes()]
	for i := range images {
		images[i] = byte(seed + i*7 + i/251)
	}
	must.OK(r.t, errors.Join(r.stream.Copy(cuda.Pointer(r.tensors[slot].Input.Address()), cuda.At(images), len(images)), r.stream.Synchronize()))
	return append([]byte(nil), images...)
}

func (r *rig) begin(slot, n int) {
	r.t.Helper()
	must.OK(r.t, errors.Join(r.framework.InferBatch(slot, n), r.device.Fetch(slot, n)))
}

func (r *rig) wait(slot int) {
	r.t.Helper()
	if _, err := r.device.Wait(slot); err != nil {
		r.t.Fatal(err)
	}
}

// check compares a slot's results with those computed from the images.
func (r *rig) check(t *testing.T, slot, n int, images []byte) {
	t.Helper()
	size := r.card.Input.TensorBytes()
	for i := range n {
		digest := null.Digest(images[i*size : (i+1)*size])
		for o := range r.card.Outputs {
			out := &r.card.Outputs[o]
			for e := range out.Elements() {
				if got, want := number(r.tensors[slot].Results[o], i*out.Elements()+e), null.Value(digest, o, e); got != want {
					t.Fatalf("image %d of %d, output %d[%d] is %g, want %g", i, n, o, e, got, want)
				}
			}
		}
	}
}

func number(b []byte, i int) float32 {
	return math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
}

func bytesInput(height, width int) models.Input {
	return models.Input{
		Height: height, Width: width, Channels: 1,
		WireType: models.U8, WireLayout: models.HWC, TensorType: models.U8, TensorLayout: models.HWC,
	}
}

// answers must be correct for every image size: whole words or not, aligned or not, more
// bytes than a block of threads handles at once, or a single byte.
func answers(t *testing.T) {
	for _, in := range []models.Input{bytesInput(1, 1), bytesInput(3, 5), bytesInput(8, 8), bytesInput(9, 13), bytesInput(224, 224), bytesInput(211, 223)} {
		r := newRig(t, in, null.Behaviour{})
		for n := 1; n <= most; n++ {
			images := r.fill(n%2, n, n)
			r.begin(n%2, n)
			r.wait(n % 2)
			r.check(t, n%2, n, images)
		}
		r.close()
	}
}

func together(t *testing.T) {
	r := newRig(t, bytesInput(20, 30), null.Behaviour{Spin: 200 * time.Microsecond})
	defer r.close()
	for round := range 20 {
		first, second := r.fill(0, 3, round), r.fill(1, 4, 100+round)
		r.begin(0, 3)
		r.begin(1, 4)
		r.wait(0)
		r.check(t, 0, 3, first)
		r.wait(1)
		r.check(t, 1, 4, second)
	}
}

func noNumbers(t *testing.T) {
	r := newRig(t, bytesInput(4, 4), null.Behaviour{NaN: true})
	defer r.close()
	r.fill(0, 2, 1)
	r.begin(0, 2)
	r.wait(0)
	for o, out := range r.tensors[0].Results {
		for e := range 2 * r.card.Outputs[o].Elements() {
			if v := number(out, e); v == v {
				t.Fatalf("output %d[%d] is %g", o, e, v)
			}
		}
	}
}

// workScales runs the same work on all multiprocessors and on a part of them. The times
// must be in inverse proportion to the numbers of multiprocessors.
func workScales(t *testing.T) {
	r := newRig(t, bytesInput(4, 4), null.Behaviour{Spin: 4 * time.Millisecond, SpinPerImage: time.Millisecond})
	defer r.close()
	// Other load on the machine can only slow a batch down, so the test compares min
	// times. It runs as many batches as it takes until they are as expected.
	const rounds = 40
	never := time.Hour
	one, four, onPart := never, never, never
	least := func(best *time.Duration, n int) {
		r.configure(0, n)
		for range 5 {
			began := time.Now()
			r.begin(0, n)
			r.wait(0)
			*best = min(*best, time.Since(began))
		}
	}
	all, err := r.device.SMs(0)
	must.OK(t, err)
	near := func(got, want float64) bool { return got >= 0.85*want && got <= 1.2*want }
	for round := 1; ; round++ {
		least(&one, 1)
		least(&four, 4)
		if err := r.device.Repartition([]int{0}, []int{0, 1, 2, 3}); err != nil {
			if errors.Is(err, cuda.ErrNotSupported) {
				t.Skipf("this driver or device has no green contexts: %v", err)
			}
			t.Fatal(err)
		}
		part, err := r.device.SMs(0)
		must.OK(t, err)
		least(&onPart, 1)
		ofFour, wantOfFour := four.Seconds()/one.Seconds(), 8.0/5
		ofPart, wantOfPart := onPart.Seconds()/one.Seconds(), float64(all)/float64(part)
		if near(ofFour, wantOfFour) && near(ofPart, wantOfPart) {
			t.Logf("work of 5ms on an H200 takes %v on %d multiprocessors, found in round %d", one, all, round)
			return
		}
		if round == rounds {
			t.Fatalf("a batch of 4 takes %.2f times as long as one of 1, want about %.2f; on %d multiprocessors it takes %.2f times as long as on %d, want about %.2f; %d rounds",
				ofFour, wantOfFour, part, ofPart, all, wantOfPart, rounds)
		}
		must.OK(t, r.device.Repartition([]int{0}, nil))
	}
}

func allocatesNothing(t *testing.T) {
	r := newRig(t, bytesInput(8, 8), null.Behaviour{Spin: time.Microsecond})
	defer r.close()
	if n := testing.AllocsPerRun(50, func() {
		r.begin(0, 2)
		r.wait(0)
	}); n != 0 {
		t.Errorf("%v allocations a batch, want none", n)
	}
}

func memoryIsTaken(t *testing.T) {
	const ballast = 64 << 20
	r := unlinked(t, bytesInput(4, 4), null.Behaviour{Allocate: ballast})
	defer r.close()
	before, _, err := r.context.Memory()
	must.OK(t, err)
	persistent, err := r.framework.LinkModel()
	must.OK(t, err)
	during, _, err := r.context.Memory()
	must.OK(t, err)
	if persistent < ballast || before-during < ballast {
		t.Errorf("link says %d bytes and took %d, want %d at least", persistent, before-during, ballast)
	}
	must.OK(t, r.framework.Deinit())
	must.OK(t, r.context.Bind())
	after, _, err := r.context.Memory()
	must.OK(t, err)
	if before-after >= ballast {
		t.Errorf("%d bytes are still taken", before-after)
	}
}

func tooMuchMemory(t *testing.T) {
	const ballast = 1 << 45 // more than any GPU has
	r := unlinked(t, bytesInput(4, 4), null.Behaviour{Allocate: ballast})
	defer r.close()
	if _, err := r.framework.LinkModel(); !errors.Is(err, cuda.ErrOutOfMemory) || !strings.Contains(err.Error(), fmt.Sprint(int64(ballast))) {
		t.Errorf("link says %v, want %v and how much was wanted", err, cuda.ErrOutOfMemory)
	}
}

func evicts(t *testing.T) {
	r := newRig(t, bytesInput(4, 4), null.Behaviour{Allocate: 64 << 20})
	defer r.close()
	free := func() int64 {
		unused, _, err := r.context.Memory()
		must.OK(t, err)
		return unused
	}
	for round := range 3 {
		before := free()
		must.OK(t, r.framework.Evict())
		if freed := free() - before; freed < r.framework.EvictableBytes() || freed < 64<<20 {
			t.Errorf("%d bytes are freed, want %d", freed, r.framework.EvictableBytes())
		}
		must.OK(t, r.framework.Load())
		images := r.fill(0, 2, round)
		r.begin(0, 2)
		r.wait(0)
		r.check(t, 0, 2, images)
	}
	if err := r.framework.Evict(); err != nil { // Deinit follows
		t.Fatal(err)
	}
}

const childEnv = "PENSTOCK_NULLTEST_CHILD"

// Child runs the process whose device is lost and exits, if this process was started as
// one, because a context does not survive that. Every TestMain of a package that calls
// Run must call Child first.
func Child() {
	if os.Getenv(childEnv) == "" {
		return
	}
	runtime.LockOSThread()
	r := newRig(child{}, bytesInput(8, 8), null.Behaviour{FaultAt: 3})
	for range 2 {
		r.begin(0, 2)
		r.wait(0)
	}
	err := r.framework.InferBatch(0, 2)
	if err == nil {
		err = r.device.Fetch(0, 2)
	}
	if err == nil {
		_, err = r.device.Wait(0)
	}
	if !errors.Is(err, device.ErrLost) && !errors.Is(err, cuda.ErrLost) {
		child{}.Fatal("the third batch ends with", err)
	}
	os.Exit(0)
}

type child struct{}

func (child) Helper() {}

func (child) Fatal(args ...any) {
	fmt.Println(args...)
	os.Exit(1)
}

func faults(t *testing.T) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("the process that loses its device: %v\n%s", err, out)
	}
}
