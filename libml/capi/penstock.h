/*
 * penstock.h: register a model from C, or from any language that calls C.
 *
 * A model is a program that links libpenstock.so, fills in the six callbacks of
 * penstock_framework, and calls penstock_run. The node starts it with the command of its
 * card (`command:`). The library does all the rest. It takes pictures out of packets,
 * forms batches, holds the share of the device, swaps with its shadow, and answers.
 * docs/libml/c.md is a tutorial.
 *
 *     static int infer_batch(void *self, int32_t slot, int32_t n) { ... }
 *     ...
 *     int main(void) {
 *         penstock_framework f = {PENSTOCK_FRAMEWORK, .init = init, ...};
 *         int code = penstock_run(&f, &model);
 *
 *         if (code != PENSTOCK_OK)
 *             fprintf(stderr, "model: %s\n", penstock_last_error());
 *         fflush(NULL);
 *         _exit(code != PENSTOCK_OK);
 *     }
 *
 * THE ORDER OF CALLS in the life of a process, which runs one model:
 *
 *     init -> load_model --(a shadow sleeps here)--> link_model
 *          -> configure_batch ... -> infer_batch ... -> deinit
 *
 * deinit is the last call. It may follow any other, even one that failed. The library
 * leaves it out if the device is lost, or if the process ends while a callback runs.
 *
 * The library calls configure_batch for each (slot, batch size) of the card's ladder, in
 * an unspecified order. A second call for the same pair replaces the buffers of the first.
 *
 * On a CPU the process warms up over private memory: it runs every size. It then
 * configures each size again, over the buffers that the active process and its shadow
 * share. On a GPU it configures and runs each size. If no other process serves, it
 * begins with the smallest size alone and configures the others while it serves. The
 * first run of such a size is a batch of requests.
 *
 * THREADS. No two callbacks run at once, with two exceptions. infer_batch of different
 * slots may run at once, each on another thread. On a GPU, configure_batch may run at the
 * same time as infer_batch, on another thread. It then configures slots that are not in
 * use, for a move to other multiprocessors, or larger sizes in slots that run smaller
 * ones. It must not touch what a batch in flight uses. A program that allows neither
 * takes a lock.
 *
 * Callbacks run on the thread that called penstock_run and on threads of the library. On
 * a GPU the device's primary context is current on each of them, from link_model on.
 * Callbacks must not leave by longjmp, by a C++ exception or by pthread_exit.
 *
 * STREAMS, on a GPU. penstock_stream(slot) is the CUstream of a slot, in the device's
 * primary context. infer_batch queues its work there, behind the gather that writes the
 * input, and returns without waiting. The library queues the copy of the outputs to the
 * host, and the next batch, behind it. A framework that works on another stream waits
 * for the slot's before it reads the input, and returns when the outputs are written. A
 * slot's stream changes only between batches. The library then calls configure_batch for
 * every size: request the stream there.
 *
 * THE DEVICE. init and load_model touch none: they may load CUDA's libraries, but must
 * not create a context. The first touch fixes a process's share of a GPU, and a shadow
 * survives a fault of the GPU only if it has not touched it. The environment variables
 * with the share are set between load_model and link_model. Slots 0 and 1 may be in
 * flight together. Slots 2 and 3 replace them while the process moves to other
 * multiprocessors.
 *
 * ERRORS. Every call and callback returns one of enum penstock_code. A callback that
 * fails leaves its reason with penstock_error, or returns the result of penstock_fail,
 * on the thread that it runs on. A failure before infer_batch ends the process with that
 * one line, and the node starts another process, with increasing pauses. There is one
 * exception: in a process that serves, a configure_batch of a larger size that returns
 * PENSTOCK_OUT_OF_MEMORY costs only that size.
 *
 * A failed infer_batch costs its own batch: its requests are answered as failed and its
 * outputs are not read. PENSTOCK_DEVICE_LOST means that the GPU has failed permanently.
 * The batch is answered as failed, and penstock_run returns at once, without deinit. The
 * program must then call _exit, because calls that touch the device may never return.
 *
 * SIGNALS. The library contains a Go runtime. While penstock_run runs, SIGTERM and SIGINT
 * drain the process: it answers the requests that it has taken, and penstock_run returns
 * PENSTOCK_OK. Before and after, the program handles them. A crash in a callback ends the
 * process, with the runtime's trace on stderr, and the shadow takes over. A program that
 * installs a signal handler uses SA_ONSTACK, because it may run on any thread. The
 * runtime handles SIGURG itself. A child of fork() may only exec.
 *
 * GROWTH. Structs grow at their end, and `size` is their length. PENSTOCK_ABI changes
 * when a program that was built with another header can no longer run.
 */
#ifndef PENSTOCK_H
#define PENSTOCK_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* PENSTOCK_ABI is the version of this interface. */
#define PENSTOCK_ABI 1

