#include "shim.h"

#include <pthread.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "_cgo_export.h"

// Programs were built with this layout: it must not change.
#define AT(type, field, offset) _Static_assert(offsetof(type, field) == (offset), #type "." #field)
AT(penstock_tensor, name, 0);
AT(penstock_tensor, shape, 8);
AT(penstock_tensor, bytes, 16);
AT(penstock_tensor, rank, 24);
AT(penstock_tensor, type, 28);
AT(penstock_tensor, layout, 32);
_Static_assert(sizeof(penstock_tensor) == 40, "penstock_tensor");
AT(penstock_environment, size, 0);
AT(penstock_environment, abi, 4);
AT(penstock_environment, name, 8);
AT(penstock_environment, version, 16);
AT(penstock_environment, threads, 20);
AT(penstock_environment, model, 24);
AT(penstock_environment, card, 32);
AT(penstock_environment, device, 40);
AT(penstock_environment, input, 48);
AT(penstock_environment, outputs, 56);
AT(penstock_environment, output_count, 64);
AT(penstock_environment, batch_count, 68);
AT(penstock_environment, batches, 72);
AT(penstock_framework, size, 0);
AT(penstock_framework, abi, 4);
AT(penstock_framework, init, 8);
AT(penstock_framework, load_model, 16);
AT(penstock_framework, link_model, 24);
AT(penstock_framework, configure_batch, 32);
AT(penstock_framework, infer_batch, 40);
AT(penstock_framework, deinit, 48);
_Static_assert(sizeof(penstock_framework) == 56, "penstock_framework");

// A text of the maximum length in penstock.h, and its end.
typedef struct text {
	char at[4000 + 1];
} text;

// The texts of a thread, from its first text until it ends. Thread-local memory holds only a
// pointer: a library that a running program opens, as Python does, gets no more than a
// kilobyte of that memory.
typedef struct texts {
	text reason, last;
} texts;

static _Thread_local texts *mine;
static pthread_key_t ended;
static pthread_once_t once = PTHREAD_ONCE_INIT;

// gone frees a thread's texts. Later destructors of the thread may leave new ones.
static void gone(void *texts) {
	mine = NULL;
	free(texts);
}

static void make_key(void) { pthread_key_create(&ended, gone); }

static texts *own(void) {
	static texts fallback; // if there is no memory
	if (mine == NULL) {
		pthread_once(&once, make_key);
		mine = calloc(1, sizeof *mine);
		pthread_setspecific(ended, mine);
	}
	return mine == NULL ? &fallback : mine;
}

static void set(text *t, const char *from) {
	size_t n = from == NULL ? 0 : strnlen(from, sizeof t->at - 1);
	memcpy(t->at, from == NULL ? "" : from, n);
	t->at[n] = 0;
}

uint32_t penstock_abi(void) { return PENSTOCK_ABI; }

void penstock_error(const char *from) { set(&own()->reason, from); }

int penstock_fail(const char *format, ...) {
	va_list arguments;
	va_start(arguments, format);
	vsnprintf(own()->reason.at, sizeof own()->reason.at, format, arguments);
	va_end(arguments);
	return PENSTOCK_FAILED;
}

const char *pcapi_reason(void) { return mine == NULL ? "" : mine->reason.at; }

const char *penstock_last_error(void) { return mine == NULL ? "" : mine->last.at; }

// done keeps the reason of a failed call for penstock_last_error, and frees it. It is NULL if
// the call succeeded.
static int done(int code, char *why) {
	if (mine != NULL || why != NULL)
		set(&own()->last, why);
	free(why);
	return code;
}

int penstock_run(const penstock_framework *framework, void *self) {
	char *why = NULL;
	int code = pcapiRun((void *)framework, self, &why);
	return done(code, why);
}

int penstock_graph(int32_t slot, int32_t n, void *graph) {
	char *why = NULL;
	int code = pcapiGraph(slot, n, (uint64_t)(uintptr_t)graph, &why);
	return done(code, why);
}

int penstock_weights(const char *file, void **address, uint64_t *bytes) {
	char *why = NULL;
	uint64_t at = 0, length = 0;
	int code = pcapiWeights((char *)file, address != NULL && bytes != NULL, &at, &length, &why);
	if (address != NULL)
		*address = (void *)(uintptr_t)at;
	if (bytes != NULL)
		*bytes = length;
	return done(code, why);
}

void penstock_log(int32_t level, const char *from) { pcapiLog(level, (char *)(from == NULL ? "" : from)); }

void *penstock_stream(int32_t slot) { return (void *)(uintptr_t)pcapiStream(slot); }

// begin removes the reason that an earlier callback left on this thread.
static inline void begin(void) {
	if (mine != NULL)
		mine->reason.at[0] = 0;
}

int pcapi_init(pcapi_handle *h) {
	begin();
	return h->table.init(h->self, &h->environment);
}

int pcapi_load(pcapi_handle *h) {
	begin();
	return h->table.load_model(h->self);
}

int pcapi_link(pcapi_handle *h, int64_t *bytes) {
	begin();
	return h->table.link_model(h->self, bytes);
}

int pcapi_configure(pcapi_handle *h, int32_t slot, int32_t n, uint64_t input, const uint64_t *outputs, int64_t *bytes) {
	begin();
	return h->table.configure_batch(h->self, slot, n, (void *)(uintptr_t)input, (void *const *)outputs, bytes);
}

int pcapi_infer(pcapi_handle *h, int32_t slot, int32_t n) {
	begin();
	return h->table.infer_batch(h->self, slot, n);
}

int pcapi_deinit(pcapi_handle *h) {
	begin();
	return h->table.deinit(h->self);
}
