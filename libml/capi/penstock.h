/*
 * penstock.h: registering a model from C, or from whatever calls C.
 *
 * A model is a program that links libpenstock.so, fills in the six callbacks of
 * penstock_framework, and calls penstock_run. The node starts it as its card says
 * (`command:`). The library does all that is not the model: it gets pictures out of
 * packets, forms batches, holds the share of the device, swaps with its shadow, and
 * answers. docs/libml/c.md takes a reader from nothing to a model that answers.
 *
 *     static int infer_batch(void *self, int32_t slot, int32_t n) { ... }
 *     ...
 *     int main(void) {
 *         penstock_framework f = {PENSTOCK_FRAMEWORK, .init = init, ...};
 *         int code = penstock_run(&f, &model);
 *         if (code != PENSTOCK_OK)
 *             fprintf(stderr, "model: %s\n", penstock_last_error());
 *         fflush(NULL);
 *         _exit(code != PENSTOCK_OK);
 *     }
 *
 * THE ORDER OF CALLS, in a process's life, one model a process:
 *
 *     init -> load_model --(a shadow sleeps here)--> link_model
 *          -> configure_batch ... -> infer_batch ... -> deinit
 *
 * deinit may follow any of them, also one that failed, and is the last. It is left out
 * where the device is lost, or where the process ends while a callback is at work.
 *
 * configure_batch is called for each (slot, batch size) of the card's ladder, in no
 * order that may be relied on; a second call for the same pair replaces the buffers of
 * the first. On a CPU the process warms up so: every size over private memory, run
 * once, then again over the buffers that the active process and its shadow share. On a
 * GPU each size is configured and run; or, where nobody serves, the smallest alone, and
 * the others while the process serves with that one: then the first run of a size is a
 * batch of requests.
 *
 * THREADS. No two callbacks run at once, with these exceptions. infer_batch of
 * different slots may run at once, each on a thread of its own. On a GPU,
 * configure_batch runs beside infer_batch, on another thread: for slots that are not in
 * use while the multiprocessors change hands, and for larger sizes in slots that are,
 * while these run smaller ones. It leaves alone what a batch in flight uses. A program
 * that can do neither takes a lock. Callbacks come on the thread that called
 * penstock_run and on threads that the library made; on a GPU the primary context of
 * the device is current on each of them, from link_model on. Callbacks must not leave
 * by longjmp, by a C++ exception or by pthread_exit.
 *
 * STREAMS, on a GPU. penstock_stream(slot) is the CUstream of a slot, in the device's
 * primary context. infer_batch queues its work there, behind the gather that writes the
 * input, and returns without waiting: the way of the outputs back to the host and the
 * next batch are queued behind it. A framework with a stream of its own waits for the
 * slot's before it reads the input, and returns when the outputs are written. A slot's
 * stream changes only between batches, and configure_batch is called then for every
 * size: ask for the stream there.
 *
 * THE DEVICE. init and load_model touch none: they may load CUDA's libraries, but make
 * no context. A share of a GPU is fixed by a process's first touch, and a shadow
 * outlives a fault of the GPU only untouched. The environment variables that carry the
 * share are set between load_model and link_model. Slots 0 and 1 may be in flight
 * together; 2 and 3 stand by for them while the process moves to other multiprocessors.
 *
 * ERRORS. Every call and callback returns one of enum penstock_code. A callback that
 * fails leaves its reason with penstock_error, or returns what penstock_fail returns,
 * on the thread that it was called on. Before infer_batch a failure ends the process
 * with that one line, and the node starts another with growing pauses. But a
 * configure_batch of a larger size that returns PENSTOCK_OUT_OF_MEMORY costs that size
 * alone where the process serves already. A failed infer_batch costs its own batch: its
 * requests are answered as failed and its outputs are not read. PENSTOCK_DEVICE_LOST
 * says that the GPU failed for good: the batch is answered as failed and penstock_run
 * returns at once, without deinit; the program then calls _exit, as nothing that
 * touches the device may ever return.
 *
 * SIGNALS. The library holds a Go runtime. While penstock_run runs, SIGTERM and SIGINT
 * drain: what was taken is answered, then it returns PENSTOCK_OK; before and after,
 * they are the program's own. A crash in a callback ends the process, with the
 * runtime's trace on stderr, and the shadow takes over. A program that installs a
 * signal handler does so with SA_ONSTACK: it may run on any thread. The runtime handles
 * SIGURG itself. A child of fork() may only exec.
 *
 * GROWTH. Structs grow at their end and say in `size` how far they go. PENSTOCK_ABI
 * changes when a program that was built with another header can no longer run.
 */
#ifndef PENSTOCK_H
#define PENSTOCK_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* PENSTOCK_ABI is the version of what this header says. */
#define PENSTOCK_ABI 1

