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

// apply divides a GPU into these instances.
func apply(t failer, s mig.Session, gpu int, wanted []mig.Instance) error {
	t.Helper()
	for _, step := range list(t, s)[gpu].Steps(wanted) {
		if err := s.Take(step); err != nil {
			return err
		}
	}
	return nil
}

// instance is one that processes see as one device.
func instance(profile string, start, size, slices int) mig.Instance {
	return mig.Instance{Profile: profile, Slices: slices, Start: start, Size: size, Compute: []mig.Compute{{Slices: slices}}}
}

// places returns a GPU's instances without their ids.
func places(g mig.GPU) (list []mig.Instance) {
	for _, i := range g.Instances {
		list = append(list, instance(i.Profile, i.Start, i.Size, i.Compute[0].Slices))
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

func TestSteps(t *testing.T) {
	_, s := dgx(t, 0, 1)
	for gpu, wanted := range [][]mig.Instance{
		{instance("2g.10gb", 0, 2, 2), instance("1g.5gb", 3, 1, 1), instance("3g.20gb", 4, 4, 3)},
		{instance("7g.40gb", 0, 8, 7)},
	} {
		must.OK(t, apply(t, s, gpu, wanted))
		g := list(t, s)[gpu]
		if got := places(g); !reflect.DeepEqual(got, wanted) {
			t.Errorf("cut into %+v", got)
		}
		for _, i := range g.Instances {
			if !i.IsComplete() || !strings.HasPrefix(i.UUID, "MIG-") {
				t.Errorf("%+v is not one device", i)
			}
		}
	}
}

func TestInstanceInUse(t *testing.T) {
	server, s := dgx(t, 0)
	before := []mig.Instance{instance("3g.20gb", 0, 4, 3), instance("3g.20gb", 4, 4, 3)}
	must.OK(t, apply(t, s, 0, before))
	server.Run(0, 4, true)
	if in := list(t, s)[0].Instances; len(in[0].PIDs) != 0 || len(in[1].PIDs) != 1 || in[0].UUID == in[1].UUID {
		t.Errorf("%+v, want a process in the second", in)
	}
	seven := []mig.Instance{instance("7g.40gb", 0, 8, 7)}
	err := apply(t, s, 0, seven)
	if !errors.Is(err, lib.ERROR_IN_USE) || !errors.Is(err, mig.ErrInUse) {
		t.Fatalf("%v", err)
	}
	for _, want := range []string{"destroy compute instance 0 (3 slices) of 3g.20gb in slots 4–7 of GPU 0 (GPU-", "end the process"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not say %q:\n%v", want, err)
		}
	}
	server.Run(0, 4, false)
	if err := apply(t, s, 0, seven); err != nil {
		t.Errorf("after its end: %v", err)
	}
}

func TestDriverErrors(t *testing.T) {
	_, s := dgx(t, 0)
	gpu := list(t, s)[0].UUID
	must.OK(t, apply(t, s, 0, []mig.Instance{instance("2g.10gb", 2, 2, 2)}))
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
	must.OK(t, apply(t, s, 0, []mig.Instance{instance("4g.20gb", 0, 4, 4), instance("1g.10gb", 4, 2, 1), instance("1g.10gb", 6, 2, 1)}))
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

// drawInstances draws a valid set of instances for a GPU.
func drawInstances(t *rapid.T, g mig.GPU, label string) (wanted []mig.Instance) {
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
		p := fit[pick]
		wanted = append(wanted, instance(p.Name, slot, p.Size, p.Slices))
		slot += p.Size
		left -= p.Slices
	}
	return wanted
}

// Change from any state to any other, and back from any step at which a call is refused. The desired instances exist
// afterwards, and instances that stay are the same ones as before.
func TestStepsProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		server, s := dgx(t, 0)
		g := list(t, s)[0]
		before, after := drawInstances(t, g, "before"), drawInstances(t, g, "after")
		must.OK(t, apply(t, s, 0, before))
		g = list(t, s)[0]
		failAt := rapid.IntRange(0, len(g.Steps(after))).Draw(t, "refused") // 0: none
		if failAt > 0 {
			server.FailAt(failAt, lib.ERROR_UNKNOWN)
		}
		if err := apply(t, s, 0, after); failAt > 0 != errors.Is(err, lib.ERROR_UNKNOWN) {
			t.Fatalf("refused at %d: %v", failAt, err)
		}
		want := after
		if failAt > 0 {
			want = before
			must.OK(t, apply(t, s, 0, before))
		}
		now := list(t, s)[0]
		if got := places(now); !reflect.DeepEqual(got, want) {
			t.Fatalf("refused at %d: cut into %v, want %v", failAt, got, want)
		}
		for _, i := range now.Instances {
			same := func(j mig.Instance) bool { return j.Profile == i.Profile && j.Start == i.Start }
			at := slices.IndexFunc(g.Instances, same)
			if failAt == 0 && at >= 0 && g.Instances[at].ID != i.ID {
				t.Fatalf("%+v was there, and was made anew", i)
			}
		}
	})
}
