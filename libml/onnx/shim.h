// What Go calls of ONNX Runtime on a GPU: the C API by its table's indices, and the
// allocator that ONNX Runtime takes device memory from. Handles and addresses are
// 64-bit words. The CPU path does not come here.

#ifndef PENSTOCK_ONNX_SHIM_H
#define PENSTOCK_ONNX_SHIM_H

#include <stddef.h>
#include <stdint.h>

struct OrtAllocator;
struct OrtKeyValuePairs;
struct OrtMemoryInfo;
struct OrtStatus;
struct OrtSyncStream;

// pon_result has error NULL where all went well; else it is ONNX Runtime's or the
// loader's message, which the caller frees, and code says of what kind it is
// (OrtErrorCode; -1 for the loader's).
typedef struct { uint64_t value; char *error; int32_t code; } pon_result;

// pon_preload loads a library for all that are loaded after it.
pon_result pon_preload(const char *library);
// pon_open opens ONNX Runtime, once a process, or finds it open.
pon_result pon_open(const char *library);
// pon_provider loads the CUDA provider's library, and calls nothing of CUDA.
pon_result pon_provider(void);

// pon_driver is where the driver's functions are that pools are made with.
typedef struct {
	uint64_t reserve, unreserve, create, release, map, unmap, access, attribute;
} pon_driver;

// pon_start says where the driver's functions are, and has ONNX Runtime's sessions on
// a GPU take their memory from pools; once a process.
pon_result pon_start(const pon_driver *driver);

// A pool is a range of addresses of the GPU, some of it with memory, that is handed
// out from the lowest address on. The calling thread's context is bound.
uint64_t pon_pool_new(int device);
int32_t pon_pool_free(uint64_t pool);
// pon_pool_trim gives back memory that nothing handed out lies in.
int32_t pon_pool_trim(uint64_t pool);
// pon_pool_mark has peak begin anew, and forgets refusals.
void pon_pool_mark(uint64_t pool);
// pon_pool_allocate returns 0 where there is no memory, and until the next mark from
// then on.
uint64_t pon_pool_allocate(uint64_t pool, uint64_t bytes);
void pon_pool_release(uint64_t address);
typedef struct {
	uint64_t base, reserved; // addresses
	uint64_t mapped, used;   // bytes
	uint64_t peak;           // bytes from base that were in use at once, since the mark
	int32_t refused;         // what the driver said when it had no more memory, or 0
} pon_pool_state;
pon_pool_state pon_pool_look(uint64_t pool);

// pon_take is what ONNX Runtime takes memory with, from the pool that the calling thread
// runs a session with. Where there is none it throws std::bad_alloc.
void *pon_take(struct OrtAllocator *self, size_t bytes);

// Settings of a session, of ONNX Runtime's own and of its CUDA provider.
pon_result pon_settings(void);
void pon_settings_free(uint64_t settings);
pon_result pon_set(uint64_t settings, const char *key, const char *value);
// pon_set_provider sets all of the provider's options: those that are not named get
// their defaults, whatever was set before.
pon_result pon_set_provider(uint64_t settings, const char *const *keys, const char *const *values, size_t count);
pon_result pon_set_stream(uint64_t settings, uint64_t stream);
// pon_set_level sets how much of a graph is optimised: 0 is nothing (ORT_DISABLE_ALL).
pon_result pon_set_level(uint64_t settings, int level);
// pon_set_saved has the session save its optimised model.
pon_result pon_set_saved(uint64_t settings, const char *path);
// pon_value is a tensor at an address of the GPU, and pon_set_initializer puts it in the
// place of a model's weights. It outlives the session.
pon_result pon_value(uint64_t address, uint64_t bytes, const int64_t *shape, size_t rank, unsigned element);
void pon_value_free(uint64_t value);
pon_result pon_set_initializer(uint64_t settings, const char *name, uint64_t value);

// pon_session makes a session, whose weights lie in the pool. It uses settings up:
// they can only be freed after it.
pon_result pon_session(uint64_t settings, const void *model, size_t bytes, uint64_t weights);
// pon_session_free gives a session back. What it returns, if not 0, is to be given to
// pon_rest_free once the session's stream has done all that was queued: ONNX Runtime
// queues a call there that gives pinned memory back, and where that call turns out to
// be the last to hold its allocator, it calls CUDA, which is not allowed there and
// ends the process.
uint64_t pon_session_free(uint64_t session);
void pon_rest_free(uint64_t rest);

// A binding is what a session reads and writes. Tensors are addresses of the GPU;
// element is an ONNXTensorElementDataType.
pon_result pon_binding(uint64_t session);
void pon_binding_free(uint64_t binding);
pon_result pon_bind(uint64_t binding, int output, const char *name, uint64_t address, uint64_t bytes,
	const int64_t *shape, size_t rank, unsigned element);

// pon_run queues the model on the session's stream. What it needs besides is taken
// from scratch and given back before it returns: work that is queued later may use the
// same memory.
pon_result pon_run(uint64_t session, uint64_t binding, uint64_t scratch);

// pon_pinned says whether an address is one of pinned host memory; pon_copy copies
// within the host.
int pon_pinned(uint64_t address);
void pon_copy(uint64_t to, uint64_t from, uint64_t bytes);

// ORT_VERSION is the API's that indices and prototypes are of: that of
// onnxruntime_c_api.h 1.24, which later libraries serve.
enum { PON_ORT_VERSION = 24 };

