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
	// Policy is shares.policy: "guarantee" or "gslice".
	Policy string `json:"policy"`
	// Mechanism is Observed.Mechanism, Device the GPU, nil on a CPU.
	Mechanism string `json:"mechanism"`
	// Sandbox says how the processes of functions are confined: "off", "own user", or "user"
	// and its name.
	Sandbox string          `json:"sandbox"`
	Device  *ObservedDevice `json:"device,omitempty"`
	Faults  FaultStatus     `json:"faults"`
	// Lab is what makes the node behave unlike Penstock, for comparisons (configs.Lab), as JSON;
	// empty if nothing does.
	Lab string `json:"lab,omitempty"`
	// Configuration says whether the node is what its configuration file says.
	Configuration ConfigurationStatus `json:"configuration"`
	Functions     []FunctionStatus    `json:"functions"`
}

// ConfigurationStatus is how a node stands with its configuration file.
type ConfigurationStatus struct {
	// File is the absolute path; empty if the node runs on the built-in configuration.
	File string `json:"file"`
	// Followed reports whether the functions are those of the file as it is now. If not, Error
	// says why, and the node goes on with what it followed last.
	Followed bool   `json:"followed"`
	Error    string `json:"error,omitempty"`
	// Since is when the file was last followed, or when Error was first found.
	Since time.Time `json:"since"`
	// NeedRestart are the keys of the file that take effect only when the node is restarted.
	NeedRestart []string `json:"need_restart,omitempty"`
}

// Unsaved says how a function differs from the configuration file: `penstock if` added it, or
// gave it another model or share.
type Unsaved string

// The values of Unsaved that are not empty.
const (
	UnsavedAdded   Unsaved = "added"
	UnsavedChanged Unsaved = "changed"
)

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
	// SharePercent is the sum over the instances: of their guarantees, or of their shares. It
	// is 100 if they have neither.
	SharePercent float64 `json:"share_percent"`
	// Guarantee is nil with the policy gslice.
	Guarantee *GuaranteeStatus `json:"guarantee,omitempty"`
	// Change is how shares change here: "shadow", "partition", "in-place", "restart", or
	// "none" if there are none. Streams is as configured, 0 if libml chooses.
	Change  string `json:"change"`
	Streams int    `json:"streams,omitempty"`
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
	// Unsaved is empty if the function is what the configuration file says.
	Unsaved Unsaved `json:"unsaved,omitempty"`
	// Instances are the function's instances, in order.
	Instances []InstanceStatus `json:"instances"`
}

// GuaranteeStatus is how a function's instances stand with their guarantees, in percent of
// the device's time, and summed up.
type GuaranteeStatus struct {
	Percent float64 `json:"percent"`
	// NeedPercent keeps up with the requests of late, with a margin for bursts.
	NeedPercent float64 `json:"need_percent"`
	// CostMillis is the device time per request, as if the function had the device alone; 0 if
	// it is not known yet.
	CostMillis float64 `json:"cost_ms"`
	// UsePercent is what they used lately, DemotedPercent the part of it beyond the
	// guarantee, which ran at the lowest priority.
	UsePercent     float64 `json:"use_percent"`
	DemotedPercent float64 `json:"demoted_percent"`
	// Level is the priority of guaranteed work, 1 to 5.
	Level int `json:"level"`
	// Infeasible says why the objective is not guaranteed, empty if it is.
	Infeasible string `json:"infeasible,omitempty"`
	// Unprotected is "device" or "framework" if that runs all of the function's work at one
	// priority, so that work beyond the guarantee holds up the others; else empty.
	Unprotected Unprotected `json:"unprotected,omitempty"`
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
	// LastFailure is how the last process that failed did; nil if none has.
	LastFailure *ProcessFailure `json:"last_failure,omitempty"`
}

// ProcessFailure is the end of a process that should not have ended.
type ProcessFailure struct {
	Generation uint32    `json:"generation"`
	PID        int       `json:"pid"`
	At         time.Time `json:"at"`
	// Reason names the exit status or signal as the kernel gave it, and what the process
	// last logged.
	Reason string `json:"reason"`
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
