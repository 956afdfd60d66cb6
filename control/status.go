package control

import (
	"net/netip"
	"time"
)

// StatusPath is the path at which the manager's HTTP server returns a Status.
const StatusPath = "/status.json"

// RatesPath is the path at which the manager's HTTP server returns Rates.
const RatesPath = "/rates"

// Rates is what a planner of several nodes reads often.
type Rates struct {
	Functions []FunctionRate `json:"functions"`
}

// FunctionRate is the load of a function. Counters begin at 0 when the function is added.
type FunctionRate struct {
	Name string `json:"name"`
	// Offered counts the requests that have arrived, also those turned away because there was no room. It does not count
	// requests that the model does not take.
	Offered uint64 `json:"offered"`
	// Planned is PeersOrder.Rate.
	Planned float64 `json:"planned"`
	// Ready reports whether each instance has a process that serves.
	Ready bool `json:"ready"`
	// Waiting is the number of requests that have begun and are not answered.
	Waiting int `json:"waiting"`
}

// Status is the present state of the manager and its inference functions, for load generators
// and operators. Counters count since the manager started, or since the function was added if
// that was later. A counter that falls means that the function was removed and added again.
type Status struct {
	// Started is the manager's start time. A different time means a different manager.
	Started time.Time `json:"started"`
	// Policy is shares.policy: "guarantee" or "gslice". If the configuration leaves it out, it is
	// "gslice" on a GPU without working stream priorities.
	Policy string `json:"policy"`
	// Sandbox says how the processes of functions are confined: "off", "own user", or "user"
	// and its name.
	Sandbox string `json:"sandbox"`
	// Devices are the node's, in the order of Desired.Devices.
	Devices []DeviceStatus `json:"devices"`
	// Lab lists the settings, for comparisons, that make the node differ from its default
	// (configs.Lab), as JSON. It is empty if there are none.
	Lab string `json:"lab,omitempty"`
	// Loading is the folder of `penstock up --models` until the models that were there at the start are loaded.
	Loading string `json:"loading,omitempty"`
	// Configuration says whether the node follows its configuration file.
	Configuration ConfigurationStatus `json:"configuration"`
	// ForeignCPUPercent is how much of the machine's CPUs other programs used in the last ten
	// seconds.
	ForeignCPUPercent float64          `json:"foreign_cpu_percent"`
	Functions         []FunctionStatus `json:"functions"`
	// Workers are those of the configuration, also workers without members.
	Workers []WorkerStatus `json:"workers,omitempty"`
}

// DeviceStatus is the state of one of the node's devices.
type DeviceStatus struct {
	// Name is as in Desired.Devices.
	Name string `json:"name"`
	// Mechanism is ObservedDevice.Mechanism. GPU is nil on a CPU.
	Mechanism string      `json:"mechanism"`
	GPU       *GPU        `json:"gpu,omitempty"`
	Faults    FaultStatus `json:"faults"`
	// NeedsPercent is the sum of the needs of its instances, and of workers. Above 90 it cannot keep all objectives.
	NeedsPercent float64 `json:"needs_percent,omitempty"`
	// Lost is ObservedDevice.Lost.
	Lost string `json:"lost,omitempty"`
}

// WorkerStatus is the status of a worker.
type WorkerStatus struct {
	Name string `json:"name"`
	// MemoryBytes is the limit of its models' memory; 0 if there is none.
	MemoryBytes int64 `json:"memory_bytes,omitempty"`
	// FixedBytes is the part of MemoryBytes that no eviction frees: on a GPU sessions, graphs and lanes.
	// The models share the rest.
	FixedBytes int64 `json:"fixed_bytes,omitempty"`
	// HostMemoryBytes is the limit of what it pins for loads; 0 if there is none.
	HostMemoryBytes int64 `json:"host_memory_bytes,omitempty"`
	// Thrashing: it cannot load models as fast as requests for them come. NeededBytes is then the
	// limit that would end it.
	Thrashing   bool  `json:"thrashing"`
	NeededBytes int64 `json:"needed_bytes,omitempty"`
}

