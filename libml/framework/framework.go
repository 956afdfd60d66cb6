// Package framework has the callbacks that a machine learning framework implements for libml, and what it gets to know
// of its process.
package framework

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/libml/device"
	"github.com/penstock/penstock/libml/weights"
	"github.com/penstock/penstock/models"
)

// Framework is a machine learning framework behind the paper's six callbacks (GSLICE section 3.1).
// It runs batches. It makes no decisions about packets, batching, shares or processes.
//
// # Order of calls
//
// The callbacks of a process, one Framework for one model, come in this order:
//
//	Init ─> LoadModel ──(a shadow sleeps here)──> LinkModel ─> ConfigureBatch … ─> InferBatch … ─> Deinit
//
// Deinit is the last call. It may follow any other, even one that failed. A process may make
// several Frameworks of its model, one after the other (see Evictable). libml calls
// ConfigureBatch for each (slot, batch size) of the card's ladder, the list of its batch sizes. The
// smallest size is first, except over private buffers (see below). A second call for the same pair
// replaces the buffers of the first.
//
// On a CPU libml warms up a process as follows. It configures over private buffers, the largest
// size first. It runs the largest size, and then each size several times. Then it configures again over the buffers that active and
// shadow share. If a size leaves a value of its outputs unwritten in the warm-up, the process ends.
//
// On a GPU libml configures and runs each size. If no other process serves, it begins with the
// smallest size alone, and configures the others while the process serves. The first run of such a
// size is then a batch of requests.
//
// # Goroutines
//
// No two callbacks run at once, with two exceptions. First, InferBatch of different slots may run
// at once, each on its own goroutine. Second, on a GPU ConfigureBatch may run at the same time as
// InferBatch, on another goroutine. It then configures slots that are not in use, for a move to
// other multiprocessors. Or it configures larger sizes in slots that run smaller ones. It must not
// touch what a batch in flight uses. A framework that allows neither takes a lock. libml locks the
// calling goroutines to their threads. On a GPU it also binds these threads to the device's
// (primary) context.
//
// # Streams
//
// On a GPU, Environment.Stream returns the stream of each slot. InferBatch queues its work there,
// behind the gather that writes the input, and returns without waiting. libml queues the next
// batch's work and the copy of the outputs to the host behind it. A framework that works elsewhere
// waits for the stream before it reads the input, and has written the outputs when it returns. A
// slot's stream changes only between batches. libml then calls ConfigureBatch for every size, so a
// framework asks for the stream in ConfigureBatch.
//
// If the framework is Demotable, a batch beyond the function's guarantee goes to another stream of
// the slot, with the lowest priority. Otherwise all batches use Environment.Stream.
//
// # Buffers
//
// libml owns the input and output buffers. They are 64-byte aligned (models.TensorAlignment) in
// shared memory, and at least 8-byte aligned otherwise. On a GPU they are in device memory
// (device.Buffer). Address and length stay the same until ConfigureBatch has replaced the buffers or
// Deinit has returned. Until then a framework may pass the addresses to C. On a CPU it pins them, because
// they may be Go memory. Another process, or another slot in use, may own the contents. So only
// InferBatch reads the input and writes the outputs.
//
// # Errors
//
// If a callback before InferBatch fails, the process ends. The error's text is the one line that
// the operator sees. There is one exception: ConfigureBatch of a larger size runs out of memory in
// a process that serves, and the error wraps cuda.ErrOutOfMemory. The process then continues with
// the sizes that it has.
//
// A failed InferBatch costs its own batch; libml does not read its outputs. An ImagesError costs the images that
// it lists. An error that wraps
// cuda.ErrTooFewSMs means that a kernel of the model does not fit on the process's multiprocessors:
// the manager gives it more. An error of LinkModel or ConfigureBatch that wraps
// device.ErrWrongAnswers means that the framework has compared the model's answers, and they are
// wrong: the manager tries another share. An error that wraps device.ErrLost means that a GPU is lost.
// libml answers the batch as failed, and the process ends at once, without Deinit.
type Framework interface {
	// Init starts the framework itself: libraries, threads, environment. env describes its
	// surroundings.
	Init(env Environment) error

	// LoadModel loads the model into host memory and checks it against the card. A shadow does no
	// more before it is woken. Neither LoadModel nor Init touches a device. They may load a GPU's
	// libraries but must not create a context: the first touch fixes the share of a GPU, and a
	// shadow survives a fault of the GPU only if it has not touched it. Once returned, they use no
	// CPU. LoadModel returns ErrNoHostStage if the framework cannot load without linking; LinkModel
	// then does both.
	LoadModel() error

	// LinkModel puts or attaches the model on the device. It returns the device bytes (on a CPU,
	// host bytes) that it holds there until Deinit: weights and their fixed overhead, without the
	// activations of batches. It prepares what the smallest batch needs, because on a GPU clients
	// may be waiting for it. Work for larger batches can wait for their ConfigureBatch; its
	// bytes count here if they are known.
	LinkModel() (persistentBytes int64, err error)

	// ConfigureBatch prepares a batch of n images in slot: graphs, bindings, warm caches, and the
	// parts of the model for this size that LinkModel left out. inputs holds one buffer for each of
	// Card.InputTensors, and outputs one for each of Card.Outputs, in the card's order: n images, Tensor.Bytes() each, of shape [n,
	// Shape...]. Batch sizes of one slot share memory: inputs and outputs of a smaller n are
	// prefixes of those of a larger.
	//
	// ephemeralBytes is the memory that this batch needs while it runs, in addition to the
	// persistent bytes and libml's own buffers. It is 0 if unknown, or if it is not known before a
	// batch of that size has run.
	ConfigureBatch(slot, n int, inputs, outputs []device.Buffer) (ephemeralBytes int64, err error)

	// InferBatch runs a batch of a configured size in slot. On a CPU the input buffer is complete
	// at the call and is not written until the return. When InferBatch returns nil, all output
	// buffers are written. On a GPU both hold when the slot's stream gets there. Except for the
	// first batch of a size, InferBatch allocates nothing on the Go heap.
	InferBatch(slot, n int) error

	// Deinit frees everything. libml calls it once, with no InferBatch in flight. It must cope with
	// any earlier failure.
	Deinit() error
}

