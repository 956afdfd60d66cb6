// The gate and the connection to the lock server (package cuda/swap).
//
// Messages are packets of text. From the guest:
//
//	hello VERSION UUID TOTAL FREE    the device and its memory
//	need BYTES FREE may the guest have this much device memory in all? Answer: ok or no
//	have BYTES MADE it needs only this much, and has made that much of it
//	ask             it waits for its turn
//	in US FREE      its turn began; its memory took this long to come back
//	stopped         its turn ended; its memory is still on the device
//	gone US         its memory is on the host
//	stuck           its memory cannot leave the device
//	short           the device had no memory for it
//	unknown NAME    it calls a function that this library does not know
//
// FREE is the device's free memory. After hello it may be unknown, -1.
//
// From the server:
//
//	ok CAPACITY     answers hello; answers need: the guest may have it
//	no CAPACITY     answers need: it may not
//	go, stop, out   begin the turn, end it, move the memory to the host
//	empty           nothing can be evicted for the guest that is short
//	wanted EARLY SPAN IDLE
//	                others wait: give up the turn after IDLE us without work,
//	                or after EARLY us within the first SPAN us

#define _GNU_SOURCE
#include "../../preload/preload.h"
#include "swap.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { VERSION = 3, MAX_CONTEXTS = 16, MESSAGE = 160 };
enum phase { OUT, STOPPED, RUNNING };

static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;

// Every call of the driver that needs the turn reads and writes these without the lock.
static atomic_int active, closed, ended;
static atomic_ullong calls;

// gate guards what follows.
static enum phase phase = RUNNING;
static int started, ending, captures, waiting, asked, empty, obeying;
static int answer; // to need: 1 yes, 0 no, -1 none yet
static int connection = -1;
static size_t capacity;
static CUdevice device;
static unsigned char uuid[16];
static CUcontext contexts[MAX_CONTEXTS];

static __thread int depth;

// The library's thread alone uses these.
static uint64_t turn_began, early_us, span_us, idle_us;
static int watching, stopping;

static uint64_t swaps, swap_us;

uint64_t now_us(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

void swap_say(const char *format, ...) {
	va_list arguments;
	va_start(arguments, format);
	preload_say("swap", format, arguments);
	va_end(arguments);
}

static void send_locked(const char *format, ...) {
	char text[MESSAGE];
	va_list arguments;
	va_start(arguments, format);
	int n = vsnprintf(text, sizeof text, format, arguments);
	va_end(arguments);
	// The thread that receives notices a lost connection.
	if (connection >= 0 && send(connection, text, n < MESSAGE ? n : MESSAGE - 1, MSG_NOSIGNAL) < 0)
		return;
}

// --- the gate

static void ask_locked(void) {
	if (waiting > 0 && phase != RUNNING && !asked && !ending) {
		asked = 1;
		send_locked("ask");
	}
}

void gate_enter(void) {
	if (depth++ > 0)
		return;

	for (;;) {
		atomic_fetch_add(&active, 1);
		if (!atomic_load(&closed)) {
			atomic_fetch_add_explicit(&calls, 1, memory_order_relaxed);
			return;
		}

		pthread_mutex_lock(&gate);
		atomic_fetch_sub(&active, 1);
		pthread_cond_broadcast(&changed);
		waiting++;
		while (atomic_load(&closed)) {
			ask_locked();
			pthread_cond_wait(&changed, &gate);
		}
		waiting--;
		pthread_mutex_unlock(&gate);
	}
}

void gate_leave(void) {
	if (--depth > 0)
		return;
	if (atomic_fetch_sub(&active, 1) == 1 && atomic_load(&closed)) {
		pthread_mutex_lock(&gate);
		pthread_cond_broadcast(&changed);
		pthread_mutex_unlock(&gate);
	}
}

static void open_gate_locked(void) {
	asked = 0;
	atomic_store(&closed, 0);
	pthread_cond_broadcast(&changed);
}

// close_gate returns 1 when the gate is closed and no call is inside. During a capture it returns 0 and the
// gate stays open: the capture may need memory, and this thread reads the server's answer.
static int close_gate(void) {
	pthread_mutex_lock(&gate);
	if (captures == 0)
		atomic_store(&closed, 1);
	while (captures == 0 && atomic_load(&active) > 0 && !ending)
		pthread_cond_wait(&changed, &gate);
	int open = captures > 0 || ending; // a call inside may have begun a capture
	if (open)
		open_gate_locked();
	pthread_mutex_unlock(&gate);
	return !open;
}

static void count_captures(int n) {
	pthread_mutex_lock(&gate);
	captures += n;
	if (captures < 0)
		captures = 0;
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&gate);
}

