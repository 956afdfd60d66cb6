// Which function a program gets when it asks for one of the driver's (preload/names.h).

#define _GNU_SOURCE
#include "calls.h"
#include "memory.h"
#include "swap.h"

#define PRELOAD_LIBRARY "swap"
#include "../../preload/names.h"

#include <ctype.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct driver driver;

// --- the library's own functions

struct own {
	const char *name, *base;
	int since;
	void *function, *real;
};

#define OWN(name, base, since) PUBLIC CUresult name();
OWNED
#undef OWN

enum {
#define OWN(name, base, since) OWN_##name,
	OWNED
#undef OWN
	OWN_COUNT
};

static struct own own[OWN_COUNT] = {
#define OWN(name, base, since) {#name, base, since, (void *)name, NULL},
	OWNED
#undef OWN
};

// REAL is the driver's function behind one of the library's.
#define REAL(name, ...) ((CUresult(*)(__VA_ARGS__))real(OWN_##name))

static CUresult missing(void) { return CUDA_NOT_FOUND; }
static CUresult deinitialized(void) { return CUDA_DEINITIALIZED; }

static void *real(int i) { return swap_load() && own[i].real != NULL ? own[i].real : (void *)missing; }

// --- thunks

enum kind { PASS, ENTER, UNKNOWN };

struct target {
	void *function;
	char name[64];
	enum kind kind;
	atomic_ullong calls;
};

#define EXPORTED(name) #name,
static const char *const exports[] = {EXPORTS};
#undef EXPORTED

enum { EXPORT_COUNT = sizeof exports / sizeof *exports, POOL = 1024, THUNK_BYTES = 16 };
static struct target targets[EXPORT_COUNT + POOL];
static atomic_int pool_used;
static pthread_mutex_t pool = PTHREAD_MUTEX_INITIALIZER;

extern char swap_thunks[] __attribute__((visibility("hidden")));
__attribute__((visibility("hidden"))) void *swap_enter(int index, void *back);
__attribute__((visibility("hidden"))) void *swap_leave(void);

// The return addresses of a thread's open calls: a function of the driver may call one of
// the guest's, which calls the driver.
static __thread void *returns[64];
static __thread int opened;

void *swap_enter(int index, void *back) {
	struct target *t = &targets[index];
	if (opened == sizeof returns / sizeof *returns) {
		swap_say("%s: more than %d calls within each other", t->name, opened);
		abort();
	}
	returns[opened++] = back;
	if (index < EXPORT_COUNT && !swap_load())
		t->function = NULL;
	if (t->kind == UNKNOWN && atomic_fetch_add(&t->calls, 1) == 0)
		turns_unknown(t->name);
	gate_enter();
	if (turns_ended())
		return (void *)deinitialized;
	return t->function != NULL ? t->function : (void *)missing;
}

void *swap_leave(void) {
	gate_leave();
	return returns[--opened];
}

// --- names

static const struct { const char *base; enum kind kind; } known[] = {
#define GATED(base) {#base, ENTER},
#define FREE(base) {#base, PASS},
	KNOWN
#undef GATED
#undef FREE
};

// base_of removes what an exported name adds: _v2, _ptds, _ptsz.
static void base_of(const char *name, char *base, size_t room) {
	snprintf(base, room, "%s", name);
	size_t n = strlen(base);
	if (n > 5 && (strcmp(base + n - 5, "_ptds") == 0 || strcmp(base + n - 5, "_ptsz") == 0))
		base[n -= 5] = 0;
	if (n > 3 && base[n - 3] == '_' && base[n - 2] == 'v' && isdigit((unsigned char)base[n - 1]))
		base[n - 3] = 0;
}

static enum kind kind_of(const char *base) {
	for (size_t i = 0; i < sizeof known / sizeof *known; i++)
		if (strcmp(known[i].base, base) == 0)
			return known[i].kind;
	for (int i = 0; i < EXPORT_COUNT; i++) {
		char exported[64];
		base_of(exports[i], exported, sizeof exported);
		if (strcmp(exported, base) == 0)
			return ENTER;
	}
	return UNKNOWN;
}

