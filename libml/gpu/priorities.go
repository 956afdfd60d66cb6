package gpu

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os/exec"
	"runtime"
	"slices"
	"time"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/cuda"
)

// Guarantees need stream priorities that hold between the clients of an MPS server. Two
// processes measure whether they do:
//
//	MeasurePriorities                          Occupy
//	1 starts the other process                 2 opens the GPU, prints "open"
//	3 times short work alone, writes a line    4 keeps the GPU full at priority 0, prints "full"
//	5 times the work at priority 0, and at
//	  the highest
//	6 closes the other's standard input        7 ends
//
// Both launch the kernel fetch, which copies.

const (
	// probeKernels is how many kernels the short work has. At the same priority each of them
	// waits for a kernel of the other process.
	probeKernels = 4
	// probeBytes is what such a kernel copies.
	probeBytes = 64 << 10
	// probeSamples is how often the work is timed at each priority.
	probeSamples = 15

	// occupyTime is the min time of a kernel that keeps the GPU full. It copies from
	// occupyMinBytes to occupyMaxBytes, up to fetchParts times. The min gives each of 132
	// multiprocessors 31 blocks.
	occupyTime     = time.Millisecond
	occupyMinBytes = 16 << 20
	occupyMaxBytes = 128 << 20
	// occupyAhead is how many of these kernels are queued.
	occupyAhead = 16

	// fullFactor is how much longer the work at priority 0 must take next to a full GPU, and
	// fullTime the min time. Otherwise the measurement proves nothing. On two H200s the work took
	// 4 ms and 0.9 ms.
	fullFactor = 10
	fullTime   = probeKernels * occupyTime / 8
	// heldFactor is how much shorter the work at the highest priority is if priorities hold.
	// On an H200 the difference is a factor of 35. Priorities hold if that is so in minHeld of the
	// samples, and do not hold if it is so in up to maxNotHeld. Between these, delays of the CPU
	// decided.
	heldFactor = 2
	minHeld    = 12
	maxNotHeld = 5

	// occupyEndTimeout is how long the other process has to end.
	occupyEndTimeout = 3 * time.Second
)

// These errors mean that a measurement proves nothing, as on a busy machine.
var (
	errNotFull = errors.New("the GPU was not full")
	errUnclear = errors.New("the times vary too much")
)

// maxProbes is how often a measurement that proves nothing is repeated.
const maxProbes = 6

// MeasurePriorities measures stream priorities on a device, an argument of cuda.Find. other
// returns a command, not started yet, that calls Occupy for the same device. Both processes
// must be clients of one MPS server. A measurement takes half a second.
func MeasurePriorities(name string, other func() *exec.Cmd) (p control.StreamPriorities, err error) {
	for range maxProbes {
		if p, err = measurePriorities(name, other()); !errors.Is(err, errNotFull) && !errors.Is(err, errUnclear) {
			break
		}
	}
	return p, err
}

func measurePriorities(name string, other *exec.Cmd) (p control.StreamPriorities, err error) {
	o, err := startOccupier(other)
	if err != nil {
		return p, err
	}
	defer func() { err = errors.Join(err, o.end()) }()
	c, err := openCopies(name, probeBytes)
	if err != nil {
		return p, err
	}
	defer func() { err = errors.Join(err, c.close()) }()

	equal, err := c.context.NewStream()
	if err != nil {
		return p, err
	}
	defer equal.Destroy()
	_, highest, err := c.context.StreamPriorities()
	if err != nil {
		return p, err
	}
	high, err := c.context.NewPriorityStream(highest)
	if err != nil {
		return p, err
	}
	defer high.Destroy()

	if err := o.await("open"); err != nil {
		return p, err
	}
	if _, err := c.sample(high); err != nil { // the first launches take longer
		return p, err
	}
	alone, err := c.samples(equal)
	if err != nil {
		return p, err
	}
	if err := o.fill(); err != nil {
		return p, err
	}
	next, err := c.samples(equal, high)
	if err != nil {
		return p, err
	}
	return judgePriorities(alone[0], next[0], next[1])
}

