package check

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/cuda"
	"github.com/penstock/penstock/cuda/nvml"
	"github.com/penstock/penstock/orchestrator/gpu"
)

// Without a usable GPU the first check says why, and the others do not apply.
var gpuChecks = []row{
	{subject: "gpu", run: gpuDriver},
	{subject: "nvml", run: nvmlLibrary, applies: hasGPU},
	{each: gpuDevices, applies: hasGPU},
	{each: ofChosen("mps", mpsDaemon), applies: hasGPU},
	{each: ofChosen("stream priorities", streamPriorities), applies: hasGPU},
	{each: cudaProvider, applies: hasGPU},
}

// gpus are the GPUs of a machine.
type gpus struct {
	devices []cuda.Device
	chosen  []device // those that the configuration names, or the first one
	session nvml.Session
	err     error // no GPU is usable, or not the configured ones
	nvmlErr error // session is nil
	mpsErr  error // CUDA must not be asked: this process would become a client of MPS
}

func hasGPU(m *machine) bool { return len(m.gpus().devices) > 0 }

// needsGPU reports whether the configuration names a GPU.
func (m *machine) needsGPU() bool {
	return slices.ContainsFunc(m.config.DeviceNames(), func(name string) bool {
		return name != configs.DeviceCPU && name != configs.DeviceAuto && name != configs.DeviceAll
	})
}

// ofChosen makes a finding about each GPU that the configuration names. With several, the subject has the index.
func ofChosen(subject string, of func(context.Context, *machine, device) Finding) func(context.Context, *machine) []Finding {
	return func(ctx context.Context, m *machine) (list []Finding) {
		chosen := m.gpus().chosen
		for _, d := range chosen {
			about := subject
			if len(chosen) > 1 {
				about += " of " + d.name
			}
			list = append(list, of(ctx, m, d).about(about))
		}
		return list
	}
}

func (m *machine) findGPUs() (g gpus) {
	if g.mpsErr = gpu.StayOut(m.config.RuntimeDir); g.mpsErr != nil {
		return g
	}
	devices, err := cuda.Devices()
	if err == nil || m.needsGPU() {
		g.chosen, err = findDevices(m.config, m.openNVML)
	}
	if err != nil {
		g.err = err
		return g
	}
	if g.devices = devices; len(devices) == 0 {
		return g
	}
	if len(g.chosen) == 0 {
		g.chosen = []device{newDevice(devices[0])}
	}
	g.session, g.nvmlErr = m.openNVML()
	return g
}

func gpuDriver(_ context.Context, m *machine) Finding {
	g := m.gpus()
	none := gpu.Missing(g.err)
	switch {
	case g.mpsErr != nil:
		return failed(g.mpsErr)
	case none && !m.needsGPU(), g.err == nil && len(g.devices) == 0:
		return pass("none found; models run on the CPU")
	case g.err == nil:
		version, _ := cuda.DriverVersion()
		return pass(fmt.Sprintf("driver for CUDA %d.%d, %s", version/1000, version%1000/10, cuda.Library()))
	}

	f := failed(g.err)
	switch {
	case errors.Is(g.err, cuda.ErrNoDriver):
		f.Fix = "install NVIDIA's driver (Ubuntu: ubuntu-drivers install --gpgpu), or add its folder to LD_LIBRARY_PATH"
	case errors.Is(g.err, cuda.ErrNoCgo):
		f.Fix = "CGO_ENABLED=1 make build"
	default:
		f.Fix = "nvidia-smi -L   # lists the GPUs; CUDA_VISIBLE_DEVICES may hide some"
	}
	if m.needsGPU() {
		f.Text = "the configuration has " + g.err.Error()
	}
	return f.fatalIf(m.needsGPU())
}

func nvmlLibrary(_ context.Context, m *machine) Finding {
	g := m.gpus()
	if g.nvmlErr != nil {
		return fail(g.nvmlErr.Error()+"; used memory and compute modes are unknown",
			"ldconfig -p | grep libnvidia-ml   # comes with the driver; set PENSTOCK_LIBNVML if it is elsewhere")
	}
	version, _, err := g.session.Driver()
	if err != nil {
		return failed(err)
	}
	return pass("driver " + version)
}