void capture_begun(void) { count_captures(1); }
void capture_ended(void) { count_captures(-1); }

int capture_open(void) {
	pthread_mutex_lock(&gate);
	int open = captures > 0;
	pthread_mutex_unlock(&gate);
	return open;
}

// --- contexts

static int copy_contexts(CUcontext *copy) {
	int n = 0;
	pthread_mutex_lock(&gate);
	for (int i = 0; i < MAX_CONTEXTS; i++)
		if (contexts[i] != NULL)
			copy[n++] = contexts[i];
	pthread_mutex_unlock(&gate);
	return n;
}

void turns_synchronize(void) {
	CUcontext all[MAX_CONTEXTS];
	int n = copy_contexts(all);
	for (int i = 0; i < n; i++) {
		if (driver.cuCtxPushCurrent_v2(all[i]) != CUDA_SUCCESS)
			continue;
		driver.cuCtxSynchronize(); // after a fault this fails, and so does the guest's next call
		driver.cuCtxPopCurrent_v2(NULL);
	}
}

void turns_forget(CUcontext context) {
	pthread_mutex_lock(&gate);
	for (int i = 0; i < MAX_CONTEXTS; i++)
		if (contexts[i] == context)
			contexts[i] = NULL;
	pthread_mutex_unlock(&gate);
}

CUdevice turns_device(void) { return device; }

int turns_ended(void) { return atomic_load(&ended); }

int turns_ending(void) {
	pthread_mutex_lock(&gate);
	int end = ending;
	pthread_mutex_unlock(&gate);
	return end;
}

size_t turns_capacity(void) {
	pthread_mutex_lock(&gate);
	size_t n = capacity;
	pthread_mutex_unlock(&gate);
	return n;
}

// --- memory

// free_memory returns the device's free memory, or -1.
static long long free_memory(CUcontext context, size_t *total) {
	size_t n = 0;
	if (context == NULL || driver.cuCtxPushCurrent_v2(context) != CUDA_SUCCESS)
		return -1;
	CUresult code = driver.cuMemGetInfo_v2(&n, total);
	driver.cuCtxPopCurrent_v2(NULL);
	return code == CUDA_SUCCESS ? (long long)n : -1;
}

int turns_need(size_t total) {
	CUcontext all[MAX_CONTEXTS];
	size_t unused;
	long long free_bytes = free_memory(copy_contexts(all) > 0 ? all[0] : NULL, &unused);
	pthread_mutex_lock(&gate);
	answer = -1;
	send_locked("need %zu %lld", total, free_bytes);
	while (answer == -1 && !ending && connection >= 0)
		pthread_cond_wait(&changed, &gate);
	int yes = answer == 1;
	pthread_mutex_unlock(&gate);
	return yes;
}

void turns_have(size_t total, size_t made) {
	pthread_mutex_lock(&gate);
	send_locked("have %zu %zu", total, made);
	pthread_mutex_unlock(&gate);
}

void turns_short(void) {
	pthread_mutex_lock(&gate);
	empty = 0;
	send_locked("short");
	pthread_mutex_unlock(&gate);
}

int turns_nothing_to_evict(void) {
	pthread_mutex_lock(&gate);
	int nothing = empty;
	pthread_mutex_unlock(&gate);
	return nothing;
}

