// Code that all libraries share that are preloaded into guests. Each library includes this file once per source.

#ifndef PENSTOCK_PRELOAD_H
#define PENSTOCK_PRELOAD_H

#include <dlfcn.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

typedef int CUresult;
typedef uint64_t CUdeviceptr;
typedef struct CUstream_st *CUstream;

enum { CUDA_SUCCESS = 0, CUDA_NOT_FOUND = 500, CAPTURE_NONE = 0, CAPTURE_RELAXED = 2 };

// Stream handles that name a default stream.
#define STREAM_LEGACY ((CUstream)1)
#define STREAM_PER_THREAD ((CUstream)2)

// preload_say prints one line to standard error. library is the name of the library in it.
static inline void preload_say(const char *library, const char *format, va_list arguments) {
	char line[512];
	int n = snprintf(line, sizeof line, "penstock %s: ", library);
	n += vsnprintf(line + n, sizeof line - n - 1, format, arguments);
	if (n > (int)sizeof line - 2)
		n = sizeof line - 2;
	line[n++] = '\n';
	if (write(STDERR_FILENO, line, n) < 0)
		return;
}

typedef void *(*preload_lookup)(void *, const char *);

// preload_dlsym returns the dlsym of the next library that has one. dlvsym finds only the C library's. It returns NULL
// if that is not glibc.
__attribute__((no_sanitize("thread", "address"))) static inline preload_lookup preload_dlsym(void) {
	static const char *const versions[] = {"GLIBC_2.34", "GLIBC_2.2.5", "GLIBC_2.17"}; // the last one is arm64's
	for (size_t i = 0; i < sizeof versions / sizeof *versions; i++) {
		preload_lookup find = dlvsym(RTLD_NEXT, "dlsym", versions[i]);
		if (find != NULL)
			return find(RTLD_NEXT, "dlsym");
	}
	return NULL;
}

// preload_driver opens the driver. It returns NULL if there is none, and in a call from within itself: the driver's
// own initialization may look functions up. No lock may be held: dlopen waits for the loader's lock, and the
// constructor of another library may hold that and look a function up. So several threads may call this at once.
static inline void *preload_driver(void) {
	static __thread int opening;
	if (opening)
		return NULL;
	opening = 1;
	void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
	opening = 0;
	return driver;
}

#endif