// ConfigurationStatus says how a node relates to its configuration file.
type ConfigurationStatus struct {
	// File is the absolute path; empty if the node runs on the built-in configuration.
	File string `json:"file"`
	// Followed reports whether the functions are those of the current file. If not, Error says
	// why, and the node keeps the last configuration that it followed.
	Followed bool   `json:"followed"`
	Error    string `json:"error,omitempty"`
	// Since is when the file was last followed, or when Error was first found.
	Since time.Time `json:"since"`
	// NeedRestart lists the keys of the file that take effect only after a restart of the
	// node.
	NeedRestart []string `json:"need_restart,omitempty"`
}

// Unsaved says how a function differs from the configuration file: `penstock if` added it, or
// changed its model, share or worker.
type Unsaved string

// The values of Unsaved that are not empty.
const (
	UnsavedAdded   Unsaved = "added"
	UnsavedChanged Unsaved = "changed"
)

// FaultStatus says how often the GPU failed under all inference functions at once.
type FaultStatus struct {
	Count uint64 `json:"count"`
}

// Function returns the status of a function by its name.
func (s *Status) Function(name string) (FunctionStatus, bool) {
	for _, f := range s.Functions {
		if f.Name == name {
			return f, true
		}
	}
	return FunctionStatus{}, false
}

// FunctionStatus is the status of one inference function, with all its instances.
type FunctionStatus struct {
	Name string `json:"name"`
	// Address and Port are where the function listens. Port is the port that was actually
	// bound.
	Address string `json:"address"`
	Port    int    `json:"port"`
	// Camera is nil if the function takes Penstock's protocol.
	Camera *CameraStatus `json:"camera,omitempty"`
	// SLOMillis is the latency objective in force.
	SLOMillis float64 `json:"slo_ms"`
	// SharePercent is the sum over the instances, of their guarantees or of their shares. It
	// is 100 per device if they have neither.
	SharePercent float64 `json:"share_percent"`
	// Guarantee is nil with the policy gslice.
	Guarantee *GuaranteeStatus `json:"guarantee,omitempty"`
	// Change says how shares change on the function's first device: "shadow", "partition", "in-place",
	// "restart", or "none" if there are no shares.
	Change string `json:"change"`
	// BatchesInFlight is the key in_flight of the function, 0 if libml chooses.
	BatchesInFlight int `json:"batches_in_flight,omitempty"`
	// Receivers is the number of threads that receive for the function, each with its own
	// clients.
	Receivers int `json:"receivers"`
	// Swaps counts the hand-overs of the ring. SwapIdle is how long the ring stood still in
	// them while work waited.
	Swaps    uint64     `json:"swaps"`
	SwapIdle IdleMicros `json:"swap_idle_us"`
	// Offered counts the requests that have arrived, as FunctionRate.Offered does.
	Offered uint64 `json:"offered"`
	// Accepted counts requests that arrived complete and were admitted. Replied counts those
	// that were answered, with any status, and Failed those with a failure as the answer. Lost
	// counts accepted requests that are no longer in the manager and were never answered. It
	// must stay 0.
	Accepted uint64 `json:"accepted"`
	Replied  uint64 `json:"replied"`
	Failed   uint64 `json:"failed"`
	Lost     uint64 `json:"lost"`
	// Hangs counts processes that were killed because a request had no answer after
	// HangTimeoutMillis.
	Hangs             uint64  `json:"hangs"`
	HangTimeoutMillis float64 `json:"hang_timeout_ms"`
	// KernelDrops counts datagrams that the kernel dropped, for lack of socket buffer or to
	// shed whole requests. A chain of datagrams counts as one.
	KernelDrops uint64 `json:"kernel_drops"`
	// SheddingPercent is the part of a receiver's incoming requests that is being shed, the
	// max over all receivers.
	SheddingPercent float64 `json:"shedding_percent,omitempty"`
	// HeldBytes is the packet memory that requests hold now. InFlight is the number of
	// complete requests that have no answer yet.
	HeldBytes uint64      `json:"held_bytes"`
	InFlight  int         `json:"in_flight"`
	Input     InputStatus `json:"input"`
	// Limit is SLAB's batch limit, in requests.
	Limit float64 `json:"limit"`
	// Fit is the batching rule's judgement of the share. Bound is "aggregation" if no share
	// meets the objective, because requests are late before they are complete. BoundWhy is the
	// same as text for operators. All three are usually empty.
	Fit      Fit    `json:"fit,omitempty"`
	Bound    string `json:"bound,omitempty"`
	BoundWhy string `json:"bound_why,omitempty"`
	// Model and Version are those of the model that serves.
	Model   string `json:"model"`
	Version uint32 `json:"version"`
	// Worker is the worker that hosts the function; empty: it runs in its own process. Its
	// members share the guarantee.
	Worker string `json:"worker,omitempty"`
	// Residency is nil unless the function is in a worker with limited memory. WorkerStatus has what
	// concerns the whole worker.
	Residency *Residency `json:"residency,omitempty"`
	// KeyFile has the keys of the function's clients; empty: they need none.
	KeyFile string `json:"key_file,omitempty"`
	// Unsaved is empty if the function is the same as in the configuration file.
	Unsaved Unsaved `json:"unsaved,omitempty"`
	// Instances are the function's instances, in order.
	Instances []InstanceStatus `json:"instances"`
}

