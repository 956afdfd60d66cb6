package orchestrator

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"github.com/rs/zerolog"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/control/runclock"
	"github.com/penstock/penstock/cuda"
	"github.com/penstock/penstock/cuda/nvml"
	"github.com/penstock/penstock/orchestrator/sandbox"
	"github.com/penstock/penstock/private"
)

// Guarantees need stream priorities that hold between the clients of MPS. The node measures
// whether they do when it opens a GPU for the first time:
//
//	device, after the start of MPS            penstock probe, a client of MPS
//	1 reads the result for this GPU and
//	  driver from the cache folder
//	2 if there is none ────────────────────>  3 measures (libml/device/gpu/priorities.go)
//	4 writes the result                <────  and prints it
//	5 reports it to the manager
//
// The probe runs in the sandbox of an inference function. A measurement that fails is reported
// as unknown, and the next start repeats it.

// defaultProbeTimeout is the max time of a measurement. Usually it takes less than a second, half
// of it to open the GPU in two processes. On a machine with many GPUs the driver needs longer.
const defaultProbeTimeout = 5 * time.Second

// probeFormat is the version of the files of results. Files of other versions are not read.
const probeFormat = 1

// maxProbeBytes is the max size of a file of a result.
const maxProbeBytes = 4 << 10

// probedGPU is the content of such a file: the result, and what it was measured on.
type probedGPU struct {
	Format     int                      `json:"format"`
	UUID       string                   `json:"uuid"`
	Name       string                   `json:"name"`
	Driver     string                   `json:"driver"`
	Priorities control.StreamPriorities `json:"stream_priorities"`
}

// of reports whether the result is of this GPU and driver.
func (p *probedGPU) of(g *foundGPU) bool {
	return p.Format == probeFormat && p.UUID == g.uuid && p.Name == g.name && p.Driver == g.driver
}

// prober measures stream priorities, and keeps the results in a folder.
type prober struct {
	dir     string // the runtime folder
	self    string // this binary, which contains the launcher of package sandbox
	sandbox *Sandbox
	cache   string // the folder of results; empty: every start measures
	timeout time.Duration
	log     zerolog.Logger
}

// priorities returns the result for a GPU. cached reports that an earlier start measured it.
// environment makes a process a client of MPS.
func (p prober) priorities(ctx context.Context, g foundGPU, environment map[string]string) (result control.StreamPriorities, cached bool, err error) {
	before, err := p.read(g)
	if err == nil {
		return before, true, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		p.log.Warn().Err(err).Msg("cannot read earlier result of the priority probe; measuring again")
	}
	if result, err = p.measure(ctx, g, environment); err != nil {
		return result, false, err
	}
	if err := p.write(g, result); err != nil {
		p.log.Warn().Err(err).Msg("cannot keep result of the priority probe; the next start measures again")
	}
	return result, false, nil
}

// KnownPriorities returns what a node of this user measured on a GPU. ok is false if no node has
// measured it with this driver. session may be nil.
func KnownPriorities(d cuda.Device, session nvml.Session) (result control.StreamPriorities, ok bool) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return result, false
	}
	driver, err := driverVersion(session)
	if err != nil {
		return result, false
	}
	result, err = prober{cache: filepath.Join(cache, "penstock")}.read(foundGPU{uuid: d.UUID(), name: d.Name(), driver: driver})
	return result, err == nil
}

// driverVersion returns the version of the driver, or without NVML that of CUDA.
func driverVersion(session nvml.Session) (string, error) {
	if session != nil {
		if version, _, err := session.Driver(); err == nil {
			return version, nil
		}
	}
	version, err := cuda.DriverVersion()
	return fmt.Sprintf("CUDA %d", version), err
}

func probeFile(g *foundGPU) string { return "priorities-" + g.uuid + ".json" }

// read returns an earlier result. The error is fs.ErrNotExist if there is none for this GPU and
// driver.
func (p prober) read(g foundGPU) (result control.StreamPriorities, err error) {
	if p.cache == "" {
		return result, fs.ErrNotExist
	}
	folder, err := private.OpenFolder(p.cache)
	if err != nil {
		return result, err
	}
	defer folder.Close()
	text, err := folder.ReadFile(probeFile(&g), maxProbeBytes)
	if err != nil {
		return result, err
	}
	var file probedGPU
	if err := json.Unmarshal(text, &file); err != nil {
		return result, fmt.Errorf("read %s: %w", filepath.Join(folder.Path(), probeFile(&g)), err)
	}
	if !file.of(&g) {
		return result, fs.ErrNotExist
	}
	return file.Priorities, nil
}

func (p prober) write(g foundGPU, result control.StreamPriorities) error {
	if p.cache == "" {
		return nil
	}
	folder, err := private.MakeFolder(p.cache, 0o700)
	if err != nil {
		return err
	}
	defer folder.Close()
	text, err := json.Marshal(probedGPU{Format: probeFormat, UUID: g.uuid, Name: g.name, Driver: g.driver, Priorities: result})
	if err != nil {
		return err
	}
	return folder.ReplaceFile(probeFile(&g), append(text, '\n'))
}

// measure runs a probe.
func (p prober) measure(ctx context.Context, g foundGPU, environment map[string]string) (result control.StreamPriorities, err error) {
	// The kernel sends the parent-death signal when the thread that forked ends: this thread.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	timed, cancel := runclock.Process().WithTimeout(ctx, p.timeout)
	defer cancel()

	cmd := exec.CommandContext(timed, p.self, "probe", "--device", g.uuid)
	cmd.Env = inherited(g.uuid)
	spec := sandbox.Base(true)
	spec.Reach = []string{p.dir}
	for name, value := range environment {
		cmd.Env = append(cmd.Env, name+"="+value)
		if filepath.IsAbs(value) { // a folder of MPS
			spec.Write = append(spec.Write, value)
		}
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) } // both processes
	cmd.WaitDelay = weightServerEndTimeout
	var out bytes.Buffer
	cmd.Stdout = &out
	if p.sandbox != nil {
		spec.User = p.sandbox.User
		if err := confineCommand(cmd, p.self, &spec); err != nil {
			return result, fmt.Errorf("start priority probe: %w", err)
		}
	}

	err = runLogged(cmd, p.log)
	switch {
	case ctx.Err() != nil:
		err = ctx.Err()
	case timed.Err() != nil:
		err = fmt.Errorf("no result within %v", p.timeout)
	case err == nil:
		err = json.Unmarshal(out.Bytes(), &result)
	}
	if err != nil {
		return control.StreamPriorities{}, fmt.Errorf("measure stream priorities: %w", err)
	}
	return result, nil
}
