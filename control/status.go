package control

import "time"

// StatusPath is where the manager's HTTP server answers with a Status.
const StatusPath = "/status.json"

// Status is what the manager tells a load generator or a person who asks: its
// inference functions as they are now. Counters count since the manager
// started, or since the function was added where that was later; one that falls
// tells that the function was taken off and added.
type Status struct {
	// Started is when the manager did: another time is another manager.
	Started time.Time `json:"started"`
	// Mechanism is Observed.Mechanism, Device the GPU, nil on a CPU.
	Mechanism string           `json:"mechanism"`
	Device    *ObservedDevice  `json:"device,omitempty"`
	Faults    FaultStatus      `json:"faults"`
	Functions []FunctionStatus `json:"functions"`
}

// FaultStatus is how often the GPU failed under all inference functions at once,
// and how long the node was without answers the last time.
type FaultStatus struct {
	Count      uint64  `json:"count"`
	LastMillis float64 `json:"last_ms"`
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

// FunctionStatus is one inference function, all its instances together.
type FunctionStatus struct {
	Name string `json:"name"`
	// Address and Port are where it listens; the port is the one that was really
	// bound.
	Address string `json:"address"`
	Port    int    `json:"port"`
	// Replay is the capture that feeds it in place of the network, empty where none does,
	// and ReplayEnded that it has been played.
	Replay      string `json:"replay,omitempty"`
	ReplayEnded bool   `json:"replay_ended,omitempty"`
	// SLOMillis is the latency objective in force.
	SLOMillis float64 `json:"slo_ms"`
	// SharePercent is the sum over the instances, or 100 where they have no shares and
	// each may use the whole device.
	SharePercent float64 `json:"share_percent"`
	// Change is how shares change here: "shadow", "partition", "in-place", "restart", or
	// "none" where there are none. Batching is the batching rule as a configuration has
	// it, Late "answer" or "run". Gather is "kernel" or "copy", empty on a CPU; Streams
	// is as configured, 0 where libml chooses.
	Change   string `json:"change"`
	Batching string `json:"batching"`
	Late     string `json:"late"`
	Gather   string `json:"gather,omitempty"`
	Streams  int    `json:"streams,omitempty"`
	// Receivers is how many threads receive for it, each with clients of its own.
	Receivers int `json:"receivers"`
	// Swaps is how often the ring was handed over; SwapIdle how long it stood
	// still for that with work waiting.
	Swaps    uint64     `json:"swaps"`
	SwapIdle IdleMicros `json:"swap_idle_us"`
	// Accepted requests were aggregated whole and admitted; Replied ones got
	// their answer, whatever its status, Failed ones that they failed. Lost ones
	// were accepted, are no longer anywhere in the manager, and were never
	// answered: it must stay 0.
	Accepted uint64 `json:"accepted"`
	Replied  uint64 `json:"replied"`
	Failed   uint64 `json:"failed"`
	Lost     uint64 `json:"lost"`
	// Hangs is how many processes were killed because a request had no answer after
	// HangTimeoutMillis.
	Hangs             uint64  `json:"hangs"`
	HangTimeoutMillis float64 `json:"hang_timeout_ms"`
	// KernelDrops is what the kernel dropped for want of socket buffer, or to shed
	// whole requests, in datagrams (a chain of them counts as one).
	KernelDrops uint64 `json:"kernel_drops"`
	// SheddingPercent is the part of the requests that is being shed of what comes to
	// a receiver, the most of any.
	SheddingPercent float64 `json:"shedding_percent,omitempty"`
	// HeldBytes is packet memory that requests hold now, InFlight how many
	// requests are whole and not answered.
	HeldBytes uint64      `json:"held_bytes"`
	InFlight  int         `json:"in_flight"`
	Input     InputStatus `json:"input"`
	// Limit is SLAB's batch limit, in requests.
	Limit float64 `json:"limit"`
	// Fit is the batching rule's word on the share, Bound why no share meets the objective:
	// "aggregation", where requests are late before they are whole, or "objective", where
	// one request takes longer than that. BoundWhy says it to people. All are mostly empty.
	Fit      Fit    `json:"fit,omitempty"`
	Bound    string `json:"bound,omitempty"`
	BoundWhy string `json:"bound_why,omitempty"`
	// Model and Version are of the model that serves.
	Model   string `json:"model"`
	Version uint32 `json:"version"`
	// Instances are the function's instances, in order.
	Instances []InstanceStatus `json:"instances"`
}

// InstanceStatus is one instance of a function.
type InstanceStatus struct {
	// SharePercent is 100 where Whole: the instance has no share, and may use the whole
	// device as all others may.
	SharePercent float64 `json:"share_percent"`
	Whole        bool    `json:"whole,omitempty"`
	// SMGroups are the groups of multiprocessors ordered for it, empty where its
	// share is a percentage.
	SMGroups  []int           `json:"sm_groups,omitempty"`
	Processes []ProcessStatus `json:"processes"`
}

// Serving is the process that holds the ring; ok is false where none does.
func (in *InstanceStatus) Serving() (p ProcessStatus, ok bool) { return in.find(Serve, Active) }

// Standby is the shadow once it sleeps loaded; ok is false before.
func (in *InstanceStatus) Standby() (p ProcessStatus, ok bool) { return in.find(Shadow, Loaded) }

// find is the last process in a role and a state.
func (in *InstanceStatus) find(role Role, state State) (found ProcessStatus, ok bool) {
	for _, p := range in.Processes {
		if p.Role == role && p.State == state {
			found, ok = p, true
		}
	}
	return found, ok
}

// ProcessStatus is one of an instance's processes.
type ProcessStatus struct {
	Generation uint32 `json:"generation"`
	PID        int    `json:"pid"`
	Role       Role   `json:"role"`
	State      State  `json:"state"`
	Reason     string `json:"reason,omitempty"`
	// Batches are the sizes that it runs; while Growing it is getting more.
	Batches []int `json:"batches,omitempty"`
	Growing bool  `json:"growing,omitempty"`
	// SMs and SMGroups are what the process runs on, on a GPU.
	SMs      int   `json:"sms,omitempty"`
	SMGroups []int `json:"sm_groups,omitempty"`
}

// IdleMicros sums up swap idle times, in microseconds; all 0 when no swap found
// work waiting.
type IdleMicros struct {
	// Count is how many hand-overs found work waiting; the others have no idle
	// time.
	Count uint64  `json:"count"`
	Last  float64 `json:"last"`
	P50   float64 `json:"p50"`
	P99   float64 `json:"p99"`
	Max   float64 `json:"max"`
}

// InputStatus is the picture that a function wants on the wire.
type InputStatus struct {
	Height   int `json:"height"`
	Width    int `json:"width"`
	Channels int `json:"channels"`
	// Bytes is the size of a request.
	Bytes int `json:"bytes"`
	// WireType and WireLayout are models.DType and models.Layout.
	WireType   string `json:"type"`
	WireLayout string `json:"layout"`
}
