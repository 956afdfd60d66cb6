// Package configs is Penstock's configuration: one YAML file, checked whole
// before anything starts. penstock.schema.json says the same to editors.
//
// A Config is pure data. Read reports the first thing wrong as file:line:column,
// what stands there and what would be right.
package configs

import (
	"net/netip"
	"time"
)

// Config is a node's whole configuration. Read fills what the file leaves out.
type Config struct {
	// Device is where models run: "cpu", "cuda" (the first GPU), "cuda:N", a GPU's
	// UUID or a beginning of it, or DeviceAuto.
	Device string
	// MPS lets the processes on a GPU run at the same time, on parts of it. Where it is
	// false there is no MPS daemon: they take turns on the whole GPU, have no shares,
	// and a fault stays with its process.
	MPS bool
	// Listen is the address that model ports are opened on; loopback unless told
	// otherwise.
	Listen netip.Addr
	// Source is where datagrams come from.
	Source Source
	// HTTP is where metrics, health and status are served.
	HTTP netip.AddrPort
	// RuntimeDir holds the sockets between the processes of this node; empty means
	// $XDG_RUNTIME_DIR/penstock, or penstock-UID in the temporary folder.
	RuntimeDir string
	Log        Log
	// ReservedCPUs are kept for the manager; the rest are 100 % for inference
	// functions. 0 means an eighth, at least one where there are two.
	ReservedCPUs int
	// Models are folders searched for cards, in order, before the built-in ones.
	Models []string
	Slab   Slab
	// Receivers is how many sockets, and threads that receive, each function has: clients
	// are spread over them. A DPDK port says it with its queues.
	Receivers int
	Aggregate Aggregate
	Shares    Shares
	Batching  Batching
	Gather    Gather
	Late      Late
	Weights   Weights
	Functions []Function
	// Transit is the part of each objective, a tenth of it at most, that is left for
	// what a node does not see: the way of the first piece to it and of the result back.
	Transit time.Duration
	// HangTimeout is how long a batch may run before its process is taken for
	// hung and killed; 0 means ten times the objective, at least 2 s.
	HangTimeout time.Duration
	// FaultHold is how long a function is held back the first time that it takes the
	// GPU down again within a minute; 0: never.
	FaultHold time.Duration
	// BusyPoll is how long a thread on the way of a request looks for work before it
	// sleeps; 0 is a few microseconds.
	BusyPoll time.Duration
	// DrainTimeout bounds the drain at SIGTERM.
	DrainTimeout time.Duration

	// File is where the configuration was read from, absolute; empty for the
	// built-in one.
	File string
	// Text is what was read, not to be changed, and Digest tells it from any other: SHA-256,
	// in hex.
	Text   []byte
	Digest string
}

// Log says how much is logged and how.
type Log struct {
	Level  string // debug, info, warn, error
	Format string // auto (console on a terminal, else JSON), console, json
}

// Slab is the packet memory of each inference function, in equal parts of its receivers.
type Slab struct {
	Size          Size
	HugePages     bool // where there are any
	ReceiveBuffer Size
}

// Aggregate bounds how pieces become requests.
type Aggregate struct {
	// Slots is how many requests an inference function may have in flight: a
	// power of two, at least 64.
	Slots int
	// Deadline is from the first piece; 0 means a quarter of the SLO.
	Deadline time.Duration
	// AnsweredFor is how long an answer is kept to be given again.
	AnsweredFor time.Duration
	// MinimumPiece is the smallest piece, but the last, that is accepted; it
	// bounds the descriptors a request needs.
	MinimumPiece Size
}

// Shares is how the node's CPUs (or GPU) are shared out (paper 3.2).
type Shares struct {
	Change Change
	// SMGrain is how many multiprocessors of a GPU go into one group, where shares
	// change by partition; 0 leaves it to the driver (8 on Hopper).
	SMGrain          int
	Interval         time.Duration // how often Algorithm 1 runs
	HoldDown         time.Duration
	ThresholdPercent float64
	MinimumPercent   float64
	// DefaultPercent is the demand of a model whose knee is not known.
	DefaultPercent float64
	SpreadSlack    bool
	// Steps are the shares that may be given, in percent, ascending; empty: any. A GPU's
	// libraries may answer wrongly at other percentages of MPS (docs/adr/0007).
	Steps []float64
	// Tune switches Algorithm 1 off when false: shares stay as configured.
	Tune bool
}

