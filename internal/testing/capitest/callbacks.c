#include "callbacks.h"

#include <malloc.h>
#include <stdlib.h>

// Another package has the library; it is present when a test is linked.
__attribute__((weak)) void penstock_error(const char *);
__attribute__((weak)) int penstock_run(const penstock_framework *, void *);
__attribute__((weak)) const char *penstock_last_error(void);
__attribute__((weak)) void *penstock_stream(int32_t);
__attribute__((weak)) int penstock_weights(const char *, void **, uint64_t *);
__attribute__((weak)) int penstock_graph(int32_t, int32_t, void *);

enum { INIT, LOAD, LINK, CONFIGURE, INFER, DEINIT };

// answer counts a call and returns what the test has set.
static int answer(capitest_state *s, int callback) {
	s->calls[callback]++;
	if (s->reason[callback][0] != 0)
		penstock_error(s->reason[callback]);
	return s->code[callback];
}

static int init(void *self, const penstock_environment *environment) {
	capitest_state *s = self;
	s->environment = environment;
	return answer(s, INIT);
}

static int load_model(void *self) { return answer(self, LOAD); }

static int link_model(void *self, int64_t *bytes) {
	capitest_state *s = self;
	*bytes = s->bytes[LINK];
	return answer(s, LINK);
}

static int configure_batch(void *self, int32_t slot, int32_t n, void *input, void *const *outputs, int64_t *bytes) {
	capitest_state *s = self;
	s->slot = slot;
	s->n = n;
	s->input = input;
	for (uint32_t i = 0; i < s->environment->output_count && i < CAPITEST_OUTPUTS; i++)
		s->outputs[i] = outputs[i];
	*bytes = s->bytes[CONFIGURE];
	int code = s->graph == 0 ? PENSTOCK_OK : capitest_graph(slot, n, s->graph);
	if (code != PENSTOCK_OK) {
		penstock_error(penstock_last_error());
		return code;
	}
	return answer(s, CONFIGURE);
}

// infer_batch writes each picture's first byte to its first output.
static int infer_batch(void *self, int32_t slot, int32_t n) {
	capitest_state *s = self;
	(void)slot;
	uint64_t picture = s->environment->input->bytes, result = s->environment->outputs->bytes / sizeof(float);
	for (int32_t i = 0; i < n; i++)
		s->outputs[0][i * result] = s->input[i * picture];
	return answer(s, INFER);
}

static int deinit(void *self) { return answer(self, DEINIT); }

penstock_framework *capitest_table(void) {
	penstock_framework *t = malloc(sizeof *t);
	if (t != NULL)
		*t = (penstock_framework){PENSTOCK_FRAMEWORK, init, load_model, link_model, configure_batch, infer_batch, deinit};
	return t;
}

int capitest_run(const penstock_framework *table, void *self) { return penstock_run(table, self); }

const char *capitest_last_error(void) { return penstock_last_error(); }

void *capitest_stream(int32_t slot) { return penstock_stream(slot); }

int capitest_weights(const char *file, void **address, uint64_t *bytes) { return penstock_weights(file, address, bytes); }

int capitest_graph(int32_t slot, int32_t n, uint64_t graph) { return penstock_graph(slot, n, (void *)(uintptr_t)graph); }

uint64_t capitest_heap(void) { return mallinfo2().uordblks; }