// Demotable is implemented by a Framework that requests the stream of each batch.
type Demotable interface {
	// Demotable reports whether InferBatch queues a configured batch of n images in slot on
	// Environment.BatchStream.
	Demotable(slot, n int) bool
}

// Evictable is implemented by a Framework that can take its weights out of the device's memory and
// bring them back, and keep everything else: sessions, graphs and configured batches. A worker with
// limited memory evicts models. Any other Framework leaves by Deinit, and the model returns in a
// new Framework.
//
// libml calls Evict and Load from the thread that calls InferBatch, with no batch in flight.
type Evictable interface {
	// EvictableBytes returns the memory that Evict frees, a part of the persistent bytes. It is
	// constant after LinkModel; 0 if the model can only leave by Deinit.
	EvictableBytes() int64
	// Evict frees the memory of the weights. After an error libml calls Deinit.
	Evict() error
	// Load brings the weights back after Evict. When it returns nil, batches may be queued. After
	// an error libml calls Deinit, and makes a new Framework for the next attempt.
	Load() error
}

// Sizable is implemented by a Framework whose models take inputs of several sizes (models.Card.Sizes), on a CPU.
type Sizable interface {
	// Sized returns the linked model with the card of another size. It sets the shapes of that card's outputs. took is how long a batch of
	// the smallest size takes. libml calls only ConfigureBatch and InferBatch of it, until Deinit of this Framework.
	Sized(card *models.Card) (sized Framework, took time.Duration, err error)
}

// Resident is implemented by a Framework that keeps more on its node than batches: weights, scratch memory and
// prepared models.
type Resident interface {
	// UseNode describes what there is. libml calls it once, before Init.
	UseNode(node Node)
}

