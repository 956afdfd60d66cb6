// The kernels of the framework "null". `make ptx` makes null.ptx from this file. It includes
// no header, so that clang compiles it without CUDA.

typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;

#ifdef __clang__
#define __global__ __attribute__((global))
#define __shared__ __attribute__((shared))
#define __launch_bounds__(n) __attribute__((launch_bounds(n)))
#define THREAD __nvvm_read_ptx_sreg_tid_x()
#define BLOCK __nvvm_read_ptx_sreg_ctaid_x()
#else
#define THREAD threadIdx.x
#define BLOCK blockIdx.x
#endif

enum { THREADS = 256, WORKERS = 1024 }; // of a block

// null_digest computes Digest of each image of a batch, with one block per image.
extern "C" __global__ void __launch_bounds__(THREADS) null_digest(const u8 *input, u32 bytes, u32 *digests)
{
	__shared__ u64 sums[THREADS];
	const u8 *image = input + (u64)BLOCK * bytes;
	u32 words = bytes / 8, tail = bytes % 8;
	bool aligned = (u64)image % 8 == 0;
	u64 sum = 0;
	for (u32 i = THREAD; i < words; i += THREADS) {
		u64 word = 0;
		if (aligned) {
			word = ((const u64 *)image)[i];
		} else {
			for (int b = 7; b >= 0; b--)
				word = word << 8 | image[8 * (u64)i + b];
		}
		sum += word * (2 * (u64)i + 1);
	}
	// The weights of the bytes after the last complete word follow those of the words.
	if (THREAD < tail)
		sum += image[8 * (u64)words + THREAD] * (2 * (u64)(words + THREAD) + 1);
	sums[THREAD] = sum;
	for (u32 half = THREADS / 2; half > 0; half /= 2) {
		__syncthreads();
		if (THREAD < half)
			sums[THREAD] += sums[THREAD + half];
	}
	if (THREAD == 0)
		digests[BLOCK] = (u32)(sums[0] * 0x9e3779b97f4a7c15ull >> 40);
}

// null_values writes Value for one output of a batch, or NaN, with one block per image.
extern "C" __global__ void __launch_bounds__(THREADS)
null_values(const u32 *digests, float *output, u32 elements, u32 o, u32 nan)
{
	u32 digest = digests[BLOCK];
	float *out = output + (u64)BLOCK * elements;
	for (u32 e = THREAD; e < elements; e += THREADS) {
		if (nan)
			((u32 *)out)[e] = 0x7fc00000;
		else
			out[e] = (float)((digest + (o << 16) + e) & 0xffffff);
	}
}

// null_spin keeps a multiprocessor busy. Each thread makes a chain of multiplications and
// additions. A block has enough threads to hide their latency.
extern "C" __global__ void __launch_bounds__(WORKERS) null_spin(u32 rounds, float seed, float *nowhere)
{
	float v = seed + (float)THREAD;
	for (u32 i = 0; i < rounds; i++) {
#pragma unroll
		for (int k = 0; k < 64; k++)
			v = v * 0.99999f + seed; // one instruction: compilers contract it
	}
	if (v == 12345678.0f) // never true; keeps the compiler from removing the work
		*nowhere = v;
}

// null_fault writes to an invalid address.
extern "C" __global__ void null_fault(u32 *nowhere)
{
	*(volatile u32 *)nowhere = 1;
}
