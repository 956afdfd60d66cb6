// Package control defines the messages between Penstock's processes off the data path.
// Manager and orchestrator exchange Desired and Observed over ZeroMQ. The orchestrator and
// its children exchange Order and Notice over an inherited socket pair. An inference
// function and the manager exchange Attach, Attached and Report over a Unix socket, through
// which the manager also passes the shared memory.
//
// The package does not rely on delivery: Desired and Observed are whole states. They are
// repeated, idempotent, and acknowledged by content.
package control

import (
	"cmp"
	"encoding/json"
	"reflect"
	"slices"
	"time"

	"github.com/penstock/penstock/control/budget"
)

// Version is part of every handshake. Peers with different versions refuse each other, with
// an error that names both versions.
const Version = 12

// The devices with a fixed name. DeviceAuto is the first GPU if there is one, else the CPU.
const (
	DeviceCPU  = "cpu"
	DeviceAuto = "auto"
)

// State is the stage of an inference function's process in its life.
//
//	            ┌──────────── shadow sleeps here ───┐
//	starting ─> loaded ──wake──> linking ──> ready ─┴─epoch──> active
//	    │          │                │          │                 │ epoch moved on,
//	    │          │                │          │                 v or drain ordered
//	    └──────────┴───── failed <──┴──────────┴──────────── draining ──> stopped
type State string

// The states, in the order of a successful life.
const (
	Starting State = "starting" // spawned, handshake not complete
	Loaded   State = "loaded"   // framework and model in host memory; uses no CPU
	Linking  State = "linking"  // woken: linking, and warming up all batch sizes or, if PartialWarmUp, the smallest
	Ready    State = "ready"    // warmed up, waits for its epoch
	Active   State = "active"   // holds the ring
	Draining State = "draining" // has released the ring, is ending
	Stopped  State = "stopped"  // ended as ordered
	Failed   State = "failed"   // ended, or could not start, for a reason
)

// Change is the log message for a process that has reached this state.
func (s State) Change() string {
	return cmp.Or(changes[s], "process is in an unknown state")
}

var changes = map[State]string{
	Starting: "process starts",
	Loaded:   "process has loaded its model",
	Linking:  "process links its model",
	Ready:    "process is ready",
	Active:   "process serves",
	Draining: "process drains",
	Stopped:  "process stopped",
	Failed:   "process failed",
}

// Ended reports whether the process has exited.
func (s State) Ended() bool { return s == Stopped || s == Failed }

// Role is what the manager wants a process to do.
type Role string

// Shadow: it sleeps, loaded. Serve: it is woken, links, and takes the ring when the epoch
// names it. Drain: it finishes its batch and ends. Kill: it ends at once.
const (
	Shadow Role = "shadow"
	Serve  Role = "serve"
	Drain  Role = "drain"
	Kill   Role = "kill"
)

// Desired is the manager's whole desired state. It is repeated every RepeatEvery, and sent
// at each change.
type Desired struct {
	Version int `json:"version"`
	// ManagerID is new for each start of a manager. When an orchestrator sees a new one, it
	// ends all processes of the old one.
	ManagerID string `json:"manager_id"`
	// Seq rises by one with each change of the content.
	Seq uint64 `json:"seq"`
	// AttachSocket is the path of the Unix socket where processes get their shared memory.
	AttachSocket string `json:"attach_socket"`
	// Devices are those that models run on, each once: "cpu", "cuda" (the first GPU), "cuda:N", or
	// a GPU's UUID or a prefix of it, as nvidia-smi -L prints it. "auto" is the first GPU if
	// there is one, else the CPU. They stay the same for a manager's life.
	Devices []string `json:"devices"`
	// NoMPS: processes take turns on the GPU, as they do if MPS cannot run. It also stays
	// the same for a manager's life.
	NoMPS bool `json:"no_mps,omitempty"`
	// ProbePriorities asks for GPU.Priorities. It also stays the same for a
	// manager's life.
	ProbePriorities bool             `json:"probe_priorities,omitempty"`
	Processes       []DesiredProcess `json:"processes"`
}

