package cuda

import (
	"cmp"
	"fmt"
)

// A graph belongs to no stream. Each of its kernels has the context that it runs in: that of the
// stream from which it was captured. To move a graph to other multiprocessors, Retarget changes that
// context, kernel by kernel:
//
//	capture on a stream of the primary context      once
//	Retarget(stream of a green context)             0.4 to 1.1 ms for ResNet-50's 180 nodes on an H200
//	Upload, Launch on that stream                   0.2 ms, then as fast as captured there, bit for bit the same
//
// Why this works (CUDA 13.0, driver 580): cuda.h ignores a node's context if the node names a
// function. In a capture by CUDA's run-time library, a node names both a function and a kernel. A
// node that names only a kernel uses the context that it is given. The handle of a function also
// works as that of a kernel, even for a function of a module. cuGraphExecKernelNodeSetParams refuses
// to change a context, so Retarget changes it before it instantiates the graph.
//
// Copies and sets stay where they are: they use no multiprocessor, or one for a microsecond.

// The other node types that a framework's capture can contain.
const (
	nodeAllocate nodeType = 10
	nodeRelease  nodeType = 11
)

// CaptureRelaxed begins a capture like Capture, but in CUDA's relaxed mode: this thread, too, may
// allocate and free memory meanwhile. It is for libraries that allocate at their first use. Their
// memory operations outside the stream happen at once.
func (s Stream) CaptureRelaxed() error {
	return cuStreamBeginCapture.do(s.handle, captureRelaxed)
}

// Retarget instantiates a copy of the graph whose kernels run in the context of s. If s has a green
// context, they run on its multiprocessors. The graph does not change. The executable may be
// launched on s or on another stream; its kernels run in the same place.
//
// It returns ErrNotSupported if the driver is too old, or if the graph cannot be copied. A graph
// that allocates memory cannot be copied: capture it again, and Move it.
func (g *Graph) Retarget(s Stream) (*Executable, error) {
	copied, err := g.clone()
	if err != nil {
		return nil, fmt.Errorf("copy graph: %w", err)
	}
	defer copied.Destroy()
	if err := copied.Move(s); err != nil {
		return nil, err
	}
	return copied.Instantiate()
}

// Move makes the graph's kernels run in the context of s. It changes the graph, but not executables
// that were instantiated before. It does not support graphs within the graph: ErrNotSupported.
func (g *Graph) Move(s Stream) error {
	context, err := s.context()
	if err != nil {
		return fmt.Errorf("move graph: %w", err)
	}
	nodes, err := g.nodes()
	if err != nil {
		return fmt.Errorf("move graph: %w", err)
	}
	for _, n := range nodes {
		kind, err := typeOfNode(n)
		switch {
		case err != nil:
		case kind == nodeGraph:
			err = fmt.Errorf("nested graph: %w", ErrNotSupported)
		case kind == nodeKernel:
			err = moveKernel(n, context)
		}
		if err != nil {
			return fmt.Errorf("move graph: %w", err)
		}
	}
	return nil
}

func moveKernel(node, context uint64) error {
	k, err := kernelOfNode(node)
	if err != nil || k.context == context {
		return err
	}
	k.function, k.kernel, k.context = 0, cmp.Or(k.kernel, k.function), context
	return setKernelOfNode(node, k)
}

// Contents describes a graph for a caller that launches it repeatedly, and concurrently with other
// graphs.
type Contents struct {
	Kernels int
	// Allocations counts the nodes that allocate or free memory. A graph with such nodes cannot be
	// copied, and only one executable of it can exist at a time.
	Allocations int
	// Copies and Sets are all nodes that copy or fill memory without a kernel.
	Copies []Copy
	Sets   []Range
	// Others counts nodes that call the host, graphs within the graph, and events. A model should
	// have none.
	Others int
}

// Range is a range of device memory, or of pinned memory.
type Range struct {
	At    Pointer
	Bytes int
}

// Holds reports whether all of other is in r.
func (r Range) Holds(other Range) bool {
	return other.At >= r.At && other.At+Pointer(other.Bytes) <= r.At+Pointer(r.Bytes)
}

// End is the address after r.
func (r Range) End() Pointer { return r.At + Pointer(r.Bytes) }

