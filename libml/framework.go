package libml

import (
	"errors"

	"github.com/rs/zerolog"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/models"
)

// Framework is a machine learning framework behind the paper's six callbacks
// (GSLICE section 3.1). It runs batches and decides nothing about packets,
// batching, shares or processes.
//
// The order of calls in a process's life, one Framework for one model:
//
//	Init ─> LoadModel ──(a shadow sleeps here)──> LinkModel ─> ConfigureBatch … ─> InferBatch … ─> Deinit
//
// Deinit may follow any of them, also one that failed, and is the last.
// ConfigureBatch is called for each (slot, batch size) of the card's ladder, the
// smallest first; a second call for the same pair replaces the buffers of the first. On
// a CPU libml warms a process up so: it configures over scratch, the largest first, runs
// each size twice, and configures again over the buffers that active and shadow share. On a GPU it
// configures and runs each size; or, where nobody serves, the smallest alone, and
// configures the others when the process serves with that one: then the first run of a
// size is a batch of requests. On a CPU a size that leaves a value of its outputs
// unwritten when it is warmed up ends the process.
//
// Goroutines: no two callbacks run at once, with these exceptions. InferBatch of
// different slots may run at once, each from a goroutine of its own. And on a GPU
// ConfigureBatch runs beside InferBatch, from another goroutine: of slots that are not
// in use while the multiprocessors change hands, and of larger sizes in slots that are
// while these run smaller ones. It leaves alone what a batch in flight uses. A framework
// that cannot do either takes a lock. libml calls from goroutines that it has locked to
// their threads and, on a GPU, bound to the device's (primary) context.
//
// Streams: on a GPU, Environment.Stream names the stream of each slot. InferBatch
// queues its work there, behind the gather that writes the input, and returns
// without waiting; the next batch's work and the way of the outputs back to the
// host are queued behind it. A framework that works elsewhere waits for the stream
// before it reads the input, and has written the outputs when it returns. A slot's
// stream changes only between batches, and ConfigureBatch is called then for every
// size, so a framework asks for the stream in ConfigureBatch.
//
// Priorities: a batch beyond the function's guarantee is queued on another stream of the
// slot, of the lowest priority, if the framework is Demotable. Else all batches are on
// Environment.Stream.
//
// Buffers: the input and output buffers are libml's, 64-byte aligned
// (models.TensorAlignment) where they are shared memory, and 8-byte aligned at
// least. On a GPU they are device addresses that Go must not read. They keep
// address and length until ConfigureBatch has replaced them or Deinit has returned.
// A framework may hand their addresses to C until then (and pins them, as they may
// be Go memory). Another process, or another slot that is in use, may own their
// contents: only InferBatch reads the input and writes the outputs.
//
// Errors: a failed callback before InferBatch ends the process, its text is the
// one line that the operator sees. But where ConfigureBatch of a larger size finds no
// memory, and the error wraps cuda.ErrOutOfMemory, a process that serves goes on with
// the sizes that it has. A failed InferBatch costs its own batch; its outputs are not
// read. Where the multiprocessors that the process was given do not hold a kernel of the
// model's, and the error wraps cuda.ErrTooFewSMs, the manager gives it more of them.
// Where the error is that a GPU failed for good, it wraps device.ErrLost: the
// batch is answered as failed and the process ends at once, without Deinit.
type Framework interface {
	// Init brings the framework itself up: libraries, threads, environment. It
	// is told all it will ever be told about its surroundings.
	Init(env Environment) error

	// LoadModel brings the model to host memory and checks it against the card:
	// all that a shadow does before it is woken. Neither it nor Init touches a
	// device (they may load a GPU's libraries, but make no context: a share of a
	// GPU is fixed by the first touch, and a shadow survives a fault of the GPU
	// only untouched) and, once returned, uses no CPU. It returns ErrNoHostStage
	// where the framework cannot load without linking; LinkModel then does both.
	LoadModel() error

	// LinkModel puts or attaches the model on the device and returns the device
	// bytes that it holds there until Deinit (on the CPU, host bytes): weights
	// and what is kept beside them, no batch's activations. It does what the smallest
	// batch needs, since on a GPU clients may wait for it; what only larger ones need
	// can wait for their ConfigureBatch, and its bytes are counted here as far as can
	// be told.
	LinkModel() (persistentBytes int64, err error)

	// ConfigureBatch prepares a batch of n images in slot: graphs, bindings, warm
	// caches, and of the model what this size needs and LinkModel has not done. input
	// holds n images, Card.Input.TensorBytes() each, of shape Card.Input.Shape(n).
	// outputs holds one buffer for each of Card.Outputs, in the card's order: n images,
	// Output.Bytes() each, f32, of shape [n, Shape...]. Batch sizes of one slot share
	// memory: input and outputs of a smaller n are prefixes of those of a larger.
	//
	// ephemeralBytes is the memory that running this batch takes beyond the
	// persistent bytes and libml's own buffers; 0 where it is not known, or not
	// before a batch of that size has run.
	ConfigureBatch(slot, n int, input []byte, outputs [][]byte) (ephemeralBytes int64, err error)

	// InferBatch runs a batch of a configured size in slot. On a CPU the input
	// buffer is whole when it is called and is not written until it returns; when it
	// returns nil all output buffers are written. On a GPU both hold for when the
	// slot's stream gets there. But for the first batch of a size it allocates
	// nothing on the Go heap.
	InferBatch(slot, n int) error

	// Deinit gives everything back. It is called once, with no InferBatch in
	// flight, and copes with whatever was reached.
	Deinit() error
}

