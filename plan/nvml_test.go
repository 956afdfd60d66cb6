//go:build cgo

package plan_test

import (
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxa100"
)

// go-nvml's mock records what NVML reported on a DGX A100.
func TestA100MatchesNVML(t *testing.T) {
	profiles := map[int]int{
		1: nvml.GPU_INSTANCE_PROFILE_1_SLICE, 2: nvml.GPU_INSTANCE_PROFILE_2_SLICE, 3: nvml.GPU_INSTANCE_PROFILE_3_SLICE,
		4: nvml.GPU_INSTANCE_PROFILE_4_SLICE, 7: nvml.GPU_INSTANCE_PROFILE_7_SLICE,
	}
	for _, s := range lookup(t, "a100-40").Sizes {
		info := dgxa100.MIGProfiles.GpuInstanceProfiles[profiles[s.GPCs]]
		if int(info.MultiprocessorCount) != s.SMs || int(info.MemorySizeMB) != s.MemoryMiB || int(info.SliceCount) != s.GPCs {
			t.Errorf("size %d: NVML has %d SMs, %d MiB, %d slices", s.GPCs, info.MultiprocessorCount, info.MemorySizeMB, info.SliceCount)
		}
		places := dgxa100.MIGPlacements.GpuInstancePossiblePlacements[profiles[s.GPCs]]
		if len(places) != len(s.Starts) {
			t.Errorf("size %d: NVML has %d placements, the table %d", s.GPCs, len(places), len(s.Starts))
			continue
		}
		for i, p := range places {
			if int(p.Start) != s.Starts[i] || int(p.Size) != s.Slots {
				t.Errorf("size %d: NVML has a placement at %d of %d slots, the table at %d of %d", s.GPCs, p.Start, p.Size, s.Starts[i], s.Slots)
			}
		}
	}
}
