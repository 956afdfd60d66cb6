package cuda

// Graph is work that was captured from a stream, to be launched as a whole. One
// goroutine at a time: graphs are not for use by several threads at once.
type Graph struct{ handle uint64 }

// GraphOf is a graph that somebody else made, and owns, by its CUgraph.
func GraphOf(handle uintptr) *Graph { return &Graph{uint64(handle)} }

// Handle is the CUgraph.
func (g *Graph) Handle() uintptr { return uintptr(g.handle) }

// Capture begins a capture: what is queued on s from here on is not done but
// becomes a graph. The mode is CUDA's thread-local one: until EndCapture, which
// the same thread calls, this thread must not call what CUDA calls unsafe
// (Allocate, Free, Synchronize of s and the like; the driver refuses and the
// capture is broken), while other threads may.
func (s Stream) Capture() error {
	return check("cuStreamBeginCapture_v2", captureBegin(s.handle, captureThreadLocal))
}

// EndCapture ends the capture and returns what it made, the caller's until
// Destroy. Where the capture was broken it returns an error; the stream serves
// again either way.
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

// Instantiate makes the graph ready to be launched: the caller's until Destroy,
// and of its own from here on (the graph may be destroyed).
func (g *Graph) Instantiate() (*Executable, error) {
	handle, code := graphInstantiate(g.handle)
	if err := check("cuGraphInstantiateWithFlags", code); err != nil {
		return nil, err
	}
	return &Executable{handle}, nil
}

// Destroy gives the graph back.
func (g *Graph) Destroy() error { return check("cuGraphDestroy", graphDestroy(g.handle)) }

// Executable is a graph that can be launched. Launches of one executable are done
// one after the other, on whatever streams. One goroutine at a time.
type Executable struct{ handle uint64 }

// Launch queues the whole graph on s. It allocates nothing.
func (e *Executable) Launch(s Stream) error {
	return check("cuGraphLaunch", graphLaunch(e.handle, s.handle))
}

// Upload queues on s what a first Launch would do beforehand, without running it.
func (e *Executable) Upload(s Stream) error {
	return check("cuGraphUpload", graphUpload(e.handle, s.handle))
}

// Destroy gives the executable back; a launch in flight still ends.
func (e *Executable) Destroy() error { return check("cuGraphExecDestroy", graphExecDestroy(e.handle)) }

// nodeType is a CUgraphNodeType.
type nodeType int

// What a capture of copies and kernels is made of.
const (
	nodeKernel nodeType = 0
	nodeCopy   nodeType = 1
	nodeSet    nodeType = 2
	nodeHost   nodeType = 3
	nodeGraph  nodeType = 4
	nodeEmpty  nodeType = 5
)

// kernelNode is CUDA_KERNEL_NODE_PARAMS: function or kernel, and context, are
// handles; parameters and extra are addresses that belong to the node they were
// read from, and are good until it is changed or destroyed.
type kernelNode struct {
	function                           uint64
	grid, block                        [3]uint32
	sharedBytes                        uint32
	parameters, extra, kernel, context uint64
}

// clone copies the graph; the nodes of the copy are its own.
func (g *Graph) clone() (*Graph, error) {
	handle, code := graphClone(g.handle)
	if err := check("cuGraphClone", code); err != nil {
		return nil, err
	}
	return &Graph{handle}, nil
}

// nodes returns the graph's nodes, in no order.
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

// setKernelOfNode changes a kernel node of a graph that was not instantiated yet.
func setKernelOfNode(node uint64, k kernelNode) error {
	return check("cuGraphKernelNodeSetParams_v2", kernelNodeSet(node, k))
}

// setKernel changes, in the executable, what the node of the graph that it was
// instantiated from became.
func (e *Executable) setKernel(node uint64, k kernelNode) error {
	return check("cuGraphExecKernelNodeSetParams_v2", execKernelNodeSet(e.handle, node, k))
}

// functionOfKernel is the CUfunction of a CUkernel in the thread's context.
func functionOfKernel(kernel uint64) (uint64, error) {
	function, code := kernelFunction(kernel)
	return function, check("cuKernelGetFunction", code)
}

// name is the kernel's name in its module.
func (f Function) name() (string, error) {
	name, code := functionName(f.handle)
	return name, check("cuFuncGetName", code)
}

// module is the CUmodule that the kernel is in.
func (f Function) module() (uint64, error) {
	module, code := functionModule(f.handle)
	return module, check("cuFuncGetModule", code)
}

// context is the CUcontext of a stream, which is its green context's own where it
// has one.
func (s Stream) context() (uint64, error) {
	context, code := streamContext(s.handle)
	return context, check("cuStreamGetCtx", code)
}

// green is the CUgreenCtx of a stream, 0 where it has none.
func (s Stream) green() (uint64, error) {
	green, code := streamGreen(s.handle)
	return green, check("cuStreamGetGreenCtx", code)
}
