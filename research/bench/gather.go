package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/penstock/penstock/cuda"
	"github.com/penstock/penstock/internal/testbed"
	"github.com/penstock/penstock/libml/device"
	"github.com/penstock/penstock/libml/gpu"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/shm"
	"github.com/penstock/penstock/wire"
)

// Gather is the report of `penstock-lab gather`: how fast a GPU collects the packets of a
// batch into a tensor. The comparisons are one copy of the same number of contiguous
// bytes, and two ways that need no kernel.
type Gather struct {
	Machine testbed.Machine `json:"machine"`
	Device  string          `json:"device"`
	// FragmentBytes is a packet's payload. SlabBytes is the size of the packet memory, and
	// HugePages says whether it consists of huge pages.
	FragmentBytes int          `json:"piece_bytes"`
	SlabBytes     int          `json:"slab_bytes"`
	HugePages     bool         `json:"huge_pages"`
	Cases         []GatherCase `json:"cases"`
	// Partitions are for the first case: 32 aligned pictures, gathered by few
	// multiprocessors. Empty if the device has no partitions.
	Partitions []GatherPartition `json:"partitions,omitempty"`
}

// GatherPartition is the gather rate of a part of the device's multiprocessors.
type GatherPartition struct {
	SMs                int     `json:"sms"`
	GigabytesPerSecond float64 `json:"gb_per_s"`
}

// GatherCase is one kind of picture, number of pictures and alignment. All rates count
// the pictures' bytes on the wire, in 10^9 per second.
type GatherCase struct {
	Wire         string `json:"wire"`   // type and layout of the packets
	Tensor       string `json:"tensor"` // and of the tensor
	Normalised   bool   `json:"normalised"`
	Kernel       string `json:"kernel"`
	Pictures     int    `json:"pictures"`
	PictureBytes int    `json:"picture_bytes"`
	// Alignment is "aligned" or "odd". Aligned payloads are at multiples of 64 in slots
	// of 2 KiB. Odd payloads are as GRO leaves them: consecutive with 22 bytes between
	// them, from an odd address on. Slots and runs are in random order.
	Alignment string `json:"alignment"`
	// KernelMicros is the median time of the gather on the device, from event to event.
	KernelMicros            float64 `json:"kernel_us"`
	GigabytesPerSecond      float64 `json:"gb_per_s"`
	CopyMicros              float64 `json:"contiguous_copy_us"`
	CopyGBPerSecond         float64 `json:"contiguous_copy_gb_per_s"`
	Ratio                   float64 `json:"ratio"` // relative to the contiguous copy
	FragmentCopyGBPerSecond float64 `json:"copy_a_piece_gb_per_s"`
	// CPUCopyGBPerSecond is the rate if a CPU assembles the fragments, not converted, in
	// pinned memory, and one copy follows.
	CPUCopyGBPerSecond float64 `json:"cpu_copy_gb_per_s"`
	// Call is the time in Gather, which checks the descriptors, passes them to the device
	// and launches the kernel. Seen is from the start of Gather until the CPU knows that
	// the tensor is complete.
	Call Micros `json:"call_us"`
	Seen Micros `json:"seen_us"`
}

// The pictures of `penstock-lab gather` have the size of ImageNet models' inputs.
const (
	gatherSide     = 224
	gatherPayload  = 1024
	gatherSlot     = 2048
	gatherHeader   = 22 // Penstock's header, which is between payloads that GRO has joined
	gatherRun      = 62 // the max number of datagrams of this size that GRO joins
	gatherSlab     = 512 << 20
	gatherSets     = 8 // sets of addresses, used in turn so that no cache is warm
	maxGatherBatch = 32
	gatherCopyNext = 1 << 20
)

