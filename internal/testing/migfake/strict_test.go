//go:build cgo

package migfake_test

import (
	"testing"

	lib "github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxa100"

	"github.com/penstock/penstock/internal/testing/migfake"
)

// create requests an instance of a device.
func create(t *testing.T, d lib.Device, profile int, start, size uint32) (lib.GpuInstance, lib.Return) {
	t.Helper()
	info, ret := d.GetGpuInstanceProfileInfo(profile)
	if ret != lib.SUCCESS {
		t.Fatal(ret)
	}
	return d.CreateGpuInstanceWithPlacement(&info, &lib.GpuInstancePlacement{Start: start, Size: size})
}

func device(t *testing.T, s lib.Interface) lib.Device {
	t.Helper()
	d, ret := s.DeviceGetHandleByIndex(0)
	if ret != lib.SUCCESS {
		t.Fatal(ret)
	}
	return d
}

// The mock grants these calls; a GPU does not.
func TestRefuses(t *testing.T) {
	const two, three, seven = lib.GPU_INSTANCE_PROFILE_2_SLICE, lib.GPU_INSTANCE_PROFILE_3_SLICE, lib.GPU_INSTANCE_PROFILE_7_SLICE
	mock := device(t, dgxa100.New())
	refusing := device(t, migfake.Over(dgxa100.New()))
	for _, c := range []struct {
		what        string
		profile     int
		start, size uint32
		ret         lib.Return
	}{
		{"with MIG mode off", three, 4, 4, lib.ERROR_NOT_SUPPORTED},
		{"the first", three, 4, 4, lib.SUCCESS},
		{"the same again", three, 4, 4, lib.ERROR_INSUFFICIENT_RESOURCES},
		{"one in its slots", two, 4, 2, lib.ERROR_INSUFFICIENT_RESOURCES},
		{"one that covers it", seven, 0, 8, lib.ERROR_INSUFFICIENT_RESOURCES},
		{"at a wrong start", two, 1, 2, lib.ERROR_INVALID_ARGUMENT},
		{"of a wrong size", two, 0, 3, lib.ERROR_INVALID_ARGUMENT},
		{"beside it", two, 0, 2, lib.SUCCESS},
	} {
		if _, ret := create(t, mock, c.profile, c.start, c.size); ret != lib.SUCCESS {
			t.Errorf("%s: the mock says %v: it has learnt to refuse, see whether strict is still needed", c.what, ret)
		}
		if _, ret := create(t, refusing, c.profile, c.start, c.size); ret != c.ret {
			t.Errorf("%s: %v, want %v", c.what, ret, c.ret)
		}
		refusing.SetMigMode(lib.DEVICE_MIG_ENABLE)
	}
}

func TestInUse(t *testing.T) {
	s := migfake.Over(dgxa100.New())
	d := device(t, s)
	d.SetMigMode(lib.DEVICE_MIG_ENABLE)
	g, _ := create(t, d, lib.GPU_INSTANCE_PROFILE_3_SLICE, 4, 4)
	info, _ := g.GetComputeInstanceProfileInfo(lib.COMPUTE_INSTANCE_PROFILE_3_SLICE, lib.COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED)
	c, ret := g.CreateComputeInstance(&info)
	if ret != lib.SUCCESS {
		t.Fatal(ret)
	}
	if _, ret := g.CreateComputeInstance(&info); ret != lib.ERROR_INSUFFICIENT_RESOURCES {
		t.Errorf("a second compute instance of all slices: %v", ret)
	}
	if activation, _ := d.SetMigMode(lib.DEVICE_MIG_DISABLE); activation != lib.ERROR_IN_USE {
		t.Errorf("MIG mode off under an instance: %v", activation)
	}
	if ret := g.Destroy(); ret != lib.ERROR_IN_USE {
		t.Errorf("a GPU instance destroyed under a compute instance: %v", ret)
	}
	s.Run(0, 4, true)
	if ret := c.Destroy(); ret != lib.ERROR_IN_USE {
		t.Errorf("a compute instance destroyed under a process: %v", ret)
	}
	s.Run(0, 4, false)
	if ret := c.Destroy(); ret != lib.SUCCESS {
		t.Error(ret)
	}
	if ret := g.Destroy(); ret != lib.SUCCESS {
		t.Error(ret)
	}
	if _, ret := g.GetInfo(); ret != lib.ERROR_INVALID_ARGUMENT {
		t.Errorf("what is destroyed still answers: %v", ret)
	}
	if ret := g.Destroy(); ret != lib.ERROR_INVALID_ARGUMENT {
		t.Errorf("destroyed twice: %v", ret)
	}
}