// ClientAddr is the address that a client on this machine sends to. It differs from Address if the
// function listens on all of the machine's addresses. It is not valid if the status is not from a manager.
func (f *FunctionStatus) ClientAddr() netip.AddrPort {
	addr, _ := netip.ParseAddr(f.Address)
	switch {
	case addr == netip.IPv6Unspecified():
		addr = netip.IPv6Loopback()
	case addr.IsUnspecified():
		addr = netip.AddrFrom4([4]byte{127, 0, 0, 1})
	}
	return netip.AddrPortFrom(addr, uint16(f.Port))
}

// Serves reports whether each instance has a process that holds its ring.
func (f *FunctionStatus) Serves() bool {
	for i := range f.Instances {
		if _, ok := f.Instances[i].Serving(); !ok {
			return false
		}
	}
	return true
}

// CameraStatus is the status of a function that takes pictures of cameras.
type CameraStatus struct {
	// Format and AnswersTo are the function's keys; AnswersTo is empty if answers are not sent.
	Format    string `json:"format"`
	AnswersTo string `json:"answers_to,omitempty"`
	// Refused counts pictures that the model does not take; RefusedWhy says why the latest was
	// refused. It is empty again when pictures arrive and none was refused for 10 s. Incomplete
	// counts pictures of which packets were lost.
	Refused    uint64 `json:"refused"`
	RefusedWhy string `json:"refused_why,omitempty"`
	Incomplete uint64 `json:"incomplete"`
}

// GuaranteeStatus compares a function's instances with their guarantees. Percentages are of
// the device's time, summed over the instances.
type GuaranteeStatus struct {
	Percent float64 `json:"percent"`
	// NeedPercent is what the recent requests need, with a margin for bursts.
	NeedPercent float64 `json:"need_percent"`
	// CostMillis is the device time per request as if the function had the device alone, the max over the devices; 0 if
	// not known yet.
	CostMillis float64 `json:"cost_ms"`
	// UsePercent is what the instances used recently. DemotedPercent is the part of it beyond
	// the guarantee, which ran at the lowest priority.
	UsePercent     float64 `json:"use_percent"`
	DemotedPercent float64 `json:"demoted_percent"`
	// UsedSeconds and DemotedSeconds are the same as totals, in seconds of the whole device.
	UsedSeconds    float64 `json:"used_seconds"`
	DemotedSeconds float64 `json:"demoted_seconds"`
	// Level is the priority of guaranteed work, 1 to 5, the min over the instances.
	Level int `json:"level"`
	// Infeasible says why the objective of an instance is not guaranteed; empty if all are.
	Infeasible string `json:"infeasible,omitempty"`
	// Unprotected is "device", "priorities" or "framework" if that runs all of the function's work
	// at one priority. Work beyond the guarantee then delays other functions. Otherwise it is empty.
	Unprotected Unprotected `json:"unprotected,omitempty"`
}

