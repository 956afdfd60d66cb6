// The functions that Go calls for ONNX Runtime on a GPU: its C API, by the indices of its
// table, and the allocator of its device memory. Handles and addresses are 64-bit words. The
// CPU path does not use them.

#ifndef PENSTOCK_ONNX_SHIM_H
#define PENSTOCK_ONNX_SHIM_H

#include <stddef.h>
#include <stdint.h>

struct OrtAllocator;
struct OrtKeyValuePairs;
struct OrtMemoryInfo;
struct OrtStatus;
struct OrtSyncStream;

// pon_result has a value, or the message of ONNX Runtime or of the loader, which the caller
// frees.
typedef struct { uint64_t value; char *error; } pon_result;

// pon_preload loads a library. Libraries that are loaded later can use it.
pon_result pon_preload(const char *library);
// pon_open opens ONNX Runtime, unless it is open.
pon_result pon_open(const char *library);
// pon_provider loads the CUDA provider's library, and calls nothing of CUDA.
pon_result pon_provider(void);

// pon_driver has the addresses of the driver's functions for pools.
typedef struct {
	uint64_t reserve, unreserve, create, release, map, unmap, access, attribute;
} pon_driver;

// pon_start makes ONNX Runtime's sessions on a GPU take their memory from pools. It is called
// once per process.
pon_result pon_start(const pon_driver *driver);

// A pool is a range of the GPU's addresses, and some of them have memory. An allocation gets the
// lowest free addresses. The calling thread is bound to the context.
//
// Captured graphs write to a scratch pool's free addresses. So nothing stays allocated in one, and
// pon_take uses one only in pon_run.
uint64_t pon_pool_new(int device, int scratch);
int32_t pon_pool_free(uint64_t pool);
// pon_pool_trim releases memory without allocations in it, from an offset in the pool on.
void pon_pool_trim(uint64_t pool, uint64_t from);
// pon_pool_mark resets peak and refused.
void pon_pool_mark(uint64_t pool);
// pon_pool_allocate returns 0 if there is no memory. Until the next mark it then always does.
uint64_t pon_pool_allocate(uint64_t pool, uint64_t bytes);
void pon_pool_release(uint64_t address);
typedef struct {
	uint64_t base, reserved; // addresses
	uint64_t mapped, used;   // bytes
	uint64_t peak;           // bytes from base to the highest address in use since the mark
	int32_t refused;         // the driver's error when it had no more memory, or 0
} pon_pool_state;
pon_pool_state pon_pool_look(uint64_t pool);

// pon_take allocates memory for ONNX Runtime, from the pool of the session that the calling
// thread makes or runs. It throws std::bad_alloc if there is none.
void *pon_take(struct OrtAllocator *self, size_t bytes);

// Settings of a session: ONNX Runtime's and those of its CUDA provider.
pon_result pon_settings(void);
void pon_settings_free(uint64_t settings);
pon_result pon_set(uint64_t settings, const char *key, const char *value);
// pon_set_provider sets all of the provider's options. Options without a key get their
// defaults.
pon_result pon_set_provider(uint64_t settings, const char *const *keys, const char *const *values, size_t count);
pon_result pon_set_stream(uint64_t settings, uint64_t stream);
// pon_set_level sets the optimisation level: 0 is none (ORT_DISABLE_ALL).
pon_result pon_set_level(uint64_t settings, int level);
// pon_set_saved makes the session save its optimised model.
pon_result pon_set_saved(uint64_t settings, const char *path);
// pon_value makes a tensor at an address of the GPU. pon_set_initializer makes the session use
// it in place of the model's weights. The tensor has to outlive the session.
pon_result pon_value(uint64_t address, uint64_t bytes, const int64_t *shape, size_t rank, unsigned element);
void pon_value_free(uint64_t value);
pon_result pon_set_initializer(uint64_t settings, const char *name, uint64_t value);

// pon_session makes a session with its weights in the pool. Afterwards settings can only be
// freed.
pon_result pon_session(uint64_t settings, const void *model, size_t bytes, uint64_t weights);
// pon_session_free releases a session. If it returns another value than 0, the caller passes
// that to pon_rest_free after it has synchronized the session's stream. ONNX Runtime queues a
// call on the stream that releases pinned memory. If that call held the last reference to
// the allocator, it would call CUDA from the stream, which ends the process.
uint64_t pon_session_free(uint64_t session);
void pon_rest_free(uint64_t rest);

// A binding has a session's input and outputs. They are addresses of the GPU. element is an
// ONNXTensorElementDataType.
pon_result pon_binding(uint64_t session);
void pon_binding_free(uint64_t binding);
pon_result pon_bind(uint64_t binding, int output, const char *name, uint64_t address, uint64_t bytes,
	const int64_t *shape, size_t rank, unsigned element);

// pon_run queues the model on the session's stream. It allocates temporary memory in scratch,
// and releases it before it returns: work that is queued later may use the same memory.
pon_result pon_run(uint64_t session, uint64_t binding, uint64_t scratch);

// pon_pinned reports whether an address is in pinned host memory. pon_copy copies host memory.
int pon_pinned(uint64_t address);
void pon_copy(uint64_t to, uint64_t from, uint64_t bytes);

// PON_ORT_VERSION is the API version of the indices and prototypes: onnxruntime_c_api.h 1.24.
// Later libraries support it.
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

// Constants of onnxruntime_c_api.h.
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

// PON_CALLS lists the functions of struct OrtApi that are used: name, index, result, parameters.
#define PON_CALLS(CALL) \
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
