package libml

import (
	"errors"

	"github.com/rs/zerolog"

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
// ConfigureBatch is called for each (slot, batch size) of the card's ladder; a
// second call for the same pair replaces the buffers of the first. libml warms a
// process up so: it configures over scratch, runs each size once, and configures
// again over the buffers that active and shadow share.
//
// Goroutines: no two callbacks run at once, but for InferBatch: batches in
// different slots may be in flight together, each from a goroutine of its own.
// A device with streams maps a slot to a stream; a framework that cannot overlap
// batches takes a lock. libml calls from goroutines that it has locked to their
// threads, so a framework may keep thread state (a CUDA context).
//
// Buffers: the input and output buffers are libml's, 64-byte aligned
// (models.TensorAlignment) where they are shared memory, and 8-byte aligned at
// least. They keep address and length until ConfigureBatch has replaced them or
// Deinit has returned. A framework may hand their addresses to C until then (and
// pins them, as they may be Go memory). Another process may own their contents:
// only InferBatch reads the input and writes the outputs.
//
// Errors: a failed callback before InferBatch ends the process, its text is the
// one line that the operator sees. A failed InferBatch costs its own batch; its
// outputs are not read.
type Framework interface {
	// Init brings the framework itself up: libraries, threads, environment. It
	// is told all it will ever be told about its surroundings.
	Init(env Environment) error

	// LoadModel brings the model to host memory and checks it against the card:
	// all that a shadow does before it is woken. It touches no device and, once
	// returned, uses no CPU. It returns ErrNoHostStage where the framework
	// cannot load without linking; LinkModel then does both.
	LoadModel() error

	// LinkModel puts or attaches the model on the device and returns the device
	// bytes that it holds there until Deinit (on the CPU, host bytes): weights
	// and what is kept beside them, no batch's activations.
	LinkModel() (persistentBytes int64, err error)

	// ConfigureBatch prepares a batch of n images in slot: graphs, bindings, warm
	// caches. input holds n images, Card.Input.TensorBytes() each, of shape
	// Card.Input.Shape(n). outputs holds one buffer for each of Card.Outputs, in
	// the card's order: n images, Output.Bytes() each, f32, of shape [n, Shape...]. Batch sizes of one slot share memory: input and outputs of a
	// smaller n are prefixes of those of a larger.
	//
	// ephemeralBytes is the memory that running this batch takes beyond the
	// persistent bytes and libml's own buffers; 0 where it is not known, or not
	// before a batch of that size has run.
	ConfigureBatch(slot, n int, input []byte, outputs [][]byte) (ephemeralBytes int64, err error)

	// InferBatch runs a batch of a configured size in slot. The input buffer is
	// whole when it is called and is not written until it returns; when it returns
	// nil all output buffers are written and readable by the CPU. But for the first
	// batch of a size it allocates nothing on the Go heap.
	InferBatch(slot, n int) error

	// Deinit gives everything back. It is called once, with no InferBatch in
	// flight, and copes with whatever was reached.
	Deinit() error
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
	// Device is where the model runs: DeviceCPU, or a GPU's UUID.
	Device string
}

// DeviceCPU is the Environment.Device of the embedded default.
const DeviceCPU = "cpu"
