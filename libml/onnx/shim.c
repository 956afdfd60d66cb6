//go:build cgo

#define _GNU_SOURCE
#include "shim.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct OrtCUDAProviderOptionsV2;
struct OrtEnv;
struct OrtIoBinding;
struct OrtRunOptions;
struct OrtSession;
struct OrtSessionOptions;
struct OrtValue;

// --- the driver, for pools ---------------------------------------------------

typedef unsigned long long address;
typedef struct { int type; int id; } location;
typedef struct {
	int type, handle_types;
	location where;
	void *windows;
	unsigned char flags[8];
} properties;
typedef struct { location where; int flags; } access_to;
_Static_assert(sizeof(properties) == 32 && sizeof(access_to) == 12, "CUmemAllocationProp and CUmemAccessDesc");

enum {
	OUT_OF_MEMORY = 2,     // CUDA_ERROR_OUT_OF_MEMORY
	PINNED = 1,            // CU_MEM_ALLOCATION_TYPE_PINNED
	ON_DEVICE = 1,         // CU_MEM_LOCATION_TYPE_DEVICE
	READ_WRITE = 3,        // CU_MEM_ACCESS_FLAGS_PROT_READWRITE
	MEMORY_TYPE = 2,       // CU_POINTER_ATTRIBUTE_MEMORY_TYPE
	HOST_MEMORY = 1,       // CU_MEMORYTYPE_HOST
};

static struct {
	int (*reserve)(address *, size_t, size_t, address, unsigned long long);
	int (*unreserve)(address, size_t);
	int (*create)(unsigned long long *, size_t, const properties *, unsigned long long);
	int (*release)(unsigned long long);
	int (*map)(address, size_t, size_t, unsigned long long, unsigned long long);
	int (*unmap)(address, size_t);
	int (*access)(address, size_t, const access_to *, size_t);
	int (*attribute)(void *, int, address);
} driver;

// --- pools -------------------------------------------------------------------

// GRAIN is the unit of the driver's memory, and ALIGNMENT that of a pool's allocations. SPAN is
// the number of a pool's addresses: more than a GPU has memory.
#define GRAIN ((uint64_t)2 << 20)
#define ALIGNMENT ((uint64_t)512)
#define SPAN ((uint64_t)256 << 30)

// A block is an allocation, and a chunk is memory from the driver. Both are offsets from the
// pool's base, in ascending order.
struct block { uint64_t at, bytes; };
struct chunk { uint64_t at, bytes; unsigned long long memory; };

struct pool {
	struct pool *next;
	int device, scratch;
	address base;
	struct block *blocks;
	struct chunk *chunks;
	size_t block_count, block_room, chunk_count, chunk_room;
	uint64_t used, peak;
	int32_t refused;
};

static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER; // guards pools
static struct pool *pools;

static __thread struct pool *current; // of ONNX Runtime in this thread

static int32_t give_memory(int device, address at, uint64_t bytes, unsigned long long *memory) {
	properties of = {.type = PINNED, .where = {ON_DEVICE, device}};
	int32_t code = driver.create(memory, bytes, &of, 0);
	if (code != 0)
		return code;
	access_to all = {{ON_DEVICE, device}, READ_WRITE};
	code = driver.map(at, bytes, 0, *memory, 0);
	if (code == 0 && (code = driver.access(at, bytes, &all, 1)) != 0)
		driver.unmap(at, bytes);
	if (code != 0)
		driver.release(*memory);
	return code;
}

static void take_memory(struct pool *p, const struct chunk *c) {
	driver.unmap(p->base + c->at, c->bytes);
	driver.release(c->memory);
}

static int room(void **list, size_t *have, size_t need, size_t each) {
	if (need <= *have)
		return 1;
	size_t more = need * 2 + 16;
	void *grown = realloc(*list, more * each);
	if (grown == NULL)
		return 0;
	*list = grown;
	*have = more;
	return 1;
}

