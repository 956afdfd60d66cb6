package cuda

// Graph is work that was captured from a stream, to be launched as a whole. Only one
// goroutine at a time may use it.
type Graph struct{ handle uint64 }

// GraphOf wraps a CUgraph that other code made and owns.
func GraphOf(handle uintptr) *Graph { return &Graph{uint64(handle)} }

// Handle returns the CUgraph.
func (g *Graph) Handle() uintptr { return uintptr(g.handle) }

// Capture begins a capture: work that is queued on s is not done, but becomes part of a
// graph. The mode is CUDA's thread-local one. The same thread must call EndCapture.
// Until then it must not make calls that CUDA considers unsafe, such as Allocate, Free
// and Synchronize of s. The driver refuses them, and the capture is broken. Other
// threads may make such calls.
func (s Stream) Capture() error {
	return check("cuStreamBeginCapture_v2", captureBegin(s.handle, captureThreadLocal))
}

// EndCapture ends the capture and returns the graph, which the caller owns until
// Destroy. If the capture was broken it returns an error. The stream is usable again
// either way.
func (s Stream) EndCapture() (*Graph, error) {
	handle, code := captureEnd(s.handle)
	if err := check("cuStreamEndCapture", code); err != nil {
		if handle != 0 {
			graphDestroy(handle)
		}
		return nil, err
	}
	return &Graph{handle}, nil
}

// Instantiate makes an executable of the graph. The caller owns it until Destroy. It no
// longer depends on the graph, which may be destroyed.
func (g *Graph) Instantiate() (*Executable, error) {
	handle, code := graphInstantiate(g.handle)
	if err := check("cuGraphInstantiateWithFlags", code); err != nil {
		return nil, err
	}
	return &Executable{handle}, nil
}

// Destroy releases the graph.
func (g *Graph) Destroy() error { return check("cuGraphDestroy", graphDestroy(g.handle)) }

// Executable is a graph that can be launched. Launches of one executable run one after
// the other, even on several streams. Only one goroutine at a time may use it.
type Executable struct{ handle uint64 }

// Launch queues the whole graph on s. It allocates nothing.
func (e *Executable) Launch(s Stream) error {
	return check("cuGraphLaunch", graphLaunch(e.handle, s.handle))
}

// Upload queues on s the preparation that a first Launch would do, without running the
// graph.
func (e *Executable) Upload(s Stream) error {
	return check("cuGraphUpload", graphUpload(e.handle, s.handle))
}

// Destroy releases the executable. A launch in flight still completes.
func (e *Executable) Destroy() error { return check("cuGraphExecDestroy", graphExecDestroy(e.handle)) }

// nodeType is a CUgraphNodeType.
type nodeType int

// The nodes in a capture of copies and kernels.
const (
	nodeKernel nodeType = 0
	nodeCopy   nodeType = 1
	nodeSet    nodeType = 2
	nodeHost   nodeType = 3
	nodeGraph  nodeType = 4
	nodeEmpty  nodeType = 5
)

// kernelNode is CUDA_KERNEL_NODE_PARAMS. function, kernel and context are handles.
// parameters and extra are addresses that belong to the node they were read from. They
// are valid until that node is changed or destroyed.
type kernelNode struct {
	function                           uint64
	grid, block                        [3]uint32
	sharedBytes                        uint32
	parameters, extra, kernel, context uint64
}

// clone copies the graph and its nodes.
func (g *Graph) clone() (*Graph, error) {
	handle, code := graphClone(g.handle)
	if err := check("cuGraphClone", code); err != nil {
		return nil, err
	}
	return &Graph{handle}, nil
}

// nodes returns the graph's nodes, in no particular order.
func (g *Graph) nodes() ([]uint64, error) {
	count, code := graphNodes(g.handle, nil)
	if err := check("cuGraphGetNodes", code); err != nil || count == 0 {
		return nil, err
	}
	nodes := make([]uint64, count)
	count, code = graphNodes(g.handle, nodes)
	return nodes[:min(count, uint64(len(nodes)))], check("cuGraphGetNodes", code)
}

func typeOfNode(node uint64) (nodeType, error) {
	kind, code := graphNodeType(node)
	return nodeType(kind), check("cuGraphNodeGetType", code)
}

// kernelOfNode reads a kernel node's parameters.
func kernelOfNode(node uint64) (kernelNode, error) {
	k, code := kernelNodeGet(node)
	return k, check("cuGraphKernelNodeGetParams_v2", code)
}

// setKernelOfNode changes a kernel node of a graph that has not been instantiated.
func setKernelOfNode(node uint64, k kernelNode) error {
	return check("cuGraphKernelNodeSetParams_v2", kernelNodeSet(node, k))
}

// context returns the CUcontext of a stream. A stream of a green context has that
// context's own.
func (s Stream) context() (uint64, error) {
	context, code := streamContext(s.handle)
	return context, check("cuStreamGetCtx", code)
}
