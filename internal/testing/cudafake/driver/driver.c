// A CUDA driver library without a GPU: the functions of libcuda.so.1 that
// Penstock calls, over memory of the host.
//
// It behaves like a driver in the following respects. A stream is a thread that does
// its work in order. There are events, captures and graphs, and copies really copy.
// It checks handles. Memory can run out, and other processes can map it. There are
// green contexts over groups of multiprocessors. After a fault every call fails.
//
// For tests it can refuse or delay any call, or only its n-th (struct rule). It can
// delay or hold all work, and fault in the n-th launch of a kernel. It counts what
// is not released (struct accounts). If report is set, the counts are in a file, so
// that they survive the process. It records launches.
//
// Settings are words: in the environment variable PENSTOCK_FAKE, separated by
// spaces, or one per call of fake_set:
//
//	devices=1 sms=132 memory=1073741824 version=13000
//	                   devices are up to 8 GPUs. $PENSTOCK_FAKE_GPUS is their default number. GPU i
//	                   has (8-i)/8 of the multiprocessors and of the memory of GPU 0.
//	mig=1              GPU 1 is divided into two MIG instances
//	gpus=PATH          the condition of each GPU is in this file (struct condition)
//	late=200us         every operation takes that long (us, ms, s)
//	hold, release      streams stop before their next operation, and continue
//	cuMemAlloc_v2=2    the call returns 2; cuMemAlloc_v2#3=2 only the third
//	cuMemFree_v2~5ms   the call takes that long
//	kernel:NAME#3=700  the third launch of NAME, or of any (*), faults
//	lost=719           the device is lost now
//	report=PATH        the accounts are kept in this file
//	wave=20us          a kernel takes that long per block of a multiprocessor
//	turns=PATH         all processes with this file share a GPU that a kernel fills: kernels
//	                   take turns, except those on streams of a higher priority
//	flat               kernels on streams of a higher priority take turns as well
//
// As the driver does (580.159 on an H200), it waits in cuMemFree, cuMemFreeHost,
// cuModuleLoad and cuGreenCtxCreate until queued work is done. It never releases
// 4 MiB per green context.
//
// A graph may copy from or to memory that was freed after the capture. A driver then
// crashes or uses another allocation's memory; here a launch of the graph loses the
// device, even if the same addresses are in use again.
//
// A process sees the GPUs that $CUDA_VISIBLE_DEVICES lists when it calls cuInit, and one of
// the MIG instances, which have numbers from MAX_GPUS on. nvml.c has
// the management library, which shows all GPUs. The accounts, the memory in use and a loss
// belong to a process, not to a GPU.
//
// Calls are counted from the setting on. A process runs under MPS if
// $CUDA_MPS_PIPE_DIRECTORY contains a file "control". Its multiprocessors are then
// $CUDA_MPS_ACTIVE_THREAD_PERCENTAGE of the device's, as an H200 rounds them.

#define _GNU_SOURCE
#include "gpus.h"

#include <ctype.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef unsigned long long CUmemory;
typedef struct context *CUcontext;
typedef struct green *CUgreenCtx;
typedef struct module *CUmodule;
typedef struct function *CUfunction;
typedef struct stream *CUstream;
typedef struct event *CUevent;
typedef struct graph *CUgraph;
typedef struct node *CUgraphNode;
typedef struct exec *CUgraphExec;
typedef struct description *CUdevResourceDesc;
typedef struct { unsigned char bytes[16]; } CUuuid;
typedef struct { int type; unsigned val; } CUexecAffinityParam;
typedef struct { int type, id; } CUmemLocation;
typedef struct {
	int type, requestedHandleTypes;
	CUmemLocation location;
	void *win32HandleMetaData;
	unsigned char allocFlags[8];
} CUmemAllocationProp;
typedef struct { CUmemLocation location; int flags; } CUmemAccessDesc;
typedef struct {
	CUfunction func;
	unsigned grid[3], block[3], sharedMemBytes;
	void **kernelParams, **extra;
	CUfunction kern;
	CUcontext ctx;
} CUDA_KERNEL_NODE_PARAMS;

#define MAX_SMS 256
// The driver's part of a CUdevResource says which multiprocessors it has, and of
// which split.
typedef struct {
	int type;
	unsigned char padding[92];
	unsigned sms, smallest, alignment;
	unsigned char oversize[36];
} CUdevResource;
struct inside { uint32_t split; uint32_t mask[MAX_SMS / 32]; };
_Static_assert(sizeof(CUdevResource) == 144, "CUdevResource");
_Static_assert(sizeof(struct inside) <= 92, "what is inside a CUdevResource");

enum {
	SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, NO_DEVICE = 100, INVALID_DEVICE = 101,
	INVALID_IMAGE = 200, INVALID_CONTEXT = 201, INVALID_PTX = 218, INVALID_HANDLE = 400, NOT_FOUND = 500,
	NOT_READY = 600, ILLEGAL_ADDRESS = 700, CONTEXT_IS_DESTROYED = 709, LAUNCH_FAILED = 719, ALREADY_REGISTERED = 712, NOT_REGISTERED = 713,
	CAPTURE_UNSUPPORTED = 900, CAPTURE_INVALIDATED = 901, CAPTURE_MERGE = 902, CAPTURE_UNMATCHED = 903,
	CAPTURED_EVENT = 907, CAPTURE_WRONG_THREAD = 908, INVALID_RESOURCE_TYPE = 914, INVALID_RESOURCE_CONFIGURATION = 915,
};

// Accounts: what is not released. The Go package reads them as an array of int64.
struct accounts {
	int64_t contexts, allocations, bytes, host_allocations, registrations, reservations, memories, mappings;
	int64_t streams, events, modules, graphs, executables, greens;
	int64_t launches, lost, green_bytes;
};

static struct accounts own, *accounts = &own;

static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;

static int initialised, devices = 1, cut = -1, sms = 132, version = 13000, holding, lost;
static int working;      // operations that are running
static uint64_t losses;  // how often the device was lost; work queued before a loss is never done
static int64_t memory_bytes = 1 << 30, late_ns, wave_ns;
static char turns[512]; // the file of turns, or empty
static int flat;
static uint32_t splits;

// --- objects -----------------------------------------------------------------

enum kind { STREAM = 1, EVENT, MODULE, FUNCTION, GRAPH, NODE, EXEC, GREEN, CONTEXT };

struct object {
	enum kind kind;
	struct object *next;
};

static struct object *objects;

static void enter_object(void *p, enum kind kind) {
	struct object *o = p;
	o->kind = kind;
	o->next = objects;
	objects = o;
}

static int known(const void *p, enum kind kind) {
	for (struct object *o = objects; o != NULL; o = o->next)
		if ((const void *)o == p)
			return o->kind == kind;
	return 0;
}

static void leave_object(void *p) {
	for (struct object **at = &objects; *at != NULL; at = &(*at)->next)
		if ((void *)*at == p) {
			*at = (*at)->next;
			return;
		}
}

struct context {
	struct object object;
	int gpu, retained, closed;
	struct green *green; // or NULL: the primary context
};

struct green {
	struct object object;
	struct context context;
	struct inside inside;
	unsigned sms;
};

struct description {
	struct description *next;
	struct inside inside;
};

static struct description *descriptions; // all that were ever made

static struct context primary[MAX_GPUS + INSTANCES];
static __thread struct context *current;

struct module {
	struct object object;
	struct function *functions;
};

struct function {
	struct object object;
	struct module *module;
	struct function *next;
	char name[256];
	uint32_t count;
	size_t sizes[64];
	void (*twin)(const struct fake_launch *);
};

struct event {
	struct object object;
	unsigned flags;
	int references, destroyed;
	uint64_t recorded, done;
	struct timespec at;
	struct graph *captured;
};

enum work { COPY, SET, WRITE, RECORD, WAIT, KERNEL };

struct op {
	enum work work;
	struct op *next;
	uint64_t losses; // of the device when it was queued
	uint64_t dst, src, bytes, value;
	uint64_t dst_memory, src_memory; // of a node: which memory these lie in, or 0
	struct event *event;
	uint64_t turn; // of the event
	struct function *function;
	uint32_t grid[3], block[3], shared_bytes;
	struct context *context;
	void **parameters; // count pointers, then what they point to
	size_t blob_bytes;
};

struct stream {
	struct object object;
	pthread_t thread;
	struct op *head, **tail;
	uint64_t submitted, pending, mark;
	int destroyed;
	struct context *context;
	int priority;
	struct graph *capturing;
	struct stream *origin; // of the capture
	pthread_t capturer;
	int broken;
};

static struct stream legacy; // stream 0

struct node {
	struct object object;
	struct op op;
	struct graph *graph;
	struct node *next;
};

struct graph {
	struct object object;
	struct node *head, **tail;
	uint64_t count;
};

struct exec {
	struct object object;
	struct op *ops;             // in order
	struct node **nodes;        // of the graph, for each of ops; not followed
	uint64_t count;
};

// Ranges of addresses.
// A MAPPED range lies in a RESERVED one, and comes before it in the list.
enum place { DEVICE = 1, HOST, REGISTERED, RESERVED, MAPPED };

struct range {
	enum place place;
	uint64_t at, bytes;
	uint64_t number; // no other has, or will have
	int fd, read_only;
	unsigned long long memory; // that is mapped
	struct range *next;
};

static struct range *ranges;

struct memory {
	int fd;
	uint64_t bytes;
	int references; // the handle and its mappings
	int counted;
};

// --- rules -------------------------------------------------------------------

struct rule {
	char name[128];
	int64_t nth, seen; // nth 0: every
	int code;          // -1: only slow
	int64_t delay_ns;
	struct rule *next;
};

static struct rule *rules;

static void sleep_ns(int64_t ns) {
	struct timespec t = {ns / 1000000000, ns % 1000000000};
	while (nanosleep(&t, &t) != 0 && errno == EINTR) {
	}
}

// broken_rule counts a call and returns the code that the rules give it.
static int broken_rule(const char *name, int64_t *delay_ns) {
	int code = 0;
	for (struct rule *r = rules; r != NULL; r = r->next) {
		if (strcmp(r->name, name) != 0 && strcmp(r->name, "*") != 0)
			continue;
		r->seen++;
		if (r->nth != 0 && r->nth != r->seen)
			continue;
		*delay_ns += r->delay_ns;
		if (code == 0 && r->code > 0)
			code = r->code;
	}
	return code;
}

static int64_t duration(const char *text) {
	char *unit;
	double n = strtod(text, &unit);
	if (strcmp(unit, "us") == 0)
		return n * 1e3;
	if (strcmp(unit, "ms") == 0)
		return n * 1e6;
	return n * 1e9;
}

static void lose(int code) {
	if (lost == 0) {
		lost = code;
		losses++;
	}
	accounts->lost = lost;
	pthread_cond_broadcast(&changed);
}

// loss returns the code that the device was lost with, or 0. If it returns a loss, no
// operation is running any more, so the caller may unmap the operations' memory.
static int loss(void) {
	while (lost != 0 && working > 0)
		pthread_cond_wait(&changed, &mu);
	return lost;
}