// DesiredProcess is one process that should exist. (IF, Instance, Generation) identifies it
// and is never reused.
type DesiredProcess struct {
	IF         string `json:"if"`
	Instance   int    `json:"instance"`
	Generation uint32 `json:"generation"`
	Role       Role   `json:"role"`
	// Device is one of Desired.Devices.
	Device string `json:"device"`
	Terms
	// SMGroups are the groups of multiprocessors for the process, as ascending indices into
	// GPU.GroupSMs. It is empty if the share is a percentage. Two processes that
	// serve never have the same group.
	SMGroups []int `json:"sm_groups,omitempty"`
	// PartialWarmUp asks for a partial warm-up, as no process serves in its place. On a GPU the
	// process is ready with its smallest batch size, and gets the others while it serves. It
	// is for the role Serve, and its value at the wake counts.
	PartialWarmUp bool `json:"early,omitempty"`
	// SharedWeights: on a GPU, the process may get its model's weights from the node's
	// weight server.
	SharedWeights bool `json:"shared_weights,omitempty"`
	// Started: the manager has seen the process run. If the orchestrator does not have the
	// process, it has ended, and its generation is not started again.
	Started bool `json:"started,omitempty"`
	// Command is the program and its arguments. Empty means this binary's `if`, or
	// Framework's own program if it has one ("pytorch").
	Command   []string `json:"command,omitempty"`
	Framework string   `json:"framework,omitempty"`
	// Worker is the worker that hosts the process; empty: it is not in a worker. All
	// processes of a worker have the worker's Terms, apart from MaxBatch.
	Worker string `json:"worker,omitempty"`
	WorkerLimits
	// Dir is the working folder, absolute. Model is the model's file, which the process must
	// be able to read; empty if there is none.
	Dir   string `json:"dir,omitempty"`
	Model string `json:"model,omitempty"`
	// Data are other files that the model reads.
	Data []string `json:"data,omitempty"`
	// Card is the absolute path of the card's file.
	Card string `json:"card,omitempty"`
	// Ticket is the secret that the process shows when it attaches. The processes of all
	// functions run as one user, so the user proves nothing.
	Ticket string `json:"ticket,omitempty"`
	// Environment is added to the orchestrator's own.
	Environment map[string]string `json:"environment,omitempty"`
}

// Terms say how much of the device a process may use, and at which priority.
type Terms struct {
	// SharePercent is a part of the CPUs reserved for inference functions, or of the GPU. 0:
	// no share, the process may use all of the device.
	SharePercent float64 `json:"share_percent"`
	// GuaranteePercent is the part of the device's time that the process may use at Level, a
	// priority of package budget. Work beyond it runs at the lowest level. Level 0: only the
	// share counts. BalanceNanos is how much device time the process may save up on a CPU.
	GuaranteePercent float64      `json:"guarantee_percent,omitempty"`
	Level            budget.Level `json:"level,omitempty"`
	BalanceNanos     int64        `json:"balance_ns,omitempty"`
	// MaxBatch is the max number of requests in a batch, if batches of other processes wait for
	// it. 0: there is no such limit.
	MaxBatch int `json:"max_batch,omitempty"`
}

// Observed is the orchestrator's whole observed state. It is repeated every RepeatEvery, and
// sent at each change.
type Observed struct {
	Version        int    `json:"version"`
	OrchestratorID string `json:"orchestrator_id"`
	// ManagerID and AckSeq identify the Desired that this state answers.
	ManagerID string `json:"manager_id"`
	AckSeq    uint64 `json:"ack_seq"`
	// CPUs is how many CPUs make 100 %.
	CPUs int `json:"cpus"`
	// Devices are the manager's, in the order of Desired.Devices. After the start of another
	// orchestrator some may be missing.
	Devices   []ObservedDevice  `json:"devices,omitempty"`
	Processes []ObservedProcess `json:"processes"`
}

// Device returns the device of that name; the zero value if it is missing.
func (o *Observed) Device(name string) (d ObservedDevice) {
	if i := slices.IndexFunc(o.Devices, func(d ObservedDevice) bool { return d.Device == name }); i >= 0 {
		d = o.Devices[i]
	}
	return d
}

// ObservedDevice is one of Desired.Devices.
type ObservedDevice struct {
	Device string `json:"device"`
	// Mechanism is how shares are enforced. On CPUs it is "cgroup-v2", "cgroup-v1" or
	// "governor". On a GPU it is "mps", or "time-slicing" if MPS cannot run or is not
	// wanted; shares are then not enforced. It is empty while the GPU is being opened, and
	// after that has failed.
	Mechanism string `json:"mechanism"`
	// GPU is the GPU whose whole is 100 %, nil on a CPU.
	GPU *GPU `json:"gpu,omitempty"`
	// Lost says why the device can run nothing any more: it failed permanently, or it was unplugged. Empty: it works.
	Lost string `json:"lost,omitempty"`
}

