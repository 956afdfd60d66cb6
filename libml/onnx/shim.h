// How Go calls ONNX Runtime's C API, and the allocator that ONNX Runtime calls. Handles and addresses are 64-bit words.

#ifndef PENSTOCK_ONNX_SHIM_H
#define PENSTOCK_ONNX_SHIM_H

#include <stddef.h>
#include <stdint.h>

struct OrtAllocator;
struct OrtKeyValuePairs;
struct OrtMemoryInfo;
struct OrtStatus;
struct OrtSyncStream;

// result is what the function returned, and out what it wrote.
typedef struct { uint64_t result, out; } pon_result;

// pon_call calls a function whose parameters are integers and pointers. It passes up to PON_MAX_ARGUMENTS arguments and,
// behind fewer of them, the address of out. A function without a result ignores that. Meanwhile, pon_take allocates in the pool.
enum { PON_MAX_ARGUMENTS = 8 };
typedef struct { size_t count; uint64_t words[PON_MAX_ARGUMENTS + 1]; } pon_arguments;
pon_result pon_call(uint64_t function, pon_arguments arguments, uint64_t pool);

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

// pon_pools returns the address of the pon_allocator of this kind of memory. no_memory is std::__throw_bad_alloc of
// the C++ library that ONNX Runtime uses.
uint64_t pon_pools(uint32_t version, uint64_t information, uint64_t no_memory);

#endif