// judgePriorities decides whether priorities hold. equal[i] and high[i] were taken one after the
// other, so a busy CPU delays both.
func judgePriorities(alone, equal, high []time.Duration) (control.StreamPriorities, error) {
	a, e, h := median(alone), median(equal), median(high)
	if e < fullFactor*a || e < fullTime {
		return control.StreamPriorities{}, fmt.Errorf("%w: work at the same priority took %v, and alone %v", errNotFull, e, a)
	}
	held := 0
	for i := range equal {
		if heldFactor*high[i] < equal[i] {
			held++
		}
	}
	if held > maxNotHeld && held < minHeld {
		return control.StreamPriorities{}, fmt.Errorf("%w: work at the highest priority was %d times as fast in %d of %d samples",
			errUnclear, heldFactor, held, len(equal))
	}
	micros := func(d time.Duration) float64 { return float64(d.Nanoseconds()/100) / 10 }
	return control.StreamPriorities{
		Hold:        held >= minHeld,
		AloneMicros: micros(a), EqualMicros: micros(e), HighMicros: micros(h),
	}, nil
}

func median(times []time.Duration) time.Duration {
	return slices.Sorted(slices.Values(times))[len(times)/2]
}

// occupier is the process that keeps the GPU full.
type occupier struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

func startOccupier(cmd *exec.Cmd) (*occupier, error) {
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the process that fills the GPU: %w", err)
	}
	return &occupier{cmd, in, bufio.NewReader(out)}, nil
}

// await waits until the process prints a word.
func (o *occupier) await(word string) error {
	line, err := o.out.ReadString('\n')
	switch {
	case err != nil:
		return errors.New("the process that fills the GPU ended early")
	case line != word+"\n":
		return fmt.Errorf("the process that fills the GPU printed %q, want %q", line, word)
	}
	return nil
}

// fill makes the process fill the GPU, and waits until it does.
func (o *occupier) fill() error {
	if _, err := io.WriteString(o.in, "\n"); err != nil {
		return fmt.Errorf("order to fill the GPU: %w", err)
	}
	return o.await("full")
}

// end ends the process.
func (o *occupier) end() error {
	o.in.Close()
	late := time.AfterFunc(occupyEndTimeout, func() { o.cmd.Process.Kill() })
	defer late.Stop()
	if err := o.cmd.Wait(); err != nil {
		return fmt.Errorf("the process that fills the GPU: %w", err)
	}
	return nil
}

// Occupy is the other process of MeasurePriorities. in and out are its standard input and
// output. It returns when in ends.
func Occupy(name string, in io.Reader, out io.Writer) (err error) {
	c, err := openCopies(name, occupyMaxBytes)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.close()) }()
	stream, err := c.context.NewStream()
	if err != nil {
		return err
	}
	defer stream.Destroy()
	if _, err := fmt.Fprintln(out, "open"); err != nil {
		return err
	}

	orders := bufio.NewReader(in)
	if _, err := orders.ReadString('\n'); err != nil {
		return nil // the other process gave up
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		io.Copy(io.Discard, orders)
	}()
	bytes, parts, err := c.longCopy(stream)
	if err != nil {
		return err
	}
	return c.occupy(stream, bytes, parts, ended, func() error {
		_, err := fmt.Fprintln(out, "full")
		return err
	})
}

// occupy keeps occupyAhead copies queued until ended is closed. It calls full when they are.
func (c *copies) occupy(s cuda.Stream, bytes, parts int, ended <-chan struct{}, full func() error) error {
	var done [occupyAhead]cuda.Event
	for i := range done {
		e, err := c.context.NewBlockingEvent()
		if err != nil {
			return err
		}
		defer e.Destroy()
		done[i] = e
	}
	for n := 0; ; n++ {
		if n == occupyAhead {
			if err := full(); err != nil {
				return err
			}
		}
		select {
		case <-ended:
			return s.Synchronize()
		default:
		}
		e := done[n%occupyAhead]
		if err := e.Synchronize(); err != nil {
			return err
		}
		if err := c.launch(s, bytes, parts); err != nil {
			return err
		}
		if err := e.Record(s); err != nil {
			return err
		}
	}
}

