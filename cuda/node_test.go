//go:build cgo

package cuda

import (
	"os"
	"runtime"
	"slices"
	"testing"

	"github.com/penstock/penstock/internal/testing/cudafake"
	"github.com/penstock/penstock/internal/testing/must"
)

// captured returns a graph of a set and a kernel, captured on a stream.
func captured(t *testing.T, s Stream, f Function, out Pointer) *Graph {
	t.Helper()
	args := NewArgs(8, 4, 4)
	args.SetPointer(0, out)
	args.SetUint32(1, 7)
	args.SetUint32(2, 4)
	must.OK(t, s.Capture())
	must.OK(t, s.Set(out, 0, 64))
	must.OK(t, f.Launch([3]uint32{1, 1, 1}, [3]uint32{4, 1, 1}, 0, s, args))
	g, err := s.EndCapture()
	must.OK(t, err)
	return g
}

func TestNodes(t *testing.T) {
	cudafake.Check(t)
	cudafake.Reset()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	d, err := Find("cuda")
	must.OK(t, err)
	c, err := d.OpenContext()
	must.OK(t, err)
	must.OK(t, c.Bind())
	ptx, err := os.ReadFile("../internal/testing/cudatest/kernels.ptx")
	must.OK(t, err)
	m, err := c.Load(ptx)
	must.OK(t, err)
	f, err := m.Function("penstock_fill")
	must.OK(t, err)
	out, err := c.Allocate(64)
	must.OK(t, err)
	split, err := d.Split()
	must.OK(t, err)
	green, err := c.Green(split, []int{0, 1})
	must.OK(t, err)
	whole, err := c.NewStream()
	must.OK(t, err)
	part, err := green.NewStream()
	must.OK(t, err)

	ofGreen, err := part.context()
	if err != nil || ofGreen != green.kept.context {
		t.Errorf("the context of a green stream is %#x, %v", ofGreen, err)
	}

	g := captured(t, whole, f, out)
	nodes, err := g.nodes()
	must.OK(t, err)
	var types []nodeType
	var kernel uint64
	for _, n := range nodes {
		kind, err := typeOfNode(n)
		must.OK(t, err)
		types = append(types, kind)
		if kind == nodeKernel {
			kernel = n
		}
	}
	if slices.Sort(types); !slices.Equal(types, []nodeType{nodeKernel, nodeSet}) {
		t.Fatalf("the nodes are %v", types)
	}
	k, err := kernelOfNode(kernel)
	must.OK(t, err)
	if k.function != f.handle || k.grid != [3]uint32{1, 1, 1} || k.block != [3]uint32{4, 1, 1} || k.parameters == 0 || k.context != c.handle {
		t.Errorf("%+v", k)
	}

	// A clone's node moves to another context. The original graph stays.
	clone, err := g.clone()
	must.OK(t, err)
	copies, err := clone.nodes()
	must.OK(t, err)
	for _, n := range copies {
		if slices.Contains(nodes, n) {
			t.Error("a clone shares a node")
		}
		if kind, err := typeOfNode(n); err != nil || kind != nodeKernel {
			continue
		}
		moved, err := kernelOfNode(n)
		must.OK(t, err)
		moved.function, moved.kernel, moved.context = 0, k.function, green.kept.context
		moved.block = [3]uint32{2, 1, 1}
		must.OK(t, setKernelOfNode(n, moved))
	}
	x, err := g.Instantiate()
	must.OK(t, err)
	y, err := clone.Instantiate()
	must.OK(t, err)
	must.OK(t, x.Launch(whole))
	must.OK(t, y.Launch(whole))
	must.OK(t, whole.Synchronize())
	var ran [][2]uint32
	for _, l := range cudafake.Launches() {
		ran = append(ran, [2]uint32{l.Block[0], l.SMs})
	}
	if !slices.Equal(ran, [][2]uint32{{4, 132}, {2, 16}}) {
		t.Errorf("threads and multiprocessors of the launches: %v", ran)
	}

	for _, err := range []error{x.Destroy(), y.Destroy(), g.Destroy(), clone.Destroy(), part.Destroy(), whole.Destroy(),
		green.Destroy(), c.Free(out), m.Unload(), c.Close()} {
		must.OK(t, err)
	}
}

func TestGraphEmpty(t *testing.T) {
	cudafake.Check(t)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	d, err := Find("cuda")
	must.OK(t, err)
	c, err := d.OpenContext()
	must.OK(t, err)
	must.OK(t, c.Bind())
	s, err := c.NewStream()
	must.OK(t, err)
	must.OK(t, s.Capture())
	g, err := s.EndCapture()
	must.OK(t, err)
	if nodes, err := g.nodes(); err != nil || len(nodes) != 0 {
		t.Errorf("%v, %v", nodes, err)
	}
	for _, err := range []error{g.Destroy(), s.Destroy(), c.Close()} {
		must.OK(t, err)
	}
}
