// Package control is what Penstock's processes say to each other off the data
// path: manager and orchestrator over ZeroMQ (Desired, Observed), orchestrator
// and its children over an inherited socket pair (Order, Notice), and an
// inference function and the manager over a Unix socket that hands out the
// shared memory (Attach, Attached, Report).
//
// Nothing here trusts delivery: Desired and Observed are whole states, repeated
// and idempotent, acknowledged by content.
package control

import (
	"encoding/json"
	"time"

	"github.com/penstock/penstock/control/budget"
)

// Version is spoken in every handshake; peers that differ refuse each other
// with a line that names both.
const Version = 8

// The devices that have a name of their own. DeviceAuto is the first GPU if there is one, else the CPU.
const (
	DeviceCPU  = "cpu"
	DeviceAuto = "auto"
)

// State is where an inference function's process is in its life.
//
//	            ┌──────────── shadow sleeps here ───┐
//	starting ─> loaded ──wake──> linking ──> ready ─┴─epoch──> active
//	    │          │                │          │                 │ epoch moved on,
//	    │          │                │          │                 v or drain ordered
//	    └──────────┴───── failed <──┴──────────┴──────────── draining ──> stopped
type State string

// The states, in the order of a good life.
const (
	Starting State = "starting" // spawned, handshake not done
	Loaded   State = "loaded"   // framework and model in host memory; uses no CPU
	Linking  State = "linking"  // woken: linking and warming up, every batch size or, Early, the smallest
	Ready    State = "ready"    // warmed up, waits for its epoch
	Active   State = "active"   // holds the ring
	Draining State = "draining" // gave the ring up, ends
	Stopped  State = "stopped"  // ended as it was told to
	Failed   State = "failed"   // ended, or could not start, for a reason
)

// Change says for the log that a process has come to this state.
func (s State) Change() string {
	switch s {
	case Starting:
		return "process starts"
	case Loaded:
		return "process has loaded its model"
	case Linking:
		return "process links its model"
	case Ready:
		return "process is ready"
	case Active:
		return "process serves"
	case Draining:
		return "process drains"
	case Stopped:
		return "process stopped"
	case Failed:
		return "process failed"
	}
	return "process is in an unknown state"
}

// Ended reports whether the process is gone.
func (s State) Ended() bool { return s == Stopped || s == Failed }

// Role is what the manager wants of a process.
type Role string

// Shadow sleeps loaded; Serve is woken, links, and takes the ring when the epoch
// names it; Drain finishes its batch and ends; Kill ends at once.
const (
	Shadow Role = "shadow"
	Serve  Role = "serve"
	Drain  Role = "drain"
	Kill   Role = "kill"
)

// Desired is the whole state that the manager wants, repeated every
// RepeatEvery and at each change.
type Desired struct {
	Version int `json:"version"`
	// ManagerID is new each time a manager starts; an orchestrator that sees
	// another one than before ends all processes of the old one.
	ManagerID string `json:"manager_id"`
	// Seq rises by one with each change of the content.
	Seq uint64 `json:"seq"`
	// AttachSocket is the path of the Unix socket where processes get their
	// shared memory.
	AttachSocket string `json:"attach_socket"`
	// Device is where models run: "cpu", "cuda" (the first GPU), "cuda:N", or a
	// GPU's UUID or a beginning of it, as nvidia-smi -L prints it. It is fixed for
	// a manager's life; empty is "cpu". "auto" is the first GPU where there is one,
	// else the CPU.
	Device string `json:"device,omitempty"`
	// NoMPS: processes take turns on the GPU, as they do if MPS cannot run. It is fixed for
	// a manager's life, too.
	NoMPS     bool             `json:"no_mps,omitempty"`
	Processes []DesiredProcess `json:"processes"`
}

