//go:build cgo

package mig

import (
	"testing"

	lib "github.com/NVIDIA/go-nvml/pkg/nvml"
)

// The names are those of nvidia-smi (NVIDIA MIG User Guide, Supported MIG Profiles).
// The memory is what nvidia-smi prints for the whole GPU and for the profile.
func TestProfileName(t *testing.T) {
	for _, c := range []struct {
		gpu            string
		memoryMiB      uint64
		number, slices int
		profileMiB     uint64
		name           string
	}{
		{"A30", 24576, lib.GPU_INSTANCE_PROFILE_1_SLICE, 1, 5949, "1g.6gb"},
		{"A30", 24576, lib.GPU_INSTANCE_PROFILE_2_SLICE, 2, 11970, "2g.12gb"},
		{"A30", 24576, lib.GPU_INSTANCE_PROFILE_4_SLICE, 4, 24002, "4g.24gb"},
		{"A100-40", 40960, lib.GPU_INSTANCE_PROFILE_7_SLICE, 7, 40192, "7g.40gb"},
		{"A100-80", 81920, lib.GPU_INSTANCE_PROFILE_1_SLICE, 1, 9728, "1g.10gb"},
		{"A100-80", 81920, lib.GPU_INSTANCE_PROFILE_1_SLICE_REV1, 1, 9728, "1g.10gb+me"},
		{"A100-80", 81920, lib.GPU_INSTANCE_PROFILE_1_SLICE_REV2, 1, 19968, "1g.20gb"},
		{"A100-80", 81920, lib.GPU_INSTANCE_PROFILE_3_SLICE, 3, 40192, "3g.40gb"},
		{"H100-80", 81559, lib.GPU_INSTANCE_PROFILE_2_SLICE, 2, 20090, "2g.20gb"},
		{"H100-80", 81559, lib.GPU_INSTANCE_PROFILE_7_SLICE, 7, 81152, "7g.80gb"},
		{"H200", 143771, lib.GPU_INSTANCE_PROFILE_1_SLICE, 1, 16384, "1g.18gb"},
		{"H200", 143771, lib.GPU_INSTANCE_PROFILE_2_SLICE, 2, 33280, "2g.35gb"},
		{"H200", 143771, lib.GPU_INSTANCE_PROFILE_3_SLICE, 3, 71168, "3g.71gb"},
		{"H200", 143771, lib.GPU_INSTANCE_PROFILE_7_SLICE, 7, 143360, "7g.141gb"},
	} {
		info := lib.GpuInstanceProfileInfo{SliceCount: uint32(c.slices), MemorySizeMB: c.profileMiB}
		if got := profileName(c.number, info, c.memoryMiB<<20); got != c.name {
			t.Errorf("%s: %d MiB of %d are named %s, want %s", c.gpu, c.profileMiB, c.memoryMiB, got, c.name)
		}
	}
}