// gated returns a thunk for a function of the driver, or the function itself.
static void *gated(const char *name, const char *base, void *function) {
	enum kind kind = kind_of(base);
	if (kind == PASS || function == NULL)
		return function;
	pthread_mutex_lock(&pool);
	int n = atomic_load(&pool_used), i = 0;
	while (i < n && targets[EXPORT_COUNT + i].function != function)
		i++;
	if (i == n && n < POOL) {
		struct target *t = &targets[EXPORT_COUNT + i];
		t->function = function;
		t->kind = kind;
		snprintf(t->name, sizeof t->name, "%s", name);
		atomic_store(&pool_used, n + 1);
	}
	pthread_mutex_unlock(&pool);
	if (i == POOL) {
		swap_say("no room for %s: more than %d functions", name, POOL);
		return NULL;
	}
	return swap_thunks + i * THUNK_BYTES;
}

static void *by_symbol(const char *name, void *function) {
	for (int i = 0; i < OWN_COUNT; i++)
		if (strcmp(own[i].name, name) == 0)
			return own[i].function;
	char base[64];
	base_of(name, base, sizeof base);
	return gated(name, base, function);
}

// by_version returns the library's own function if it is the same as the driver's, else the newest that is not newer than the version asked for.
static void *by_version(const char *name, int version, int per_thread, void *function) {
	struct own *best = NULL;
	for (int i = 0; i < OWN_COUNT; i++) {
		struct own *o = &own[i];
		if (strcmp(o->base, name) != 0)
			continue;
		if (o->real == function)
			return o->function;
		size_t n = strlen(o->name);
		int suffix = n > 5 && strcmp(o->name + n - 5, "_ptsz") == 0;
		if (o->since <= version && suffix <= per_thread &&
			(best == NULL || o->since > best->since || (o->since == best->since && suffix == per_thread)))
			best = o;
	}
	if (best == NULL)
		return gated(name, name, function);
	if (best->real == NULL)
		best->real = function;
	return best->function;
}

// --- loading

static void report_unknown(void) {
	for (int i = 0; i < atomic_load(&pool_used); i++) {
		struct target *t = &targets[EXPORT_COUNT + i];
		unsigned long long n = atomic_load(&t->calls);
		if (n > 0)
			swap_say("passed %llu calls of %s, which it does not know", n, t->name);
	}
}

