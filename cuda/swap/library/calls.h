// The functions of the driver that the library knows, by what it does with them.
//
// OWN(name, base, since): the library's own function replaces it (hooks.c). name is the
// exported symbol; base and since are what cuGetProcAddress calls it: the name without
// suffix, and the version of CUDA from which that name means this symbol.
//
// EXPORTED(name): a call passes the gate: it waits for the guest's turn and keeps the
// turn until it returns. A program that is linked with libcuda finds these symbols.
//
// GATED(base): the same, for a function that only programs that look it up by name find.
//
// FREE(base): passes at once, in and out of turn. These calls use no device memory, or
// wait for work that was queued in turn.
//
// A function in no list passes the gate as well, and is counted.

#define OWNED \
	OWN(cuGetProcAddress, "cuGetProcAddress", 11030) \
	OWN(cuGetProcAddress_v2, "cuGetProcAddress", 12000) \
	OWN(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", 7000) \
	OWN(cuDevicePrimaryCtxReset_v2, "cuDevicePrimaryCtxReset", 11000) \
	OWN(cuCtxCreate_v2, "cuCtxCreate", 3020) \
	OWN(cuCtxCreate_v3, "cuCtxCreate", 11040) \
	OWN(cuCtxCreate_v4, "cuCtxCreate", 12050) \
	OWN(cuCtxDestroy_v2, "cuCtxDestroy", 4000) \
	OWN(cuMemGetInfo_v2, "cuMemGetInfo", 3020) \
	OWN(cuMemAlloc_v2, "cuMemAlloc", 3020) \
	OWN(cuMemAllocPitch_v2, "cuMemAllocPitch", 3020) \
	OWN(cuMemFree_v2, "cuMemFree", 3020) \
	OWN(cuMemGetAddressRange_v2, "cuMemGetAddressRange", 3020) \
	OWN(cuMemAllocManaged, "cuMemAllocManaged", 6000) \
	OWN(cuMemAllocAsync, "cuMemAllocAsync", 11020) \
	OWN(cuMemAllocAsync_ptsz, "cuMemAllocAsync", 11020) \
	OWN(cuMemAllocFromPoolAsync, "cuMemAllocFromPoolAsync", 11020) \
	OWN(cuMemAllocFromPoolAsync_ptsz, "cuMemAllocFromPoolAsync", 11020) \
	OWN(cuMemFreeAsync, "cuMemFreeAsync", 11020) \
	OWN(cuMemFreeAsync_ptsz, "cuMemFreeAsync", 11020) \
	OWN(cuMemPoolTrimTo, "cuMemPoolTrimTo", 11020) \
	OWN(cuMemPoolExportToShareableHandle, "cuMemPoolExportToShareableHandle", 11020) \
	OWN(cuMemPoolImportFromShareableHandle, "cuMemPoolImportFromShareableHandle", 11020) \
	OWN(cuMemPoolExportPointer, "cuMemPoolExportPointer", 11020) \
	OWN(cuMemCreate, "cuMemCreate", 10020) \
	OWN(cuMemRelease, "cuMemRelease", 10020) \
	OWN(cuMemMap, "cuMemMap", 10020) \
	OWN(cuMemUnmap, "cuMemUnmap", 10020) \
	OWN(cuMemSetAccess, "cuMemSetAccess", 10020) \
	OWN(cuMemRetainAllocationHandle, "cuMemRetainAllocationHandle", 11000) \
	OWN(cuMemGetAllocationPropertiesFromHandle, "cuMemGetAllocationPropertiesFromHandle", 10020) \
	OWN(cuMemExportToShareableHandle, "cuMemExportToShareableHandle", 10020) \
	OWN(cuMemImportFromShareableHandle, "cuMemImportFromShareableHandle", 10020) \
	OWN(cuMemMapArrayAsync, "cuMemMapArrayAsync", 11010) \
	OWN(cuMemMapArrayAsync_ptsz, "cuMemMapArrayAsync", 11010) \
	OWN(cuMemGetHandleForAddressRange, "cuMemGetHandleForAddressRange", 11070) \
	OWN(cuMulticastCreate, "cuMulticastCreate", 12010) \
	OWN(cuIpcGetMemHandle, "cuIpcGetMemHandle", 4010) \
	OWN(cuIpcOpenMemHandle_v2, "cuIpcOpenMemHandle", 11000) \
	OWN(cuGraphAddMemAllocNode, "cuGraphAddMemAllocNode", 11040) \
	OWN(cuGraphAddMemFreeNode, "cuGraphAddMemFreeNode", 11040) \
	OWN(cuGraphAddNode, "cuGraphAddNode", 12020) \
	OWN(cuGraphAddNode_v2, "cuGraphAddNode", 12030) \
	OWN(cuStreamBeginCapture_v2, "cuStreamBeginCapture", 10010) \
	OWN(cuStreamBeginCapture_v2_ptsz, "cuStreamBeginCapture", 10010) \
	OWN(cuStreamBeginCaptureToGraph, "cuStreamBeginCaptureToGraph", 12030) \
	OWN(cuStreamBeginCaptureToGraph_ptsz, "cuStreamBeginCaptureToGraph", 12030) \
	OWN(cuStreamEndCapture, "cuStreamEndCapture", 10000) \
	OWN(cuStreamEndCapture_ptsz, "cuStreamEndCapture", 10000)

#define PLAIN(name) EXPORTED(name)
#define PTSZ(name) EXPORTED(name) EXPORTED(name##_ptsz)
#define PTDS(name) EXPORTED(name) EXPORTED(name##_ptds)

#define EXPORTS \
	PTSZ(cuLaunchKernel) PTSZ(cuLaunchKernelEx) PTSZ(cuLaunchCooperativeKernel) PTSZ(cuLaunchHostFunc) \
	PLAIN(cuLaunch) PLAIN(cuLaunchGrid) PLAIN(cuLaunchGridAsync) PLAIN(cuLaunchCooperativeKernelMultiDevice) \
	PTSZ(cuGraphLaunch) PTSZ(cuGraphUpload) \
	PTDS(cuMemcpy) PTSZ(cuMemcpyAsync) PTDS(cuMemcpyPeer) PTSZ(cuMemcpyPeerAsync) \
	PTDS(cuMemcpyHtoD_v2) PTDS(cuMemcpyDtoH_v2) PTDS(cuMemcpyDtoD_v2) \
	PTSZ(cuMemcpyHtoDAsync_v2) PTSZ(cuMemcpyDtoHAsync_v2) PTSZ(cuMemcpyDtoDAsync_v2) \
	PTDS(cuMemcpyDtoA_v2) PTDS(cuMemcpyAtoD_v2) PTDS(cuMemcpyHtoA_v2) PTDS(cuMemcpyAtoH_v2) PTDS(cuMemcpyAtoA_v2) \
	PTSZ(cuMemcpyHtoAAsync_v2) PTSZ(cuMemcpyAtoHAsync_v2) \
	PTDS(cuMemcpy2D_v2) PTDS(cuMemcpy2DUnaligned_v2) PTSZ(cuMemcpy2DAsync_v2) \
	PTDS(cuMemcpy3D_v2) PTSZ(cuMemcpy3DAsync_v2) PTDS(cuMemcpy3DPeer) PTSZ(cuMemcpy3DPeerAsync) \
	PTDS(cuMemsetD8_v2) PTDS(cuMemsetD16_v2) PTDS(cuMemsetD32_v2) \
	PTDS(cuMemsetD2D8_v2) PTDS(cuMemsetD2D16_v2) PTDS(cuMemsetD2D32_v2) \
	PTSZ(cuMemsetD8Async) PTSZ(cuMemsetD16Async) PTSZ(cuMemsetD32Async) \
	PTSZ(cuMemsetD2D8Async) PTSZ(cuMemsetD2D16Async) PTSZ(cuMemsetD2D32Async) \
	PTSZ(cuStreamWaitValue32_v2) PTSZ(cuStreamWaitValue64_v2) PTSZ(cuStreamWriteValue32_v2) \
	PTSZ(cuStreamWriteValue64_v2) PTSZ(cuStreamBatchMemOp_v2) PTSZ(cuStreamAddCallback) PTSZ(cuStreamAttachMemAsync) \
	PTSZ(cuEventRecord) PTSZ(cuEventRecordWithFlags) PTSZ(cuStreamWaitEvent) \
	PLAIN(cuModuleLoad) PLAIN(cuModuleLoadData) PLAIN(cuModuleLoadDataEx) PLAIN(cuModuleLoadFatBinary) PLAIN(cuModuleUnload) \
	PLAIN(cuModuleGetGlobal_v2) PLAIN(cuLibraryLoadData) PLAIN(cuLibraryLoadFromFile) PLAIN(cuLibraryUnload) \
	PLAIN(cuLibraryGetGlobal) PLAIN(cuLibraryGetModule) PLAIN(cuKernelGetFunction) \
	PLAIN(cuPointerGetAttribute) PLAIN(cuPointerGetAttributes) PLAIN(cuPointerSetAttribute) PLAIN(cuMemGetAccess) \
	PLAIN(cuArrayCreate_v2) PLAIN(cuArray3DCreate_v2) PLAIN(cuArrayDestroy) PLAIN(cuMipmappedArrayCreate) PLAIN(cuMipmappedArrayDestroy) \
	PLAIN(cuTexObjectCreate) PLAIN(cuTexObjectDestroy) PLAIN(cuSurfObjectCreate) PLAIN(cuSurfObjectDestroy)

#define KNOWN \
	GATED(cuGraphInstantiate) GATED(cuGraphInstantiateWithFlags) GATED(cuGraphInstantiateWithParams) \
	GATED(cuGraphExecUpdate) GATED(cuGraphExecDestroy) GATED(cuGraphDestroy) GATED(cuMemcpyBatchAsync) \
	GATED(cuMemcpy3DBatchAsync) GATED(cuStreamDestroy) GATED(cuModuleGetFunction) GATED(cuDevicePrimaryCtxRelease) \
	GATED(cuIpcCloseMemHandle) GATED(cuGreenCtxCreate) GATED(cuGreenCtxDestroy) GATED(cuCtxFromGreenCtx) \
	GATED(cuGreenCtxStreamCreate) GATED(cuExternalMemoryGetMappedBuffer) GATED(cuImportExternalMemory) \
	GATED(cuDestroyExternalMemory) \
	FREE(cuInit) FREE(cuDriverGetVersion) FREE(cuGetErrorName) FREE(cuGetErrorString) FREE(cuGetExportTable) \
	FREE(cuDeviceGet) FREE(cuDeviceGetCount) FREE(cuDeviceGetName) FREE(cuDeviceGetUuid) FREE(cuDeviceGetLuid) \
	FREE(cuDeviceTotalMem) FREE(cuDeviceGetAttribute) FREE(cuDeviceGetProperties) FREE(cuDeviceComputeCapability) \
	FREE(cuDeviceGetPCIBusId) FREE(cuDeviceGetByPCIBusId) FREE(cuDeviceCanAccessPeer) FREE(cuDeviceGetP2PAttribute) \
	FREE(cuDeviceGetTexture1DLinearMaxWidth) FREE(cuDeviceGetNvSciSyncAttributes) FREE(cuDeviceGetExecAffinitySupport) \
	FREE(cuDeviceGetDefaultMemPool) FREE(cuDeviceGetMemPool) FREE(cuDeviceSetMemPool) FREE(cuDeviceGetDevResource) \
	FREE(cuDeviceGetGraphMemAttribute) FREE(cuDeviceSetGraphMemAttribute) FREE(cuDeviceGraphMemTrim) \
	FREE(cuDeviceGetHostAtomicCapabilities) FREE(cuDeviceGetP2PAtomicCapabilities) \
	FREE(cuDevicePrimaryCtxGetState) FREE(cuDevicePrimaryCtxSetFlags) \
	FREE(cuCtxGetCurrent) FREE(cuCtxSetCurrent) FREE(cuCtxPushCurrent) FREE(cuCtxPopCurrent) FREE(cuCtxGetDevice) \
	FREE(cuCtxGetFlags) FREE(cuCtxSetFlags) FREE(cuCtxGetId) FREE(cuCtxGetApiVersion) FREE(cuCtxGetLimit) FREE(cuCtxSetLimit) \
	FREE(cuCtxGetCacheConfig) FREE(cuCtxSetCacheConfig) FREE(cuCtxGetSharedMemConfig) FREE(cuCtxSetSharedMemConfig) \
	FREE(cuCtxGetStreamPriorityRange) FREE(cuCtxResetPersistingL2Cache) FREE(cuCtxGetExecAffinity) FREE(cuCtxSynchronize) \
	FREE(cuCtxGetDevResource) FREE(cuCtxEnablePeerAccess) FREE(cuCtxDisablePeerAccess) FREE(cuCtxAttach) FREE(cuCtxDetach) \
	FREE(cuCtxGetDevice_v2) FREE(cuCtxSynchronize_v2) \
	FREE(cuStreamCreate) FREE(cuStreamCreateWithPriority) FREE(cuStreamSynchronize) FREE(cuStreamQuery) FREE(cuStreamGetCtx) \
	FREE(cuStreamGetFlags) FREE(cuStreamGetId) FREE(cuStreamGetPriority) FREE(cuStreamGetDevice) FREE(cuStreamGetAttribute) \
	FREE(cuStreamSetAttribute) FREE(cuStreamCopyAttributes) FREE(cuStreamIsCapturing) FREE(cuStreamGetCaptureInfo) \
	FREE(cuStreamUpdateCaptureDependencies) FREE(cuStreamGetGreenCtx) FREE(cuStreamGetDevResource) \
	FREE(cuThreadExchangeStreamCaptureMode) \
	FREE(cuEventCreate) FREE(cuEventDestroy) FREE(cuEventQuery) FREE(cuEventSynchronize) FREE(cuEventElapsedTime) \
	FREE(cuFuncGetAttribute) FREE(cuFuncSetAttribute) FREE(cuFuncSetCacheConfig) FREE(cuFuncSetSharedMemConfig) \
	FREE(cuFuncGetModule) FREE(cuFuncGetName) FREE(cuFuncGetParamInfo) FREE(cuFuncIsLoaded) FREE(cuFuncLoad) \
	FREE(cuFuncSetBlockShape) FREE(cuFuncSetSharedSize) FREE(cuParamSetSize) FREE(cuParamSeti) FREE(cuParamSetf) FREE(cuParamSetv) \
	FREE(cuKernelGetAttribute) FREE(cuKernelSetAttribute) FREE(cuKernelSetCacheConfig) FREE(cuKernelGetName) \
	FREE(cuKernelGetParamInfo) FREE(cuKernelGetLibrary) FREE(cuLibraryGetKernel) FREE(cuLibraryGetKernelCount) \
	FREE(cuLibraryEnumerateKernels) FREE(cuModuleGetLoadingMode) FREE(cuModuleGetFunctionCount) FREE(cuModuleEnumerateFunctions) \
	FREE(cuLinkCreate) FREE(cuLinkAddData) FREE(cuLinkAddFile) FREE(cuLinkComplete) FREE(cuLinkDestroy) \
	FREE(cuOccupancyMaxActiveBlocksPerMultiprocessor) FREE(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags) \
	FREE(cuOccupancyMaxPotentialBlockSize) FREE(cuOccupancyMaxPotentialBlockSizeWithFlags) \
	FREE(cuOccupancyAvailableDynamicSMemPerBlock) FREE(cuOccupancyMaxPotentialClusterSize) FREE(cuOccupancyMaxActiveClusters) \
	FREE(cuMemAllocHost) FREE(cuMemFreeHost) FREE(cuMemHostAlloc) FREE(cuMemHostGetDevicePointer) FREE(cuMemHostGetFlags) \
	FREE(cuMemHostRegister) FREE(cuMemHostUnregister) FREE(cuMemAddressReserve) FREE(cuMemAddressFree) \
	FREE(cuMemGetAllocationGranularity) FREE(cuMulticastGetGranularity) FREE(cuMemPoolCreate) FREE(cuMemPoolDestroy) \
	FREE(cuMemPoolGetAttribute) FREE(cuMemPoolSetAttribute) FREE(cuMemPoolGetAccess) FREE(cuMemPoolSetAccess) \
	FREE(cuMemGetDefaultMemPool) FREE(cuMemGetMemPool) FREE(cuMemSetMemPool) \
	FREE(cuGraphCreate) FREE(cuGraphClone) FREE(cuGraphGetNodes) FREE(cuGraphGetRootNodes) FREE(cuGraphGetEdges) \
	FREE(cuGraphNodeGetDependencies) FREE(cuGraphNodeGetDependentNodes) FREE(cuGraphAddDependencies) FREE(cuGraphRemoveDependencies) \
	FREE(cuGraphDestroyNode) FREE(cuGraphNodeGetType) FREE(cuGraphNodeFindInClone) FREE(cuGraphNodeGetEnabled) FREE(cuGraphNodeSetEnabled) \
	FREE(cuGraphAddKernelNode) FREE(cuGraphKernelNodeGetParams) FREE(cuGraphKernelNodeSetParams) FREE(cuGraphExecKernelNodeSetParams) \
	FREE(cuGraphKernelNodeGetAttribute) FREE(cuGraphKernelNodeSetAttribute) FREE(cuGraphKernelNodeCopyAttributes) \
	FREE(cuGraphAddMemcpyNode) FREE(cuGraphMemcpyNodeGetParams) FREE(cuGraphMemcpyNodeSetParams) FREE(cuGraphExecMemcpyNodeSetParams) \
	FREE(cuGraphAddMemsetNode) FREE(cuGraphMemsetNodeGetParams) FREE(cuGraphMemsetNodeSetParams) FREE(cuGraphExecMemsetNodeSetParams) \
	FREE(cuGraphAddHostNode) FREE(cuGraphHostNodeGetParams) FREE(cuGraphHostNodeSetParams) FREE(cuGraphExecHostNodeSetParams) \
	FREE(cuGraphAddChildGraphNode) FREE(cuGraphChildGraphNodeGetGraph) FREE(cuGraphExecChildGraphNodeSetParams) FREE(cuGraphAddEmptyNode) \
	FREE(cuGraphAddEventRecordNode) FREE(cuGraphAddEventWaitNode) FREE(cuGraphNodeSetParams) FREE(cuGraphExecNodeSetParams) \
	FREE(cuGraphExecGetFlags) FREE(cuGraphDebugDotPrint) FREE(cuGraphConditionalHandleCreate) \
	FREE(cuUserObjectCreate) FREE(cuUserObjectRetain) FREE(cuUserObjectRelease) FREE(cuGraphRetainUserObject) FREE(cuGraphReleaseUserObject) \
	FREE(cuTensorMapEncodeTiled) FREE(cuTensorMapEncodeIm2col) FREE(cuTensorMapEncodeIm2colWide) FREE(cuTensorMapReplaceAddress) \
	FREE(cuIpcGetEventHandle) FREE(cuIpcOpenEventHandle) FREE(cuFlushGPUDirectRDMAWrites) FREE(cuProfilerInitialize) \
	FREE(cuProfilerStart) FREE(cuProfilerStop) FREE(cuCoredumpGetAttribute) FREE(cuCoredumpSetAttribute) \
	FREE(cuCoredumpGetAttributeGlobal) FREE(cuCoredumpSetAttributeGlobal) FREE(cuDevSmResourceSplitByCount) \
	FREE(cuDevResourceGenerateDesc) FREE(cuGreenCtxGetDevResource)
