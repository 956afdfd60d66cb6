package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Version is the version of the plan's JSON form.
const Version = 1

// Mixed is the gpu_model of a plan on several models of GPU; its segments name
// their own.
const Mixed = "mixed"

// A Plan describes which GPUs, cut into which segments, serve which services. It
// is pure data. `penstock plan -o json` writes its JSON form, and `--from` reads
// it.
type Plan struct {
	Version int    `json:"version"`
	Policy  string `json:"policy"`
	// GPUModel is the GPU's name, or Mixed.
	GPUModel string `json:"gpu_model"`
	// GPUs is the number of GPUs in use. Segments number them from 0. Only
	// IdleGPUs are gaps.
	GPUs int `json:"gpus"`
	// GPCs is the sum of the segments' sizes.
	GPCs int `json:"gpcs"`
	// InternalSlack is 1 − Σ SMs × load / throughput over Σ SMs: the share of the
	// segments' multiprocessors that the rates leave idle. The paper measures it
	// as SM activity (Eq. 3).
	InternalSlack float64 `json:"internal_slack"`
	// ExternalFragmentation is the paper's Eq. 4: 1 − Σ SMs of segments over Σ
	// SMs of the GPUs in use, with SMsPerGPU each.
	ExternalFragmentation float64 `json:"external_fragmentation"`
	// Optimal means that the policy has proved that no legal plan within the same
	// latency bounds uses fewer GPUs.
	Optimal bool `json:"optimal"`
	// DelayMS is how long the policy took; its caller measures it.
	DelayMS  float64    `json:"delay_ms"`
	Services []Assigned `json:"services"`
	Segments []Segment  `json:"segments"`

	// SMsPerGPU is the SM count for Eq. 4, by model of GPU in use: the
	// multiprocessors that segments can use (GPU.UsableSMs).
	SMsPerGPU map[string]int `json:"sms_per_gpu"`
	// LowerBound is a proved lower bound of the number of GPUs; 0 if the policy
	// proves none.
	LowerBound int `json:"lower_bound,omitempty"`
	// IdleGPUs are GPU numbers without segments, ascending. A change of a plan
	// keeps the number of a GPU that it emptied, so that the other GPUs keep
	// theirs.
	IdleGPUs []int `json:"idle_gpus,omitempty"`
	// Notes are sentences about the plan for its reader.
	Notes []string `json:"notes,omitempty"`
}

// Assigned is a service in a plan.
type Assigned struct {
	Service        string  `json:"service"`
	Model          string  `json:"model"`
	RateRPS        float64 `json:"rate_rps"`
	SLOMS          float64 `json:"slo_ms"`
	LatencyBoundMS float64 `json:"latency_bound_ms"`
	// AssignedRPS is the total throughput of the service's segments.
	AssignedRPS float64 `json:"assigned_rps"`
}

// A Segment is a part of a GPU that serves one service. It is an MPS-enabled
// MIG instance in the paper's terms, or an MPS share if GPU.Percent.
type Segment struct {
	// GPU is the number of the GPU within the plan, from 0.
	GPU int `json:"gpu"`
	// GPUModel is the GPU's name. Segments on the same GPU have the same
	// GPUModel.
	GPUModel string `json:"gpu_model"`
	// Slot is the first slot that the segment covers.
	Slot int `json:"slot"`
	// GPCs is the segment's size: compute slices, or steps of multiprocessors if
	// GPU.Percent.
	GPCs int `json:"size_gpcs"`
	// SharePercent is Point.SharePercent.
	SharePercent float64 `json:"share_percent,omitempty"`

	Service   string `json:"service"`
	Model     string `json:"model"`
	Batch     int    `json:"batch"`
	Processes int    `json:"processes"`
	// ThroughputRPS is the total of all its processes.
	ThroughputRPS float64 `json:"throughput_rps"`
	LatencyMS     float64 `json:"latency_ms"`
	// LoadRPS is the part of the service's rate that the segment carries. A
	// service's loads are proportional to the throughputs and add up to the rate.
	LoadRPS float64 `json:"load_rps"`
}

// Point returns the operating point of the segment. Its memory is not in the plan
// and is 0.
func (s Segment) Point() Point {
	return Point{GPCs: s.GPCs, SharePercent: s.SharePercent, Batch: s.Batch, Processes: s.Processes, ThroughputRPS: s.ThroughputRPS, LatencyMS: s.LatencyMS}
}