static int find_functions(void) {
	const char *absent = NULL;
#define X(name, args) \
	if ((driver.name = next_dlsym(library, #name)) == NULL) \
		absent = #name;
	DRIVER(X)
#undef X
	if (absent != NULL) {
		static atomic_int said;
		if (atomic_exchange(&said, 1) == 0)
			swap_say("the driver has no %s: it is too old", absent);
		return 0;
	}
	for (int i = 0; i < OWN_COUNT; i++)
		own[i].real = next_dlsym(library, own[i].name);
	for (int i = 0; i < EXPORT_COUNT; i++) {
		targets[i].function = next_dlsym(library, exports[i]);
		targets[i].kind = ENTER;
		snprintf(targets[i].name, sizeof targets[i].name, "%s", exports[i]);
	}
	if (atomic_exchange(&loaded, 1) == 0)
		atexit(report_unknown);
	return 1;
}

int swap_load(void) { return load_driver(); }

// --- contexts

static CUresult begun(CUresult code, CUcontext context) { return code == CUDA_SUCCESS ? turns_begin(context) : code; }

CUresult cuDevicePrimaryCtxRetain(CUcontext *out, CUdevice device) {
	CUresult code = REAL(cuDevicePrimaryCtxRetain, CUcontext *, CUdevice)(out, device);
	return begun(code, code == CUDA_SUCCESS ? *out : NULL);
}

CUresult cuCtxCreate_v2(CUcontext *out, unsigned flags, CUdevice device) {
	CUresult code = REAL(cuCtxCreate_v2, CUcontext *, unsigned, CUdevice)(out, flags, device);
	return begun(code, code == CUDA_SUCCESS ? *out : NULL);
}

CUresult cuCtxCreate_v3(CUcontext *out, void *affinity, int count, unsigned flags, CUdevice device) {
	CUresult code = REAL(cuCtxCreate_v3, CUcontext *, void *, int, unsigned, CUdevice)(out, affinity, count, flags, device);
	return begun(code, code == CUDA_SUCCESS ? *out : NULL);
}

CUresult cuCtxCreate_v4(CUcontext *out, void *params, unsigned flags, CUdevice device) {
	CUresult code = REAL(cuCtxCreate_v4, CUcontext *, void *, unsigned, CUdevice)(out, params, flags, device);
	return begun(code, code == CUDA_SUCCESS ? *out : NULL);
}

CUresult cuCtxDestroy_v2(CUcontext context) {
	gate_enter();
	memory_end_context(context);
	turns_forget(context);
	CUresult code = REAL(cuCtxDestroy_v2, CUcontext)(context);
	gate_leave();
	return code;
}

CUresult cuDevicePrimaryCtxReset_v2(CUdevice device) {
	CUcontext context = NULL;
	if (REAL(cuDevicePrimaryCtxRetain, CUcontext *, CUdevice)(&context, device) == CUDA_SUCCESS) {
		gate_enter();
		memory_end_context(context);
		turns_forget(context);
		gate_leave();
	}
	return REAL(cuDevicePrimaryCtxReset_v2, CUdevice)(device);
}

// --- memory

CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total) {
	CUresult code = REAL(cuMemGetInfo_v2, size_t *, size_t *)(free_bytes, total);
	size_t limit = turns_capacity(), used = memory_used();
	if (code != CUDA_SUCCESS || limit == 0)
		return code;
	if (total != NULL && *total > limit)
		*total = limit;
	if (free_bytes != NULL)
		*free_bytes = used < limit ? limit - used : 0;
	return code;
}

CUresult cuMemAlloc_v2(CUdeviceptr *out, size_t bytes) { return out == NULL ? CUDA_INVALID_VALUE : memory_allocate(out, bytes); }

CUresult cuMemAllocPitch_v2(CUdeviceptr *out, size_t *pitch, size_t width, size_t height, unsigned element) {
	if (out == NULL || pitch == NULL || width == 0 || height == 0 || (element != 4 && element != 8 && element != 16))
		return CUDA_INVALID_VALUE;
	if (width > MOST_BYTES || height > MOST_BYTES / (width + 511))
		return CUDA_OUT_OF_MEMORY;
	*pitch = (width + 511) / 512 * 512;
	return memory_allocate(out, *pitch * height);
}

CUresult cuMemFree_v2(CUdeviceptr address) {
	CUdeviceptr base;
	size_t bytes;
	if (memory_owns(address, &base, &bytes))
		return memory_free(address);
	return REAL(cuMemFree_v2, CUdeviceptr)(address);
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *bytes, CUdeviceptr address) {
	CUdeviceptr at;
	size_t n;
	if (!memory_owns(address, &at, &n)) {
		gate_enter();
		CUresult code = REAL(cuMemGetAddressRange_v2, CUdeviceptr *, size_t *, CUdeviceptr)(base, bytes, address);
		gate_leave();
		return code;
	}
	if (base != NULL)
		*base = at;
	if (bytes != NULL)
		*bytes = n;
	return CUDA_SUCCESS;
}

static CUresult allocate_async(CUdeviceptr *out, size_t bytes, CUstream stream) {
	return out == NULL ? CUDA_INVALID_VALUE : memory_allocate_async(out, bytes, stream);
}

static CUresult free_async(CUdeviceptr address, CUstream stream) {
	return address == 0 ? CUDA_INVALID_VALUE : memory_free_async(address, stream);
}

// A null stream is the legacy default stream, or the thread's in functions with _ptsz.
static CUstream legacy(CUstream s) { return s != NULL ? s : STREAM_LEGACY; }
static CUstream per_thread(CUstream s) { return s != NULL ? s : STREAM_PER_THREAD; }

CUresult cuMemAllocAsync(CUdeviceptr *out, size_t n, CUstream s) { return allocate_async(out, n, legacy(s)); }
CUresult cuMemAllocAsync_ptsz(CUdeviceptr *out, size_t n, CUstream s) { return allocate_async(out, n, per_thread(s)); }
CUresult cuMemAllocFromPoolAsync(CUdeviceptr *out, size_t n, CUmemoryPool p, CUstream s) { return p == NULL ? CUDA_INVALID_VALUE : allocate_async(out, n, legacy(s)); }
CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *out, size_t n, CUmemoryPool p, CUstream s) { return p == NULL ? CUDA_INVALID_VALUE : allocate_async(out, n, per_thread(s)); }
CUresult cuMemFreeAsync(CUdeviceptr at, CUstream s) { return free_async(at, legacy(s)); }
CUresult cuMemFreeAsync_ptsz(CUdeviceptr at, CUstream s) { return free_async(at, per_thread(s)); }

CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep) {
	memory_trim();
	return REAL(cuMemPoolTrimTo, CUmemoryPool, size_t)(pool, keep);
}