/* penstock_code is the result of calls and callbacks. Any other number is an error. */
enum penstock_code {
	PENSTOCK_OK = 0,
	/* Something failed; the text has the reason. */
	PENSTOCK_FAILED = 1,
	/* From load_model, not a failure: this framework can load a model only on the
	   device. link_model then does both. */
	PENSTOCK_NO_HOST_STAGE = 2,
	/* The device has no memory left (CUDA_ERROR_OUT_OF_MEMORY). */
	PENSTOCK_OUT_OF_MEMORY = 3,
	/* The device has failed permanently: every call of CUDA fails from now on. */
	PENSTOCK_DEVICE_LOST = 4,
	/* From penstock_weights, not a failure: the node does not share this file. */
	PENSTOCK_NOT_SHARED = 5,
	/* From link_model and configure_batch: the program has compared the model's answers on
	   this GPU, and they are wrong. The node tries another share. */
	PENSTOCK_WRONG_ANSWERS = 6,
};

/* penstock_type is the type of a tensor's elements. */
enum penstock_type {
	PENSTOCK_U8 = 1,
	PENSTOCK_F16 = 2, /* IEEE 754 binary16 */
	PENSTOCK_F32 = 3,
	PENSTOCK_BOOL = 4, /* a byte, 0 or 1 */
	PENSTOCK_I8 = 5,
	PENSTOCK_I16 = 6,
	PENSTOCK_I32 = 7,
	PENSTOCK_I64 = 8,
	PENSTOCK_U16 = 9,
	PENSTOCK_U32 = 10,
	PENSTOCK_U64 = 11,
	PENSTOCK_BF16 = 12, /* the upper half of an f32 */
	PENSTOCK_F64 = 13,
};

/* penstock_layout is the order of a picture's axes. */
enum penstock_layout {
	PENSTOCK_NO_LAYOUT = 0, /* of outputs */
	PENSTOCK_HWC = 1,
	PENSTOCK_CHW = 2,
};

/* penstock_level is the level of a line in the log. */
enum penstock_level {
	PENSTOCK_DEBUG = 0,
	PENSTOCK_INFO = 1,
	PENSTOCK_WARN = 2,
	PENSTOCK_ERROR = 3,
};

/* penstock_tensor is one tensor of the card. It does not grow. */
typedef struct penstock_tensor {
	const char *name; /* from the card; "" if it has none */
	const int64_t *shape; /* of one image, without the batch axis, which is the first */
	uint64_t bytes; /* of one image */
	uint32_t rank; /* of shape */
	uint32_t type; /* enum penstock_type */
	uint32_t layout; /* enum penstock_layout */
	uint32_t offset; /* of an input: its distance from configure_batch's `input` */
} penstock_tensor;

/* penstock_environment describes a program's surroundings. The library owns it and all
   that it points to. They do not change, and live as long as the process. */
typedef struct penstock_environment {
	uint32_t size; /* of this struct in the library, in bytes */
	uint32_t abi; /* PENSTOCK_ABI of the library */

	const char *name; /* the card's name of the model */
	uint32_t version; /* the card's */
	int32_t threads; /* max number of CPU threads to keep busy, at least 1 */

	/* The card's `model`, an absolute path; NULL if the card has none. */
	const char *model;

	/* The card as JSON, with the keys of its file (docs/models.md) and all defaults;
	   `slo` is in seconds. */
	const char *card;

	/* Where the model runs: "cpu", or a GPU's UUID. On a GPU the process sees only
	   that one: it is CUDA's device 0. */
	const char *device;

	/* The inputs (input_count) and the outputs, in the card's order. */
	const penstock_tensor *input;
	const penstock_tensor *outputs;
	uint32_t output_count;

	/* The ladder: all sizes that configure_batch is called with, ascending. The first
	   is 1, unless the model's batch is fixed. The last is the largest batch. */
	uint32_t batch_count;
	const int32_t *batches;

	uint32_t input_count; /* 1, or the length of the card's `inputs` */
} penstock_environment;

/* penstock_framework is the table of callbacks. None of them may be NULL. `self` is the
   argument of penstock_run. Each returns an enum penstock_code. */
typedef struct penstock_framework {
	uint32_t size; /* sizeof(penstock_framework) */
	uint32_t abi; /* PENSTOCK_ABI */

	/* init starts the framework and checks that the model fits the card: only the
	   program knows what the model can do. It touches no device. */
	int (*init)(void *self, const penstock_environment *environment);

	/* load_model loads the model into host memory. A shadow does no more before it is
	   woken. It touches no device, and nothing uses the CPU once it has returned. It
	   returns PENSTOCK_NO_HOST_STAGE if the framework cannot do that. */
	int (*load_model)(void *self);

	/* link_model puts the model on the device. It sets *persistent_bytes, which is 0 at
	   the call, to the bytes of device memory (on a CPU: of host memory) that it holds
	   until deinit: weights and their fixed overhead, without activations. */
	int (*link_model)(void *self, int64_t *persistent_bytes);

	/* configure_batch prepares batches of n images in a slot.

	   input holds n images of environment->input, dense, in its type and layout.
	   outputs[i] has room for n images of environment->outputs[i]. Buffers that active
	   and shadow share are 64-byte aligned, others at least 8-byte aligned. On a GPU
	   they are device addresses. The library owns them. They are valid until
	   configure_batch has been called again for this slot and size, or deinit has
	   returned. The array `outputs` itself is valid until this call returns.

	   The buffers of a smaller batch are the beginning of those of a larger one in the
	   same slot. Another process may own the contents: only infer_batch reads the input
	   and writes the outputs.

	   *ephemeral_bytes, which is 0 at the call, is the memory that such a batch needs
	   while it runs, beyond persistent bytes and buffers; 0 if unknown. */
	int (*configure_batch)(void *self, int32_t slot, int32_t n, void *input, void *const *outputs,
		int64_t *ephemeral_bytes);

	/* infer_batch runs a batch of a configured size. On a CPU the input is complete at
	   the call, and every value of all outputs is written when it returns PENSTOCK_OK.
	   On a GPU it queues the batch and returns; both hold when the slot's stream gets
	   there. */
	int (*infer_batch)(void *self, int32_t slot, int32_t n);

	/* deinit frees everything. Nothing is in flight. It must cope with any earlier
	   failure. */
	int (*deinit)(void *self);
} penstock_framework;

