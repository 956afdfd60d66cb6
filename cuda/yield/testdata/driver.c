// A libcuda.so.1 without a GPU. It prints each wait and each launch, and a wait returns when the word has its value.
// FAKE_FAIL names a function that fails, the first FAKE_FAIL_TIMES times. With OLD it cannot wait.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef int R;
typedef uint64_t P;

static int capturing;
static __thread int mode; // of captures

static R end(const char *name) {
	static int failures;
	const char *fails = getenv("FAKE_FAIL"), *times = getenv("FAKE_FAIL_TIMES");
	return fails != NULL && strcmp(fails, name) == 0 && (times == NULL || failures++ < atoi(times)) ? 999 : 0;
}

static R launched(const char *name, void *stream) {
	printf("%s %ld\n", name, (long)(intptr_t)stream);
	fflush(stdout);
	return end(name);
}

R cuMemHostRegister_v2(void *p, size_t n, unsigned f) { return capturing || mode != 2 ? 900 : p == NULL || n < 8 || f != 11 ? 1 : end("cuMemHostRegister_v2"); }
R cuMemHostUnregister(void *p) { return p == NULL; }
R cuThreadExchangeStreamCaptureMode(int *m) { int old = mode; mode = *m; *m = old; return 0; }
R cuMemHostGetDevicePointer_v2(P *out, void *p, unsigned f) { *out = (P)p + 4096; return f != 0 ? 1 : end("cuMemHostGetDevicePointer_v2"); }
R cuStreamIsCapturing(void *s, int *out) { (void)s; *out = capturing; return end("cuStreamIsCapturing"); }
R cuStreamBeginCapture(void *s, int mode) { (void)s, (void)mode; capturing = 1; return 0; }

#ifndef OLD
R cuStreamWaitValue64_v2(void *s, P at, uint64_t value, unsigned flags) {
	while (flags == 1 && *(volatile uint64_t *)(at - 4096) != value)
		usleep(100);
	return launched("wait", s);
}
#endif

#define LAUNCH(name, parameters, stream) \
	R name parameters { return launched(#name, stream); } \
	R name##_ptsz parameters { return launched(#name "_ptsz", stream); }
#define DIMENSIONS void *f, unsigned a, unsigned b, unsigned c, unsigned d, unsigned e, unsigned g, unsigned n
LAUNCH(cuLaunchKernel, (DIMENSIONS, void *s, void **p, void **x), (f != NULL && a == 1 && g == 6 && n == 7 && p != NULL && x != NULL ? s : NULL))
LAUNCH(cuLaunchCooperativeKernel, (DIMENSIONS, void *s, void **p), (f != NULL && a == 1 && g == 6 && n == 7 && p != NULL ? s : NULL))
LAUNCH(cuLaunchKernelEx, (const char *c, void *f, void **p, void **x), (f != NULL && p != NULL && x != NULL ? *(void *const *)(c + 32) : NULL))
LAUNCH(cuGraphLaunch, (void *g, void *s), (g != NULL ? s : NULL))

// The runtime looks all functions up by this one.
R cuGetProcAddress_v2(const char *name, void **out, int version, uint64_t flags, int *status);
R cuGetProcAddress(const char *name, void **out, int version, uint64_t flags) { return cuGetProcAddress_v2(name, out, version, flags, NULL); }
R cuGetProcAddress_v2(const char *name, void **out, int version, uint64_t flags, int *status) {
	char symbol[64];
	const char *suffix = flags & 2 ? "_ptsz" : "";
	if (strcmp(name, "cuGetProcAddress") == 0)
		suffix = version >= 12000 ? "_v2" : "";
	snprintf(symbol, sizeof symbol, "%s%s", name, suffix);
	void *(*find)(void *, const char *) = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.34");
	if (find == NULL)
		find = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
	*out = find(dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD), symbol);
	if (status != NULL)
		*status = *out == NULL;
	return *out == NULL ? 500 : 0;
}