// --- memory that the guest maps

CUresult cuMemCreate(CUhandle *out, size_t bytes, const Properties *p, unsigned long long flags) {
	if (out == NULL || p == NULL)
		return CUDA_INVALID_VALUE;
	if (p->location.type != LOCATION_DEVICE || p->location.id != turns_device())
		return REAL(cuMemCreate, CUhandle *, size_t, const Properties *, unsigned long long)(out, bytes, p, flags);
	return memory_create(out, bytes, p);
}

CUresult cuMemRelease(CUhandle handle) { return memory_release(handle) ? CUDA_SUCCESS : REAL(cuMemRelease, CUhandle)(handle); }

CUresult cuMemMap(CUdeviceptr at, size_t bytes, size_t offset, CUhandle handle, unsigned long long flags) {
	CUresult code;
	if (memory_map(at, bytes, offset, handle, &code))
		return code;
	return REAL(cuMemMap, CUdeviceptr, size_t, size_t, CUhandle, unsigned long long)(at, bytes, offset, handle, flags);
}

CUresult cuMemUnmap(CUdeviceptr at, size_t bytes) {
	CUresult code;
	if (memory_unmap(at, bytes, &code))
		return code;
	return REAL(cuMemUnmap, CUdeviceptr, size_t)(at, bytes);
}

CUresult cuMemSetAccess(CUdeviceptr at, size_t bytes, const Access *access, size_t count) {
	CUresult code;
	if (memory_set_access(at, bytes, access, count, &code))
		return code;
	return REAL(cuMemSetAccess, CUdeviceptr, size_t, const Access *, size_t)(at, bytes, access, count);
}

CUresult cuMemRetainAllocationHandle(CUhandle *out, void *at) {
	if (memory_retain((CUdeviceptr)at, out))
		return CUDA_SUCCESS;
	return REAL(cuMemRetainAllocationHandle, CUhandle *, void *)(out, at);
}

CUresult cuMemGetAllocationPropertiesFromHandle(Properties *out, CUhandle handle) {
	if (memory_properties(handle, out))
		return CUDA_SUCCESS;
	return REAL(cuMemGetAllocationPropertiesFromHandle, Properties *, CUhandle)(out, handle);
}

// --- graphs and captures

static CUresult add_alloc_node(CUgraphNode *out, CUgraph graph, const CUgraphNode *after, size_t count, AllocNode *p) {
	CUresult code = p == NULL ? CUDA_INVALID_VALUE : memory_allocate(&p->address, p->bytes);
	return code == CUDA_SUCCESS ? driver.cuGraphAddEmptyNode(out, graph, after, count) : code;
}

// A graph's own memory has one address for as long as the guest runs.
CUresult cuGraphAddMemAllocNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *after, size_t count, AllocNode *p) {
	return add_alloc_node(out, graph, after, count, p);
}

CUresult cuGraphAddMemFreeNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *after, size_t count, CUdeviceptr address) {
	(void)address;
	return driver.cuGraphAddEmptyNode(out, graph, after, count);
}

CUresult cuGraphAddNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *after, size_t count, NodeParams *p) {
	if (p != NULL && p->type == NODE_ALLOC)
		return add_alloc_node(out, graph, after, count, &p->of.alloc);
	if (p != NULL && p->type == NODE_FREE)
		return driver.cuGraphAddEmptyNode(out, graph, after, count);
	return REAL(cuGraphAddNode, CUgraphNode *, CUgraph, const CUgraphNode *, size_t, NodeParams *)(out, graph, after, count, p);
}

