//go:build cgo

package cuda

import (
	"errors"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/testing/cudafake"
	"github.com/penstock/penstock/internal/testing/must"
)

func TestRetarget(t *testing.T) {
	c, whole, f, m := node(t)
	split, err := c.Device().Split()
	must.OK(t, err)
	green, err := c.Green(split, []int{0, 1})
	must.OK(t, err)
	part, err := green.NewStream()
	must.OK(t, err)
	out, err := c.Allocate(64)
	must.OK(t, err)

	g := captured(t, whole, f, out)
	first, err := g.Instantiate()
	must.OK(t, err)
	moved, err := g.Retarget(part)
	must.OK(t, err)
	second, err := g.Instantiate()
	must.OK(t, err)
	back, err := g.Retarget(whole)
	must.OK(t, err)
	cudafake.Reset()
	for _, x := range []*Executable{first, moved, second, back} {
		must.OK(t, x.Launch(part))
	}
	must.OK(t, part.Synchronize())
	var ran []uint32
	for _, l := range cudafake.Launches() {
		ran = append(ran, l.SMs)
	}
	if !slices.Equal(ran, []uint32{132, 16, 132, 132}) {
		t.Errorf("multiprocessors of the launches: %v", ran)
	}

	must.OK(t, g.Move(part))
	third, err := g.Instantiate()
	must.OK(t, err)
	cudafake.Reset()
	must.OK(t, third.Launch(whole))
	must.OK(t, whole.Synchronize())
	if l := cudafake.Launches(); len(l) != 1 || l[0].SMs != 16 {
		t.Errorf("a graph that was moved launched %v", l)
	}

	for _, x := range []*Executable{first, moved, second, back, third} {
		must.OK(t, x.Destroy())
	}
	must.OK(t, errors.Join(g.Destroy(), part.Destroy(), green.Destroy(), whole.Destroy(), m.Unload(), c.Free(out), c.Close()))
}

func TestGraphContents(t *testing.T) {
	c, s, f, m := node(t)
	out, err := c.Allocate(256)
	must.OK(t, err)
	host, err := c.AllocateHost(64)
	must.OK(t, err)
	ours, err := c.AllocateHost(64)
	must.OK(t, err)
	back, err := c.AllocateHost(64)
	must.OK(t, err)
	for i := range host {
		host[i], ours[i] = 1, 2
	}

	must.OK(t, s.CaptureRelaxed())
	must.OK(t, s.Copy(out, At(host), 64))
	must.OK(t, s.Copy(out+64, out, 64))
	must.OK(t, s.Set(out+128, 7, 32))
	must.OK(t, s.Copy(At(back), out, 64))
	g, err := s.EndCapture()
	must.OK(t, err)
	held, err := g.Contents()
	must.OK(t, err)
	if held.Kernels != 0 || held.Others != 0 || held.Allocations != 0 || len(held.Copies) != 3 {
		t.Fatalf("%+v", held)
	}
	if !slices.Equal(held.Sets, []Range{{out + 128, 32}}) {
		t.Errorf("sets: %v", held.Sets)
	}
	into, within, from := held.Copies[0], held.Copies[1], held.Copies[2]
	if !into.FromHost || into.ToHost || into.From != (Range{At(host), 64}) || into.To != (Range{out, 64}) {
		t.Errorf("the copy from the host: %+v", into)
	}
	if within.FromHost || within.ToHost || !(Range{out, 256}).Holds(within.To) || (Range{out, 127}).Holds(within.To) {
		t.Errorf("the copy on the device: %+v", within)
	}
	if from.FromHost || !from.ToHost || from.To != (Range{At(back), 64}) {
		t.Errorf("the copy to the host: %+v", from)
	}
	if err := g.ReadFrom(within, At(ours)); err == nil {
		t.Error("a copy of device memory reads from the host")
	}

	must.OK(t, g.ReadFrom(into, At(ours)))
	x, err := g.Instantiate()
	must.OK(t, err)
	must.OK(t, x.Launch(s))
	must.OK(t, s.Synchronize())
	if back[0] != 2 {
		t.Errorf("the copy read %d", back[0])
	}

	kernels := captured(t, s, f, out)
	if held, err := kernels.Contents(); err != nil || held.Kernels != 1 || len(held.Sets) != 1 {
		t.Errorf("%+v, %v", held, err)
	}
	must.OK(t, errors.Join(x.Destroy(), g.Destroy(), kernels.Destroy(), s.Destroy(), m.Unload(),
		c.FreeHost(host), c.FreeHost(ours), c.FreeHost(back), c.Free(out), c.Close()))
}

func TestCaptureRelaxed(t *testing.T) {
	c, s, _, m := node(t)
	must.OK(t, s.CaptureRelaxed())
	out, err := c.Allocate(64)
	must.OK(t, err)
	must.OK(t, s.Set(out, 1, 64))
	g, err := s.EndCapture()
	must.OK(t, err)
	must.OK(t, errors.Join(g.Destroy(), c.Free(out), s.Destroy(), m.Unload(), c.Close()))
}

func TestRetargetOldDriver(t *testing.T) {
	c, s, f, m := node(t)
	out, err := c.Allocate(64)
	must.OK(t, err)
	g := captured(t, s, f, out)
	for _, symbol := range []string{"cuGraphClone", "cuStreamGetCtx", "cuGraphKernelNodeSetParams_v2"} {
		cudafake.Set(t, cudafake.Refuse(symbol, 0, NotSupported))
		x, err := g.Retarget(s)
		if symbol == "cuGraphKernelNodeSetParams_v2" {
			// The kernels already have the right context: there is nothing to set.
			must.OK(t, err)
			must.OK(t, x.Destroy())
		} else if !errors.Is(err, ErrNotSupported) || !strings.Contains(err.Error(), strings.TrimSuffix(symbol, "_v2")) {
			t.Errorf("%s refused: %v", symbol, err)
		}
		cudafake.Reset()
	}
	must.OK(t, errors.Join(g.Destroy(), c.Free(out), s.Destroy(), m.Unload(), c.Close()))
}

// node opens the device, with a stream and the kernel that fills memory.
func node(t *testing.T) (*Context, Stream, Function, *Module) {
	t.Helper()
	cudafake.Check(t)
	cudafake.Reset()
	runtime.LockOSThread()
	t.Cleanup(runtime.UnlockOSThread)
	d, err := Find("cuda")
	must.OK(t, err)
	c, err := d.OpenContext()
	must.OK(t, err)
	must.OK(t, c.Bind())
	s, err := c.NewStream()
	must.OK(t, err)
	ptx, err := os.ReadFile("../internal/testing/cudatest/kernels.ptx")
	must.OK(t, err)
	m, err := c.Load(ptx)
	must.OK(t, err)
	f, err := m.Function("penstock_fill")
	must.OK(t, err)
	return c, s, f, m
}