// longCopy returns the size of a copy that takes occupyTime, as far as there is memory for it.
func (c *copies) longCopy(s cuda.Stream) (bytes, parts int, err error) {
	bytes, parts = occupyMinBytes, 1
	for {
		took, err := c.quickest(s, bytes, parts)
		switch {
		case err != nil:
			return 0, 0, err
		case took >= occupyTime, bytes == occupyMaxBytes && parts == fetchParts:
			return bytes, parts, nil
		case bytes < occupyMaxBytes:
			bytes *= 2
		default:
			parts *= 2
		}
	}
}

// quickest returns the min time of a copy: the first launches and delays of the CPU take longer.
func (c *copies) quickest(s cuda.Stream, bytes, parts int) (time.Duration, error) {
	const tries = 3
	quickest := time.Duration(math.MaxInt64)
	for range tries {
		began := time.Now()
		if err := c.launch(s, bytes, parts); err != nil {
			return 0, err
		}
		if err := s.Synchronize(); err != nil {
			return 0, err
		}
		quickest = min(quickest, time.Since(began))
	}
	return quickest, nil
}

// copies launches the kernel fetch on its own memory. Its methods need the thread of openCopies.
type copies struct {
	context *cuda.Context
	module  *cuda.Module
	fetch   cuda.Function
	args    *cuda.Args
	memory  cuda.Pointer
	bytes   int
}

// openCopies opens a device for copies of up to that many bytes, and locks the goroutine to its
// thread.
func openCopies(name string, bytes int) (_ *copies, err error) {
	runtime.LockOSThread()
	c := &copies{args: cuda.NewArgs(fetchBytes), bytes: bytes}
	defer func() {
		if err != nil {
			c.close()
		}
	}()
	found, err := cuda.Find(name)
	if err != nil {
		return nil, err
	}
	properties, err := found.Properties()
	if err != nil {
		return nil, err
	}
	if !properties.MPS {
		return nil, errors.New("this process is no client of MPS")
	}
	if c.context, err = found.OpenContext(); err != nil {
		return nil, err
	}
	if err = c.context.Bind(); err != nil {
		return nil, err
	}
	text, err := kernels("fetch")
	if err != nil {
		return nil, err
	}
	if c.module, err = c.context.Load(text); err != nil {
		return nil, err
	}
	if c.fetch, err = c.module.Function("fetch"); err != nil {
		return nil, err
	}
	c.memory, err = c.context.Allocate(2 * bytes)
	return c, err
}

func (c *copies) close() error {
	defer runtime.UnlockOSThread()
	var errs firstError
	if c.memory != 0 {
		errs.add(c.context.Free(c.memory))
	}
	if c.module != nil {
		errs.add(c.module.Unload())
	}
	if c.context != nil {
		errs.add(c.context.Close())
	}
	return errs.first
}

// launch queues a kernel that copies the first bytes parts times, with one thread per line.
func (c *copies) launch(s cuda.Stream, bytes, parts int) error {
	values := c.args.Bytes(0)
	for i := range parts {
		setFetchPart(values, i, c.memory+cuda.Pointer(c.bytes), c.memory, bytes)
	}
	binary.LittleEndian.PutUint32(values[atParts:], uint32(parts))
	const block = warps * 32
	grid := uint32(bytes / (lineBytes * block))
	return c.fetch.Launch([3]uint32{grid, 1, 1}, [3]uint32{block, 1, 1}, 0, s, c.args)
}

// sample times the short work.
func (c *copies) sample(s cuda.Stream) (time.Duration, error) {
	began := time.Now()
	for range probeKernels {
		if err := c.launch(s, probeBytes, 1); err != nil {
			return 0, err
		}
	}
	err := s.Synchronize()
	return time.Since(began), err
}

// samples times the short work on streams, in turn.
func (c *copies) samples(streams ...cuda.Stream) ([][]time.Duration, error) {
	samples := make([][]time.Duration, len(streams))
	for range probeSamples {
		for i, s := range streams {
			d, err := c.sample(s)
			if err != nil {
				return nil, err
			}
			samples[i] = append(samples[i], d)
		}
	}
	return samples, nil
}
