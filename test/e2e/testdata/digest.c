/*
 * digest is a model that answers as the framework "null" does, with a digest of the
 * picture, and goes wrong as its argument says:
 *
 *     null, size, abi     a table that is not sound
 *     init                init fails, with two lines of reason
 *     stage               load_model has no host stage; all is well
 *     link                link_model says that it has no host stage
 *     every=N             every Nth batch fails
 *     code=N              every Nth batch returns a number that is no code
 *     profile             SIGPROF comes every millisecond of CPU time, to a handler
 *     crash=FILE          a batch dereferences NULL where FILE is there, which is removed
 *     lost=FILE           a batch finds the device lost where FILE is there, which is removed
 */
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include "penstock.h"

enum { MOST = 64 };

static struct {
	const char *role;
	uint64_t bytes; /* of a picture */
	long batches;
	struct {
		const uint8_t *input;
		float *output;
	} sizes[MOST + 1];
} model;

static int is(const char *role) { return strcmp(model.role, role) == 0; }

/* value is what stands behind "role=", NULL if it is another role. */
static const char *value(const char *role) {
	size_t n = strlen(role);
	return strncmp(model.role, role, n) == 0 && model.role[n] == '=' ? model.role + n + 1 : NULL;
}

static int init(void *self, const penstock_environment *env) {
	if (self != &model || env->size != sizeof *env || env->abi != PENSTOCK_ABI)
		return penstock_fail("self %p, size %u, abi %u: not what was handed over", self, env->size, env->abi);
	if (is("init"))
		return penstock_fail("the first line\nand the second, after %d", 7);
	model.bytes = env->input->bytes;
	penstock_log(PENSTOCK_INFO, env->card);
	return PENSTOCK_OK;
}

static int load_model(void *self) {
	(void)self;
	return is("stage") ? PENSTOCK_NO_HOST_STAGE : PENSTOCK_OK;
}

static int link_model(void *self, int64_t *bytes) {
	(void)self;
	*bytes = 4096;
	return is("link") ? PENSTOCK_NO_HOST_STAGE : PENSTOCK_OK;
}

static int configure_batch(void *self, int32_t slot, int32_t n, void *input, void *const *outputs, int64_t *bytes) {
	(void)self, (void)slot, (void)bytes;
	model.sizes[n].input = input;
	model.sizes[n].output = outputs[0];
	return PENSTOCK_OK;
}

static float digest(const uint8_t *picture, uint64_t bytes) {
	uint64_t sum = 0, weight = 1, at = 0;
	for (; at + 8 <= bytes; at += 8, weight += 2) {
		uint64_t word;
		memcpy(&word, picture + at, sizeof word);
		sum += word * weight;
	}
	for (; at < bytes; at++, weight += 2)
		sum += picture[at] * weight;
	return (float)((uint32_t)(sum * 0x9e3779b97f4a7c15ull >> 40) & 0xffffff);
}

static int infer_batch(void *self, int32_t slot, int32_t n) {
	(void)self, (void)slot;
	const char *v;
	model.batches++;
	/* The warm-up is spared: at most six runs of each of four sizes. */
	if ((v = value("every")) != NULL && model.batches > 6 * 4 && model.batches % atol(v) == 0)
		return penstock_fail("batch %ld is one of every %s", model.batches, v);
	if ((v = value("code")) != NULL && model.batches > 6 * 4 && model.batches % atol(v) == 0)
		return 17;
	if ((v = value("crash")) != NULL && unlink(v) == 0)
		*(volatile int *)0 = 1;
	if ((v = value("lost")) != NULL && unlink(v) == 0) {
		penstock_error("the card fell off the bus");
		return PENSTOCK_DEVICE_LOST;
	}
	nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
	for (int32_t i = 0; i < n; i++)
		model.sizes[n].output[i] = digest(model.sizes[n].input + i * model.bytes, model.bytes);
	return PENSTOCK_OK;
}

static volatile sig_atomic_t ticks;

static void tick(int signal) {
	(void)signal;
	ticks++;
}

/* profile is what a profiler does to a program. */
static void profile(void) {
	struct sigaction action = {.sa_handler = tick, .sa_flags = SA_ONSTACK | SA_RESTART};
	sigaction(SIGPROF, &action, NULL);
	struct itimerval every = {{0, 1000}, {0, 1000}};
	setitimer(ITIMER_PROF, &every, NULL);
}

static int deinit(void *self) {
	(void)self;
	return PENSTOCK_OK;
}

int main(int argc, char **argv) {
	model.role = argc > 1 ? argv[1] : "";
	penstock_framework f = {PENSTOCK_FRAMEWORK, init, load_model, link_model, configure_batch, infer_batch, deinit};
	if (is("null"))
		f.infer_batch = NULL;
	if (is("size"))
		f.size -= 8;
	if (is("abi"))
		f.abi++;
	if (is("profile"))
		profile();
	int code = penstock_run(&f, &model);
	if (code != PENSTOCK_OK)
		fprintf(stderr, "digest: %s\n", penstock_last_error());
	return code;
}
