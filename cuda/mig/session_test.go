//go:build cgo

package mig_test

import (
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"

	lib "github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxa100"
	"pgregory.net/rapid"

	"github.com/penstock/penstock/cuda/mig"
	"github.com/penstock/penstock/cuda/nvml"
	"github.com/penstock/penstock/internal/testing/migfake"
	"github.com/penstock/penstock/internal/testing/must"
)

// failer is the common part of rapid's and testing's T.
type failer interface {
	Helper()
	Fatal(...any)
	Fatalf(string, ...any)
}

// dgx returns go-nvml's mock of a DGX A100 (eight A100-SXM4-40GB), and a session on it.
// The mock refuses what a real GPU refuses. MIG mode is on for the GPUs in modes.
func dgx(t failer, modes ...int) (*migfake.Server, mig.Session) {
	t.Helper()
	s := migfake.Over(dgxa100.New())
	for _, i := range modes {
		d, _ := s.DeviceGetHandleByIndex(i)
		if ret, activation := d.SetMigMode(lib.DEVICE_MIG_ENABLE); ret != lib.SUCCESS || activation != lib.SUCCESS {
			t.Fatal(ret, activation)
		}
	}
	session, err := mig.Over(s)
	must.OK(t, err)
	return s, session
}

func list(t failer, s mig.Session) []mig.GPU {
	t.Helper()
	gpus, err := s.GPUs()
	must.OK(t, err)
	return gpus
}

// apply changes a machine to the desired state.
func apply(t failer, s mig.Session, wanted []mig.Placement) error {
	t.Helper()
	steps, err := mig.Steps(list(t, s), wanted)
	must.OK(t, err)
	return mig.Do(s, steps, nil)
}

// places returns the placements of a GPU's instances, without their ids.
func places(g mig.GPU) []mig.Placement {
	var list []mig.Placement
	for _, i := range g.Instances {
		list = append(list, mig.Placement{GPU: g.UUID, Profile: i.Profile, Start: i.Start})
	}
	return list
}

func TestPlacementTable(t *testing.T) {
	_, s := dgx(t, 0)
	gpus := list(t, s)
	if len(gpus) != 8 || !gpus[0].MIG || gpus[1].MIG || !strings.HasPrefix(gpus[0].UUID, "GPU-") {
		t.Fatalf("%+v", gpus)
	}
	want := []mig.Profile{
		{Name: "1g.5gb", Number: 0, Slices: 1, Size: 1, Starts: []int{0, 1, 2, 3, 4, 5, 6}},
		{Name: "2g.10gb", Number: 1, Slices: 2, Size: 2, Starts: []int{0, 2, 4}},
		{Name: "3g.20gb", Number: 2, Slices: 3, Size: 4, Starts: []int{0, 4}},
		{Name: "4g.20gb", Number: 3, Slices: 4, Size: 4, Starts: []int{0}},
		{Name: "7g.40gb", Number: 4, Slices: 7, Size: 8, Starts: []int{0}},
		{Name: "1g.5gb+me", Number: 7, Slices: 1, Size: 1, Starts: []int{0, 1, 2, 3, 4, 5, 6}},
		{Name: "1g.10gb", Number: 9, Slices: 1, Size: 2, Starts: []int{0, 2, 4, 6}},
	}
	if !reflect.DeepEqual(gpus[0].Profiles, want) || !reflect.DeepEqual(gpus[1].Profiles, want) {
		t.Errorf("profiles %+v", gpus[0].Profiles)
	}
}

func TestDo(t *testing.T) {
	_, s := dgx(t, 0, 1)
	gpus := list(t, s)
	wanted := []mig.Placement{
		{gpus[0].UUID, "2g.10gb", 0}, {gpus[0].UUID, "1g.5gb", 3}, {gpus[0].UUID, "3g.20gb", 4},
		{gpus[1].UUID, "7g.40gb", 0},
	}
	must.OK(t, apply(t, s, wanted))
	gpus = list(t, s)
	if got := append(places(gpus[0]), places(gpus[1])...); !slices.Equal(got, wanted) {
		t.Errorf("cut into %+v", got)
	}
	for _, i := range append(gpus[0].Instances, gpus[1].Instances...) {
		if len(i.Compute) != 1 || i.Compute[0].Slices != i.Slices || !strings.HasPrefix(i.UUID, "MIG-") {
			t.Errorf("%+v is not one device", i)
		}
	}
	if steps, err := mig.Steps(gpus, wanted); err != nil || len(steps) != 0 {
		t.Errorf("a second time there is to do %v, %v", steps, err)
	}
}

