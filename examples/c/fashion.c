/*
 * fashion is a model written in C: the classifier of models/zoo/fashion. On the CPU it
 * is plain C. On a GPU it has kernels (fashion.cu) and uses CUDA's driver API. It builds
 * with a C compiler alone, and opens libcuda.so.1 only on a GPU.
 *
 *     make examples
 *     bin/penstock if add clothes-c --model examples/c/fashion.yaml --port 5015
 *
 * The network has four 3 x 3 convolutions with a border of zeros, each followed by
 * max(0, x). After the first and the third follows the max of 2 x 2 pixels. At the end
 * are the mean of each channel and ten classes with softmax. Activations are
 * [y, x, channel].
 *
 * fashion.weights has the parameters of models/zoo/fashion/model.onnx, f32, little
 * endian, layer by layer: weights [from, 3, 3, to] and bias [to] of each convolution,
 * weights [96, 10] and bias [10] of the classes.
 */
#include <dlfcn.h>
#include <errno.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "penstock.h"

enum {
	SIDE = 28, CLASSES = 10, LAYERS = 4, CHANNELS = 96, /* of the last layer */
	ACTIVATIONS = 28 * 28 * 24, /* of an image in the largest layer */
	SLOTS = 4, MOST = 64, /* images of a batch */
};

static const struct layer {
	int side, from, to, pool;
} layers[LAYERS] = {{28, 1, 24, 1}, {14, 24, 48, 0}, {14, 48, 64, 1}, {7, 64, 96, 0}};

/* The addresses of the parameters; on a GPU these are device addresses. */
struct weights {
	const float *layer[LAYERS], *layer_bias[LAYERS], *classes, *bias;
};

/* lay sets them for the file's contents and returns their size in bytes. */
static size_t lay(struct weights *w, const float *at) {
	const float *begin = at;
	for (int i = 0; i < LAYERS; i++) {
		w->layer[i] = at;
		w->layer_bias[i] = at += layers[i].from * 3 * 3 * layers[i].to;
		at += layers[i].to;
	}
	w->classes = at;
	w->bias = at += CHANNELS * CLASSES;
	return (size_t)(at + CLASSES - begin) * sizeof *at;
}

/* The used part of CUDA's driver API (cuda.h). */
typedef uint64_t device_pointer;
typedef struct CUfunc_st *function;
typedef struct CUstream_st *stream;

static struct cuda {
	void *library;
	int (*module_load)(void **module, const void *image, unsigned options, int *names, void **values);
	int (*module_function)(function *f, void *module, const char *name);
	int (*module_unload)(void *module);
	int (*allocate)(device_pointer *at, size_t bytes);
	int (*release)(device_pointer at);
	int (*to_device)(device_pointer to, const void *from, size_t bytes);
	int (*launch)(function f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
		unsigned shared, stream s, void **parameters, void **extra);
} cuda;

static const struct {
	const char *name;
	void *at;
} symbols[] = {
	{"cuModuleLoadDataEx", &cuda.module_load}, {"cuModuleGetFunction", &cuda.module_function},
	{"cuModuleUnload", &cuda.module_unload}, {"cuMemAlloc_v2", &cuda.allocate}, {"cuMemFree_v2", &cuda.release},
	{"cuMemcpyHtoD_v2", &cuda.to_device}, {"cuLaunchKernel", &cuda.launch},
};

/* `make ptx` makes this from fashion.cu. */
__asm__(".section .rodata\nptx: .incbin \"fashion.ptx\"\n.byte 0\n.previous");
extern const char ptx[];

/* batch has the arguments of configure_batch for a batch size in a slot. */
struct batch {
	void *input, *output;
	stream stream; /* on a GPU */
};

struct model {
	const penstock_environment *env;
	int gpu;
	float *file; /* the parameters in host memory */
	struct weights at; /* those in use */
	struct batch batches[SLOTS][MOST + 1]; /* by size */
	float *scratch[SLOTS][2]; /* activations between two layers, of the largest batch */

	/* On a GPU. */
	void *module;
	function convolution, pool, mean, classes;
	device_pointer own; /* the parameters, if the node does not share them */
};