/* penstock_code is what calls and callbacks return. Any other number is an error. */
enum penstock_code {
	PENSTOCK_OK = 0,
	/* Something failed; the text says what. */
	PENSTOCK_FAILED = 1,
	/* From load_model, no failure: this framework cannot load a model without putting
	   it on the device. link_model then does both. */
	PENSTOCK_NO_HOST_STAGE = 2,
	/* The device has no memory left (CUDA_ERROR_OUT_OF_MEMORY). */
	PENSTOCK_OUT_OF_MEMORY = 3,
	/* The device failed for good: every call of CUDA will fail from now on. */
	PENSTOCK_DEVICE_LOST = 4,
	/* From penstock_weights, no failure: nobody shares this file here. */
	PENSTOCK_NOT_SHARED = 5,
};

/* penstock_type is the type of a tensor's elements. */
enum penstock_type {
	PENSTOCK_U8 = 1,
	PENSTOCK_F16 = 2, /* IEEE 754 binary16 */
	PENSTOCK_F32 = 3,
};

/* penstock_layout is the order of a picture's axes. */
enum penstock_layout {
	PENSTOCK_NO_LAYOUT = 0, /* of outputs */
	PENSTOCK_HWC = 1,
	PENSTOCK_CHW = 2,
};

/* penstock_level is that of a line in the log. */
enum penstock_level {
	PENSTOCK_DEBUG = 0,
	PENSTOCK_INFO = 1,
	PENSTOCK_WARN = 2,
	PENSTOCK_ERROR = 3,
};

/* penstock_tensor is one tensor of the card. It does not grow. */
typedef struct penstock_tensor {
	const char *name; /* as the card has it; "" where it has none */
	const int64_t *shape; /* of one image: the batch axis, first, is left out */
	uint64_t bytes; /* of one image */
	uint32_t rank; /* of shape */
	uint32_t type; /* enum penstock_type; outputs are PENSTOCK_F32 */
	uint32_t layout; /* enum penstock_layout */
	uint32_t reserved; /* 0 */
} penstock_tensor;

/* penstock_environment is what a program learns of its surroundings. It and all that
   it points to are the library's, do not change, and live as long as the process. */
typedef struct penstock_environment {
	uint32_t size; /* bytes of this struct, in the library */
	uint32_t abi; /* PENSTOCK_ABI of the library */

	const char *name; /* the card's name of the model */
	uint32_t version; /* the card's */
	int32_t threads; /* how many CPU threads may be kept busy, at least 1 */

	/* The card's `model`, an absolute path; NULL where the card has none. */
	const char *model;

	/* The card as JSON, in the words of the card's own file (docs/models.md), with
	   everything in it that has a default; `slo` is in seconds. */
	const char *card;

	/* Where the model runs: "cpu", or a GPU's UUID. On a GPU the process sees that one
	   and no other: it is CUDA's device 0. */
	const char *device;

	/* The input tensor, and the outputs in the card's order. */
	const penstock_tensor *input;
	const penstock_tensor *outputs;
	uint32_t output_count;

	/* The ladder of batch sizes, ascending; from 1, unless the model's batch is
	   fixed. configure_batch is called with no other, so the last is the largest
	   batch. */
	uint32_t batch_count;
	const int32_t *batches;
} penstock_environment;

/* penstock_framework is the table of callbacks, none of them NULL. `self` is what
   penstock_run was given. Each returns an enum penstock_code. */
typedef struct penstock_framework {
	uint32_t size; /* sizeof(penstock_framework) */
	uint32_t abi; /* PENSTOCK_ABI */

	/* init brings the framework itself up and checks the card: what the model can do
	   is known here and nowhere else. It touches no device. */
	int (*init)(void *self, const penstock_environment *environment);

	/* load_model brings the model to host memory: all that a shadow does before it is
	   woken. It touches no device, and nothing uses the CPU once it has returned.
	   PENSTOCK_NO_HOST_STAGE where the framework cannot. */
	int (*load_model)(void *self);

	/* link_model puts the model on the device, and in *persistent_bytes, which is 0
	   before, the bytes of device memory (on a CPU: of host memory) that it holds
	   there until deinit: weights and what is kept beside them, no activations. */
	int (*link_model)(void *self, int64_t *persistent_bytes);

	/* configure_batch prepares batches of n images in a slot.

	   input holds n images of environment->input, dense, in its type and layout, and
	   outputs[i] takes n images of environment->outputs[i]. They are 64-byte aligned
	   where active and shadow share them and 8-byte aligned at least; on a GPU they
	   are device addresses. They are the library's and good until configure_batch was
	   called again for this slot and size, or deinit has returned. The array `outputs`
	   itself is good until this call returns. The buffers of a smaller batch are the
	   beginning of those of a larger one in the same slot, and the contents may be
	   another process's: only infer_batch reads the input and writes the outputs.

	   *ephemeral_bytes, which is 0 before, is the memory that running such a batch
	   takes beyond persistent bytes and buffers; 0 where it is not known. */
	int (*configure_batch)(void *self, int32_t slot, int32_t n, void *input, void *const *outputs,
		int64_t *ephemeral_bytes);

	/* infer_batch runs a batch of a configured size. On a CPU the input is whole when
	   it is called and every value of all outputs is written when it returns
	   PENSTOCK_OK. On a GPU both hold for when the slot's stream gets there: it queues and returns. */
	int (*infer_batch)(void *self, int32_t slot, int32_t n);

	/* deinit gives everything back. Nothing is in flight; it copes with whatever was
	   reached. */
	int (*deinit)(void *self);
} penstock_framework;

