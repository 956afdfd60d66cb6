// A libcuda.so.1 without a GPU, with what guests and the swap library call. Device memory is
// memory of the host at real addresses: use of what is not mapped ends the process. All processes
// with the same FAKE_GPU (a file) share FAKE_GPU_MEMORY bytes. One thread does the work of all
// streams in order. Every kernel takes FAKE_GPU_US. One of no words never ends.
//
// The functions that allocate otherwise than by cuMemCreate fail: the library must replace them.

#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

typedef int R;
typedef uint64_t P;
enum { OK, INVALID, NO_MEMORY, NO_CONTEXT = 201, NOT_FOUND = 500, NOT_READY = 600, UNSUPPORTED_IN_CAPTURE = 900, INVALIDATED = 901, NATIVE = 999 };
enum { GRANULARITY = 2 << 20, SLOTS = 256 };

static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static int context_object, initialised;
static __thread void *current[16];
static __thread int depth;

// --- memory

static struct { struct { int pid; int64_t bytes; } slots[SLOTS]; } *shared;
static int shared_fd;

static void open_shared(void) {
	shared_fd = open(getenv("FAKE_GPU"), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	if (shared_fd < 0 || ftruncate(shared_fd, sizeof *shared) != 0)
		abort();
	shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, shared_fd, 0);
	if (shared == MAP_FAILED)
		abort();
}

static int64_t limit(void) { return atoll(getenv("FAKE_GPU_MEMORY")); }

// gone says whether a process has ended; a zombie has no memory left.
static int gone(int pid) {
	char path[64], state = 'Z';
	snprintf(path, sizeof path, "/proc/%d/stat", pid);
	FILE *f = fopen(path, "re");
	if (f == NULL)
		return 1;
	if (fscanf(f, "%*d (%*[^)]) %c", &state) != 1)
		state = 'Z';
	fclose(f);
	return state == 'Z' || state == 'X';
}

// take changes what this process has; it returns the free bytes, or -1 if there are too few.
static int64_t take(int64_t bytes) {
	int64_t used = 0, free_bytes = -1;
	int own = -1;
	flock(shared_fd, LOCK_EX);
	for (int i = 0; i < SLOTS; i++) {
		int pid = shared->slots[i].pid;
		if (pid != 0 && pid != getpid() && gone(pid))
			shared->slots[i].pid = shared->slots[i].bytes = 0;
		if (pid == getpid() || (own < 0 && shared->slots[i].pid == 0))
			own = i;
		used += shared->slots[i].bytes;
	}
	if (own >= 0 && used + bytes <= limit()) {
		shared->slots[own].pid = getpid();
		shared->slots[own].bytes += bytes;
		free_bytes = limit() - used - bytes;
	}
	flock(shared_fd, LOCK_UN);
	return free_bytes;
}

struct memory { int fd, uses; size_t bytes; };
static struct memory memories[4096];
static struct { P at; size_t bytes; int memory; } maps[4096];

R cuMemGetAllocationGranularity(size_t *out, void *p, int o) { (void)p, (void)o; *out = GRANULARITY; return OK; }

R cuMemGetInfo_v2(size_t *free_bytes, size_t *total) {
	if (depth == 0)
		return NO_CONTEXT;
	pthread_mutex_lock(&mu);
	*total = limit();
	*free_bytes = take(0);
	pthread_mutex_unlock(&mu);
	return OK;
}