/* check converts a CUresult to a code of penstock.h. */
static int check(const char *what, int result) {
	if (result == 0)
		return PENSTOCK_OK;
	penstock_fail("%s: CUDA error %d", what, result);
	switch (result) {
	case 2: /* CUDA_ERROR_OUT_OF_MEMORY */
		return PENSTOCK_OUT_OF_MEMORY;
	case 214: case 220: case 226: /* the hardware failed */
	case 700: case 702: case 709: case 710: case 714: case 715: case 716: case 717: case 718: case 719: case 721: /* a kernel */
	case 805: case 806: case 807: case 810: /* the MPS server */
		return PENSTOCK_DEVICE_LOST;
	}
	return PENSTOCK_FAILED;
}

static int init(void *self, const penstock_environment *env) {
	struct model *m = self;
	m->env = env;
	m->gpu = strcmp(env->device, "cpu") != 0;
	const penstock_tensor *in = env->input, *out = env->outputs;
	if (in->type != PENSTOCK_F32 || in->bytes != SIDE * SIDE * sizeof(float))
		return penstock_fail("the model takes %d x %d numbers of f32, and the card's input is %llu bytes of type %u",
			SIDE, SIDE, (unsigned long long)in->bytes, in->type);
	if (env->output_count != 1 || out->bytes != CLASSES * sizeof(float))
		return penstock_fail("want a card with one output of %d numbers", CLASSES);
	if (env->batches[env->batch_count - 1] > MOST)
		return penstock_fail("the model takes batches of at most %d images", MOST);
	if (env->model == NULL)
		return penstock_fail("the card names no model; want fashion.weights");
	return PENSTOCK_OK;
}

/* load_model reads the parameters. It touches no device: a shadow does no more before it
   is woken. */
static int load_model(void *self) {
	struct model *m = self;
	size_t want = lay(&m->at, NULL);
	FILE *f = fopen(m->env->model, "rb");
	if (f == NULL)
		return penstock_fail("open %s: %s", m->env->model, strerror(errno));
	size_t got = 0;
	if ((m->file = malloc(want)) != NULL)
		got = fread(m->file, 1, want, f);
	int more = got == want && fgetc(f) != EOF;
	fclose(f);
	if (m->file == NULL)
		return penstock_fail("no memory for %zu bytes of parameters", want);
	if (got != want || more)
		return penstock_fail("%s has %s than %zu bytes", m->env->model, more ? "more" : "less", want);
	lay(&m->at, m->file);
	return PENSTOCK_OK;
}

/* open_cuda loads the driver's library. The process's context is open and current
   when libml calls link_model. */
static int open_cuda(void) {
	if (cuda.library == NULL)
		cuda.library = dlopen("libcuda.so.1", RTLD_NOW);
	if (cuda.library == NULL)
		return penstock_fail("%s", dlerror());
	for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++) {
		void *f = dlsym(cuda.library, symbols[i].name);
		if (f == NULL)
			return penstock_fail("libcuda.so.1 has no %s", symbols[i].name);
		memcpy(symbols[i].at, &f, sizeof f);
	}
	return PENSTOCK_OK;
}

/* link_model loads the kernels on the device, and a copy of the parameters unless the
   node shares them. */
static int link_model(void *self, int64_t *persistent_bytes) {
	struct model *m = self;
	size_t bytes = lay(&m->at, m->file);
	if (!m->gpu) {
		*persistent_bytes = (int64_t)bytes;
		return PENSTOCK_OK;
	}
	int code = open_cuda();
	if (code == PENSTOCK_OK)
		code = check("load kernels", cuda.module_load(&m->module, ptx, 0, NULL, NULL));
	const struct {
		const char *name;
		function *f;
	} kernels[] = {{"fashion_convolution", &m->convolution}, {"fashion_pool", &m->pool}, {"fashion_mean", &m->mean}, {"fashion_classes", &m->classes}};
	for (int i = 0; i < 4 && code == PENSTOCK_OK; i++)
		code = check(kernels[i].name, cuda.module_function(kernels[i].f, m->module, kernels[i].name));
	if (code != PENSTOCK_OK)
		return code;

	void *shared;
	uint64_t length;
	code = penstock_weights(m->env->model, &shared, &length);
	if (code == PENSTOCK_OK && length == bytes) {
		lay(&m->at, shared);
		penstock_log(PENSTOCK_INFO, "the parameters are those that the node shares");
	} else if (code == PENSTOCK_OK) {
		return penstock_fail("the node shares %llu bytes of %s, want %zu", (unsigned long long)length, m->env->model, bytes);
	} else if (code == PENSTOCK_NOT_SHARED) {
		penstock_log(PENSTOCK_INFO, penstock_last_error());
		if ((code = check("allocate parameters", cuda.allocate(&m->own, bytes))) != PENSTOCK_OK ||
			(code = check("copy parameters", cuda.to_device(m->own, m->file, bytes))) != PENSTOCK_OK)
			return code;
		lay(&m->at, (const float *)m->own);
		*persistent_bytes = (int64_t)bytes;
	} else {
		penstock_error(penstock_last_error());
		return code;
	}
	free(m->file);
	m->file = NULL;
	return PENSTOCK_OK;
}

