//go:build cgo

// The driver types that Penstock uses, the prototypes, and the table of functions.
// The static assertions pin the layouts of cuda.h 13.0 on 64-bit machines.

#define _GNU_SOURCE
#include "shim.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef unsigned long long CUmemGenericAllocationHandle;
typedef struct CUctx_st *CUcontext;
typedef struct CUgreenCtx_st *CUgreenCtx;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef struct CUkern_st *CUkernel;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct CUgraph_st *CUgraph;
typedef struct CUgraphNode_st *CUgraphNode;
typedef struct CUgraphExec_st *CUgraphExec;
typedef struct CUdevResourceDesc_st *CUdevResourceDesc;

typedef struct { char bytes[16]; } CUuuid;
typedef struct { char reserved[64]; } CUipcMemHandle;

typedef struct {
	int type;
	union { struct { unsigned int val; } smCount; } param;
} CUexecAffinityParam;

typedef struct { int type; int id; } CUmemLocation;

typedef struct {
	int type;
	int requestedHandleTypes;
	CUmemLocation location;
	void *win32HandleMetaData;
	struct {
		unsigned char compressionType;
		unsigned char gpuDirectRDMACapable;
		unsigned short usage;
		unsigned char reserved[4];
	} allocFlags;
} CUmemAllocationProp;

typedef struct { CUmemLocation location; int flags; } CUmemAccessDesc;

typedef struct {
	CUfunction func;
	unsigned int gridDimX, gridDimY, gridDimZ;
	unsigned int blockDimX, blockDimY, blockDimZ;
	unsigned int sharedMemBytes;
	void **kernelParams;
	void **extra;
	CUkernel kern;
	CUcontext ctx;
} CUDA_KERNEL_NODE_PARAMS;

typedef struct {
	size_t srcXInBytes, srcY, srcZ, srcLOD;
	int srcMemoryType;
	const void *srcHost;
	CUdeviceptr srcDevice;
	void *srcArray, *reserved0;
	size_t srcPitch, srcHeight;
	size_t dstXInBytes, dstY, dstZ, dstLOD;
	int dstMemoryType;
	void *dstHost;
	CUdeviceptr dstDevice;
	void *dstArray, *reserved1;
	size_t dstPitch, dstHeight;
	size_t WidthInBytes, Height, Depth;
} CUDA_MEMCPY3D;

typedef struct {
	CUdeviceptr dst;
	size_t pitch;
	unsigned int value, elementSize;
	size_t width, height;
} CUDA_MEMSET_NODE_PARAMS;

typedef struct {
	int type;
	unsigned char padding[92];
	union {
		struct { unsigned int smCount, minSmPartitionSize, smCoscheduledAlignment; } sm;
		unsigned char oversize[48];
	};
} CUdevResource;