// Node is what a Resident framework uses of its node and its worker. Fields are zero if there is none.
type Node struct {
	// Lane returns the number of the worker's lane. Batches of all functions of a lane run one after
	// the other, so they may use the same scratch memory. It is nil outside a worker on a GPU. It may
	// be called from LinkModel on.
	Lane func() int
	// Evict reports whether the model will be evicted and loaded again. A Framework that is Evictable
	// then loads its own weights, and does not use Weights. HostMemory limits what it may pin for loads. It
	// must be set with Evict.
	Evict      bool
	HostMemory *weights.HostMemory
	// Prepared is the folder of the node's prepared models, which this process may only read.
	// Prepare has its model prepared there, from LinkModel on. All processes share the models, so a
	// process that runs one must not write them. If Prepared is empty, the process prepares its
	// own.
	Prepared string
	Prepare  func() error
}

// ErrNoHostStage is returned by LoadModel of a framework without a host stage (footnote 8 of the
// paper: some frameworks put a model on the device in the one call that reads it). It is not a
// failure: LinkModel then loads and links.
var ErrNoHostStage = errors.New("framework has no host stage")

// Environment describes a framework's surroundings.
type Environment struct {
	// Card describes the model; read-only.
	Card *models.Card
	// Threads is the maximum number of CPU threads to keep busy, at least 1.
	Threads int
	// Log is the process's logger, with the inference function's name on it.
	Log *slog.Logger
	// Device is where the model runs: DeviceCPU, or a GPU's UUID. On a GPU the process sees only
	// that one: it is CUDA's device 0.
	Device string
	// Stream returns the GPU's stream (CUstream, in the primary context) of a slot. It is nil on a
	// CPU. It may be called from LinkModel on; see Framework on streams.
	Stream func(slot int) uintptr
	// BatchStream returns the stream of the batch that InferBatch is called for. That is Stream, or
	// another one of the slot for a Demotable framework. Only InferBatch calls it. If it is nil,
	// use Stream.
	BatchStream func(slot int) uintptr
	// Weights returns a file's bytes in the GPU's memory, shared by all processes that request the
	// same file. The memory is read-only and valid from LinkModel on, until Deinit has returned. A
	// repeated request returns the same memory. Weights is nil on a CPU, and if weights are
	// private. The error is ErrNoWeights, with the reason, if there are no shared weights: the
	// framework then loads its own, and logs a line about it.
	Weights func(file string) (Weights, error)
}

// Weights is a complete file in a GPU's memory. Kernels can read it; a kernel that writes there
// faults.
type Weights struct {
	Address uintptr // on the device, 2 MiB aligned
	Bytes   int     // the file's
	// CRC32C is the file's checksum (Castagnoli), computed from the bytes sent to the device.
	CRC32C uint32
}

// ErrNoWeights is returned by Environment.Weights if there are no shared weights: no weight server,
// no memory, or an unreadable file.
var ErrNoWeights = errors.New("no shared weights")

// DeviceCPU is the value of Environment.Device on a CPU.
const DeviceCPU = control.DeviceCPU

// ImagesError is an error of InferBatch about some images of a batch. The others have answers.
type ImagesError struct {
	Images []int
	Err    error
}

func (e *ImagesError) Error() string { return e.Err.Error() }

func (e *ImagesError) Unwrap() error { return e.Err }

// CheckBuffers returns an error if the arguments of a ConfigureBatch of n images are not those of the card.
func CheckBuffers(card *models.Card, n int, inputs, outputs []device.Buffer) error {
	ins, outs := card.InputTensors(), card.OutputTensors()
	if len(inputs) != len(ins) || len(outputs) != len(outs) {
		return fmt.Errorf("batch of %d: there are %d inputs and %d outputs, want %d and %d", n, len(inputs), len(outputs), len(ins), len(outs))
	}
	for i := range ins {
		if want := n * ins[i].Bytes(); inputs[i].Len() != want {
			return fmt.Errorf("batch of %d: input %d has %d bytes, want %d", n, i, inputs[i].Len(), want)
		}
	}
	for i := range outs {
		if want := n * outs[i].Bytes(); outputs[i].Len() != want {
			return fmt.Errorf("batch of %d: output %s has %d bytes, want %d", n, outs[i].Name, outputs[i].Len(), want)
		}
	}
	return nil
}

// Build makes the framework that runs a card's model.
type Build func(card *models.Card) (Framework, error)