// streamPriorities shows what a node measured on a GPU. Only a node measures.
func streamPriorities(_ context.Context, m *machine, d device) Finding {
	p, known := gpu.KnownPriorities(d.uuid, d.product, m.gpus().session)
	figures := fmt.Sprintf("work of %.0f µs takes %.0f µs at high priority and %.0f µs at the same priority next to a full GPU", p.AloneMicros, p.HighMicros, p.EqualMicros)
	switch {
	case !known:
		return pass("not measured yet; the first start of a node with MPS measures them")
	case !p.Hold:
		return pass("do not hold between processes: " + figures + "; batches of all functions run one after the other (docs/sharing.md)")
	}
	return pass("hold between processes: " + figures)
}

// gpuDevices has two findings per GPU that CUDA shows: whether it may be used, and how its multiprocessors
// can be divided. It has one per MIG instance.
func gpuDevices(_ context.Context, m *machine) (list []Finding) {
	g := m.gpus()
	known := map[string]nvml.Device{}
	if g.session != nil {
		devices, _ := g.session.Devices()
		for _, d := range devices {
			known[d.UUID] = d
		}
	}
	for _, d := range g.devices {
		list = append(list,
			gpuDevice(d, known, g.session).about(fmt.Sprintf("cuda:%d", d.Ordinal())),
			greenContexts(d).about("green contexts"))
	}
	if g.session == nil {
		return list
	}
	instances, err := g.session.Instances()
	if err != nil {
		return append(list, failed(err).about("instances"))
	}
	for i, in := range instances {
		text := fmt.Sprintf("%s, %s of %s, %d multiprocessors, %d MiB", in.Name, in.UUID, in.GPU, in.SMs, in.MemoryBytes>>20)
		list = append(list, pass(text).about(fmt.Sprintf("instance %d", i)))
	}
	return list
}

func gpuDevice(d cuda.Device, known map[string]nvml.Device, session nvml.Session) Finding {
	p, err := d.Properties()
	if err != nil {
		return failed(err)
	}
	text := fmt.Sprintf("%s, %s, compute capability %d.%d, %d multiprocessors, ", d.Name(), d.UUID(), p.Major, p.Minor, p.SMs)
	memory := fmt.Sprintf("%d MiB", p.MemoryBytes>>20)
	n, ok := known[d.UUID()]
	if !ok {
		return pass(text + memory)
	}

	if u, err := session.Usage(d.UUID()); err == nil {
		memory = fmt.Sprintf("%d of %d MiB used", u.UsedBytes>>20, u.TotalBytes>>20)
	}
	text += fmt.Sprintf("%s, compute mode %v", memory, n.ComputeMode)
	if n.ComputeMode == nvml.Prohibited {
		return fail(text+", which lets no process use it", fmt.Sprintf("nvidia-smi -i %s -c DEFAULT   # as root", d.UUID()))
	}
	return pass(text + ", MIG off")
}

func greenContexts(d cuda.Device) Finding {
	split, err := d.Split()
	if err != nil {
		return fail(fmt.Sprintf("%v; shares change by shadow swaps only", err), "install a driver for CUDA 12.4 or newer (branch 550)")
	}
	return pass(fmt.Sprintf("cuda:%d in %s", d.Ordinal(), formatGroups(split)))
}

// formatGroups counts the groups of a split by their sizes: "15 groups of 8 and 1 of 12".
func formatGroups(s *cuda.Split) string {
	sizes := s.GroupSMs()
	count := map[int]int{}
	for _, sms := range sizes {
		count[sms]++
	}
	slices.Sort(sizes)
	var parts []string
	for _, sms := range slices.Compact(sizes) {
		noun := " of"
		if len(parts) == 0 {
			noun = " groups of"
		}
		parts = append(parts, fmt.Sprintf("%d%s %d", count[sms], noun, sms))
	}
	return strings.Join(parts, " and ")
}
