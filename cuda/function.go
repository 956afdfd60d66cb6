package cuda

// function is a function of the driver. Its parameters are integers and pointers, one word each.
type function struct {
	symbol  string // with its version: "cuMemAlloc_v2"
	needed  bool
	address uint64 // 0: the library is not open, or lacks the function
}

// Arguments with a meaning (shim.h): the address of the next word of the results, and that of the caller's memory.
const (
	out    = 0x8000_0000_0000_0001
	buffer = 0x8000_0000_0000_0002
)

// functions are all functions of the driver that Penstock calls.
var functions []*function

func add(f *function) *function {
	functions = append(functions, f)
	return f
}

// need adds a function without which Open fails.
func need(symbol string) *function { return add(&function{symbol: symbol, needed: true}) }

// may adds a function that a driver may lack: only calls of it fail.
func may(symbol string) *function { return add(&function{symbol: symbol}) }

var (
	cuInit             = need("cuInit")
	cuDriverGetVersion = need("cuDriverGetVersion")
	cuGetErrorName     = may("cuGetErrorName")
	cuGetErrorString   = may("cuGetErrorString")

	cuDeviceGetCount     = need("cuDeviceGetCount")
	cuDeviceGet          = need("cuDeviceGet")
	cuDeviceGetName      = need("cuDeviceGetName")
	cuDeviceGetUuid      = need("cuDeviceGetUuid_v2")
	cuDeviceTotalMem     = need("cuDeviceTotalMem_v2")
	cuDeviceGetAttribute = need("cuDeviceGetAttribute")

	cuDevicePrimaryCtxRetain    = need("cuDevicePrimaryCtxRetain")
	cuDevicePrimaryCtxRelease   = need("cuDevicePrimaryCtxRelease_v2")
	cuCtxSetCurrent             = need("cuCtxSetCurrent")
	cuCtxGetCurrent             = need("cuCtxGetCurrent")
	cuCtxGetExecAffinity        = may("cuCtxGetExecAffinity")
	cuCtxGetStreamPriorityRange = may("cuCtxGetStreamPriorityRange")

	cuMemGetInfo              = need("cuMemGetInfo_v2")
	cuMemAlloc                = need("cuMemAlloc_v2")
	cuMemFree                 = need("cuMemFree_v2")
	cuMemHostAlloc            = need("cuMemHostAlloc")
	cuMemFreeHost             = need("cuMemFreeHost")
	cuMemHostRegister         = need("cuMemHostRegister_v2")
	cuMemHostGetDevicePointer = need("cuMemHostGetDevicePointer_v2")
	cuMemHostUnregister       = need("cuMemHostUnregister")

	cuPointerGetAttribute          = may("cuPointerGetAttribute")
	cuMemGetAllocationGranularity  = may("cuMemGetAllocationGranularity")
	cuMemAddressReserve            = may("cuMemAddressReserve")
	cuMemAddressFree               = may("cuMemAddressFree")
	cuMemCreate                    = may("cuMemCreate")
	cuMemRelease                   = may("cuMemRelease")
	cuMemMap                       = may("cuMemMap")
	cuMemUnmap                     = may("cuMemUnmap")
	cuMemSetAccess                 = may("cuMemSetAccess")
	cuMemExportToShareableHandle   = may("cuMemExportToShareableHandle")
	cuMemImportFromShareableHandle = may("cuMemImportFromShareableHandle")

	cuStreamCreate             = need("cuStreamCreate")
	cuStreamCreateWithPriority = may("cuStreamCreateWithPriority")
	cuStreamDestroy            = need("cuStreamDestroy_v2")
	cuStreamSynchronize        = need("cuStreamSynchronize")
	cuStreamQuery              = need("cuStreamQuery")
	cuStreamWaitEvent          = need("cuStreamWaitEvent")
	cuMemcpyAsync              = need("cuMemcpyAsync")
	cuMemsetD8Async            = need("cuMemsetD8Async")
	cuStreamWriteValue32       = may("cuStreamWriteValue32_v2")
	cuStreamGetCtx             = may("cuStreamGetCtx")
	cuEventCreate              = need("cuEventCreate")
	cuEventDestroy             = need("cuEventDestroy_v2")
	cuEventRecord              = need("cuEventRecord")
	cuEventQuery               = need("cuEventQuery")
	cuEventSynchronize         = need("cuEventSynchronize")
	cuEventElapsedTime         = need("cuEventElapsedTime")

	cuModuleLoadDataEx  = need("cuModuleLoadDataEx")
	cuModuleUnload      = need("cuModuleUnload")
	cuModuleGetFunction = need("cuModuleGetFunction")
	cuLaunchKernel      = need("cuLaunchKernel")

	cuStreamBeginCapture        = may("cuStreamBeginCapture_v2")
	cuStreamEndCapture          = may("cuStreamEndCapture")
	cuGraphInstantiateWithFlags = may("cuGraphInstantiateWithFlags")
	cuGraphDestroy              = may("cuGraphDestroy")
	cuGraphLaunch               = may("cuGraphLaunch")
	cuGraphUpload               = may("cuGraphUpload")
	cuGraphExecDestroy          = may("cuGraphExecDestroy")
	cuGraphClone                = may("cuGraphClone")
	cuGraphGetNodes             = may("cuGraphGetNodes")
	cuGraphNodeGetType          = may("cuGraphNodeGetType")
	cuGraphKernelNodeGetParams  = may("cuGraphKernelNodeGetParams_v2")
	cuGraphKernelNodeSetParams  = may("cuGraphKernelNodeSetParams_v2")
	cuGraphMemcpyNodeGetParams  = may("cuGraphMemcpyNodeGetParams")
	cuGraphMemcpyNodeSetParams  = may("cuGraphMemcpyNodeSetParams")
	cuGraphMemsetNodeGetParams  = may("cuGraphMemsetNodeGetParams")
	cuDeviceGetDevResource      = may("cuDeviceGetDevResource")
	cuDevSmResourceSplitByCount = may("cuDevSmResourceSplitByCount")
	cuDevResourceGenerateDesc   = may("cuDevResourceGenerateDesc")
	cuGreenCtxGetDevResource    = may("cuGreenCtxGetDevResource")
	cuGreenCtxCreate            = may("cuGreenCtxCreate")
	cuGreenCtxDestroy           = may("cuGreenCtxDestroy")
	cuGreenCtxStreamCreate      = may("cuGreenCtxStreamCreate")
	cuCtxFromGreenCtx           = may("cuCtxFromGreenCtx")
)