/* PENSTOCK_FRAMEWORK initializes the first two fields of a penstock_framework:
   penstock_framework f = {PENSTOCK_FRAMEWORK, .init = init, ...}; */
#define PENSTOCK_FRAMEWORK (uint32_t)sizeof(penstock_framework), PENSTOCK_ABI

/* penstock_abi returns PENSTOCK_ABI of the loaded library. It may differ from that of the
   header that the program was built with. */
uint32_t penstock_abi(void);

/* penstock_run runs the process of an inference function. It connects to the node that
   started it, gets its memory, and runs batches with the callbacks until it is drained.
   It copies the table, and passes self to the callbacks without reading it.

   It returns PENSTOCK_OK after a drain, and PENSTOCK_DEVICE_LOST if the GPU failed. It
   returns PENSTOCK_FAILED for an invalid table, a program that no node started, a
   callback that failed, or a node that has exited. penstock_last_error has the line,
   which the caller prints. It can be called once in a process, on any thread. */
int penstock_run(const penstock_framework *framework, void *self);

/* penstock_last_error returns why the last call on this thread did not return PENSTOCK_OK.
   It is one line, which the library owns, valid until the next call on this thread; "" if
   no call failed. */
const char *penstock_last_error(void);

/* penstock_error sets the reason of the callback that is about to return an error on this
   thread. The text is copied, and cut after 4,000 bytes; NULL removes the reason. It may
   be called on any thread and at any time, but has an effect only in callbacks. */
void penstock_error(const char *text);

/* penstock_fail is penstock_error with a printf format. It returns PENSTOCK_FAILED:

   return penstock_fail("open %s: %s", path, strerror(errno)); */
#if defined(__GNUC__)
__attribute__((format(printf, 1, 2)))
#endif
int penstock_fail(const char *format, ...);

/* penstock_log writes a line to the process's log. The node adds the function's name.
   level is an enum penstock_level. It may be called on any thread and at any time. It
   costs some microseconds, so do not call it in every infer_batch. */
void penstock_log(int32_t level, const char *text);

/* penstock_stream returns the CUstream of a slot, 0 to 3. It returns NULL on a CPU, before
   link_model, and for any other number. Any thread may call it. Request it in
   configure_batch. */
void *penstock_stream(int32_t slot);

/* penstock_graph hands the batches of n images in a slot over to the library as a CUDA
   graph (CUgraph, cudaGraph_t), for programs in which every call takes time. It is called
   in configure_batch, on its thread, for that slot and size. The graph was captured over
   the buffers of that call, on any stream of the device's primary context. The library
   copies it; the caller keeps its own.

   The library runs the copy's kernels on the slot's multiprocessors, and launches the copy
   for each batch. It does not call infer_batch for these batches, until a configure_batch
   of the slot and size hands over no graph. So a process that moves to other
   multiprocessors may hand over the same graph again, if the buffers are the same.

   Memory that the graph's kernels and copies use, also on the host, must stay until every
   slot and size that the graph was handed over for has another one, or deinit is called.
   Slots 0 and 2 are never in flight together, and neither are 1 and 3; others may be.
   Graphs run at the priority of each batch. Work that infer_batch queues runs at the
   priority of penstock_stream.

   It returns PENSTOCK_FAILED if the process is not on a GPU, outside of that
   configure_batch, and for a graph that cannot be copied or moved (it allocates memory, or
   contains other graphs). It also returns PENSTOCK_OUT_OF_MEMORY and
   PENSTOCK_DEVICE_LOST. */
int penstock_graph(int32_t slot, int32_t n, void *graph);

/* penstock_weights finds a file of weights that the node holds on the GPU once for all
   processes. It sets *address to the device address and *bytes to the length. The memory
   has the file's contents, is mapped read-only, and is valid until deinit has returned. It
   is called in link_model.

   PENSTOCK_NOT_SHARED (on a CPU, or if the node shares no weights) is not a failure: the
   program loads its own. It may also return PENSTOCK_DEVICE_LOST. Both results are 0
   unless it returns PENSTOCK_OK. */
int penstock_weights(const char *file, void **address, uint64_t *bytes);

#ifdef __cplusplus
}
#endif
#endif