static void report_to(const char *path) {
	int fd = open(path, O_RDWR | O_CREAT, 0600);
	if (fd < 0 || ftruncate(fd, sizeof own) != 0) {
		fprintf(stderr, "fake libcuda: report to %s: %s\n", path, strerror(errno));
		abort();
	}
	struct accounts *shared = mmap(NULL, sizeof own, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	if (shared == MAP_FAILED)
		abort();
	*shared = *accounts;
	accounts = shared;
}

static const struct condition none[MAX_GPUS], *conditions = none;

static void watch_conditions(const char *path) {
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	struct condition *shared = fd < 0 ? MAP_FAILED : mmap(NULL, sizeof none, PROT_READ, MAP_SHARED, fd, 0);
	if (shared == MAP_FAILED) {
		fprintf(stderr, "fake libcuda: gpus=%s: %s\n", path, strerror(errno));
		abort();
	}
	close(fd);
	conditions = shared;
}

// set_locked returns 0 if the word is a valid setting.
static int set_locked(const char *word) {
	const char *value = strchr(word, '=');
	const char *delay = strchr(word, '~');
	if (strcmp(word, "hold") == 0)
		holding = 1;
	else if (strcmp(word, "release") == 0)
		holding = 0;
	else if (strcmp(word, "flat") == 0)
		flat = 1;
	else if (value == NULL && delay == NULL)
		return 1;
	else if (strncmp(word, "turns=", 6) == 0)
		snprintf(turns, sizeof turns, "%s", value + 1);
	else if (delay == NULL && strncmp(word, "wave=", 5) == 0)
		wave_ns = duration(value + 1);
	else if (delay == NULL && strncmp(word, "devices=", 8) == 0)
		devices = atoi(value + 1);
	else if (delay == NULL && strncmp(word, "mig=", 4) == 0)
		cut = atoi(value + 1);
	else if (strncmp(word, "gpus=", 5) == 0)
		watch_conditions(value + 1);
	else if (delay == NULL && strncmp(word, "sms=", 4) == 0)
		sms = atoi(value + 1);
	else if (delay == NULL && strncmp(word, "memory=", 7) == 0)
		memory_bytes = atoll(value + 1);
	else if (delay == NULL && strncmp(word, "version=", 8) == 0)
		version = atoi(value + 1);
	else if (delay == NULL && strncmp(word, "late=", 5) == 0)
		late_ns = duration(value + 1);
	else if (delay == NULL && strncmp(word, "lost=", 5) == 0)
		lose(atoi(value + 1));
	else if (delay == NULL && strncmp(word, "report=", 7) == 0)
		report_to(value + 1);
	else {
		const char *end = delay != NULL ? delay : value;
		const char *nth = memchr(word, '#', end - word);
		size_t length = (nth != NULL ? nth : end) - word;
		struct rule *r = calloc(1, sizeof *r);
		if (length == 0 || length >= sizeof r->name)
			return 1;
		memcpy(r->name, word, length);
		r->nth = nth != NULL ? atoll(nth + 1) : 0;
		r->code = delay != NULL ? -1 : atoi(value + 1);
		r->delay_ns = delay != NULL ? duration(delay + 1) : 0;
		r->next = rules;
		rules = r;
	}
	pthread_cond_broadcast(&changed);
	return 0;
}

// fake_set applies one setting; it returns 0 if the setting is valid.
int fake_set(const char *word) {
	pthread_mutex_lock(&mu);
	int answer = set_locked(word);
	pthread_mutex_unlock(&mu);
	return answer;
}

// --- the record of launches ----------------------------------------------------

// The record of a launch, which the Go package reads. Its layout is checked there.
struct fake_record {
	char name[64];
	uint32_t grid[3], block[3], shared_bytes, sms;
	uint64_t stream;
	int32_t priority; // of the stream
	uint32_t count, argument_bytes;
	uint32_t sizes[64];
	unsigned char arguments[512]; // one after the other
};

#define RECORDS 1024
static struct fake_record records[RECORDS];
static uint64_t recorded;

// fake_accounts copies the accounts.
void fake_accounts(int64_t *out) {
	pthread_mutex_lock(&mu);
	memcpy(out, accounts, sizeof *accounts);
	pthread_mutex_unlock(&mu);
}

// fake_records copies the completed launches since the last reset, oldest first, as
// many as there is room for, and returns how many there were. Without room it only
// counts.
uint64_t fake_records(struct fake_record *out, uint64_t room) {
	pthread_mutex_lock(&mu);
	uint64_t kept = recorded < RECORDS ? recorded : RECORDS;
	for (uint64_t i = 0; i < kept && i < room; i++)
		out[i] = records[(recorded - kept + i) % RECORDS];
	pthread_mutex_unlock(&mu);
	return kept;
}

// --- the entry of every call ------------------------------------------------------

// The settings that fake_reset restores.
static const struct condition *first_conditions;
static int first_devices, first_cut, first_sms, first_version;
static int64_t first_memory_bytes, first_late_ns, first_wave_ns;
static char first_turns[sizeof turns];
static int first_flat;

__attribute__((constructor)) static void settings_of_environment(void) {
	const char *text = getenv("PENSTOCK_FAKE"), *gpus = getenv("PENSTOCK_FAKE_GPUS");
	if (gpus != NULL)
		devices = atoi(gpus);
	char *copy = strdup(text != NULL ? text : ""), *rest = copy;
	for (char *word; (word = strsep(&rest, " ")) != NULL;)
		if (*word != 0 && set_locked(word) != 0) {
			fprintf(stderr, "fake libcuda: PENSTOCK_FAKE: %s is no setting\n", word);
			abort();
		}
	free(copy);
	first_conditions = conditions;
	first_devices = devices, first_cut = cut, first_sms = sms, first_version = version;
	first_memory_bytes = memory_bytes, first_late_ns = late_ns, first_wave_ns = wave_ns, first_flat = flat;
	memcpy(first_turns, turns, sizeof turns);
}

// fake_reset clears records, holds, the loss of the device and all rules, including
// the environment's. It restores the other settings to their values at the start. It
// releases nothing.
void fake_reset(void) {
	pthread_mutex_lock(&mu);
	while (rules != NULL) {
		struct rule *r = rules;
		rules = r->next;
		free(r);
	}
	loss();
	conditions = first_conditions; // the file stays mapped
	devices = first_devices, cut = first_cut, sms = first_sms, version = first_version;
	memory_bytes = first_memory_bytes, late_ns = first_late_ns, wave_ns = first_wave_ns, flat = first_flat;
	memcpy(turns, first_turns, sizeof turns);
	holding = lost = 0;
	recorded = 0;
	accounts->lost = 0;
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&mu);
}

// What must have been called before a call.
enum need { NOTHING, INITIALISED, BOUND };

static __thread struct stream *capturing_here;

// door returns 0 with mu held, or a code without mu.
static int door(const char *name, enum need need) {
	pthread_mutex_lock(&mu);
	int64_t delay_ns = 0;
	int code = broken_rule(name, &delay_ns);
	if (delay_ns > 0) {
		pthread_mutex_unlock(&mu);
		sleep_ns(delay_ns);
		pthread_mutex_lock(&mu);
	}
	if (code == 0 && need >= INITIALISED && !initialised)
		code = NOT_INITIALIZED;
	if (code == 0 && need == BOUND) {
		if (lost != 0)
			code = loss();
		else if (current == NULL || current->closed)
			code = INVALID_CONTEXT;
	}
	if (code != 0)
		pthread_mutex_unlock(&mu);
	return code;
}

#define ENTER(need) do { \
		int code_ = door(__func__, need); \
		if (code_ != 0) \
			return code_; \
	} while (0)
#define LEAVE(code) do { \
		int leave_ = (code); \
		pthread_mutex_unlock(&mu); \
		return leave_; \
	} while (0)

// UNSAFE marks calls that a thread must not make during a capture.
#define UNSAFE() do { \
		if (capturing_here != NULL) { \
			capturing_here->broken = 1; \
			LEAVE(CAPTURE_UNSUPPORTED); \
		} \
	} while (0)

// --- devices -----------------------------------------------------------------------

static int is_instance(int gpu) { return gpu >= MAX_GPUS; }

static int gpu_sms(int gpu) { return is_instance(gpu) ? gpu_sms(cut) / 4 * 2 : sms - sms * gpu / MAX_GPUS / 2 * 2; }

static int64_t gpu_memory(int gpu) {
	return is_instance(gpu) ? gpu_memory(cut) / INSTANCES : memory_bytes - memory_bytes / MAX_GPUS * gpu;
}

static const struct condition *condition(int gpu) { return &conditions[is_instance(gpu) ? cut : gpu]; }

int fake_gpus(void) { return devices; }

int fake_cut(void) { return cut; }

int fake_gpu_sms(int gpu) { return gpu_sms(gpu); }

int64_t fake_gpu_memory(int gpu) { return gpu_memory(gpu); }

const struct condition *fake_condition(int gpu) { return condition(gpu); }

static void gpu_uuid(int gpu, unsigned char bytes[16]) {
	for (int i = 0; i < 16; i++)
		bytes[i] = 0x10 * gpu + i;
	bytes[0] = 0xfa;
}

void fake_gpu_name(int gpu, char *name, size_t bytes) {
	if (is_instance(gpu))
		snprintf(name, bytes, "Penstock Fake %d MIG 3g.%dgb", cut, (int)(gpu_memory(gpu) >> 30));
	else
		snprintf(name, bytes, "Penstock Fake %d", gpu);
}

void fake_gpu_uuid(int gpu, char text[UUID_BYTES]) {
	unsigned char b[16];
	gpu_uuid(gpu, b);
	text += sprintf(text, is_instance(gpu) ? "MIG-" : "GPU-");
	for (int i = 0; i < 16; i++)
		text += sprintf(text, i == 4 || i == 6 || i == 8 || i == 10 ? "-%02x" : "%02x", b[i]);
}

static char *visible;        // $CUDA_VISIBLE_DEVICES at cuInit; NULL: all
static int absent[MAX_GPUS]; // GPUs that were gone at cuInit

// named returns the GPU of an entry of $CUDA_VISIBLE_DEVICES, -1 if there is none. A divided GPU is
// named by its number, or by an instance.
static int named(const char *entry) {
	char *end, text[UUID_BYTES];
	long number = strtol(entry, &end, 10);
	if (*entry != 0 && *end == 0)
		return number < 0 || number >= devices ? -1 : number == cut ? MAX_GPUS : number;
	for (int gpu = 0; gpu < MAX_GPUS + INSTANCES; gpu++) {
		if (is_instance(gpu) ? cut < 0 : gpu >= devices || gpu == cut)
			continue;
		fake_gpu_uuid(gpu, text);
		if (strlen(entry) > 4 && strncasecmp(text, entry, strlen(entry)) == 0)
			return gpu;
	}
	return -1;
}

