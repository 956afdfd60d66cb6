// How programs get the driver's functions: by linking, by dlsym, and by cuGetProcAddress, which the CUDA runtime uses.
// A library stands in front of all three. One source of each library includes this file, after it has defined
// PRELOAD_LIBRARY, its name in messages. Prototypes and constants are those of CUDA 13.0's cuda.h.

#ifndef PENSTOCK_PRELOAD_NAMES_H
#define PENSTOCK_PRELOAD_NAMES_H

#include "preload.h"

#include <stdatomic.h>
#include <stdint.h>

#define PUBLIC __attribute__((visibility("default")))

static preload_lookup next_dlsym; // the dlsym of the library behind this one
static void *library;             // the driver
static atomic_int loaded;
static CUresult (*next_get)(const char *, void **, int, uint64_t);
static CUresult (*next_get_v2)(const char *, void **, int, uint64_t, int *);

// The library defines these. find_functions finds the driver's functions, and reports whether it found all that it
// needs. Several threads may call it at once, and find the same. by_symbol returns what a program gets for a function
// that it looked up by its exported name, and by_version for one that cuGetProcAddress returned.
static int find_functions(void);
__attribute__((noinline)) static void *by_symbol(const char *name, void *function);
static void *by_version(const char *name, int version, int per_thread, void *function);

__attribute__((no_sanitize("thread", "address"))) static void find_dlsym(void) {
	if (next_dlsym == NULL && (next_dlsym = preload_dlsym()) == NULL) {
		dprintf(STDERR_FILENO, "penstock " PRELOAD_LIBRARY ": find dlsym: the C library is not glibc\n");
		_Exit(70);
	}
}

// load_driver returns 0 if there is no usable driver.
static int load_driver(void) {
	if (atomic_load(&loaded))
		return 1;
	find_dlsym();
	void *found = preload_driver();
	if (found == NULL)
		return 0;
	library = found;
	next_get = next_dlsym(library, "cuGetProcAddress");
	next_get_v2 = next_dlsym(library, "cuGetProcAddress_v2");
	return find_functions();
}

// dlsym replaces the C library's. The calls at the end are jumps, so that RTLD_NEXT means the caller's next library.
__attribute__((no_sanitize("thread", "address"), optimize("O2", "no-stack-protector"))) PUBLIC void *dlsym(void *handle, const char *name) {
	find_dlsym();
	if (name[0] != 'c' || name[1] != 'u' || name[2] < 'A' || name[2] > 'Z')
		return next_dlsym(handle, name);
	void *function = load_driver() ? next_dlsym(library, name) : NULL;
	if (function == NULL)
		return next_dlsym(handle, name);
	return by_symbol(name, function);
}

enum { PER_THREAD_STREAM = 2 };

PUBLIC CUresult cuGetProcAddress_v2(const char *name, void **out, int version, uint64_t flags, int *status) {
	CUresult code = load_driver() && next_get_v2 != NULL ? next_get_v2(name, out, version, flags, status) : CUDA_NOT_FOUND;
	if (code == CUDA_SUCCESS && out != NULL && *out != NULL)
		*out = by_version(name, version, (flags & PER_THREAD_STREAM) != 0, *out);
	return code;
}

PUBLIC CUresult cuGetProcAddress(const char *name, void **out, int version, uint64_t flags) {
	CUresult code = load_driver() && next_get != NULL ? next_get(name, out, version, flags) : CUDA_NOT_FOUND;
	if (code == CUDA_SUCCESS && out != NULL && *out != NULL)
		*out = by_version(name, version, (flags & PER_THREAD_STREAM) != 0, *out);
	return code;
}

#endif
