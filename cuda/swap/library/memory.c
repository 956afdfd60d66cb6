// The guest's device memory. A block is physical memory of the driver (cuMemCreate) with
// the addresses it is mapped at. Blocks leave the device with their contents and come
// back to the same addresses.
//
// The library makes the blocks behind cuMemAlloc and cuMemAllocAsync. Small allocations
// share blocks of SHARED_BYTES, because a block is a multiple of 2 MiB. The guest makes
// blocks by itself with cuMemCreate.

#define _GNU_SOURCE
#include "memory.h"
#include "swap.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { ALIGNMENT = 512, SMALL_BYTES = 1 << 20, SHARED_BYTES = 4 << 20 };

// The handles of a guest's blocks: this mark, and the block's index.
static const CUhandle HANDLE_MARK = 0x50574150ULL << 32;

struct mapping {
	struct mapping *next; // of the block
	struct block *block;
	CUdeviceptr address;
	size_t bytes, offset;
	int access;
};

// A piece is an allocation, or free space, of one of the library's blocks.
struct piece {
	struct piece *next; // in the order of addresses
	size_t offset, bytes;
	int used;
};

struct block {
	struct block *next;
	size_t bytes;
	Properties properties;
	CUhandle memory; // the driver's
	CUcontext context;
	void *copy;      // on the host, or NULL
	int pinned;
	CUhandle handle; // the guest's, or 0
	int references;  // of the guest to its handle
	struct mapping *mappings;
	struct piece *pieces; // of the library's blocks
};

// A freed piece that a stream's queued work may still use.
struct freed {
	struct freed *next;
	CUdeviceptr address;
	size_t bytes;
	CUstream stream;
	CUevent event;
	uint64_t number; // entries are counted
};

// growing is held while a block is made, from the question to the server on.
static pthread_mutex_t growing = PTHREAD_MUTEX_INITIALIZER;
// memory guards what follows. resident says whether blocks are on the device.
static pthread_mutex_t memory = PTHREAD_MUTEX_INITIALIZER;
static int resident = 1;
static size_t made;      // bytes of all blocks
static size_t committed; // and of one that is being made
static struct block *blocks;
static struct mapping **mappings; // in the order of addresses
static size_t mapped, mapped_room;
static struct freed *freed, *deferred; // the newest first
static uint64_t frees;                 // the number of the newest
static CUhandle next_handle = 1;

static size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

// --- mappings

