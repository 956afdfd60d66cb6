// Package cudatest is a test suite for package cuda. cuda's own tests run it on the
// fake driver, and test/gpu runs it on a GPU. A test skips if the device lacks a
// feature, and names the feature.
//
//	func TestMain(m *testing.M) { cudatest.Child(); os.Exit(m.Run()) }
//	func TestCUDA(t *testing.T) { cudatest.Run(t) }
package cudatest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/penstock/penstock/cuda"
	"github.com/penstock/penstock/internal/testing/must"
)

// Run runs the suite on the first device. It leaves nothing on the device.
func Run(t *testing.T) {
	t.Run("DevicesAreFoundByPlaceAndByUUID", finds)
	t.Run("PropertiesAreThoseOfAGPU", properties)
	for _, test := range []struct {
		name string
		run  func(*testing.T, harness)
	}{
		{"SMsAreCounted", countsSMs},
		{"MemoryIsCopiedBothWays", copies},
		{"TooMuchMemoryIsRefused", refusesTooMuch},
		{"MemoryIsFreedOnce", freesOnce},
		{"PinnedMemoryIsTheSameOnBothSides", pins},
		{"AReadOnlyMappingIsRegisteredReadOnly", registersReadOnly},
		{"AMappingIsRegisteredOnce", registersOnce},
		{"AStreamWritesAWordThatTheCPUPolls", writesAWord},
		{"StreamsKeepTheirOrderAndWaitForEvents", ordersStreams},
		{"StreamsHavePriorities", priorities},
		{"EventsTellTheTime", measuresTime},
		{"ABlockingEventIsWaitedFor", blocks},
		{"KernelsRun", runsKernels},
		{"AStructIsPassedByValue", passesAStruct},
		{"PTXThatDoesNotCompileSaysWhy", refusesPTX},
		{"AKernelThatIsNotThereIsRefused", refusesName},
		{"ALaunchThatCannotBeIsRefused", refusesLaunch},
		{"TheHotPathAllocatesNothing", allocatesNothing},
		{"AGraphDoesWhatWasCaptured", graphs},
		{"ABrokenCaptureIsToldAndTheStreamServesOn", breaksCapture},
		{"TheDeviceIsSplitIntoGroups", splits},
		{"AGreenContextHasItsGroups", greens},
		{"GreenContextsShareNoMultiprocessor", disjoint},
		{"GreenContextsRefuseWrongGroups", refusesGroups},
		{"GreenContextsLeaveNothing", leavesNothing},
		{"AGreenContextThatThereWasIsMadeAtOnce", keeps},
		{"AnArenaIsMappedTwice", arenas},
		{"AnEvictedArenaKeepsItsAddress", evictsArena},
		{"AnArenaIsSharedWithAnotherProcess", sharesArena},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(t, open(t)) })
	}
	t.Run("AFaultLosesTheDevice", func(t *testing.T) { inChild(t, nil, "fault") })
}

// harness is the harness: a bound context.
type harness struct {
	*cuda.Context
}

// open binds the test's goroutine to the first device until the test's end.
func open(t *testing.T) harness {
	t.Helper()
	runtime.LockOSThread()
	t.Cleanup(runtime.UnlockOSThread)
	device, err := cuda.Find("cuda")
	must.OK(t, err)
	c, err := device.OpenContext()
	must.OK(t, err)
	t.Cleanup(func() { check(t, c.Close()) })
	check(t, c.Bind())
	return harness{c}
}

func check(t testing.TB, err error) {
	t.Helper()
	must.OK(t, err)
}

// code checks that err is the driver's refusal with one of these codes.
func code(t *testing.T, err error, codes ...cuda.Code) {
	t.Helper()
	var e *cuda.Error
	if !errors.As(err, &e) || !slices.Contains(codes, e.Code) {
		t.Errorf("the error is %v, not one of %v", err, codes)
	}
}

func (b harness) properties(t *testing.T) cuda.Properties {
	t.Helper()
	p, err := b.Device().Properties()
	check(t, err)
	return p
}

// memory, stream and the functions below release their results at the test's end.

func (b harness) memory(t *testing.T, n int) cuda.Pointer {
	t.Helper()
	p, err := b.Allocate(n)
	check(t, err)
	t.Cleanup(func() { check(t, b.Free(p)) })
	return p
}

func (b harness) pinned(t *testing.T, n int) []byte {
	t.Helper()
	mem, err := b.AllocateHost(n)
	check(t, err)
	t.Cleanup(func() { check(t, b.FreeHost(mem)) })
	clear(mem)
	return mem
}

func (b harness) stream(t *testing.T) cuda.Stream {
	t.Helper()
	s, err := b.NewStream()
	check(t, err)
	t.Cleanup(func() { check(t, s.Destroy()) })
	return s
}

