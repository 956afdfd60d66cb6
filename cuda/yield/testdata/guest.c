// A program that launches in each way that there is: guest MODE [capture]. MODE is how it gets the driver's
// functions: link, dlsym, proc, or as programs for CUDA 11 proc11. It prints what the launches return, if that is not 0.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

typedef int R;

#define DIMENSIONS void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned
#define FUNCTIONS(X) \
	X(cuLaunchKernel, (DIMENSIONS, void *, void **, void **)) \
	X(cuLaunchKernelEx, (const void *, void *, void **, void **)) \
	X(cuLaunchCooperativeKernel, (DIMENSIONS, void *, void **)) \
	X(cuGraphLaunch, (void *, void *))

#define X(name, parameters) R name parameters; R name##_ptsz parameters;
FUNCTIONS(X)
#undef X
R cuGetProcAddress_v2(const char *, void **, int, uint64_t, int *);
R cuStreamBeginCapture(void *, int);

static struct {
#define X(name, parameters) R (*name) parameters; R (*name##_ptsz) parameters;
	FUNCTIONS(X)
#undef X
} cu;

static int find_functions(const char *mode) {
	void *library = dlopen("libcuda.so.1", RTLD_NOW);
	if (library == NULL)
		return 1;
	if (strcmp(mode, "link") == 0) {
#define X(name, parameters) cu.name = name; cu.name##_ptsz = name##_ptsz;
		FUNCTIONS(X)
#undef X
	} else if (strcmp(mode, "dlsym") == 0) {
#define X(name, parameters) cu.name = dlsym(library, #name); cu.name##_ptsz = dlsym(library, #name "_ptsz");
		FUNCTIONS(X)
#undef X
	} else if (strcmp(mode, "proc11") == 0) {
		R (*get)(const char *, void **, int, uint64_t) = dlsym(library, "cuGetProcAddress");
		if (get("cuGetProcAddress", (void **)&get, 11030, 0) != 0)
			return 1;
#define X(name, parameters) get(#name, (void **)&cu.name, 11030, 0); get(#name, (void **)&cu.name##_ptsz, 11030, 2);
		FUNCTIONS(X)
#undef X
	} else {
		R (*get)(const char *, void **, int, uint64_t, int *) = dlsym(library, "cuGetProcAddress_v2");
		if (get("cuGetProcAddress", (void **)&get, 12000, 0, NULL) != 0)
			return 1;
#define X(name, parameters) get(#name, (void **)&cu.name, 12000, 0, NULL); get(#name, (void **)&cu.name##_ptsz, 12000, 2, NULL);
		FUNCTIONS(X)
#undef X
	}
	// A program must not find a function that the driver lacks.
	return dlsym(library, "cuNothing") != NULL || dlsym(RTLD_DEFAULT, "puts") == NULL;
}

#define TRY(call) do { R code_ = call; if (code_ != 0) { printf("%s: %d\n", #call, code_); } } while (0)

int main(int argc, char **argv) {
	if (argc < 2 || find_functions(argv[1]) != 0)
		return 2;
	if (argc > 2)
		cuStreamBeginCapture((void *)5, 0);
	void *x[] = {NULL};
	struct { unsigned dimensions[8]; void *stream, *attributes; unsigned count; } config = {{1}, (void *)7, NULL, 0}, none = {{1}, NULL, NULL, 0};
	TRY(cu.cuLaunchKernel(x, 1, 2, 3, 4, 5, 6, 7, (void *)5, x, x));
	TRY(cu.cuLaunchKernel_ptsz(x, 1, 2, 3, 4, 5, 6, 7, NULL, x, x));
	TRY(cu.cuLaunchKernelEx(&config, x, x, x));
	TRY(cu.cuLaunchKernelEx_ptsz(&none, x, x, x));
	TRY(cu.cuLaunchCooperativeKernel(x, 1, 2, 3, 4, 5, 6, 7, NULL, x));
	TRY(cu.cuLaunchCooperativeKernel_ptsz(x, 1, 2, 3, 4, 5, 6, 7, (void *)5, x));
	TRY(cu.cuGraphLaunch(x, NULL));
	TRY(cu.cuGraphLaunch_ptsz(x, (void *)9));
	return 0;
}