// fill takes memory from the driver for the parts of [at, at+bytes) that have none.
static int32_t fill(struct pool *p, uint64_t at, uint64_t bytes) {
	uint64_t end = (at + bytes + GRAIN - 1) / GRAIN * GRAIN;
	at = at / GRAIN * GRAIN;
	for (size_t i = 0; at < end;) {
		while (i < p->chunk_count && p->chunks[i].at + p->chunks[i].bytes <= at)
			i++;
		uint64_t next = i < p->chunk_count ? p->chunks[i].at : end;
		if (next <= at) {
			at = p->chunks[i].at + p->chunks[i].bytes;
			continue;
		}
		struct chunk c = {at, (next < end ? next : end) - at, 0};
		if (!room((void **)&p->chunks, &p->chunk_room, p->chunk_count + 1, sizeof c))
			return OUT_OF_MEMORY;
		int32_t code = give_memory(p->device, p->base + at, c.bytes, &c.memory);
		if (code != 0)
			return code;
		memmove(&p->chunks[i + 1], &p->chunks[i], (p->chunk_count - i) * sizeof c);
		p->chunks[i] = c;
		p->chunk_count++;
		at += c.bytes;
	}
	return 0;
}

static uint64_t allocate_locked(struct pool *p, uint64_t bytes) {
	if (bytes == 0 || bytes > SPAN)
		return 0;
	bytes = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
	uint64_t at = 0;
	size_t i = 0;
	for (; i < p->block_count && p->blocks[i].at - at < bytes; i++)
		at = p->blocks[i].at + p->blocks[i].bytes;
	if (at + bytes > SPAN || !room((void **)&p->blocks, &p->block_room, p->block_count + 1, sizeof *p->blocks)) {
		p->refused = OUT_OF_MEMORY;
		return 0;
	}
	// After a refusal the caller discards its work. Take no more memory for it.
	int32_t code = p->refused != 0 ? p->refused : fill(p, at, bytes);
	if (code != 0) {
		p->refused = code;
		return 0;
	}
	memmove(&p->blocks[i + 1], &p->blocks[i], (p->block_count - i) * sizeof *p->blocks);
	p->blocks[i] = (struct block){at, bytes};
	p->block_count++;
	p->used += bytes;
	if (at + bytes > p->peak)
		p->peak = at + bytes;
	return p->base + at;
}

static struct pool *pool_of(uint64_t word) { return (struct pool *)(uintptr_t)word; }

uint64_t pon_pool_new(int device, int scratch) {
	struct pool *p = calloc(1, sizeof *p);
	if (p == NULL)
		return 0;
	p->device = device;
	p->scratch = scratch;
	pthread_mutex_lock(&mu);
	if (driver.reserve(&p->base, SPAN, 0, 0, 0) != 0) {
		free(p);
		p = NULL;
	} else {
		p->next = pools;
		pools = p;
	}
	pthread_mutex_unlock(&mu);
	return (uintptr_t)p;
}

int32_t pon_pool_free(uint64_t word) {
	struct pool *p = pool_of(word);
	pthread_mutex_lock(&mu);
	for (struct pool **at = &pools; *at != NULL; at = &(*at)->next)
		if (*at == p) {
			*at = p->next;
			break;
		}
	for (size_t i = 0; i < p->chunk_count; i++)
		take_memory(p, &p->chunks[i]);
	int32_t code = driver.unreserve(p->base, SPAN);
	pthread_mutex_unlock(&mu);
	free(p->blocks);
	free(p->chunks);
	free(p);
	return code;
}

void pon_pool_trim(uint64_t word, uint64_t from) {
	struct pool *p = pool_of(word);
	pthread_mutex_lock(&mu);
	size_t kept = 0;
	for (size_t i = 0, b = 0; i < p->chunk_count; i++) {
		struct chunk c = p->chunks[i];
		while (b < p->block_count && p->blocks[b].at + p->blocks[b].bytes <= c.at)
			b++;
		if (c.at < from || b < p->block_count && p->blocks[b].at < c.at + c.bytes)
			p->chunks[kept++] = c;
		else
			take_memory(p, &c);
	}
	p->chunk_count = kept;
	pthread_mutex_unlock(&mu);
}

void pon_pool_mark(uint64_t word) {
	struct pool *p = pool_of(word);
	pthread_mutex_lock(&mu);
	p->refused = 0; // there may be memory now
	p->peak = p->block_count == 0 ? 0 : p->blocks[p->block_count - 1].at + p->blocks[p->block_count - 1].bytes;
	pthread_mutex_unlock(&mu);
}