// SegmentOf returns the segment of a service at a point in a slot of a GPU. Its
// load is 0 until New divides the rates.
func SegmentOf(gpu int, g GPU, slot int, s Service, pt Point) Segment {
	return Segment{GPU: gpu, GPUModel: g.Name, Slot: slot, GPCs: pt.GPCs, SharePercent: pt.SharePercent, Service: s.Name, Model: s.Model,
		Batch: pt.Batch, Processes: pt.Processes, ThroughputRPS: pt.ThroughputRPS, LatencyMS: pt.LatencyMS}
}

// New makes the plan with the given segments, and takes ownership of them. It
// numbers the GPUs from 0 without gaps, in the order of their old numbers. It
// sorts segments by GPU and slot, and services in the problem's order. It divides
// each service's rate in proportion to throughput, computes the counts and
// metrics, and notes estimates. It does not check the plan: planner/verify does.
func New(p *Problem, policy string, segments []Segment) *Plan {
	slices.SortStableFunc(segments, func(a, b Segment) int { return cmp.Or(a.GPU-b.GPU, a.Slot-b.Slot) })
	last, next := 0, -1
	for i := range segments {
		if i == 0 || segments[i].GPU != last {
			last = segments[i].GPU
			next++
		}
		segments[i].GPU = next
	}
	pl := &Plan{Version: Version, Policy: policy, GPUs: next + 1, Segments: segments, SMsPerGPU: map[string]int{}}
	throughput := make(map[string]float64, len(p.Services))
	for _, s := range segments {
		throughput[s.Service] += s.ThroughputRPS
		pl.GPCs += s.GPCs
	}
	rate := make(map[string]float64, len(p.Services))
	for _, s := range p.Services {
		rate[s.Name] = s.RateRPS
		pl.Services = append(pl.Services, Assigned{Service: s.Name, Model: s.Model, RateRPS: s.RateRPS, SLOMS: s.SLOMS,
			LatencyBoundMS: p.BoundMS(s), AssignedRPS: throughput[s.Name]})
	}
	for i := range segments {
		s := &segments[i]
		s.LoadRPS = rate[s.Service] * s.ThroughputRPS / throughput[s.Service]
	}
	gpus := p.Tables()
	for _, s := range segments {
		pl.SMsPerGPU[s.GPUModel] = gpus[s.GPUModel].UsableSMs()
		switch pl.GPUModel {
		case "", s.GPUModel:
			pl.GPUModel = s.GPUModel
		default:
			pl.GPUModel = Mixed
		}
	}
	pl.Notes = p.Estimates(segments)
	pl.InternalSlack = internalSlack(segments, gpus)
	pl.ExternalFragmentation = externalFragmentation(segments, gpus)
	return pl
}

// Estimates returns notes, one per model of GPU, about segments whose profiles
// are estimates of MIG instances (Profile.HeldBy).
func (p *Problem) Estimates(segments []Segment) (notes []string) {
	models := map[string]map[string]bool{} // by the text of the note
	for _, s := range segments {
		by := p.Profiles[s.GPUModel][s.Model].HeldBy
		if by == "" {
			continue
		}
		what := fmt.Sprintf("on %s the sizes of MIG were measured under %s, which cuts neither memory bandwidth nor cache", s.GPUModel, by)
		if models[what] == nil {
			models[what] = map[string]bool{}
		}
		models[what][s.Model] = true
	}
	for _, what := range sortedKeys(models) {
		notes = append(notes, fmt.Sprintf("%s: the plan for %s is an upper estimate", what, strings.Join(sortedKeys(models[what]), ", ")))
	}
	return notes
}

// internalSlack computes 1 − Σ SMs × load / throughput over Σ SMs of the
// segments; 0 if there are no segments. gpus has the tables by name.
func internalSlack(segments []Segment, gpus map[string]GPU) float64 {
	var all, busy float64
	for _, s := range segments {
		size, _ := gpus[s.GPUModel].Size(s.GPCs)
		all += float64(size.SMs)
		busy += float64(size.SMs) * s.LoadRPS / s.ThroughputRPS
	}
	if all == 0 {
		return 0
	}
	return 1 - busy/all
}

// externalFragmentation is the paper's Eq. 4: 1 − Σ SMs of the segments over Σ
// usable SMs of their GPUs; 0 if there are no segments.
func externalFragmentation(segments []Segment, gpus map[string]GPU) float64 {
	var used, total float64
	seen := map[int]bool{}
	for _, s := range segments {
		g := gpus[s.GPUModel]
		size, _ := g.Size(s.GPCs)
		used += float64(size.SMs)
		if !seen[s.GPU] {
			seen[s.GPU] = true
			total += float64(g.UsableSMs())
		}
	}
	if total == 0 {
		return 0
	}
	return 1 - used/total
}