R cuMemAddressReserve(P *out, size_t n, size_t a, P w, unsigned long long f) {
	(void)a, (void)w, (void)f;
	void *p = mmap(NULL, n, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	*out = (P)p;
	return n % GRANULARITY ? INVALID : p == MAP_FAILED ? NO_MEMORY : OK;
}

R cuMemAddressFree(P at, size_t n) { return munmap((void *)at, n) == 0 ? OK : INVALID; }

R cuMemCreate(uint64_t *out, size_t n, const int *prop, unsigned long long f) {
	(void)f;
	if (n == 0 || n % GRANULARITY || prop[0] != 1)
		return INVALID;
	pthread_mutex_lock(&mu);
	R code = take(n) < 0 ? NO_MEMORY : OK;
	if (code == OK) {
		int i = 1;
		while (memories[i].uses)
			i++;
		memories[i] = (struct memory){memfd_create("gpu", MFD_CLOEXEC), 1, n};
		if (ftruncate(memories[i].fd, n) != 0)
			abort();
		*out = i;
	}
	pthread_mutex_unlock(&mu);
	return code;
}

static void unuse(int i) {
	if (--memories[i].uses == 0) {
		close(memories[i].fd);
		take(-(int64_t)memories[i].bytes);
	}
}

R cuMemRelease(uint64_t h) {
	pthread_mutex_lock(&mu);
	R code = h < 4096 && memories[h].uses ? OK : INVALID;
	if (code == OK)
		unuse(h);
	pthread_mutex_unlock(&mu);
	return code;
}

R cuMemMap(P at, size_t n, size_t offset, uint64_t h, unsigned long long f) {
	(void)f;
	R code = INVALID;
	pthread_mutex_lock(&mu);
	if (h < 4096 && memories[h].uses && offset + n <= memories[h].bytes &&
		mmap((void *)at, n, PROT_NONE, MAP_SHARED | MAP_FIXED, memories[h].fd, offset) != MAP_FAILED) {
		int i = 0;
		while (maps[i].bytes)
			i++;
		maps[i].at = at, maps[i].bytes = n, maps[i].memory = h;
		memories[h].uses++;
		code = OK;
	}
	pthread_mutex_unlock(&mu);
	return code;
}

R cuMemUnmap(P at, size_t n) {
	R code = INVALID;
	pthread_mutex_lock(&mu);
	for (int i = 0; i < 4096; i++)
		if (maps[i].bytes && maps[i].at >= at && maps[i].at + maps[i].bytes <= at + n) {
			mmap((void *)maps[i].at, maps[i].bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
			maps[i].bytes = 0;
			unuse(maps[i].memory);
			code = OK;
		}
	pthread_mutex_unlock(&mu);
	return code;
}

R cuMemSetAccess(P at, size_t n, const void *d, size_t c) {
	(void)d, (void)c;
	return mprotect((void *)at, n, PROT_READ | PROT_WRITE) == 0 ? OK : INVALID;
}

R cuMemHostRegister_v2(void *p, size_t n, unsigned f) { (void)p, (void)n, (void)f; return depth ? OK : NO_CONTEXT; }
R cuMemHostGetDevicePointer_v2(P *out, void *p, unsigned f) { (void)f; *out = (P)p; return OK; }
R cuMemHostUnregister(void *p) { (void)p; return OK; }

R cuMemAlloc_v2(P *o, size_t n) { (void)o, (void)n; return NATIVE; }
R cuMemFree_v2(P a) { (void)a; return NATIVE; }
R cuMemAllocAsync(P *o, size_t n, void *s) { (void)o, (void)n, (void)s; return NATIVE; }
R cuMemFreeAsync(P a, void *s) { (void)a, (void)s; return NATIVE; }
R cuMemAllocManaged(P *o, size_t n, unsigned f) { (void)o, (void)n, (void)f; return NATIVE; }
R cuGraphAddMemAllocNode(void **o, void *g, void **d, size_t n, void *p) { (void)o, (void)g, (void)d, (void)n, (void)p; return NATIVE; }

// --- contexts

R cuInit(unsigned f) { (void)f; pthread_mutex_lock(&mu); if (!initialised++) open_shared(); pthread_mutex_unlock(&mu); return OK; }
R cuDeviceGet(int *d, int i) { *d = i; return OK; }
R cuDeviceGetUuid_v2(unsigned char *u, int d) { memset(u, 7 + d, 16); return OK; }
R cuDevicePrimaryCtxRetain(void **out, int d) { (void)d; *out = &context_object; return OK; }
R cuDevicePrimaryCtxReset_v2(int d) { (void)d; return OK; }
R cuCtxSetCurrent(void *c) { depth = c != NULL; current[1] = c; return OK; }
R cuCtxGetCurrent(void **c) { *c = depth ? current[depth] : NULL; return OK; }
R cuCtxPushCurrent_v2(void *c) { current[++depth] = c; return OK; }
R cuCtxPopCurrent_v2(void **c) { if (depth == 0) return NO_CONTEXT; if (c) *c = current[depth]; depth--; return OK; }
R cuCtxGetDevice(int *d) { *d = 0; return depth ? OK : NO_CONTEXT; }

// --- work

struct work { struct work *next; int kind; P at; void *host; size_t n; uint32_t value; uint64_t *event, wanted; };
enum { ADD, SET, TO_DEVICE, TO_HOST, EVENT, WAIT };
static struct work *first, **end = &first;
static uint64_t queued, done;
static int capturing;
static void *captured;

static void *work(void *unused) {
	(void)unused;
	int us = getenv("FAKE_GPU_US") ? atoi(getenv("FAKE_GPU_US")) : 100;
	pthread_mutex_lock(&mu);
	for (;;) {
		while (first == NULL)
			pthread_cond_wait(&changed, &mu);
		struct work *w = first;
		if ((first = w->next) == NULL)
			end = &first;
		pthread_mutex_unlock(&mu);
		uint32_t *p = (uint32_t *)w->at;
		if (w->kind == ADD || w->kind == SET)
			usleep(us);
		while (w->kind == ADD && w->n == 0)
			pause();
		for (size_t i = 0; w->kind == ADD && i < w->n; i++)
			p[i] += w->value;
		for (size_t i = 0; w->kind == SET && i < w->n; i++)
			p[i] = w->value;
		while (w->kind == WAIT && *(volatile uint64_t *)w->at != w->wanted)
			usleep(100);
		if (w->kind == TO_DEVICE)
			memcpy(p, w->host, w->n);
		if (w->kind == TO_HOST)
			memcpy(w->host, p, w->n);
		free(w);
		pthread_mutex_lock(&mu);
		done++;
		pthread_cond_broadcast(&changed);
	}
	return NULL;
}

static R queue(struct work w, int wait) {
	static int started;
	if (depth == 0)
		return NO_CONTEXT;
	struct work *copy = malloc(sizeof w);
	*copy = w;
	pthread_mutex_lock(&mu);
	if (!started++) {
		pthread_t t;
		pthread_create(&t, NULL, work, NULL);
		pthread_detach(t);
	}
	*end = copy;
	end = &copy->next;
	uint64_t ticket = ++queued;
	pthread_cond_broadcast(&changed);
	while (wait && done < ticket)
		pthread_cond_wait(&changed, &mu);
	pthread_mutex_unlock(&mu);
	return OK;
}

static R wait_all(void) {
	R code = OK;
	pthread_mutex_lock(&mu);
	if (capturing)
		code = capturing = INVALIDATED;
	uint64_t ticket = queued;
	while (done < ticket)
		pthread_cond_wait(&changed, &mu);
	pthread_mutex_unlock(&mu);
	return code;
}

R cuCtxSynchronize(void) { return wait_all(); }
R cuStreamCreate(void **s, unsigned f) { (void)f; *s = malloc(8); return OK; }
R cuStreamDestroy_v2(void *s) { free(s); return OK; }
R cuStreamSynchronize(void *s) { (void)s; return wait_all(); }
R cuStreamWaitEvent(void *s, void *e, unsigned f) { (void)s, (void)e, (void)f; return OK; }
R cuThreadExchangeStreamCaptureMode(int *m) { static __thread int mode; int old = mode; mode = *m; *m = old; return OK; }
R cuEventCreate(void **e, unsigned f) { (void)f; *e = calloc(1, 8); return OK; }
R cuEventDestroy_v2(void *e) { free(e); return OK; }
R cuEventRecord(void *e, void *s) { (void)s; pthread_mutex_lock(&mu); *(uint64_t *)e = queued; pthread_mutex_unlock(&mu); return OK; }
R cuEventQuery(void *e) { pthread_mutex_lock(&mu); R r = done >= *(uint64_t *)e ? OK : NOT_READY; pthread_mutex_unlock(&mu); return r; }
R cuEventSynchronize(void *e) { (void)e; return wait_all(); }

R cuMemcpyHtoDAsync_v2(P at, const void *h, size_t n, void *s) { (void)s; return queue((struct work){.kind = TO_DEVICE, .at = at, .host = (void *)h, .n = n}, 0); }
R cuMemcpyDtoHAsync_v2(void *h, P at, size_t n, void *s) { (void)s; return queue((struct work){.kind = TO_HOST, .at = at, .host = h, .n = n}, 0); }
R cuMemcpyHtoD_v2(P at, const void *h, size_t n) { return queue((struct work){.kind = TO_DEVICE, .at = at, .host = (void *)h, .n = n}, 1); }
R cuMemcpyDtoH_v2(void *h, P at, size_t n) { return queue((struct work){.kind = TO_HOST, .at = at, .host = h, .n = n}, 1); }
R cuMemsetD32Async(P at, unsigned v, size_t n, void *s) { (void)s; return queue((struct work){.kind = SET, .at = at, .value = v, .n = n}, 0); }

// It knows only one kind of wait: until a word is equal.
R cuStreamWaitValue64_v2(void *s, P at, uint64_t v, unsigned f) { (void)s; return f == 1 ? queue((struct work){.kind = WAIT, .at = at, .wanted = v}, 0) : INVALID; }

// The only kernel adds a number: parameters address, words, number.
R cuLaunchKernel(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned b, void *s, void **p, void **x) {
	(void)f, (void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz, (void)b, (void)s, (void)x;
	if (capturing) {
		captured = p;
		return OK;
	}
	return queue((struct work){.kind = ADD, .at = *(P *)p[0], .n = *(size_t *)p[1], .value = *(uint32_t *)p[2]}, 0);
}

R cuStreamBeginCapture_v2(void *s, int m) { (void)s, (void)m; pthread_mutex_lock(&mu); capturing = 1; pthread_mutex_unlock(&mu); return OK; }
R cuStreamIsCapturing(void *s, int *out) { (void)s; pthread_mutex_lock(&mu); *out = capturing != 0; pthread_mutex_unlock(&mu); return OK; }
R cuStreamEndCapture(void *s, void **g) {
	(void)s;
	pthread_mutex_lock(&mu);
	R code = capturing == 1 ? OK : INVALIDATED;
	capturing = 0;
	*g = captured;
	pthread_mutex_unlock(&mu);
	return code;
}
R cuGraphLaunch(void *g, void *s) { return cuLaunchKernel(NULL, 1, 1, 1, 1, 1, 1, 0, s, g, NULL); }
R cuGraphAddEmptyNode(void **o, void *g, void **d, size_t n) { (void)g, (void)d, (void)n; *o = NULL; return OK; }

// A function that the library cannot know, with arguments in all kinds of places.
R cuFakeMystery(int a, long b, double c, int d, int e, int f, int g, long h, float i, void *j) {
	return a == 1 && b == 2 && c == 3.5 && d == 4 && e == 5 && f == 6 && g == 7 && h == 8 && i == 9.25f && j == (void *)10 ? 42 : 43;
}

#include <dlfcn.h>
R cuGetProcAddress_v2(const char *name, void **out, int version, uint64_t flags, int *status);
R cuGetProcAddress(const char *name, void **out, int version, uint64_t flags) { return cuGetProcAddress_v2(name, out, version, flags, NULL); }
R cuGetProcAddress_v2(const char *name, void **out, int version, uint64_t flags, int *status) {
	(void)version, (void)flags;
	static const char *const newest[] = {"cuGetProcAddress_v2", "cuMemAlloc_v2", "cuMemFree_v2", "cuMemGetInfo_v2", "cuMemcpyHtoD_v2",
		"cuMemcpyDtoH_v2", "cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2", "cuStreamBeginCapture_v2", "cuStreamDestroy_v2", "cuEventDestroy_v2",
		"cuCtxPushCurrent_v2", "cuCtxPopCurrent_v2", "cuDeviceGetUuid_v2", "cuMemHostRegister_v2", "cuDevicePrimaryCtxReset_v2"};
	const char *symbol = name;
	for (size_t i = 0; i < sizeof newest / sizeof *newest; i++)
		if (strncmp(newest[i], name, strlen(name)) == 0 && newest[i][strlen(name)] == '_')
			symbol = newest[i];
	*out = NULL;
	void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
	void *(*find)(void *, const char *) = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.34");
	if (find == NULL)
		find = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
	*out = find(library, symbol);
	if (status != NULL)
		*status = *out == NULL;
	return *out == NULL ? NOT_FOUND : OK;
}
