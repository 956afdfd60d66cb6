// The interface for C sources that are built into the driver, for kernels that really
// compute. A kernel NAME of a loaded module runs
//
//	void fake_kernel_NAME(const struct fake_launch *launch)
//
// on its stream's thread when its turn comes. A kernel without such a function is only
// recorded.

#ifndef PENSTOCK_FAKE_H
#define PENSTOCK_FAKE_H

#include <stddef.h>
#include <stdint.h>

struct fake_launch {
	const char *name;
	uint32_t grid[3], block[3], shared_bytes;
	uint32_t sms;        // multiprocessors of the context that it runs in
	uint64_t stream;
	uint32_t count;      // of parameters
	void *const *parameters;
	const size_t *sizes;
	const uint32_t *mask; // which multiprocessors, one bit each
};

// fake_argument reads parameter i of a type.
#define fake_argument(launch, i, type) (*(const type *)(launch)->parameters[i])

// fake_reach reports whether a kernel may read, or write, these addresses. If it may
// not, the device faults with CUDA_ERROR_ILLEGAL_ADDRESS, and the kernel must return.
int fake_reach(const void *address, size_t bytes, int write);

// fake_multiprocessor returns the device's number of the launch's i-th multiprocessor;
// i < sms.
uint32_t fake_multiprocessor(const struct fake_launch *launch, uint32_t i);

// fake_fault loses the device with a code, as an illegal access of a kernel does.
void fake_fault(int code);

#endif
