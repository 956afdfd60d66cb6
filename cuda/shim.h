// How Go calls the driver. Handles and addresses are 64-bit words. Results are returned by value, so that a call costs
// Go no allocation. Prototypes, struct layouts and constants are those of CUDA 13.0's cuda.h.

#ifndef PENSTOCK_CUDA_SHIM_H
#define PENSTOCK_CUDA_SHIM_H

#include <stddef.h>
#include <stdint.h>

// pcu_open opens a library. text becomes its path. If the library cannot be loaded, the result is 0 and text is the
// loader's message.
uint64_t pcu_open(const char *path, char *text, size_t text_bytes);

// pcu_symbol returns the address of a function of the library, 0 if the library has no such function. All functions
// below take such an address first.
uint64_t pcu_symbol(uint64_t library, const char *name);

typedef struct { int32_t code; uint64_t out[2]; } pcu_result;

// pcu_call calls a function whose parameters are up to PCU_MAX_ARGUMENTS integers and pointers. An argument of PCU_OUT
// becomes the address of the next word of the result's out, which is zero; an argument of PCU_BUFFER becomes buffer. No
// address, size or number that the driver takes has these values.
enum { PCU_MAX_ARGUMENTS = 6 };
#define PCU_OUT 0x8000000000000001u
#define PCU_BUFFER 0x8000000000000002u
pcu_result pcu_call(uint64_t function, const uint64_t *arguments, size_t count, void *buffer);

// The functions that do not fit pcu_call: they take several arrays, or more arguments.

// image ends with a zero byte. log receives the compiler's log, which also ends with a zero byte.
pcu_result pcu_module_load(uint64_t function, const void *image, char *log, size_t log_bytes);

// pcu_launch reads parameter i at values + offsets[i]; count <= PCU_MAX_PARAMETERS.
enum { PCU_MAX_PARAMETERS = 64 };
int32_t pcu_launch(uint64_t function, uint64_t kernel,
	uint32_t grid_x, uint32_t grid_y, uint32_t grid_z,
	uint32_t block_x, uint32_t block_y, uint32_t block_z,
	uint32_t shared_bytes, uint64_t stream,
	void *values, const uint32_t *offsets, uint32_t count);

// The result is how many nodes there are.
pcu_result pcu_graph_nodes(uint64_t function, uint64_t graph, uint64_t *nodes, size_t room);

// whole, groups and rest are CUdevResource. If groups is null, the result is how many there would be.
pcu_result pcu_resource_split(uint64_t function, const void *whole, unsigned smallest,
	void *groups, uint32_t room, void *rest);

#endif