func TestInstanceInUse(t *testing.T) {
	server, s := dgx(t, 0)
	gpu := list(t, s)[0].UUID
	before := []mig.Placement{{gpu, "3g.20gb", 0}, {gpu, "3g.20gb", 4}}
	must.OK(t, apply(t, s, before))
	server.Run(0, 4, true)
	if in := list(t, s)[0].Instances; len(in[0].PIDs) != 0 || len(in[1].PIDs) != 1 || in[0].UUID == in[1].UUID {
		t.Errorf("%+v, want a process in the second", in)
	}
	err := apply(t, s, []mig.Placement{{gpu, "7g.40gb", 0}})
	var f *mig.Failure
	if !errors.As(err, &f) || !errors.Is(err, lib.ERROR_IN_USE) || !errors.Is(err, mig.ErrInUse) || f.UndoErr != nil || len(f.Left) != 0 {
		t.Fatalf("%v", err)
	}
	for _, want := range []string{"destroy compute instance 0 (3 slices) of 3g.20gb in slots 4–7 of GPU 0 (" + gpu, "end the process", "the 2 steps before it were undone"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not say %q:\n%v", want, err)
		}
	}
	if got := places(list(t, s)[0]); !slices.Equal(got, before) {
		t.Errorf("cut into %+v", got)
	}
	server.Run(0, 4, false)
	if err := apply(t, s, []mig.Placement{{gpu, "7g.40gb", 0}}); err != nil {
		t.Errorf("after its end: %v", err)
	}
}

func TestDriverErrors(t *testing.T) {
	_, s := dgx(t, 0)
	gpu := list(t, s)[0].UUID
	must.OK(t, apply(t, s, []mig.Placement{{gpu, "2g.10gb", 2}}))
	create := mig.Step{Op: mig.CreateInstance, GPU: gpu, Profile: "3g.20gb", Number: 2, Start: 0, Size: 4}
	for _, c := range []struct {
		step mig.Step
		err  error
		want string
	}{
		{create, lib.ERROR_INSUFFICIENT_RESOURCES, "2g.10gb lies in slots 2–3"},
		{mig.Step{Op: mig.CreateInstance, GPU: gpu, Profile: "3g.20gb", Number: 2, Start: 2, Size: 4}, mig.ErrPlacement, "it can start at 0 or 4"},
		{mig.Step{Op: mig.DestroyInstance, GPU: gpu, Profile: "2g.10gb", Number: 1, Start: 2, Size: 2}, lib.ERROR_IN_USE, "a compute instance is left"},
		{mig.Step{Op: mig.DestroyInstance, GPU: gpu, Profile: "2g.10gb", Number: 1, Start: 4, Size: 2}, nil, "there is none"},
		{mig.Step{Op: mig.DestroyInstance, GPU: "GPU-none", Profile: "2g.10gb", Number: 1, Start: 4, Size: 2}, lib.ERROR_NOT_FOUND, "nvmlDeviceGetHandleByUUID of GPU-none"},
		{mig.Step{Op: mig.CreateCompute, GPU: gpu, Profile: "2g.10gb", Number: 1, Start: 2, Size: 2, Compute: mig.Compute{Slices: 1}}, lib.ERROR_INSUFFICIENT_RESOURCES, "create a compute instance (1 slice)"},
		{mig.Step{Op: mig.CreateCompute, GPU: gpu, Profile: "2g.10gb", Number: 1, Start: 2, Size: 2, Compute: mig.Compute{Slices: 3}}, nil, "no compute profile of 3 slices"},
		{mig.Step{Op: mig.DestroyCompute, GPU: gpu, Profile: "2g.10gb", Number: 1, Start: 2, Size: 2, Compute: mig.Compute{ID: 5}}, nil, "there is none"},
		{mig.Step{Op: mig.EnableMode, GPU: gpu}, mig.ErrMode, "nvidia-smi"},
	} {
		err := s.Take(c.step)
		if err == nil || c.err != nil && !errors.Is(err, c.err) || !strings.Contains(err.Error(), c.want) || !strings.HasPrefix(err.Error(), c.step.String()) {
			t.Errorf("%v:\n%v\nwant …%s…", c.step, err, c.want)
		}
	}
}

