// null.cu on the fake driver, as the definition has it.

#include "fake.h"

#include <math.h>
#include <string.h>
#include <time.h>

void fake_kernel_null_digest(const struct fake_launch *launch) {
	const uint8_t *input = (const uint8_t *)(uintptr_t)fake_argument(launch, 0, uint64_t);
	uint32_t bytes = fake_argument(launch, 1, uint32_t), images = launch->grid[0];
	uint32_t *digests = (uint32_t *)(uintptr_t)fake_argument(launch, 2, uint64_t);
	if (!fake_reach(input, (size_t)images * bytes, 0) || !fake_reach(digests, images * sizeof *digests, 1))
		return;
	for (uint32_t i = 0; i < images; i++, input += bytes) {
		uint64_t sum = 0, weight = 1;
		uint32_t at = 0;
		for (; at + 8 <= bytes; at += 8, weight += 2) {
			uint64_t word;
			memcpy(&word, input + at, sizeof word);
			sum += word * weight;
		}
		for (; at < bytes; at++, weight += 2)
			sum += input[at] * weight;
		digests[i] = (uint32_t)(sum * 0x9e3779b97f4a7c15ull >> 40);
	}
}

void fake_kernel_null_values(const struct fake_launch *launch) {
	const uint32_t *digests = (const uint32_t *)(uintptr_t)fake_argument(launch, 0, uint64_t);
	float *output = (float *)(uintptr_t)fake_argument(launch, 1, uint64_t);
	uint32_t elements = fake_argument(launch, 2, uint32_t), o = fake_argument(launch, 3, uint32_t);
	uint32_t images = launch->grid[0];
	if (!fake_reach(digests, images * sizeof *digests, 0) || !fake_reach(output, (size_t)images * elements * sizeof *output, 1))
		return;
	for (uint32_t i = 0; i < images; i++)
		for (uint32_t e = 0; e < elements; e++)
			*output++ = fake_argument(launch, 4, uint32_t) ? NAN : (float)((digests[i] + (o << 16) + e) & 0xffffff);
}

// Each round of a block takes a multiprocessor 512 cycles.
void fake_kernel_null_spin(const struct fake_launch *launch) {
	double seconds = 512.0 * fake_argument(launch, 0, uint32_t) * launch->grid[0] / launch->sms / 1.98e9;
	struct timespec spin = {(time_t)seconds, (long)((seconds - floor(seconds)) * 1e9)};
	nanosleep(&spin, NULL);
}

void fake_kernel_null_fault(const struct fake_launch *launch) {
	uint32_t *nowhere = (uint32_t *)(uintptr_t)fake_argument(launch, 0, uint64_t);
	if (fake_reach(nowhere, sizeof *nowhere, 1))
		*nowhere = 1;
}