void turns_unknown(const char *name) {
	pthread_mutex_lock(&gate);
	send_locked("unknown %.64s", name);
	pthread_mutex_unlock(&gate);
}

// --- the connection

// dial connects to the server, which accepts the guest. It returns 0, or -1; text says why.
static int dial(const char *path, CUcontext context, char *text, size_t room) {
	size_t total = 0;
	long long free_bytes = free_memory(context, &total);
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	if (strlen(path) >= sizeof address.sun_path) {
		snprintf(text, room, "the path is too long");
		return -1;
	}
	strcpy(address.sun_path, path);
	socklen_t address_bytes = offsetof(struct sockaddr_un, sun_path) + strlen(path);
	if (path[0] == '@')
		address.sun_path[0] = 0; // a name without a file
	else
		address_bytes++;
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (fd < 0 || connect(fd, (struct sockaddr *)&address, address_bytes) < 0) {
		snprintf(text, room, "%s", strerror(errno));
		if (fd >= 0)
			close(fd);
		return -1;
	}

	char id[33], message[MESSAGE];
	for (int i = 0; i < 16; i++)
		sprintf(id + 2 * i, "%02x", uuid[i]);
	int n = snprintf(message, sizeof message, "hello %d %s %zu %lld", VERSION, id, total, free_bytes);
	ssize_t got = -1;
	if (send(fd, message, n, MSG_NOSIGNAL) == n)
		got = recv(fd, message, sizeof message - 1, 0);
	message[got > 0 ? got : 0] = 0;
	size_t limit;
	if (sscanf(message, "ok %zu", &limit) != 1) {
		snprintf(text, room, "it refused the guest%s%.80s", got > 3 ? ": " : "", got > 3 ? message + 3 : "");
		close(fd);
		return -1;
	}

	pthread_mutex_lock(&gate);
	connection = fd;
	capacity = limit;
	pthread_mutex_unlock(&gate);
	return 0;
}

static void begin_turn(CUcontext context) {
	uint64_t us = 0;
	if (phase == OUT && memory_in(context, &us) != 0)
		return;
	turn_began = now_us();
	watching = 0;
	size_t unused;
	long long free_bytes = free_memory(context, &unused);
	pthread_mutex_lock(&gate);
	phase = RUNNING;
	send_locked("in %" PRIu64 " %lld", us, free_bytes);
	open_gate_locked();
	pthread_mutex_unlock(&gate);
	swap_us += us;
}

static void report_stopped_locked(void) {
	phase = STOPPED;
	watching = stopping = 0;
	send_locked("stopped");
	ask_locked();
}

static void end_turn(void) {
	if (!close_gate())
		return;
	turns_synchronize();
	pthread_mutex_lock(&gate);
	report_stopped_locked();
	pthread_mutex_unlock(&gate);
}

static void swap_out(CUcontext context) {
	uint64_t us = 0;
	int failed = phase == STOPPED && memory_out(context, &us) != 0;
	pthread_mutex_lock(&gate);
	if (failed) {
		send_locked("stuck");
	} else {
		swaps += phase == STOPPED;
		phase = OUT;
		send_locked("gone %" PRIu64, us);
	}
	pthread_mutex_unlock(&gate);
	swap_us += us;
}

// give_up_if_idle runs every millisecond while others wait. The time without work counts
// from when the device was done, so a synchronization comes first. The gate is closed
// meanwhile, because a stream must not begin a capture then.
static void give_up_if_idle(void) {
	static unsigned long long seen;
	static uint64_t since;
	static int done;
	uint64_t now = now_us();
	unsigned long long count = atomic_load_explicit(&calls, memory_order_relaxed);
	if (count != seen || watching == 1) {
		watching = 2;
		seen = count;
		since = now;
		done = 0;
		return;
	}
	uint64_t needed = now - turn_began < span_us ? early_us : idle_us;
	if ((done && now - since < needed) || (!done && now - since < 2000) || !close_gate())
		return;

	turns_synchronize();
	pthread_mutex_lock(&gate);
	int busy = waiting > 0 || atomic_load_explicit(&calls, memory_order_relaxed) != seen;
	if (busy || !done)
		open_gate_locked();
	else
		report_stopped_locked();
	pthread_mutex_unlock(&gate);
	if (!done) {
		done = 1;
		since = now_us();
	}
}