// pon_allocator is struct OrtAllocator.
struct pon_allocator {
	uint32_t version;
	void *(*allocate)(struct OrtAllocator *, size_t);
	void (*release)(struct OrtAllocator *, void *);
	const struct OrtMemoryInfo *(*information)(const struct OrtAllocator *);
	void *(*reserve)(struct OrtAllocator *, size_t);
	struct OrtStatus *(*statistics)(const struct OrtAllocator *, struct OrtKeyValuePairs **);
	void *(*allocate_on_stream)(struct OrtAllocator *, size_t, struct OrtSyncStream *);
};

// Constants, as onnxruntime_c_api.h has them.
enum {
	PON_LOGGING_FATAL = 4,      // ORT_LOGGING_LEVEL_FATAL
	PON_SEQUENTIAL = 0,         // ORT_SEQUENTIAL
	PON_DEVICE_ALLOCATOR = 0,   // OrtDeviceAllocator
	PON_MEMORY_DEFAULT = 0,     // OrtMemTypeDefault
	PON_MEMORY_HOST = -1,       // OrtMemTypeCPUOutput
	PON_FLOAT = 1,              // ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT
	PON_UINT8 = 2,              // ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8
	PON_FLOAT16 = 10,           // ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16
};

// PON_CALLS lists what is used of struct OrtApi: name, index, result, parameters.
#define PON_CALLS(CALL) \
	CALL(GetErrorCode, 1, unsigned, (const struct OrtStatus *)) \
	CALL(GetErrorMessage, 2, const char *, (const struct OrtStatus *)) \
	CALL(CreateEnv, 3, struct OrtStatus *, (unsigned, const char *, struct OrtEnv **)) \
	CALL(CreateSessionFromArray, 8, struct OrtStatus *, (const struct OrtEnv *, const void *, size_t, \
		const struct OrtSessionOptions *, struct OrtSession **)) \
	CALL(CreateSessionOptions, 10, struct OrtStatus *, (struct OrtSessionOptions **)) \
	CALL(SetOptimizedModelFilePath, 11, struct OrtStatus *, (struct OrtSessionOptions *, const char *)) \
	CALL(SetSessionExecutionMode, 13, struct OrtStatus *, (struct OrtSessionOptions *, unsigned)) \
	CALL(DisableMemPattern, 17, struct OrtStatus *, (struct OrtSessionOptions *)) \
	CALL(SetSessionGraphOptimizationLevel, 23, struct OrtStatus *, (struct OrtSessionOptions *, unsigned)) \
	CALL(SetIntraOpNumThreads, 24, struct OrtStatus *, (struct OrtSessionOptions *, int)) \
	CALL(SetInterOpNumThreads, 25, struct OrtStatus *, (struct OrtSessionOptions *, int)) \
	CALL(CreateRunOptions, 39, struct OrtStatus *, (struct OrtRunOptions **)) \
	CALL(CreateTensorWithDataAsOrtValue, 49, struct OrtStatus *, (const struct OrtMemoryInfo *, void *, size_t, \
		const int64_t *, size_t, unsigned, struct OrtValue **)) \
	CALL(CreateMemoryInfo, 68, struct OrtStatus *, (const char *, int, int, int, struct OrtMemoryInfo **)) \
	CALL(ReleaseStatus, 93, void, (struct OrtStatus *)) \
	CALL(ReleaseSession, 95, void, (struct OrtSession *)) \
	CALL(ReleaseValue, 96, void, (struct OrtValue *)) \
	CALL(ReleaseSessionOptions, 100, void, (struct OrtSessionOptions *)) \
	CALL(AddSessionConfigEntry, 130, struct OrtStatus *, (struct OrtSessionOptions *, const char *, const char *)) \
	CALL(RunWithBinding, 133, struct OrtStatus *, (struct OrtSession *, const struct OrtRunOptions *, \
		const struct OrtIoBinding *)) \
	CALL(CreateAllocator, 131, struct OrtStatus *, (const struct OrtSession *, const struct OrtMemoryInfo *, \
		struct OrtAllocator **)) \
	CALL(ReleaseAllocator, 132, void, (struct OrtAllocator *)) \
	CALL(CreateIoBinding, 134, struct OrtStatus *, (struct OrtSession *, struct OrtIoBinding **)) \
	CALL(ReleaseIoBinding, 135, void, (struct OrtIoBinding *)) \
	CALL(BindInput, 136, struct OrtStatus *, (struct OrtIoBinding *, const char *, const struct OrtValue *)) \
	CALL(BindOutput, 137, struct OrtStatus *, (struct OrtIoBinding *, const char *, const struct OrtValue *)) \
	CALL(AddInitializer, 150, struct OrtStatus *, (struct OrtSessionOptions *, const char *, const struct OrtValue *)) \
	CALL(AddRunConfigEntry, 165, struct OrtStatus *, (struct OrtRunOptions *, const char *, const char *)) \
	CALL(RegisterAllocator, 176, struct OrtStatus *, (struct OrtEnv *, struct OrtAllocator *)) \
	CALL(SessionOptionsAppendExecutionProvider_CUDA_V2, 204, struct OrtStatus *, (struct OrtSessionOptions *, \
		const struct OrtCUDAProviderOptionsV2 *)) \
	CALL(CreateCUDAProviderOptions, 205, struct OrtStatus *, (struct OrtCUDAProviderOptionsV2 **)) \
	CALL(UpdateCUDAProviderOptions, 206, struct OrtStatus *, (struct OrtCUDAProviderOptionsV2 *, \
		const char *const *, const char *const *, size_t)) \
	CALL(ReleaseCUDAProviderOptions, 208, void, (struct OrtCUDAProviderOptionsV2 *)) \
	CALL(UpdateCUDAProviderOptionsWithValue, 263, struct OrtStatus *, (struct OrtCUDAProviderOptionsV2 *, \
		const char *, void *))

#endif