// DesiredProcess is one process that should exist. (IF, Instance, Generation)
// is its identity for ever; a generation that ended is not started again.
type DesiredProcess struct {
	IF         string `json:"if"`
	Instance   int    `json:"instance"`
	Generation uint32 `json:"generation"`
	Role       Role   `json:"role"`
	// SharePercent of the CPUs reserved for inference functions (or of the GPU). 0: no
	// share, the process may use all of it.
	SharePercent float64 `json:"share_percent"`
	// GuaranteePercent of the device's time is what the process may use at Level, a priority
	// of package budget; work beyond it runs at the lowest. Level 0: the share alone counts.
	// BalanceNanos is how much of it, in device time, may be saved up on a CPU.
	GuaranteePercent float64      `json:"guarantee_percent,omitempty"`
	Level            budget.Level `json:"level,omitempty"`
	BalanceNanos     int64        `json:"balance_ns,omitempty"`
	// SMGroups are the groups of multiprocessors that the process shall run on,
	// ascending indices into ObservedDevice.GroupSMs; empty where the share is a
	// percentage. No two processes that serve are ever given the same.
	SMGroups []int `json:"sm_groups,omitempty"`
	// Early: nobody serves in its place, so on a GPU it is ready with its smallest
	// batch size and gets the others while it serves. It counts with Serve, and is what
	// it is when the process is woken.
	Early bool `json:"early,omitempty"`
	// SharedWeights: on a GPU the process may ask the node's holder of weights for its
	// model's.
	SharedWeights bool `json:"shared_weights,omitempty"`
	// Started: the manager has seen the process run. If the orchestrator does not have the
	// process, it has ended, and its generation is not started again.
	Started bool `json:"started,omitempty"`
	// Command is the program and its arguments; empty means this binary's `if`, or the
	// program of Framework where that is one of its own ("pytorch").
	Command   []string `json:"command,omitempty"`
	Framework string   `json:"framework,omitempty"`
	// Dir is the working folder, absolute. Model is the model's file, which the process
	// must be able to read; empty if it has none.
	Dir   string `json:"dir,omitempty"`
	Model string `json:"model,omitempty"`
	// Card is the card's file, absolute.
	Card string `json:"card,omitempty"`
	// Ticket is the secret that the process shows when it attaches. The processes of all
	// functions run as one user, so the user proves nothing.
	Ticket string `json:"ticket,omitempty"`
	// Environment is added to the orchestrator's own.
	Environment map[string]string `json:"environment,omitempty"`
}

// Observed is the whole state that the orchestrator sees, repeated every
// RepeatEvery and at each change.
type Observed struct {
	Version        int    `json:"version"`
	OrchestratorID string `json:"orchestrator_id"`
	// ManagerID and AckSeq name the Desired that this state answers.
	ManagerID string `json:"manager_id"`
	AckSeq    uint64 `json:"ack_seq"`
	// Mechanism is how shares are enforced: "cgroup-v2", "cgroup-v1", "governor";
	// on a GPU "mps", or "time-slicing" where MPS cannot run, or is not wanted, and shares
	// are wishes;
	// empty while the GPU that is wanted is being opened.
	Mechanism string `json:"mechanism"`
	// CPUs is how many CPUs make 100 %.
	CPUs int `json:"cpus"`
	// Device is the GPU that 100 % are of, nil on a CPU.
	Device    *ObservedDevice   `json:"device,omitempty"`
	Processes []ObservedProcess `json:"processes"`
}

// ObservedDevice is a GPU as the orchestrator found it.
type ObservedDevice struct {
	UUID string `json:"uuid"`
	Name string `json:"name"`
	// SMs is how many multiprocessors it has.
	SMs int `json:"sms"`
	// GroupSMs are the sizes of the groups that its multiprocessors can be handed
	// out in, by index; an index names the same physical ones in every process.
	// It is empty where the driver, or the want of MPS, allows no partitions; Why
	// then says so, unless MPS is not wanted.
	GroupSMs []int `json:"group_sms,omitempty"`
	// MemoryBytes and UsedBytes are the device's memory, all of it and in use by
	// anybody.
	MemoryBytes int64 `json:"memory_bytes"`
	UsedBytes   int64 `json:"used_bytes"`
	// Weights are those that processes share, which nobody's PersistentBytes count; nil
	// where each has its own.
	Weights *WeightsHeld `json:"weights,omitempty"`
	// Why says what is missing for MPS or partitions, in one line; empty where
	// nothing is.
	Why string `json:"why,omitempty"`
}

