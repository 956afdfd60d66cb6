// A program that uses a GPU: guest MODE HOW MIB ROUNDS
//
// MODE is how it gets the driver's functions: link, dlsym or proc. HOW says what it does; the words
// are in main. It prints what it reaches, and "right" if its memory holds what it computed.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

typedef int R;
typedef uint64_t P;

#define FUNCTIONS(X) \
	X(cuInit, "cuInit", (unsigned)) \
	X(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", (void **, int)) \
	X(cuDevicePrimaryCtxReset_v2, "cuDevicePrimaryCtxReset", (int)) \
	X(cuCtxSetCurrent, "cuCtxSetCurrent", (void *)) \
	X(cuCtxSynchronize, "cuCtxSynchronize", (void)) \
	X(cuMemGetInfo_v2, "cuMemGetInfo", (size_t *, size_t *)) \
	X(cuMemAlloc_v2, "cuMemAlloc", (P *, size_t)) \
	X(cuMemFree_v2, "cuMemFree", (P)) \
	X(cuMemAllocAsync, "cuMemAllocAsync", (P *, size_t, void *)) \
	X(cuMemFreeAsync, "cuMemFreeAsync", (P, void *)) \
	X(cuMemAllocManaged, "cuMemAllocManaged", (P *, size_t, unsigned)) \
	X(cuMemAddressReserve, "cuMemAddressReserve", (P *, size_t, size_t, P, unsigned long long)) \
	X(cuMemCreate, "cuMemCreate", (uint64_t *, size_t, const int *, unsigned long long)) \
	X(cuMemRelease, "cuMemRelease", (uint64_t)) \
	X(cuMemMap, "cuMemMap", (P, size_t, size_t, uint64_t, unsigned long long)) \
	X(cuMemUnmap, "cuMemUnmap", (P, size_t)) \
	X(cuMemSetAccess, "cuMemSetAccess", (P, size_t, const int *, size_t)) \
	X(cuMemsetD32Async, "cuMemsetD32Async", (P, unsigned, size_t, void *)) \
	X(cuMemcpyHtoD_v2, "cuMemcpyHtoD", (P, const void *, size_t)) \
	X(cuMemcpyDtoH_v2, "cuMemcpyDtoH", (void *, P, size_t)) \
	X(cuLaunchKernel, "cuLaunchKernel", (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **)) \
	X(cuStreamBeginCapture_v2, "cuStreamBeginCapture", (void *, int)) \
	X(cuStreamEndCapture, "cuStreamEndCapture", (void *, void **)) \
	X(cuGraphLaunch, "cuGraphLaunch", (void *, void *)) \
	X(cuGraphAddMemAllocNode, "cuGraphAddMemAllocNode", (void **, void *, void **, size_t, void *))

#define X(name, base, args) R name args;
FUNCTIONS(X)
#undef X
R cuGetProcAddress_v2(const char *, void **, int, uint64_t, int *);

static struct {
#define X(name, base, args) R (*name) args;
	FUNCTIONS(X)
#undef X
	R (*mystery)(int, long, double, int, int, int, int, long, float, void *);
} cu;

static void fail(const char *what, int code) {
	printf("%s: error %d\n", what, code);
	exit(1);
}

#define TRY(call) do { R code_ = cu.call; if (code_ != 0) fail(#call, code_); } while (0)

static void say(const char *text) { printf("%s\n", text); fflush(stdout); }

static void find_functions(const char *mode) {
	void *library = dlopen("libcuda.so.1", RTLD_NOW);
	if (library == NULL)
		fail(dlerror(), 0);
	cu.mystery = dlsym(library, "cuFakeMystery");
	if (strcmp(mode, "link") == 0) {
#define X(name, base, args) cu.name = name;
		FUNCTIONS(X)
#undef X
	} else if (strcmp(mode, "dlsym") == 0) {
#define X(name, base, args) if ((cu.name = dlsym(library, #name)) == NULL) fail(#name, 1);
		FUNCTIONS(X)
#undef X
	} else {
		R (*get)(const char *, void **, int, uint64_t, int *) = dlsym(library, "cuGetProcAddress_v2");
		// As the runtime does, it gets even this function by itself.
		if (get("cuGetProcAddress", (void **)&get, 12000, 0, NULL) != 0)
			fail("cuGetProcAddress", 1);
#define X(name, base, args) if (get(base, (void **)&cu.name, 13000, 0, NULL) != 0) fail(base, 1);
		FUNCTIONS(X)
#undef X
		if (get("cuFakeMystery", (void **)&cu.mystery, 13000, 0, NULL) != 0)
			fail("cuFakeMystery", 1);
	}
}

static void begin(void) {
	void *context;
	TRY(cuInit(0));
	TRY(cuDevicePrimaryCtxRetain(&context, 0));
	TRY(cuCtxSetCurrent(context));
}

struct part { P at; size_t words; uint32_t expected; };

static void add(struct part *p, uint32_t n) {
	void *parameters[] = {&p->at, &p->words, &n};
	TRY(cuLaunchKernel(NULL, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL));
	p->expected += n;
}

static int check(const struct part *p) {
	uint32_t *copy = malloc(p->words * 4);
	TRY(cuMemcpyDtoH_v2(copy, p->at, p->words * 4));
	int wrong = 0;
	for (size_t i = 0; i < p->words; i++)
		wrong += copy[i] != p->expected;
	free(copy);
	return wrong == 0;
}

static void set(struct part *p, uint32_t n) {
	TRY(cuMemsetD32Async(p->at, n, p->words, NULL));
	p->expected = n;
}

// make makes memory in all ways that there are.
static int make(struct part *parts, int mib) {
	int n = 0;
	size_t large = ((size_t)mib << 20) / 2 - (8 << 20);
	TRY(cuMemAlloc_v2(&parts[n].at, large));
	parts[n++].words = large / 4;
	for (int i = 0; i < 5; i++) {
		TRY(cuMemAlloc_v2(&parts[n].at, 1000 << i));
		parts[n++].words = (1000 << i) / 4;
	}
	TRY(cuMemAllocAsync(&parts[n].at, 3 << 20, NULL));
	TRY(cuMemFreeAsync(parts[n].at, NULL));
	TRY(cuMemAllocAsync(&parts[n].at, 3 << 20, NULL));
	parts[n++].words = (3 << 20) / 4;

	int properties[8] = {1, 0, 1, 0}, access[3] = {1, 0, 3};
	uint64_t handle;
	TRY(cuMemCreate(&handle, large / (2 << 20) * (2 << 20), properties, 0));
	large = large / (2 << 20) * (2 << 20);
	TRY(cuMemAddressReserve(&parts[n].at, large, 0, 0, 0));
	TRY(cuMemMap(parts[n].at, large, 0, handle, 0));
	TRY(cuMemSetAccess(parts[n].at, large, access, 1));
	TRY(cuMemRelease(handle)); // the mapping keeps it
	parts[n++].words = large / 4;
	for (int i = 0; i < n; i++)
		set(&parts[i], 100 * getpid() + i);
	return n;
}

static void *add_often(void *p) {
	begin();
	for (int i = 0; i < 200; i++) {
		add(p, 1);
		if (i % 20 == 0)
			TRY(cuCtxSynchronize());
	}
	return NULL;
}

static atomic_int working;

// free_often frees memory in a stream while its kernels are queued.
static void *free_often(void *unused) {
	begin();
	for (int i = 0; i < 200; i++) {
		struct part p = {.words = (3 << 20) / 4};
		TRY(cuMemAllocAsync(&p.at, p.words * 4, NULL));
		add(&p, 1);
		add(&p, 1);
		TRY(cuMemFreeAsync(p.at, NULL));
		usleep(500); // about as long as its kernels take
	}
	TRY(cuCtxSynchronize());
	atomic_store(&working, 0);
	return unused;
}

static pthread_t launcher;

static void *launch(void *p) {
	struct part *part = p;
	uint32_t one = 1;
	void *parameters[] = {&part->at, &part->words, &one};
	begin();
	printf("launch: %d\n", cu.cuLaunchKernel(NULL, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL));
	return NULL;
}

static void join_launcher(void) { pthread_join(launcher, NULL); }

int main(int argc, char **argv) {
	if (argc != 5)
		return 2;
	const char *how = argv[2];
	int mib = atoi(argv[3]), rounds = atoi(argv[4]), n, right = 1;
	static struct part parts[64];
	if (strcmp(how, "forked") == 0 && fork() == 0)
		how = "work"; // the child is the guest
	else if (strcmp(how, "forked") == 0)
		return wait(&n) < 0 ? 1 : WEXITSTATUS(n);
	if (strcmp(how, "leave") == 0)
		atexit(join_launcher); // it runs after the library's handler
	find_functions(argv[1]);
	if (strcmp(how, "early") == 0) { // before there is a context
		int properties[8] = {1, 0, 1, 0};
		uint64_t handle;
		TRY(cuInit(0));
		printf("early: %d\n", cu.cuMemCreate(&handle, 2 << 20, properties, 0));
		how = "work";
	}
	if (strcmp(how, "threadless") == 0) { // cannot start threads at first
		pthread_attr_t before, endless;
		void *context;
		pthread_getattr_default_np(&before);
		pthread_attr_init(&endless);
		pthread_attr_setstacksize(&endless, (size_t)1 << 47);
		pthread_setattr_default_np(&endless);
		TRY(cuInit(0));
		for (int i = 0; i < 3; i++)
			printf("retain: %d\n", cu.cuDevicePrimaryCtxRetain(&context, 0));
		say("no thread");
		getchar();
		printf("memset: %d\n", cu.cuMemsetD32Async(0, 0, 1, NULL));
		pthread_setattr_default_np(&before);
		how = "work";
	}
	begin();
	if (strcmp(how, "reset") == 0) { // has no context for a while
		TRY(cuDevicePrimaryCtxReset_v2(0));
		say("reset");
		getchar();
		begin();
		how = "work";
	}

	if (strcmp(how, "work") == 0) { // computes, now and then without the GPU
		n = make(parts, mib);
		say("made");
		getchar(); // a line, or the end of the input
		for (int r = 0; r < rounds; r++) {
			for (int i = 0; i < n; i++)
				add(&parts[i], r);
			TRY(cuCtxSynchronize());
			if (r % 4 == 3)
				usleep(20000);
		}
		for (int i = 0; i < n; i++)
			right &= check(&parts[i]);
		TRY(cuMemFree_v2(parts[0].at));
	} else if (strcmp(how, "hold") == 0) { // hangs after its first work
		make(parts, mib);
		TRY(cuCtxSynchronize());
		say("holds");
		pause();
	} else if (strcmp(how, "busy") == 0) { // never idle
		n = make(parts, mib);
		say("holds");
		for (;;) {
			add(&parts[1], 1);
			TRY(cuCtxSynchronize());
		}
	} else if (strcmp(how, "endless") == 0) { // a kernel that never ends
		make(parts, mib);
		TRY(cuCtxSynchronize());
		say("holds");
		add(&(struct part){0}, 1);
		TRY(cuCtxSynchronize());
	} else if (strcmp(how, "open") == 0) { // a capture that never ends
		make(parts, mib);
		TRY(cuCtxSynchronize());
		TRY(cuStreamBeginCapture_v2(NULL, 0));
		say("holds");
		pause();
	} else if (strcmp(how, "leave") == 0) { // ends while a thread waits for the turn
		make(parts, mib);
		TRY(cuCtxSynchronize());
		say("holds");
		getchar();
		pthread_create(&launcher, NULL, launch, &parts[0]);
		getchar();
		exit(0);
	} else if (strcmp(how, "heir") == 0) { // never idle, and a child that outlives it
		n = make(parts, mib);
		int child = fork();
		if (child == 0) {
			pause();
			_exit(0);
		}
		printf("child %d\n", child);
		say("holds");
		for (;;) {
			add(&parts[1], 1);
			TRY(cuCtxSynchronize());
		}
	} else if (strcmp(how, "threads") == 0) {
		n = make(parts, mib);
		pthread_t threads[6];
		for (int i = 0; i < 6; i++)
			pthread_create(&threads[i], NULL, add_often, &parts[i]);
		for (int i = 0; i < 200; i++) {
			P p;
			TRY(cuMemAlloc_v2(&p, (i % 7 + 1) * 300000));
			TRY(cuMemFree_v2(p));
		}
		for (int i = 0; i < 6; i++)
			pthread_join(threads[i], NULL);
		for (int i = 0; i < n; i++)
			right &= check(&parts[i]);
	} else if (strcmp(how, "capture") == 0) {
		n = make(parts, mib);
		for (int r = 0; r < rounds; r++) {
			void *graph;
			P temporary = 0;
			static uint32_t one = 1;
			void *parameters[] = {&parts[1].at, &parts[1].words, &one};
			TRY(cuStreamBeginCapture_v2(NULL, 0));
			if (r == 0)
				TRY(cuMemAllocAsync(&temporary, 1 << 20, NULL));
			TRY(cuLaunchKernel(NULL, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL));
			usleep(10000); // a turn must not end here
			if (r == 0)
				TRY(cuMemFreeAsync(temporary, NULL));
			TRY(cuStreamEndCapture(NULL, &graph));
			TRY(cuGraphLaunch(graph, NULL));
			parts[1].expected++;
			TRY(cuCtxSynchronize());
			usleep(10000);
		}
		right = check(&parts[1]);
	} else if (strcmp(how, "grow") == 0) { // makes memory during a capture
		n = make(parts, mib);
		TRY(cuCtxSynchronize());
		void *graph;
		struct part more = {.words = ((size_t)rounds << 20) / 4};
		static uint32_t one = 1;
		void *parameters[] = {&more.at, &more.words, &one};
		TRY(cuStreamBeginCapture_v2(NULL, 0));
		say("captures");
		getchar();
		TRY(cuMemAlloc_v2(&more.at, more.words * 4));
		TRY(cuLaunchKernel(NULL, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL));
		TRY(cuStreamEndCapture(NULL, &graph));
		set(&more, 7);
		TRY(cuGraphLaunch(graph, NULL));
		more.expected++;
		right = check(&more) && check(&parts[0]);
	} else if (strcmp(how, "trim") == 0) { // runs out of memory while another thread frees in a stream
		pthread_t other;
		P p;
		atomic_store(&working, 1);
		pthread_create(&other, NULL, free_often, NULL);
		while (atomic_load(&working))
			right &= cu.cuMemAlloc_v2(&p, (size_t)1 << 40) == 2;
		pthread_join(other, NULL);
	} else if (strcmp(how, "alone") == 0) { // what one guest sees
		size_t free_bytes, total;
		P p, q;
		struct { unsigned char pool[88]; void *access; size_t count, bytes; P address; } node = {.bytes = 4096};
		void *out;
		TRY(cuMemGetInfo_v2(&free_bytes, &total));
		printf("free %zu of %zu MiB\n", free_bytes >> 20, total >> 20);
		TRY(cuMemAlloc_v2(&p, 8 << 20));
		TRY(cuMemGetInfo_v2(&free_bytes, &total));
		printf("free %zu of %zu MiB\n", free_bytes >> 20, total >> 20);
		printf("too much: %d\n", cu.cuMemAlloc_v2(&q, total));
		printf("managed: %d\n", cu.cuMemAllocManaged(&q, 4096, 1));
		printf("mystery: %d\n", cu.mystery(1, 2, 3.5, 4, 5, 6, 7, 8, 9.25f, (void *)10));
		printf("mystery: %d\n", cu.mystery(1, 2, 3.5, 4, 5, 6, 7, 8, 9.25f, (void *)10));
		TRY(cuGraphAddMemAllocNode(&out, NULL, NULL, 0, &node));
		struct part inside = {node.address, 1024, 0};
		set(&inside, 5);
		right = check(&inside);
		TRY(cuMemFree_v2(p));
	}
	say(right ? "right" : "wrong");
	return right ? 0 : 3;
}
