package plan

import (
	"fmt"
	"io/fs"
	"slices"
	"time"

	"github.com/penstock/penstock/models/document"
	"github.com/penstock/penstock/models/profile"
)

// PublishedGPU is the GPU of a profile without a header: such files are
// ParvaGPU's, or have its form.
const PublishedGPU = "a100-80"

// ReadProfiles reads a folder of profile files into the form of
// Problem.Profiles: by GPU, then by model. A model has the name of its file.
//
// A file MODEL.csv in the folder itself belongs to the GPU in its header, or to
// PublishedGPU if it has no header. A subfolder with the name of a placement
// table has profiles of that GPU, so that a model can have profiles for several
// GPUs. A header that contradicts the subfolder is an error. Other subfolders
// are ignored. Faults in a file are a *document.Problem with the position.
func ReadProfiles(dir fs.FS) (map[string]map[string]Profile, error) {
	all := profiles{}
	if err := all.addFolder(dir, ".", PublishedGPU); err != nil {
		return nil, err
	}
	for _, g := range tables() {
		if info, err := fs.Stat(dir, g.Name); err != nil || !info.IsDir() {
			continue
		}
		if err := all.addFolder(dir, g.Name, g.Name); err != nil {
			return nil, err
		}
	}
	return all, nil
}

type profiles map[string]map[string]Profile

// addFolder adds the files of a folder. gpu is the GPU of files that name none.
func (all profiles) addFolder(dir fs.FS, folder, gpu string) error {
	files, err := profile.ReadFolder(dir, folder)
	if err != nil {
		return err
	}
	for _, model := range sortedKeys(files) {
		p, err := FromProfile(model, files[model], gpu)
		if err != nil {
			return fmt.Errorf("%s: %w", files[model].File, err)
		}
		if folder != "." && p.GPU != gpu {
			return fmt.Errorf("%s: measured on %s: want it in a folder of that name", files[model].File, p.GPU)
		}
		if all[p.GPU] == nil {
			all[p.GPU] = map[string]Profile{}
		}
		if _, twice := all[p.GPU][model]; twice {
			return fmt.Errorf("%s: there is a profile of %s for %s in the folder above already: want one", files[model].File, model, p.GPU)
		}
		all[p.GPU][model] = p
	}
	return nil
}

// FromProfile makes a planner's profile of a measured one. A header's GPU is a
// table's name or the driver's product name. If the shares are in percent, it
// means that GPU with MIG off. gpu is the GPU if the header names none. Points
// that ran out of memory, serve nothing or answer wrongly are omitted.
//
// A share in percent becomes the number of steps of multiprocessors that cover
// it (GPU.Steps), never fewer than were measured. If two shares give the same
// number of steps, the point of the larger share is kept. Shares in GPCs that
// the GPU does not have as sizes are an error. A GPU without a table keeps its
// name, and its shares stay unchanged: nothing can be planned on it.
func FromProfile(model string, from profile.Profile, gpu string) (Profile, error) {
	if from.Header.Model != "" && from.Header.Model != model {
		return Profile{}, fmt.Errorf("the header names model %q: want the file's name, %q", from.Header.Model, model)
	}
	g, known := tableOf(from.Header, gpu)
	to := Profile{Model: model, GPU: g.Name}
	if from.Header.Unit == profile.GPCs && from.Header.HeldBy != profile.MIG {
		to.HeldBy = from.Header.HeldBy
	}
	for _, pt := range from.Points {
		if pt.OOM || pt.Throughput <= 0 || pt.Latency <= 0 || from.Header.AnswersWrongly(pt.Share, pt.Processes) {
			continue
		}
		size, percent := pt.Share, 0.0
		switch {
		case !known:
		case from.Header.Unit == profile.Percent:
			percent = float64(pt.Share)
			if size = g.Steps(percent); size == 0 {
				return Profile{}, fmt.Errorf("share %d %%: want 1 to 100", pt.Share)
			}
		default:
			if _, ok := g.Size(size); !ok {
				return Profile{}, fmt.Errorf("%d GPCs: %s can be cut into %s", size, g.Name, sizeList(g))
			}
		}
		point := Point{GPCs: size, SharePercent: percent, Batch: pt.Batch, Processes: pt.Processes,
			ThroughputRPS: pt.Total(), LatencyMS: float64(pt.Latency) / float64(time.Millisecond), MemoryMiB: pt.MemoryMiB}
		at, twice := slices.BinarySearchFunc(to.Points, point, comparePoints)
		if twice {
			to.Points[at] = point
			continue
		}
		to.Points = slices.Insert(to.Points, at, point)
	}
	return to, nil
}

// tableOf returns the table of the GPU in a header. known is false if there is
// none; the GPU then has only a name.
func tableOf(h profile.Header, gpu string) (g GPU, known bool) {
	name := h.GPU
	switch {
	case h.Device == "cpu":
		name = "cpu"
	case name == "":
		name = gpu
	}
	g, err := Lookup(name)
	if err != nil {
		g, err = ForDevice(name)
	}
	if err != nil {
		return GPU{Name: name}, false
	}
	if h.Unit == profile.Percent && !g.Percent {
		g, err = Lookup(g.Name + mpsSuffix)
	}
	return g, err == nil
}

// sizeList formats a GPU's sizes for a sentence.
func sizeList(g GPU) string {
	if g.Percent {
		return fmt.Sprintf("1 to %d steps, by shares in percent", g.GPCs)
	}
	sizes := make([]string, len(g.Sizes))
	for i, s := range g.Sizes {
		sizes[i] = fmt.Sprint(s.GPCs)
	}
	return document.OrList(sizes) + " GPCs"
}