// RunGather measures on a device that cuda.Find finds by deviceName. It repeats each
// measurement n times.
func RunGather(ctx context.Context, penstock, deviceName string, n int) (Gather, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	r := Gather{Machine: testbed.ThisMachine(penstock), FragmentBytes: gatherPayload, SlabBytes: gatherSlab}
	slab, err := newGatherSlab()
	if err != nil {
		return r, err
	}
	defer slab.close()
	r.HugePages = slab.huge
	normal := func(in models.Input) models.Input {
		in.Mean, in.Std = []float32{123.675, 116.28, 103.53}, []float32{58.395, 57.12, 57.375}
		return in
	}
	newInput := func(wire models.DType, tensor models.DType, layout models.Layout) models.Input {
		return models.Input{Height: gatherSide, Width: gatherSide, Channels: 3, WireType: wire, WireLayout: models.HWC, TensorType: tensor, TensorLayout: layout}
	}
	for _, in := range []models.Input{
		normal(newInput(models.U8, models.F16, models.CHW)),
		normal(newInput(models.U8, models.F32, models.CHW)),
		newInput(models.U8, models.U8, models.HWC),
		normal(newInput(models.F16, models.F16, models.CHW)),
		normal(newInput(models.F32, models.F32, models.CHW)),
		newInput(models.F32, models.F32, models.HWC),
	} {
		for _, pictures := range []int{1, 8, maxGatherBatch} {
			for _, odd := range []bool{false, true} {
				if err := ctx.Err(); err != nil {
					return r, err
				}
				b := gatherBench{in: in, pictures: pictures, slab: slab, n: n}
				c, name, err := b.run(deviceName, odd)
				if err != nil {
					return r, fmt.Errorf("gather %d pictures: %w", pictures, err)
				}
				r.Device = name
				r.Cases = append(r.Cases, c)
				if r.Partitions == nil {
					r.Partitions = b.partitions
				}
			}
		}
	}
	return r, nil
}

// slabMapping is a slab with the mapping of the manager and that of an inference
// function.
type slabMapping struct {
	write, read []byte
	huge        bool
	fd          int
}

func newGatherSlab() (*slabMapping, error) {
	s := &slabMapping{huge: true}
	var err error
	if s.fd, err = unix.MemfdCreate("gather", unix.MFD_CLOEXEC|unix.MFD_HUGETLB); err == nil {
		err = s.mapIt()
	}
	if err != nil { // no huge pages, or not enough
		s.close()
		s = &slabMapping{}
		if s.fd, err = unix.MemfdCreate("gather", unix.MFD_CLOEXEC); err == nil {
			err = s.mapIt()
		}
	}
	if err != nil {
		s.close()
		return nil, fmt.Errorf("make slab: %w", err)
	}
	random := rand.New(rand.NewPCG(1, 1))
	for i := 0; i < len(s.write); i += 8 {
		v := random.Uint64()
		for k := range 8 {
			s.write[i+k] = byte(v >> (8 * k))
		}
	}
	return s, nil
}

func (s *slabMapping) mapIt() error {
	if err := unix.Ftruncate(s.fd, gatherSlab); err != nil {
		return err
	}
	var err error
	if s.write, err = unix.Mmap(s.fd, 0, gatherSlab, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE); err != nil {
		return err
	}
	s.read, err = unix.Mmap(s.fd, 0, gatherSlab, unix.PROT_READ, unix.MAP_SHARED|unix.MAP_POPULATE)
	return err
}

func (s *slabMapping) close() {
	for _, m := range [][]byte{s.write, s.read} {
		if m != nil {
			unix.Munmap(m)
		}
	}
	if s.fd > 0 {
		unix.Close(s.fd)
	}
}

// gatherBench measures one case.
type gatherBench struct {
	in       models.Input
	picture  wire.Picture // the card's if zero
	pictures int
	slab     *slabMapping
	n        int

	bytes    int // of a picture
	device   *gpu.Device
	context  *cuda.Context
	tensors  []device.Tensors
	stream   cuda.Stream
	other    cuda.Stream // for the copy that the measured work waits for
	from, to cuda.Event
	gate     cuda.Event   // after it
	pinned   []byte       // for fragments that the CPU assembles
	memory   cuda.Pointer // as large as the pictures
	delay    cuda.Pointer // target of the delaying copy
	sets     [gatherSets][]device.Request
	refused  []bool
	next     int // index of the set

	partitions []GatherPartition // if pictures is maxGatherBatch
}

// gatherDelayBytes take longer to copy than the CPU takes to queue the measured work
// behind the copy.
const gatherDelayBytes = 64 << 20

