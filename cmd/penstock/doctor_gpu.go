package main

import (
	"bufio"
	"bytes"
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/rs/zerolog"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/cuda"
	"github.com/penstock/penstock/cuda/nvml"
	"github.com/penstock/penstock/libml/onnx"
	"github.com/penstock/penstock/orchestrator"
	"github.com/penstock/penstock/orchestrator/mps"
)

// gpuQuestions are what the doctor asks a machine of its GPUs, so that a test can
// answer.
type gpuQuestions struct {
	session   func() (nvml.Session, error)
	tryMPS    func(context.Context, mps.Options) error
	strangers func(dir string) []mps.Stranger
	library   func() (string, error) // ONNX Runtime
}

// examineGPU says what GPUs there are and what of them can be used. Where there is
// none and none is asked for, that is one line and no fault.
func examineGPU(ctx context.Context, c configs.Config, ask gpuQuestions) []finding {
	if err := orchestrator.StayOut(c.RuntimeDir); err != nil {
		return []finding{{what: "gpu", say: err.Error()}}
	}
	devices, err := cuda.Devices()
	wanted := c.Device != configs.DeviceCPU && c.Device != configs.DeviceAuto
	if err == nil && wanted {
		_, err = cuda.Find(c.Device)
	}
	driver := driverOf(err)
	none := errors.Is(err, cuda.ErrNoDriver) || errors.Is(err, cuda.ErrNoDevice) || errors.Is(err, cuda.ErrNoCgo)
	switch {
	case none && !wanted, err == nil && len(devices) == 0:
		driver.ok, driver.say, driver.mend = true, "none here; models run on the CPU", ""
		return []finding{driver}
	case wanted && err != nil:
		driver.fatal, driver.say = true, fmt.Sprintf("the configuration wants %s: %v", c.Device, err)
	}
	if err != nil {
		return []finding{driver}
	}
	list := []finding{driver}
	session, err := ask.session()
	list = append(list, nvmlFinding(session, err))
	about := map[string]nvml.Device{}
	if session != nil {
		known, _ := session.Devices()
		for _, d := range known {
			about[d.UUID] = d
		}
	}
	for _, d := range devices {
		list = append(list, deviceFinding(d, about, session), groupsFinding(d, c.Shares.SMGrain))
	}
	chosen := devices[0]
	if wanted {
		chosen, _ = cuda.Find(c.Device) // it was found above
	}
	list = append(list, mpsFinding(ctx, c, chosen, session, ask))
	return append(list, providerFindings(ask.library)...)
}

func driverOf(err error) finding {
	f := finding{what: "gpu", ok: err == nil}
	version, _ := cuda.DriverVersion()
	switch {
	case err == nil:
		f.say = fmt.Sprintf("driver for CUDA %s, %s", cudaVersion(version), cuda.Library())
	case errors.Is(err, cuda.ErrNoDriver):
		f.say, f.mend = err.Error(), "install NVIDIA's driver (Ubuntu: ubuntu-drivers install --gpgpu), or name its folder in LD_LIBRARY_PATH"
	case errors.Is(err, cuda.ErrNoCgo):
		f.say, f.mend = err.Error(), "CGO_ENABLED=1 make build"
	default:
		f.say, f.mend = err.Error(), "nvidia-smi -L   # what the driver sees; CUDA_VISIBLE_DEVICES hides the others"
	}
	return f
}

// cudaVersion writes 13000 as 13.0.
func cudaVersion(v int) string { return fmt.Sprintf("%d.%d", v/1000, v%1000/10) }

func nvmlFinding(session nvml.Session, err error) finding {
	f := finding{what: "nvml"}
	if err != nil {
		f.say = err.Error() + "; used memory and compute modes are not known"
		f.mend = "ldconfig -p | grep libnvidia-ml   # it comes with the driver; PENSTOCK_LIBNVML names one elsewhere"
		return f
	}
	version, _, err := session.Driver()
	if err != nil {
		f.say = err.Error()
		return f
	}
	f.ok, f.say = true, "driver "+version
	return f
}