/* configure_batch keeps the buffers and the slot's stream. For a new slot it allocates
   memory for activations between two layers. */
static int configure_batch(void *self, int32_t slot, int32_t n, void *input, void *const *outputs,
	int64_t *ephemeral_bytes) {
	struct model *m = self;
	/* On a CPU the images are computed one after the other. */
	size_t images = m->gpu ? (size_t)m->env->batches[m->env->batch_count - 1] : 1;
	size_t bytes = images * ACTIVATIONS * sizeof(float);
	for (int i = 0; i < 2; i++) {
		if (m->scratch[slot][i] != NULL)
			continue;
		if (m->gpu) {
			device_pointer at = 0;
			int code = check("allocate activations", cuda.allocate(&at, bytes));
			if (code != PENSTOCK_OK)
				return code;
			m->scratch[slot][i] = (float *)at;
		} else if ((m->scratch[slot][i] = malloc(bytes)) == NULL) {
			return penstock_fail("no memory for %zu bytes of activations", bytes);
		}
	}
	*ephemeral_bytes = (int64_t)(2 * bytes);
	m->batches[slot][n] = (struct batch){input, outputs[0], penstock_stream(slot)};
	return PENSTOCK_OK;
}

/* queue runs a batch on a GPU: it queues one kernel per layer on the slot's stream and
   returns. */
static int queue(const struct model *m, const struct batch *b, float *const scratch[2], unsigned n) {
	const void *in = b->input;
	int code = PENSTOCK_OK, other = 0, channels = CHANNELS;
	for (int i = 0; i < LAYERS && code == PENSTOCK_OK; i++) {
		struct layer l = layers[i];
		const float *w = m->at.layer[i], *bias = m->at.layer_bias[i];
		float *out = scratch[other];
		const unsigned run = 7; /* pixels of a thread: RUN of fashion.cu */
		void *convolution[] = {&in, &w, &bias, &out, &l.side, &l.from, &l.to};
		code = check("queue convolution", cuda.launch(m->convolution, (unsigned)(l.side * l.side) / run, n, 1,
			(unsigned)l.to, 1, 1, 0, b->stream, convolution, NULL));
		in = out, other = !other;
		if (l.pool && code == PENSTOCK_OK) {
			out = scratch[other];
			void *pool[] = {&in, &out, &l.side, &l.to};
			code = check("queue pool", cuda.launch(m->pool, (unsigned)(l.side * l.side) / 4, n, 1,
				(unsigned)l.to, 1, 1, 0, b->stream, pool, NULL));
			in = out, other = !other;
		}
	}
	if (code != PENSTOCK_OK)
		return code;
	float *means = scratch[other];
	int pixels = layers[LAYERS - 1].side * layers[LAYERS - 1].side;
	void *mean[] = {&in, &means, &pixels, &channels};
	code = check("queue mean", cuda.launch(m->mean, n, 1, 1, CHANNELS, 1, 1, 0, b->stream, mean, NULL));
	if (code != PENSTOCK_OK)
		return code;
	void *classes[] = {&means, (void *)&m->at.classes, (void *)&m->at.bias, (void *)&b->output, &channels};
	return check("queue classes", cuda.launch(m->classes, n, 1, 1, 1, 1, 1, 0, b->stream, classes, NULL));
}