// visible_gpus lists the GPUs that this process sees, and returns how many. An entry that is no
// GPU hides those after it, as with the driver.
static int visible_gpus(int list[MAX_GPUS]) {
	int n = 0;
	if (visible == NULL) {
		for (int gpu = 0; gpu < devices; gpu++)
			if (!absent[gpu])
				list[n++] = gpu == cut ? MAX_GPUS : gpu;
		return n;
	}
	int divided = 0;
	char *copy = strdup(visible), *rest = copy;
	for (char *entry; (entry = strsep(&rest, ",")) != NULL && n < MAX_GPUS;) {
		int gpu = named(entry);
		if (gpu < 0 || absent[is_instance(gpu) ? cut : gpu])
			break;
		if (!is_instance(gpu) || !divided++)
			list[n++] = gpu;
	}
	free(copy);
	return n;
}

// gpu_at returns the GPU of a device, -1 if there is none.
static int gpu_at(CUdevice device) {
	int list[MAX_GPUS];
	return device >= 0 && device < visible_gpus(list) ? list[device] : -1;
}

// open_gpu takes as long as the GPU's condition says, and returns the code with which the GPU fails.
static int open_gpu(int gpu) {
	const struct condition *c = condition(gpu);
	if (c->open_ns > 0) {
		int64_t ns = c->open_ns;
		pthread_mutex_unlock(&mu);
		sleep_ns(ns);
		pthread_mutex_lock(&mu);
	}
	return c->gone ? LAUNCH_FAILED : c->fault;
}

CUresult cuInit(unsigned flags) {
	ENTER(NOTHING);
	if (flags != 0)
		LEAVE(INVALID_VALUE);
	free(visible);
	visible = getenv("CUDA_VISIBLE_DEVICES");
	if (visible != NULL)
		visible = strdup(visible);
	for (int gpu = 0; gpu < MAX_GPUS; gpu++)
		absent[gpu] = conditions[gpu].gone;
	int list[MAX_GPUS];
	if (visible_gpus(list) == 0)
		LEAVE(NO_DEVICE);
	initialised = 1;
	LEAVE(SUCCESS);
}

CUresult cuDriverGetVersion(int *out) {
	ENTER(NOTHING);
	*out = version;
	LEAVE(SUCCESS);
}