// GPU is a GPU as the orchestrator found it.
type GPU struct {
	UUID string `json:"uuid"`
	Name string `json:"name"`
	// Driver is the driver's version; empty if it is not known.
	Driver string `json:"driver,omitempty"`
	SMs    int    `json:"sms"`
	// GroupSMs are the sizes, by index, of the groups into which the multiprocessors are
	// divided. An index names the same physical multiprocessors in every process. It is
	// empty if there are no partitions, because of the driver or because MPS is missing. Why
	// then has the reason, unless MPS is not wanted.
	GroupSMs []int `json:"group_sms,omitempty"`
	// MemoryBytes and UsedBytes are the device's total memory, and the part that all
	// processes use.
	MemoryBytes int64 `json:"memory_bytes"`
	UsedBytes   int64 `json:"used_bytes"`
	// Weights are the weights that processes share, which are in no process's
	// PersistentBytes. It is nil if each process has its own.
	Weights *WeightsHeld `json:"weights,omitempty"`
	// Priorities says whether stream priorities hold between processes. It is nil if that is not
	// known: without MPS, if the manager did not ask, and if the measurement failed.
	Priorities *StreamPriorities `json:"stream_priorities,omitempty"`
	// Why says in one line what is missing for MPS or partitions; empty if nothing is
	// missing.
	Why string `json:"why,omitempty"`
}

// PrioritiesFail reports whether stream priorities were measured and do not hold between processes.
func (d *GPU) PrioritiesFail() bool { return d.Priorities != nil && !d.Priorities.Hold }

// StreamPriorities is a measurement of the priorities of CUDA streams between two clients of an
// MPS server: how long the same short work takes, as medians. `penstock probe` prints it as JSON.
type StreamPriorities struct {
	// Hold: work at the highest priority does not wait for the other client's work at the lowest.
	Hold bool `json:"hold"`
	// AloneMicros is the time without the other client. HighMicros and EqualMicros are the times
	// while the other client keeps the GPU full, at the highest priority and at the other's.
	AloneMicros float64 `json:"alone_us"`
	HighMicros  float64 `json:"high_us"`
	EqualMicros float64 `json:"equal_us"`
}

// ObservedProcess is the observed state of a process. A process that has ended stays listed
// until the manager no longer desires it.
type ObservedProcess struct {
	IF           string  `json:"if"`
	Instance     int     `json:"instance"`
	Generation   uint32  `json:"generation"`
	Device       string  `json:"device"` // DesiredProcess.Device
	PID          int     `json:"pid"`
	State        State   `json:"state"`
	SharePercent float64 `json:"share_percent"`
	// DeviceNanos is the CPU time, on all CPUs, of a process with a guarantee. DemotedNanos
	// is the part of it beyond the guarantee. Both are 0 on a GPU, where Report has them.
	DeviceNanos  int64 `json:"device_ns,omitempty"`
	DemotedNanos int64 `json:"demoted_ns,omitempty"`
	// Reason says why a process failed, or why it waits (backoff).
	Reason string `json:"reason,omitempty"`
	// Superseded: a newer process of the same worker may read more models. The manager replaces
	// the member by one in that process.
	Superseded bool `json:"superseded,omitempty"`
	// PersistentBytes is the device memory after link_model. EphemeralBytes is what
	// configure_batch added for the largest batch.
	PersistentBytes int64 `json:"persistent_bytes,omitempty"`
	EphemeralBytes  int64 `json:"ephemeral_bytes,omitempty"`
	// WarmupMillis is the time from the wake to ready.
	WarmupMillis float64 `json:"warmup_ms,omitempty"`
	// Batches are the batch sizes that the process can run, ascending; empty before it is
	// ready. WarmingUp: it is getting more of them.
	Batches   []int `json:"batches,omitempty"`
	WarmingUp bool  `json:"growing,omitempty"`
	// SMs is the number of multiprocessors that the process can use, as it counted them
	// itself. It is 0 while the process has not used a GPU.
	SMs int `json:"sms,omitempty"`
	// SMGroups are the groups that the process may still run on: those that it was ordered
	// to move to, and those that it has not reported to have left.
	SMGroups []int `json:"sm_groups,omitempty"`
	// DeviceLost: the process ended because its device failed. Under MPS every other client
	// of the server then loses it as well. Blameless: the cause was the end of the MPS
	// server or a guest, not a process.
	DeviceLost bool `json:"device_lost,omitempty"`
	Blameless  bool `json:"blameless,omitempty"`
	// InfeasibleGroups are the latest groups that the process was ordered to and that its model
	// cannot run on. They are too few for one of its kernels, or in different processing
	// clusters. The process then ends, or stays where it was (SMGroups).
	InfeasibleGroups []int `json:"groups_unfit,omitempty"`
	// WrongAnswers is Notice.WrongAnswers.
	WrongAnswers bool `json:"wrong_answers,omitempty"`
}

