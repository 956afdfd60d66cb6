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

// A GPU is a model of GPU and how it can be cut: its placement table. Tables
// are shared and read only: nobody changes one that Lookup returned.
//
// A GPU with MIG is cut into instances. Its slots are memory slices, eight on
// most models though only seven GPCs serve, and an instance of a size covers
// Size.Slots of them from one of Size.Starts on. A legal cut is one in which no
// slot is covered twice; the tables imply that the GPCs then suffice.
//
// A GPU without MIG (Percent) is cut by MPS percentages, which a GPU keeps in
// whole steps of a few multiprocessors. GPCs and Slots are then the number of
// steps in the whole GPU, and there is a size for each number of steps, of one
// slot a step, that may start anywhere. Contiguity means nothing to MPS: any
// set of sizes whose sum is at most Slots can be laid out, and a segment's slot
// only says where a drawing has it.
type GPU struct {
	// Name is the name that commands and files use, as "a100-80".
	Name string
	// SMs is the number of multiprocessors of the whole GPU, some of which may
	// lie in no MIG instance (A100: 108, of which 98 serve under MIG).
	SMs int
	// MemoryMiB is the memory of the whole GPU; 0 where it is not limited.
	MemoryMiB int
	// Slots is the number of positions of the placement table.
	Slots int
	// GPCs is the sum of sizes that a fully used GPU has: compute slices of MIG
	// (7; A30: 4), or steps of multiprocessors where Percent.
	GPCs int
	// Sizes are what can be cut out, ascending by GPCs, one for each number of
	// GPCs. MIG's variants with media engines or twice the memory are left out.
	Sizes []Size
	// Percent says that there is no MIG: shares are MPS percentages.
	Percent bool
	// Clients is how many processes MPS lets onto the GPU at once where Percent;
	// 0 where that is not limited. Under MIG each instance has an MPS of its own.
	Clients int
	// Source says where the table is from.
	Source string
	// Devices are the ends of NVML's product names that this table is for.
	Devices []string
}

// A Size is one way to cut a segment out of a GPU.
type Size struct {
	// GPCs is the size's name: compute slices, or steps where GPU.Percent.
	GPCs int `json:"gpcs"`
	// Slots is how many positions of the placement table it covers.
	Slots int `json:"slots"`
	// SMs is how many multiprocessors it has.
	SMs int `json:"sms"`
	// MemoryMiB is its own memory under MIG; all of the GPU's, shared with the
	// other segments, where GPU.Percent; 0 where it is not limited.
	MemoryMiB int `json:"memory_mib"`
	// Starts are the slots that it may begin at, ascending. Which of them to
	// prefer is a policy's affair.
	Starts []int `json:"starts"`
	// Profile is the name of the MIG profile ("3g.40gb"), empty where
	// GPU.Percent.
	Profile string `json:"profile"`
}

// ErrUnknownGPU is returned by Lookup when no table has the name.
var ErrUnknownGPU = errors.New("no placement table for this GPU")

//go:embed gpus.json
var tableFile []byte

// table is one entry of gpus.json.
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
// program, so a mistake in it is a mistake in the program.
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

// mpsSuffix follows the name of a GPU with MIG in the name of the same GPU with
// MIG off, cut by MPS percentages.
const mpsSuffix = "-mps"

// gpus are the tables of an entry: one for a GPU without MIG; for a GPU with it
// one more, of the same GPU with MIG off.
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

// PercentGPU makes the table of a GPU without MIG that has sms multiprocessors,
// handed out in steps of stepSMs: a size for each number of steps. What is left
// of sms after the last whole step is in no size. Its clients are not limited.
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

// GPUs returns all tables there are, in the order of the file.
func GPUs() []GPU { return slices.Clone(tables()) }

// Lookup returns the table of a GPU by its name. The error wraps ErrUnknownGPU
// and lists the names there are.
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

// ForDevice returns the table for a GPU by the product name that NVML gives
// ("NVIDIA A100-SXM4-80GB"), with MIG where the GPU has it. The error wraps
// ErrUnknownGPU.
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

// Size returns the size of the given number of GPCs (steps where Percent).
func (g GPU) Size(gpcs int) (Size, bool) {
	i, found := slices.BinarySearchFunc(g.Sizes, gpcs, func(s Size, gpcs int) int { return s.GPCs - gpcs })
	if !found {
		return Size{}, false
	}
	return g.Sizes[i], true
}

// UsableSMs is the number of multiprocessors that segments can use: those of
// the largest size. It is the SM count of a single GPU in ParvaGPU's Eq. 4.
func (g GPU) UsableSMs() int { return g.Sizes[len(g.Sizes)-1].SMs }

// Steps is the number of steps of multiprocessors that cover an MPS percentage
// on a GPU without MIG: what a profile point measured at that percentage needs.
// It is 0 for a percentage outside (0, 100].
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

// MayStart says whether a size may begin at a slot.
func (s Size) MayStart(slot int) bool {
	_, found := slices.BinarySearch(s.Starts, slot)
	return found
}
