//go:build cgo

package gpu_test

import (
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/cuda"
	"github.com/penstock/penstock/internal/testing/cudafake"
	"github.com/penstock/penstock/internal/testing/must"
)

// TestFollow queues a short batch behind a long one while the device is stopped. The kernels run in that
// order, and the next batch of the slot waits for none.
func TestFollow(t *testing.T) {
	cudafake.Check(t)
	first, firstTensors := opened(t)
	second, tensors := opened(t)
	cudafake.Reset() // forget the launches of other tests
	cudafake.Apply(t, cudafake.Hold, cudafake.Late(100*time.Microsecond))
	must.OK(t, first.Gather(0, firstTensors[0].Input, requests(), make([]bool, 8)))
	work := cuda.StreamOf(first.BatchStream(0))
	for range 100 {
		must.OK(t, work.Set(cuda.Pointer(firstTensors[0].Outputs[0].Address()), 1, 1))
	}
	must.OK(t, first.Fetch(0, 8))
	must.OK(t, second.Gather(1, tensors[1].Input, requests(), make([]bool, 8)))
	must.OK(t, second.Follow(1, first, 0))
	must.OK(t, second.Fetch(1, 8))
	if done, err := second.Done(1); done || err != nil {
		t.Fatalf("a batch is done on a device that is stopped: %v, %v", done, err)
	}
	cudafake.Set(t, cudafake.Release)
	inferred, err := second.Wait(1)
	must.OK(t, err)
	if _, err := first.Wait(0); err != nil {
		t.Fatal(err)
	}
	var order []string
	for _, l := range cudafake.Launches() {
		of := "first "
		if l.Stream == second.BatchStream(1) {
			of = "second "
		}
		if strings.Contains(l.Name, "fetch") {
			order = append(order, of+l.Name)
		}
	}
	if len(order) != 2 || order[0] != "first fetch" {
		t.Errorf("outputs were fetched in the order %v, want those of the first batch first", order)
	}
	if inferred < 0 {
		t.Errorf("the second batch took %v", inferred)
	}
	if err := batch(second, tensors, 1); err != nil {
		t.Errorf("a batch after the one that followed: %v", err)
	}
}

// TestFollowRefused refuses the calls of a batch that follows.
func TestFollowRefused(t *testing.T) {
	for _, call := range []string{"cuStreamWaitEvent", "cuEventRecord"} {
		t.Run(call, func(t *testing.T) {
			runtime.LockOSThread()
			cudafake.Check(t)
			first, firstTensors := opened(t)
			second, tensors := opened(t)
			must.OK(t, begin(first, firstTensors, 0))
			cudafake.Apply(t, cudafake.Refuse(call, 1, outOfResources))
			if err := second.Follow(0, first, 0); err == nil {
				t.Error("the batch follows although the driver refused")
			}
			cudafake.Reset()
			if _, err := first.Wait(0); err != nil {
				t.Fatal(err)
			}
			if err := batch(second, tensors, 0); err != nil {
				t.Errorf("a batch after the refusal: %v", err)
			}
		})
	}
}
