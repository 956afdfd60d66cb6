package cuda

import (
	"cmp"
	"fmt"
)

// A graph belongs to no stream: each of its kernels carries the context that it
// runs in, which is that of the stream it was captured from. So a graph is moved to
// other multiprocessors by changing that context, kernel by kernel:
//
//	capture on a stream of the primary context      once
//	Retarget(stream of a green context)             0.4 to 1.1 ms for ResNet-50's 180 nodes on an H200
//	Upload, Launch on that stream                   0.2 ms, then as fast as captured there, bit for bit the same
//
// What makes it work (CUDA 13.0, driver 580): cuda.h ignores a node's context where
// it names a function, and a function captured by CUDA's run-time library is named
// both as function and as kernel. A node that names only a kernel takes the context
// that it is given, and a function's handle serves as a kernel's, also that of a
// module. cuGraphExecKernelNodeSetParams refuses to change a context, so it is done
// before the graph is instantiated.
//
// Copies and sets stay where they are: they use no multiprocessor, or one for a
// microsecond.

// The other nodes that a framework's capture can hold.
const (
	nodeAllocate nodeType = 10
	nodeRelease  nodeType = 11
)

// CaptureRelaxed begins a capture as Capture does, in CUDA's relaxed mode: also this
// thread may allocate and free meanwhile. It is for libraries that allocate when they
// are first used; what they do with memory outside the stream happens at once.
func (s Stream) CaptureRelaxed() error {
	return check("cuStreamBeginCapture_v2", captureBegin(s.handle, captureRelaxed))
}

// Retarget instantiates a copy of the graph whose kernels run in the context of s,
// on the multiprocessors of its green context where it has one. The graph stays as
// it is. The executable is launched on s, or on another stream; where its kernels
// run is settled.
//
// ErrNotSupported is returned where the driver is too old for it, and where the
// graph cannot be copied, as one that allocates memory cannot: capture such a graph
// anew and Move it.
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

// Move has the graph's kernels run in the context of s. It changes the graph; what
// was instantiated from it before stays where it is. A graph that is launched from
// within the graph is not followed: ErrNotSupported.
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
			err = fmt.Errorf("a graph within the graph: %w", ErrNotSupported)
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

// Contents is what a graph is made of, as far as it matters to whoever launches it
// again and again, and beside others.
type Contents struct {
	Kernels int
	// Allocations are nodes that allocate memory or free it. Such a graph cannot be
	// copied, and only one executable of it can be there at a time.
	Allocations int
	// Copies and Sets are all that moves and fills memory without a kernel.
	Copies []Copy
	Sets   []Range
	// Others are nodes that call the host, graphs within the graph, events: nothing
	// that one expects of a model.
	Others int
}

// Range is memory of the device's, or pinned.
type Range struct {
	At    Pointer
	Bytes int
}

// Holds says whether all of other lies in r.
func (r Range) Holds(other Range) bool {
	return other.At >= r.At && other.At+Pointer(other.Bytes) <= r.At+Pointer(r.Bytes)
}

// Copy is a node that copies one run of bytes.
type Copy struct {
	From, To Range
	// FromHost and ToHost say that the side is host memory: read or written when the
	// graph is launched, not when it was captured.
	FromHost, ToHost bool
	node             uint64
}

// copyNode is a copy as the shim tells of it; plain is false where it is more than
// one run of bytes, or not between addresses.
type copyNode struct {
	source, destination, bytes uint64
	fromHost, toHost, plain    bool
}

// Contents looks through the graph.
func (g *Graph) Contents() (Contents, error) {
	var c Contents
	nodes, err := g.nodes()
	if err != nil {
		return c, fmt.Errorf("look into graph: %w", err)
	}
	for _, n := range nodes {
		kind, err := typeOfNode(n)
		if err != nil {
			return c, fmt.Errorf("look into graph: %w", err)
		}
		switch kind {
		case nodeKernel:
			c.Kernels++
		case nodeEmpty:
		case nodeAllocate, nodeRelease:
			c.Allocations++
		case nodeCopy:
			k, code := copyNodeGet(n)
			if err := check("cuGraphMemcpyNodeGetParams", code); err != nil {
				return c, fmt.Errorf("look into graph: %w", err)
			}
			if !k.plain {
				c.Others++
				break
			}
			c.Copies = append(c.Copies, Copy{
				From: Range{Pointer(k.source), int(k.bytes)}, To: Range{Pointer(k.destination), int(k.bytes)},
				FromHost: k.fromHost, ToHost: k.toHost, node: n,
			})
		case nodeSet:
			at, bytes, code := setNodeGet(n)
			if err := check("cuGraphMemsetNodeGetParams", code); err != nil {
				return c, fmt.Errorf("look into graph: %w", err)
			}
			c.Sets = append(c.Sets, Range{Pointer(at), int(bytes)})
		default:
			c.Others++
		}
	}
	return c, nil
}

// ReadFrom has a copy of host memory, which is one of Contents of this graph, read
// elsewhere in host memory, pinned and as long: memory that the caller owns, in place
// of memory that may be somebody else's by the time of a launch. It holds for what is
// instantiated from the graph afterwards.
func (g *Graph) ReadFrom(c Copy, source Pointer) error {
	if !c.FromHost {
		return fmt.Errorf("change a copy of device memory: %w", &Error{Op: "cuGraphMemcpyNodeSetParams", Code: InvalidValue})
	}
	return check("cuGraphMemcpyNodeSetParams", copyNodeSource(c.node, uint64(source)))
}

// Symbol is the address of a function of the driver's library, by its name with its
// version ("cuMemMap"), for C code that cannot come back to Go for a call. The
// library is open.
func Symbol(name string) (uintptr, error) {
	if err := Open(); err != nil {
		return 0, err
	}
	if at := symbol(name); at != 0 {
		return uintptr(at), nil
	}
	return 0, &SymbolError{Symbol: name, Library: libraryPath}
}