// InstanceStatus is the status of one instance of a function.
type InstanceStatus struct {
	// Device is the name of the device that it should run on.
	Device string `json:"device"`
	// WholeDevice: the instance has no share, and may use the whole device, as all others may.
	// SharePercent is then 100.
	SharePercent float64 `json:"share_percent"`
	WholeDevice  bool    `json:"whole,omitempty"`
	// UsePercent is what it used of its device recently; 0 with the policy gslice.
	UsePercent float64 `json:"use_percent,omitempty"`
	// SMGroups are the groups of multiprocessors ordered for the instance; empty if its share
	// is a percentage.
	SMGroups []int `json:"sm_groups,omitempty"`
	// Held says why no process of the instance may serve; empty: they may.
	Held      string          `json:"held,omitempty"`
	Processes []ProcessStatus `json:"processes"`
	// LastFailure describes the last process that failed; nil if none has.
	LastFailure *ProcessFailure `json:"last_failure,omitempty"`
}

// ProcessFailure describes the unexpected end of a process.
type ProcessFailure struct {
	Generation uint32    `json:"generation"`
	PID        int       `json:"pid"`
	At         time.Time `json:"at"`
	// Reason has the exit status or signal from the kernel, and the process's last log output.
	Reason string `json:"reason"`
}

// Serving returns the process that holds the ring; ok is false if there is none.
func (in *InstanceStatus) Serving() (p ProcessStatus, ok bool) { return in.find(Serve, Active) }

// Standby returns the shadow once it sleeps, loaded; before that ok is false.
func (in *InstanceStatus) Standby() (p ProcessStatus, ok bool) { return in.find(Shadow, Loaded) }

// find returns the last process in a role and a state.
func (in *InstanceStatus) find(role Role, state State) (found ProcessStatus, ok bool) {
	for _, p := range in.Processes {
		if p.Role == role && p.State == state {
			found, ok = p, true
		}
	}
	return found, ok
}

// ProcessStatus is the status of one of an instance's processes.
type ProcessStatus struct {
	Generation uint32 `json:"generation"`
	PID        int    `json:"pid"`
	Role       Role   `json:"role"`
	State      State  `json:"state"`
	Reason     string `json:"reason,omitempty"`
	// Batches are the batch sizes that it can run. WarmingUp: it is getting more of them.
	Batches   []int `json:"batches,omitempty"`
	WarmingUp bool  `json:"warming_up,omitempty"`
	// SMs and SMGroups are what the process runs on, on a GPU.
	SMs      int   `json:"sms,omitempty"`
	SMGroups []int `json:"sm_groups,omitempty"`
}

// IdleMicros summarises the idle times of hand-overs, in microseconds. All values are 0 if no
// hand-over found work waiting.
type IdleMicros struct {
	// Count is the number of hand-overs that found work waiting. The others have no idle time.
	Count uint64  `json:"count"`
	Last  float64 `json:"last"`
	P50   float64 `json:"p50"`
	P99   float64 `json:"p99"`
	Max   float64 `json:"max"`
}

// InputStatus is what a function expects on the wire: a picture, or tensors.
type InputStatus struct {
	Height   int `json:"height"`
	Width    int `json:"width"`
	Channels int `json:"channels"`
	// Bytes is the size of a request.
	Bytes int `json:"bytes"`
	// WireType and WireLayout are models.DType and models.Layout.
	WireType   string `json:"type"`
	WireLayout string `json:"layout"`
	// Fit and Pad are those of models.Input.
	Fit string `json:"fit,omitempty"`
	// Antialias: models.Input.Antialias.
	Antialias bool  `json:"antialias,omitempty"`
	Pad       []int `json:"pad,omitempty"`
	// LargestPicture is the size of the largest picture of another format and size, in bytes; 0 if it takes none.
	LargestPicture int `json:"largest_picture,omitempty"`
	// Tensors are those of a request that is no picture. All other fields but Bytes are then zero.
	Tensors []TensorStatus `json:"tensors,omitempty"`
}

// TensorStatus describes an input of one request.
type TensorStatus struct {
	Name  string  `json:"name"`
	Type  string  `json:"type"` // models.DType
	Shape []int64 `json:"shape"`
}