func (b *gatherBench) run(name string, odd bool) (c GatherCase, uuid string, err error) {
	closeAll, err := b.open(name)
	defer func() { err = errors.Join(err, closeAll()) }()
	if err != nil {
		return c, "", err
	}
	bytes := len(b.pinned)
	c = GatherCase{
		Wire: fmt.Sprintf("%s %s", b.in.WireType, b.in.WireLayout), Tensor: fmt.Sprintf("%s %s", b.in.TensorType, b.in.TensorLayout),
		Normalised: len(b.in.Mean) > 0, Kernel: b.device.Kernel(), Pictures: b.pictures, PictureBytes: b.in.WireBytes(), Alignment: "aligned",
	}
	if odd {
		c.Alignment = "odd"
	}
	b.lay(odd)
	rate := func(micros float64) float64 { return float64(bytes) / micros / 1e3 }

	if c.KernelMicros, err = b.median(b.n, b.gather); err != nil {
		return c, "", err
	}
	if c.CopyMicros, err = b.median(b.n, b.copyOnce); err != nil {
		return c, "", err
	}
	fragments, err := b.median(max(3, b.n/10), b.copyFragments)
	if err != nil {
		return c, "", err
	}
	cpu, err := b.cpuCopy(max(3, b.n/3))
	if err != nil {
		return c, "", err
	}
	if c.Call, c.Seen, err = b.latency(4 * b.n); err != nil {
		return c, "", err
	}
	if b.pictures == maxGatherBatch && !odd {
		if err := b.partition(rate); err != nil {
			return c, "", err
		}
	}
	c.GigabytesPerSecond, c.CopyGBPerSecond = rate(c.KernelMicros), rate(c.CopyMicros)
	c.Ratio = c.CopyMicros / c.KernelMicros
	c.FragmentCopyGBPerSecond, c.CPUCopyGBPerSecond = rate(fragments), rate(cpu)
	return c, b.device.Name(), nil
}

// open opens the device and allocates streams, events and memory; closeAll releases them.
func (b *gatherBench) open(name string) (closeAll func() error, err error) {
	var undo []func() error
	closeAll = func() error {
		var errs []error
		for _, f := range slices.Backward(undo) {
			errs = append(errs, f())
		}
		return errors.Join(errs...)
	}
	if b.bytes = b.in.WireBytes(); b.picture.Format != 0 {
		if b.bytes, err = b.picture.Bytes(); err != nil {
			return closeAll, err
		}
	}
	if b.device, err = gpu.New(b.in, gpu.Options{Device: name, LargestPicture: b.bytes}); err != nil {
		return closeAll, err
	}
	undo = append(undo, b.device.Close)
	if err := b.device.AddSlab(b.slab.read); err != nil {
		return closeAll, err
	}
	if b.tensors, err = b.device.Tensors(nil, device.Sizes{Input: b.pictures * b.in.TensorBytes()}); err != nil {
		return closeAll, err
	}
	found, err := cuda.Find(name)
	if err != nil {
		return closeAll, err
	}
	if b.context, err = found.OpenContext(); err != nil {
		return closeAll, err
	}
	undo = append(undo, b.context.Close)
	if err := b.context.Bind(); err != nil {
		return closeAll, err
	}
	if b.other, err = b.context.NewStream(); err != nil {
		return closeAll, err
	}
	undo = append(undo, func() error { return b.other.Destroy() })
	for _, e := range []*cuda.Event{&b.from, &b.to, &b.gate} {
		if *e, err = b.context.NewEvent(true); err != nil {
			return closeAll, err
		}
		undo = append(undo, e.Destroy)
	}
	if b.pinned, err = b.context.AllocateHost(b.pictures * b.bytes); err != nil {
		return closeAll, err
	}
	undo = append(undo, func() error { return b.context.FreeHost(b.pinned) })
	for p, n := range map[*cuda.Pointer]int{&b.memory: len(b.pinned), &b.delay: gatherDelayBytes} {
		if *p, err = b.context.Allocate(n); err != nil {
			return closeAll, err
		}
		undo = append(undo, func() error { return b.context.Free(*p) })
	}
	b.stream = cuda.StreamOf(b.device.Stream(0))
	b.refused = make([]bool, b.pictures)
	return closeAll, nil
}

// lay places every set's pictures in the slab.
func (b *gatherBench) lay(odd bool) {
	random := rand.New(rand.NewPCG(3, 5))
	slots := random.Perm(gatherSlab/gatherSlot - 2*gatherRun)
	take := func() int {
		s := slots[0]
		slots = append(slots[1:], s)
		return s * gatherSlot
	}
	for i := range b.sets {
		b.sets[i] = nil
		for range b.pictures {
			req := device.Request{Bytes: uint32(b.bytes), Picture: b.picture}
			at, left := 0, 0
			for place := 0; place < b.bytes; place += gatherPayload {
				switch {
				case !odd:
					at = take() + 64
				case left == 0:
					at, left = take()+21+gatherHeader, gatherRun-1
				default:
					at, left = at+gatherPayload+gatherHeader, left-1
				}
				req.Fragments = append(req.Fragments, shm.Fragment{Offset: uint64(at), Place: uint32(place), Length: uint16(min(gatherPayload, b.bytes-place))})
			}
			b.sets[i] = append(b.sets[i], req)
		}
	}
}

func (b *gatherBench) set() []device.Request {
	b.next++
	return b.sets[b.next%gatherSets]
}