// ObservedProcess is one process as it is. Ended ones stay listed until the
// manager no longer desires them.
type ObservedProcess struct {
	IF           string  `json:"if"`
	Instance     int     `json:"instance"`
	Generation   uint32  `json:"generation"`
	PID          int     `json:"pid"`
	State        State   `json:"state"`
	SharePercent float64 `json:"share_percent"`
	// DeviceNanos is how much time of all CPUs a process with a guarantee has used, and
	// DemotedNanos the part of it beyond the guarantee; 0 on a GPU (Report has them).
	DeviceNanos  int64 `json:"device_ns,omitempty"`
	DemotedNanos int64 `json:"demoted_ns,omitempty"`
	// Reason says why a process failed, or waits (backoff).
	Reason string `json:"reason,omitempty"`
	// PersistentBytes is device memory after link_model, EphemeralBytes what
	// configure_batch added for the largest batch.
	PersistentBytes int64 `json:"persistent_bytes,omitempty"`
	EphemeralBytes  int64 `json:"ephemeral_bytes,omitempty"`
	// WarmupMillis is the time from being woken to ready.
	WarmupMillis float64 `json:"warmup_ms,omitempty"`
	// Batches are the sizes that the process runs, ascending; empty before it is
	// ready. While Growing it is getting more.
	Batches []int `json:"batches,omitempty"`
	Growing bool  `json:"growing,omitempty"`
	// SMs is how many multiprocessors the process can use, as it counted them
	// itself; 0 while it has not touched a GPU.
	SMs int `json:"sms,omitempty"`
	// SMGroups are the groups that the process may still be running on: those that
	// it was ordered to move to and those that it has not said it left.
	SMGroups []int `json:"sm_groups,omitempty"`
	// DeviceLost: the process ended because its device failed under it. Under MPS
	// every other client of the server is lost then, too. Blameless: it was not a
	// process that did it, but the MPS server's end.
	DeviceLost bool `json:"device_lost,omitempty"`
	Blameless  bool `json:"blameless,omitempty"`
	// GroupsUnfit are the last groups that the process was ordered to and found that its
	// model cannot run on: they are too few, or lie too far apart, for a kernel of it. It
	// ends for that, or stays where it was (SMGroups).
	GroupsUnfit []int `json:"groups_unfit,omitempty"`
}

// RepeatEvery is how often both sides repeat their state. A peer that says nothing
// for SilentAfter of this process's running time (package runclock) has failed.
const (
	RepeatEvery = 100 * time.Millisecond
	SilentAfter = 2 * time.Second
)

// Order is what the orchestrator tells a child, one JSON object a line, over
// the socket that the child inherits as file descriptor ChildFD. The first is
// Start.
type Order struct {
	Do           OrderKind `json:"do"`
	Start        *Start    `json:"start,omitempty"`
	SharePercent float64   `json:"share_percent,omitempty"`
	// Governor tells libml to hold the share itself, where no cgroup can.
	Governor bool `json:"governor,omitempty"`
	// GuaranteePercent and Level are DesiredProcess's (DoWake, DoShare).
	GuaranteePercent float64      `json:"guarantee_percent,omitempty"`
	Level            budget.Level `json:"level,omitempty"`
	// SMGroups are the groups of multiprocessors to run on; empty: all of them.
	SMGroups []int `json:"sm_groups,omitempty"`
	// Early is DesiredProcess.Early (DoWake).
	Early bool `json:"early,omitempty"`
	// Failed is why the model could not be prepared, empty if it was (DoPrepared).
	Failed string `json:"failed,omitempty"`
	// Environment is set in the process before it touches its device (DoWake).
	Environment map[string]string `json:"environment,omitempty"`
}

// OrderKind names an order.
type OrderKind string

// DoStart is first and once; DoWake ends a shadow's sleep; DoShare changes the
// share in place; DoDrain finishes the batch, gives up the ring and ends. DoReport asks
// for one notice with the whole state, after another orchestrator has taken over.
// DoPrepared answers Notice.Prepare.
const (
	DoStart OrderKind = "start"
	DoWake  OrderKind = "wake"
	DoShare OrderKind = "share"
	DoDrain OrderKind = "drain"
	// DoReport asks for a whole notice.
	DoReport   OrderKind = "report"
	DoPrepared OrderKind = "prepared"
)