// describe finds the name or the meaning of a code. It knows those that tests expect.
static CUresult describe(CUresult code, const char **name, const char **meaning) {
	static const struct { CUresult code; const char *name, *meaning; } all[] = {
		{OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
		{46, "CUDA_ERROR_DEVICE_UNAVAILABLE", "CUDA-capable device(s) is/are busy or unavailable"},
		{NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
		{ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
		{801, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
		{803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "system has unsupported display driver / cuda driver combination"},
		{805, "CUDA_ERROR_MPS_CONNECTION_FAILED", "MPS client failed to connect to the MPS control daemon or the MPS server"},
	};
	for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
		if (all[i].code != code)
			continue;
		*name = all[i].name;
		*meaning = all[i].meaning;
		return SUCCESS;
	}
	return INVALID_VALUE;
}

CUresult cuGetErrorName(CUresult code, const char **out) {
	const char *meaning;
	return describe(code, out, &meaning);
}

CUresult cuGetErrorString(CUresult code, const char **out) {
	const char *name;
	return describe(code, &name, out);
}

CUresult cuDeviceGetCount(int *out) {
	ENTER(INITIALISED);
	int list[MAX_GPUS];
	*out = visible_gpus(list);
	LEAVE(SUCCESS);
}

// GPU_OR_LEAVE declares gpu, the GPU of a device.
#define GPU_OR_LEAVE(device) \
	int gpu = gpu_at(device); \
	if (gpu < 0) \
		LEAVE(INVALID_DEVICE)

CUresult cuDeviceGet(CUdevice *out, int ordinal) {
	ENTER(INITIALISED);
	GPU_OR_LEAVE(ordinal);
	*out = ordinal;
	LEAVE(SUCCESS);
}

CUresult cuDeviceGetName(char *name, int bytes, CUdevice device) {
	ENTER(INITIALISED);
	GPU_OR_LEAVE(device);
	fake_gpu_name(gpu, name, bytes);
	LEAVE(SUCCESS);
}

CUresult cuDeviceGetUuid_v2(CUuuid *out, CUdevice device) {
	ENTER(INITIALISED);
	GPU_OR_LEAVE(device);
	gpu_uuid(gpu, out->bytes);
	LEAVE(SUCCESS);
}

CUresult cuDeviceTotalMem_v2(size_t *out, CUdevice device) {
	ENTER(INITIALISED);
	GPU_OR_LEAVE(device);
	*out = gpu_memory(gpu);
	LEAVE(SUCCESS);
}

static int mps(void) {
	const char *directory = getenv("CUDA_MPS_PIPE_DIRECTORY");
	char path[4096];
	if (directory == NULL || *directory == 0)
		return 0;
	snprintf(path, sizeof path, "%s/control", directory);
	return access(path, F_OK) == 0;
}

// usable returns how many of a GPU's multiprocessors this process may use.
static int usable(int gpu) {
	const char *percent = getenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE");
	if (!mps() || percent == NULL || atof(percent) <= 0 || atof(percent) >= 100)
		return gpu_sms(gpu);
	int part = (int)(gpu_sms(gpu) * atof(percent) / 100) / 2 * 2;
	return part < 2 ? 2 : part;
}

CUresult cuDeviceGetAttribute(int *out, int attribute, CUdevice device) {
	ENTER(INITIALISED);
	GPU_OR_LEAVE(device);
	switch (attribute) {
	case 13: *out = 1980000; break;
	case 16: *out = usable(gpu); break;
	case 38: *out = 50 << 20; break;
	case 39: *out = 2048; break;
	case 75: *out = 9; break;
	case 76: *out = 0; break;
	case 19: case 41: case 91: case 99: case 102: case 103: case 113: *out = 1; break;
	case 88: *out = 0; break;
	case 133: *out = mps(); break;
	default: LEAVE(INVALID_VALUE);
	}
	LEAVE(SUCCESS);
}

// --- contexts ------------------------------------------------------------------------

CUresult cuDevicePrimaryCtxRetain(CUcontext *out, CUdevice device) {
	ENTER(INITIALISED);
	GPU_OR_LEAVE(device);
	if (lost != 0)
		LEAVE(loss());
	int failed = open_gpu(gpu);
	if (failed != 0)
		LEAVE(failed);
	struct context *c = &primary[gpu];
	if (c->object.kind != CONTEXT)
		enter_object(c, CONTEXT);
	c->gpu = gpu;
	c->closed = 0;
	c->retained++;
	accounts->contexts++;
	*out = c;
	LEAVE(SUCCESS);
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
	ENTER(INITIALISED);
	GPU_OR_LEAVE(device);
	struct context *c = &primary[gpu];
	if (c->retained == 0)
		LEAVE(INVALID_CONTEXT);
	accounts->contexts--;
	if (--c->retained == 0)
		c->closed = 1;
	LEAVE(SUCCESS);
}

CUresult cuCtxSetCurrent(CUcontext context) {
	ENTER(INITIALISED);
	if (context != NULL && !known(context, CONTEXT))
		LEAVE(INVALID_CONTEXT);
	if (context != NULL && lost != 0)
		LEAVE(loss());
	current = context;
	LEAVE(SUCCESS);
}

CUresult cuCtxGetCurrent(CUcontext *out) {
	ENTER(INITIALISED);
	*out = current;
	LEAVE(SUCCESS);
}

static unsigned sms_of(const struct context *c) { return c->green != NULL ? c->green->sms : (unsigned)usable(c->gpu); }

CUresult cuCtxGetExecAffinity(CUexecAffinityParam *out, int type) {
	ENTER(BOUND);
	if (type != 0)
		LEAVE(224);
	out->type = type;
	out->val = usable(current->gpu);
	LEAVE(SUCCESS);
}

static void settle_all(void);

// --- memory ----------------------------------------------------------------------------

static struct range *range_at(uint64_t at, uint64_t bytes) {
	for (struct range *r = ranges; r != NULL; r = r->next)
		if (at < r->at + r->bytes && r->at < at + (bytes > 0 ? bytes : 1))
			return r;
	return NULL;
}

static struct range *range_of(uint64_t at, enum place place) {
	for (struct range *r = ranges; r != NULL; r = r->next)
		if (r->at == at && r->place == place)
			return r;
	return NULL;
}

static struct range *add_range(enum place place, uint64_t at, uint64_t bytes, int fd) {
	static uint64_t made;
	struct range *r = calloc(1, sizeof *r);
	r->number = ++made;
	r->place = place;
	r->at = at;
	r->bytes = bytes;
	r->fd = fd;
	r->next = ranges;
	ranges = r;
	return r;
}

static void drop_range(struct range *gone) {
	for (struct range **at = &ranges; *at != NULL; at = &(*at)->next)
		if (*at == gone) {
			*at = gone->next;
			break;
		}
	if (gone->place != REGISTERED && gone->place != MAPPED)
		munmap((void *)(uintptr_t)gone->at, gone->bytes);
	if (gone->fd >= 0)
		close(gone->fd);
	free(gone);
}

// reach_locked returns the code with which work on these addresses ends. Memory that
// the driver does not know is host memory, and only a stream may use it.
static int reach_locked(uint64_t at, uint64_t bytes, int write, int kernel) {
	struct range *r = range_at(at, 1);
	if (r == NULL)
		r = range_at(at, bytes);
	if (r == NULL)
		return kernel || at < 4096 ? ILLEGAL_ADDRESS : SUCCESS;
	// Adjacent mappings count as one range.
	while (r != NULL && r->place == MAPPED && at >= r->at && at + bytes > r->at + r->bytes) {
		if (write && r->read_only)
			return ILLEGAL_ADDRESS;
		bytes -= r->at + r->bytes - at;
		at = r->at + r->bytes;
		r = range_at(at, 1);
	}
	if (r == NULL || at < r->at || at + bytes > r->at + r->bytes || r->place == RESERVED)
		return kernel ? ILLEGAL_ADDRESS : INVALID_VALUE;
	return write && r->read_only ? ILLEGAL_ADDRESS : SUCCESS;
}

int fake_reach(const void *address, size_t bytes, int write) {
	pthread_mutex_lock(&mu);
	int code = reach_locked((uintptr_t)address, bytes, write, 1);
	if (code != 0)
		lose(code);
	pthread_mutex_unlock(&mu);
	return code == 0;
}

uint32_t fake_multiprocessor(const struct fake_launch *launch, uint32_t i) {
	for (uint32_t sm = 0; launch->mask != NULL && sm < MAX_SMS; sm++)
		if (launch->mask[sm / 32] >> sm % 32 & 1 && i-- == 0)
			return sm;
	return i;
}

void fake_fault(int code) {
	pthread_mutex_lock(&mu);
	lose(code);
	pthread_mutex_unlock(&mu);
}

// taken returns how much device memory is in use.
static int64_t taken(void) { return accounts->bytes + accounts->green_bytes; }

CUresult cuMemGetInfo_v2(size_t *unused, size_t *total) {
	ENTER(BOUND);
	int64_t all = gpu_memory(current->gpu);
	*unused = all > taken() ? all - taken() : 0;
	*total = all;
	LEAVE(SUCCESS);
}

// file_of makes memory that another process can open.
static int file_of(uint64_t bytes) {
	int fd = memfd_create("fake-cuda", MFD_CLOEXEC);
	if (fd >= 0 && ftruncate(fd, bytes) != 0) {
		close(fd);
		return -1;
	}
	return fd;
}

static uint64_t map_file(int fd, uint64_t bytes) {
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	return p == MAP_FAILED ? 0 : (uintptr_t)p;
}

CUresult cuMemAlloc_v2(CUdeviceptr *out, size_t bytes) {
	ENTER(BOUND);
	UNSAFE();
	if (bytes == 0)
		LEAVE(INVALID_VALUE);
	if (taken() + (int64_t)bytes > gpu_memory(current->gpu) || (int64_t)bytes < 0)
		LEAVE(OUT_OF_MEMORY);
	int fd = file_of(bytes);
	uint64_t at = fd < 0 ? 0 : map_file(fd, bytes);
	if (at == 0)
		LEAVE(OUT_OF_MEMORY);
	memset((void *)(uintptr_t)at, 0xa5, bytes < 4096 ? bytes : 4096); // not zeroed
	add_range(DEVICE, at, bytes, fd);
	accounts->allocations++;
	accounts->bytes += bytes;
	*out = at;
	LEAVE(SUCCESS);
}


CUresult cuMemFree_v2(CUdeviceptr at) {
	ENTER(BOUND);
	UNSAFE();
	struct range *r = range_of(at, DEVICE);
	if (r == NULL)
		LEAVE(INVALID_VALUE);
	settle_all();
	accounts->allocations--;
	accounts->bytes -= r->bytes;
	drop_range(r);
	LEAVE(SUCCESS);
}

CUresult cuMemHostAlloc(void **out, size_t bytes, unsigned flags) {
	ENTER(BOUND);
	UNSAFE();
	if (bytes == 0 || flags & ~7u)
		LEAVE(INVALID_VALUE);
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED)
		LEAVE(OUT_OF_MEMORY);
	add_range(HOST, (uintptr_t)p, bytes, -1);
	accounts->host_allocations++;
	*out = p;
	LEAVE(SUCCESS);
}

CUresult cuMemFreeHost(void *p) {
	ENTER(BOUND);
	UNSAFE();
	struct range *r = range_of((uintptr_t)p, HOST);
	if (r == NULL)
		LEAVE(INVALID_VALUE);
	settle_all();
	accounts->host_allocations--;
	drop_range(r);
	LEAVE(SUCCESS);
}

// writable reports whether this process may write every page of a mapping; -1 if
// some page is not mapped at all.
static int writable(uint64_t at, uint64_t bytes) {
	FILE *maps = fopen("/proc/self/maps", "re");
	char line[1024];
	uint64_t covered = at;
	int all = 1;
	while (maps != NULL && fgets(line, sizeof line, maps) != NULL) {
		unsigned long long from, to;
		char mode[8];
		if (sscanf(line, "%llx-%llx %7s", &from, &to, mode) != 3 || to <= covered)
			continue;
		if (from > covered || covered >= at + bytes)
			break;
		all = all && mode[1] == 'w';
		covered = to;
	}
	if (maps != NULL)
		fclose(maps);
	return covered >= at + bytes ? all : -1;
}

CUresult cuMemHostRegister_v2(void *p, size_t bytes, unsigned flags) {
	ENTER(BOUND);
	UNSAFE();
	uint64_t at = (uintptr_t)p;
	if (bytes == 0 || flags & ~0xfu)
		LEAVE(INVALID_VALUE);
	if (range_at(at, bytes) != NULL)
		LEAVE(ALREADY_REGISTERED);
	int may_write = writable(at, bytes);
	if (may_write < 0 || (may_write == 0 && (flags & 8) == 0))
		LEAVE(INVALID_VALUE);
	add_range(REGISTERED, at, bytes, -1)->read_only = (flags & 8) != 0;
	accounts->registrations++;
	LEAVE(SUCCESS);
}

CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *out, void *p, unsigned flags) {
	ENTER(BOUND);
	struct range *r = range_at((uintptr_t)p, 1);
	if (flags != 0 || r == NULL || (r->place != HOST && r->place != REGISTERED))
		LEAVE(INVALID_VALUE);
	*out = (uintptr_t)p;
	LEAVE(SUCCESS);
}

CUresult cuMemHostUnregister(void *p) {
	ENTER(BOUND);
	UNSAFE();
	struct range *r = range_of((uintptr_t)p, REGISTERED);
	if (r == NULL)
		LEAVE(NOT_REGISTERED);
	settle_all();
	accounts->registrations--;
	drop_range(r);
	LEAVE(SUCCESS);
}

#define PAGE (2ull << 20)

static int sound(const CUmemAllocationProp *p) {
	return p->type == 1 && p->requestedHandleTypes <= 1 && p->location.type == 1 &&
		gpu_at(p->location.id) >= 0;
}

CUresult cuMemGetAllocationGranularity(size_t *out, const CUmemAllocationProp *p, int option) {
	ENTER(INITIALISED);
	if (!sound(p) || option < 0 || option > 1)
		LEAVE(INVALID_VALUE);
	*out = PAGE;
	LEAVE(SUCCESS);
}

CUresult cuMemAddressReserve(CUdeviceptr *out, size_t bytes, size_t alignment, CUdeviceptr wish, unsigned long long flags) {
	(void)alignment, (void)wish;
	ENTER(INITIALISED);
	if (bytes == 0 || bytes % PAGE != 0 || flags != 0)
		LEAVE(INVALID_VALUE);
	void *p = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (p == MAP_FAILED)
		LEAVE(OUT_OF_MEMORY);
	add_range(RESERVED, (uintptr_t)p, bytes, -1);
	accounts->reservations++;
	*out = (uintptr_t)p;
	LEAVE(SUCCESS);
}

// reserved returns the reserved range that contains these addresses.
static struct range *reserved(uint64_t at, uint64_t bytes) {
	for (struct range *r = ranges; r != NULL; r = r->next)
		if (r->place == RESERVED && at >= r->at && at + bytes <= r->at + r->bytes)
			return r;
	return NULL;
}

// next_mapped returns a mapping in these addresses, or NULL.
static struct range *next_mapped(uint64_t at, uint64_t bytes) {
	struct range *r = range_at(at, bytes);
	return r != NULL && r->place == MAPPED ? r : NULL;
}

CUresult cuMemAddressFree(CUdeviceptr at, size_t bytes) {
	ENTER(INITIALISED);
	struct range *r = range_of(at, RESERVED);
	if (r == NULL || r->bytes != bytes || next_mapped(at, bytes) != NULL)
		LEAVE(INVALID_VALUE);
	accounts->reservations--;
	drop_range(r);
	LEAVE(SUCCESS);
}

static struct memory *memories[1024];

static struct memory *memory_of(CUmemory handle) {
	return handle >= 1 && handle <= 1024 ? memories[handle - 1] : NULL;
}

static CUmemory add_memory(int fd, uint64_t bytes, int counted) {
	for (int i = 0; i < 1024; i++)
		if (memories[i] == NULL) {
			struct memory *m = memories[i] = calloc(1, sizeof *m);
			m->fd = fd;
			m->bytes = bytes;
			m->references = 1;
			m->counted = counted;
			accounts->memories++;
			return i + 1;
		}
	return 0;
}

static void drop_memory(CUmemory handle) {
	struct memory *m = memory_of(handle);
	if (--m->references > 0)
		return;
	if (m->counted)
		accounts->bytes -= m->bytes;
	accounts->memories--;
	close(m->fd);
	free(m);
	memories[handle - 1] = NULL;
}

CUresult cuMemCreate(CUmemory *out, size_t bytes, const CUmemAllocationProp *p, unsigned long long flags) {
	ENTER(INITIALISED);
	UNSAFE();
	if (lost != 0)
		LEAVE(loss());
	if (bytes == 0 || bytes % PAGE != 0 || !sound(p) || flags != 0)
		LEAVE(INVALID_VALUE);
	if (taken() + (int64_t)bytes > gpu_memory(gpu_at(p->location.id)))
		LEAVE(OUT_OF_MEMORY);
	int fd = file_of(bytes);
	CUmemory handle = fd < 0 ? 0 : add_memory(fd, bytes, 1);
	if (handle == 0)
		LEAVE(OUT_OF_MEMORY);
	accounts->bytes += bytes;
	*out = handle;
	LEAVE(SUCCESS);
}

CUresult cuMemRelease(CUmemory handle) {
	ENTER(INITIALISED);
	if (memory_of(handle) == NULL)
		LEAVE(INVALID_VALUE);
	drop_memory(handle);
	LEAVE(SUCCESS);
}

CUresult cuMemMap(CUdeviceptr at, size_t bytes, size_t offset, CUmemory handle, unsigned long long flags) {
	ENTER(INITIALISED);
	struct memory *m = memory_of(handle);
	if (reserved(at, bytes) == NULL || m == NULL || at % PAGE != 0 || bytes == 0 || bytes % PAGE != 0 ||
		next_mapped(at, bytes) != NULL || offset != 0 || bytes > m->bytes || flags != 0)
		LEAVE(INVALID_VALUE);
	if (mmap((void *)(uintptr_t)at, bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, m->fd, 0) == MAP_FAILED)
		LEAVE(205);
	add_range(MAPPED, at, bytes, -1)->memory = handle;
	m->references++;
	accounts->mappings++;
	LEAVE(SUCCESS);
}

CUresult cuMemUnmap(CUdeviceptr at, size_t bytes) {
	ENTER(INITIALISED);
	struct range *r = next_mapped(at, bytes);
	if (r == NULL || r->at != at || r->bytes != bytes)
		LEAVE(INVALID_VALUE);
	mmap((void *)(uintptr_t)at, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
	drop_memory(r->memory);
	drop_range(r);
	accounts->mappings--;
	LEAVE(SUCCESS);
}

CUresult cuMemSetAccess(CUdeviceptr at, size_t bytes, const CUmemAccessDesc *access, size_t count) {
	ENTER(INITIALISED);
	if (count != 1 || access->location.type != 1 || (access->flags != 1 && access->flags != 3))
		LEAVE(INVALID_VALUE);
	uint64_t end = at + bytes;
	for (uint64_t next = at; next < end;) {
		struct range *r = next_mapped(next, 1);
		if (r == NULL || r->at < at || r->at + r->bytes > end)
			LEAVE(INVALID_VALUE);
		next = r->at + r->bytes;
	}
	for (uint64_t next = at; next < end;) {
		struct range *r = next_mapped(next, 1);
		r->read_only = access->flags == 1;
		next = r->at + r->bytes;
	}
	mprotect((void *)(uintptr_t)at, bytes, access->flags == 1 ? PROT_READ : PROT_READ | PROT_WRITE);
	LEAVE(SUCCESS);
}

// cuPointerGetAttribute returns the kind of memory that the driver knows.
CUresult cuPointerGetAttribute(void *out, int attribute, CUdeviceptr at) {
	ENTER(BOUND);
	struct range *r = range_at(at, 1);
	if (attribute != 2 || r == NULL || r->place == RESERVED)
		LEAVE(INVALID_VALUE);
	*(unsigned *)out = r->place == HOST || r->place == REGISTERED ? 1 : 2;
	LEAVE(SUCCESS);
}

CUresult cuMemExportToShareableHandle(void *out, CUmemory handle, int type, unsigned long long flags) {
	ENTER(INITIALISED);
	struct memory *m = memory_of(handle);
	if (m == NULL || type != 1 || flags != 0)
		LEAVE(INVALID_VALUE);
	int fd = fcntl(m->fd, F_DUPFD_CLOEXEC, 0);
	if (fd < 0)
		LEAVE(304);
	*(int *)out = fd;
	LEAVE(SUCCESS);
}

CUresult cuMemImportFromShareableHandle(CUmemory *out, void *word, int type) {
	ENTER(INITIALISED);
	int fd = (int)(intptr_t)word;
	struct stat about;
	if (type != 1 || fstat(fd, &about) != 0 || about.st_size == 0 || about.st_size % PAGE != 0)
		LEAVE(INVALID_VALUE);
	fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	CUmemory handle = fd < 0 ? 0 : add_memory(fd, about.st_size, 0);
	if (handle == 0)
		LEAVE(304);
	*out = handle;
	LEAVE(SUCCESS);
}

// --- streams: a thread each -----------------------------------------------------------------

static void release_event(struct event *e) {
	if (--e->references == 0 && e->destroyed)
		free(e);
}

static void free_op(struct op *op) {
	if (op->event != NULL)
		release_event(op->event);
	free(op->parameters);
	free(op);
}

// copy_parameters copies parameters, with a table of pointers followed by the values.
static void **copy_parameters(const struct function *f, void **parameters, size_t *blob_bytes) {
	size_t bytes = f->count * sizeof(void *);
	for (uint32_t i = 0; i < f->count; i++)
		bytes += (f->sizes[i] + 15) & ~15ull;
	char *blob = calloc(1, bytes + 16);
	void **table = (void **)blob;
	char *at = blob + f->count * sizeof(void *);
	for (uint32_t i = 0; i < f->count; i++) {
		table[i] = at;
		if (parameters != NULL)
			memcpy(at, parameters[i], f->sizes[i]);
		at += (f->sizes[i] + 15) & ~15ull;
	}
	*blob_bytes = bytes;
	return table;
}

static struct op *copy_op(const struct op *from) {
	struct op *op = malloc(sizeof *op);
	*op = *from;
	op->next = NULL;
	if (op->event != NULL)
		op->event->references++;
	if (from->function != NULL)
		op->parameters = copy_parameters(from->function, from->parameters, &op->blob_bytes);
	return op;
}

static void record_launch(const struct op *op, const struct stream *s) {
	struct fake_record *r = &records[recorded++ % RECORDS];
	memset(r, 0, sizeof *r);
	snprintf(r->name, sizeof r->name, "%.63s", op->function->name);
	memcpy(r->grid, op->grid, sizeof r->grid);
	memcpy(r->block, op->block, sizeof r->block);
	r->shared_bytes = op->shared_bytes;
	r->sms = sms_of(op->context);
	r->stream = (uintptr_t)s;
	r->priority = s->priority;
	r->count = op->function->count;
	for (uint32_t i = 0; i < r->count; i++) {
		uint32_t bytes = op->function->sizes[i];
		r->sizes[i] = bytes;
		if (r->argument_bytes + bytes > sizeof r->arguments)
			continue;
		memcpy(r->arguments + r->argument_bytes, op->parameters[i], bytes);
		r->argument_bytes += bytes;
	}
	accounts->launches++;
}

static int memory_gone(const struct op *op);

// wait_turn waits until no other kernel that takes turns runs, in any process, and returns what
// end_turn takes. A kernel that waits comes before a later one: byte 0 of the file is the place
// in the queue, byte 1 the GPU. The kernel releases the locks of a process that dies.
static int wait_turn(const struct stream *s) {
	if (turns[0] == 0 || (s->priority < 0 && !flat))
		return -1;
	int fd = open(turns, O_RDWR | O_CLOEXEC);
	if (fd < 0) {
		fprintf(stderr, "fake libcuda: turns=%s: %s\n", turns, strerror(errno));
		abort();
	}
	for (int byte = 0; byte < 2; byte++) {
		struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
		while (fcntl(fd, F_OFD_SETLKW, &lock) != 0 && errno == EINTR) {
		}
	}
	struct flock queue = {.l_type = F_UNLCK, .l_whence = SEEK_SET, .l_start = 0, .l_len = 1};
	fcntl(fd, F_OFD_SETLK, &queue);
	return fd;
}

static void end_turn(int fd) {
	if (fd >= 0)
		close(fd);
}

// work_locked does one op. It unlocks mu while it moves bytes.
static void work_locked(struct stream *s, struct op *op) {
	if (memory_gone(op)) {
		lose(ILLEGAL_ADDRESS);
		return;
	}
	const struct condition *c = s->context != NULL ? condition(s->context->gpu) : none;
	if (c->gone || c->fault != 0) {
		lose(c->gone ? LAUNCH_FAILED : c->fault);
		return;
	}
	int code = 0;
	switch (op->work) {
	case COPY:
		code = reach_locked(op->src, op->bytes, 0, 0);
		if (code == 0)
			code = reach_locked(op->dst, op->bytes, 1, 0);
		if (code == 0) {
			pthread_mutex_unlock(&mu);
			memmove((void *)(uintptr_t)op->dst, (void *)(uintptr_t)op->src, op->bytes);
			pthread_mutex_lock(&mu);
		}
		break;
	case SET:
		code = reach_locked(op->dst, op->bytes, 1, 0);
		if (code == 0) {
			pthread_mutex_unlock(&mu);
			memset((void *)(uintptr_t)op->dst, (int)op->value, op->bytes);
			pthread_mutex_lock(&mu);
		}
		break;
	case WRITE:
		code = reach_locked(op->dst, 4, 1, 1);
		if (code == 0)
			__atomic_store_n((uint32_t *)(uintptr_t)op->dst, (uint32_t)op->value, __ATOMIC_RELEASE);
		break;
	case RECORD:
		op->event->done = op->turn;
		clock_gettime(CLOCK_MONOTONIC, &op->event->at);
		break;
	case WAIT:
		break; // the thread has waited
	case KERNEL: {
		char name[300];
		int64_t delay_ns = 0;
		snprintf(name, sizeof name, "kernel:%s", op->function->name);
		code = broken_rule(name, &delay_ns);
		if (code == 0)
			code = broken_rule("kernel:*", &delay_ns);
		if (code != 0)
			break;
		record_launch(op, s);
		struct fake_launch launch = {
			.name = op->function->name, .shared_bytes = op->shared_bytes, .sms = sms_of(op->context),
			.stream = (uintptr_t)s, .count = op->function->count, .parameters = op->parameters,
			.sizes = op->function->sizes,
			.mask = op->context->green != NULL ? op->context->green->inside.mask : NULL,
		};
		memcpy(launch.grid, op->grid, sizeof launch.grid);
		memcpy(launch.block, op->block, sizeof launch.block);
		uint64_t blocks = (uint64_t)op->grid[0] * op->grid[1] * op->grid[2];
		delay_ns += wave_ns * ((blocks + launch.sms - 1) / launch.sms);
		pthread_mutex_unlock(&mu);
		int turn = wait_turn(s);
		if (delay_ns > 0)
			sleep_ns(delay_ns);
		if (op->function->twin != NULL)
			op->function->twin(&launch);
		end_turn(turn);
		pthread_mutex_lock(&mu);
		break;
	}
	}
	if (code != 0)
		lose(code);
}

static void *work(void *p) {
	struct stream *s = p;
	pthread_mutex_lock(&mu);
	for (;;) {
		struct op *op = s->head;
		if (op == NULL) {
			if (s->destroyed)
				break;
			pthread_cond_wait(&changed, &mu);
			continue;
		}
		int doomed = lost != 0 || op->losses != losses;
		if (!doomed && (holding || (op->work == WAIT && op->event->done < op->turn))) {
			pthread_cond_wait(&changed, &mu);
			continue;
		}
		if (!doomed) {
			working++;
			if (late_ns > 0) {
				int64_t ns = late_ns;
				pthread_mutex_unlock(&mu);
				sleep_ns(ns);
				pthread_mutex_lock(&mu);
			}
			work_locked(s, op);
			working--;
		}
		s->head = op->next;
		if (s->head == NULL)
			s->tail = &s->head;
		s->pending--;
		free_op(op);
		pthread_cond_broadcast(&changed);
	}
	pthread_mutex_unlock(&mu);
	free(s);
	return NULL;
}

static int start_stream(struct stream *s, struct context *c) {
	s->tail = &s->head;
	s->context = c;
	if (pthread_create(&s->thread, NULL, work, s) != 0)
		return OUT_OF_MEMORY;
	pthread_detach(s->thread);
	return SUCCESS;
}

// stream_of checks a handle; stream 0 is made when it is first used.
static int stream_of(struct stream **s) {
	if (*s == NULL) {
		*s = &legacy;
		if (legacy.tail == NULL) {
			enter_object(&legacy, STREAM);
			return start_stream(&legacy, current);
		}
		return SUCCESS;
	}
	if (!known(*s, STREAM))
		return INVALID_HANDLE;
	struct context *c = (*s)->context;
	if (c->green != NULL && !known(c->green, GREEN))
		return CONTEXT_IS_DESTROYED;
	return SUCCESS;
}

#define STREAM_OR_LEAVE(s) do { \
		int stream_code_ = stream_of(&(s)); \
		if (stream_code_ != 0) \
			LEAVE(stream_code_); \
	} while (0)

// memory_at returns the number of the memory that contains an address, 0 if the driver
// knows none. Mapped memory has that of its reserved addresses: other memory may be mapped
// there between two launches of a graph.
static uint64_t memory_at(uint64_t at) {
	struct range *r = range_at(at, 1);
	if (r != NULL && r->place == MAPPED)
		r = reserved(at, 1);
	return r != NULL ? r->number : 0;
}

static void find_memory(struct op *op) {
	op->dst_memory = memory_at(op->dst);
	op->src_memory = memory_at(op->src);
}

// memory_gone reports whether the memory that find_memory found was freed.
static int memory_gone(const struct op *op) {
	return (op->dst_memory != 0 && op->dst_memory != memory_at(op->dst)) ||
		(op->src_memory != 0 && op->src_memory != memory_at(op->src));
}

// submit queues an op, or adds it to the graph that the stream is captured to.
static void submit(struct stream *s, struct op *op) {
	if (s->capturing != NULL) {
		struct node *n = calloc(1, sizeof *n);
		n->op = *op;
		n->op.next = NULL;
		find_memory(&n->op);
		n->graph = s->capturing;
		enter_object(n, NODE);
		*s->capturing->tail = n;
		s->capturing->tail = &n->next;
		s->capturing->count++;
		free(op);
		return;
	}
	if (op->dst_memory == 0 && op->src_memory == 0)
		find_memory(op);
	op->losses = losses;
	*s->tail = op;
	s->tail = &op->next;
	s->submitted++;
	s->pending++;
	pthread_cond_broadcast(&changed);
}

// settle waits until the stream's work is done, or the device is lost.
static int settle(struct stream *s) {
	while (known(s, STREAM) && s->pending > 0 && lost == 0)
		pthread_cond_wait(&changed, &mu);
	return loss();
}

// settle_all waits until all work queued so far is done, or the device is lost.
static void settle_all(void) {
	for (struct object *o = objects; o != NULL; o = o->next)
		if (o->kind == STREAM)
			((struct stream *)o)->mark = ((struct stream *)o)->submitted;
	for (;;) {
		int busy = 0;
		for (struct object *o = objects; o != NULL; o = o->next) {
			struct stream *s = (struct stream *)o;
			busy |= o->kind == STREAM && s->submitted - s->pending < s->mark;
		}
		if (!busy || loss() != 0)
			return;
		pthread_cond_wait(&changed, &mu);
	}
}

#define HIGHEST_PRIORITY (-5)

static int new_stream(CUstream *out, struct context *c, int priority) {
	struct stream *s = calloc(1, sizeof *s);
	s->priority = priority > 0 ? 0 : priority < HIGHEST_PRIORITY ? HIGHEST_PRIORITY : priority;
	int code = start_stream(s, c);
	if (code != 0) {
		free(s);
		return code;
	}
	enter_object(s, STREAM);
	accounts->streams++;
	*out = s;
	return SUCCESS;
}

CUresult cuStreamCreate(CUstream *out, unsigned flags) {
	ENTER(BOUND);
	if (flags > 1)
		LEAVE(INVALID_VALUE);
	LEAVE(new_stream(out, current, 0));
}

CUresult cuStreamCreateWithPriority(CUstream *out, unsigned flags, int priority) {
	ENTER(BOUND);
	if (flags > 1)
		LEAVE(INVALID_VALUE);
	LEAVE(new_stream(out, current, priority));
}

CUresult cuCtxGetStreamPriorityRange(int *lowest, int *highest) {
	ENTER(BOUND);
	*lowest = 0;
	*highest = HIGHEST_PRIORITY;
	LEAVE(SUCCESS);
}

CUresult cuStreamDestroy_v2(CUstream s) {
	ENTER(INITIALISED);
	if (s == NULL || !known(s, STREAM))
		LEAVE(INVALID_HANDLE);
	STREAM_OR_LEAVE(s);
	leave_object(s);
	s->destroyed = 1;
	accounts->streams--;
	pthread_cond_broadcast(&changed);
	LEAVE(loss());
}

CUresult cuStreamSynchronize(CUstream s) {
	ENTER(BOUND);
	STREAM_OR_LEAVE(s);
	if (s->capturing != NULL) {
		s->origin->broken = 1;
		LEAVE(CAPTURE_UNSUPPORTED);
	}
	LEAVE(settle(s));
}

CUresult cuStreamQuery(CUstream s) {
	ENTER(BOUND);
	STREAM_OR_LEAVE(s);
	if (s->capturing != NULL) {
		s->origin->broken = 1;
		LEAVE(CAPTURE_UNSUPPORTED);
	}
	LEAVE(s->pending > 0 ? NOT_READY : SUCCESS);
}

CUresult cuStreamGetCtx(CUstream s, CUcontext *out) {
	ENTER(BOUND);
	STREAM_OR_LEAVE(s);
	*out = s->context;
	LEAVE(SUCCESS);
}

static struct op *new_op(enum work work) {
	struct op *op = calloc(1, sizeof *op);
	op->work = work;
	return op;
}

CUresult cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream s) {
	ENTER(BOUND);
	STREAM_OR_LEAVE(s);
	if (bytes == 0)
		LEAVE(SUCCESS);
	if (reach_locked(src, bytes, 0, 0) != 0 || reach_locked(dst, bytes, 0, 0) != 0)
		LEAVE(INVALID_VALUE);
	struct op *op = new_op(COPY);
	op->dst = dst;
	op->src = src;
	op->bytes = bytes;
	submit(s, op);
	LEAVE(SUCCESS);
}