// RepeatEvery is the interval at which both sides repeat their state. A peer that sends
// nothing for PeerTimeout of this process's running time (package runclock) has failed.
const (
	RepeatEvery = 100 * time.Millisecond
	PeerTimeout = 2 * time.Second
)

// Order is a message of the orchestrator to a child: one JSON object per line, over the
// socket that the child inherits as file descriptor ChildFD. The first one is Start.
type Order struct {
	Do OrderKind `json:"do"`
	// Member is the member of a worker that the order is for; empty: the order is for the
	// process itself. A member's first order is a DoStart, too.
	Member       string  `json:"member,omitempty"`
	Start        *Start  `json:"start,omitempty"`
	SharePercent float64 `json:"share_percent,omitempty"`
	// Governor: libml has to enforce the share itself, as no cgroup can.
	Governor bool `json:"governor,omitempty"`
	// GuaranteePercent, Level and MaxBatch are those of Terms (DoWake, DoShare).
	GuaranteePercent float64      `json:"guarantee_percent,omitempty"`
	Level            budget.Level `json:"level,omitempty"`
	MaxBatch         int          `json:"max_batch,omitempty"`
	// SMGroups are the groups of multiprocessors to run on; empty: all of them.
	SMGroups []int `json:"sm_groups,omitempty"`
	// PartialWarmUp is DesiredProcess.PartialWarmUp (DoWake).
	PartialWarmUp bool `json:"early,omitempty"`
	// Failed says why the model could not be prepared; empty if it was (DoPrepared).
	Failed string `json:"failed,omitempty"`
	// Environment is set in the process before it uses its device (DoWake).
	Environment map[string]string `json:"environment,omitempty"`
}

// OrderKind names an order.
type OrderKind string

// DoStart comes first, and once, for a worker also once per member. DoWake ends a shadow's sleep. DoShare changes the share in
// place. DoDrain: finish the batch, release the ring and end. DoReport asks for one notice
// with the whole state, after another orchestrator has taken over. DoPrepared answers
// Notice.Prepare.
const (
	DoStart OrderKind = "start"
	DoWake  OrderKind = "wake"
	DoShare OrderKind = "share"
	DoDrain OrderKind = "drain"
	// DoReport asks for a notice with the whole state.
	DoReport   OrderKind = "report"
	DoPrepared OrderKind = "prepared"
)

// WorkerLimits are a worker's for the life of its process.
type WorkerLimits struct {
	// Lanes is how many batches the worker may run at once, at least 1, and LanePolicy a policy of
	// package libml/lane, which chooses them.
	Lanes      int    `json:"lanes,omitempty"`
	LanePolicy string `json:"lane_policy,omitempty"`
	// MemoryBytes is how much memory the models of all members may use together. The worker then
	// evicts models and loads them when requests come. 0: all models stay in memory.
	MemoryBytes int64 `json:"memory_bytes,omitempty"`
	// HostMemoryBytes is how much host memory a worker on a GPU may keep pinned for loads; 0: no limit.
	HostMemoryBytes int64 `json:"host_memory_bytes,omitempty"`
}