// Start tells a child who it is.
type Start struct {
	Version      int    `json:"version"`
	IF           string `json:"if"`
	Instance     int    `json:"instance"`
	Generation   uint32 `json:"generation"`
	AttachSocket string `json:"attach_socket"`
	// Ticket is DesiredProcess.Ticket, to be shown in Attach.
	Ticket string `json:"ticket,omitempty"`
	// CPUs is how many CPUs make 100 %.
	CPUs int `json:"cpus"`
	// Device is "cpu", or the UUID of the GPU to run on.
	Device string `json:"device"`
	// GroupSMs are ObservedDevice.GroupSMs: the split that SMGroups speak of.
	GroupSMs []int `json:"group_sms,omitempty"`
	// Prepared is the folder of the node's prepared models, which the process may read: it
	// asks for its own with Notice.Prepare. If empty, the process prepares its model itself,
	// in a folder of its own.
	Prepared string `json:"prepared,omitempty"`
	// WeightsSocket is where the holder of shared weights is asked; empty where the
	// process loads its own.
	WeightsSocket string `json:"weights_socket,omitempty"`
}

// WeightsHeld is what the holder of shared weights tells the orchestrator, one JSON
// object a line over its standard output, when it listens and at each change.
type WeightsHeld struct {
	Files int   `json:"files"`
	Bytes int64 `json:"bytes"` // of the device's memory
}

// ChildFD is the child's end of the socket pair.
const ChildFD = 3

// Notice is what a child tells the orchestrator, one JSON object a line. The
// first carries Version and PID and is the handshake. What a later one leaves out
// stands as it was said before, Growing with Batches.
type Notice struct {
	Version         int     `json:"version,omitempty"`
	PID             int     `json:"pid,omitempty"`
	State           State   `json:"state,omitempty"`
	Reason          string  `json:"reason,omitempty"`
	PersistentBytes int64   `json:"persistent_bytes,omitempty"`
	EphemeralBytes  int64   `json:"ephemeral_bytes,omitempty"`
	WarmupMillis    float64 `json:"warmup_ms,omitempty"`
	// Woken says, in the answer to DoReport, that the process has been woken.
	Woken bool `json:"woken,omitempty"`
	// Batches are the sizes that the process runs, said when it is ready and, with
	// EphemeralBytes, whenever it has more. While Growing it is getting the card's
	// others.
	Batches []int `json:"batches,omitempty"`
	Growing bool  `json:"growing,omitempty"`
	// Prepare asks the orchestrator to have the process's model prepared.
	Prepare bool `json:"prepare,omitempty"`
	// SMs is how many multiprocessors the process counts, from linking on, and
	// after each move to other groups.
	SMs int `json:"sms,omitempty"`
	// SMGroups are the groups that the process runs on, said when it is ready and
	// after each move: the others are free then.
	SMGroups []int `json:"sm_groups,omitempty"`
	// DeviceLost says, with Failed, that the device failed under the process; Blameless,
	// that it was the MPS server that failed.
	DeviceLost bool `json:"device_lost,omitempty"`
	Blameless  bool `json:"blameless,omitempty"`
	// GroupsUnfit says that the model cannot run on these groups, with Failed where the
	// process ends for it, else with the SMGroups that it stays on.
	GroupsUnfit []int `json:"groups_unfit,omitempty"`
}

// Attach is a process's first message on the manager's Unix socket.
type Attach struct {
	Version    int    `json:"version"`
	IF         string `json:"if"`
	Instance   int    `json:"instance"`
	Generation uint32 `json:"generation"`
	PID        int    `json:"pid"`
	// Ticket is Start.Ticket: it proves that the orchestrator started this process as the
	// one that it claims to be.
	Ticket string `json:"ticket,omitempty"`
}

// Attached answers Attach. With it come the file descriptors, in this order:
// request table, ring, replies, tensors, then the slabs; all but replies and
// tensors are read-only.
type Attached struct {
	Version int    `json:"version"`
	Refused string `json:"refused,omitempty"` // why not; nothing else is set then
	// Card is the resolved models.Card, as JSON.
	Card json.RawMessage `json:"card,omitempty"`
	Setup
	// Geometry is shm.Geometry, as JSON.
	Geometry json.RawMessage `json:"geometry,omitempty"`
	// TensorBytes is the size of the input and output buffers that active and
	// shadow share; SlabBytes the size of each slab.
	TensorBytes int64   `json:"tensor_bytes,omitempty"`
	SlabBytes   []int64 `json:"slab_bytes,omitempty"`
}

