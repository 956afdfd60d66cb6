// A library that is preloaded into guests. Before each kernel, it queues a wait on the kernel's stream: the GPU
// begins the kernel when no function has a batch on it. PENSTOCK_YIELD names the file of the busy word
// (shm/busy.go), which the GPU reads by itself.

#define _GNU_SOURCE
#define PRELOAD_LIBRARY "yield"
#include "../../preload/names.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { WAIT_VALUE_EQ = 1 };
enum { REGISTER_PORTABLE = 1, REGISTER_DEVICEMAP = 2, REGISTER_READ_ONLY = 8 };

typedef struct { // CUlaunchConfig
	unsigned grid[3], block[3], shared_bytes;
	CUstream stream;
	void *attributes;
	unsigned count;
} LaunchConfig;
_Static_assert(offsetof(LaunchConfig, stream) == 32, "CUlaunchConfig");

// LAUNCHES lists the functions that launch: name, parameters, arguments, and the stream. Each has a second
// form, with _ptsz, for which a null stream is the thread's.
#define LAUNCHES(X) \
	X(cuLaunchKernel, (void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned n, CUstream s, void **p, void **x), \
		(f, gx, gy, gz, bx, by, bz, n, s, p, x), s) \
	X(cuLaunchKernelEx, (const LaunchConfig *c, void *f, void **p, void **x), (c, f, p, x), (c != NULL ? c->stream : NULL)) \
	X(cuLaunchCooperativeKernel, (void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned n, CUstream s, void **p), \
		(f, gx, gy, gz, bx, by, bz, n, s, p), s) \
	X(cuGraphLaunch, (void *graph, CUstream s), (graph, s), s)

// The driver's functions. A function is NULL if the driver is too old for it.
static struct {
	CUresult (*cuMemHostRegister_v2)(void *, size_t, unsigned);
	CUresult (*cuMemHostUnregister)(void *);
	CUresult (*cuMemHostGetDevicePointer_v2)(CUdeviceptr *, void *, unsigned);
	CUresult (*cuStreamWaitValue64_v2)(CUstream, CUdeviceptr, uint64_t, unsigned);
	CUresult (*cuStreamIsCapturing)(CUstream, int *);
	CUresult (*cuThreadExchangeStreamCaptureMode)(int *);
#define X(name, parameters, arguments, stream) CUresult (*name) parameters; CUresult (*name##_ptsz) parameters;
	LAUNCHES(X)
#undef X
} driver;

static void say(const char *format, ...) {
	va_list arguments;
	va_start(arguments, format);
	preload_say("yield", format, arguments);
	va_end(arguments);
}

// --- the wait

enum state { NEW, WAITS, PASSES };
static atomic_int state;
static CUdeviceptr word; // the busy word's address for the GPU; valid in WAITS

// finding guards what follows.
static pthread_mutex_t finding = PTHREAD_MUTEX_INITIALIZER;
static void *page;
static int registrations;

// give_up_locked lets all kernels pass from now on, and says why.
static void give_up_locked(const char *what, const char *why) {
	atomic_store(&state, PASSES);
	say("%s: %s; kernels do not wait for functions", what, why);
}

static void give_up_on_locked(const char *what, CUresult code) {
	char why[32];
	snprintf(why, sizeof why, "CUDA error %d", code);
	give_up_locked(what, why);
}

static int too_old(void) {
	return driver.cuStreamWaitValue64_v2 == NULL || driver.cuMemHostRegister_v2 == NULL || driver.cuMemHostUnregister == NULL ||
		driver.cuMemHostGetDevicePointer_v2 == NULL || driver.cuStreamIsCapturing == NULL || driver.cuThreadExchangeStreamCaptureMode == NULL;
}

// map_page_locked maps the file, and reports whether it did.
static int map_page_locked(const char *path) {
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	void *p = fd < 0 ? MAP_FAILED : mmap(NULL, sysconf(_SC_PAGESIZE), PROT_READ, MAP_SHARED, fd, 0);
	if (p == MAP_FAILED)
		give_up_locked(path, strerror(errno));
	else
		page = p;
	if (fd >= 0)
		close(fd);
	return page != NULL;
}