// absent is the code of a call of a function without an address, else 0.
func (f *function) absent() int32 {
	switch {
	case f.address != 0:
		return 0
	case libraryPath == "":
		return notLoaded
	}
	return missing
}

// text asks about a code. It returns "" if the driver does not know the code, or is not open.
func (f *function) text(c Code) string {
	at, _ := f.get(uint64(c), out)
	return textAt(Pointer(at))
}

// check turns a code of this function into an error.
func (f *function) check(code int32) error {
	if code == 0 {
		return nil
	}
	return refused(f.symbol, code)
}

// call returns the results and the driver's code. at is what the argument buffer points to.
func (f *function) call(at *byte, arguments ...uint64) (results [2]uint64, code int32) {
	if code := f.absent(); code != 0 {
		return results, code
	}
	return call(f.address, at, arguments)
}

// do calls a function without results.
func (f *function) do(arguments ...uint64) error { return f.check(f.code(arguments...)) }

// code is do for a caller that expects some codes.
func (f *function) code(arguments ...uint64) int32 {
	_, code := f.call(nil, arguments...)
	return code
}

// special calls a function whose parameters do not fit call. It returns the first result.
func (f *function) special(call func(address uint64) ([2]uint64, int32)) (uint64, error) {
	if code := f.absent(); code != 0 {
		return 0, f.check(code)
	}
	results, code := call(f.address)
	return results[0], f.check(code)
}

// pair calls a function with two results, which are the arguments out in their order.
func (f *function) pair(arguments ...uint64) ([2]uint64, error) {
	results, code := f.call(nil, arguments...)
	return results, f.check(code)
}

// get calls a function with one result, which is the argument out.
func (f *function) get(arguments ...uint64) (uint64, error) {
	results, code := f.call(nil, arguments...)
	return results[0], f.check(code)
}