// Setup is what a process is given besides its model, for its life.
type Setup struct {
	// SLONanos is the objective in force, which a configuration may set apart
	// from the card, less what is left for the way to the node and back.
	SLONanos int64    `json:"slo_ns,omitempty"`
	Batching Batching `json:"batching,omitzero"`
	// RunLate: requests that can no longer make their objective are run all the same.
	RunLate bool `json:"run_late,omitempty"`
	// Copy: on a GPU the CPU puts the pieces of a batch together and one copy brings them
	// over, in place of the gather kernel.
	Copy bool `json:"copy,omitempty"`
	// Streams is how many batches may be in flight on a GPU, 1 or 2; 0 leaves it
	// to libml.
	Streams int `json:"streams,omitempty"`
	// BusyPollNanos is how long the process looks for work before it sleeps; 0 leaves it
	// to shm.
	BusyPollNanos int64 `json:"busy_poll_ns,omitempty"`
}

// Batching is a batching rule. The zero value is SLAB.
type Batching struct {
	Rule BatchingRule `json:"rule,omitempty"`
	// Size and Delay belong to BatchFixed.
	Size  int           `json:"size,omitempty"`
	Delay time.Duration `json:"delay_ns,omitempty"`
}

// BatchingRule names a batching rule of package libml/slab.
type BatchingRule string

// BatchSLAB is the paper's self-learning adaptive batching. The others are compared with it
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

// Report is what libml tells the manager of its batching, every ReportEvery if something has
// changed. News of the process's life goes to the orchestrator instead, in a Notice.
type Report struct {
	Generation uint32 `json:"generation"`
	// Limit is SLAB's batch limit, in requests; TailNanos its tail estimate.
	Limit     float64 `json:"limit"`
	TailNanos int64   `json:"tail_ns"`
	Fit       Fit     `json:"fit"`
	// CPUNanos is the CPU time that the process has used, all its threads, from
	// when it began to serve; Ran how many requests it has run in that time.
	CPUNanos int64 `json:"cpu_ns"`
	Ran      int64 `json:"ran"`
	// On a GPU DeviceNanos is the cost of those batches, as if each had run alone, and
	// DemotedNanos the part of it beyond the guarantee.
	DeviceNanos  int64 `json:"device_ns,omitempty"`
	DemotedNanos int64 `json:"demoted_ns,omitempty"`
	// Unprotected says that batches beyond the guarantee are not demoted, and why: the GPU or
	// the framework has one stream priority. It is empty if they are.
	Unprotected Unprotected `json:"unprotected,omitempty"`
	// A batch of n uses FixedNanos + n * EachNanos of the device's time.
	FixedNanos int64 `json:"fixed_ns,omitempty"`
	EachNanos  int64 `json:"each_ns,omitempty"`
	// Handovers counts the hand-overs of the ring to this process and, on a GPU,
	// its moves to other multiprocessors. IdleNanos is, of the last of them, how
	// long the ring stood still with work waiting: last batch before it ended ->
	// first batch after it began; negative when no work waited.
	IdleNanos int64  `json:"idle_ns,omitempty"`
	Handovers uint64 `json:"handovers"`
}

// Unprotected is why a function's work is not demoted.
type Unprotected string

// The values of Unprotected. The manager says UnprotectedByDevice of a GPU without MPS, too.
const (
	UnprotectedByDevice    Unprotected = "device"
	UnprotectedByFramework Unprotected = "framework"
)

// Fit is SLAB's word on the share (paper 3.3.1); it only makes the manager look.
type Fit string

// Under: five successive misses at limit 1. Over: five successive batches
// within the objective.
const (
	FitUnknown Fit = ""
	FitUnder   Fit = "under-provisioned"
	fitOver    Fit = "perhaps-over-provisioned"
)

// ReportEvery is how often libml reports.
const ReportEvery = 100 * time.Millisecond