// register_page_locked lets the GPU read the page. A context of the program is current. Another stream's
// capture does not allow that in its default mode, and would end.
static void register_page_locked(void) {
	int mode = CAPTURE_RELAXED;
	driver.cuThreadExchangeStreamCaptureMode(&mode);
	if (registrations++ > 0)
		driver.cuMemHostUnregister(page); // fails if its context has ended
	CUresult code = driver.cuMemHostRegister_v2(page, sysconf(_SC_PAGESIZE), REGISTER_PORTABLE | REGISTER_DEVICEMAP | REGISTER_READ_ONLY);
	if (code != CUDA_SUCCESS)
		give_up_on_locked("register the busy word", code);
	else if ((code = driver.cuMemHostGetDevicePointer_v2(&word, page, 0)) != CUDA_SUCCESS)
		give_up_on_locked("find the busy word's address", code);
	else
		atomic_store(&state, WAITS);
	driver.cuThreadExchangeStreamCaptureMode(&mode);
}

static void find_word(void) {
	pthread_mutex_lock(&finding);
	const char *path = getenv("PENSTOCK_YIELD");
	if (atomic_load(&state) != NEW)
		;
	else if (path == NULL || *path == 0)
		atomic_store(&state, PASSES);
	else if (too_old())
		give_up_locked("wait for functions", "the driver is too old");
	else if (map_page_locked(path))
		register_page_locked();
	pthread_mutex_unlock(&finding);
}

// register_again is called after a wait that failed. The context that registered the page may have ended.
static void register_again(CUresult code) {
	pthread_mutex_lock(&finding);
	if (atomic_load(&state) == WAITS) {
		if (registrations == 1)
			register_page_locked();
		else
			give_up_on_locked("wait for functions", code);
	}
	pthread_mutex_unlock(&finding);
}

// yield makes what is queued next on a stream wait. In a capture the wait would become a part of the graph.
static void yield(CUstream s) {
	int capture = CAPTURE_NONE;
	if (atomic_load_explicit(&state, memory_order_acquire) == PASSES)
		return;
	if (driver.cuStreamIsCapturing != NULL && (driver.cuStreamIsCapturing(s, &capture) != CUDA_SUCCESS || capture != CAPTURE_NONE))
		return;
	if (atomic_load_explicit(&state, memory_order_acquire) == NEW)
		find_word();
	while (atomic_load_explicit(&state, memory_order_acquire) == WAITS) {
		CUresult code = driver.cuStreamWaitValue64_v2(s, word, 0, WAIT_VALUE_EQ);
		if (code == CUDA_SUCCESS)
			return;
		register_again(code);
	}
}

// --- names

static int find_functions(void) {
#define FIND(name) driver.name = next_dlsym(library, #name);
	FIND(cuMemHostRegister_v2)
	FIND(cuMemHostUnregister)
	FIND(cuMemHostGetDevicePointer_v2)
	FIND(cuStreamWaitValue64_v2)
	FIND(cuStreamIsCapturing)
	FIND(cuThreadExchangeStreamCaptureMode)
#define X(name, parameters, arguments, stream) FIND(name) FIND(name##_ptsz)
	LAUNCHES(X)
#undef X
	atomic_store(&loaded, 1);
	return 1;
}

// --- what programs call

#define X(name, parameters, arguments, stream) \
	PUBLIC CUresult name parameters { \
		if (!load_driver() || driver.name == NULL) \
			return CUDA_NOT_FOUND; \
		CUstream on = stream; \
		yield(on != NULL ? on : STREAM_LEGACY); \
		return driver.name arguments; \
	} \
	PUBLIC CUresult name##_ptsz parameters { \
		if (!load_driver() || driver.name##_ptsz == NULL) \
			return CUDA_NOT_FOUND; \
		CUstream on = stream; \
		yield(on != NULL ? on : STREAM_PER_THREAD); \
		return driver.name##_ptsz arguments; \
	}
LAUNCHES(X)
#undef X

static const struct { const char *base, *name; void *function; int per_thread; } own[] = {
#define X(name, parameters, arguments, stream) {#name, #name, (void *)name, 0}, {#name, #name "_ptsz", (void *)name##_ptsz, 1},
	LAUNCHES(X)
#undef X
	{"", "cuGetProcAddress", (void *)cuGetProcAddress, 0},
	{"", "cuGetProcAddress_v2", (void *)cuGetProcAddress_v2, 0},
};

static void *by_symbol(const char *name, void *function) {
	for (size_t i = 0; i < sizeof own / sizeof *own; i++)
		if (strcmp(own[i].name, name) == 0)
			return own[i].function;
	return function;
}

static void *by_version(const char *name, int version, int per_thread, void *function) {
	if (strcmp(name, "cuGetProcAddress") == 0)
		return version >= 12000 ? (void *)cuGetProcAddress_v2 : (void *)cuGetProcAddress;
	for (size_t i = 0; i < sizeof own / sizeof *own; i++)
		if (strcmp(own[i].base, name) == 0 && own[i].per_thread == per_thread)
			return own[i].function;
	return function;
}
