package plan

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
)

// A GPU is a model of GPU and its placement table, which describes how it can
// be cut. Tables are shared and read-only: do not change one that Lookup
// returned.
//
// A GPU with MIG is cut into instances. Its slots are memory slices: eight on
// most models, although only seven GPCs are usable. An instance of a size
// covers Size.Slots of them, beginning at one of Size.Starts. A cut is legal if
// it covers no slot twice; the tables imply that there are then enough GPCs.
//
// A GPU without MIG (Percent) is cut by MPS percentages, which a GPU rounds to
// whole steps of a few multiprocessors. GPCs and Slots are then the number of
// steps in the whole GPU. There is a size for each number of steps; it has one
// slot per step and may start anywhere. MPS does not need contiguous steps: any
// set of sizes whose sum is at most Slots fits. A segment's slot is only its
// position in drawings.
type GPU struct {
	// Name is the name in commands and files, such as "a100-80".
	Name string
	// SMs is the number of multiprocessors of the whole GPU. Some may be in no
	// MIG instance (A100: 108, of which MIG uses 98).
	SMs int
	// MemoryMiB is the memory of the whole GPU; 0 if it is not limited.
	MemoryMiB int
	// Slots is the number of positions of the placement table.
	Slots int
	// GPCs is the sum of sizes in a full GPU: compute slices of MIG (7; A30:
	// 4), or steps of multiprocessors if Percent.
	GPCs int
	// Sizes are the possible segments, ascending by GPCs, one per number of
	// GPCs. They omit MIG's variants with media engines or twice the memory.
	Sizes []Size
	// Percent means that there is no MIG: shares are MPS percentages.
	Percent bool
	// Clients is the max number of processes that MPS admits to the GPU at
	// once, if Percent; 0 if that is not limited. With MIG, each instance has
	// its own MPS.
	Clients int
	// Source is where the table's data comes from.
	Source string
	// Devices are the suffixes of NVML's product names that this table is for.
	Devices []string
}

// A Size is one way to cut a segment out of a GPU.
type Size struct {
	// GPCs identifies the size: compute slices, or steps if GPU.Percent.
	GPCs int `json:"gpcs"`
	// Slots is how many positions of the placement table the size covers.
	Slots int `json:"slots"`
	// SMs is the size's number of multiprocessors.
	SMs int `json:"sms"`
	// MemoryMiB is the size's own memory under MIG. If GPU.Percent, it is the
	// memory of the whole GPU, which other segments share. It is 0 if the
	// memory is not limited.
	MemoryMiB int `json:"memory_mib"`
	// Starts are the slots at which the size may begin, ascending. A policy
	// decides which of them to prefer.
	Starts []int `json:"starts"`
	// Profile is the name of the MIG profile ("3g.40gb"); empty if GPU.Percent.
	Profile string `json:"profile"`
}

// ErrUnknownGPU is returned by Lookup if no table has the name.
var ErrUnknownGPU = errors.New("no placement table for this GPU")

//go:embed gpus.json
var tableFile []byte

type table struct {
	Name           string   `json:"name"`
	Devices        []string `json:"devices"`
	SMs            int      `json:"sms"`
	MemoryMiB      int      `json:"memory_mib"`
	Slots          int      `json:"slots"`
	GPCs           int      `json:"gpcs"`
	Sizes          []Size   `json:"sizes"`
	PercentStepSMs int      `json:"percent_step_sms"`
	MPSClients     int      `json:"mps_clients"`
	Source         string   `json:"source"`
}

// tables are the GPUs of gpus.json, in its order. The file is part of the
// program, so a mistake in it is a bug.
var tables = sync.OnceValue(func() []GPU {
	var entries []table
	decoder := json.NewDecoder(bytes.NewReader(tableFile))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&entries); err != nil {
		panic(fmt.Sprintf("plan: read gpus.json: %v", err))
	}
	gpus := make([]GPU, 0, len(entries))
	for _, e := range entries {
		gpus = append(gpus, e.gpus()...)
	}
	return gpus
})

// mpsSuffix is appended to the name of a GPU with MIG to name the same GPU with
// MIG off, which is cut by MPS percentages.
const mpsSuffix = "-mps"