// Overlaps reports whether a part of other is in r.
func (r Range) Overlaps(other Range) bool { return r.At < other.End() && other.At < r.End() }

// Copy is a node that copies one contiguous run of bytes.
type Copy struct {
	From, To Range
	// FromHost and ToHost: that side is host memory. It is read or written when the graph is
	// launched, not when it was captured.
	FromHost, ToHost bool
	node             uint64
}

// copyNode is a CUDA_MEMCPY3D, with words in place of pointers.
type copyNode struct {
	source, destination  copySide
	width, height, depth uint64
}

// copySide is one side of a copy. kind is a CUmemorytype, which says whether host or device is its address.
type copySide struct {
	x, y, z, _   uint64
	kind, _      uint32
	host, device uint64
	_, _         uint64 // an array
	_, _         uint64 // pitch and height
}

// The kinds of memory at addresses: CU_MEMORYTYPE_HOST and CU_MEMORYTYPE_DEVICE.
const (
	copyHost   = 1
	copyDevice = 2
)

// isPlain reports whether a copy is one run of bytes between addresses.
func (c *copyNode) isPlain() bool {
	for _, s := range []copySide{c.source, c.destination} {
		if s.kind != copyHost && s.kind != copyDevice || s.y != 0 || s.z != 0 {
			return false
		}
	}
	return c.height <= 1 && c.depth <= 1
}

// run returns the side's bytes of a plain copy.
func (s *copySide) run(bytes uint64) Range {
	at := s.device
	if s.kind == copyHost {
		at = s.host
	}
	return Range{Pointer(at + s.x), int(bytes)}
}

// setNode is a CUDA_MEMSET_NODE_PARAMS.
type setNode struct {
	address, pitch uint64
	_, elementSize uint32 // the value, and its bytes
	width, height  uint64
}

// run returns the bytes from the first that the node sets to the last.
func (n *setNode) run() Range {
	bytes := n.width * uint64(n.elementSize)
	if n.height > 1 {
		bytes += (n.height - 1) * n.pitch
	}
	return Range{Pointer(n.address), int(bytes)}
}

// Contents lists the contents of the graph.
func (g *Graph) Contents() (Contents, error) {
	var c Contents
	nodes, err := g.nodes()
	if err != nil {
		return c, fmt.Errorf("inspect graph: %w", err)
	}
	for _, n := range nodes {
		kind, err := typeOfNode(n)
		if err != nil {
			return c, fmt.Errorf("inspect graph: %w", err)
		}
		switch kind {
		case nodeKernel:
			c.Kernels++
		case nodeEmpty:
		case nodeAllocate, nodeRelease:
			c.Allocations++
		case nodeCopy:
			var k copyNode
			if _, err := with(cuGraphMemcpyNodeGetParams, &k, n, buffer); err != nil {
				return c, fmt.Errorf("inspect graph: %w", err)
			}
			if !k.isPlain() {
				c.Others++
				break
			}
			c.Copies = append(c.Copies, Copy{
				From: k.source.run(k.width), To: k.destination.run(k.width),
				FromHost: k.source.kind == copyHost, ToHost: k.destination.kind == copyHost, node: n,
			})
		case nodeSet:
			var k setNode
			if _, err := with(cuGraphMemsetNodeGetParams, &k, n, buffer); err != nil {
				return c, fmt.Errorf("inspect graph: %w", err)
			}
			c.Sets = append(c.Sets, k.run())
		default:
			c.Others++
		}
	}
	return c, nil
}

// ReadFrom changes the source of a copy from host memory. c is one of this graph's Contents. The new
// source is pinned host memory that the caller owns, of the same length. The old source may belong
// to other code by the time of a launch. The change affects executables that are instantiated
// afterwards.
func (g *Graph) ReadFrom(c Copy, source Pointer) error {
	if !c.FromHost {
		return fmt.Errorf("change a copy of device memory: %w", &Error{Op: "cuGraphMemcpyNodeSetParams", Code: InvalidValue})
	}
	var k copyNode
	_, err := with(cuGraphMemcpyNodeGetParams, &k, c.node, buffer)
	if err == nil {
		k.source.host, k.source.x = uint64(source), 0
		_, err = with(cuGraphMemcpyNodeSetParams, &k, c.node, buffer)
	}
	return err
}