// position is the index of the first mapping that ends after an address.
static size_t position(CUdeviceptr address) {
	size_t low = 0, high = mapped;
	while (low < high) {
		size_t middle = (low + high) / 2;
		if (mappings[middle]->address + mappings[middle]->bytes <= address)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

static struct mapping *find_mapping(CUdeviceptr address) {
	size_t i = position(address);
	return i < mapped && mappings[i]->address <= address ? mappings[i] : NULL;
}

static struct mapping *add_mapping(struct block *b, CUdeviceptr address, size_t bytes, size_t offset, int access) {
	if (mapped == mapped_room) {
		size_t room = mapped_room ? 2 * mapped_room : 64;
		struct mapping **more = realloc(mappings, room * sizeof *more);
		if (more == NULL)
			return NULL;
		mappings = more;
		mapped_room = room;
	}
	struct mapping *m = malloc(sizeof *m);
	if (m == NULL)
		return NULL;
	*m = (struct mapping){b->mappings, b, address, bytes, offset, access};
	b->mappings = m;
	size_t i = position(address);
	memmove(mappings + i + 1, mappings + i, (mapped - i) * sizeof *mappings);
	mappings[i] = m;
	mapped++;
	return m;
}

static void remove_mapping(struct mapping *m) {
	size_t i = position(m->address);
	memmove(mappings + i, mappings + i + 1, (mapped - i - 1) * sizeof *mappings);
	mapped--;
	struct mapping **at = &m->block->mappings;
	while (*at != m)
		at = &(*at)->next;
	*at = m->next;
	free(m);
}

static CUresult map(const struct mapping *m, CUhandle handle) {
	CUresult code = driver.cuMemMap(m->address, m->bytes, m->offset, handle, 0);
	if (code != CUDA_SUCCESS || m->access == ACCESS_NONE)
		return code;
	Access access = {m->block->properties.location, m->access};
	code = driver.cuMemSetAccess(m->address, m->bytes, &access, 1);
	if (code != CUDA_SUCCESS)
		driver.cuMemUnmap(m->address, m->bytes);
	return code;
}

// --- the copy on the host

// Pages are made by several threads: one makes 5 GB/s.
enum { PAGE_THREADS = 8, SHARE_BYTES = 256 << 20 };

struct share {
	pthread_t thread;
	char *at;
	size_t bytes;
	int failed;
};

static void *make_pages(void *p) {
	struct share *s = p;
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
	s->failed = madvise(s->at, s->bytes, MADV_POPULATE_WRITE) != 0 && errno != EINVAL;
	return NULL;
}

static int make_copy(struct block *b) {
	if (b->copy != NULL)
		return 0;
	char *p = mmap(NULL, b->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED)
		return -1;
	madvise(p, b->bytes, MADV_HUGEPAGE);
	madvise(p, b->bytes, MADV_DONTFORK);

	struct share shares[PAGE_THREADS];
	int n = b->bytes / SHARE_BYTES < PAGE_THREADS ? b->bytes / SHARE_BYTES + 1 : PAGE_THREADS;
	size_t each = round_up(b->bytes / n, 2 << 20);
	int failed = 0;
	for (int i = 0; i < n; i++) {
		size_t from = i * each < b->bytes ? i * each : b->bytes;
		size_t to = i == n - 1 || from + each > b->bytes ? b->bytes : from + each;
		shares[i] = (struct share){0, p + from, to - from, 0};
		if (i == n - 1 || pthread_create(&shares[i].thread, NULL, make_pages, &shares[i]) != 0) {
			shares[i].thread = 0;
			make_pages(&shares[i]);
		}
	}
	for (int i = 0; i < n; i++) {
		if (shares[i].thread != 0)
			pthread_join(shares[i].thread, NULL);
		failed |= shares[i].failed;
	}
	if (failed) {
		munmap(p, b->bytes);
		return -1;
	}
	b->pinned = driver.cuMemHostRegister_v2(p, b->bytes, HOST_REGISTER_PORTABLE) == CUDA_SUCCESS;
	b->copy = p;
	return 0;
}

static void drop_copy(struct block *b) {
	if (b->copy == NULL)
		return;
	if (b->pinned)
		driver.cuMemHostUnregister(b->copy);
	munmap(b->copy, b->bytes);
	b->copy = NULL;
}

// --- out and in

// cover returns an address at which all of a block is mapped. If there is none, it maps
// the block at a new address and sets *own to it.
static CUdeviceptr cover(struct block *b, CUdeviceptr *own) {
	*own = 0;
	for (struct mapping *m = b->mappings; m != NULL; m = m->next)
		if (m->offset == 0 && m->bytes == b->bytes && m->access == ACCESS_READ_WRITE)
			return m->address;
	CUdeviceptr address;
	if (driver.cuMemAddressReserve(&address, b->bytes, 0, 0, 0) != CUDA_SUCCESS)
		return 0;
	struct mapping m = {NULL, b, address, b->bytes, 0, ACCESS_READ_WRITE};
	if (map(&m, b->memory) != CUDA_SUCCESS) {
		driver.cuMemAddressFree(address, b->bytes);
		return 0;
	}
	return *own = address;
}

static void uncover(struct block *b, CUdeviceptr own) {
	if (own == 0)
		return;
	driver.cuMemUnmap(own, b->bytes);
	driver.cuMemAddressFree(own, b->bytes);
}

// copy_all copies all blocks to the host, or back.
static int copy_all(int out) {
	CUstream stream;
	int failed = driver.cuStreamCreate(&stream, STREAM_NON_BLOCKING) != CUDA_SUCCESS;
	if (!failed) {
		for (struct block *b = blocks; b != NULL && !failed; b = b->next) {
			CUdeviceptr own, at = cover(b, &own);
			if (at == 0)
				failed = 1;
			else if (out)
				failed = driver.cuMemcpyDtoHAsync_v2(b->copy, at, b->bytes, stream) != CUDA_SUCCESS;
			else
				failed = driver.cuMemcpyHtoDAsync_v2(at, b->copy, b->bytes, stream) != CUDA_SUCCESS;
			if (own != 0 || !b->pinned)
				failed |= driver.cuStreamSynchronize(stream) != CUDA_SUCCESS;
			uncover(b, own);
		}
		failed |= driver.cuStreamSynchronize(stream) != CUDA_SUCCESS;
		driver.cuStreamDestroy_v2(stream);
	}
	return failed ? -1 : 0;
}

static int prepare_locked(void) {
	int failed = 0;
	for (struct block *b = blocks; b != NULL; b = b->next)
		failed |= make_copy(b) != 0;
	return failed ? -1 : 0;
}

void memory_prepare(CUcontext context) {
	pthread_mutex_lock(&memory);
	if (driver.cuCtxPushCurrent_v2(context) == CUDA_SUCCESS) {
		prepare_locked();
		driver.cuCtxPopCurrent_v2(NULL);
	}
	pthread_mutex_unlock(&memory);
}

static int out_locked(uint64_t *copied_us) {
	if (prepare_locked() != 0) {
		swap_say("make host memory for %zu MiB of device memory: %s; the guest keeps the device memory", committed >> 20, strerror(errno));
		return -1;
	}

	uint64_t began = now_us();
	if (copy_all(1) != 0) {
		swap_say("copy %zu MiB from the device: the driver refused; the guest keeps the device memory", committed >> 20);
		return -1;
	}
	for (struct block *b = blocks; b != NULL; b = b->next) {
		for (struct mapping *m = b->mappings; m != NULL; m = m->next)
			driver.cuMemUnmap(m->address, m->bytes);
		driver.cuMemRelease(b->memory);
		b->memory = 0;
	}
	resident = 0;
	*copied_us = now_us() - began;
	return 0;
}

int memory_out(CUcontext context, uint64_t *copied_us) {
	int code = -1;
	pthread_mutex_lock(&memory);
	if (driver.cuCtxPushCurrent_v2(context) == CUDA_SUCCESS) {
		code = out_locked(copied_us);
		driver.cuCtxPopCurrent_v2(NULL);
	}
	pthread_mutex_unlock(&memory);
	return code;
}

// give_up ends the guest: without its memory its results would be wrong.
static void give_up(const char *verb, size_t bytes) {
	swap_say("pid %d: %s %zu MiB to the device: the driver refused; the guest cannot go on", (int)getpid(), verb, bytes >> 20);
	_exit(70); // EX_SOFTWARE
}

// place creates a block's memory on the device and maps it. It waits while the device is
// full: a guest that left, or functions, may still hold the memory. It returns 0 if the
// process ends meanwhile.
static int place(struct block *b) {
	uint64_t began = now_us();
	int reported = 0;
	CUresult code;
	while ((code = driver.cuMemCreate(&b->memory, b->bytes, &b->properties, 0)) == CUDA_OUT_OF_MEMORY) {
		if (!reported && now_us() - began > 5000000) {
			reported = 1;
			swap_say("pid %d: waits for %zu MiB of device memory", (int)getpid(), b->bytes >> 20);
		}
		turns_short();
		usleep(20000);
		if (turns_ending())
			return 0;
	}
	for (struct mapping *m = b->mappings; m != NULL && code == CUDA_SUCCESS; m = m->next)
		code = map(m, b->memory);
	if (code != CUDA_SUCCESS)
		give_up("map", b->bytes);
	return 1;
}

int memory_in(CUcontext context, uint64_t *copied_us) {
	pthread_mutex_lock(&memory);
	uint64_t began = now_us();
	driver.cuCtxPushCurrent_v2(context);
	int placed = 1;
	for (struct block *b = blocks; b != NULL && placed; b = b->next)
		placed = place(b);
	if (placed && blocks != NULL && copy_all(0) != 0)
		give_up("copy", committed);
	driver.cuCtxPopCurrent_v2(NULL);
	resident = placed;
	*copied_us = now_us() - began;
	pthread_mutex_unlock(&memory);
	return placed ? 0 : -1;
}

// --- blocks

static size_t granularity(const Properties *p) {
	static size_t known; // the same for all pinned memory of a device
	size_t n = __atomic_load_n(&known, __ATOMIC_RELAXED);
	if (n == 0) {
		if (driver.cuMemGetAllocationGranularity(&n, p, 0) != CUDA_SUCCESS || n == 0)
			n = 2 << 20;
		__atomic_store_n(&known, n, __ATOMIC_RELAXED);
	}
	return n;
}

static void uncommit_locked(size_t bytes) {
	committed -= bytes;
	turns_have(committed, made);
}

// free_block_locked frees a block without mappings.
static void free_block_locked(struct block *b) {
	struct block **at = &blocks;
	while (*at != b)
		at = &(*at)->next;
	*at = b->next;
	if (b->memory != 0)
		driver.cuMemRelease(b->memory);
	drop_copy(b);
	made -= b->bytes;
	uncommit_locked(b->bytes);
	for (struct piece *p = b->pieces, *next; p != NULL; p = next) {
		next = p->next;
		free(p);
	}
	free(b);
}

// free_own_block_locked frees one of the library's blocks.
static void free_own_block_locked(struct block *b) {
	CUdeviceptr address = b->mappings->address;
	if (resident)
		driver.cuMemUnmap(address, b->bytes);
	remove_mapping(b->mappings);
	driver.cuMemAddressFree(address, b->bytes);
	free_block_locked(b);
}

// make_block asks the server, waits for the turn, and creates a block. The caller leaves
// the gate if it succeeds.
static CUresult make_block(struct block **out, size_t bytes, const Properties *properties) {
	CUcontext context = NULL;
	if (driver.cuCtxGetCurrent(&context) == CUDA_SUCCESS) {
		// The context may have been made by a call that the library did not see.
		CUresult begun = turns_begin(context);
		if (begun != CUDA_SUCCESS)
			return begun;
	}
	if (!turns_begun())
		return CUDA_INVALID_CONTEXT; // the server would not answer
	pthread_mutex_lock(&growing);
	pthread_mutex_lock(&memory);
	committed += bytes;
	size_t total = committed;
	pthread_mutex_unlock(&memory);

	CUresult code = CUDA_OUT_OF_MEMORY;
	struct block *b = calloc(1, sizeof *b);
	if (b != NULL && turns_need(total)) {
		*b = (struct block){.bytes = bytes, .properties = *properties};
		// The server's figure may be too high, or a guest that left may still hold memory. A guest that
		// does not leave is ended after a minute (turns.Grace), so the tries take two.
		for (int tries = 0, empty = 0; tries < 6000 && empty < 50; tries++) {
			gate_enter();
			code = driver.cuMemCreate(&b->memory, bytes, properties, 0);
			if (code != CUDA_OUT_OF_MEMORY)
				break;
			gate_leave();
			turns_short();
			usleep(20000);
			empty += turns_nothing_to_evict();
		}
		if (code != CUDA_SUCCESS && code != CUDA_OUT_OF_MEMORY)
			gate_leave();
	}

	pthread_mutex_lock(&memory);
	if (code == CUDA_SUCCESS) {
		b->context = context;
		b->next = blocks;
		blocks = b;
		*out = b;
		made += bytes;
		turns_have(committed, made);
	} else {
		uncommit_locked(bytes);
		free(b);
	}
	pthread_mutex_unlock(&memory);
	pthread_mutex_unlock(&growing);
	return code;
}

static Properties device_memory(void) {
	Properties p;
	memset(&p, 0, sizeof p);
	p.type = ALLOCATION_PINNED;
	p.location = (Location){LOCATION_DEVICE, turns_device()};
	return p;
}

// make_own_block makes a block that is mapped at an address of the library's choice. The
// caller leaves the gate if it succeeds.
static CUresult make_own_block(struct block **out, size_t bytes) {
	Properties properties = device_memory();
	bytes = round_up(bytes, granularity(&properties));
	struct block *b;
	CUresult code = make_block(&b, bytes, &properties);
	if (code != CUDA_SUCCESS)
		return code;

	CUdeviceptr address = 0;
	pthread_mutex_lock(&memory);
	code = driver.cuMemAddressReserve(&address, bytes, 0, 0, 0);
	if (code == CUDA_SUCCESS) {
		struct mapping *m = add_mapping(b, address, bytes, 0, ACCESS_READ_WRITE);
		code = m == NULL ? CUDA_OUT_OF_MEMORY : map(m, b->memory);
		if (code != CUDA_SUCCESS && m != NULL)
			remove_mapping(m);
		if (code != CUDA_SUCCESS)
			driver.cuMemAddressFree(address, bytes);
	}
	if (code != CUDA_SUCCESS)
		free_block_locked(b);
	pthread_mutex_unlock(&memory);
	if (code != CUDA_SUCCESS)
		gate_leave();
	*out = b;
	return code;
}

// --- allocations

// take_locked takes a piece of a block, 0 if it has no room.
static CUdeviceptr take_locked(struct block *b, size_t bytes) {
	for (struct piece *p = b->pieces; p != NULL; p = p->next) {
		if (p->used || p->bytes < bytes)
			continue;
		if (p->bytes > bytes) {
			struct piece *rest = malloc(sizeof *rest);
			if (rest == NULL)
				return 0;
			*rest = (struct piece){p->next, p->offset + bytes, p->bytes - bytes, 0};
			p->next = rest;
			p->bytes = bytes;
		}
		p->used = 1;
		return b->mappings->address + p->offset;
	}
	return 0;
}

static struct piece *find_piece(CUdeviceptr address, struct block **block) {
	struct mapping *m = find_mapping(address);
	if (m == NULL || m->block->pieces == NULL)
		return NULL;
	*block = m->block;
	size_t offset = address - m->address;
	for (struct piece *p = m->block->pieces; p != NULL; p = p->next)
		if (offset >= p->offset && offset < p->offset + p->bytes)
			return p->used ? p : NULL;
	return NULL;
}

static CUresult allocate(CUdeviceptr *out, size_t bytes) {
	size_t wanted = round_up(bytes, ALIGNMENT);
	int small = wanted <= SMALL_BYTES;
	CUcontext context = NULL;
	if (driver.cuCtxGetCurrent(&context) != CUDA_SUCCESS || context == NULL)
		return CUDA_INVALID_CONTEXT;
	if (bytes == 0)
		return CUDA_INVALID_VALUE;
	if (bytes > MOST_BYTES)
		return CUDA_OUT_OF_MEMORY;
	CUdeviceptr address = 0;
	if (small) {
		pthread_mutex_lock(&memory);
		for (struct block *b = blocks; b != NULL && address == 0; b = b->next)
			if (b->pieces != NULL && b->bytes == SHARED_BYTES && b->context == context)
				address = take_locked(b, wanted);
		pthread_mutex_unlock(&memory);
		*out = address;
		if (address != 0)
			return CUDA_SUCCESS;
	}

	struct piece *p = malloc(sizeof *p);
	if (p == NULL)
		return CUDA_OUT_OF_MEMORY;
	struct block *b;
	CUresult code = make_own_block(&b, small ? SHARED_BYTES : wanted);
	if (code != CUDA_SUCCESS) {
		free(p);
		return code;
	}
	pthread_mutex_lock(&memory);
	*p = (struct piece){NULL, 0, b->bytes, 0};
	b->pieces = p;
	*out = take_locked(b, small ? wanted : b->bytes);
	if (*out == 0) {
		free_own_block_locked(b);
		code = CUDA_OUT_OF_MEMORY;
	}
	pthread_mutex_unlock(&memory);
	gate_leave();
	return code;
}

// release_locked frees an allocation that no queued work uses.
static void release_locked(CUdeviceptr address) {
	struct block *b;
	struct piece *p = find_piece(address, &b);
	if (p == NULL)
		return;
	p->used = 0;
	for (struct piece *q = b->pieces; q->next != NULL;) {
		struct piece *next = q->next;
		if (q->used || next->used) {
			q = next;
			continue;
		}
		q->bytes += next->bytes;
		q->next = next->next;
		free(next);
	}
	if (!b->pieces->used && b->pieces->next == NULL)
		free_own_block_locked(b);
}

static void add_freed_locked(struct freed **list, struct freed *f) {
	f->number = ++frees;
	f->next = *list;
	*list = f;
}

// synchronize waits for all queued work and returns the newest entry whose work is then done. Other threads
// queue work and free memory meanwhile.
static uint64_t synchronize(void) {
	pthread_mutex_lock(&memory);
	uint64_t newest = frees;
	pthread_mutex_unlock(&memory);
	turns_synchronize();
	return newest;
}

static void release_until_locked(struct freed **list, uint64_t newest) {
	while (*list != NULL && (*list)->number > newest)
		list = &(*list)->next;
	for (struct freed *f; (f = *list) != NULL;) {
		*list = f->next;
		if (f->event != NULL)
			driver.cuEventDestroy_v2(f->event);
		release_locked(f->address);
		free(f);
	}
}

void memory_trim(void) {
	if (capture_open())
		return;
	uint64_t newest = synchronize();
	pthread_mutex_lock(&memory);
	release_until_locked(&freed, newest);
	release_until_locked(&deferred, newest);
	pthread_mutex_unlock(&memory);
}

CUresult memory_allocate(CUdeviceptr *out, size_t bytes) {
	// The driver's calls here must not invalidate a capture of this thread.
	int capturing = capture_open(), mode = CAPTURE_RELAXED;
	if (capturing)
		driver.cuThreadExchangeStreamCaptureMode(&mode);
	CUresult code = allocate(out, bytes);
	if (code == CUDA_OUT_OF_MEMORY && !capturing) {
		memory_trim();
		code = allocate(out, bytes);
	}
	if (capturing)
		driver.cuThreadExchangeStreamCaptureMode(&mode);
	return code;
}

int memory_owns(CUdeviceptr address, CUdeviceptr *base, size_t *bytes) {
	pthread_mutex_lock(&memory);
	struct block *b;
	struct piece *p = find_piece(address, &b);
	if (p != NULL) {
		*base = b->mappings->address + p->offset;
		*bytes = p->bytes;
	}
	pthread_mutex_unlock(&memory);
	return p != NULL;
}

CUresult memory_free(CUdeviceptr address) {
	CUdeviceptr base;
	size_t bytes;
	if (!memory_owns(address, &base, &bytes) || base != address)
		return CUDA_INVALID_VALUE;
	// As the driver's, it waits for the work that may use the memory. During a capture
	// that is forbidden: the memory is freed later.
	if (capture_open()) {
		struct freed *f = calloc(1, sizeof *f);
		if (f == NULL)
			return CUDA_OUT_OF_MEMORY;
		f->address = address;
		pthread_mutex_lock(&memory);
		add_freed_locked(&deferred, f);
		pthread_mutex_unlock(&memory);
		return CUDA_SUCCESS;
	}
	uint64_t newest = synchronize();
	pthread_mutex_lock(&memory);
	release_until_locked(&deferred, newest);
	release_locked(address);
	pthread_mutex_unlock(&memory);
	return CUDA_SUCCESS;
}

// --- stream-ordered allocations

// reuse_locked finds a freed piece for a stream: one that was freed on the same stream, or one whose
// event has happened. The stream waits for the event, because a handle may stand for several streams: the
// default stream of each thread, or a destroyed stream and a new one.
static CUdeviceptr reuse_locked(size_t bytes, CUstream stream) {
	int ask = !capture_open(); // asking an event could invalidate a capture
	for (struct freed **at = &freed; *at != NULL; at = &(*at)->next) {
		struct freed *f = *at;
		if (f->bytes < bytes || f->bytes / 2 > bytes)
			continue;
		if (f->stream == stream ? driver.cuStreamWaitEvent(stream, f->event, 0) != CUDA_SUCCESS :
			!ask || driver.cuEventQuery(f->event) != CUDA_SUCCESS)
			continue;
		*at = f->next;
		CUdeviceptr address = f->address;
		driver.cuEventDestroy_v2(f->event);
		free(f);
		return address;
	}
	return 0;
}

static int is_capturing(CUstream stream) {
	int status = CAPTURE_NONE;
	return capture_open() && driver.cuStreamIsCapturing(stream, &status) == CUDA_SUCCESS && status != CAPTURE_NONE;
}

CUresult memory_allocate_async(CUdeviceptr *out, size_t bytes, CUstream stream) {
	if (!is_capturing(stream)) {
		pthread_mutex_lock(&memory);
		*out = reuse_locked(round_up(bytes, ALIGNMENT), stream);
		pthread_mutex_unlock(&memory);
		if (*out != 0)
			return CUDA_SUCCESS;
	}
	return memory_allocate(out, bytes);
}

CUresult memory_free_async(CUdeviceptr address, CUstream stream) {
	CUdeviceptr base;
	size_t bytes;
	if (!memory_owns(address, &base, &bytes) || base != address)
		return CUDA_INVALID_VALUE;
	if (is_capturing(stream))
		return CUDA_SUCCESS; // the graph may run at any time: the guest keeps the memory
	struct freed *f = calloc(1, sizeof *f);
	if (f == NULL)
		return CUDA_OUT_OF_MEMORY;
	*f = (struct freed){.address = address, .bytes = bytes, .stream = stream};
	CUresult code = driver.cuEventCreate(&f->event, EVENT_NO_TIMING);
	if (code == CUDA_SUCCESS && (code = driver.cuEventRecord(f->event, stream)) != CUDA_SUCCESS)
		driver.cuEventDestroy_v2(f->event);
	if (code != CUDA_SUCCESS) {
		free(f);
		return code;
	}
	pthread_mutex_lock(&memory);
	add_freed_locked(&freed, f);
	pthread_mutex_unlock(&memory);
	return CUDA_SUCCESS;
}

// --- the guest's own blocks

static struct block *find_handle(CUhandle handle) {
	if ((handle & ~0xffffffffULL) != HANDLE_MARK)
		return NULL;
	for (struct block *b = blocks; b != NULL; b = b->next)
		if (b->handle == handle)
			return b;
	return NULL;
}

CUresult memory_create(CUhandle *out, size_t bytes, const Properties *properties) {
	if (bytes > MOST_BYTES)
		return CUDA_OUT_OF_MEMORY;
	struct block *b;
	CUresult code = make_block(&b, bytes, properties);
	if (code == CUDA_OUT_OF_MEMORY && !capture_open()) {
		memory_trim();
		code = make_block(&b, bytes, properties);
	}
	if (code != CUDA_SUCCESS)
		return code;
	pthread_mutex_lock(&memory);
	b->references = 1;
	*out = b->handle = HANDLE_MARK | next_handle++;
	pthread_mutex_unlock(&memory);
	gate_leave();
	return CUDA_SUCCESS;
}

static void drop_unused_locked(struct block *b) {
	if (b->handle != 0 && b->references == 0 && b->mappings == NULL)
		free_block_locked(b);
}

int memory_release(CUhandle handle) {
	pthread_mutex_lock(&memory);
	struct block *b = find_handle(handle);
	if (b != NULL && b->references > 0) {
		b->references--;
		drop_unused_locked(b);
	}
	pthread_mutex_unlock(&memory);
	return b != NULL;
}

int memory_properties(CUhandle handle, Properties *out) {
	pthread_mutex_lock(&memory);
	struct block *b = find_handle(handle);
	if (b != NULL)
		*out = b->properties;
	pthread_mutex_unlock(&memory);
	return b != NULL;
}

int memory_retain(CUdeviceptr address, CUhandle *out) {
	pthread_mutex_lock(&memory);
	struct mapping *m = find_mapping(address);
	int found = m != NULL && m->block->handle != 0;
	if (found) {
		m->block->references++;
		*out = m->block->handle;
	}
	pthread_mutex_unlock(&memory);
	return found;
}

int memory_map(CUdeviceptr address, size_t bytes, size_t offset, CUhandle handle, CUresult *code) {
	gate_enter();
	pthread_mutex_lock(&memory);
	struct block *b = find_handle(handle);
	if (b != NULL) {
		struct mapping *m = add_mapping(b, address, bytes, offset, ACCESS_NONE);
		*code = m == NULL ? CUDA_OUT_OF_MEMORY : map(m, b->memory);
		if (*code != CUDA_SUCCESS && m != NULL)
			remove_mapping(m);
	}
	pthread_mutex_unlock(&memory);
	gate_leave();
	return b != NULL;
}

// ours tells whether [address, address + bytes) is exactly a number of mappings.
static int ours_locked(CUdeviceptr address, size_t bytes, size_t *first, size_t *end) {
	*first = *end = position(address);
	CUdeviceptr at = address;
	while (*end < mapped && at < address + bytes && mappings[*end]->address == at)
		at += mappings[(*end)++]->bytes;
	return at == address + bytes;
}

int memory_unmap(CUdeviceptr address, size_t bytes, CUresult *code) {
	size_t first, end;
	pthread_mutex_lock(&memory);
	int ours = ours_locked(address, bytes, &first, &end);
	for (*code = CUDA_SUCCESS; ours && first < end; end--) {
		struct mapping *m = mappings[first];
		struct block *b = m->block;
		if (resident && (*code = driver.cuMemUnmap(m->address, m->bytes)) != CUDA_SUCCESS)
			break;
		remove_mapping(m);
		drop_unused_locked(b);
	}
	pthread_mutex_unlock(&memory);
	return ours;
}

int memory_set_access(CUdeviceptr address, size_t bytes, const Access *access, size_t count, CUresult *code) {
	size_t first, end;
	gate_enter();
	pthread_mutex_lock(&memory);
	int ours = ours_locked(address, bytes, &first, &end);
	if (ours && (*code = driver.cuMemSetAccess(address, bytes, access, count)) == CUDA_SUCCESS)
		for (size_t i = 0; i < count; i++)
			for (size_t j = first; j < end && access[i].location.type == LOCATION_DEVICE && access[i].location.id == turns_device(); j++)
				mappings[j]->access = access[i].flags;
	pthread_mutex_unlock(&memory);
	gate_leave();
	return ours;
}

// --- the process

size_t memory_used(void) {
	pthread_mutex_lock(&memory);
	size_t n = committed;
	for (struct freed *f = freed; f != NULL; f = f->next)
		n -= f->bytes;
	pthread_mutex_unlock(&memory);
	return n;
}

// forget_freed_locked removes entries of a context, whose memory ends with it.
static void forget_freed_locked(struct freed **list, CUcontext context) {
	for (struct freed **at = list; *at != NULL;) {
		struct freed *f = *at;
		struct mapping *m = find_mapping(f->address);
		if (m != NULL && m->block->context != context) {
			at = &f->next;
			continue;
		}
		*at = f->next;
		if (f->event != NULL)
			driver.cuEventDestroy_v2(f->event);
		free(f);
	}
}

void memory_end_context(CUcontext context) {
	pthread_mutex_lock(&memory);
	forget_freed_locked(&freed, context);
	forget_freed_locked(&deferred, context);
	for (struct block *b = blocks, *next; b != NULL; b = next) {
		next = b->next;
		if (b->context == context && b->pieces != NULL)
			free_own_block_locked(b);
	}
	pthread_mutex_unlock(&memory);
}

void memory_forget(void) {
	pthread_mutex_init(&growing, NULL);
	pthread_mutex_init(&memory, NULL);
	blocks = NULL;
	freed = deferred = NULL;
	mapped = made = committed = 0;
	resident = 1;
}