// deviceFinding is what a GPU is, and whether anybody may use it.
func deviceFinding(d cuda.Device, about map[string]nvml.Device, session nvml.Session) finding {
	f := finding{what: fmt.Sprintf("cuda:%d", d.Ordinal()), ok: true}
	p, err := d.Properties()
	if err != nil {
		return finding{what: f.what, say: err.Error()}
	}
	memory := fmt.Sprintf("%d MiB", p.MemoryBytes>>20)
	f.say = fmt.Sprintf("%s, %s, compute capability %d.%d, %d multiprocessors, ", d.Name(), d.UUID(), p.Major, p.Minor, p.SMs)
	n, known := about[d.UUID()]
	if !known {
		f.say += memory
		return f
	}
	if u, err := session.Usage(d.UUID()); err == nil {
		memory = fmt.Sprintf("%d of %d MiB used", u.UsedBytes>>20, u.TotalBytes>>20)
	}
	f.say += fmt.Sprintf("%s, compute mode %v", memory, n.ComputeMode)
	switch {
	case n.MIG:
		f.ok, f.say = false, f.say+"; MIG divides it by hardware, and its instances are not supported"
		f.mend = fmt.Sprintf("nvidia-smi -i %s -mig 0   # as root, when nobody uses it", d.UUID())
	case n.ComputeMode == nvml.Prohibited:
		f.ok, f.say = false, f.say+": nobody may use it"
		f.mend = fmt.Sprintf("nvidia-smi -i %s -c DEFAULT   # as root", d.UUID())
	default:
		f.say += ", MIG off"
	}
	return f
}

// groupsFinding is how a GPU's multiprocessors can be handed out.
func groupsFinding(d cuda.Device, grain int) finding {
	f := finding{what: "green contexts"}
	split, err := d.Split(grain)
	if err != nil {
		f.say = fmt.Sprintf("%v; shares change by shadows only", err)
		f.mend = "a driver for CUDA 12.4 or newer (branch 550)"
		return f
	}
	f.ok = true
	f.say = fmt.Sprintf("cuda:%d in %s", d.Ordinal(), groups(split))
	if finest, err := d.Split(2); err == nil && len(finest.GroupSMs()) > len(split.GroupSMs()) {
		f.say += "; the finest, by shares.sm_grain, for models without thread block clusters (not f16): " + groups(finest)
	}
	return f
}

// groups counts the groups of a split by their sizes: "15 groups of 8 and 1 of 12".
func groups(s *cuda.Split) string {
	sizes := s.GroupSMs()
	n := map[int]int{}
	for _, sms := range sizes {
		n[sms]++
	}
	slices.Sort(sizes)
	var parts []string
	for _, sms := range slices.Compact(sizes) {
		what := " of"
		if len(parts) == 0 {
			what = " groups of"
		}
		parts = append(parts, fmt.Sprintf("%d%s %d", n[sms], what, sms))
	}
	return strings.Join(parts, " and ")
}

// mpsFinding tells of the daemon that a node runs here, or tries one, and of a node that
// goes on without since one did not start.
func mpsFinding(ctx context.Context, c configs.Config, d cuda.Device, session nvml.Session, ask gpuQuestions) finding {
	f := finding{what: "mps", ok: true}
	switch pid, clients, ok := mps.Running(ctx, c.RuntimeDir, d.UUID()); {
	case ok:
		f.say = fmt.Sprintf("a node runs here: daemon %d, clients %d", pid, len(clients))
		return f
	case pid != 0:
		f.ok = false
		f.say = fmt.Sprintf("the daemon that a node runs here, process %d, lives and does not answer now; who has the GPU keeps it", pid)
		return f
	}
	if err := ask.tryMPS(ctx, mps.Options{UUID: d.UUID(), Session: session, Log: zerolog.Nop()}); err != nil {
		f.ok = false
		f.say = fmt.Sprintf("%v; inference functions take turns on the GPU, and their shares are wishes", err)
		var p *mps.Problem
		if errors.As(err, &p) {
			f.mend = p.Mend
		}
		return f
	}
	f.say = "can run here (tried)"
	if s := ask.strangers(c.RuntimeDir); len(s) > 0 {
		f.say += fmt.Sprintf("; daemon %d in %s is another's, whose clients take turns with a node's", s[0].PID, s[0].Folder)
		f.mend = s[0].Quit()
	}
	if s, err := control.ReadStatus(ctx, c.RuntimeDir); err == nil && s.Device != nil && s.Device.UUID == d.UUID() && s.Mechanism == "time-slicing" && s.Device.Why != "" {
		f.ok, f.mend = false, "restart the node: it tries MPS when it starts"
		f.say += "; but the node that runs here did without when it started: " + s.Device.Why
	}
	return f
}

// The parts of ONNX Runtime that run models on a GPU.
const (
	cudaProvider   = "libonnxruntime_providers_cuda.so"
	sharedProvider = "libonnxruntime_providers_shared.so"
)

// cudnn is what the provider needs and is not linked with: it opens it when it is
// first used.
const cudnn = "libcudnn.so.9"