/* convolve computes one layer of one image on the CPU. */
static void convolve(const struct layer *l, const float *restrict w, const float *restrict bias,
	const float *restrict in, float *restrict out) {
	for (int y = 0; y < l->side; y++) {
		for (int x = 0; x < l->side; x++, out += l->to) {
			memcpy(out, bias, (size_t)l->to * sizeof *out);
			for (int dy = 0; dy < 3; dy++) {
				for (int dx = 0; dx < 3; dx++) {
					int row = y + dy - 1, column = x + dx - 1;
					if (row < 0 || row >= l->side || column < 0 || column >= l->side)
						continue;
					const float *pixel = in + (row * l->side + column) * l->from;
					for (int k = 0; k < l->from; k++) {
						const float *weight = w + ((k * 3 + dy) * 3 + dx) * l->to;
						if (pixel[k] == 0) /* true for half of them, after max(0, x) */
							continue;
						for (int c = 0; c < l->to; c++)
							out[c] += pixel[k] * weight[c];
					}
				}
			}
			for (int c = 0; c < l->to; c++)
				out[c] = out[c] > 0 ? out[c] : 0;
		}
	}
}

static void pool(const struct layer *l, const float *in, float *out) {
	int half = l->side / 2, row = l->side * l->to;
	for (int y = 0; y < half; y++)
		for (int x = 0; x < half; x++)
			for (int c = 0; c < l->to; c++) {
				const float *p = in + 2 * y * row + 2 * x * l->to + c;
				*out++ = fmaxf(fmaxf(p[0], p[l->to]), fmaxf(p[row], p[row + l->to]));
			}
}

/* classify computes one image on the CPU. */
static void classify(const struct weights *w, float *const scratch[2], const float *in, float *out) {
	int other = 0;
	for (int i = 0; i < LAYERS; i++) {
		convolve(&layers[i], w->layer[i], w->layer_bias[i], in, scratch[other]);
		in = scratch[other], other = !other;
		if (layers[i].pool) {
			pool(&layers[i], in, scratch[other]);
			in = scratch[other], other = !other;
		}
	}
	const int pixels = layers[LAYERS - 1].side * layers[LAYERS - 1].side;
	memcpy(out, w->bias, CLASSES * sizeof *out);
	for (int k = 0; k < CHANNELS; k++) {
		float mean = 0;
		for (int i = 0; i < pixels; i++)
			mean += in[i * CHANNELS + k];
		mean /= (float)pixels;
		for (int c = 0; c < CLASSES; c++)
			out[c] += mean * w->classes[k * CLASSES + c];
	}
	float most = out[0], sum = 0;
	for (int c = 1; c < CLASSES; c++)
		most = fmaxf(most, out[c]);
	for (int c = 0; c < CLASSES; c++)
		sum += out[c] = expf(out[c] - most);
	for (int c = 0; c < CLASSES; c++)
		out[c] /= sum;
}

static int infer_batch(void *self, int32_t slot, int32_t n) {
	struct model *m = self;
	const struct batch *b = &m->batches[slot][n];
	if (m->gpu)
		return queue(m, b, m->scratch[slot], (unsigned)n);
	const float *in = b->input;
	float *out = b->output;
	for (int i = 0; i < n; i++)
		classify(&m->at, m->scratch[slot], in + i * SIDE * SIDE, out + i * CLASSES);
	return PENSTOCK_OK;
}

static int deinit(void *self) {
	struct model *m = self;
	int code = PENSTOCK_OK;
	for (int slot = 0; slot < SLOTS; slot++)
		for (int i = 0; i < 2; i++)
			if (!m->gpu)
				free(m->scratch[slot][i]);
			else if (m->scratch[slot][i] != NULL && code == PENSTOCK_OK)
				code = check("free activations", cuda.release((device_pointer)m->scratch[slot][i]));
	if (m->own != 0 && code == PENSTOCK_OK)
		code = check("free parameters", cuda.release(m->own));
	if (m->module != NULL && code == PENSTOCK_OK)
		code = check("unload kernels", cuda.module_unload(m->module));
	free(m->file);
	return code;
}

int main(void) {
	static struct model m;
	penstock_framework f = {
		PENSTOCK_FRAMEWORK,
		.init = init,
		.load_model = load_model,
		.link_model = link_model,
		.configure_batch = configure_batch,
		.infer_batch = infer_batch,
		.deinit = deinit,
	};
	int code = penstock_run(&f, &m);
	if (code != PENSTOCK_OK)
		fprintf(stderr, "fashion: %s\n", penstock_last_error());
	fflush(NULL);
	_exit(code != PENSTOCK_OK); /* calls that touch a lost device may never return */
}
