/*
 * colour is the smallest model in C: it answers with a picture's mean red, green and
 * blue. It computes on the CPU only, and fails with that reason on a GPU.
 */
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "penstock.h"

enum { CHANNELS = 3, MOST = 64 };

static struct {
	uint64_t pixels;
	struct {
		const uint8_t *input; /* n pictures, [H, W, 3] */
		float *output; /* n times three */
	} batches[MOST + 1]; /* by size */
} model;

static int init(void *self, const penstock_environment *env) {
	(void)self;
	if (strcmp(env->device, "cpu") != 0)
		return penstock_fail("this model runs on the CPU only, and the node's device is %s", env->device);
	const penstock_tensor *in = env->input, *out = env->outputs;
	if (in->type != PENSTOCK_U8 || in->layout != PENSTOCK_HWC || in->shape[2] != CHANNELS)
		return penstock_fail("this model takes pictures of %d channels, u8, hwc; correct the card's input", CHANNELS);
	if (env->output_count != 1 || out->bytes != CHANNELS * sizeof(float))
		return penstock_fail("want a card with one output, of shape [%d]", CHANNELS);
	if (env->batches[env->batch_count - 1] > MOST)
		return penstock_fail("this model takes at most %d pictures at once; correct the card's batch sizes", MOST);
	model.pixels = in->bytes / CHANNELS;
	return PENSTOCK_OK;
}

/* There is nothing to load, to link or to free. */
static int load_model(void *self) {
	(void)self;
	return PENSTOCK_OK;
}

static int link_model(void *self, int64_t *persistent_bytes) {
	(void)self, (void)persistent_bytes;
	return PENSTOCK_OK;
}

static int deinit(void *self) {
	(void)self;
	return PENSTOCK_OK;
}

/* On a CPU there is one slot. */
static int configure_batch(void *self, int32_t slot, int32_t n, void *input, void *const *outputs,
	int64_t *ephemeral_bytes) {
	(void)self, (void)slot, (void)ephemeral_bytes;
	model.batches[n].input = input;
	model.batches[n].output = outputs[0];
	return PENSTOCK_OK;
}

static int infer_batch(void *self, int32_t slot, int32_t n) {
	(void)self, (void)slot;
	const uint8_t *picture = model.batches[n].input;
	float *mean = model.batches[n].output;
	for (int32_t i = 0; i < n; i++, mean += CHANNELS) {
		uint64_t sum[CHANNELS] = {0};
		for (uint64_t p = 0; p < model.pixels; p++, picture += CHANNELS)
			for (int c = 0; c < CHANNELS; c++)
				sum[c] += picture[c];
		for (int c = 0; c < CHANNELS; c++)
			mean[c] = (float)sum[c] / (float)model.pixels;
	}
	return PENSTOCK_OK;
}

int main(void) {
	penstock_framework f = {
		PENSTOCK_FRAMEWORK,
		.init = init,
		.load_model = load_model,
		.link_model = link_model,
		.configure_batch = configure_batch,
		.infer_batch = infer_batch,
		.deinit = deinit,
	};
	int code = penstock_run(&f, NULL);
	if (code != PENSTOCK_OK)
		fprintf(stderr, "colour: %s\n", penstock_last_error());
	return code;
}