/* PENSTOCK_FRAMEWORK are the first two fields of a penstock_framework, for an
   initializer: penstock_framework f = {PENSTOCK_FRAMEWORK, .init = init, ...}; */
#define PENSTOCK_FRAMEWORK (uint32_t)sizeof(penstock_framework), PENSTOCK_ABI

/* penstock_abi is PENSTOCK_ABI of the library that was loaded, which need not be that
   of the header that the program was built with. */
uint32_t penstock_abi(void);

/* penstock_run is the whole life of an inference function's process: it meets the node
   that started it, gets its memory, and runs batches with the callbacks until it is
   told to drain. The table is copied; self is handed on and never looked at.

   It returns PENSTOCK_OK after a drain; PENSTOCK_DEVICE_LOST where the GPU failed; else
   PENSTOCK_FAILED: a table that is not sound, a program that no node started, a
   callback that failed, a node that is gone. penstock_last_error has the line, which
   the caller prints. It can be called once in a process, on any thread. */
int penstock_run(const penstock_framework *framework, void *self);

/* penstock_last_error is why the last call on this thread returned something else than
   PENSTOCK_OK: one line, the library's, good until the next call on this thread; ""
   where none failed. */
const char *penstock_last_error(void);

/* penstock_error is the reason of the callback that is about to return an error on
   this thread. The text is copied, and cut after 4,000 bytes; NULL takes it back. It
   may be called on any thread and at any time, but counts in callbacks only. */
void penstock_error(const char *text);

/* penstock_fail is penstock_error with a printf format. It returns PENSTOCK_FAILED:
   return penstock_fail("open %s: %s", path, strerror(errno)); */
#if defined(__GNUC__)
__attribute__((format(printf, 1, 2)))
#endif
int penstock_fail(const char *format, ...);

/* penstock_log writes a line to the process's log, which the node passes on with the
   function's name; level is an enum penstock_level. It may be called on any thread and
   at any time; not in infer_batch as a habit, since it costs some microseconds. */
void penstock_log(int32_t level, const char *text);

/* penstock_stream is the CUstream of a slot, 0 to 3; NULL on a CPU, before link_model,
   and for a number that is no slot. Any thread; ask in configure_batch. */
void *penstock_stream(int32_t slot);

/* penstock_graph hands the batches of n images in a slot over to the library as a CUDA
   graph (CUgraph, cudaGraph_t), for programs whose every call takes time. It is called
   in configure_batch, on its thread, for that slot and size. The graph was captured over
   the buffers of that call, on any stream of the device's primary context; it is copied,
   and the caller's. The library has the copy's kernels run on the slot's multiprocessors
   and launches it for each batch, in place of infer_batch, which is not called for them
   until a configure_batch of the slot and size hands over none. So a process that moves
   to other multiprocessors may hand over again what it captured once, as long as the
   buffers are the same. What a graph's kernels and copies need, memory of the host
   included, stays where it is until every slot and size that the graph was handed over
   for has got another, or deinit is called: slots 0 and 2, and 1 and 3, are never in
   flight together, the others may be. Graphs run at the priority of each batch; what
   infer_batch queues runs at the priority of penstock_stream.

   PENSTOCK_FAILED: not on a GPU, not in that configure_batch, or a graph that cannot be
   copied or moved (one that allocates memory, or has other graphs in it).
   PENSTOCK_OUT_OF_MEMORY and PENSTOCK_DEVICE_LOST as everywhere. */
int penstock_graph(int32_t slot, int32_t n, void *graph);

/* penstock_weights finds a file of weights that the node holds on the GPU once for all
   processes: in *address its device address, in *bytes its length, byte for byte the
   file's contents, mapped to be read only and good until deinit has returned. It is
   called in link_model.

   PENSTOCK_NOT_SHARED (on a CPU, or where the node keeps no weights) is no failure:
   the program loads its own. PENSTOCK_DEVICE_LOST as everywhere. Both are 0 unless
   PENSTOCK_OK is returned. */
int penstock_weights(const char *file, void **address, uint64_t *bytes);

#ifdef __cplusplus
}
#endif
#endif