uint64_t pon_pool_allocate(uint64_t word, uint64_t bytes) {
	pthread_mutex_lock(&mu);
	uint64_t at = allocate_locked(pool_of(word), bytes);
	pthread_mutex_unlock(&mu);
	return at;
}

void pon_pool_release(uint64_t at) {
	pthread_mutex_lock(&mu);
	for (struct pool *p = pools; p != NULL; p = p->next) {
		if (at < p->base || at >= p->base + SPAN)
			continue;
		for (size_t i = 0; i < p->block_count; i++)
			if (p->base + p->blocks[i].at == at) {
				p->used -= p->blocks[i].bytes;
				p->block_count--;
				memmove(&p->blocks[i], &p->blocks[i + 1], (p->block_count - i) * sizeof *p->blocks);
				break;
			}
	}
	pthread_mutex_unlock(&mu);
}

pon_pool_state pon_pool_look(uint64_t word) {
	struct pool *p = pool_of(word);
	pthread_mutex_lock(&mu);
	pon_pool_state s = {.base = p->base, .reserved = SPAN, .used = p->used, .peak = p->peak, .refused = p->refused};
	for (size_t i = 0; i < p->chunk_count; i++)
		s.mapped += p->chunks[i].bytes;
	pthread_mutex_unlock(&mu);
	return s;
}

int pon_pinned(uint64_t at) {
	unsigned type = 0;
	return driver.attribute(&type, MEMORY_TYPE, at) == 0 && type == HOST_MEMORY;
}

void pon_copy(uint64_t to, uint64_t from, uint64_t bytes) {
	memcpy((void *)(uintptr_t)to, (const void *)(uintptr_t)from, bytes);
}

// --- ONNX Runtime ------------------------------------------------------------

// ort is struct OrtApi as a table of functions.
static void *const *ort;
#define FIND(name, index, result, parameters) \
	typedef result (*name##_call) parameters; \
	static name##_call name(void) { return (name##_call)(uintptr_t)ort[index]; }
PON_CALLS(FIND)
#define ORT(name) name()

static struct OrtEnv *environment;
static struct OrtMemoryInfo *on_gpu, *pinned_by_gpu;
static struct OrtRunOptions *queued;

static pon_result done(const void *value) { return (pon_result){.value = (uintptr_t)value}; }

static pon_result wrong(const char *message) {
	char *text = strdup(message != NULL ? message : "no message");
	return (pon_result){.error = text};
}

// failed turns a status into a result, and releases it.
static pon_result failed(struct OrtStatus *status) {
	pon_result r = wrong(ORT(GetErrorMessage)(status));
	ORT(ReleaseStatus)(status);
	return r;
}

// TRY returns from the function if the call fails, after undo.
#define TRY(call, undo) do { \
		struct OrtStatus *refused = call; \
		if (refused != NULL) { \
			pon_result r = failed(refused); \
			undo; \
			return r; \
		} \
	} while (0)

pon_result pon_preload(const char *library) {
	if (dlopen(library, RTLD_NOW | RTLD_GLOBAL) == NULL)
		return wrong(dlerror());
	return done(NULL);
}

typedef struct {
	const void *(*api)(uint32_t);
	const char *(*version)(void);
} ort_base;

// no_memory throws std::bad_alloc, as ONNX Runtime's own allocators do. ONNX Runtime catches it
// and returns a status. It does not check the address that an allocator returns. With 0, its
// next kernel would write to address 0, and under MPS every process on the GPU would lose its
// context. One piece of memory at many addresses does not help either: kernels that wait for
// each other there wait for ever, and others compute addresses from its contents.
static void (*no_memory)(void);
#define NO_MEMORY "_ZSt17__throw_bad_allocv" // std::__throw_bad_alloc of the C++ library that ONNX Runtime uses

pon_result pon_open(const char *library) {
	if (ort != NULL)
		return done(ort);
	void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
	if (handle == NULL)
		return wrong(dlerror());
	const ort_base *(*base)(void) = (const ort_base *(*)(void))dlsym(handle, "OrtGetApiBase");
	if (base == NULL)
		return wrong(dlerror());
	no_memory = (void (*)(void))dlsym(handle, NO_MEMORY);
	if (no_memory == NULL)
		return wrong(dlerror());
	void *const *api = base()->api(PON_ORT_VERSION);
	if (api == NULL) {
		const char *version = base()->version();
		return wrong(version);
	}
	ort = api;
	TRY(ORT(CreateEnv)(PON_LOGGING_FATAL, "penstock", &environment), ort = NULL);
	return done(ort);
}