func (b *gatherBench) gather() error {
	return b.device.Gather(0, b.tensors[0].Input, b.set(), b.refused)
}

func (b *gatherBench) copyOnce() error {
	b.next++
	at := b.next * (len(b.pinned) + gatherCopyNext) % (gatherSlab - len(b.pinned)) &^ 4095
	return b.stream.Copy(b.memory, cuda.At(b.slab.read[at:]), len(b.pinned))
}

func (b *gatherBench) copyFragments() error {
	for i, req := range b.set() {
		to := b.memory + cuda.Pointer(i*b.bytes)
		for _, p := range req.Fragments {
			if err := b.stream.Copy(to+cuda.Pointer(p.Place), cuda.At(b.slab.read[p.Offset:]), int(p.Length)); err != nil {
				return err
			}
		}
	}
	return nil
}

// timeOf returns the time that the device takes for some work. The work is queued behind a long copy on another stream, so that the
// device never waits for the CPU.
func (b *gatherBench) timeOf(work func() error) (time.Duration, error) {
	err := errors.Join(b.other.Copy(b.delay, cuda.At(b.slab.read), gatherDelayBytes), b.gate.Record(b.other), b.stream.Wait(b.gate),
		b.from.Record(b.stream), work(), b.to.Record(b.stream))
	if err == nil {
		// Use the device's own wait, so that it can take the next batch.
		if err = b.device.Fetch(0, 0); err == nil {
			_, err = b.device.Wait(0)
		}
	}
	if err != nil {
		return 0, err
	}
	return cuda.Elapsed(b.from, b.to)
}

// median returns the median time that the device takes for some work, in microseconds.
func (b *gatherBench) median(n int, work func() error) (micros float64, err error) {
	var took []time.Duration
	for i := range n + n/4 + 1 {
		elapsed, err := b.timeOf(work)
		if err != nil {
			return 0, err
		}
		if i > n/4 { // the first ones are warm-up
			took = append(took, elapsed)
		}
	}
	slices.Sort(took)
	return float64(took[len(took)/2].Nanoseconds()) / 1e3, nil
}

// partition gathers with one, two and four groups of multiprocessors.
func (b *gatherBench) partition(rate func(micros float64) float64) error {
	for n := 1; n <= 4; n *= 2 {
		groups := []int{0, 1, 2, 3}[:n]
		if err := b.device.Repartition([]int{0}, groups); errors.Is(err, cuda.ErrNotSupported) {
			return nil
		} else if err != nil {
			return err
		}
		sms, err := b.device.SMs(0)
		if err != nil {
			return err
		}
		b.stream = cuda.StreamOf(b.device.Stream(0))
		micros, err := b.median(b.n, b.gather)
		if err != nil {
			return err
		}
		b.partitions = append(b.partitions, GatherPartition{sms, rate(micros)})
	}
	return nil
}

// cpuCopy returns the time in microseconds, by the host's clock, in which a CPU assembles
// the fragments and one copy follows.
func (b *gatherBench) cpuCopy(n int) (micros float64, err error) {
	var took []time.Duration
	for i := range n + 1 {
		from := time.Now()
		for j, req := range b.set() {
			to := b.pinned[j*b.bytes:]
			for _, p := range req.Fragments {
				copy(to[p.Place:], b.slab.read[p.Offset:p.Offset+uint64(p.Length)])
			}
		}
		if err := errors.Join(b.stream.Copy(b.memory, cuda.At(b.pinned), len(b.pinned)), b.stream.Synchronize()); err != nil {
			return 0, err
		}
		if i > 0 {
			took = append(took, time.Since(from))
		}
	}
	slices.Sort(took)
	return float64(took[len(took)/2].Nanoseconds()) / 1e3, nil
}

// latency measures the cost of one batch for the thread that requests it.
func (b *gatherBench) latency(n int) (call, seen Micros, err error) {
	var calls, seens []time.Duration
	for i := range n + n/4 {
		reqs := b.set()
		from := time.Now()
		if err := b.device.Gather(0, b.tensors[0].Input, reqs, b.refused); err != nil {
			return call, seen, err
		}
		called := time.Now()
		if err := b.device.Fetch(0, 0); err != nil {
			return call, seen, err
		}
		for done := false; !done; {
			if done, err = b.device.Done(0); err != nil {
				return call, seen, err
			}
		}
		ended := time.Now()
		if _, err := b.device.Wait(0); err != nil {
			return call, seen, err
		}
		if i >= n/4 {
			calls, seens = append(calls, called.Sub(from)), append(seens, ended.Sub(from))
		}
	}
	return micros(calls), micros(seens), nil
}