CUresult cuGraphAddNode_v2(CUgraphNode *out, CUgraph graph, const CUgraphNode *after, const void *edges, size_t count, NodeParams *p) {
	if (p != NULL && edges == NULL && (p->type == NODE_ALLOC || p->type == NODE_FREE))
		return cuGraphAddNode(out, graph, after, count, p);
	if (p != NULL && (p->type == NODE_ALLOC || p->type == NODE_FREE)) {
		swap_say("refused cuGraphAddNode: a node that allocates or frees, with data of edges");
		return CUDA_NOT_SUPPORTED;
	}
	return REAL(cuGraphAddNode_v2, CUgraphNode *, CUgraph, const CUgraphNode *, const void *, size_t, NodeParams *)(out, graph, after, edges, count, p);
}

static CUresult capture_began(CUresult code) {
	if (code == CUDA_SUCCESS)
		capture_begun();
	gate_leave();
	return code;
}

CUresult cuStreamBeginCapture_v2(CUstream s, int mode) {
	gate_enter();
	return capture_began(REAL(cuStreamBeginCapture_v2, CUstream, int)(s, mode));
}

CUresult cuStreamBeginCapture_v2_ptsz(CUstream s, int mode) {
	gate_enter();
	return capture_began(REAL(cuStreamBeginCapture_v2_ptsz, CUstream, int)(s, mode));
}

CUresult cuStreamBeginCaptureToGraph(CUstream s, CUgraph g, const CUgraphNode *after, const void *edges, size_t n, int mode) {
	gate_enter();
	return capture_began(REAL(cuStreamBeginCaptureToGraph, CUstream, CUgraph, const CUgraphNode *, const void *, size_t, int)(s, g, after, edges, n, mode));
}

CUresult cuStreamBeginCaptureToGraph_ptsz(CUstream s, CUgraph g, const CUgraphNode *after, const void *edges, size_t n, int mode) {
	gate_enter();
	return capture_began(REAL(cuStreamBeginCaptureToGraph_ptsz, CUstream, CUgraph, const CUgraphNode *, const void *, size_t, int)(s, g, after, edges, n, mode));
}

// A capture ends with an error too, but not if another thread began it.
static CUresult capture_over(int capturing, CUresult code) {
	if (capturing && code != CUDA_WRONG_THREAD)
		capture_ended();
	return code;
}

static int capturing(CUstream s) {
	int status = CAPTURE_NONE;
	return driver.cuStreamIsCapturing(s, &status) == CUDA_SUCCESS && status != CAPTURE_NONE;
}

CUresult cuStreamEndCapture(CUstream s, CUgraph *out) {
	int open = capturing(legacy(s));
	return capture_over(open, REAL(cuStreamEndCapture, CUstream, CUgraph *)(s, out));
}

CUresult cuStreamEndCapture_ptsz(CUstream s, CUgraph *out) {
	int open = capturing(per_thread(s));
	return capture_over(open, REAL(cuStreamEndCapture_ptsz, CUstream, CUgraph *)(s, out));
}

// --- what another process would hold on to, or what leaves no way to move it: refused

static CUresult refuse(const char *name, const char *reason, atomic_int *said) {
	if (atomic_exchange(said, 1) == 0)
		swap_say("refused %s: %s", name, reason);
	return CUDA_NOT_SUPPORTED;
}

#define REFUSE(name, reason) \
	CUresult name(void) { \
		static atomic_int said; \
		return refuse(#name, reason, &said); \
	}

#define SHARED "another process could not follow when the memory moves"
REFUSE(cuMemAllocManaged, "managed memory moves by itself; use cudaMalloc")
REFUSE(cuMemExportToShareableHandle, SHARED)
REFUSE(cuMemImportFromShareableHandle, SHARED)
REFUSE(cuMemGetHandleForAddressRange, SHARED)
REFUSE(cuMemPoolExportToShareableHandle, SHARED)
REFUSE(cuMemPoolImportFromShareableHandle, SHARED)
REFUSE(cuMemPoolExportPointer, SHARED)
REFUSE(cuIpcGetMemHandle, SHARED)
REFUSE(cuIpcOpenMemHandle_v2, SHARED)
REFUSE(cuMulticastCreate, "memory of several GPUs")
REFUSE(cuMemMapArrayAsync, "sparse arrays cannot be moved")
REFUSE(cuMemMapArrayAsync_ptsz, "sparse arrays cannot be moved")
