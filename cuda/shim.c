//go:build cgo

#define _GNU_SOURCE
#include "shim.h"

#include <dlfcn.h>
#include <link.h>
#include <stdio.h>

typedef int CUresult;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef struct CUstream_st *CUstream;
typedef struct CUgraph_st *CUgraph;
typedef struct CUgraphNode_st *CUgraphNode;
typedef struct CUdevResource_st CUdevResource;

// Constants, as cuda.h names them.
enum {
	CUDA_ERROR_INVALID_VALUE = 1,
	CU_JIT_ERROR_LOG_BUFFER = 5,
	CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES = 6,
};

_Static_assert(sizeof(void *) == 8, "CUDA is 64-bit");

#define POINTER(type, word) ((type)(uintptr_t)(word))

uint64_t pcu_open(const char *path, char *text, size_t text_bytes) {
	void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	struct link_map *map;
	if (library == NULL || dlinfo(library, RTLD_DI_LINKMAP, &map) != 0) {
		snprintf(text, text_bytes, "%s", dlerror());
		return 0;
	}
	snprintf(text, text_bytes, "%s", map->l_name);
	return (uintptr_t)library;
}

uint64_t pcu_symbol(uint64_t library, const char *name) { return (uintptr_t)dlsym(POINTER(void *, library), name); }

// x86-64 and arm64 pass the first six integers and pointers in registers of 64 bits. A function ignores registers
// beyond its parameters, and the upper half of a register that has an int.
pcu_result pcu_call(uint64_t function, const uint64_t *arguments, size_t count, void *buffer) {
	typedef CUresult (*call)(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t);
	pcu_result r = {0};
	uint64_t a[PCU_MAX_ARGUMENTS] = {0}, *out = r.out;
	for (size_t i = 0; i < count; i++) {
		if (arguments[i] == PCU_OUT)
			a[i] = (uintptr_t)out++;
		else
			a[i] = arguments[i] == PCU_BUFFER ? (uintptr_t)buffer : arguments[i];
	}
	r.code = POINTER(call, function)(a[0], a[1], a[2], a[3], a[4], a[5]);
	return r;
}

pcu_result pcu_module_load(uint64_t function, const void *image, char *log, size_t log_bytes) {
	typedef CUresult (*call)(CUmodule *, const void *, unsigned, int *, void **);
	int options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
	void *values[] = {log, POINTER(void *, log_bytes)};
	CUmodule module = NULL;
	int32_t code = POINTER(call, function)(&module, image, 2, options, values);
	return (pcu_result){code, {(uintptr_t)module}};
}

int32_t pcu_launch(uint64_t function, uint64_t kernel,
	uint32_t grid_x, uint32_t grid_y, uint32_t grid_z,
	uint32_t block_x, uint32_t block_y, uint32_t block_z,
	uint32_t shared_bytes, uint64_t stream,
	void *values, const uint32_t *offsets, uint32_t count) {
	typedef CUresult (*call)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
		CUstream, void **, void **);
	void *parameters[PCU_MAX_PARAMETERS];
	if (count > PCU_MAX_PARAMETERS)
		return CUDA_ERROR_INVALID_VALUE;
	for (uint32_t i = 0; i < count; i++)
		parameters[i] = (char *)values + offsets[i];
	return POINTER(call, function)(POINTER(CUfunction, kernel), grid_x, grid_y, grid_z, block_x, block_y, block_z,
		shared_bytes, POINTER(CUstream, stream), parameters, NULL);
}

pcu_result pcu_graph_nodes(uint64_t function, uint64_t graph, uint64_t *nodes, size_t room) {
	typedef CUresult (*call)(CUgraph, CUgraphNode *, size_t *);
	size_t count = room;
	int32_t code = POINTER(call, function)(POINTER(CUgraph, graph), (CUgraphNode *)nodes, &count);
	return (pcu_result){code, {count}};
}

pcu_result pcu_resource_split(uint64_t function, const void *whole, unsigned smallest,
	void *groups, uint32_t room, void *rest) {
	typedef CUresult (*call)(CUdevResource *, unsigned *, const CUdevResource *, CUdevResource *, unsigned, unsigned);
	unsigned count = room;
	int32_t code = POINTER(call, function)(groups, &count, whole, rest, 0, smallest);
	return (pcu_result){code, {count}};
}