func TestDoubleMemorySlice(t *testing.T) {
	_, s := dgx(t, 0)
	gpu := list(t, s)[0].UUID
	must.OK(t, apply(t, s, []mig.Placement{{gpu, "4g.20gb", 0}, {gpu, "1g.10gb", 4}, {gpu, "1g.10gb", 6}}))
	err := s.Take(mig.Step{Op: mig.CreateInstance, GPU: gpu, Profile: "1g.5gb", Number: 0, Start: 5, Size: 1})
	if !errors.Is(err, lib.ERROR_INSUFFICIENT_RESOURCES) || !strings.Contains(err.Error(), "1g.10gb lies in slots 4–5") {
		t.Errorf("%v", err)
	}
}

func TestOnlyRoot(t *testing.T) {
	server, s := dgx(t, 0)
	server.Demote()
	if _, err := s.GPUs(); !errors.Is(err, lib.ERROR_NO_PERMISSION) || !strings.Contains(err.Error(), "root") {
		t.Errorf("%v", err)
	}
}

// old is a driver that lacks a function.
type old struct{ *migfake.Server }

func (o old) Extensions() lib.ExtendedInterface { return noSymbols{} }

type noSymbols struct{ lib.ExtendedInterface }

func (noSymbols) LookupSymbol(s string) error {
	if s == "nvmlDeviceCreateGpuInstanceWithPlacement" {
		return errors.New("not there")
	}
	return nil
}

func TestOldDriver(t *testing.T) {
	server, _ := dgx(t)
	if _, err := mig.Over(old{server}); !errors.Is(err, nvml.ErrUnavailable) || !strings.Contains(err.Error(), "nvmlDeviceCreateGpuInstanceWithPlacement") {
		t.Errorf("%v", err)
	}
}

// drawPlacements draws a valid set of instances for a GPU.
func drawPlacements(t *rapid.T, g mig.GPU, label string) []mig.Placement {
	var wanted []mig.Placement
	left := 7
	for slot := 0; slot < 8; {
		var fit []mig.Profile
		for _, p := range g.Profiles {
			if slices.Contains(p.Starts, slot) && p.Slices <= left {
				fit = append(fit, p)
			}
		}
		pick := rapid.IntRange(0, len(fit)).Draw(t, label)
		if pick == len(fit) {
			slot++
			continue
		}
		wanted = append(wanted, mig.Placement{GPU: g.UUID, Profile: fit[pick].Name, Start: slot})
		slot += fit[pick].Size
		left -= fit[pick].Slices
	}
	return wanted
}

// Change from any state to any other. The desired instances exist afterwards, and
// instances that stay are the same ones as before. If a call is refused half-way, the
// state is as before.
func TestStepsProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		server, s := dgx(t, 0, 1)
		gpus := list(t, s)[:2]
		var before, after []mig.Placement
		for _, g := range gpus {
			before = append(before, drawPlacements(t, g, "before")...)
			after = append(after, drawPlacements(t, g, "after")...)
		}
		must.OK(t, apply(t, s, before))
		gpus = list(t, s)[:2]
		steps, err := mig.Steps(gpus, after)
		must.OK(t, err)
		failAt := rapid.IntRange(0, len(steps)).Draw(t, "refused") // 0: none
		if failAt > 0 {
			server.FailAt(failAt, lib.ERROR_UNKNOWN)
		}
		err = mig.Do(s, steps, nil)
		now := list(t, s)[:2]
		for k, g := range now {
			want := filter(after, g.UUID)
			if failAt > 0 || len(want) == 0 {
				want = filter(before, g.UUID)
			}
			if got := places(g); !slices.Equal(got, want) {
				t.Fatalf("refused at %d (%v): %v is cut into %v, want %v", failAt, err, g, got, want)
			}
			for _, i := range g.Instances {
				if len(i.Compute) != 1 || i.Compute[0].Slices != i.Slices {
					t.Fatalf("%+v is not one device", i)
				}
				same := slices.ContainsFunc(gpus[k].Instances, func(j mig.Instance) bool { return j.ID == i.ID })
				was := slices.Contains(before, mig.Placement{GPU: g.UUID, Profile: i.Profile, Start: i.Start})
				if failAt == 0 && was && !same {
					t.Fatalf("%+v was there, and was made anew", i)
				}
			}
		}
		var f *mig.Failure
		if failAt > 0 != errors.As(err, &f) {
			t.Fatalf("refused at %d: %v", failAt, err)
		}
	})
}

func filter(list []mig.Placement, gpu string) []mig.Placement {
	var own []mig.Placement
	for _, p := range list {
		if p.GPU == gpu {
			own = append(own, p)
		}
	}
	return own
}