// Demotable is implemented by a Framework that asks for the stream of each batch.
type Demotable interface {
	// Demotable reports whether InferBatch queues a configured batch of n images in slot on
	// Environment.BatchStream.
	Demotable(slot, n int) bool
}

// ErrNoHostStage is returned by LoadModel of a framework that has no host stage
// (footnote 8 of the paper: some frameworks put a model on the device in the one
// call that reads it). It is no failure: LinkModel loads and links.
var ErrNoHostStage = errors.New("framework has no host stage")

// Environment is what a framework learns of its surroundings.
type Environment struct {
	// Card describes the model; read-only.
	Card *models.Card
	// Threads is how many CPU threads the framework may keep busy, at least 1.
	Threads int
	// Log is the process's logger, with the inference function's name on it.
	Log zerolog.Logger
	// Device is where the model runs: DeviceCPU, or a GPU's UUID. On a GPU the
	// process sees that one and no other: it is CUDA's device 0.
	Device string
	// Stream is the GPU's stream (CUstream, in the primary context) of a slot; nil
	// on a CPU. It may be called from LinkModel on; see Framework on streams.
	Stream func(slot int) uintptr
	// BatchStream is the stream of the batch that InferBatch is called for: Stream, or for a
	// Demotable framework another of the slot. Only InferBatch asks. Nil stands for Stream.
	BatchStream func(slot int) uintptr
	// Weights gives a file's bytes in the GPU's memory, which all processes share that
	// ask for the same file: read-only, from LinkModel on, until Deinit has returned. A
	// file that is asked for again is the same memory. It is nil on a CPU, and where
	// weights are private. The error is ErrNoWeights where nobody holds them for any
	// reason (the reason is in it): then the framework loads its own, and says so in a
	// line.
	Weights func(file string) (Weights, error)
	// Prepared is the folder of the node's prepared models, which this process may only
	// read, and Prepare has its model prepared there, from LinkModel on. Models are shared by
	// all processes, so a process that runs one must not write them. If Prepared is empty the
	// process prepares its own.
	Prepared string
	Prepare  func() error
}

// Weights is a file in a GPU's memory, from its first byte on. Kernels can read it; one
// that writes there faults.
type Weights struct {
	Address uintptr // on the device, 2 MiB aligned
	Bytes   int     // the file's
	// CRC32C is the file's (Castagnoli), taken from what went to the device.
	CRC32C uint32
}

// ErrNoWeights is returned by Environment.Weights where no shared weights are to be
// had: no holder, no memory for them, a file that cannot be read.
var ErrNoWeights = errors.New("no shared weights")

// DeviceCPU is the Environment.Device of the embedded default.
const DeviceCPU = control.DeviceCPU