CUresult cuMemcpyHtoD_v2(CUdeviceptr dst, const void *src, size_t bytes) {
	ENTER(BOUND);
	if (bytes == 0)
		LEAVE(SUCCESS);
	if (range_at(dst, bytes) == NULL || reach_locked(dst, bytes, 1, 0) != 0)
		LEAVE(INVALID_VALUE);
	memcpy((void *)(uintptr_t)dst, src, bytes);
	LEAVE(SUCCESS);
}

CUresult cuMemsetD8Async(CUdeviceptr dst, unsigned char value, size_t bytes, CUstream s) {
	ENTER(BOUND);
	STREAM_OR_LEAVE(s);
	if (bytes == 0)
		LEAVE(SUCCESS);
	if (range_at(dst, bytes) == NULL || reach_locked(dst, bytes, 0, 0) != 0)
		LEAVE(INVALID_VALUE);
	struct op *op = new_op(SET);
	op->dst = dst;
	op->bytes = bytes;
	op->value = value;
	submit(s, op);
	LEAVE(SUCCESS);
}

CUresult cuStreamWriteValue32_v2(CUstream s, CUdeviceptr dst, uint32_t value, unsigned flags) {
	ENTER(BOUND);
	STREAM_OR_LEAVE(s);
	if (dst % 4 != 0 || flags != 0 || reach_locked(dst, 4, 0, 1) != 0)
		LEAVE(INVALID_VALUE);
	struct op *op = new_op(WRITE);
	op->dst = dst;
	op->value = value;
	submit(s, op);
	LEAVE(SUCCESS);
}