// Change is how a new share comes in.
type Change string

// ChangeShadow is the paper's swap to a hot-standby process. ChangePartition moves
// the running process to other multiprocessors of a GPU; ChangeInPlace writes the
// CPU quota of the running one. ChangeRestart stops the process and starts
// another, what there was before shadows, kept to compare with (Fig. 16).
// ChangeAuto is partition on a GPU whose multiprocessors can be handed out, else
// shadow. ChangeNone gives no shares: each process may use the whole device, which
// under MPS is MPS's default.
const (
	ChangeAuto      Change = "auto"
	ChangeShadow    Change = "shadow"
	ChangePartition Change = "partition"
	ChangeInPlace   Change = "in-place"
	ChangeRestart   Change = "restart"
	ChangeNone      Change = "none"
)

// The devices that have a name of their own. DeviceAuto is the first GPU where
// there is one, else the CPU.
const (
	DeviceCPU  = "cpu"
	DeviceAuto = "auto"
)

// Weights says where a model's weights lie on a GPU.
type Weights string

// WeightsShared: once a GPU, for all batch sizes, instances and shadows of the model, in
// memory of a process of their own, where the model's framework can take them from there.
// WeightsPrivate: each process has its own.
const (
	WeightsShared  Weights = "shared"
	WeightsPrivate Weights = "private"
)

// Function is one inference function: a model behind a UDP port.
type Function struct {
	Name string
	// Model is a card's name, or a card file (relative to the configuration); the
	// function's name where left out.
	Model string
	Port  uint16 // 0: any free one; /status.json tells which
	// SLO overrides the card's objective.
	SLO       time.Duration
	Instances int
	// SharePercent fixes the first share of each instance; 0 means the demand. There
	// are none with ChangeNone.
	SharePercent float64
	Change       Change   // as shares.change where left out
	Batching     Batching // as the node's where left out, and so are Gather, Late and Weights
	Gather       Gather
	Late         Late
	Weights      Weights
	// Receivers is as the node's where 0.
	Receivers int
	// Streams is how many batches of it may be in flight on a GPU, 1 or 2; 0 leaves
	// it to libml.
	Streams int
	// Environment is added to the processes' own.
	Environment map[string]string
	// Replay feeds the function from a capture in place of the network; Port is then the
	// one that datagrams of the capture were sent to, 0 for all.
	Replay Replay
}

// Replay is a capture file that is played, once, from when the function serves; its
// zero value is none. The answers are counted, and sent to nobody.
type Replay struct {
	File string // pcap or pcapng, relative to the configuration
	// Speed is how many seconds of the capture pass in one of ours; 0 is as fast as the
	// node takes it.
	Speed float64
}

// Size is a number of bytes, written as 512, 64KiB or 8MiB.
type Size int64

// Default is the configuration of a file that says nothing.
func Default() Config {
	return Config{
		Device:    DeviceCPU,
		MPS:       true,
		Listen:    netip.AddrFrom4([4]byte{127, 0, 0, 1}),
		HTTP:      netip.MustParseAddrPort("127.0.0.1:9650"),
		Log:       Log{Level: "info", Format: "auto"},
		Slab:      Slab{Size: 64 << 20, HugePages: true, ReceiveBuffer: 8 << 20},
		Receivers: 1,
		Aggregate: Aggregate{
			Slots:        64,
			AnsweredFor:  2 * time.Second,
			MinimumPiece: 512,
		},
		Shares: Shares{
			Change:           ChangeAuto,
			Interval:         time.Second,
			HoldDown:         10 * time.Second, // paper 3.2.1
			ThresholdPercent: 5,                // paper 3.2.2
			MinimumPercent:   5,
			DefaultPercent:   30, // paper 3.2.3
			Tune:             true,
		},
		Batching:     Batching{Rule: SLAB},
		Gather:       GatherKernel,
		Late:         LateAnswer,
		Weights:      WeightsShared,
		Transit:      500 * time.Microsecond,
		FaultHold:    time.Minute,
		DrainTimeout: 10 * time.Second,
	}
}
