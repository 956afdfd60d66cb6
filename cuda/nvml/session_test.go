//go:build cgo

package nvml

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/testing/must"
)

// runInChild runs f in a separate process. A process binds the C library's functions only
// once, so each test that loads its own library needs one.
func runInChild(t *testing.T, library string, f func(*testing.T, Session)) {
	t.Helper()
	if os.Getenv("NVML_TEST_APART") != t.Name() {
		cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
		cmd.Env = append(os.Environ(), "NVML_TEST_APART="+t.Name())
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v:\n%s", err, out)
		}
		return
	}
	s, err := open(library)
	must.OK(t, err)
	f(t, s)
}

// build compiles the fake library.
func build(t *testing.T, flags ...string) string {
	t.Helper()
	cc, err := exec.LookPath("cc")
	if err != nil {
		t.Skip("no C compiler to build the fake library with")
	}
	path := filepath.Join(t.TempDir(), "libnvidia-ml.so.1")
	args := append([]string{"-shared", "-fPIC", "-o", path, "testdata/nvml.c"}, flags...)
	if out, err := exec.Command(cc, args...).CombinedOutput(); err != nil {
		t.Fatalf("%v:\n%s", err, out)
	}
	return path
}

const (
	first, second = "GPU-11111111-0000-0000-0000-000000000000", "GPU-22222222-0000-0000-0000-000000000000"
	instance      = "MIG-33333333-0000-0000-0000-000000000000"
)

func TestSession(t *testing.T) {
	runInChild(t, build(t), func(t *testing.T, s Session) {
		version, cuda, err := s.Driver()
		if err != nil || version != "580.95.05" || cuda != 13000 {
			t.Errorf("driver %q, CUDA %d, %v", version, cuda, err)
		}
		devices, err := s.Devices()
		want := []Device{
			{UUID: first, Name: "Fake One", MemoryBytes: 1000},
			{UUID: second, Name: "Fake Two", MemoryBytes: 1000, ComputeMode: ExclusiveProcess, MIG: true},
		}
		if err != nil || !slices.Equal(devices, want) {
			t.Errorf("devices %+v, %v", devices, err)
		}
		u, err := s.Usage(first)
		if want := (Usage{UsedBytes: 300, FreeBytes: 600, TotalBytes: 1000, BusyPercent: 70}); err != nil || u != want {
			t.Errorf("usage %+v, %v", u, err)
		}
		if u, err = s.Usage(second); err != nil || u.BusyPercent != 0 || u.UsedBytes != 300 {
			t.Errorf("usage where there are no rates: %+v, %v", u, err)
		}
		p, err := s.Processes(first)
		if want := []Process{{PID: 500, UsedBytes: 30}, {PID: 700, UsedBytes: 100, MPS: true}}; err != nil || !slices.Equal(p, want) {
			t.Errorf("processes %+v, %v", p, err)
		}
		if p, err = s.Processes(second); err != nil || len(p) != 0 {
			t.Errorf("processes of an idle device: %+v, %v", p, err)
		}
		in, err := s.Instances()
		if want := (Instance{UUID: instance, GPU: second, Name: "Fake Two MIG 3g.69gb", SMs: 60, MemoryBytes: 71000 << 20}); err != nil || !slices.Equal(in, []Instance{want}) {
			t.Errorf("instances %+v, %v", in, err)
		}
		if found, err := FindInstance(s, "mig-333"); err != nil || found.UUID != instance {
			t.Errorf("found %+v, %v", found, err)
		}
		if _, err := FindInstance(s, "MIG-4"); !errors.Is(err, ErrNoDevice) || !strings.Contains(err.Error(), instance+" (Fake Two MIG 3g.69gb)") {
			t.Errorf("an unknown instance: %v", err)
		}
		if u, err = s.Usage(instance); err != nil || u.TotalBytes != 1000 {
			t.Errorf("usage of an instance: %+v, %v", u, err)
		}
		if p, err = s.Processes(instance); err != nil || len(p) != 0 {
			t.Errorf("processes that the driver does not list: %+v, %v", p, err)
		}
	})
}