// Start tells a child its identity and its device.
type Start struct {
	Version int `json:"version"`
	// Worker is the child's name, if it is a worker. It then has no IF: its members have.
	Worker string `json:"worker,omitempty"`
	WorkerLimits
	IF           string `json:"if"`
	Instance     int    `json:"instance"`
	Generation   uint32 `json:"generation"`
	AttachSocket string `json:"attach_socket"`
	// Ticket is DesiredProcess.Ticket. The process shows it in Attach.
	Ticket string `json:"ticket,omitempty"`
	// CPUs is how many CPUs make 100 %.
	CPUs int `json:"cpus"`
	// Device is "cpu", or the UUID of the GPU to run on.
	Device string `json:"device"`
	// GroupSMs is GPU.GroupSMs: the groups that SMGroups refers to.
	GroupSMs []int `json:"group_sms,omitempty"`
	// Prepared is the folder of the node's prepared models, which the process may read. The
	// process asks for its own model with Notice.Prepare. If Prepared is empty, the process
	// prepares its model itself, in its own folder.
	Prepared string `json:"prepared,omitempty"`
	// WeightsSocket is the socket of the weight server. It is empty if the process loads its
	// own weights.
	WeightsSocket string `json:"weights_socket,omitempty"`
}

// WeightsHeld is a message of the weight server to the orchestrator: one JSON object per
// line on its standard output, when it starts to listen and at each change.
type WeightsHeld struct {
	Files int   `json:"files"`
	Bytes int64 `json:"bytes"` // of the device's memory
}

// ChildFD is the child's end of the socket pair.
const ChildFD = 3

// Notice is a message of a child to the orchestrator: one JSON object per line. The first
// one has Version and PID, and is the handshake. In later ones, a field that is left out
// keeps its value; WarmingUp is updated only with Batches.
type Notice struct {
	Version int `json:"version,omitempty"`
	// Member is the member of a worker that sends the notice; empty: the process itself.
	Member string `json:"member,omitempty"`
	// Exited says that a member has ended, like the exit of a process. Its state is Stopped,
	// or Failed with the reason. It is the member's last notice.
	Exited          bool    `json:"exited,omitempty"`
	PID             int     `json:"pid,omitempty"`
	State           State   `json:"state,omitempty"`
	Reason          string  `json:"reason,omitempty"`
	PersistentBytes int64   `json:"persistent_bytes,omitempty"`
	EphemeralBytes  int64   `json:"ephemeral_bytes,omitempty"`
	WarmupMillis    float64 `json:"warmup_ms,omitempty"`
	// Woken says, in the answer to DoReport, that the process has been woken.
	Woken bool `json:"woken,omitempty"`
	// Batches are the batch sizes that the process can run. It reports them when it is ready
	// and, with EphemeralBytes, whenever it has more. WarmingUp: it is still getting the
	// card's other sizes.
	Batches   []int `json:"batches,omitempty"`
	WarmingUp bool  `json:"growing,omitempty"`
	// Prepare asks the orchestrator to prepare the process's model.
	Prepare bool `json:"prepare,omitempty"`
	// SMs is the number of multiprocessors that the process counts. It reports this from
	// linking on, and after each move to other groups.
	SMs int `json:"sms,omitempty"`
	// SMGroups are the groups that the process runs on. It reports them when it is ready and
	// after each move; all others are then free.
	SMGroups []int `json:"sm_groups,omitempty"`
	// DeviceLost says, with Failed, that the process's device failed. Blameless says that
	// the MPS server failed.
	DeviceLost bool `json:"device_lost,omitempty"`
	Blameless  bool `json:"blameless,omitempty"`
	// InfeasibleGroups says that the model cannot run on these groups. It comes with Failed if
	// the process ends because of it, else with the SMGroups that the process stays on.
	InfeasibleGroups []int `json:"groups_unfit,omitempty"`
	// WrongAnswers says, with Failed, that the model answers wrongly on the multiprocessors that the
	// process has.
	WrongAnswers bool `json:"wrong_answers,omitempty"`
}

// Attach is a process's first message on the manager's Unix socket.
type Attach struct {
	Version    int    `json:"version"`
	IF         string `json:"if"`
	Instance   int    `json:"instance"`
	Generation uint32 `json:"generation"`
	PID        int    `json:"pid"`
	// Ticket is Start.Ticket. It proves that the orchestrator started this process with the
	// identity that it claims.
	Ticket string `json:"ticket,omitempty"`
}