pon_result pon_provider(void) {
	struct OrtCUDAProviderOptionsV2 *options = NULL;
	TRY(ORT(CreateCUDAProviderOptions)(&options), );
	// Reading an option loads the library.
	const char *key = "prefer_nhwc", *value = "1";
	TRY(ORT(UpdateCUDAProviderOptions)(options, &key, &value, 1), ORT(ReleaseCUDAProviderOptions)(options));
	ORT(ReleaseCUDAProviderOptions)(options);
	return done(NULL);
}

void *pon_take(struct OrtAllocator *self, size_t bytes) {
	(void)self;
	pthread_mutex_lock(&mu);
	struct pool *p = current;
	if (p == NULL)
		for (p = pools; p != NULL && p->scratch; p = p->next)
			;
	uint64_t at = p != NULL ? allocate_locked(p, bytes) : 0;
	pthread_mutex_unlock(&mu);
	if (at == 0 && bytes != 0)
		no_memory();
	return (void *)(uintptr_t)at;
}

static void give(struct OrtAllocator *self, void *memory) {
	(void)self;
	pon_pool_release((uintptr_t)memory);
}

static const struct OrtMemoryInfo *about(const struct OrtAllocator *self) {
	(void)self;
	return on_gpu;
}

pon_result pon_start(const pon_driver *d) {
	static struct pon_allocator ours = {PON_ORT_VERSION, pon_take, give, about, pon_take, NULL, NULL};
#define PLACE(name) *(uint64_t *)&driver.name = d->name
	PLACE(reserve);
	PLACE(unreserve);
	PLACE(create);
	PLACE(release);
	PLACE(map);
	PLACE(unmap);
	PLACE(access);
	PLACE(attribute);
	if (ort == NULL || queued != NULL)
		return done(NULL);
	if (on_gpu == NULL)
		TRY(ORT(CreateMemoryInfo)("Cuda", PON_DEVICE_ALLOCATOR, 0, PON_MEMORY_DEFAULT, &on_gpu), on_gpu = NULL);
	if (pinned_by_gpu == NULL)
		TRY(ORT(CreateMemoryInfo)("CudaPinned", PON_DEVICE_ALLOCATOR, 0, PON_MEMORY_HOST, &pinned_by_gpu),
			pinned_by_gpu = NULL);
	TRY(ORT(RegisterAllocator)(environment, (struct OrtAllocator *)&ours), );
	struct OrtRunOptions *options = NULL;
	TRY(ORT(CreateRunOptions)(&options), );
	TRY(ORT(AddRunConfigEntry)(options, "disable_synchronize_execution_providers", "1"), );
	queued = options;
	return done(NULL);
}

struct settings {
	struct OrtSessionOptions *session;
	struct OrtCUDAProviderOptionsV2 *provider;
};

static struct settings *settings_of(uint64_t word) { return (struct settings *)(uintptr_t)word; }

void pon_settings_free(uint64_t word) {
	struct settings *s = settings_of(word);
	if (s->session != NULL)
		ORT(ReleaseSessionOptions)(s->session);
	if (s->provider != NULL)
		ORT(ReleaseCUDAProviderOptions)(s->provider);
	free(s);
}

pon_result pon_settings(void) {
	struct settings *s = calloc(1, sizeof *s);
	if (s == NULL)
		return wrong("out of memory");
#define UNDO pon_settings_free((uintptr_t)s)
	TRY(ORT(CreateSessionOptions)(&s->session), UNDO);
	TRY(ORT(CreateCUDAProviderOptions)(&s->provider), UNDO);
	TRY(ORT(SetSessionExecutionMode)(s->session, PON_SEQUENTIAL), UNDO);
	TRY(ORT(SetIntraOpNumThreads)(s->session, 1), UNDO);
	TRY(ORT(SetInterOpNumThreads)(s->session, 1), UNDO);
	TRY(ORT(DisableMemPattern)(s->session), UNDO);
#undef UNDO
	return done(s);
}

pon_result pon_set(uint64_t settings, const char *key, const char *value) {
	TRY(ORT(AddSessionConfigEntry)(settings_of(settings)->session, key, value), );
	return done(NULL);
}