func TestOldDriver(t *testing.T) {
	runInChild(t, build(t, "-DOLD"), func(t *testing.T, s Session) {
		if version, cuda, err := s.Driver(); err != nil || version != "580.95.05" || cuda != 0 {
			t.Errorf("driver %q, CUDA %d, %v", version, cuda, err)
		}
		if devices, err := s.Devices(); err != nil || len(devices) != 2 || devices[1].MIG {
			t.Errorf("devices %+v, %v", devices, err)
		}
		if u, err := s.Usage(first); err != nil || u.UsedBytes != 400 {
			t.Errorf("usage %+v, %v", u, err)
		}
		if p, err := s.Processes(first); err != nil || !slices.Equal(p, []Process{{PID: 500, UsedBytes: 30}}) {
			t.Errorf("processes %+v, %v", p, err)
		}
		if in, err := s.Instances(); err != nil || len(in) != 0 {
			t.Errorf("instances %+v, %v", in, err)
		}
	})
}

func TestErrors(t *testing.T) {
	runInChild(t, build(t), func(t *testing.T, s Session) {
		for _, uuid := range []string{"GPU-33333333-0000-0000-0000-000000000000", "nonsense"} {
			if _, err := s.Usage(uuid); !errors.Is(err, ErrNoDevice) || !strings.Contains(err.Error(), uuid) {
				t.Errorf("of %s: %v", uuid, err)
			}
		}
		ask := map[string]func() error{
			"nvmlSystemGetDriverVersion":                 func() error { _, _, err := s.Driver(); return err },
			"nvmlSystemGetCudaDriverVersion_v2":          func() error { _, _, err := s.Driver(); return err },
			"nvmlDeviceGetCount_v2":                      func() error { _, err := s.Devices(); return err },
			"nvmlDeviceGetHandleByIndex_v2":              func() error { _, err := s.Devices(); return err },
			"nvmlDeviceGetUUID":                          func() error { _, err := s.Devices(); return err },
			"nvmlDeviceGetName":                          func() error { _, err := s.Devices(); return err },
			"nvmlDeviceGetComputeMode":                   func() error { _, err := s.Devices(); return err },
			"nvmlDeviceGetMigMode":                       func() error { _, err := s.Devices(); return err },
			"nvmlDeviceGetMemoryInfo_v2":                 func() error { _, err := s.Usage(first); return err },
			"nvmlDeviceGetUtilizationRates":              func() error { _, err := s.Usage(first); return err },
			"nvmlDeviceGetComputeRunningProcesses_v3":    func() error { _, err := s.Processes(first); return err },
			"nvmlDeviceGetMPSComputeRunningProcesses_v3": func() error { _, err := s.Processes(first); return err },
		}
		for name, f := range ask {
			os.Setenv("FAKE_NVML_REFUSE", name)
			os.Setenv("FAKE_NVML_STATUS", "999")
			err := f()
			var refusal *Error
			if !errors.As(err, &refusal) || !strings.Contains(strings.TrimSuffix(name, "_v2"), strings.TrimSuffix(refusal.Op, "_v2")) {
				t.Errorf("%s refused: %v", name, err)
			}
		}
		os.Setenv("FAKE_NVML_REFUSE", "nvmlDeviceGetMemoryInfo_v2")
		for _, status := range []string{"15", "16"} { // lost; to be reset
			os.Setenv("FAKE_NVML_STATUS", status)
			if _, err := s.Usage(first); !errors.Is(err, ErrLost) {
				t.Errorf("status %s: %v", status, err)
			}
		}
	})
}

func TestNoLibrary(t *testing.T) {
	_, err := open("/nowhere/libnvidia-ml.so.1")
	if !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "/nowhere/libnvidia-ml.so.1 cannot be loaded; it comes with NVIDIA's driver") {
		t.Error(err)
	}
}

func TestInvalidLibrary(t *testing.T) {
	if os.Getenv("NVML_TEST_APART") == "" { // otherwise its functions would stay bound in this process
		runInChild(t, "", nil)
		return
	}
	path := filepath.Join(t.TempDir(), "lib.so")
	source := filepath.Join(t.TempDir(), "lib.c")
	os.WriteFile(source, []byte("int nvmlInit(void) { return 0; }\nint nvmlInit_v2(void) { return 0; }\n"), 0o600)
	if out, err := exec.Command("cc", "-shared", "-fPIC", "-o", path, source).CombinedOutput(); err != nil {
		t.Skipf("no C compiler: %v %s", err, out)
	}
	_, err := open(path)
	if !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "has no nvml") {
		t.Error(err)
	}
}

func TestOpenOnce(t *testing.T) {
	a, errA := Open()
	b, errB := Open()
	if a != b || !reflect.DeepEqual(errA, errB) {
		t.Errorf("%v, %v and %v, %v", a, errA, b, errB)
	}
	if errA != nil && !errors.Is(errA, ErrUnavailable) {
		t.Error(errA)
	}
}