static void obey(const char *message) {
	CUcontext all[MAX_CONTEXTS];
	CUcontext context = copy_contexts(all) > 0 ? all[0] : NULL;
	size_t limit;
	if (sscanf(message, "ok %zu", &limit) == 1 || sscanf(message, "no %zu", &limit) == 1) {
		pthread_mutex_lock(&gate);
		capacity = limit;
		answer = message[0] == 'o';
		pthread_cond_broadcast(&changed);
		pthread_mutex_unlock(&gate);
	} else if (strcmp(message, "empty") == 0) {
		pthread_mutex_lock(&gate);
		empty = 1;
		pthread_mutex_unlock(&gate);
	} else if (strcmp(message, "go") == 0 && phase != RUNNING) {
		begin_turn(context);
	} else if (strcmp(message, "stop") == 0 && phase == RUNNING) {
		stopping = 1;
	} else if (strcmp(message, "out") == 0 && phase != RUNNING) {
		swap_out(context);
	} else if (sscanf(message, "wanted %" SCNu64 " %" SCNu64 " %" SCNu64, &early_us, &span_us, &idle_us) == 3 && phase == RUNNING) {
		watching = 1;
		memory_prepare(context);
	}
}

// set_obeying marks that the library's thread uses the driver. At the process's end it
// returns 0.
static int set_obeying(int n) {
	pthread_mutex_lock(&gate);
	obeying = n && !ending;
	int go_on = !ending;
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&gate);
	return go_on;
}

static void *follow_server(void *unused) {
	(void)unused;
	int relaxed = CAPTURE_RELAXED;
	driver.cuThreadExchangeStreamCaptureMode(&relaxed);
	int fd = connection;
	for (;;) {
		struct pollfd p = {.fd = fd, .events = POLLIN};
		int ready = poll(&p, 1, watching || stopping ? 1 : 1000);
		char message[MESSAGE];
		ssize_t n = ready > 0 ? recv(fd, message, sizeof message - 1, 0) : -1;
		if (!set_obeying(1))
			return NULL;
		if (n > 0) {
			message[n] = 0;
			obey(message);
		} else if (ready == 0 && watching) {
			give_up_if_idle();
		}
		if (stopping)
			end_turn(); // again every millisecond while a capture is open
		set_obeying(0);
		if (n > 0 || ready == 0)
			continue;
		if (n < 0 && errno == EINTR)
			continue;

		// The server is gone, or has disconnected the guest.
		pthread_mutex_lock(&gate);
		connection = -1;
		pthread_cond_broadcast(&changed);
		pthread_mutex_unlock(&gate);
		close(fd);
		swap_say("pid %d: lost the server; the guest gets no more memory, and no turn after the present one", (int)getpid());
		return NULL;
	}
}

// leave_turns runs at exit, before the driver's own handlers: the library's thread must
// not call the driver from then on, and calls of other threads no longer wait. They fail if
// the memory is on the host. The server learns of the end by the end of the connection.
static void leave_turns(void) {
	pthread_mutex_lock(&gate);
	ending = 1;
	pthread_cond_broadcast(&changed);
	while (obeying)
		pthread_cond_wait(&changed, &gate);
	atomic_store(&ended, phase == OUT);
	open_gate_locked();
	pthread_mutex_unlock(&gate);
	if (swaps > 0)
		swap_say("pid %d: swapped out %" PRIu64 " times, %.1f s of copies", (int)getpid(), swaps, (double)swap_us / 1e6);
}