func (b harness) event(t *testing.T, timing bool) cuda.Event {
	t.Helper()
	e, err := b.NewEvent(timing)
	check(t, err)
	t.Cleanup(func() { check(t, e.Destroy()) })
	return e
}

func (b harness) kernel(t *testing.T, name string) cuda.Function {
	t.Helper()
	m, err := b.Load(PTX)
	check(t, err)
	t.Cleanup(func() { check(t, m.Unload()) })
	f, err := m.Function(name)
	check(t, err)
	return f
}

func words(mem []byte) []uint32 {
	out := make([]uint32, len(mem)/4)
	for i := range out {
		out[i] = binary.NativeEndian.Uint32(mem[4*i:])
	}
	return out
}

func finds(t *testing.T) {
	devices, err := cuda.Devices()
	check(t, err)
	if len(devices) == 0 {
		t.Fatal("no device")
	}
	first := devices[0]
	if len(first.UUID()) != len("GPU-00000000-0000-0000-0000-000000000000") || first.Name() == "" || first.Ordinal() != 0 {
		t.Errorf("the first device is %v", first)
	}
	names := []string{"cuda", "cuda:0", first.UUID(), strings.ToUpper(first.UUID())}
	if len(devices) == 1 {
		names = append(names, first.UUID()[:len("GPU-0000")])
	}
	for _, name := range names {
		d, err := cuda.Find(name)
		if err != nil || d != first {
			t.Errorf("Find(%q) = %v, %v", name, d, err)
		}
	}
	for _, name := range []string{"", "gpu", "cuda:", "cuda:-1", fmt.Sprint("cuda:", len(devices)), "GPU-", "GPU-x", first.UUID() + "0"} {
		_, err := cuda.Find(name)
		if !errors.Is(err, cuda.ErrNoDevice) || !strings.Contains(err.Error(), first.UUID()) {
			t.Errorf("Find(%q): %v", name, err)
		}
	}
	version, err := cuda.DriverVersion()
	if err != nil || version < 11000 {
		t.Errorf("driver version %d, %v", version, err)
	}
	if cuda.Library() == "" {
		t.Error("the library has no path")
	}
}

func properties(t *testing.T) {
	d, err := cuda.Find("cuda")
	check(t, err)
	p, err := d.Properties()
	check(t, err)
	t.Logf("%v: %+v", d, p)
	if p.SMs <= 0 || p.MemoryBytes <= 0 || p.Major < 5 || p.ClockKHz <= 0 {
		t.Errorf("%+v", p)
	}
}

func countsSMs(t *testing.T, b harness) {
	sms, err := b.SMs()
	check(t, err)
	if all := b.properties(t).SMs; sms <= 0 || sms > all {
		t.Errorf("%d multiprocessors of %d", sms, all)
	}
	free, total, err := b.Memory()
	if err != nil || free <= 0 || free > total {
		t.Errorf("memory: %d of %d, %v", free, total, err)
	}
}

func copies(t *testing.T, b harness) {
	const n = 1<<20 + 3
	from, to := b.pinned(t, n), b.pinned(t, n)
	for i := range from {
		from[i] = byte(i * 7 >> 3)
	}
	one, two, s := b.memory(t, n), b.memory(t, n), b.stream(t)
	check(t, s.Copy(one, cuda.At(from), n))
	check(t, s.Copy(two, one, n))
	check(t, s.Set(two+5, 0xee, 3))
	check(t, s.Copy(cuda.At(to), two, n))
	check(t, s.Synchronize())
	want := slices.Clone(from)
	copy(want[5:], []byte{0xee, 0xee, 0xee})
	if !slices.Equal(to, want) {
		t.Error("what came back is not what was sent")
	}
	check(t, s.Copy(one, two, 0))
	code(t, s.Copy(one, two+cuda.Pointer(n)-1, 4<<20), cuda.InvalidValue)
}

func refusesTooMuch(t *testing.T, b harness) {
	if _, err := b.Allocate(1 << 50); !errors.Is(err, cuda.ErrOutOfMemory) || errors.Is(err, cuda.ErrLost) {
		t.Errorf("2^50 bytes: %v", err)
	}
	for _, n := range []int{0, -1} {
		_, err := b.Allocate(n)
		code(t, err, cuda.InvalidValue)
		_, err = b.AllocateHost(n)
		code(t, err, cuda.InvalidValue)
		_, err = b.NewArena(n)
		code(t, err, cuda.InvalidValue)
	}
	b.memory(t, 1<<20) // the device still works
}

