// The part of CUDA's driver API that the library calls. Prototypes, struct layouts and
// constants are those of CUDA 13.0's cuda.h; no CUDA is needed to build.

#ifndef PENSTOCK_SWAP_DRIVER_H
#define PENSTOCK_SWAP_DRIVER_H

#include "../../preload/preload.h"

#include <stddef.h>

typedef int CUdevice;
typedef uint64_t CUhandle; // CUmemGenericAllocationHandle
typedef struct CUctx_st *CUcontext;
typedef struct CUevent_st *CUevent;
typedef struct CUgraph_st *CUgraph;
typedef struct CUnode_st *CUgraphNode;
typedef struct CUpool_st *CUmemoryPool;

enum {
	CUDA_INVALID_VALUE = 1, CUDA_OUT_OF_MEMORY = 2, CUDA_DEINITIALIZED = 4, CUDA_INVALID_CONTEXT = 201,
	CUDA_WRONG_THREAD = 908, CUDA_NOT_SUPPORTED = 801, CUDA_SYSTEM_NOT_READY = 802,
};

enum { STREAM_NON_BLOCKING = 1, EVENT_NO_TIMING = 2, HOST_REGISTER_PORTABLE = 1 };

typedef struct { int type, id; } Location;
enum { LOCATION_DEVICE = 1 };

typedef struct { // CUmemAllocationProp
	int type, handle_types;
	Location location;
	void *metadata;
	unsigned char flags[8];
} Properties;
enum { ALLOCATION_PINNED = 1 };

typedef struct { // CUmemAccessDesc
	Location location;
	int flags;
} Access;
enum { ACCESS_NONE = 0, ACCESS_READ_WRITE = 3 };

typedef struct { // CUDA_MEM_ALLOC_NODE_PARAMS; v1 and v2 have the same layout
	unsigned char pool[88];
	const Access *access;
	size_t access_count, bytes;
	CUdeviceptr address;
} AllocNode;
_Static_assert(sizeof(AllocNode) == 120, "CUDA_MEM_ALLOC_NODE_PARAMS");

typedef struct { // CUgraphNodeParams
	int type, reserved[3];
	union { AllocNode alloc; CUdeviceptr free; int64_t room[29]; } of;
	int64_t reserved2;
} NodeParams;
_Static_assert(sizeof(NodeParams) == 256, "CUgraphNodeParams");
enum { NODE_ALLOC = 10, NODE_FREE = 11 };

// DRIVER lists the functions that the library calls by itself, by their exported names.
#define DRIVER(X) \
	X(cuCtxGetCurrent, (CUcontext *)) \
	X(cuCtxPushCurrent_v2, (CUcontext)) \
	X(cuCtxPopCurrent_v2, (CUcontext *)) \
	X(cuCtxSynchronize, (void)) \
	X(cuCtxGetDevice, (CUdevice *)) \
	X(cuDeviceGetUuid_v2, (unsigned char *, CUdevice)) \
	X(cuMemGetInfo_v2, (size_t *, size_t *)) \
	X(cuMemGetAllocationGranularity, (size_t *, const Properties *, int)) \
	X(cuMemAddressReserve, (CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long)) \
	X(cuMemAddressFree, (CUdeviceptr, size_t)) \
	X(cuMemCreate, (CUhandle *, size_t, const Properties *, unsigned long long)) \
	X(cuMemRelease, (CUhandle)) \
	X(cuMemMap, (CUdeviceptr, size_t, size_t, CUhandle, unsigned long long)) \
	X(cuMemUnmap, (CUdeviceptr, size_t)) \
	X(cuMemSetAccess, (CUdeviceptr, size_t, const Access *, size_t)) \
	X(cuMemHostRegister_v2, (void *, size_t, unsigned)) \
	X(cuMemHostUnregister, (void *)) \
	X(cuMemcpyDtoHAsync_v2, (void *, CUdeviceptr, size_t, CUstream)) \
	X(cuMemcpyHtoDAsync_v2, (CUdeviceptr, const void *, size_t, CUstream)) \
	X(cuStreamCreate, (CUstream *, unsigned)) \
	X(cuStreamDestroy_v2, (CUstream)) \
	X(cuStreamSynchronize, (CUstream)) \
	X(cuStreamWaitEvent, (CUstream, CUevent, unsigned)) \
	X(cuStreamIsCapturing, (CUstream, int *)) \
	X(cuThreadExchangeStreamCaptureMode, (int *)) \
	X(cuEventCreate, (CUevent *, unsigned)) \
	X(cuEventRecord, (CUevent, CUstream)) \
	X(cuEventQuery, (CUevent)) \
	X(cuEventSynchronize, (CUevent)) \
	X(cuEventDestroy_v2, (CUevent)) \
	X(cuGraphAddEmptyNode, (CUgraphNode *, CUgraph, const CUgraphNode *, size_t))

struct driver {
#define X(name, args) CUresult (*name) args;
	DRIVER(X)
#undef X
};

// driver is filled by swap_load before any hook runs.
extern struct driver driver;

#endif