static void forget_parent(void) {
	if (connection >= 0)
		close(connection);
	connection = -1;
	pthread_mutex_init(&gate, NULL);
	pthread_cond_init(&changed, NULL);
	atomic_store(&active, 0);
	atomic_store(&closed, 0);
	started = captures = waiting = asked = obeying = watching = stopping = depth = 0;
	phase = RUNNING;
	capacity = 0;
	swaps = swap_us = 0;
	memset(contexts, 0, sizeof contexts);
	memory_forget();
}

static CUresult begin_locked(CUcontext context) {
	char *path = getenv("PENSTOCK_SWAP"), text[128];
	if (path == NULL || *path == 0) {
		swap_say("PENSTOCK_SWAP does not name the server's socket: use penstock run --swap");
		return CUDA_SYSTEM_NOT_READY;
	}
	if (driver.cuCtxPushCurrent_v2(context) != CUDA_SUCCESS)
		return CUDA_SYSTEM_NOT_READY;
	int code = driver.cuCtxGetDevice(&device);
	if (code == CUDA_SUCCESS)
		code = driver.cuDeviceGetUuid_v2(uuid, device);
	driver.cuCtxPopCurrent_v2(NULL);
	if (code != CUDA_SUCCESS)
		return code;

	phase = STOPPED;
	if (dial(path, context, text, sizeof text) < 0) {
		phase = RUNNING;
		swap_say("connect to %s: %s; the guest gets no GPU", path, text);
		return CUDA_SYSTEM_NOT_READY;
	}
	atomic_store(&closed, 1);

	sigset_t all, before;
	sigfillset(&all);
	pthread_sigmask(SIG_BLOCK, &all, &before);
	pthread_t thread;
	int failed = pthread_create(&thread, NULL, follow_server, NULL);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (failed) { // as without a server; a later call tries again
		swap_say("start a thread: %s; the guest gets no GPU", strerror(failed));
		pthread_mutex_lock(&gate);
		close(connection);
		connection = -1;
		phase = RUNNING;
		open_gate_locked();
		pthread_mutex_unlock(&gate);
		return CUDA_SYSTEM_NOT_READY;
	}
	pthread_detach(thread);
	static int registered;
	if (!registered++) {
		pthread_atfork(NULL, NULL, forget_parent);
		atexit(leave_turns);
	}
	pthread_mutex_lock(&gate);
	started = 1;
	pthread_mutex_unlock(&gate);
	return CUDA_SUCCESS;
}

int turns_begun(void) {
	pthread_mutex_lock(&gate);
	int begun = started;
	pthread_mutex_unlock(&gate);
	return begun;
}

CUresult turns_begin(CUcontext context) {
	static pthread_mutex_t beginning = PTHREAD_MUTEX_INITIALIZER;
	if (context == NULL)
		return CUDA_SUCCESS;
	pthread_mutex_lock(&beginning);
	CUresult code = turns_begun() ? CUDA_SUCCESS : begin_locked(context);
	pthread_mutex_unlock(&beginning);
	if (code != CUDA_SUCCESS)
		return code;

	CUdevice other = device;
	if (driver.cuCtxPushCurrent_v2(context) == CUDA_SUCCESS) {
		driver.cuCtxGetDevice(&other);
		driver.cuCtxPopCurrent_v2(NULL);
	}
	if (other != device) {
		swap_say("the guest uses device %d after device %d: it may use one GPU only; set CUDA_VISIBLE_DEVICES", other, device);
		return CUDA_NOT_SUPPORTED;
	}
	pthread_mutex_lock(&gate);
	int room = -1;
	for (int i = 0; i < MAX_CONTEXTS; i++) {
		if (contexts[i] == context)
			room = -2;
		else if (contexts[i] == NULL && room == -1)
			room = i;
	}
	if (room >= 0)
		contexts[room] = context;
	pthread_mutex_unlock(&gate);
	if (room == -1) {
		swap_say("the guest has more than %d contexts", MAX_CONTEXTS);
		return CUDA_NOT_SUPPORTED;
	}
	return CUDA_SUCCESS;
}
