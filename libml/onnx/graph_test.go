//go:build cgo

package onnx

import (
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/penstock/penstock/cuda"
	"github.com/penstock/penstock/internal/testing/cudafake"
	"github.com/penstock/penstock/libml/device"
)

func TestGraphLaunch(t *testing.T) {
	r := newRig(t, &played{}).linked()
	b := r.tensors(4)
	r.fillWith(b, 7)
	cudafake.Reset()
	r.configure(0, 4, b)
	if len(cudafake.Launches()) != 0 {
		t.Error("something ran when the batch was configured")
	}
	r.infer(0, 4)
	if got := r.output(b); !all(got, 7) {
		t.Errorf("answered %v", got)
	}
	launches := cudafake.Launches()
	if len(launches) != 1 || launches[0].Stream != r.streams[0].Handle() {
		t.Errorf("launches: %v", launches)
	}
	ran := r.played.ran
	r.fillWith(b, 9)
	r.infer(0, 4)
	if got := r.output(b); !all(got, 9) || r.played.ran != ran {
		t.Errorf("the second time it answered %v, and ONNX Runtime ran %d times", got, r.played.ran-ran)
	}
}

// A graph is launched on the batch's stream, also if batches wait for each other.
func TestGraphStream(t *testing.T) {
	for name, apart := range map[string]bool{"lanes of their own": false, "apart": true} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, &played{outside: apart}).linked()
			b := r.tensors(4)
			r.configure(0, 4, b)
			if r.gpu.order.exclusive != apart {
				t.Fatalf("apart is %v", r.gpu.order.exclusive)
			}
			if !r.f.Demotable(0, 4) || r.f.Demotable(1, 4) {
				t.Error("the batch that is a graph cannot be demoted, or one that is not configured can")
			}
			other := r.newStream()
			on := r.streams[0]
			r.gpu.env.BatchStream = func(int) uintptr { return on.Handle() }
			for i, stream := range []cuda.Stream{r.streams[0], other, r.streams[0], other} {
				on = stream
				r.fillWith(b, byte(7+i))
				cudafake.Reset()
				if err := errors.Join(r.f.InferBatch(0, 4), stream.Synchronize()); err != nil {
					t.Fatal(err)
				}
				launches := cudafake.Launches()
				if len(launches) != 1 || launches[0].Stream != stream.Handle() {
					t.Errorf("launched on %v, want stream %#x", launches, stream.Handle())
				}
			}
		})
	}
}

func TestEphemeralBytes(t *testing.T) {
	r := newRig(t, &played{scratch: mebi}).linked()
	b := r.tensors(4)
	if got := r.configure(0, 4, b); got < 4*mebi || got > 4*mebi+1024 {
		t.Errorf("%d bytes", got)
	}
	if again := r.configure(0, 4, b); again < 4*mebi {
		t.Errorf("%d bytes the second time", again)
	}
}

// A partition is a stream of a green context: the same graph runs there.
func TestGraphInPartition(t *testing.T) {
	r := newRig(t, &played{}).linked()
	b := r.tensors(2)
	r.fillWith(b, 3)
	r.configure(0, 2, b)
	split, err := r.context.Device().Split()
	if err != nil {
		t.Fatal(err)
	}
	green, err := r.context.Green(split, []int{2, 3})
	if err != nil {
		t.Fatal(err)
	}
	part, err := green.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	ran := r.played.ran
	r.streams[2] = part
	r.configure(2, 2, b)
	if r.played.ran != ran {
		t.Error("ONNX Runtime ran the model to move it")
	}
	cudafake.Reset()
	r.infer(0, 2)
	r.infer(2, 2)
	var sms []uint32
	for _, l := range cudafake.Launches() {
		sms = append(sms, l.SMs)
	}
	if !slices.Equal(sms, []uint32{132, 16}) {
		t.Errorf("multiprocessors: %v", sms)
	}
	if got := r.output(b); !all(got, 3) {
		t.Errorf("answered %v", got)
	}
	r.end()
	if err := errors.Join(part.Destroy(), green.Destroy()); err != nil {
		t.Error(err)
	}
}

func TestConfigureAgain(t *testing.T) {
	r := newRig(t, &played{}).linked()
	b, other := r.tensors(2), r.tensors(2)
	r.configure(0, 2, b)
	before := cudafake.Now()
	for range 10 {
		r.configure(0, 2, other)
		r.configure(0, 2, b)
	}
	if after := cudafake.Now(); after.Executables != before.Executables || after.Graphs != before.Graphs || after.Bytes != before.Bytes {
		t.Errorf("before %+v\nafter  %+v", before, after)
	}
	r.fillWith(other, 5)
	r.configure(0, 2, other)
	r.infer(0, 2)
	if got := r.output(other); !all(got, 5) {
		t.Errorf("answered %v", got)
	}
}

func TestGraphAllocations(t *testing.T) {
	r := newRig(t, &played{}).linked()
	r.configure(0, 1, r.tensors(1))
	if n := testing.AllocsPerRun(100, func() {
		if err := r.f.InferBatch(0, 1); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%g allocations", n)
	}
	r.streams[0].Synchronize()
}

// A graph that cannot be copied is captured again for each move, with the host memory that
// it reads. The memory of the one before is released.
func TestGraphNotCopyable(t *testing.T) {
	r, _ := readingHost(t)
	cudafake.Set(t, cudafake.Refuse("cuGraphClone", 0, cuda.NotSupported))
	tensors := r.tensors(1)
	r.configure(0, 1, tensors)
	before := cudafake.Now().HostAllocations
	for range 5 {
		r.streams[0] = r.newStream()
		r.configure(0, 1, tensors)
		r.infer(0, 1)
		if got := r.output(tensors); !strings.HasPrefix(string(got), "constant") {
			t.Errorf("answered %q", got)
		}
	}
	if got := cudafake.Now().HostAllocations; got != before {
		t.Errorf("%d blocks of pinned memory, were %d", got, before)
	}
}

func TestConfigureBesideRunningSlot(t *testing.T) {
	r := newRig(t, &played{}).linked()
	b := r.tensors(4)
	for _, n := range r.card.Batches {
		r.configure(0, n, batchTensors{[]device.Buffer{b.inputs[0].Slice(0, n*r.card.Input.TensorBytes())}, []device.Buffer{b.outputs[0].Slice(0, n*r.card.Outputs[0].Bytes())}})
	}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		other, err := newThread(r.context)
		if err != nil {
			t.Error(err)
			return
		}
		defer other.end()
		other.do(func() error {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return nil
				default:
				}
				if err := errors.Join(r.f.InferBatch(0, r.card.Batches[i%3]), r.streams[0].Synchronize()); err != nil {
					t.Error(err)
					return nil
				}
			}
		})
	})
	for range 20 {
		for _, n := range r.card.Batches {
			r.configure(2, n, batchTensors{[]device.Buffer{b.inputs[0].Slice(0, n*r.card.Input.TensorBytes())}, []device.Buffer{b.outputs[0].Slice(0, n*r.card.Outputs[0].Bytes())}})
		}
		time.Sleep(time.Millisecond)
	}
	close(stop)
	wg.Wait()
}
