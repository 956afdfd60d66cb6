package cuda

// Graph is work that was captured from a stream, to be launched as a whole. Only one
// goroutine at a time may use it.
type Graph struct{ handle uint64 }

// GraphOf wraps a CUgraph that other code made and owns.
func GraphOf(handle uintptr) *Graph { return &Graph{uint64(handle)} }

// Handle returns the CUgraph.
func (g *Graph) Handle() uintptr { return uintptr(g.handle) }

// Modes of a capture (cuda.h, CUstreamCaptureMode).
const (
	captureThreadLocal = 1
	captureRelaxed     = 2
)

// Capture begins a capture: work that is queued on s is not done, but becomes part of a
// graph. The mode is CUDA's thread-local one. The same thread must call EndCapture.
// Until then it must not make calls that CUDA considers unsafe, such as Allocate, Free
// and Synchronize of s. The driver refuses them, and the capture is broken. Other
// threads may make such calls.
func (s Stream) Capture() error {
	return cuStreamBeginCapture.do(s.handle, captureThreadLocal)
}

// EndCapture ends the capture and returns the graph, which the caller owns until
// Destroy. If the capture was broken it returns an error. The stream is usable again
// either way.
func (s Stream) EndCapture() (*Graph, error) {
	handle, err := cuStreamEndCapture.get(s.handle, out)
	if err != nil {
		if handle != 0 {
			cuGraphDestroy.do(handle)
		}
		return nil, err
	}
	return &Graph{handle}, nil
}

// Instantiate makes an executable of the graph. The caller owns it until Destroy. It no
// longer depends on the graph, which may be destroyed.
func (g *Graph) Instantiate() (*Executable, error) {
	handle, err := cuGraphInstantiateWithFlags.get(out, g.handle, 0)
	if err != nil {
		return nil, err
	}
	return &Executable{handle}, nil
}

// Destroy releases the graph.
func (g *Graph) Destroy() error { return cuGraphDestroy.do(g.handle) }

// Executable is a graph that can be launched. Launches of one executable run one after
// the other, even on several streams. Only one goroutine at a time may use it.
type Executable struct{ handle uint64 }

// Launch queues the whole graph on s. It allocates nothing.
func (e *Executable) Launch(s Stream) error {
	return cuGraphLaunch.do(e.handle, s.handle)
}

// Upload queues on s the preparation that a first Launch would do, without running the
// graph.
func (e *Executable) Upload(s Stream) error {
	return cuGraphUpload.do(e.handle, s.handle)
}

// Destroy releases the executable. A launch in flight still completes.
func (e *Executable) Destroy() error { return cuGraphExecDestroy.do(e.handle) }

// nodeType is a CUgraphNodeType.
type nodeType int

// The nodes in a capture of copies and kernels.
const (
	nodeKernel nodeType = 0
	nodeCopy   nodeType = 1
	nodeSet    nodeType = 2
	nodeGraph  nodeType = 4
	nodeEmpty  nodeType = 5
)

// kernelNode is CUDA_KERNEL_NODE_PARAMS_v2, with words in place of pointers. function, kernel and context are handles.
// parameters and extra are addresses that belong to the node they were read from. They
// are valid until that node is changed or destroyed.
type kernelNode struct {
	function                       uint64
	grid, block                    [3]uint32
	_                              uint32 // bytes of dynamic shared memory
	parameters, _, kernel, context uint64 // and other arguments
}

// clone copies the graph and its nodes.
func (g *Graph) clone() (*Graph, error) {
	handle, err := cuGraphClone.get(out, g.handle)
	if err != nil {
		return nil, err
	}
	return &Graph{handle}, nil
}

// nodes returns the graph's nodes, in no particular order.
func (g *Graph) nodes() ([]uint64, error) {
	var nodes []uint64
	list := func(address uint64) ([2]uint64, int32) { return graphNodes(address, g.handle, nodes) }
	count, err := cuGraphGetNodes.special(list)
	if err != nil || count == 0 {
		return nil, err
	}
	nodes = make([]uint64, count)
	count, err = cuGraphGetNodes.special(list)
	return nodes[:min(count, uint64(len(nodes)))], err
}

func typeOfNode(node uint64) (nodeType, error) {
	kind, err := cuGraphNodeGetType.get(node, out)
	return nodeType(kind), err
}

// kernelOfNode reads a kernel node's parameters.
func kernelOfNode(node uint64) (kernelNode, error) {
	var k kernelNode
	_, err := with(cuGraphKernelNodeGetParams, &k, node, buffer)
	return k, err
}

// setKernelOfNode changes a kernel node of a graph that has not been instantiated.
func setKernelOfNode(node uint64, k kernelNode) error {
	_, err := with(cuGraphKernelNodeSetParams, &k, node, buffer)
	return err
}

// context returns the CUcontext of a stream. A stream of a green context has that
// context's own.
func (s Stream) context() (uint64, error) { return cuStreamGetCtx.get(s.handle, out) }