// --- events ------------------------------------------------------------------------------------

CUresult cuEventCreate(CUevent *out, unsigned flags) {
	ENTER(BOUND);
	if (flags > 3)
		LEAVE(INVALID_VALUE);
	struct event *e = calloc(1, sizeof *e);
	e->flags = flags;
	enter_object(e, EVENT);
	accounts->events++;
	*out = e;
	LEAVE(SUCCESS);
}

#define EVENT_OR_LEAVE(e) do { if (!known(e, EVENT)) LEAVE(INVALID_HANDLE); } while (0)

CUresult cuEventDestroy_v2(CUevent e) {
	ENTER(INITIALISED);
	EVENT_OR_LEAVE(e);
	leave_object(e);
	e->destroyed = 1;
	accounts->events--;
	if (e->references == 0)
		free(e);
	LEAVE(loss());
}

CUresult cuEventRecord(CUevent e, CUstream s) {
	ENTER(BOUND);
	EVENT_OR_LEAVE(e);
	STREAM_OR_LEAVE(s);
	e->captured = s->capturing;
	if (s->capturing != NULL)
		LEAVE(SUCCESS); // a place in the graph: what is captured after it comes later
	struct op *op = new_op(RECORD);
	op->event = e;
	op->turn = ++e->recorded;
	e->references++;
	submit(s, op);
	LEAVE(SUCCESS);
}

CUresult cuStreamWaitEvent(CUstream s, CUevent e, unsigned flags) {
	ENTER(BOUND);
	EVENT_OR_LEAVE(e);
	STREAM_OR_LEAVE(s);
	if (flags != 0)
		LEAVE(INVALID_VALUE);
	if (e->captured != NULL) {
		if (s->capturing != NULL && s->capturing != e->captured)
			LEAVE(CAPTURE_MERGE);
		for (struct object *o = objects; o != NULL && s->capturing == NULL; o = o->next) {
			struct stream *origin = (struct stream *)o;
			if (o->kind == STREAM && origin->capturing == e->captured && origin->origin == origin) {
				s->origin = origin;
				s->capturing = e->captured;
			}
		}
		LEAVE(SUCCESS);
	}
	if (s->capturing != NULL)
		LEAVE(SUCCESS); // done before the graph is
	struct op *op = new_op(WAIT);
	op->event = e;
	op->turn = e->recorded;
	e->references++;
	submit(s, op);
	LEAVE(SUCCESS);
}

CUresult cuEventQuery(CUevent e) {
	ENTER(BOUND);
	EVENT_OR_LEAVE(e);
	if (e->captured != NULL)
		LEAVE(CAPTURED_EVENT);
	LEAVE(e->done < e->recorded ? NOT_READY : SUCCESS);
}

CUresult cuEventSynchronize(CUevent e) {
	ENTER(BOUND);
	EVENT_OR_LEAVE(e);
	if (e->captured != NULL)
		LEAVE(CAPTURED_EVENT);
	uint64_t turn = e->recorded;
	while (known(e, EVENT) && e->done < turn && lost == 0)
		pthread_cond_wait(&changed, &mu);
	LEAVE(loss());
}

CUresult cuEventElapsedTime(float *out, CUevent from, CUevent to) {
	ENTER(BOUND);
	EVENT_OR_LEAVE(from);
	EVENT_OR_LEAVE(to);
	if ((from->flags | to->flags) & 2 || from->recorded == 0 || to->recorded == 0)
		LEAVE(INVALID_HANDLE);
	if (from->done < from->recorded || to->done < to->recorded)
		LEAVE(NOT_READY);
	*out = (to->at.tv_sec - from->at.tv_sec) * 1e3 + (to->at.tv_nsec - from->at.tv_nsec) * 1e-6;
	LEAVE(SUCCESS);
}

// --- modules: PTX is read for its entries ----------------------------------------------------------

static const char *skip(const char *p) {
	while (isspace((unsigned char)*p))
		p++;
	return p;
}

// entry reads one parameter list: ".param .u64 a, .param .align 8 .b8 s[24])".
static int parameters(struct function *f, const char *p) {
	static const struct { const char *name; size_t bytes; } types[] = {
		{".u8", 1}, {".s8", 1}, {".b8", 1}, {".u16", 2}, {".s16", 2}, {".b16", 2}, {".f16", 2},
		{".u32", 4}, {".s32", 4}, {".b32", 4}, {".f32", 4}, {".u64", 8}, {".s64", 8}, {".b64", 8}, {".f64", 8},
	};
	const char *end = strchr(p, ')');
	if (end == NULL)
		return 0;
	for (p = skip(p); p < end; p = skip(p)) {
		const char *stop = memchr(p, ',', end - p);
		if (stop == NULL)
			stop = end;
		size_t bytes = 0;
		for (const char *q = p; q < stop; q++)
			for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
				size_t length = strlen(types[i].name);
				if ((size_t)(stop - q) > length && strncmp(q, types[i].name, length) == 0 && isspace((unsigned char)q[length]))
					bytes = types[i].bytes;
			}
		const char *array = memchr(p, '[', stop - p);
		if (array != NULL)
			bytes *= strtoul(array + 1, NULL, 10);
		if (bytes == 0 || f->count == 64)
			return 0;
		f->sizes[f->count++] = bytes;
		p = stop < end ? stop + 1 : end;
	}
	return 1;
}

static void forget_functions(struct module *m) {
	while (m->functions != NULL) {
		struct function *f = m->functions;
		m->functions = f->next;
		leave_object(f);
		free(f);
	}
}

