// The network of fashion.c on a GPU, with one kernel per layer. `make ptx` makes fashion.ptx
// from this file. It includes no header, so that clang compiles it without CUDA. No thread
// needs the results of another, so a C compiler can compile the kernels, too, and run them
// in a loop over blocks and threads. Tests without a GPU do that.
//
// Activations are [image, y, x, channel], f32. The weights are those of fashion.c.

#ifdef KERNEL
// A C compiler: the file that includes this one defines these, and exponential.
#elif defined(__clang__)
#define KERNEL extern "C" __attribute__((global)) void
#define DEVICE static __attribute__((device))
#define threadIdx_x __nvvm_read_ptx_sreg_tid_x()
#define blockIdx_x __nvvm_read_ptx_sreg_ctaid_x()
#define blockIdx_y __nvvm_read_ptx_sreg_ctaid_y()
#else
#define KERNEL extern "C" __global__ void
#define DEVICE static __device__
#define threadIdx_x threadIdx.x
#define blockIdx_x blockIdx.x
#define blockIdx_y blockIdx.y
#endif

// RUN is the number of a row's pixels per thread; all sides are multiples of it.
#define RUN 7

#ifndef exponential
DEVICE float exponential(float x) {
	const float log2e = 1.44269504f;
	float y;
	asm("ex2.approx.f32 %0, %1;" : "=f"(y) : "f"(x * log2e));
	return y;
}
#endif

// A 3 x 3 convolution with a border of zeros, then max(0, x). A block computes a run of a row
// of an image, a thread one output channel of it.
KERNEL fashion_convolution(const float *__restrict__ in, const float *__restrict__ weights,
	const float *__restrict__ bias, float *__restrict__ out, int side, int from, int to) {
	int c = threadIdx_x, runs = side / RUN;
	int y = blockIdx_x / runs, x = blockIdx_x % runs * RUN;
	in += blockIdx_y * side * side * from;
	out += (blockIdx_y * side * side + y * side + x) * to + c;
	float sum[RUN];
	for (int i = 0; i < RUN; i++)
		sum[i] = bias[c];
	for (int k = 0; k < from; k++) {
		for (int dy = 0; dy < 3; dy++) {
			int row = y + dy - 1;
			if (row < 0 || row >= side)
				continue;
			float pixel[RUN + 2];
			for (int i = 0; i < RUN + 2; i++) {
				int column = x + i - 1;
				pixel[i] = column < 0 || column >= side ? 0 : in[(row * side + column) * from + k];
			}
			for (int dx = 0; dx < 3; dx++) {
				float w = weights[((k * 3 + dy) * 3 + dx) * to + c];
				for (int i = 0; i < RUN; i++)
					sum[i] += pixel[i + dx] * w;
			}
		}
	}
	for (int i = 0; i < RUN; i++)
		out[i * to] = sum[i] > 0 ? sum[i] : 0;
}

// The max of 2 x 2 pixels. A block computes a pixel of an output image, a thread a channel.
KERNEL fashion_pool(const float *__restrict__ in, float *__restrict__ out, int side, int channels) {
	int half = side / 2, y = blockIdx_x / half, x = blockIdx_x % half, c = threadIdx_x;
	in += (blockIdx_y * side * side + 2 * y * side + 2 * x) * channels + c;
	float a = in[0], b = in[channels], d = in[side * channels], e = in[(side + 1) * channels];
	a = a > b ? a : b;
	d = d > e ? d : e;
	out[((blockIdx_y * half + y) * half + x) * channels + c] = a > d ? a : d;
}

// The mean of an image's pixels. A block computes an image, a thread a channel.
KERNEL fashion_mean(const float *__restrict__ in, float *__restrict__ out, int pixels, int channels) {
	int c = threadIdx_x;
	in += blockIdx_x * pixels * channels + c;
	float sum = 0;
	for (int i = 0; i < pixels; i++)
		sum += in[i * channels];
	out[blockIdx_x * channels + c] = sum / pixels;
}

// The probabilities of CLASSES classes. A block of one thread computes an image.
#define CLASSES 10
KERNEL fashion_classes(const float *__restrict__ in, const float *__restrict__ weights,
	const float *__restrict__ bias, float *__restrict__ out, int channels) {
	in += blockIdx_x * channels;
	out += blockIdx_x * CLASSES;
	float p[CLASSES], most = 0, sum = 0;
	for (int c = 0; c < CLASSES; c++)
		p[c] = bias[c];
	for (int k = 0; k < channels; k++)
		for (int c = 0; c < CLASSES; c++)
			p[c] += in[k] * weights[k * CLASSES + c];
	for (int c = 0; c < CLASSES; c++)
		most = c == 0 || p[c] > most ? p[c] : most;
	for (int c = 0; c < CLASSES; c++)
		sum += p[c] = exponential(p[c] - most);
	for (int c = 0; c < CLASSES; c++)
		out[c] = p[c] / sum;
}
