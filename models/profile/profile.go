// Package profile has the measurements of a model on one device. It has
// throughput and latency for each share of the device, batch size and number of
// processes. It reads and writes profile files and finds the knee of a batch.
//
// The file is a CSV with the columns of the profiles that were published with
// ParvaGPU (github.com/MunQ-Lee/ParvaGPU_SC24), plus the memory. A JSON header in
// comment lines describes what was measured, and where:
//
//	# {
//	#   "version": 1,
//	#   "model": "face",
//	#   "gpu": "a100-80",
//	#   "share": "gpcs",
//	#   ...
//	# }
//	Mig instance,Batch size,Workload Number,Throughput,Latency,Memory
//	1,1,1,196.762,0.005,512
//	1,8,5,0,0,0
//
// Throughput is per second and process. Latency is that of a batch in seconds.
// Memory is in MiB. If throughput and latency are 0, the point ran out of memory.
// ParvaGPU's own files have neither header nor memory; the package reads them,
// too.
package profile

import (
	"cmp"
	"slices"
	"time"
)

// Version is the format that Write writes and the highest that Read reads.
const Version = 1

// Unit is the unit of a Point's share.
type Unit string

// The units of a share.
const (
	// GPCs are the compute slices of a MIG instance: 1, 2, 3, 4 or 7.
	GPCs Unit = "gpcs"
	// Percent is a percentage of the whole device: of its multiprocessors under
	// MPS, of its CPU time on a CPU.
	Percent Unit = "percent"
)

// MIG is the Header.HeldBy of shares that are MIG instances.
const MIG = "mig"

// Header describes what was measured, where, and with which software. For a file
// without a header, only Unit is set: GPCs, as in ParvaGPU's files.
type Header struct {
	// Version is the format's version.
	Version int `json:"version"`
	// Model is the model's name, ModelVersion its card's version.
	Model        string `json:"model"`
	ModelVersion uint32 `json:"model_version,omitempty"`
	// ModelDigest is the first half of the SHA-256 of the model's file, hex.
	ModelDigest string `json:"model_digest,omitempty"`
	// Device is "cpu" or "cuda".
	Device string `json:"device,omitempty"`
	// GPU is the GPU's name in plans ("a100-80"), or the driver's name if plans
	// have none. For a CPU it is the CPU's name and number.
	GPU string `json:"gpu"`
	// Unit is the unit of the shares.
	Unit Unit `json:"share"`
	// Total is the share of the whole device: 100 percent, 7 GPCs.
	Total int `json:"total,omitempty"`
	// HeldBy is the mechanism that limits a process to its share: "cgroup-v2",
	// "mps", MIG, ...
	HeldBy string `json:"held_by,omitempty"`
	// Versions are those of everything that affects the figures: "penstock",
	// "framework", "driver", ...
	Versions map[string]string `json:"versions,omitempty"`
	// Sweep is the request for the measurement.
	Sweep *Sweep `json:"sweep,omitempty"`
	// Date is when the measurement began, UTC.
	Date time.Time `json:"date,omitzero"`
	// Complete is false while points are missing: the measurement can be
	// continued.
	Complete bool `json:"complete"`
	// PersistentMiB is the memory that one process holds between batches.
	// EphemeralMiB is what its largest batch needs in addition. 0 if not known.
	PersistentMiB float64 `json:"persistent_mib,omitempty"`
	EphemeralMiB  float64 `json:"ephemeral_mib,omitempty"`
	// Unsteady are the points that were accepted although they were not stable.
	Unsteady []Unsteady `json:"unsteady,omitempty"`
	// LoadBound are the points at which the model waited for pictures: it is
	// faster than the node can feed it.
	LoadBound []LoadBound `json:"load_bound,omitempty"`
	// Wrong are shares at which the model answers wrongly on this GPU. The profile
	// has no points of them.
	Wrong []Wrong `json:"wrong,omitempty"`
	// Knees are the knees of all batches, ascending by batch. They are set when
	// the profile is complete.
	Knees []Knee `json:"knees,omitempty"`
}