CUresult cuModuleLoadDataEx(CUmodule *out, const void *image, unsigned count, int *options, void **values) {
	ENTER(BOUND);
	UNSAFE();
	settle_all();
	char *log = NULL;
	size_t log_bytes = 0;
	for (unsigned i = 0; i < count; i++) {
		if (options[i] == 5)
			log = values[i];
		if (options[i] == 6)
			log_bytes = (size_t)(uintptr_t)values[i];
	}
	const char *text = image;
	if (memcmp(text, "\x7f" "ELF", 4) == 0)
		LEAVE(INVALID_IMAGE);
	if (strstr(text, ".version") == NULL || strstr(text, ".target") == NULL) {
		if (log != NULL)
			snprintf(log, log_bytes, "error   : Binary format for key='0', ident='' is not recognized");
		LEAVE(INVALID_IMAGE);
	}
	struct module *m = calloc(1, sizeof *m);
	for (const char *p = text; (p = strstr(p, ".entry")) != NULL;) {
		p = skip(p + strlen(".entry"));
		size_t length = strcspn(p, " \t\r\n({");
		struct function *f = calloc(1, sizeof *f);
		snprintf(f->name, sizeof f->name, "%.*s", (int)length, p);
		p = skip(p + length);
		if (length == 0 || length >= sizeof f->name || (*p == '(' && !parameters(f, p + 1))) {
			free(f);
			forget_functions(m);
			free(m);
			if (log != NULL)
				snprintf(log, log_bytes, "ptxas application ptx input; fatal   : Parsing error near '.entry'");
			LEAVE(INVALID_PTX);
		}
		char symbol[300];
		snprintf(symbol, sizeof symbol, "fake_kernel_%s", f->name);
		Dl_info self;
		void *library = dladdr((void *)cuInit, &self) ? dlopen(self.dli_fname, RTLD_NOW | RTLD_NOLOAD) : NULL;
		if (library != NULL) {
			*(void **)&f->twin = dlsym(library, symbol);
			dlclose(library);
		}
		f->module = m;
		f->next = m->functions;
		m->functions = f;
		enter_object(f, FUNCTION);
	}
	enter_object(m, MODULE);
	accounts->modules++;
	*out = m;
	LEAVE(SUCCESS);
}

CUresult cuModuleUnload(CUmodule m) {
	ENTER(BOUND);
	UNSAFE();
	if (!known(m, MODULE))
		LEAVE(INVALID_HANDLE);
	settle_all();
	forget_functions(m);
	leave_object(m);
	free(m);
	accounts->modules--;
	LEAVE(SUCCESS);
}

CUresult cuModuleGetFunction(CUfunction *out, CUmodule m, const char *name) {
	ENTER(BOUND);
	if (!known(m, MODULE))
		LEAVE(INVALID_HANDLE);
	for (struct function *f = m->functions; f != NULL; f = f->next)
		if (strcmp(f->name, name) == 0) {
			*out = f;
			LEAVE(SUCCESS);
		}
	LEAVE(NOT_FOUND);
}

static int launchable(const unsigned grid[3], const unsigned block[3], unsigned shared_bytes) {
	uint64_t threads = (uint64_t)block[0] * block[1] * block[2];
	return grid[0] > 0 && grid[1] > 0 && grid[2] > 0 && threads > 0 && threads <= 1024 && shared_bytes <= 227 << 10;
}

CUresult cuLaunchKernel(CUfunction f, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
	unsigned block_y, unsigned block_z, unsigned shared_bytes, CUstream s, void **parameters, void **extra) {
	ENTER(BOUND);
	STREAM_OR_LEAVE(s);
	if (!known(f, FUNCTION))
		LEAVE(INVALID_HANDLE);
	unsigned grid[3] = {grid_x, grid_y, grid_z}, block[3] = {block_x, block_y, block_z};
	if (!launchable(grid, block, shared_bytes) || extra != NULL || (f->count > 0 && parameters == NULL))
		LEAVE(INVALID_VALUE);
	struct op *op = new_op(KERNEL);
	op->function = f;
	memcpy(op->grid, grid, sizeof grid);
	memcpy(op->block, block, sizeof block);
	op->shared_bytes = shared_bytes;
	op->context = s->context;
	op->parameters = copy_parameters(f, parameters, &op->blob_bytes);
	submit(s, op);
	LEAVE(SUCCESS);
}

// --- graphs ------------------------------------------------------------------------------------------

static struct graph *new_graph(void) {
	struct graph *g = calloc(1, sizeof *g);
	g->tail = &g->head;
	enter_object(g, GRAPH);
	accounts->graphs++;
	return g;
}

static void free_graph(struct graph *g) {
	while (g->head != NULL) {
		struct node *n = g->head;
		g->head = n->next;
		if (n->op.event != NULL)
			release_event(n->op.event);
		free(n->op.parameters);
		leave_object(n);
		free(n);
	}
	leave_object(g);
	free(g);
	accounts->graphs--;
}

CUresult cuStreamBeginCapture_v2(CUstream s, int mode) {
	ENTER(BOUND);
	if (s == NULL)
		LEAVE(CAPTURE_UNSUPPORTED);
	STREAM_OR_LEAVE(s);
	if (s->capturing != NULL || (mode != 1 && mode != 2))
		LEAVE(401);
	s->capturing = new_graph();
	s->origin = s;
	s->capturer = pthread_self();
	s->broken = 0;
	if (mode == 1)
		capturing_here = s;
	LEAVE(SUCCESS);
}

CUresult cuStreamEndCapture(CUstream s, CUgraph *out) {
	ENTER(BOUND);
	*out = NULL;
	if (s == NULL)
		LEAVE(401);
	STREAM_OR_LEAVE(s);
	if (s->capturing == NULL)
		LEAVE(401);
	if (s->origin != s)
		LEAVE(CAPTURE_UNMATCHED);
	if (!pthread_equal(s->capturer, pthread_self()))
		LEAVE(CAPTURE_WRONG_THREAD);
	struct graph *g = s->capturing;
	for (struct object *o = objects; o != NULL; o = o->next) {
		if (o->kind == STREAM && ((struct stream *)o)->capturing == g)
			((struct stream *)o)->capturing = NULL;
		if (o->kind == EVENT && ((struct event *)o)->captured == g)
			((struct event *)o)->captured = NULL;
	}
	capturing_here = NULL;
	if (s->broken) {
		free_graph(g);
		LEAVE(CAPTURE_INVALIDATED);
	}
	*out = g;
	LEAVE(SUCCESS);
}

CUresult cuGraphDestroy(CUgraph g) {
	ENTER(INITIALISED);
	if (!known(g, GRAPH))
		LEAVE(INVALID_VALUE);
	free_graph(g);
	LEAVE(SUCCESS);
}

CUresult cuGraphClone(CUgraph *out, CUgraph g) {
	ENTER(BOUND);
	if (!known(g, GRAPH))
		LEAVE(INVALID_VALUE);
	struct graph *copy = new_graph();
	for (struct node *n = g->head; n != NULL; n = n->next) {
		struct op *op = copy_op(&n->op);
		struct node *m = calloc(1, sizeof *m);
		m->op = *op;
		free(op);
		m->graph = copy;
		enter_object(m, NODE);
		*copy->tail = m;
		copy->tail = &m->next;
		copy->count++;
	}
	*out = copy;
	LEAVE(SUCCESS);
}

CUresult cuGraphGetNodes(CUgraph g, CUgraphNode *nodes, size_t *count) {
	ENTER(INITIALISED);
	if (!known(g, GRAPH))
		LEAVE(INVALID_VALUE);
	if (nodes == NULL) {
		*count = g->count;
		LEAVE(SUCCESS);
	}
	size_t i = 0;
	for (struct node *n = g->head; n != NULL && i < *count; n = n->next)
		nodes[i++] = n;
	*count = i;
	LEAVE(SUCCESS);
}

CUresult cuGraphNodeGetType(CUgraphNode n, int *out) {
	ENTER(INITIALISED);
	if (!known(n, NODE))
		LEAVE(INVALID_VALUE);
	static const int types[] = {[COPY] = 1, [SET] = 2, [WRITE] = 12, [RECORD] = 7, [WAIT] = 6, [KERNEL] = 0};
	*out = types[n->op.work];
	LEAVE(SUCCESS);
}

CUresult cuGraphKernelNodeGetParams_v2(CUgraphNode n, CUDA_KERNEL_NODE_PARAMS *out) {
	ENTER(INITIALISED);
	if (!known(n, NODE) || n->op.work != KERNEL)
		LEAVE(INVALID_VALUE);
	memset(out, 0, sizeof *out);
	out->func = n->op.function;
	memcpy(out->grid, n->op.grid, sizeof out->grid);
	memcpy(out->block, n->op.block, sizeof out->block);
	out->sharedMemBytes = n->op.shared_bytes;
	out->kernelParams = n->op.parameters;
	out->ctx = n->op.context;
	LEAVE(SUCCESS);
}

// set_kernel changes an op. A context counts only if there is a kernel in place of a
// function, as cuda.h specifies.
static int set_kernel(struct op *op, const CUDA_KERNEL_NODE_PARAMS *in) {
	struct function *f = in->func != NULL ? in->func : in->kern;
	if (!known(f, FUNCTION) || !launchable(in->grid, in->block, in->sharedMemBytes) || in->extra != NULL)
		return INVALID_VALUE;
	if (in->func == NULL && in->ctx != NULL && !known(in->ctx, CONTEXT))
		return INVALID_CONTEXT;
	size_t bytes;
	void **parameters = copy_parameters(f, in->kernelParams, &bytes);
	free(op->parameters);
	op->parameters = parameters;
	op->blob_bytes = bytes;
	op->function = f;
	memcpy(op->grid, in->grid, sizeof op->grid);
	memcpy(op->block, in->block, sizeof op->block);
	op->shared_bytes = in->sharedMemBytes;
	if (in->func == NULL)
		op->context = in->ctx != NULL ? in->ctx : current;
	return SUCCESS;
}

CUresult cuGraphKernelNodeSetParams_v2(CUgraphNode n, const CUDA_KERNEL_NODE_PARAMS *in) {
	ENTER(BOUND);
	if (!known(n, NODE) || n->op.work != KERNEL)
		LEAVE(INVALID_VALUE);
	LEAVE(set_kernel(&n->op, in));
}

typedef struct {
	size_t src_at[4];
	int src_type;
	const void *src_host;
	CUdeviceptr src_device;
	void *src_array, *reserved0;
	size_t src_pitch, src_height;
	size_t dst_at[4];
	int dst_type;
	void *dst_host;
	CUdeviceptr dst_device;
	void *dst_array, *reserved1;
	size_t dst_pitch, dst_height;
	size_t width, height, depth;
} CUDA_MEMCPY3D;
_Static_assert(sizeof(CUDA_MEMCPY3D) == 200, "CUDA_MEMCPY3D");

typedef struct {
	CUdeviceptr dst;
	size_t pitch;
	unsigned value, element;
	size_t width, height;
} CUDA_MEMSET_NODE_PARAMS;

