//go:build cgo

#include "shim.h"

// The functions of Go: ponAllocate returns 0 if there is no memory.
uint64_t ponAllocate(uint64_t pool, uint64_t bytes);
void ponRelease(uint64_t address);

static __thread uint64_t current; // pool of ONNX Runtime in this thread

// x86-64 passes the first six integers and pointers in registers of 64 bits and the next two in words of the stack,
// arm64 passes all eight in registers. A function ignores words beyond its parameters, and the upper half of a word
// that has an int.
pon_result pon_call(uint64_t function, pon_arguments arguments, uint64_t pool) {
	typedef uint64_t (*call)(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t);
	pon_result r = {0};
	uint64_t *a = arguments.words;
	a[arguments.count] = (uintptr_t)&r.out;
	current = pool;
	r.result = ((call)(uintptr_t)function)(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7]);
	current = 0;
	return r;
}

static const struct OrtMemoryInfo *on_gpu;
static void (*no_memory)(void);

// pon_take throws std::bad_alloc if there is no memory, as ONNX Runtime's own allocators do. ONNX Runtime catches it
// and returns a status. It does not check the address that an allocator returns. With 0, its
// next kernel would write to address 0, and under MPS every process on the GPU would lose its
// context. One piece of memory at many addresses does not help either: kernels that wait for
// each other there wait for ever, and others compute addresses from its contents.
void *pon_take(struct OrtAllocator *self, size_t bytes) {
	(void)self;
	uint64_t at = ponAllocate(current, bytes);
	if (at == 0 && bytes != 0)
		no_memory();
	return (void *)(uintptr_t)at;
}

static void give(struct OrtAllocator *self, void *memory) {
	(void)self;
	ponRelease((uintptr_t)memory);
}

static const struct OrtMemoryInfo *about(const struct OrtAllocator *self) {
	(void)self;
	return on_gpu;
}

uint64_t pon_pools(uint32_t version, uint64_t information, uint64_t throws) {
	static struct pon_allocator ours = {.allocate = pon_take, .release = give, .information = about, .reserve = pon_take};
	ours.version = version;
	on_gpu = (const struct OrtMemoryInfo *)(uintptr_t)information;
	no_memory = (void (*)(void))(uintptr_t)throws;
	return (uintptr_t)&ours;
}
