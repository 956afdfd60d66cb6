package check

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/rs/zerolog"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/cuda/nvml"
	"github.com/penstock/penstock/internal/testing/cudafake"
	"github.com/penstock/penstock/internal/testing/mpsfake"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/nvmlfake"
	"github.com/penstock/penstock/orchestrator/mps"
)

// The tests run on a fake driver, whose one GPU is this.
var fakeUUID = cudafake.UUID(0)

// withGPU is a machine without faults, except that ONNX Runtime has no CUDA.
func withGPU(edit func(*nvml.Device)) machine {
	d := nvml.Device{UUID: fakeUUID, Name: "Fake", MemoryBytes: 1 << 30}
	if edit != nil {
		edit(&d)
	}
	s := nvmlfake.New(d)
	s.Hold(fakeUUID, 100<<20)
	return machine{
		openNVML:    func() (nvml.Session, error) { return s, nil },
		tryMPS:      func(context.Context, mps.Options) error { return nil },
		foreignMPS:  func(_, _ string) []mps.Stranger { return nil },
		onnxLibrary: func() (string, error) { return "/nowhere/libonnxruntime.so", nil },
	}
}

func checkGPU(t *testing.T, device string, m machine) map[string]Finding {
	t.Helper()
	return checkGPUIn(t, t.TempDir(), device, m)
}

// checkGPUIn is checkGPU for the runtime folder dir, in which a node may run.
func checkGPUIn(t *testing.T, dir, device string, m machine) map[string]Finding {
	t.Helper()
	t.Setenv("CUDA_MPS_PIPE_DIRECTORY", "") // undoes what the checks set
	m.config = configs.Config{RuntimeDir: dir, Device: device}
	m.gpus = sync.OnceValue(m.findGPUs)
	found := bySubject(run(context.Background(), &m, gpuChecks))
	for subject, f := range found {
		if !f.OK && f.Text == "" {
			t.Errorf("%s fails without a text", subject)
		}
	}
	return found
}

func bySubject(r Report) map[string]Finding {
	found := map[string]Finding{}
	for _, f := range r {
		found[f.Subject] = f
	}
	return found
}

func expect(t *testing.T, found map[string]Finding, subject string, ok bool, text, fix string) {
	t.Helper()
	f, there := found[subject]
	if !there || f.OK != ok || !strings.Contains(f.Text, text) || fix == "" != (f.Fix == "") || !strings.Contains(f.Fix, fix) {
		t.Errorf("%s: %+v, want %v, %q, %q", subject, f, ok, text, fix)
	}
}

func TestGPU(t *testing.T) {
	found := checkGPU(t, configs.DeviceCPU, withGPU(nil))
	expect(t, found, "gpu", true, "driver for CUDA 1", "")
	expect(t, found, "nvml", true, "driver 999.99", "")
	expect(t, found, "cuda:0", true, fakeUUID, "")
	expect(t, found, "cuda:0", true, "132 multiprocessors, 100 of 1024 MiB used, compute mode default, MIG off", "")
	expect(t, found, "green contexts", true, "cuda:0 in 15 groups of 8 and 1 of 12", "")
	expect(t, found, "mps", true, "can run here (tried)", "")
	expect(t, found, "onnx on cuda", false, "no libonnxruntime_providers_shared.so next to", "PENSTOCK_ONNXRUNTIME=")
}

func TestGPUProblems(t *testing.T) {
	prohibited := checkGPU(t, configs.DeviceAuto, withGPU(func(d *nvml.Device) { d.ComputeMode = nvml.Prohibited }))
	expect(t, prohibited, "cuda:0", false, "compute mode prohibited, which lets no process use it", "nvidia-smi -i "+fakeUUID+" -c DEFAULT")

	m := withGPU(nil)
	m.openNVML = func() (nvml.Session, error) { return nil, nvml.ErrUnavailable }
	m.tryMPS = func(context.Context, mps.Options) error {
		return &mps.Problem{Why: "nvidia-cuda-mps-control is not installed", Fix: "apt-get install it"}
	}
	m.onnxLibrary = func() (string, error) { return "", errors.New("none") }
	found := checkGPU(t, configs.DeviceAuto, m)
	expect(t, found, "nvml", false, "no NVML", "ldconfig -p")
	expect(t, found, "cuda:0", true, "132 multiprocessors, 1024 MiB", "")
	expect(t, found, "mps", false, "nvidia-cuda-mps-control is not installed; functions take turns on the GPU without enforced shares", "apt-get install it")
	expect(t, found, "onnx on cuda", false, "no ONNX Runtime found", "make build")

	m = withGPU(nil)
	m.foreignMPS = func(_, _ string) []mps.Stranger { return []mps.Stranger{{PID: 7, Folder: "/tmp/nvidia-mps"}} }
	found = checkGPU(t, configs.DeviceAuto, m)
	expect(t, found, "mps", true, "another daemon, process 7, runs in /tmp/nvidia-mps", "echo quit | CUDA_MPS_PIPE_DIRECTORY=/tmp/nvidia-mps nvidia-cuda-mps-control")

	cudafake.Apply(t, cudafake.Refuse("cuDeviceGetDevResource", 0, 801))
	found = checkGPU(t, configs.DeviceAuto, withGPU(nil))
	expect(t, found, "green contexts", false, "shares change by shadow swaps only", "CUDA 12.4")
}

