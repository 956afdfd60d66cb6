// kernels.ptx on the fake driver.

#include "fake.h"

#include <time.h>

void fake_kernel_penstock_fill(const struct fake_launch *launch) {
	uint32_t *out = (uint32_t *)(uintptr_t)fake_argument(launch, 0, uint64_t);
	uint32_t value = fake_argument(launch, 1, uint32_t), count = fake_argument(launch, 2, uint32_t);
	uint32_t threads = launch->grid[0] * launch->block[0];
	if (count > threads)
		count = threads;
	if (!fake_reach(out, count * sizeof *out, 1))
		return;
	for (uint32_t i = 0; i < count; i++)
		out[i] = value + i;
}

void fake_kernel_penstock_where(const struct fake_launch *launch) {
	uint32_t *out = (uint32_t *)(uintptr_t)fake_argument(launch, 0, uint64_t);
	struct timespec spin = {0, fake_argument(launch, 1, uint32_t) / 2}; // 2 GHz
	if (!fake_reach(out, launch->grid[0] * sizeof *out, 1))
		return;
	nanosleep(&spin, NULL);
	for (uint32_t i = 0; i < launch->grid[0]; i++)
		out[i] = fake_multiprocessor(launch, i % launch->sms);
}

void fake_kernel_penstock_pair(const struct fake_launch *launch) {
	struct { uint64_t out; uint32_t a, b; } pair = {0};
	pair = *(__typeof__(pair) *)launch->parameters[0];
	uint32_t *out = (uint32_t *)(uintptr_t)pair.out;
	if (fake_reach(out, sizeof *out, 1))
		*out = pair.a + pair.b;
}

void fake_kernel_penstock_fault(const struct fake_launch *launch) {
	uint32_t *out = (uint32_t *)(uintptr_t)fake_argument(launch, 0, uint64_t);
	if (fake_reach(out, sizeof *out, 1))
		*out = 1;
}