pon_result pon_set_provider(uint64_t settings, const char *const *keys, const char *const *values, size_t count) {
	TRY(ORT(UpdateCUDAProviderOptions)(settings_of(settings)->provider, keys, values, count), );
	return done(NULL);
}

pon_result pon_set_stream(uint64_t settings, uint64_t stream) {
	TRY(ORT(UpdateCUDAProviderOptionsWithValue)(settings_of(settings)->provider, "user_compute_stream",
		(void *)(uintptr_t)stream), );
	return done(NULL);
}

pon_result pon_set_level(uint64_t settings, int level) {
	TRY(ORT(SetSessionGraphOptimizationLevel)(settings_of(settings)->session, (unsigned)level), );
	return done(NULL);
}

pon_result pon_set_saved(uint64_t settings, const char *path) {
	TRY(ORT(SetOptimizedModelFilePath)(settings_of(settings)->session, path), );
	return done(NULL);
}

pon_result pon_value(uint64_t at, uint64_t bytes, const int64_t *shape, size_t rank, unsigned element) {
	struct OrtValue *value = NULL;
	TRY(ORT(CreateTensorWithDataAsOrtValue)(on_gpu, (void *)(uintptr_t)at, bytes, shape, rank, element, &value), );
	return done(value);
}

void pon_value_free(uint64_t value) { ORT(ReleaseValue)((struct OrtValue *)(uintptr_t)value); }

pon_result pon_set_initializer(uint64_t settings, const char *name, uint64_t value) {
	TRY(ORT(AddInitializer)(settings_of(settings)->session, name, (const struct OrtValue *)(uintptr_t)value), );
	return done(NULL);
}

pon_result pon_session(uint64_t settings, const void *model, size_t bytes, uint64_t weights) {
	struct settings *s = settings_of(settings);
	struct OrtSession *session = NULL;
	current = pool_of(weights);
	struct OrtStatus *status = ORT(SessionOptionsAppendExecutionProvider_CUDA_V2)(s->session, s->provider);
	if (status == NULL)
		status = ORT(CreateSessionFromArray)(environment, model, bytes, s->session, &session);
	current = NULL;
	TRY(status, );
	return done(session);
}

uint64_t pon_session_free(uint64_t session) {
	struct OrtSession *s = (struct OrtSession *)(uintptr_t)session;
	struct OrtAllocator *rest = NULL;
	struct OrtStatus *status = ORT(CreateAllocator)(s, pinned_by_gpu, &rest);
	if (status != NULL) {
		ORT(ReleaseStatus)(status);
		rest = NULL;
	}
	ORT(ReleaseSession)(s);
	return (uintptr_t)rest;
}

void pon_rest_free(uint64_t rest) { ORT(ReleaseAllocator)((struct OrtAllocator *)(uintptr_t)rest); }

pon_result pon_binding(uint64_t session) {
	struct OrtIoBinding *binding = NULL;
	TRY(ORT(CreateIoBinding)((struct OrtSession *)(uintptr_t)session, &binding), );
	return done(binding);
}

void pon_binding_free(uint64_t binding) { ORT(ReleaseIoBinding)((struct OrtIoBinding *)(uintptr_t)binding); }

pon_result pon_bind(uint64_t binding, int output, const char *name, uint64_t at, uint64_t bytes,
	const int64_t *shape, size_t rank, unsigned element) {
	struct OrtIoBinding *b = (struct OrtIoBinding *)(uintptr_t)binding;
	struct OrtValue *value = NULL;
	TRY(ORT(CreateTensorWithDataAsOrtValue)(on_gpu, (void *)(uintptr_t)at, bytes, shape, rank, element, &value), );
	struct OrtStatus *status = output ? ORT(BindOutput)(b, name, value) : ORT(BindInput)(b, name, value);
	ORT(ReleaseValue)(value); // the binding has its own reference
	TRY(status, );
	return done(NULL);
}

pon_result pon_run(uint64_t session, uint64_t binding, uint64_t scratch) {
	current = pool_of(scratch);
	struct OrtStatus *status = ORT(RunWithBinding)((struct OrtSession *)(uintptr_t)session, queued,
		(const struct OrtIoBinding *)(uintptr_t)binding);
	current = NULL;
	TRY(status, );
	return done(NULL);
}