// Sweep is the grid of a measurement, and the rule for when a point of it is
// stable.
type Sweep struct {
	Shares    []int `json:"shares"`
	Batches   []int `json:"batches"`
	Processes []int `json:"processes"`
	// A point is measured over windows of WindowSeconds, or longer ones if its
	// batches are long. It has at least MinWindows and at most MaxWindows
	// windows. It ends when the 95 % confidence interval of its mean throughput is
	// within ±PrecisionPercent.
	WindowSeconds    float64 `json:"window_s"`
	PrecisionPercent float64 `json:"precision_percent"`
	MinWindows       int     `json:"min_windows"`
	MaxWindows       int     `json:"max_windows"`
	// Quick means that the measurement was limited to a minute: windows are
	// shorter, and cells may be missing.
	Quick bool `json:"quick,omitempty"`
}

// LoadBound is a point whose processes waited for pictures.
type LoadBound struct {
	Share     int `json:"share"`
	Batch     int `json:"batch"`
	Processes int `json:"processes"`
	// BusyPercent is the percentage of time that a process was in a batch.
	BusyPercent float64 `json:"busy_percent"`
}

// Unsteady is a point whose throughput varied too much until the end.
type Unsteady struct {
	Share     int `json:"share"`
	Batch     int `json:"batch"`
	Processes int `json:"processes"`
	// PrecisionPercent is the width of its confidence interval at the end.
	PrecisionPercent float64 `json:"precision_percent"`
}

// Wrong is a share at which a model answers wrongly: libraries choose their kernels
// by the number of multiprocessors that a process sees, and some of these are wrong.
type Wrong struct {
	Share     int `json:"share"`
	Processes int `json:"processes"`
}

// AnswersWrongly reports whether each of so many processes within a share would have
// a share of the device at which the model answers wrongly.
func (h *Header) AnswersWrongly(share, processes int) bool {
	return slices.ContainsFunc(h.Wrong, func(w Wrong) bool {
		if h.Unit == Percent {
			return share*w.Processes == w.Share*processes
		}
		return share == w.Share && processes == w.Processes
	})
}

// Point is the measurement at one share, batch and number of processes.
type Point struct {
	// Share is that of all processes together, in the header's Unit.
	Share int
	// Batch is the number of images per batch.
	Batch int
	// Processes is how many processes run at once within the share.
	Processes int
	// Throughput is in images per second, PER PROCESS: all together reach
	// Processes times as much.
	Throughput float64
	// Latency is the mean time of a batch.
	Latency time.Duration
	// MemoryMiB is the memory of all processes together, 0 if not known.
	MemoryMiB float64
	// OOM means that the point ran out of memory: Throughput and Latency are 0.
	OOM bool
}

// Total returns the throughput of all processes together, in images per second.
func (p Point) Total() float64 { return p.Throughput * float64(p.Processes) }

// Compare orders points by share, batch and processes.
func (p Point) Compare(q Point) int {
	return cmp.Or(cmp.Compare(p.Share, q.Share), cmp.Compare(p.Batch, q.Batch), cmp.Compare(p.Processes, q.Processes))
}

// Profile has the measurements of a model on one device.
type Profile struct {
	// File is the name of the file that it was read from.
	File   string
	Header Header
	// Points are ascending (Point.Compare), without duplicates.
	Points []Point
}

// Find returns the point of that share, batch and number of processes.
func (p *Profile) Find(share, batch, processes int) (Point, bool) {
	i, ok := slices.BinarySearchFunc(p.Points, Point{Share: share, Batch: batch, Processes: processes}, Point.Compare)
	if !ok {
		return Point{}, false
	}
	return p.Points[i], true
}

// Knee is the share beyond which more helps little for a batch (GSLICE 2.1.3).
type Knee struct {
	Batch int `json:"batch"`
	// Share is in the header's unit.
	Share int `json:"share"`
}