// gpus returns the tables of an entry. A GPU without MIG has one. A GPU with
// MIG has a second one, for the same GPU with MIG off.
func (e table) gpus() []GPU {
	percent := PercentGPU(e.Name, e.SMs, e.MemoryMiB, e.PercentStepSMs)
	percent.Source, percent.Devices, percent.Clients = e.Source, e.Devices, e.MPSClients
	if len(e.Sizes) == 0 {
		return []GPU{percent}
	}
	percent.Name += mpsSuffix
	percent.Devices = nil
	percent.Source = fmt.Sprintf("MIG off: %d SMs, which MPS hands out in whole TPCs of %d (measured on an H200: 10, 30 and 60 %% give 12, 38 and 78 of 132); its %d clients: NVIDIA Multi-Process Service guide, Client-Server Connection Limits",
		e.SMs, e.PercentStepSMs, e.MPSClients)
	g := GPU{Name: e.Name, SMs: e.SMs, MemoryMiB: e.MemoryMiB, Slots: e.Slots, GPCs: e.GPCs,
		Sizes: e.Sizes, Source: e.Source, Devices: e.Devices}
	return []GPU{g, percent}
}

// PercentGPU makes the table of a GPU without MIG. It has sms multiprocessors,
// allocated in steps of stepSMs, and a size for each number of steps.
// Multiprocessors after the last whole step are in no size. The number of MPS
// clients is not limited.
func PercentGPU(name string, sms, memoryMiB, stepSMs int) GPU {
	steps := sms / stepSMs
	g := GPU{Name: name, SMs: sms, MemoryMiB: memoryMiB, Slots: steps, GPCs: steps, Percent: true}
	starts := make([]int, steps)
	for i := range starts {
		starts[i] = i
	}
	for n := 1; n <= steps; n++ {
		g.Sizes = append(g.Sizes, Size{GPCs: n, Slots: n, SMs: n * stepSMs, MemoryMiB: memoryMiB, Starts: starts[:steps-n+1]})
	}
	return g
}

// GPUs returns all tables, in the order of the file.
func GPUs() []GPU { return slices.Clone(tables()) }

// Lookup returns the table of a GPU by its name. The error wraps ErrUnknownGPU
// and lists the known names.
func Lookup(name string) (GPU, error) {
	for _, g := range tables() {
		if g.Name == name {
			return g, nil
		}
	}
	var names []string
	for _, g := range tables() {
		names = append(names, g.Name)
	}
	return GPU{}, fmt.Errorf("%q: %w; there are: %s", name, ErrUnknownGPU, strings.Join(names, ", "))
}

// ForDevice returns the table for a GPU by NVML's product name ("NVIDIA
// A100-SXM4-80GB"), with MIG if the GPU has it. The error wraps ErrUnknownGPU.
func ForDevice(product string) (GPU, error) {
	for _, g := range tables() {
		for _, d := range g.Devices {
			if product == d || strings.HasSuffix(product, " "+d) {
				return g, nil
			}
		}
	}
	return GPU{}, fmt.Errorf("device %q: %w", product, ErrUnknownGPU)
}

// ForUncut is ForDevice for a GPU with MIG off.
func ForUncut(product string) (GPU, error) {
	g, err := ForDevice(product)
	if err == nil && !g.Percent {
		return Lookup(g.Name + mpsSuffix)
	}
	return g, err
}

// Size returns the size with the given number of GPCs (steps if Percent).
func (g GPU) Size(gpcs int) (Size, bool) {
	i, found := slices.BinarySearchFunc(g.Sizes, gpcs, func(s Size, gpcs int) int { return s.GPCs - gpcs })
	if !found {
		return Size{}, false
	}
	return g.Sizes[i], true
}

// UsableSMs returns the number of multiprocessors that segments can use: those
// of the largest size. It is the SM count of a single GPU in ParvaGPU's Eq. 4.
func (g GPU) UsableSMs() int { return g.Sizes[len(g.Sizes)-1].SMs }

// Steps returns the number of steps of multiprocessors that cover an MPS
// percentage on a GPU without MIG. A profile point measured at that percentage
// needs so many. It is 0 for a percentage outside (0, 100].
func (g GPU) Steps(percent float64) int {
	if !(percent > 0 && percent <= 100) {
		return 0
	}
	steps := 1
	for float64(steps)*100 < percent*float64(g.GPCs) {
		steps++
	}
	return steps
}

// MayStart reports whether a size may begin at a slot.
func (s Size) MayStart(slot int) bool {
	_, found := slices.BinarySearch(s.Starts, slot)
	return found
}