#define PIN(type, field, at) \
	_Static_assert(offsetof(type, field) == (at), #type "." #field " is where cuda.h has it")
_Static_assert(sizeof(void *) == 8, "CUDA is 64-bit");
_Static_assert(sizeof(CUuuid) == 16, "CUuuid");
_Static_assert(sizeof(CUipcMemHandle) == 64, "CUipcMemHandle");
_Static_assert(sizeof(CUexecAffinityParam) == 8, "CUexecAffinityParam");
_Static_assert(sizeof(CUmemLocation) == 8, "CUmemLocation");
_Static_assert(sizeof(CUmemAllocationProp) == 32, "CUmemAllocationProp");
PIN(CUmemAllocationProp, requestedHandleTypes, 4);
PIN(CUmemAllocationProp, location, 8);
PIN(CUmemAllocationProp, win32HandleMetaData, 16);
PIN(CUmemAllocationProp, allocFlags, 24);
_Static_assert(sizeof(CUmemAccessDesc) == 12, "CUmemAccessDesc");
PIN(CUmemAccessDesc, flags, 8);
_Static_assert(sizeof(CUDA_KERNEL_NODE_PARAMS) == 72, "CUDA_KERNEL_NODE_PARAMS_v2");
PIN(CUDA_KERNEL_NODE_PARAMS, gridDimX, 8);
PIN(CUDA_KERNEL_NODE_PARAMS, blockDimX, 20);
PIN(CUDA_KERNEL_NODE_PARAMS, sharedMemBytes, 32);
PIN(CUDA_KERNEL_NODE_PARAMS, kernelParams, 40);
PIN(CUDA_KERNEL_NODE_PARAMS, extra, 48);
PIN(CUDA_KERNEL_NODE_PARAMS, kern, 56);
PIN(CUDA_KERNEL_NODE_PARAMS, ctx, 64);
_Static_assert(sizeof(CUDA_MEMCPY3D) == 200, "CUDA_MEMCPY3D");
PIN(CUDA_MEMCPY3D, srcMemoryType, 32);
PIN(CUDA_MEMCPY3D, srcHost, 40);
PIN(CUDA_MEMCPY3D, dstXInBytes, 88);
PIN(CUDA_MEMCPY3D, dstMemoryType, 120);
PIN(CUDA_MEMCPY3D, dstDevice, 136);
PIN(CUDA_MEMCPY3D, WidthInBytes, 176);
_Static_assert(sizeof(CUDA_MEMSET_NODE_PARAMS) == 40, "CUDA_MEMSET_NODE_PARAMS");
PIN(CUDA_MEMSET_NODE_PARAMS, value, 16);
PIN(CUDA_MEMSET_NODE_PARAMS, width, 24);
_Static_assert(sizeof(CUdevResource) == 144, "CUdevResource");
PIN(CUdevResource, sm, 96);
_Static_assert(sizeof(pcu_resource) == sizeof(CUdevResource), "pcu_resource is a CUdevResource");
// Go uses pcu_kernel_node, the driver's struct with 64-bit words in place of pointers.
_Static_assert(sizeof(pcu_kernel_node) == sizeof(CUDA_KERNEL_NODE_PARAMS), "pcu_kernel_node");
PIN(pcu_kernel_node, grid, 8);
PIN(pcu_kernel_node, block, 20);
PIN(pcu_kernel_node, shared_bytes, 32);
PIN(pcu_kernel_node, parameters, 40);
PIN(pcu_kernel_node, context, 64);

// Constants, as cuda.h names them.
enum {
	CUDA_ERROR_INVALID_VALUE = 1,
	CUDA_ERROR_NOT_INITIALIZED = 3,
	CU_STREAM_NON_BLOCKING = 1,
	CU_STREAM_CAPTURE_MODE_THREAD_LOCAL = 1,
	CU_STREAM_CAPTURE_MODE_RELAXED = 2,
	CU_MEMORYTYPE_HOST = 1,
	CU_MEMORYTYPE_DEVICE = 2,
	CU_EXEC_AFFINITY_TYPE_SM_COUNT = 0,
	CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS = 1,
	CU_JIT_ERROR_LOG_BUFFER = 5,
	CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES = 6,
	CU_MEM_ALLOCATION_TYPE_PINNED = 1,
	CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR = 1,
	CU_MEM_LOCATION_TYPE_DEVICE = 1,
	CU_MEM_ACCESS_FLAGS_PROT_READ = 1,
	CU_MEM_ACCESS_FLAGS_PROT_READWRITE = 3,
	CU_MEM_ALLOC_GRANULARITY_RECOMMENDED = 1,
	CU_DEV_RESOURCE_TYPE_SM = 1,
	CU_GREEN_CTX_DEFAULT_STREAM = 1,
};

// CALLS lists every driver function. NEED is for functions that are always needed. MAY is
// for functions that a driver may lack: only calls that use them fail.
#define CALLS(NEED, MAY) \
	NEED(cuInit, (unsigned int)) \
	NEED(cuDriverGetVersion, (int *)) \
	MAY(cuGetErrorName, (CUresult, const char **)) \
	MAY(cuGetErrorString, (CUresult, const char **)) \
	NEED(cuDeviceGetCount, (int *)) \
	NEED(cuDeviceGet, (CUdevice *, int)) \
	NEED(cuDeviceGetName, (char *, int, CUdevice)) \
	NEED(cuDeviceGetUuid_v2, (CUuuid *, CUdevice)) \
	NEED(cuDeviceTotalMem_v2, (size_t *, CUdevice)) \
	NEED(cuDeviceGetAttribute, (int *, int, CUdevice)) \
	NEED(cuDevicePrimaryCtxSetFlags_v2, (CUdevice, unsigned int)) \
	NEED(cuDevicePrimaryCtxRetain, (CUcontext *, CUdevice)) \
	NEED(cuDevicePrimaryCtxRelease_v2, (CUdevice)) \
	NEED(cuCtxSetCurrent, (CUcontext)) \
	NEED(cuCtxGetCurrent, (CUcontext *)) \
	MAY(cuCtxGetExecAffinity, (CUexecAffinityParam *, int)) \
	NEED(cuMemGetInfo_v2, (size_t *, size_t *)) \
	NEED(cuMemAlloc_v2, (CUdeviceptr *, size_t)) \
	NEED(cuMemFree_v2, (CUdeviceptr)) \
	NEED(cuMemHostAlloc, (void **, size_t, unsigned int)) \
	NEED(cuMemFreeHost, (void *)) \
	NEED(cuMemHostRegister_v2, (void *, size_t, unsigned int)) \
	NEED(cuMemHostGetDevicePointer_v2, (CUdeviceptr *, void *, unsigned int)) \
	NEED(cuMemHostUnregister, (void *)) \
	MAY(cuIpcGetMemHandle, (CUipcMemHandle *, CUdeviceptr)) \
	MAY(cuIpcOpenMemHandle_v2, (CUdeviceptr *, CUipcMemHandle, unsigned int)) \
	MAY(cuIpcCloseMemHandle, (CUdeviceptr)) \
	MAY(cuMemGetAllocationGranularity, (size_t *, const CUmemAllocationProp *, int)) \
	MAY(cuMemAddressReserve, (CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long)) \
	MAY(cuMemAddressFree, (CUdeviceptr, size_t)) \
	MAY(cuMemCreate, (CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *, unsigned long long)) \
	MAY(cuMemRelease, (CUmemGenericAllocationHandle)) \
	MAY(cuMemMap, (CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long)) \
	MAY(cuMemUnmap, (CUdeviceptr, size_t)) \
	MAY(cuMemSetAccess, (CUdeviceptr, size_t, const CUmemAccessDesc *, size_t)) \
	MAY(cuMemExportToShareableHandle, (void *, CUmemGenericAllocationHandle, int, unsigned long long)) \
	MAY(cuMemImportFromShareableHandle, (CUmemGenericAllocationHandle *, void *, int)) \
	NEED(cuStreamCreate, (CUstream *, unsigned int)) \
	MAY(cuStreamCreateWithPriority, (CUstream *, unsigned int, int)) \
	MAY(cuCtxGetStreamPriorityRange, (int *, int *)) \
	NEED(cuStreamDestroy_v2, (CUstream)) \
	NEED(cuStreamSynchronize, (CUstream)) \
	NEED(cuStreamQuery, (CUstream)) \
	NEED(cuStreamWaitEvent, (CUstream, CUevent, unsigned int)) \
	NEED(cuMemcpyAsync, (CUdeviceptr, CUdeviceptr, size_t, CUstream)) \
	NEED(cuMemsetD8Async, (CUdeviceptr, unsigned char, size_t, CUstream)) \
	MAY(cuStreamWriteValue32_v2, (CUstream, CUdeviceptr, uint32_t, unsigned int)) \
	MAY(cuStreamGetCtx, (CUstream, CUcontext *)) \
	NEED(cuEventCreate, (CUevent *, unsigned int)) \
	NEED(cuEventDestroy_v2, (CUevent)) \
	NEED(cuEventRecord, (CUevent, CUstream)) \
	NEED(cuEventQuery, (CUevent)) \
	NEED(cuEventSynchronize, (CUevent)) \
	NEED(cuEventElapsedTime, (float *, CUevent, CUevent)) \
	NEED(cuModuleLoadDataEx, (CUmodule *, const void *, unsigned int, int *, void **)) \
	NEED(cuModuleUnload, (CUmodule)) \
	NEED(cuModuleGetFunction, (CUfunction *, CUmodule, const char *)) \
	MAY(cuFuncGetParamInfo, (CUfunction, size_t, size_t *, size_t *)) \
	NEED(cuLaunchKernel, (CUfunction, unsigned int, unsigned int, unsigned int, \
		unsigned int, unsigned int, unsigned int, unsigned int, CUstream, void **, void **)) \
	MAY(cuStreamBeginCapture_v2, (CUstream, int)) \
	MAY(cuStreamEndCapture, (CUstream, CUgraph *)) \
	MAY(cuGraphInstantiateWithFlags, (CUgraphExec *, CUgraph, unsigned long long)) \
	MAY(cuGraphDestroy, (CUgraph)) \
	MAY(cuGraphLaunch, (CUgraphExec, CUstream)) \
	MAY(cuGraphUpload, (CUgraphExec, CUstream)) \
	MAY(cuGraphExecDestroy, (CUgraphExec)) \
	MAY(cuGraphClone, (CUgraph *, CUgraph)) \
	MAY(cuGraphGetNodes, (CUgraph, CUgraphNode *, size_t *)) \
	MAY(cuGraphNodeGetType, (CUgraphNode, int *)) \
	MAY(cuGraphKernelNodeGetParams_v2, (CUgraphNode, CUDA_KERNEL_NODE_PARAMS *)) \
	MAY(cuGraphKernelNodeSetParams_v2, (CUgraphNode, const CUDA_KERNEL_NODE_PARAMS *)) \
	MAY(cuGraphMemcpyNodeGetParams, (CUgraphNode, CUDA_MEMCPY3D *)) \
	MAY(cuGraphMemcpyNodeSetParams, (CUgraphNode, const CUDA_MEMCPY3D *)) \
	MAY(cuGraphMemsetNodeGetParams, (CUgraphNode, CUDA_MEMSET_NODE_PARAMS *)) \
	MAY(cuDeviceGetDevResource, (CUdevice, CUdevResource *, int)) \
	MAY(cuGreenCtxGetDevResource, (CUgreenCtx, CUdevResource *, int)) \
	MAY(cuDevSmResourceSplitByCount, (CUdevResource *, unsigned int *, const CUdevResource *, \
		CUdevResource *, unsigned int, unsigned int)) \
	MAY(cuDevResourceGenerateDesc, (CUdevResourceDesc *, CUdevResource *, unsigned int)) \
	MAY(cuGreenCtxCreate, (CUgreenCtx *, CUdevResourceDesc, CUdevice, unsigned int)) \
	MAY(cuGreenCtxDestroy, (CUgreenCtx)) \
	MAY(cuCtxFromGreenCtx, (CUcontext *, CUgreenCtx)) \
	MAY(cuGreenCtxStreamCreate, (CUstream *, CUgreenCtx, unsigned int, int))

static struct {
#define FIELD(name, parameters) CUresult (*name) parameters;
	CALLS(FIELD, FIELD)
} api;

static int loaded;
static void *library;

int pcu_load(const char *path, char *text, size_t text_bytes) {
	library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (library == NULL) {
		snprintf(text, text_bytes, "%s", dlerror());
		return PCU_NO_LIBRARY;
	}
#define FILL(name) *(void **)&api.name = dlsym(library, #name)
#define NEEDED(name, parameters) \
	FILL(name); \
	if (api.name == NULL) { \
		snprintf(text, text_bytes, "%s", #name); \
		memset(&api, 0, sizeof api); \
		return PCU_NO_SYMBOL; \
	}
#define OPTIONAL(name, parameters) FILL(name);
	CALLS(NEEDED, OPTIONAL)
	Dl_info where;
	int found = dladdr(*(void **)&api.cuInit, &where) && where.dli_fname != NULL;
	snprintf(text, text_bytes, "%s", found ? where.dli_fname : path);
	loaded = 1;
	return PCU_LOADED;
}

// ABSENT is the result of a call through an empty entry of the table.
#define ABSENT (loaded ? PCU_MISSING : CUDA_ERROR_NOT_INITIALIZED)
#define CALL(name, ...) (api.name == NULL ? ABSENT : api.name(__VA_ARGS__))
// WORD makes a call that fills one variable, out.
#define WORD(type, name, ...) do { \
		type out = 0; \
		int32_t code = CALL(name, __VA_ARGS__); \
		return (pcu_word){code, (uint64_t)out}; \
	} while (0)

#define CONTEXT(word) ((CUcontext)(uintptr_t)(word))
#define STREAM(word) ((CUstream)(uintptr_t)(word))
#define EVENT(word) ((CUevent)(uintptr_t)(word))
#define GREEN(word) ((CUgreenCtx)(uintptr_t)(word))
#define GRAPH(word) ((CUgraph)(uintptr_t)(word))
#define NODE(word) ((CUgraphNode)(uintptr_t)(word))
#define EXEC(word) ((CUgraphExec)(uintptr_t)(word))
#define FUNCTION(word) ((CUfunction)(uintptr_t)(word))
#define MODULE(word) ((CUmodule)(uintptr_t)(word))
#define HOST(word) ((void *)(uintptr_t)(word))
#define POINTER uintptr_t

uint64_t pcu_symbol(const char *name) { return loaded ? (POINTER)dlsym(library, name) : 0; }

int32_t pcu_init(void) { return CALL(cuInit, 0); }
pcu_word pcu_driver_version(void) { WORD(int, cuDriverGetVersion, &out); }

pcu_names pcu_error(int32_t code) {
	pcu_names names = {NULL, NULL};
	CALL(cuGetErrorName, code, &names.name);
	CALL(cuGetErrorString, code, &names.meaning);
	return names;
}

pcu_word pcu_device_count(void) { WORD(int, cuDeviceGetCount, &out); }
pcu_word pcu_device(int ordinal) { WORD(CUdevice, cuDeviceGet, &out, ordinal); }
int32_t pcu_device_name(int device, char *name, int name_bytes) {
	return CALL(cuDeviceGetName, name, name_bytes, device);
}
int32_t pcu_device_uuid(int device, unsigned char *uuid) {
	return CALL(cuDeviceGetUuid_v2, (CUuuid *)uuid, device);
}
pcu_word pcu_device_memory(int device) { WORD(size_t, cuDeviceTotalMem_v2, &out, device); }
pcu_word pcu_device_attribute(int device, int attribute) {
	WORD(int, cuDeviceGetAttribute, &out, attribute, device);
}

int32_t pcu_primary_flags(int device, unsigned flags) {
	return CALL(cuDevicePrimaryCtxSetFlags_v2, device, flags);
}
pcu_word pcu_primary_retain(int device) {
	CUcontext context = NULL;
	int32_t code = CALL(cuDevicePrimaryCtxRetain, &context, device);
	return (pcu_word){code, (POINTER)context};
}
int32_t pcu_primary_release(int device) { return CALL(cuDevicePrimaryCtxRelease_v2, device); }
int32_t pcu_context_bind(uint64_t context) { return CALL(cuCtxSetCurrent, CONTEXT(context)); }
pcu_word pcu_context_bound(void) {
	CUcontext context = NULL;
	int32_t code = CALL(cuCtxGetCurrent, &context);
	return (pcu_word){code, (POINTER)context};
}
pcu_word pcu_context_affinity(void) {
	CUexecAffinityParam affinity = {0};
	int32_t code = CALL(cuCtxGetExecAffinity, &affinity, CU_EXEC_AFFINITY_TYPE_SM_COUNT);
	return (pcu_word){code, affinity.param.smCount.val};
}
pcu_pair pcu_memory_info(void) {
	size_t free = 0, total = 0;
	int32_t code = CALL(cuMemGetInfo_v2, &free, &total);
	return (pcu_pair){code, free, total};
}

pcu_word pcu_allocate(uint64_t bytes) { WORD(CUdeviceptr, cuMemAlloc_v2, &out, bytes); }
int32_t pcu_free(uint64_t address) { return CALL(cuMemFree_v2, address); }
pcu_word pcu_allocate_host(uint64_t bytes, unsigned flags) {
	void *memory = NULL;
	int32_t code = CALL(cuMemHostAlloc, &memory, bytes, flags);
	return (pcu_word){code, (POINTER)memory};
}
int32_t pcu_free_host(uint64_t address) { return CALL(cuMemFreeHost, HOST(address)); }
int32_t pcu_register(uint64_t address, uint64_t bytes, unsigned flags) {
	return CALL(cuMemHostRegister_v2, HOST(address), bytes, flags);
}
pcu_word pcu_host_pointer(uint64_t address) {
	WORD(CUdeviceptr, cuMemHostGetDevicePointer_v2, &out, HOST(address), 0);
}
int32_t pcu_unregister(uint64_t address) { return CALL(cuMemHostUnregister, HOST(address)); }
int32_t pcu_ipc_export(uint64_t address, unsigned char *handle) {
	return CALL(cuIpcGetMemHandle, (CUipcMemHandle *)handle, address);
}
pcu_word pcu_ipc_import(const unsigned char *handle) {
	CUipcMemHandle copy;
	memcpy(&copy, handle, sizeof copy);
	WORD(CUdeviceptr, cuIpcOpenMemHandle_v2, &out, copy, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
}
int32_t pcu_ipc_close(uint64_t address) { return CALL(cuIpcCloseMemHandle, address); }

static CUmemAllocationProp memory_of(int device) {
	return (CUmemAllocationProp){
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
		.location = {CU_MEM_LOCATION_TYPE_DEVICE, device},
	};
}
pcu_word pcu_granularity(int device) {
	CUmemAllocationProp memory = memory_of(device);
	WORD(size_t, cuMemGetAllocationGranularity, &out, &memory, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
}
pcu_word pcu_reserve(uint64_t bytes) { WORD(CUdeviceptr, cuMemAddressReserve, &out, bytes, 0, 0, 0); }
int32_t pcu_unreserve(uint64_t address, uint64_t bytes) { return CALL(cuMemAddressFree, address, bytes); }
pcu_word pcu_create(int device, uint64_t bytes) {
	CUmemAllocationProp memory = memory_of(device);
	WORD(CUmemGenericAllocationHandle, cuMemCreate, &out, bytes, &memory, 0);
}
int32_t pcu_release(uint64_t memory) { return CALL(cuMemRelease, memory); }
int32_t pcu_map(uint64_t address, uint64_t bytes, uint64_t memory) {
	return CALL(cuMemMap, address, bytes, 0, memory, 0);
}
int32_t pcu_unmap(uint64_t address, uint64_t bytes) { return CALL(cuMemUnmap, address, bytes); }
int32_t pcu_set_access(uint64_t address, uint64_t bytes, int device, int write) {
	CUmemAccessDesc access = {
		{CU_MEM_LOCATION_TYPE_DEVICE, device},
		write ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_READ,
	};
	return CALL(cuMemSetAccess, address, bytes, &access, 1);
}
pcu_word pcu_export_fd(uint64_t memory) {
	WORD(int, cuMemExportToShareableHandle, &out, memory, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
}
pcu_word pcu_import_fd(int fd) {
	WORD(CUmemGenericAllocationHandle, cuMemImportFromShareableHandle, &out, HOST(fd),
		CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
}

pcu_word pcu_stream_create(void) {
	CUstream stream = NULL;
	int32_t code = CALL(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
	return (pcu_word){code, (POINTER)stream};
}
pcu_word pcu_stream_create_priority(int priority) {
	CUstream stream = NULL;
	int32_t code = CALL(cuStreamCreateWithPriority, &stream, CU_STREAM_NON_BLOCKING, priority);
	return (pcu_word){code, (POINTER)stream};
}
int32_t pcu_stream_priorities(int *lowest, int *highest) {
	return CALL(cuCtxGetStreamPriorityRange, lowest, highest);
}
int32_t pcu_stream_destroy(uint64_t stream) { return CALL(cuStreamDestroy_v2, STREAM(stream)); }
int32_t pcu_stream_synchronize(uint64_t stream) { return CALL(cuStreamSynchronize, STREAM(stream)); }
int32_t pcu_stream_query(uint64_t stream) { return CALL(cuStreamQuery, STREAM(stream)); }
int32_t pcu_stream_wait(uint64_t stream, uint64_t event) {
	return CALL(cuStreamWaitEvent, STREAM(stream), EVENT(event), 0);
}
int32_t pcu_stream_copy(uint64_t stream, uint64_t dst, uint64_t src, uint64_t bytes) {
	return CALL(cuMemcpyAsync, dst, src, bytes, STREAM(stream));
}
int32_t pcu_stream_set(uint64_t stream, uint64_t dst, unsigned char value, uint64_t bytes) {
	return CALL(cuMemsetD8Async, dst, value, bytes, STREAM(stream));
}
int32_t pcu_stream_write(uint64_t stream, uint64_t dst, uint32_t value) {
	return CALL(cuStreamWriteValue32_v2, STREAM(stream), dst, value, 0);
}
pcu_word pcu_stream_context(uint64_t stream) {
	CUcontext context = NULL;
	int32_t code = CALL(cuStreamGetCtx, STREAM(stream), &context);
	return (pcu_word){code, (POINTER)context};
}
pcu_word pcu_event_create(unsigned flags) {
	CUevent event = NULL;
	int32_t code = CALL(cuEventCreate, &event, flags);
	return (pcu_word){code, (POINTER)event};
}
int32_t pcu_event_destroy(uint64_t event) { return CALL(cuEventDestroy_v2, EVENT(event)); }
int32_t pcu_event_record(uint64_t event, uint64_t stream) {
	return CALL(cuEventRecord, EVENT(event), STREAM(stream));
}
int32_t pcu_event_query(uint64_t event) { return CALL(cuEventQuery, EVENT(event)); }
int32_t pcu_event_synchronize(uint64_t event) { return CALL(cuEventSynchronize, EVENT(event)); }
pcu_time pcu_event_elapsed(uint64_t from, uint64_t to) {
	float milliseconds = 0;
	int32_t code = CALL(cuEventElapsedTime, &milliseconds, EVENT(from), EVENT(to));
	return (pcu_time){code, milliseconds};
}

pcu_word pcu_module_load(const char *image, char *log, size_t log_bytes) {
	int options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
	void *values[] = {log, HOST(log_bytes)};
	CUmodule module = NULL;
	int32_t code = CALL(cuModuleLoadDataEx, &module, image, 2, options, values);
	return (pcu_word){code, (POINTER)module};
}
int32_t pcu_module_unload(uint64_t module) { return CALL(cuModuleUnload, MODULE(module)); }
pcu_word pcu_module_function(uint64_t module, const char *name) {
	CUfunction function = NULL;
	int32_t code = CALL(cuModuleGetFunction, &function, MODULE(module), name);
	return (pcu_word){code, (POINTER)function};
}
pcu_pair pcu_function_parameter(uint64_t function, size_t index) {
	size_t offset = 0, bytes = 0;
	int32_t code = CALL(cuFuncGetParamInfo, FUNCTION(function), index, &offset, &bytes);
	return (pcu_pair){code, offset, bytes};
}
int32_t pcu_launch(uint64_t function,
	uint32_t grid_x, uint32_t grid_y, uint32_t grid_z,
	uint32_t block_x, uint32_t block_y, uint32_t block_z,
	uint32_t shared_bytes, uint64_t stream,
	void *values, const uint32_t *offsets, uint32_t count) {
	void *parameters[PCU_MAX_PARAMETERS];
	if (count > PCU_MAX_PARAMETERS)
		return CUDA_ERROR_INVALID_VALUE;
	for (uint32_t i = 0; i < count; i++)
		parameters[i] = (char *)values + offsets[i];
	return CALL(cuLaunchKernel, FUNCTION(function), grid_x, grid_y, grid_z, block_x, block_y, block_z,
		shared_bytes, STREAM(stream), parameters, NULL);
}

_Static_assert(PCU_CAPTURE_THREAD_LOCAL == CU_STREAM_CAPTURE_MODE_THREAD_LOCAL &&
	PCU_CAPTURE_RELAXED == CU_STREAM_CAPTURE_MODE_RELAXED, "capture modes");
int32_t pcu_capture_begin(uint64_t stream, int mode) {
	return CALL(cuStreamBeginCapture_v2, STREAM(stream), mode);
}
pcu_word pcu_capture_end(uint64_t stream) {
	CUgraph graph = NULL;
	int32_t code = CALL(cuStreamEndCapture, STREAM(stream), &graph);
	return (pcu_word){code, (POINTER)graph};
}
pcu_word pcu_graph_instantiate(uint64_t graph) {
	CUgraphExec executable = NULL;
	int32_t code = CALL(cuGraphInstantiateWithFlags, &executable, GRAPH(graph), 0);
	return (pcu_word){code, (POINTER)executable};
}
int32_t pcu_graph_destroy(uint64_t graph) { return CALL(cuGraphDestroy, GRAPH(graph)); }
int32_t pcu_graph_launch(uint64_t executable, uint64_t stream) {
	return CALL(cuGraphLaunch, EXEC(executable), STREAM(stream));
}
int32_t pcu_graph_upload(uint64_t executable, uint64_t stream) {
	return CALL(cuGraphUpload, EXEC(executable), STREAM(stream));
}
int32_t pcu_graph_exec_destroy(uint64_t executable) { return CALL(cuGraphExecDestroy, EXEC(executable)); }
pcu_word pcu_graph_clone(uint64_t graph) {
	CUgraph clone = NULL;
	int32_t code = CALL(cuGraphClone, &clone, GRAPH(graph));
	return (pcu_word){code, (POINTER)clone};
}
pcu_word pcu_graph_nodes(uint64_t graph, uint64_t *nodes, uint64_t room) {
	size_t count = room;
	int32_t code = CALL(cuGraphGetNodes, GRAPH(graph), (CUgraphNode *)nodes, &count);
	return (pcu_word){code, count};
}
pcu_word pcu_graph_node_type(uint64_t node) { WORD(int, cuGraphNodeGetType, NODE(node), &out); }
int32_t pcu_kernel_node_get(uint64_t node, pcu_kernel_node *out) {
	return CALL(cuGraphKernelNodeGetParams_v2, NODE(node), (CUDA_KERNEL_NODE_PARAMS *)out);
}
int32_t pcu_kernel_node_set(uint64_t node, const pcu_kernel_node *in) {
	return CALL(cuGraphKernelNodeSetParams_v2, NODE(node), (const CUDA_KERNEL_NODE_PARAMS *)in);
}
_Static_assert(PCU_HOST == CU_MEMORYTYPE_HOST && PCU_DEVICE == CU_MEMORYTYPE_DEVICE, "kinds of memory");
int32_t pcu_copy_node_get(uint64_t node, pcu_copy_node *out) {
	CUDA_MEMCPY3D c = {0};
	int32_t code = CALL(cuGraphMemcpyNodeGetParams, NODE(node), &c);
	if (code != 0)
		return code;
	int from_host = c.srcMemoryType == CU_MEMORYTYPE_HOST, to_host = c.dstMemoryType == CU_MEMORYTYPE_HOST;
	out->source = (from_host ? (POINTER)c.srcHost : c.srcDevice) + c.srcXInBytes;
	out->destination = (to_host ? (POINTER)c.dstHost : c.dstDevice) + c.dstXInBytes;
	out->bytes = c.WidthInBytes;
	out->source_kind = c.srcMemoryType;
	out->destination_kind = c.dstMemoryType;
	out->whole = c.Height <= 1 && c.Depth <= 1 && c.srcY == 0 && c.srcZ == 0 && c.dstY == 0 && c.dstZ == 0;
	return 0;
}
int32_t pcu_copy_node_source(uint64_t node, uint64_t source) {
	CUDA_MEMCPY3D c = {0};
	int32_t code = CALL(cuGraphMemcpyNodeGetParams, NODE(node), &c);
	if (code != 0)
		return code;
	c.srcHost = HOST(source);
	c.srcXInBytes = 0;
	return CALL(cuGraphMemcpyNodeSetParams, NODE(node), &c);
}
pcu_set_node pcu_set_node_get(uint64_t node) {
	CUDA_MEMSET_NODE_PARAMS m = {0};
	int32_t code = CALL(cuGraphMemsetNodeGetParams, NODE(node), &m);
	uint64_t row = m.width * m.elementSize;
	return (pcu_set_node){code, m.dst, m.height > 1 ? (m.height - 1) * m.pitch + row : row};
}

pcu_sms pcu_resource_sms(const pcu_resource *resource) {
	const CUdevResource *r = (const CUdevResource *)resource;
	return (pcu_sms){0, r->sm.smCount, r->sm.minSmPartitionSize, r->sm.smCoscheduledAlignment};
}
int32_t pcu_device_resource(int device, pcu_resource *out) {
	return CALL(cuDeviceGetDevResource, device, (CUdevResource *)out, CU_DEV_RESOURCE_TYPE_SM);
}
int32_t pcu_green_resource(uint64_t green, pcu_resource *out) {
	return CALL(cuGreenCtxGetDevResource, GREEN(green), (CUdevResource *)out, CU_DEV_RESOURCE_TYPE_SM);
}
pcu_word pcu_resource_split(const pcu_resource *whole, unsigned smallest,
	pcu_resource *groups, uint32_t room, pcu_resource *rest) {
	unsigned int count = room;
	int32_t code = CALL(cuDevSmResourceSplitByCount, (CUdevResource *)groups, &count,
		(const CUdevResource *)whole, (CUdevResource *)rest, 0, smallest);
	return (pcu_word){code, count};
}
// step is the call that returned the code: 0 cuDevResourceGenerateDesc, 1 cuGreenCtxCreate.
pcu_word pcu_green_create(int device, const pcu_resource *groups, uint32_t count, int32_t *step) {
	CUdevResourceDesc description = NULL;
	CUgreenCtx green = NULL;
	*step = 0;
	int32_t code = CALL(cuDevResourceGenerateDesc, &description, (CUdevResource *)groups, count);
	if (code == 0) {
		*step = 1;
		code = CALL(cuGreenCtxCreate, &green, description, device, CU_GREEN_CTX_DEFAULT_STREAM);
	}
	return (pcu_word){code, (POINTER)green};
}
int32_t pcu_green_destroy(uint64_t green) { return CALL(cuGreenCtxDestroy, GREEN(green)); }
pcu_word pcu_green_context(uint64_t green) {
	CUcontext context = NULL;
	int32_t code = CALL(cuCtxFromGreenCtx, &context, GREEN(green));
	return (pcu_word){code, (POINTER)context};
}
pcu_word pcu_green_stream(uint64_t green, int priority) {
	CUstream stream = NULL;
	int32_t code = CALL(cuGreenCtxStreamCreate, &stream, GREEN(green), CU_STREAM_NON_BLOCKING, priority);
	return (pcu_word){code, (POINTER)stream};
}