// Attached answers Attach. File descriptors come with it in this order: request table, ring,
// replies, tensors, the slabs, then the turns if there are any. All except replies, tensors and
// turns are read-only.
type Attached struct {
	Version int    `json:"version"`
	Refused string `json:"refused,omitempty"` // the reason for a refusal; nothing else is set then
	// Card is the resolved models.Card, as JSON.
	Card json.RawMessage `json:"card,omitempty"`
	Setup
	// Geometry is shm.Geometry, as JSON.
	Geometry json.RawMessage `json:"geometry,omitempty"`
	// TensorBytes is the size of the input and output buffers that the active process and
	// its shadow share. SlabBytes has the size of each slab.
	TensorBytes int64   `json:"tensor_bytes,omitempty"`
	SlabBytes   []int64 `json:"slab_bytes,omitempty"`
	// Turn is set if the processes of a GPU take turns (shm.Turn): the process's entry.
	Turn *int `json:"turn,omitempty"`
	// Busy says that the files of the busy word come last (shm.BusyFile.Files).
	Busy bool `json:"busy,omitempty"`
	// Measurements are those of an earlier process of the same worker with this model; nil if there
	// are none.
	Measurements *Measurements `json:"measurements,omitempty"`
	// Compared is that of an earlier process's Report; empty if there is none.
	Compared string `json:"compared,omitempty"`
}

// Measurements are the results of a warm-up of a member of a worker. The worker's next process need not
// repeat it.
type Measurements struct {
	// Batches has the sizes that were run.
	Batches []BatchTime `json:"batches"`
	// PersistentBytes and EphemeralBytes are those of Notice. WeightsBytes is the part of
	// PersistentBytes that is freed when the model is evicted.
	PersistentBytes int64 `json:"persistent_bytes"`
	EphemeralBytes  int64 `json:"ephemeral_bytes"`
	WeightsBytes    int64 `json:"weights_bytes"`
	// LoadNanos is how long a load of the evicted model takes.
	LoadNanos int64 `json:"load_ns"`
	// ModelFile identifies the contents of the model's file; empty if there is no file.
	ModelFile string `json:"model_file,omitempty"`
}

// BatchTime is the time of a batch of a size. AloneNanos is the time on a GPU without other batches; 0
// if it was not measured.
type BatchTime struct {
	Size       int   `json:"size"`
	Nanos      int64 `json:"ns"`
	AloneNanos int64 `json:"alone_ns,omitempty"`
}

// Setup has a process's settings, apart from its model. They stay the same for its life.
type Setup struct {
	// SLONanos is the latency objective, minus the time reserved for the way to the node and
	// back. A configuration may set another objective than the card.
	SLONanos int64    `json:"slo_ns,omitempty"`
	Batching Batching `json:"batching,omitzero"`
	// Copy: on a GPU, the CPU assembles the fragments of a batch, and one copy moves them to
	// the GPU. It replaces the gather kernel.
	Copy bool `json:"copy,omitempty"`
	// Streams is the max number of batches in flight on a GPU, 1 or 2; 0 lets libml choose.
	Streams int `json:"streams,omitempty"`
	// LargestPicture is the max size in bytes of pictures in other formats and sizes than the card's; 0: there are none.
	LargestPicture int `json:"largest_picture,omitempty"`
	// BusyPollNanos is how long the process polls for work before it sleeps; 0 leaves it to
	// shm.
	BusyPollNanos int64 `json:"busy_poll_ns,omitempty"`
}

// Batching is a batching rule. The zero value is SLAB.
type Batching struct {
	Rule BatchingRule `json:"rule,omitempty"`
	// Size and Delay are for BatchFixed.
	Size  int           `json:"size,omitempty"`
	Delay time.Duration `json:"delay_ns,omitempty"`
}

// BatchingRule names a batching rule of package batching.
type BatchingRule string

// BatchSLAB is the paper's self-learning adaptive batching. The others are for comparison
// (docs/adr/0010-baselines.md). BatchAIMD is Clipper's rule. BatchOne runs one request per
// batch. BatchFixed runs batches of one size, or smaller ones after a delay.
const (
	BatchSLAB  BatchingRule = "slab"
	BatchAIMD  BatchingRule = "aimd"
	BatchOne   BatchingRule = "none"
	BatchFixed BatchingRule = "fixed"
)

// BatchingRules are all rules.
var BatchingRules = []BatchingRule{BatchSLAB, BatchAIMD, BatchOne, BatchFixed}