func TestInstances(t *testing.T) {
	cudafake.Apply(t, cudafake.MIG(0))
	m := withGPU(func(d *nvml.Device) { d.MIG = true })
	session, err := m.openNVML()
	must.OK(t, err)
	var instances []nvml.Instance
	for i := range 2 {
		instances = append(instances, nvml.Instance{UUID: cudafake.Instance(i), GPU: fakeUUID, Name: "Fake MIG 3g.0gb", SMs: 66, MemoryBytes: 512 << 20})
	}
	session.(*nvmlfake.Session).Divide(instances...)

	found := checkGPU(t, cudafake.Instance(1), m)
	expect(t, found, "cuda:0", true, cudafake.Instance(0), "")
	expect(t, found, "instance 1", true, "Fake MIG 3g.0gb, "+cudafake.Instance(1)+" of "+fakeUUID+", 66 multiprocessors, 512 MiB", "")
	expect(t, found, "mps", true, "can run here (tried)", "")
	found = checkGPU(t, "MIG-1", m)
	expect(t, found, "gpu", false, cudafake.Instance(0)+" (Fake MIG 3g.0gb)", "nvidia-smi -L")

	all, err := listDevices(m.openNVML)
	if err != nil || len(all) != 2 || all[0].uuid != cudafake.Instance(0) || all[1].uuid != cudafake.Instance(1) {
		t.Errorf("all devices are %+v, %v", all, err)
	}
	t.Setenv("CUDA_VISIBLE_DEVICES", "0")
	if all, err = listDevices(m.openNVML); err != nil || len(all) != 1 {
		t.Errorf("visible are %+v, %v", all, err)
	}
}

func TestMissingGPU(t *testing.T) {
	found := checkGPU(t, "cuda:3", withGPU(nil))
	expect(t, found, "gpu", false, `the configuration has device cuda:3: cuda: no such device "cuda:3": there is cuda:0`, "nvidia-smi -L")
	if len(found) != 1 || !found["gpu"].Fatal {
		t.Errorf("found %+v", found)
	}
	cudafake.Apply(t, cudafake.Devices(0))
	for _, device := range []string{configs.DeviceCPU, configs.DeviceAuto} {
		found = checkGPU(t, device, withGPU(nil))
		expect(t, found, "gpu", true, "none found; models run on the CPU", "")
		if len(found) != 1 {
			t.Errorf("found %+v", found)
		}
	}
}

// A configuration names several GPUs.
func TestSeveralGPUs(t *testing.T) {
	cudafake.Apply(t, cudafake.Devices(2))
	m := withGPU(nil)
	m.config.Devices = []configs.DeviceName{configs.DeviceAll}
	m.gpus = sync.OnceValue(m.findGPUs)
	t.Setenv("CUDA_MPS_PIPE_DIRECTORY", "") // undoes what the checks set
	found := bySubject(run(t.Context(), &m, gpuChecks))
	expect(t, found, "mps of cuda:0", true, "can run here", "")
	expect(t, found, "mps of cuda:1", true, "can run here", "")
	expect(t, found, "stream priorities of cuda:1", true, "not measured yet", "")

	uuids, err := GPUs(t.TempDir())
	if err != nil || len(uuids) != 2 || uuids[0] != fakeUUID {
		t.Errorf("GPUs are %q, %v", uuids, err)
	}
	for _, c := range []struct {
		devices []configs.DeviceName
		says    string
	}{
		{[]configs.DeviceName{configs.DeviceCPU, "cuda:1", "cuda:0"}, ""},
		{[]configs.DeviceName{"cuda:0", "cuda:2"}, `device cuda:2: cuda: no such device "cuda:2": there is cuda:0 = ` + fakeUUID},
		{[]configs.DeviceName{"cuda:0", "GPU-fa0"}, "device GPU-fa0 is"},
		{[]configs.DeviceName{configs.DeviceName(fakeUUID), "cuda:1", "cuda"}, "which the list has already; want each once"},
	} {
		err := Devices(configs.Config{RuntimeDir: t.TempDir(), Devices: c.devices})
		if (err == nil) != (c.says == "") || err != nil && (!strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "\n")) {
			t.Errorf("%s: error %v, want one line that says %q", c.devices, err, c.says)
		}
	}
	cudafake.Apply(t, cudafake.Devices(0))
	if uuids, err := GPUs(t.TempDir()); err != nil || len(uuids) != 0 {
		t.Errorf("without a GPU: %q, %v", uuids, err)
	}
}