// on_host: memory outside the device's allocations is host memory.
static int on_host(uint64_t at) {
	struct range *r = range_at(at, 1);
	return r == NULL || r->place == HOST || r->place == REGISTERED;
}

CUresult cuGraphMemcpyNodeGetParams(CUgraphNode n, CUDA_MEMCPY3D *out) {
	ENTER(INITIALISED);
	if (!known(n, NODE) || n->op.work != COPY)
		LEAVE(INVALID_VALUE);
	memset(out, 0, sizeof *out);
	if (on_host(n->op.src)) {
		out->src_type = 1;
		out->src_host = (void *)(uintptr_t)n->op.src;
	} else {
		out->src_type = 2;
		out->src_device = n->op.src;
	}
	if (on_host(n->op.dst)) {
		out->dst_type = 1;
		out->dst_host = (void *)(uintptr_t)n->op.dst;
	} else {
		out->dst_type = 2;
		out->dst_device = n->op.dst;
	}
	out->width = n->op.bytes;
	out->height = out->depth = 1;
	LEAVE(SUCCESS);
}

CUresult cuGraphMemcpyNodeSetParams(CUgraphNode n, const CUDA_MEMCPY3D *in) {
	ENTER(BOUND);
	if (!known(n, NODE) || n->op.work != COPY || in->height != 1 || in->depth != 1)
		LEAVE(INVALID_VALUE);
	n->op.src = in->src_type == 1 ? (uintptr_t)in->src_host + in->src_at[0] : in->src_device + in->src_at[0];
	n->op.dst = in->dst_type == 1 ? (uintptr_t)in->dst_host + in->dst_at[0] : in->dst_device + in->dst_at[0];
	n->op.bytes = in->width;
	find_memory(&n->op);
	LEAVE(SUCCESS);
}

CUresult cuGraphMemsetNodeGetParams(CUgraphNode n, CUDA_MEMSET_NODE_PARAMS *out) {
	ENTER(INITIALISED);
	if (!known(n, NODE) || n->op.work != SET)
		LEAVE(INVALID_VALUE);
	*out = (CUDA_MEMSET_NODE_PARAMS){n->op.dst, 0, (unsigned)n->op.value, 1, n->op.bytes, 1};
	LEAVE(SUCCESS);
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec *out, CUgraph g, unsigned long long flags) {
	ENTER(BOUND);
	if (!known(g, GRAPH) || flags != 0)
		LEAVE(INVALID_VALUE);
	struct exec *x = calloc(1, sizeof *x);
	x->ops = calloc(g->count + 1, sizeof *x->ops);
	x->nodes = calloc(g->count + 1, sizeof *x->nodes);
	for (struct node *n = g->head; n != NULL; n = n->next) {
		struct op *op = copy_op(&n->op);
		x->ops[x->count] = *op;
		x->nodes[x->count++] = n;
		free(op);
	}
	enter_object(x, EXEC);
	accounts->executables++;
	*out = x;
	LEAVE(SUCCESS);
}

CUresult cuGraphLaunch(CUgraphExec x, CUstream s) {
	ENTER(BOUND);
	STREAM_OR_LEAVE(s);
	if (!known(x, EXEC))
		LEAVE(INVALID_VALUE);
	for (uint64_t i = 0; i < x->count; i++)
		if (memory_gone(&x->ops[i])) {
			lose(ILLEGAL_ADDRESS);
			LEAVE(loss());
		}
	for (uint64_t i = 0; i < x->count; i++) {
		struct op *op = copy_op(&x->ops[i]);
		if (op->work == RECORD)
			op->turn = ++op->event->recorded;
		submit(s, op);
	}
	LEAVE(SUCCESS);
}

CUresult cuGraphUpload(CUgraphExec x, CUstream s) {
	ENTER(BOUND);
	STREAM_OR_LEAVE(s);
	LEAVE(known(x, EXEC) ? SUCCESS : INVALID_VALUE);
}

CUresult cuGraphExecDestroy(CUgraphExec x) {
	ENTER(INITIALISED);
	if (!known(x, EXEC))
		LEAVE(INVALID_VALUE);
	leave_object(x);
	for (uint64_t i = 0; i < x->count; i++) {
		if (x->ops[i].event != NULL)
			release_event(x->ops[i].event);
		free(x->ops[i].parameters);
	}
	free(x->ops);
	free(x->nodes);
	free(x);
	accounts->executables--;
	LEAVE(SUCCESS);
}

// --- multiprocessors -----------------------------------------------------------------------------------

static void fill_resource(CUdevResource *r, const struct inside *in, unsigned count) {
	memset(r, 0, sizeof *r);
	r->type = 1;
	r->sms = count;
	r->smallest = 8;
	r->alignment = 8;
	memcpy(r->padding, in, sizeof *in);
}

static void take(struct inside *in, unsigned from, unsigned count) {
	for (unsigned i = from; i < from + count; i++)
		in->mask[i / 32] |= 1u << i % 32;
}

static unsigned count_of(const struct inside *in) {
	unsigned n = 0;
	for (unsigned i = 0; i < MAX_SMS / 32; i++)
		n += __builtin_popcount(in->mask[i]);
	return n;
}

CUresult cuDeviceGetDevResource(CUdevice device, CUdevResource *out, int type) {
	ENTER(INITIALISED);
	GPU_OR_LEAVE(device);
	if (type != 1)
		LEAVE(INVALID_RESOURCE_TYPE);
	struct inside in = {0};
	int failed = open_gpu(gpu);
	if (failed != 0)
		LEAVE(failed);
	take(&in, 0, gpu_sms(gpu));
	fill_resource(out, &in, gpu_sms(gpu));
	LEAVE(SUCCESS);
}

CUresult cuCtxGetDevResource(CUcontext c, CUdevResource *out, int type) {
	ENTER(INITIALISED);
	if (type != 1)
		LEAVE(INVALID_RESOURCE_TYPE);
	if (c == NULL)
		c = current;
	if (c == NULL || !known(c, CONTEXT))
		LEAVE(INVALID_CONTEXT);
	struct inside in = {0};
	if (c->green != NULL)
		in = c->green->inside;
	else
		take(&in, 0, usable(c->gpu));
	fill_resource(out, &in, count_of(&in));
	LEAVE(SUCCESS);
}

CUresult cuGreenCtxGetDevResource(CUgreenCtx g, CUdevResource *out, int type) {
	ENTER(INITIALISED);
	if (type != 1)
		LEAVE(INVALID_RESOURCE_TYPE);
	if (!known(g, GREEN))
		LEAVE(INVALID_CONTEXT);
	fill_resource(out, &g->inside, g->sms);
	LEAVE(SUCCESS);
}

CUresult cuDevSmResourceSplitByCount(CUdevResource *groups, unsigned *count, const CUdevResource *whole,
	CUdevResource *rest, unsigned flags, unsigned smallest) {
	ENTER(INITIALISED);
	if (whole->type != 1)
		LEAVE(INVALID_RESOURCE_TYPE);
	if (smallest > whole->sms || flags != 0)
		LEAVE(INVALID_VALUE);
	unsigned unit = 8;
	unsigned size = smallest < unit ? unit : (smallest + unit - 1) / unit * unit;
	// In groups of eight an H200 reserves more than necessary: 15 groups and 12 of 132.
	unsigned most = whole->sms / size;
	if (size == 8 && most > 1 && whole->sms % size != 0)
		most--;
	if (groups == NULL) {
		*count = most;
		LEAVE(SUCCESS);
	}
	if (*count > most)
		*count = most;
	struct inside in;
	memcpy(&in, whole->padding, sizeof in);
	if (in.split != 0)
		LEAVE(INVALID_RESOURCE_CONFIGURATION); // the result of a split cannot be split
	splits++;
	unsigned at = 0;
	for (unsigned i = 0; i < *count; i++, at += size) {
		struct inside part = {.split = splits};
		take(&part, at, size);
		fill_resource(&groups[i], &part, size);
	}
	if (rest != NULL) {
		struct inside part = {.split = splits};
		take(&part, at, whole->sms - at);
		fill_resource(rest, &part, whole->sms - at);
		if (at == whole->sms)
			rest->type = 0;
	}
	LEAVE(SUCCESS);
}

CUresult cuDevResourceGenerateDesc(CUdevResourceDesc *out, CUdevResource *groups, unsigned count) {
	ENTER(INITIALISED);
	if (count == 0)
		LEAVE(INVALID_VALUE);
	struct inside all = {0};
	for (unsigned i = 0; i < count; i++) { // the driver accepts a group twice, and groups of two splits
		struct inside in;
		memcpy(&in, groups[i].padding, sizeof in);
		if (groups[i].type != 1)
			LEAVE(INVALID_RESOURCE_TYPE);
		for (unsigned w = 0; w < MAX_SMS / 32; w++)
			all.mask[w] |= in.mask[w];
	}
	// The driver has no call that frees a description.
	struct description *d = calloc(1, sizeof *d);
	d->inside = all;
	d->next = descriptions;
	descriptions = d;
	*out = d;
	LEAVE(SUCCESS);
}

// GREEN_BYTES is the memory that the driver takes per green context and never frees.
#define GREEN_BYTES (4 << 20)

CUresult cuGreenCtxCreate(CUgreenCtx *out, CUdevResourceDesc d, CUdevice device, unsigned flags) {
	ENTER(INITIALISED);
	GPU_OR_LEAVE(device);
	if (lost != 0)
		LEAVE(loss());
	struct description *found = descriptions;
	while (found != NULL && found != d)
		found = found->next;
	if (found == NULL || flags != 1)
		LEAVE(INVALID_VALUE);
	if (taken() + GREEN_BYTES > gpu_memory(gpu))
		LEAVE(OUT_OF_MEMORY);
	settle_all();
	accounts->green_bytes += GREEN_BYTES;
	struct green *g = calloc(1, sizeof *g);
	g->inside = d->inside;
	g->sms = count_of(&g->inside);
	g->context.gpu = gpu;
	g->context.green = g;
	enter_object(g, GREEN);
	enter_object(&g->context, CONTEXT);
	accounts->greens++;
	*out = g;
	LEAVE(SUCCESS);
}

CUresult cuGreenCtxDestroy(CUgreenCtx g) {
	ENTER(INITIALISED);
	if (!known(g, GREEN))
		LEAVE(INVALID_CONTEXT);
	leave_object(&g->context);
	leave_object(g);
	g->context.closed = 1; // kept: graphs and threads may still refer to it
	accounts->greens--;
	LEAVE(loss());
}

CUresult cuCtxFromGreenCtx(CUcontext *out, CUgreenCtx g) {
	ENTER(INITIALISED);
	if (!known(g, GREEN))
		LEAVE(INVALID_CONTEXT);
	*out = &g->context;
	LEAVE(SUCCESS);
}

CUresult cuGreenCtxStreamCreate(CUstream *out, CUgreenCtx g, unsigned flags, int priority) {
	ENTER(BOUND);
	if (!known(g, GREEN))
		LEAVE(INVALID_CONTEXT);
	if (flags != 1)
		LEAVE(INVALID_VALUE);
	LEAVE(new_stream(out, &g->context, priority));
}
