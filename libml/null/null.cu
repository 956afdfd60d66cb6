// What the framework "null" runs on a GPU. `make ptx` makes null.ptx of it.

#include <stdint.h>

// null_digest sums up each image of a batch as Digest does: a block an image.
extern "C" __global__ void __launch_bounds__(256) null_digest(const uint8_t *input, uint32_t bytes, uint32_t *digests)
{
	__shared__ unsigned long long total;
	const uint8_t *image = input + (uint64_t)blockIdx.x * bytes;
	if (threadIdx.x == 0)
		total = 0;
	__syncthreads();
	uint32_t words = bytes / 8;
	unsigned long long sum = 0;
	bool aligned = (uintptr_t)image % 8 == 0;
	for (uint32_t i = threadIdx.x; i < words; i += blockDim.x) {
		uint64_t word = 0;
		if (aligned) {
			word = ((const uint64_t *)image)[i];
		} else {
			for (int b = 7; b >= 0; b--)
				word = word << 8 | image[8 * (uint64_t)i + b];
		}
		sum += word * (2 * (uint64_t)i + 1);
	}
	// The bytes after the last whole word go on where the words' weights end.
	uint32_t tail = bytes % 8;
	if (threadIdx.x < tail)
		sum += image[8 * (uint64_t)words + threadIdx.x] * (2 * (uint64_t)(words + threadIdx.x) + 1);
	atomicAdd(&total, sum);
	__syncthreads();
	if (threadIdx.x == 0)
		digests[blockIdx.x] = (uint32_t)(total * 0x9e3779b97f4a7c15ull >> 40);
}

// null_values writes one output of a batch as Value does, or no numbers: a block an
// image.
extern "C" __global__ void __launch_bounds__(256)
null_values(const uint32_t *digests, float *output, uint32_t elements, uint32_t o, uint32_t nan)
{
	uint32_t digest = digests[blockIdx.x];
	float *out = output + (uint64_t)blockIdx.x * elements;
	for (uint32_t e = threadIdx.x; e < elements; e += blockDim.x)
		out[e] = nan ? __int_as_float(0x7fc00000) : (float)((digest + (o << 16) + e) & 0xffffff);
}

// null_spin keeps a multiprocessor busy: so many multiplications and additions a
// thread, in a chain. A full block has as many threads in flight as hide one
// another's latency.
extern "C" __global__ void __launch_bounds__(1024) null_spin(uint32_t rounds, float seed, float *nowhere)
{
	float v = seed + (float)threadIdx.x;
	for (uint32_t i = 0; i < rounds; i++) {
#pragma unroll
		for (int k = 0; k < 64; k++)
			v = fmaf(v, 0.99999f, seed);
	}
	if (v == 12345678.0f) // never: so that the work is not left out
		*nowhere = v;
}

// null_fault writes where nothing is.
extern "C" __global__ void null_fault(uint32_t *nowhere)
{
	*(volatile uint32_t *)nowhere = threadIdx.x;
}