// TestLoaderPaths builds a provider that is linked with one library
// and opens another, which its run path has.
func TestLoaderPaths(t *testing.T) {
	dir := t.TempDir()
	cc := func(args ...string) {
		t.Helper()
		cmd := exec.Command("cc", args...)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Skipf("no C compiler: %v %s", err, out)
		}
	}
	os.WriteFile(filepath.Join(dir, "empty.c"), []byte("int unused;\n"), 0o600)
	os.Mkdir(filepath.Join(dir, "elsewhere"), 0o700)
	cc("-shared", "-o", "libcudnn.so.9", "-Wl,-soname,libcudnn.so.9", "empty.c")
	cc("-shared", "-o", "elsewhere/libcublas.so.12", "-Wl,-soname,libcublas.so.12", "empty.c")
	cc("-shared", "-o", sharedProviderName, "empty.c")
	cc("-shared", "-o", cudaProviderName, "-Wl,--no-as-needed", "-Wl,-rpath,$ORIGIN", "empty.c", "elsewhere/libcublas.so.12")
	look := func() map[string]Finding {
		m := &machine{onnxLibrary: func() (string, error) { return filepath.Join(dir, "libonnxruntime.so"), nil }}
		return bySubject(cudaProvider(context.Background(), m))
	}
	t.Setenv("LD_LIBRARY_PATH", "")
	found := look()
	expect(t, found, "onnx on cuda", true, cudaProviderName, "")
	expect(t, found, "cuda libraries", false, "libcublas.so.12 not found; "+cudaProviderName+" needs them", "apt-get install cuda-libraries-12-0 libcudnn9-cuda-12")
	t.Setenv("LD_LIBRARY_PATH", "/nowhere:"+filepath.Join(dir, "elsewhere"))
	expect(t, look(), "cuda libraries", true, filepath.Join(dir, "elsewhere", "libcublas.so.12")+", "+filepath.Join(dir, "libcudnn.so.9"), "")
}

// A node whose MPS did not come up goes on by time, and would not be found out by trying.
func TestMPSUnused(t *testing.T) {
	t.Setenv("CUDA_MPS_PIPE_DIRECTORY", "")
	dir := t.TempDir()
	l, err := net.Listen("unix", filepath.Join(dir, control.AdminSocket))
	must.OK(t, err)
	status := control.Status{Devices: []control.DeviceStatus{{Mechanism: "time-slicing", GPU: &control.GPU{UUID: fakeUUID, Why: "no MPS: the daemon lives and does not answer within 20s"}}}}
	server := http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { json.NewEncoder(w).Encode(status) })}
	go server.Serve(l)
	defer server.Close()
	examined := func() map[string]Finding { return checkGPUIn(t, dir, configs.DeviceAuto, withGPU(nil)) }
	expect(t, examined(), "mps", false, "can run here (tried); but the running node started without MPS: no MPS: the daemon lives", "restart the node")
	status.Devices[0].GPU.Why = "" // it is not wanted
	expect(t, examined(), "mps", true, "can run here (tried)", "")
}

func TestMPSUnresponsive(t *testing.T) {
	t.Setenv("CUDA_MPS_PIPE_DIRECTORY", "")
	remove, err := mpsfake.Build()
	must.OK(t, err)
	defer remove()
	programs, err := mpsfake.Install(t.TempDir())
	must.OK(t, err)
	t.Setenv("PATH", filepath.Dir(programs.Control())+":"+os.Getenv("PATH"))
	dir, err := os.MkdirTemp("/tmp", "mps") // short: a socket's path
	must.OK(t, err)
	defer os.RemoveAll(dir)
	d, err := mps.Start(t.Context(), mps.Options{Dir: dir, UUID: fakeUUID, Log: zerolog.Nop()})
	must.OK(t, err)
	defer d.Close()
	examined := func() map[string]Finding { return checkGPUIn(t, dir, configs.DeviceAuto, withGPU(nil)) }
	expect(t, examined(), "mps", true, "a node runs here: daemon", "")
	must.OK(t, programs.Behave(mpsfake.Behaviour{MuteDaemon: d.State().Daemon}))
	expect(t, examined(), "mps", false, "does not answer", "")
	must.OK(t, programs.Behave(mpsfake.Behaviour{}))
}

func TestStreamPriorities(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("XDG_CACHE_HOME", filepath.Join(dir, "cache"))
	m := withGPU(nil)
	m.openNVML = func() (nvml.Session, error) { return nil, nvml.ErrUnavailable }
	if f := checkGPU(t, "cuda", m)["stream priorities"]; !strings.Contains(f.Text, "not measured yet") {
		t.Errorf("without a measurement: %+v", f)
	}
	must.Get(cudafake.Cache(dir))(t)
	if f := checkGPU(t, "cuda", m)["stream priorities"]; !strings.Contains(f.Text, "hold between processes: work of 1 µs takes 1 µs") {
		t.Errorf("with a measurement: %+v", f)
	}
}
