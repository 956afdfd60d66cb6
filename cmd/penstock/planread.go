package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"syscall"

	"github.com/penstock/penstock/cmd/penstock/apply"
	"github.com/penstock/penstock/plan"
)

// read reads the files that the flags name; old is nil if there is no current plan. If no flag names
// GPUs, they are those of the node, if there is one.
func (o *planOptions) read(node *apply.Node) (problem *plan.Problem, old *plan.Plan, err error) {
	p := &plan.Problem{}
	if p.GPU, err = plan.Lookup(o.gpu); err != nil {
		return nil, nil, fmt.Errorf("--gpu %w", err)
	}
	if o.fleet != "" {
		if p.Fleet, err = readFile("--fleet", o.fleet, plan.ReadFleet); err != nil {
			return nil, nil, err
		}
	}
	if node != nil && o.fleet == "" && !o.gpuGiven {
		if p.Fleet = node.Machine.Fleet(); len(p.Fleet) == 0 {
			return nil, nil, fmt.Errorf("--apply: %w", node.NoGPU())
		}
	}
	if p.Profiles, err = readProfiles(o.profiles); err != nil {
		return nil, nil, err
	}
	if p.Services, err = readFile("--services", o.services, func(r io.Reader, file string) ([]plan.Service, error) {
		return plan.ReadServices(r, file, o.scenario)
	}); err != nil {
		return nil, nil, err
	}
	if o.from != "" {
		if old, err = readFile("--from", o.from, plan.Read); err != nil {
			return nil, nil, err
		}
		if !o.gpuGiven && len(p.Fleet) == 0 {
			if p.GPU, err = gpuOf(old, p.Profiles); err != nil {
				return nil, nil, fmt.Errorf("--from %s: %w", o.from, err)
			}
		}
	}
	var names []string
	for _, s := range p.Stocks() {
		if len(p.Profiles[s.GPU.Name]) > 0 {
			return p, old, nil
		}
		names = append(names, s.GPU.Name)
	}
	return nil, nil, fmt.Errorf("--profiles %s: no profile for %s; there are profiles for %s", o.profiles, strings.Join(names, " or "),
		strings.Join(slices.Sorted(maps.Keys(p.Profiles)), ", "))
}

// gpuOf is the default GPU of a changed plan: the GPU of the old plan. If that one is
// a GPU in MPS mode without profiles, it is the same GPU in MIG mode.
func gpuOf(old *plan.Plan, profiles map[string]map[string]plan.Profile) (plan.GPU, error) {
	if old.GPUModel == plan.Mixed {
		return plan.GPU{}, errors.New("the plan has several models of GPU; want --fleet with the number of each")
	}
	g, err := plan.Lookup(old.GPUModel)
	if err == nil && len(profiles[g.Name]) == 0 {
		if whole, cut := strings.CutSuffix(g.Name, "-mps"); cut {
			return plan.Lookup(whole)
		}
	}
	return g, err
}

// readProfiles reads a folder of profiles.
func readProfiles(dir string) (map[string]map[string]plan.Profile, error) {
	switch info, err := os.Stat(dir); {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("--profiles %s: %w: want a folder of profiles, MODEL.csv each", dir, syscall.ENOENT)
	case err != nil:
		return nil, fmt.Errorf("--profiles: %w", err)
	case !info.IsDir():
		return nil, fmt.Errorf("--profiles %s: is a file, want a folder of profiles, MODEL.csv each", dir)
	}
	profiles, err := plan.ReadProfiles(os.DirFS(dir))
	switch {
	case err != nil:
		return nil, err
	case len(profiles) == 0:
		return nil, fmt.Errorf("--profiles %s: no profile in this folder, want MODEL.csv for each model", dir)
	}
	return profiles, nil
}

// readFile reads the file that a flag names.
func readFile[T any](flag, path string, read func(r io.Reader, file string) (T, error)) (result T, err error) {
	f, err := os.Open(path)
	if why, ok := errors.AsType[*fs.PathError](err); ok {
		return result, fmt.Errorf("%s %s: %w", flag, path, why.Err)
	}
	if err != nil {
		return result, fmt.Errorf("%s: %w", flag, err)
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil && info.IsDir() {
		return result, fmt.Errorf("%s %s: is a folder, want a file", flag, path)
	}
	return read(f, path)
}
