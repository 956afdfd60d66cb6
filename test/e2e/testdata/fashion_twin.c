// The kernels of examples/c/fashion.cu on the fake driver: one thread after the other.

#include "fake.h"

#include <math.h>

static _Thread_local uint32_t threadIdx_x, blockIdx_x, blockIdx_y;
#define KERNEL static void
#define exponential expf

#include "fashion.cu"

// EACH calls a kernel for all its blocks and threads.
#define EACH(launch, call) \
	for (blockIdx_y = 0; blockIdx_y < (launch)->grid[1]; blockIdx_y++) \
		for (blockIdx_x = 0; blockIdx_x < (launch)->grid[0]; blockIdx_x++) \
			for (threadIdx_x = 0; threadIdx_x < (launch)->block[0]; threadIdx_x++) \
				call

#define FLOATS(i) fake_argument(launch, i, float *)
#define NUMBER(i) fake_argument(launch, i, int)

static int reach(const float *at, size_t floats, int write) { return fake_reach(at, floats * sizeof *at, write); }

void fake_kernel_fashion_convolution(const struct fake_launch *launch) {
	size_t pixels = (size_t)launch->grid[1] * NUMBER(4) * NUMBER(4);
	if (reach(FLOATS(0), pixels * NUMBER(5), 0) && reach(FLOATS(1), 9 * NUMBER(5) * NUMBER(6), 0) &&
		reach(FLOATS(2), NUMBER(6), 0) && reach(FLOATS(3), pixels * NUMBER(6), 1))
		EACH(launch, fashion_convolution(FLOATS(0), FLOATS(1), FLOATS(2), FLOATS(3), NUMBER(4), NUMBER(5), NUMBER(6)));
}

void fake_kernel_fashion_pool(const struct fake_launch *launch) {
	size_t in = (size_t)launch->grid[1] * NUMBER(2) * NUMBER(2) * NUMBER(3);
	if (reach(FLOATS(0), in, 0) && reach(FLOATS(1), in / 4, 1))
		EACH(launch, fashion_pool(FLOATS(0), FLOATS(1), NUMBER(2), NUMBER(3)));
}

void fake_kernel_fashion_mean(const struct fake_launch *launch) {
	size_t out = (size_t)launch->grid[0] * NUMBER(3);
	if (reach(FLOATS(0), out * NUMBER(2), 0) && reach(FLOATS(1), out, 1))
		EACH(launch, fashion_mean(FLOATS(0), FLOATS(1), NUMBER(2), NUMBER(3)));
}

void fake_kernel_fashion_classes(const struct fake_launch *launch) {
	if (reach(FLOATS(0), launch->grid[0] * NUMBER(4), 0) && reach(FLOATS(1), CLASSES * NUMBER(4), 0) &&
		reach(FLOATS(2), CLASSES, 0) && reach(FLOATS(3), launch->grid[0] * CLASSES, 1))
		EACH(launch, fashion_classes(FLOATS(0), FLOATS(1), FLOATS(2), FLOATS(3), NUMBER(4)));
}
