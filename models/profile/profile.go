// Package profile is what was measured of a model on one device: its throughput
// and latency at each share of the device, batch size and number of processes. It
// reads and writes profile files and finds the knee of a batch.
//
// The file is a CSV in the columns of the profiles that were published with
// ParvaGPU (github.com/MunQ-Lee/ParvaGPU_SC24), plus the memory. A JSON header in
// comment lines says what was measured where:
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
// Throughput is a second and per process, Latency a batch's in seconds, Memory in
// MiB; throughput and latency 0 mean that the point ran out of memory. ParvaGPU's
// own files have neither header nor memory, and are read too.
package profile

import (
	"cmp"
	"slices"
	"time"
)

// Version is the format that Write writes and the highest that Read reads.
const Version = 1

// Unit is what a Point's share counts.
type Unit string

// The units of a share.
const (
	// GPCs are the compute slices of a MIG instance: 1, 2, 3, 4 or 7.
	GPCs Unit = "gpcs"
	// Percent is a share of the whole device in percent: of its multiprocessors
	// under MPS, of its CPU time on a CPU.
	Percent Unit = "percent"
)

// Header says what was measured, where, and with what. Of a file without one only
// Unit is set: GPCs, as in ParvaGPU's files.
type Header struct {
	// Version is the format's.
	Version int `json:"version"`
	// Model is the model's name, ModelVersion its card's version.
	Model        string `json:"model"`
	ModelVersion uint32 `json:"model_version,omitempty"`
	// ModelDigest is the SHA-256 of the model's file, hex, its first half.
	ModelDigest string `json:"model_digest,omitempty"`
	// Device is "cpu" or "cuda".
	Device string `json:"device,omitempty"`
	// GPU is the model of the GPU as a plan names it ("a100-80") where it has such
	// a name, else as the driver does; of a CPU its name and number.
	GPU string `json:"gpu"`
	// Unit is the unit of the shares.
	Unit Unit `json:"share"`
	// Total is the share that is the whole device: 100 percent, 7 GPCs.
	Total int `json:"total,omitempty"`
	// HeldBy is what holds a process to its share: "cgroup-v2", "mps", ...
	HeldBy string `json:"held_by,omitempty"`
	// Versions are those of whatever the figures depend on: "penstock",
	// "framework", "driver", ...
	Versions map[string]string `json:"versions,omitempty"`
	// Sweep is what the measurement was asked for.
	Sweep *Sweep `json:"sweep,omitempty"`
	// Date is when the measurement began, UTC.
	Date time.Time `json:"date,omitzero"`
	// Complete is false while points are missing: the file can be continued.
	Complete bool `json:"complete"`
	// PersistentMiB is what one process holds between batches, EphemeralMiB what its
	// largest batch takes beside; 0 where it is not known.
	PersistentMiB float64 `json:"persistent_mib,omitempty"`
	EphemeralMiB  float64 `json:"ephemeral_mib,omitempty"`
	// Unsteady are the points that were taken although they were not stable.
	Unsteady []Unsteady `json:"unsteady,omitempty"`
	// LoadBound are the points at which the model waited for pictures: it is faster
	// than the node can feed it.
	LoadBound []LoadBound `json:"load_bound,omitempty"`
	// Knees are the knees of each batch, ascending by batch; filled in when the
	// profile is complete.
	Knees []Knee `json:"knees,omitempty"`
}

// Sweep is the grid of a measurement and when a point of it was taken as stable.
type Sweep struct {
	Shares    []int `json:"shares"`
	Batches   []int `json:"batches"`
	Processes []int `json:"processes"`
	// A point is watched over windows of so many seconds, or longer ones where its
	// batches are long, at least LeastWindows, until the 95 % confidence interval of
	// its mean throughput is no wider than PrecisionPercent of it to either side, at
	// most MostWindows.
	WindowSeconds    float64 `json:"window_s"`
	PrecisionPercent float64 `json:"precision_percent"`
	LeastWindows     int     `json:"least_windows"`
	MostWindows      int     `json:"most_windows"`
	// Quick says that the measurement was bounded to a minute: windows are shorter,
	// and cells may be missing.
	Quick bool `json:"quick,omitempty"`
}

// LoadBound is a point whose processes waited for pictures.
type LoadBound struct {
	Share     int `json:"share"`
	Batch     int `json:"batch"`
	Processes int `json:"processes"`
	// BusyPercent is the part of the time that a process was in a batch.
	BusyPercent float64 `json:"busy_percent"`
}

// Unsteady is a point whose throughput varied too much to the last.
type Unsteady struct {
	Share     int `json:"share"`
	Batch     int `json:"batch"`
	Processes int `json:"processes"`
	// PrecisionPercent is how wide its confidence interval was at the end.
	PrecisionPercent float64 `json:"precision_percent"`
}

// Point is what was measured at one share, batch and number of processes.
type Point struct {
	// Share of the device that all processes have together, in the header's Unit.
	Share int
	// Batch is how many images a batch has.
	Batch int
	// Processes run at once within the share.
	Processes int
	// Throughput is images a second, PER PROCESS: all together do Processes times it.
	Throughput float64
	// Latency is the mean time of a batch.
	Latency time.Duration
	// MemoryMiB is what all processes hold together, 0 where it is not known.
	MemoryMiB float64
	// OOM says that the point ran out of memory: Throughput and Latency are 0.
	OOM bool
}

// key is the point without what was measured there.
func (p Point) key() Point { return Point{Share: p.Share, Batch: p.Batch, Processes: p.Processes} }

// Total is the throughput of all processes together, images a second.
func (p Point) Total() float64 { return p.Throughput * float64(p.Processes) }

// Compare orders points by share, batch and processes.
func (p Point) Compare(q Point) int {
	return cmp.Or(cmp.Compare(p.Share, q.Share), cmp.Compare(p.Batch, q.Batch), cmp.Compare(p.Processes, q.Processes))
}

// Profile is a model measured on one device.
type Profile struct {
	Header Header
	// Points are ascending (Point.Compare), none twice.
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

// Knee is where more of the device buys little for a batch (GSLICE 2.1.3).
type Knee struct {
	Batch int `json:"batch"`
	// Share is in the header's unit.
	Share int `json:"share"`
}
