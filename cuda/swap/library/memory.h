// The functions of memory.c that hooks.c calls. A function that returns int returns 0 if the handle or
// the addresses are not the library's: then the call is the driver's.

#ifndef PENSTOCK_SWAP_MEMORY_H
#define PENSTOCK_SWAP_MEMORY_H

#include "driver.h"

// MOST_BYTES is more than any device has. Sums of sizes up to it do not overflow.
#define MOST_BYTES ((size_t)1 << 48)

CUresult memory_allocate(CUdeviceptr *out, size_t bytes);
CUresult memory_free(CUdeviceptr address);
CUresult memory_allocate_async(CUdeviceptr *out, size_t bytes, CUstream stream);
CUresult memory_free_async(CUdeviceptr address, CUstream stream);
int memory_owns(CUdeviceptr address, CUdeviceptr *base, size_t *bytes);

// memory_trim frees what stream-ordered frees left, after a synchronization.
void memory_trim(void);
size_t memory_used(void);
void memory_end_context(CUcontext context);

CUresult memory_create(CUhandle *out, size_t bytes, const Properties *properties);
int memory_release(CUhandle handle);
int memory_properties(CUhandle handle, Properties *out);
int memory_retain(CUdeviceptr address, CUhandle *out);
int memory_map(CUdeviceptr address, size_t bytes, size_t offset, CUhandle handle, CUresult *code);
int memory_unmap(CUdeviceptr address, size_t bytes, CUresult *code);
int memory_set_access(CUdeviceptr address, size_t bytes, const Access *access, size_t count, CUresult *code);

#endif