// Report has the statistics of a process that serves: its batches, times and costs. libml sends it
// to the manager every ReportEvery if something has changed. Changes of the process's state go to the orchestrator instead, in a
// Notice.
type Report struct {
	Generation uint32 `json:"generation"`
	// Limit is SLAB's batch limit, in requests. TailNanos is its tail estimate.
	Limit     float64 `json:"limit"`
	TailNanos int64   `json:"tail_ns"`
	Fit       Fit     `json:"fit"`
	// CPUNanos is the CPU time of all the process's threads since it began to serve. Ran is
	// the number of requests that it has run in that time.
	CPUNanos int64 `json:"cpu_ns"`
	Ran      int64 `json:"ran"`
	// On a GPU, DeviceNanos is the cost of those batches as if each had run alone.
	// DemotedNanos is the part of it beyond the guarantee.
	DeviceNanos  int64 `json:"device_ns,omitempty"`
	DemotedNanos int64 `json:"demoted_ns,omitempty"`
	// Unprotected says why batches beyond the guarantee are not demoted: the GPU or the
	// framework has only one stream priority. It is empty if they are demoted.
	Unprotected Unprotected `json:"unprotected,omitempty"`
	// A batch of n uses FixedNanos + n * EachNanos of the device's time.
	FixedNanos int64 `json:"fixed_ns,omitempty"`
	EachNanos  int64 `json:"each_ns,omitempty"`
	// Handovers counts the hand-overs of the ring to this process and, on a GPU, its moves
	// to other multiprocessors. IdleNanos is how long the ring stood still in the last of
	// them while work waited. It runs from the end of the last batch before to the start of
	// the first batch after; negative if no work waited.
	IdleNanos int64  `json:"idle_ns,omitempty"`
	Handovers uint64 `json:"handovers"`
	// Residency is nil unless the process is a member of a worker whose memory is limited.
	Residency *Residency `json:"residency,omitempty"`
	// Measurements are for the worker's next process; nil outside a worker. A process does not change
	// them.
	Measurements *Measurements `json:"measurements,omitempty"`
	// Compared identifies the model's files, if the answers of all batch sizes were compared with those
	// of pictures alone. The next process with the same files need not compare them again.
	Compared string `json:"compared,omitempty"`
}

// Equal reports whether both reports say the same.
func (r Report) Equal(other Report) bool { return reflect.DeepEqual(r, other) }

// Residency tells whether a member's model is in memory, and what loading it has cost.
type Residency struct {
	State ResidencyState `json:"state"`
	// Bytes is the memory that the model takes while it is not evicted.
	Bytes int64 `json:"bytes"`
	// Loads and Evictions are counted since the process began. Its start is the first load.
	Loads     uint64 `json:"loads"`
	Evictions uint64 `json:"evictions"`
	// LastLoadMillis is how long the last load took.
	LastLoadMillis float64 `json:"last_load_ms"`
	// FixedBytes is the memory of the worker that no eviction frees. All members report the same.
	FixedBytes int64 `json:"fixed_bytes,omitempty"`
	// Thrashing: the worker cannot load as fast as requests for evicted models come.
	// NeededBytes is the MemoryBytes of the worker that would end it. All members report the
	// same.
	Thrashing   bool  `json:"thrashing,omitempty"`
	NeededBytes int64 `json:"needed_bytes,omitempty"`
}

// ResidencyState tells whether a member's model is in memory.
type ResidencyState string

// Evicted: not in memory. Loading: on the way there. Resident: in memory. Running: in memory, and
// a batch runs or waits for its turn.
const (
	Evicted  ResidencyState = "evicted"
	Loading  ResidencyState = "loading"
	Resident ResidencyState = "resident"
	Running  ResidencyState = "active"
)

// ResidencyStates are all states.
var ResidencyStates = []ResidencyState{Evicted, Loading, Resident, Running}

// Unprotected is why a function's work is not demoted.
type Unprotected string

// The values of Unprotected. The manager also uses UnprotectedByDevice for a GPU without
// MPS. UnprotectedByPriorities is for a GPU on which stream priorities do not hold between
// processes.
const (
	UnprotectedByDevice     Unprotected = "device"
	UnprotectedByPriorities Unprotected = "priorities"
	UnprotectedByFramework  Unprotected = "framework"
)

// Fit is SLAB's judgement of the share (paper 3.3.1). It only triggers the manager's own
// check.
type Fit string

// Under: five consecutive misses at the smallest limit. Over: five consecutive batches within
// the objective.
const (
	FitUnknown Fit = ""
	FitUnder   Fit = "under-provisioned"
	fitOver    Fit = "perhaps-over-provisioned"
)

// ReportEvery is the interval of libml's reports.
const ReportEvery = 100 * time.Millisecond
