package gpu

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/control/runclock"
	"github.com/penstock/penstock/cuda"
	"github.com/penstock/penstock/cuda/nvml"
	"github.com/penstock/penstock/orchestrator/program"
	"github.com/penstock/penstock/orchestrator/sandbox"
	"github.com/penstock/penstock/private"
)

// Guarantees need stream priorities that hold between the clients of MPS. The node measures
// whether they do when it opens a GPU for the first time:
//
//	device, after the start of MPS            penstock probe, a client of MPS
//	1 reads the result for this GPU and
//	  driver from the cache folder
//	2 if there is none ────────────────────>  3 measures (libml/gpu/priorities.go)
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
func (p *probedGPU) of(g *Found) bool {
	return p.Format == probeFormat && p.UUID == g.UUID && p.Name == g.Name && p.Driver == g.Driver
}

// Priorities returns the result for a GPU. cached reports that an earlier start measured it.
// environment makes a process a client of MPS.
func (p Here) Priorities(ctx context.Context, g Found, environment map[string]string) (result control.StreamPriorities, cached bool, err error) {
	before, err := p.read(g)
	if err == nil {
		return before, true, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		p.Log.Warn().Err(err).Msg("cannot read earlier result of the priority probe; measuring again")
	}
	if result, err = p.measure(ctx, g, environment); err != nil {
		return result, false, err
	}
	if err := p.write(g, result); err != nil {
		p.Log.Warn().Err(err).Msg("cannot keep result of the priority probe; the next start measures again")
	}
	return result, false, nil
}

// KnownPriorities returns what a node of this user measured on a GPU. ok is false if no node has
// measured it with this driver. session may be nil.
func KnownPriorities(uuid, name string, session nvml.Session) (result control.StreamPriorities, ok bool) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return result, false
	}
	driver, err := driverVersion(session)
	if err != nil {
		return result, false
	}
	result, err = Here{Cache: filepath.Join(cache, "penstock")}.read(Found{UUID: uuid, Name: name, Driver: driver})
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

func probeFile(g *Found) string { return "priorities-" + g.UUID + ".json" }

// read returns an earlier result. The error is fs.ErrNotExist if there is none for this GPU and
// driver.
func (p Here) read(g Found) (result control.StreamPriorities, err error) {
	if p.Cache == "" {
		return result, fs.ErrNotExist
	}
	folder, err := private.OpenFolder(p.Cache)
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

func (p Here) write(g Found, result control.StreamPriorities) error {
	if p.Cache == "" {
		return nil
	}
	folder, err := private.MakeFolder(p.Cache, 0o700)
	if err != nil {
		return err
	}
	defer folder.Close()
	text, err := json.Marshal(probedGPU{Format: probeFormat, UUID: g.UUID, Name: g.Name, Driver: g.Driver, Priorities: result})
	if err != nil {
		return err
	}
	return folder.ReplaceFile(probeFile(&g), append(text, '\n'))
}

// measure runs a probe.
func (p Here) measure(ctx context.Context, g Found, environment map[string]string) (result control.StreamPriorities, err error) {
	timeout := cmp.Or(p.ProbeTimeout, defaultProbeTimeout)
	timed, cancel := runclock.Process().WithTimeout(ctx, timeout)
	defer cancel()

	var spec *sandbox.Spec
	if p.Confined {
		base := sandbox.Base(true)
		spec = &base
		spec.User, spec.Reach = p.User, []string{p.Dir}
	}
	variables := program.Environment(g.UUID)
	for name, value := range environment {
		variables = append(variables, name+"="+value)
		if spec != nil && filepath.IsAbs(value) { // a folder of MPS
			spec.Write = append(spec.Write, value)
		}
	}
	output, err := program.Run(timed, p.Log, p.Self, []string{"probe", "--device", g.UUID}, variables, spec)
	switch {
	case ctx.Err() != nil:
		err = ctx.Err()
	case timed.Err() != nil:
		err = fmt.Errorf("no result within %v", timeout)
	case err == nil:
		err = json.Unmarshal(output, &result)
	}
	if err != nil {
		return control.StreamPriorities{}, fmt.Errorf("measure stream priorities: %w", err)
	}
	return result, nil
}