// providerFindings looks for ONNX Runtime's CUDA provider beside its library, and for
// what the provider needs where the loader will.
func providerFindings(library func() (string, error)) []finding {
	f := finding{what: "onnx on cuda"}
	path, err := library()
	if err != nil {
		f.say, f.mend = "no ONNX Runtime at all", "make build"
		return []finding{f}
	}
	dir := filepath.Dir(path)
	for _, name := range []string{sharedProvider, cudaProvider} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			f.say = fmt.Sprintf("no %s beside %s: models run on the CPU only", name, path)
			f.mend = fmt.Sprintf("unpack ONNX Runtime's GPU package for this CUDA version, and set %s=…/lib/libonnxruntime.so", onnx.LibraryVariable)
			return []finding{f}
		}
	}
	provider := filepath.Join(dir, cudaProvider)
	found, missing, err := needs(provider, cudnn)
	if err != nil {
		f.say = fmt.Sprintf("%s: %v", provider, err)
		return []finding{f}
	}
	f.ok, f.say = true, provider
	list := []finding{f}
	// cuDNN and cuBLAS by their names; what else is missing, under the first's.
	for _, part := range []struct{ what, beginning, packages string }{
		{"cudnn", "libcudnn", "libcudnn9-cuda-%s"},
		{"cublas", "libcublas", "cuda-libraries-%s-0"},
		{"cuda runtime", "", "cuda-libraries-%s-0"},
	} {
		g := finding{what: part.what, ok: true}
		var lack, have []string
		for _, name := range missing {
			if belongs(name, part.beginning) {
				lack = append(lack, name)
			}
		}
		for name, at := range found {
			if belongs(name, part.beginning) {
				have = append(have, at)
			}
		}
		switch {
		case len(lack) > 0:
			g.ok = false
			g.say = fmt.Sprintf("%s not found, which %s needs", strings.Join(lack, ", "), cudaProvider)
			g.mend = "apt-get install " + fmt.Sprintf(part.packages, major(found, missing)) + "   # NVIDIA's repository; or name its folder in LD_LIBRARY_PATH"
		case len(have) == 0:
			continue
		default:
			slices.Sort(have)
			g.say = strings.Join(have, ", ")
		}
		list = append(list, g)
	}
	return list
}

// belongs reports whether a library is of a part: by its beginning, or, for the part
// without one, a CUDA library of no other.
func belongs(name, beginning string) bool {
	if beginning != "" {
		return strings.HasPrefix(name, beginning)
	}
	return strings.HasPrefix(name, "libcu") && !strings.HasPrefix(name, "libcudnn") && !strings.HasPrefix(name, "libcublas")
}

// major is the CUDA version that a provider was built for: that of its cuBLAS.
func major(found map[string]string, missing []string) string {
	for name := range found {
		missing = append(missing, name)
	}
	for _, name := range missing {
		if v, ok := strings.CutPrefix(name, "libcublas.so."); ok {
			return v
		}
	}
	return "13"
}

// needs finds what a shared library is linked with, and more that it opens, as the
// loader does (ld.so(8)): its own run path, LD_LIBRARY_PATH, the loader's cache.
func needs(path string, more ...string) (found map[string]string, missing []string, err error) {
	f, err := elf.Open(path)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	needed, err := f.ImportedLibraries()
	if err != nil {
		return nil, nil, err
	}
	var places []string
	for _, tag := range []elf.DynTag{elf.DT_RPATH, elf.DT_RUNPATH} {
		paths, _ := f.DynString(tag) // none is no error worth a word
		for _, p := range paths {
			p = strings.NewReplacer("${ORIGIN}", filepath.Dir(path), "$ORIGIN", filepath.Dir(path)).Replace(p)
			places = append(places, filepath.SplitList(p)...)
		}
	}
	places = append(places, filepath.SplitList(os.Getenv("LD_LIBRARY_PATH"))...)
	cache := loaderCache()
	found = map[string]string{}
	for _, name := range append(needed, more...) {
		at := cache[name]
		for _, dir := range places {
			if _, err := os.Stat(filepath.Join(dir, name)); err == nil {
				at = filepath.Join(dir, name)
				break
			}
		}
		if at == "" {
			missing = append(missing, name)
			continue
		}
		found[name] = at
	}
	return found, missing, nil
}

// loaderCache is what `ldconfig -p` lists: "	libc.so.6 (libc6,x86-64) => /lib/…".
func loaderCache() map[string]string {
	cache := map[string]string{}
	out, err := exec.Command("ldconfig", "-p").Output()
	if err != nil {
		out, _ = exec.Command("/sbin/ldconfig", "-p").Output()
	}
	for lines := bufio.NewScanner(bytes.NewReader(out)); lines.Scan(); {
		name, path, ok := strings.Cut(lines.Text(), " => ")
		name, _, _ = strings.Cut(strings.TrimSpace(name), " ")
		if _, twice := cache[name]; ok && !twice {
			cache[name] = path
		}
	}
	return cache
}