func freesOnce(t *testing.T, b harness) {
	p, err := b.Allocate(4096)
	check(t, err)
	check(t, b.Free(p))
	code(t, b.Free(p), cuda.InvalidValue)
	mem, err := b.AllocateHost(4096)
	check(t, err)
	check(t, b.FreeHost(mem))
}

func pins(t *testing.T, b harness) {
	mem, s := b.pinned(t, 4096), b.stream(t)
	p := cuda.At(mem)
	check(t, s.Set(p, 0x42, len(mem)))
	check(t, s.Synchronize())
	if mem[0] != 0x42 || mem[4095] != 0x42 {
		t.Error("the CPU does not see what the device wrote")
	}
	view := cuda.Bytes(p+100, 10)
	view[0] = 7
	if mem[100] != 7 || len(view) != 10 || cuda.At(view) != p+100 {
		t.Error("Bytes and At are not each other's inverse")
	}
	if cuda.Bytes(0, 10) != nil || cuda.At(nil) != 0 {
		t.Error("address 0 is some memory")
	}
}

// mapping maps a memfd twice: writable and read-only.
func mapping(t *testing.T, n int) (writable, readOnly []byte) {
	t.Helper()
	fd, err := unix.MemfdCreate("cudatest", unix.MFD_CLOEXEC)
	check(t, err)
	defer unix.Close(fd)
	check(t, unix.Ftruncate(fd, int64(n)))
	writable, err = unix.Mmap(fd, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	check(t, err)
	t.Cleanup(func() { check(t, unix.Munmap(writable)) })
	readOnly, err = unix.Mmap(fd, 0, n, unix.PROT_READ, unix.MAP_SHARED)
	check(t, err)
	t.Cleanup(func() { check(t, unix.Munmap(readOnly)) })
	return writable, readOnly
}

func registersReadOnly(t *testing.T, b harness) {
	if !b.properties(t).ReadOnlyHostRegister {
		t.Skip("the device cannot register read-only memory")
	}
	const n = 1 << 20
	writable, readOnly := mapping(t, n)
	if p, err := b.Register(readOnly, false); err == nil {
		t.Errorf("a read-only mapping was registered to be written, at %#x", p)
		check(t, b.Unregister(readOnly))
	} else {
		t.Logf("without the flag: %v", err)
	}
	p, err := b.Register(readOnly, true)
	check(t, err)
	defer func() { check(t, b.Unregister(readOnly)) }()
	if b.properties(t).HostPointer && p != cuda.At(readOnly) {
		t.Errorf("registered at %#x, the device sees it at %#x", cuda.At(readOnly), p)
	}
	// The device must read what the owner of the other mapping writes afterwards.
	for i := range writable {
		writable[i] = byte(i * 5 >> 2)
	}
	device, s := b.memory(t, n), b.stream(t)
	check(t, s.Copy(device, p, n))
	check(t, s.Synchronize())
	got, err := read(b.Context, device, n)
	check(t, err)
	if !slices.Equal(got, writable) {
		t.Error("the device read something else than was written")
	}
}

func registersOnce(t *testing.T, b harness) {
	writable, _ := mapping(t, 64<<10)
	_, err := b.Register(nil, false)
	code(t, err, cuda.InvalidValue)
	p, err := b.Register(writable, false)
	check(t, err)
	_, err = b.Register(writable, false)
	code(t, err, 712)
	s := b.stream(t)
	check(t, s.Set(p, 9, len(writable)))
	check(t, s.Synchronize())
	if writable[0] != 9 || writable[len(writable)-1] != 9 {
		t.Error("the CPU does not see what the device wrote")
	}
	check(t, b.Unregister(writable))
	code(t, b.Unregister(writable), 713)
}

func writesAWord(t *testing.T, b harness) {
	writable, _ := mapping(t, 4096)
	p, err := b.Register(writable, false)
	check(t, err)
	defer func() { check(t, b.Unregister(writable)) }()
	s := b.stream(t)
	for turn := uint32(1); turn <= 20; turn++ {
		check(t, s.Set(p+64, byte(turn), 64))
		check(t, s.WriteValue(p, turn))
		for deadline := time.Now().Add(10 * time.Second); word(writable) != turn; {
			if time.Now().After(deadline) {
				t.Fatal("the word was not written")
			}
			runtime.Gosched()
		}
		if writable[64] != byte(turn) || writable[127] != byte(turn) {
			t.Fatal("the word came before the work")
		}
	}
	check(t, s.Synchronize())
}

func ordersStreams(t *testing.T, b harness) {
	const n = 8 << 20
	mem, host := b.memory(t, n), b.pinned(t, n)
	first, second, done := b.stream(t), b.stream(t), b.event(t, false)
	for turn := byte(1); turn <= 5; turn++ {
		check(t, first.Set(mem, turn, n))
		check(t, done.Record(first))
		check(t, second.Wait(done))
		check(t, second.Copy(cuda.At(host), mem, n))
		check(t, done.Record(second))
		check(t, first.Wait(done))
		check(t, first.Set(mem, 0xff, n))
		check(t, done.Synchronize())
		if ok, err := done.Query(); err != nil || !ok {
			t.Errorf("after Synchronize the event is done: %v, %v", ok, err)
		}
		if host[0] != turn || host[n-1] != turn {
			t.Fatalf("turn %d read %d and %d", turn, host[0], host[n-1])
		}
	}
	check(t, first.Synchronize())
	if ok, err := first.Query(); err != nil || !ok {
		t.Errorf("after Synchronize the stream is done: %v, %v", ok, err)
	}
	if ok, err := b.event(t, false).Query(); err != nil || !ok {
		t.Errorf("an event that nobody recorded is done: %v, %v", ok, err)
	}
	if cuda.StreamOf(first.Handle()) != first {
		t.Error("a stream is not its handle")
	}
}

// spin queues a kernel that runs one block for about d.
func (b harness) spin(t *testing.T, f cuda.Function, s cuda.Stream, out cuda.Pointer, blocks int, d time.Duration) {
	t.Helper()
	args := cuda.NewArgs(8, 4)
	args.SetPointer(0, out)
	args.SetUint32(1, uint32(d.Seconds()*float64(b.properties(t).ClockKHz)*1000))
	check(t, f.Launch([3]uint32{uint32(blocks), 1, 1}, [3]uint32{1, 1, 1}, 0, s, args))
}

// whileRunning checks a kernel's effect on other calls while it runs for a given time. On a busy
// machine the kernel may end before this process makes those calls. Then check returns an error, and
// is repeated with a longer kernel.
func whileRunning(t *testing.T, check func(spun time.Duration) error) {
	t.Helper()
	const longest = 640 * time.Millisecond
	for spun := 5 * time.Millisecond; ; spun *= 2 {
		err := check(spun)
		if err == nil {
			return
		}
		if spun >= longest {
			t.Fatalf("next to a kernel of %v: %v", spun, err)
		}
	}
}

// priorities checks that a kernel of high priority overtakes one that fills the
// device three times.
func priorities(t *testing.T, b harness) {
	lowest, highest, err := b.StreamPriorities()
	check(t, err)
	if lowest != 0 || highest >= 0 {
		t.Fatalf("priorities are %d to %d, want 0 to a negative number", lowest, highest)
	}
	low := b.stream(t)
	high, err := b.NewPriorityStream(highest)
	check(t, err)
	t.Cleanup(func() { check(t, high.Destroy()) })

	const blocksPerSM = 32
	fill := 3 * blocksPerSM * b.properties(t).SMs
	f, out := b.kernel(t, "penstock_where"), b.memory(t, 4*fill)
	b.spin(t, f, low, out, 1, time.Millisecond) // the first launch loads the kernel
	check(t, low.Synchronize())

	lowEnded, highEnded := b.event(t, true), b.event(t, true)
	whileRunning(t, func(spun time.Duration) error {
		b.spin(t, f, low, out, fill, spun)
		check(t, lowEnded.Record(low))
		b.spin(t, f, high, out, 1, time.Microsecond)
		check(t, highEnded.Record(high))
		check(t, errors.Join(low.Synchronize(), high.Synchronize()))
		ahead, err := cuda.Elapsed(highEnded, lowEnded)
		check(t, err)
		if ahead <= 0 {
			return fmt.Errorf("the kernel of priority %d ended %v after the one of priority 0", highest, -ahead)
		}
		return nil
	})
}

func measuresTime(t *testing.T, b harness) {
	f, s, out := b.kernel(t, "penstock_where"), b.stream(t), b.memory(t, 4096)
	from, to := b.event(t, true), b.event(t, true)
	b.spin(t, f, s, out, 1, time.Millisecond) // the first launch loads the kernel
	check(t, s.Synchronize())

	whileRunning(t, func(spun time.Duration) error {
		check(t, from.Record(s))
		b.spin(t, f, s, out, 1, spun)
		check(t, to.Record(s))
		streamDone, err := s.Query()
		check(t, err)
		eventDone, err := to.Query()
		check(t, err)
		_, early := cuda.Elapsed(from, to)

		check(t, to.Synchronize())
		took, err := cuda.Elapsed(from, to)
		check(t, err)
		if took < spun/2 {
			t.Errorf("a kernel of %v took %v", spun, took)
		}
		if streamDone || eventDone || !errors.Is(early, cuda.ErrNotReady) {
			return fmt.Errorf("the stream is done: %v; the event is done: %v; Elapsed says %v", streamDone, eventDone, early)
		}
		return nil
	})

	untimed := b.event(t, false)
	check(t, untimed.Record(s))
	check(t, s.Synchronize())
	_, err := cuda.Elapsed(from, untimed)
	code(t, err, 400)
}

func blocks(t *testing.T, b harness) {
	f, s, out := b.kernel(t, "penstock_where"), b.stream(t), b.memory(t, 4096)
	e, err := b.NewBlockingEvent()
	check(t, err)
	defer func() { check(t, e.Destroy()) }()
	b.spin(t, f, s, out, 1, 2*time.Millisecond)
	check(t, e.Record(s))
	check(t, e.Synchronize())
	if ok, err := s.Query(); !ok || err != nil {
		t.Errorf("after the event the stream is done: %v, %v", ok, err)
	}
}

func runsKernels(t *testing.T, b harness) {
	const n = 10_000
	f, s, out := b.kernel(t, "penstock_fill"), b.stream(t), b.memory(t, 4*n)
	args := cuda.NewArgs(8, 4, 4)
	args.SetPointer(0, out)
	args.SetUint32(2, n)
	for _, value := range []uint32{1, 1 << 31} {
		args.SetUint32(1, value)
		check(t, f.Launch([3]uint32{(n + 127) / 128, 1, 1}, [3]uint32{128, 1, 1}, 0, s, args))
		args.SetUint32(1, 12345) // arguments are copied at the launch
		check(t, s.Synchronize())
		got, err := read(b.Context, out, 4*n)
		check(t, err)
		for i, v := range words(got) {
			if v != value+uint32(i) {
				t.Fatalf("word %d is %d", i, v)
			}
		}
	}
}

func passesAStruct(t *testing.T, b harness) {
	f, s, out := b.kernel(t, "penstock_pair"), b.stream(t), b.memory(t, 4)
	args := cuda.NewArgs(16)
	pair := args.Bytes(0)
	binary.NativeEndian.PutUint64(pair, uint64(out))
	binary.NativeEndian.PutUint32(pair[8:], 40)
	binary.NativeEndian.PutUint32(pair[12:], 2)
	check(t, f.Launch([3]uint32{1, 1, 1}, [3]uint32{1, 1, 1}, 0, s, args))
	check(t, s.Synchronize())
	got, err := read(b.Context, out, 4)
	check(t, err)
	if words(got)[0] != 42 {
		t.Errorf("40 + 2 = %d", words(got)[0])
	}
}

func refusesPTX(t *testing.T, b harness) {
	for text, want := range map[string]cuda.Code{
		"this is no PTX": 200, // the driver takes it for a binary of an unknown format
		".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry broken(.param .u64": 218,
	} {
		_, err := b.Load([]byte(text))
		var e *cuda.LoadError
		if !errors.As(err, &e) || errors.Is(err, cuda.ErrLost) {
			t.Fatalf("the error is %v", err)
		}
		t.Log(err)
		code(t, err, want)
		if e.Log == "" || want == 218 && !strings.Contains(e.Log, "ptxas") {
			t.Errorf("the compiler said %q", e.Log)
		}
	}
	_, err := b.Load(nil)
	code(t, err, 200)
	b.kernel(t, "penstock_fill") // the context still works
}

func refusesName(t *testing.T, b harness) {
	m, err := b.Load(PTX)
	check(t, err)
	defer func() { check(t, m.Unload()) }()
	_, err = m.Function("penstock_none")
	code(t, err, 500)
	if !strings.Contains(err.Error(), "penstock_none") {
		t.Errorf("the error does not name the kernel: %v", err)
	}
}

func refusesLaunch(t *testing.T, b harness) {
	f, s, out := b.kernel(t, "penstock_fill"), b.stream(t), b.memory(t, 4096)
	args := cuda.NewArgs(8, 4, 4)
	args.SetPointer(0, out)
	one := [3]uint32{1, 1, 1}
	code(t, f.Launch(one, [3]uint32{4096, 1, 1}, 0, s, args), cuda.InvalidValue)
	code(t, f.Launch([3]uint32{0, 1, 1}, one, 0, s, args), cuda.InvalidValue)
	code(t, f.Launch(one, one, 1<<30, s, args), cuda.InvalidValue)
	check(t, f.Launch(one, one, 0, s, args))
	check(t, s.Synchronize())
}

func allocatesNothing(t *testing.T, b harness) {
	f, s, out, host := b.kernel(t, "penstock_fill"), b.stream(t), b.memory(t, 4096), b.pinned(t, 4096)
	e := b.event(t, false)
	args := cuda.NewArgs(8, 4, 4)
	args.SetPointer(0, out)
	args.SetUint32(2, 64)
	check(t, s.Capture())
	check(t, f.Launch([3]uint32{1, 1, 1}, [3]uint32{64, 1, 1}, 0, s, args))
	g, err := s.EndCapture()
	check(t, err)
	x, err := g.Instantiate()
	check(t, err)
	check(t, g.Destroy())
	defer func() { check(t, x.Destroy()) }()
	turn := uint32(0)
	allocations := testing.AllocsPerRun(100, func() {
		turn++
		args.SetUint32(1, turn)
		check(t, f.Launch([3]uint32{1, 1, 1}, [3]uint32{64, 1, 1}, 0, s, args))
		check(t, x.Launch(s))
		check(t, s.Copy(cuda.At(host), out, 256))
		check(t, s.Set(out, 0, 256))
		check(t, e.Record(s))
		check(t, s.Wait(e))
		check(t, s.WriteValue(cuda.At(host)+512, turn))
		if _, err := s.Query(); err != nil {
			t.Fatal(err)
		}
		if _, err := e.Query(); err != nil {
			t.Fatal(err)
		}
		check(t, b.Bind())
		check(t, e.Synchronize())
		check(t, s.Synchronize())
	})
	if allocations != 0 {
		t.Errorf("%v allocations a round", allocations)
	}
}

func graphs(t *testing.T, b harness) {
	const n = 1000
	f, s, out := b.kernel(t, "penstock_fill"), b.stream(t), b.memory(t, 4*n)
	host := b.pinned(t, 4*n)
	args := cuda.NewArgs(8, 4, 4)
	args.SetPointer(0, out)
	args.SetUint32(1, 100)
	args.SetUint32(2, n-1)
	check(t, s.Capture())
	check(t, s.Set(out, 0xff, 4*n))
	check(t, f.Launch([3]uint32{8, 1, 1}, [3]uint32{128, 1, 1}, 0, s, args))
	check(t, s.Copy(cuda.At(host), out, 4*n))
	g, err := s.EndCapture()
	check(t, err)
	x, err := g.Instantiate()
	check(t, err)
	defer func() { check(t, x.Destroy()) }()
	check(t, g.Destroy()) // the executable does not need the graph
	check(t, s.Synchronize())
	if host[0] != 0 {
		t.Error("the capture itself did the work")
	}
	other := b.stream(t)
	check(t, x.Upload(s))
	for _, s := range []cuda.Stream{s, other, s} {
		clear(host)
		check(t, x.Launch(s))
		check(t, s.Synchronize())
		got := words(host)
		if got[0] != 100 || got[n-2] != 100+n-2 || got[n-1] != 0xffffffff {
			t.Fatalf("the graph made %d … %d, %#x", got[0], got[n-2], got[n-1])
		}
	}
}

func breaksCapture(t *testing.T, b harness) {
	s, out := b.stream(t), b.memory(t, 4096)
	if _, err := s.EndCapture(); err == nil {
		t.Error("a capture ended that was not begun")
	}
	check(t, s.Capture())
	check(t, s.Set(out, 1, 4096))
	if err := s.Synchronize(); err == nil || errors.Is(err, cuda.ErrLost) {
		t.Errorf("Synchronize while capturing: %v", err)
	}
	g, err := s.EndCapture()
	code(t, err, 901)
	if g != nil {
		t.Error("a broken capture made a graph")
	}
	check(t, s.Set(out, 2, 4096))
	check(t, s.Synchronize())
	check(t, expect(b.Context, out, 4096, 2))
}

// split skips the test if there are no green contexts.
func (b harness) split(t *testing.T) *cuda.Split {
	t.Helper()
	s, err := b.Device().Split()
	if errors.Is(err, cuda.ErrNotSupported) {
		t.Skip(err)
	}
	check(t, err)
	return s
}

func sum(list []int) (n int) {
	for _, v := range list {
		n += v
	}
	return n
}

func splits(t *testing.T, b harness) {
	s := b.split(t)
	groups := s.GroupSMs()
	t.Logf("%d groups, %v", len(groups), groups)
	all, err := b.SMs()
	check(t, err)
	if sum(groups) > max(all, b.properties(t).SMs) && !b.properties(t).MPS {
		t.Errorf("groups of %d multiprocessors on a device of %d", sum(groups), all)
	}
	if len(groups) < 2 {
		t.Fatalf("groups %v, want 2 or more", groups)
	}
	for i, n := range groups[:len(groups)-1] {
		if n != groups[0] {
			t.Errorf("group %d has %d multiprocessors, group 0 has %d", i, n, groups[0])
		}
	}
	if again := b.split(t); !slices.Equal(again.GroupSMs(), groups) {
		t.Errorf("another split is %v", again.GroupSMs())
	}
}

func (b harness) green(t *testing.T, s *cuda.Split, groups ...int) *cuda.Green {
	t.Helper()
	g, err := b.Green(s, groups)
	check(t, err)
	t.Cleanup(func() { check(t, g.Destroy()) })
	return g
}

func (b harness) greenStream(t *testing.T, g *cuda.Green) cuda.Stream {
	t.Helper()
	s, err := g.NewStream()
	check(t, err)
	t.Cleanup(func() { check(t, s.Destroy()) })
	return s
}

func greens(t *testing.T, b harness) {
	s := b.split(t)
	sms := s.GroupSMs()
	last := len(sms) - 1
	all := make([]int, len(sms))
	for i := range all {
		all[i] = i
	}
	for _, groups := range [][]int{{0}, {1}, {last}, {2, 0}, {0, last}, all} {
		want := 0
		for _, g := range groups {
			want += sms[g]
		}
		g := b.green(t, s, groups...)
		if g.SMs() != want {
			t.Errorf("groups %v: %d multiprocessors, not %d", groups, g.SMs(), want)
		}
	}
}

// where returns the multiprocessors that a kernel of many blocks ran on.
func (b harness) where(t *testing.T, s cuda.Stream, f cuda.Function, blocks int) []int {
	t.Helper()
	out := b.memory(t, 4*blocks)
	b.spin(t, f, s, out, blocks, 200*time.Microsecond)
	check(t, s.Synchronize())
	got, err := read(b.Context, out, 4*blocks)
	check(t, err)
	seen := map[int]bool{}
	for _, sm := range words(got) {
		seen[int(sm)] = true
	}
	list := []int{}
	for sm := range seen {
		list = append(list, sm)
	}
	slices.Sort(list)
	return list
}

func disjoint(t *testing.T, b harness) {
	split := b.split(t)
	f := b.kernel(t, "penstock_where")
	one, two := b.green(t, split, 0, 1), b.green(t, split, 2, 3)
	first := b.where(t, b.greenStream(t, one), f, 32*one.SMs())
	second := b.where(t, b.greenStream(t, two), f, 32*two.SMs())
	t.Logf("groups 0, 1 ran on %v, groups 2, 3 on %v", first, second)
	if len(first) != one.SMs() || len(second) != two.SMs() {
		t.Errorf("green contexts of %d and %d ran on %d and %d multiprocessors", one.SMs(), two.SMs(), len(first), len(second))
	}
	if b.properties(t).MPS {
		return // kernels there see virtual numbers
	}
	for _, sm := range first {
		if slices.Contains(second, sm) {
			t.Errorf("both ran on multiprocessor %d", sm)
		}
	}
	all := b.where(t, b.stream(t), f, 32*b.properties(t).SMs)
	if len(all) != b.properties(t).SMs {
		t.Errorf("the whole device ran on %d multiprocessors", len(all))
	}
}

func refusesGroups(t *testing.T, b harness) {
	s := b.split(t)
	for _, groups := range [][]int{nil, {-1}, {len(s.GroupSMs())}, {0, 0}} {
		_, err := b.Green(s, groups)
		code(t, err, cuda.InvalidValue)
	}
}

// turn creates a green context, runs some work in it, and destroys it.
func (b harness) turn(t *testing.T, s *cuda.Split, f cuda.Function, out cuda.Pointer, groups ...int) {
	t.Helper()
	g, err := b.Green(s, groups)
	check(t, err)
	stream, err := g.NewStream()
	check(t, err)
	b.spin(t, f, stream, out, 1, time.Microsecond)
	check(t, stream.Synchronize())
	check(t, stream.Destroy())
	check(t, g.Destroy())
	check(t, g.Destroy()) // a second Destroy does nothing
}

func leavesNothing(t *testing.T, b harness) {
	s, f := b.split(t), b.kernel(t, "penstock_where")
	out := b.memory(t, 4096)
	sets := [][]int{{0, 1}, {2}, {1, 2, 3}}
	for _, groups := range sets {
		b.turn(t, s, f, out, groups...)
	}
	before, _, err := b.Memory()
	check(t, err)
	for i := range 150 {
		b.turn(t, s, f, out, sets[i%len(sets)]...)
	}
	after, _, err := b.Memory()
	check(t, err)
	if lost := before - after; lost > 4<<20 {
		t.Errorf("150 green contexts took %d bytes for good", lost)
	}
}

func keeps(t *testing.T, b harness) {
	s, f := b.split(t), b.kernel(t, "penstock_where")
	out, stream := b.memory(t, 4096), b.stream(t)
	b.turn(t, s, f, out, 1, 0)

	whileRunning(t, func(spun time.Duration) error {
		b.spin(t, f, stream, out, 1, spun)
		start := time.Now()
		g, other := b.green(t, s, 0, 1), b.green(t, s, 0, 1)
		b.turn(t, s, f, out+64, 0, 1)
		took := time.Since(start)
		done, err := stream.Query()
		check(t, err)

		if g.SMs() != other.SMs() || g.SMs() != sum(s.GroupSMs()[:2]) {
			t.Errorf("the same groups have %d and %d multiprocessors", g.SMs(), other.SMs())
		}
		check(t, stream.Synchronize())
		if done {
			return fmt.Errorf("a green context took %v", took)
		}
		return nil
	})
}

func (b harness) arena(t *testing.T, n int) *cuda.Arena {
	t.Helper()
	p := b.properties(t)
	if !p.VirtualMemory || !p.FileHandles {
		t.Skip("the device has no memory that can be mapped by a file descriptor")
	}
	a, err := b.NewArena(n)
	check(t, err)
	t.Cleanup(func() { check(t, a.Close()) })
	return a
}

func (b harness) export(t *testing.T, a *cuda.Arena) *os.File {
	t.Helper()
	fd, err := a.ExportFD()
	check(t, err)
	f := os.NewFile(uintptr(fd), "arena")
	t.Cleanup(func() { check(t, f.Close()) })
	return f
}

func arenas(t *testing.T, b harness) {
	a := b.arena(t, 3<<20)
	if a.Bytes() < 3<<20 || a.Bytes()%(3<<20) == 0 || a.Pointer() == 0 {
		t.Errorf("an arena of %d bytes at %#x", a.Bytes(), a.Pointer())
	}
	f := b.export(t, a)
	second, err := b.ImportArena(int(f.Fd()), a.Bytes(), true)
	check(t, err)
	if second.Pointer() == a.Pointer() {
		t.Error("two mappings have one address")
	}
	check(t, set(b.Context, a.Pointer(), a.Bytes(), 0x5a))
	check(t, expect(b.Context, second.Pointer(), second.Bytes(), 0x5a))
	check(t, second.Close())
	check(t, second.Close()) // a second Close does nothing
	check(t, expect(b.Context, a.Pointer(), a.Bytes(), 0x5a))
	for _, wrong := range []int{-1, int(os.Stdin.Fd())} {
		if _, err := b.ImportArena(wrong, a.Bytes(), false); err == nil || errors.Is(err, cuda.ErrLost) {
			t.Errorf("descriptor %d is an arena: %v", wrong, err)
		}
	}
	if _, err := b.NewArena(1 << 50); !errors.Is(err, cuda.ErrOutOfMemory) {
		t.Errorf("2^50 bytes: %v", err)
	}
}

// An evicted arena has no memory. When it is restored, a graph that was made before writes there again.
func evictsArena(t *testing.T, b harness) {
	const n = 256 << 20 // much more than others allocate meanwhile
	a := b.arena(t, n)
	s, err := b.NewStream()
	check(t, err)
	defer s.Destroy()
	const copied = 1 << 10
	to := b.memory(t, copied)
	check(t, s.CaptureRelaxed())
	check(t, s.Set(a.Pointer(), 0x5a, a.Bytes()))
	check(t, s.Copy(to, a.Pointer(), copied))
	graph, err := s.EndCapture()
	check(t, err)
	defer graph.Destroy()
	x, err := graph.Instantiate()
	check(t, err)
	defer x.Destroy()

	at := a.Pointer()
	for range 3 {
		before, _, err := b.Memory()
		check(t, err)
		check(t, a.Evict())
		check(t, a.Evict()) // a second Evict does nothing
		if free, _, err := b.Memory(); err != nil || free-before < n/2 {
			t.Errorf("%d bytes are free, %d before the arena was evicted: %v", free, before, err)
		}
		check(t, a.Restore())
		check(t, a.Restore())
		if a.Pointer() != at {
			t.Errorf("restored at %#x, was at %#x", a.Pointer(), at)
		}
		check(t, set(b.Context, to, copied, 0))
		check(t, errors.Join(x.Launch(s), s.Synchronize()))
		check(t, expect(b.Context, a.Pointer(), a.Bytes(), 0x5a))
		check(t, expect(b.Context, to, copied, 0x5a))
	}
	check(t, a.Evict()) // Close frees the addresses of an evicted arena
}

func sharesArena(t *testing.T, b harness) {
	a := b.arena(t, 2<<20)
	check(t, set(b.Context, a.Pointer(), a.Bytes(), parentByte))
	inChild(t, []*os.File{b.export(t, a)}, "arena", strconv.Itoa(a.Bytes()))
	check(t, expect(b.Context, a.Pointer(), a.Bytes(), childByte))
}
