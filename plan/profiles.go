package plan

import (
	"fmt"
	"io/fs"
	"slices"
	"time"

	"github.com/penstock/penstock/models/profile"
)

// PublishedGPU is the GPU that a profile without a header was measured on: such
// files are ParvaGPU's, or in its form.
const PublishedGPU = "a100-80"

// ReadProfiles reads a folder of profile files into Problem.Profiles: keyed by
// GPU, then by model, a model being named as its file is.
//
// A file MODEL.csv in the folder itself is of the GPU that its header names, and
// of PublishedGPU if it has no header. A folder in it that has the name of a
// placement table holds profiles of that GPU, so that a model can be there for
// several; a header that says otherwise is an error. Other folders are left
// alone. What is wrong in a file is a *profile.SyntaxError with its place.
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

// profiles are by GPU and model.
type profiles map[string]map[string]Profile

// addFolder adds the files of a folder; gpu is theirs if they name none.
func (all profiles) addFolder(dir fs.FS, folder, gpu string) error {
	files, err := profile.ReadFolder(dir, folder)
	if err != nil {
		return err
	}
	for _, model := range sortedKeys(files) {
		file := files[model]
		p, err := fromFile(model, &file, gpu)
		if err != nil {
			return err
		}
		if folder != "." && p.GPU != gpu {
			return file.HeaderError("gpu", "measured on %s: want it in a folder of that name", p.GPU)
		}
		if all[p.GPU] == nil {
			all[p.GPU] = map[string]Profile{}
		}
		if _, twice := all[p.GPU][model]; twice {
			return file.HeaderError("gpu", "there is a profile of %s for %s in the folder above already: want one", model, p.GPU)
		}
		all[p.GPU][model] = p
	}
	return nil
}

// FromProfile makes a planner's profile of a measured one. A header's GPU is a
// table's name or the driver's name for a product; with shares in percent it
// means that GPU with MIG off; gpu is the GPU where the header names none.
// Points that ran out of memory or serve nothing are left out.
//
// A share in percent becomes the number of steps of multiprocessors that cover
// it (GPU.Steps), never fewer than were measured with; where two shares come to
// the same steps, the point of the larger share stands. Shares in GPCs that the
// GPU cannot be cut into are an error. A GPU without a table keeps its name and
// its shares as they are: nothing can be planned on it.
func FromProfile(model string, from profile.Profile, gpu string) (Profile, error) {
	return fromFile(model, &profile.File{Profile: from}, gpu)
}

// fromFile is FromProfile with the file's places in errors.
func fromFile(model string, from *profile.File, gpu string) (Profile, error) {
	if from.Header.Model != "" && from.Header.Model != model {
		return Profile{}, from.HeaderError("model", "the header names model %q: want the file's name, %q", from.Header.Model, model)
	}
	g, known := tableOf(from.Header, gpu)
	to := Profile{Model: model, GPU: g.Name}
	if from.Header.Unit == profile.GPCs {
		to.HeldBy = from.Header.HeldBy
	}
	for _, pt := range from.Points {
		if pt.OOM || pt.Throughput <= 0 || pt.Latency <= 0 {
			continue
		}
		size := pt.Share
		switch {
		case !known:
		case from.Header.Unit == profile.Percent:
			if size = g.Steps(float64(pt.Share)); size == 0 {
				return Profile{}, from.PointError(pt, "share %d %%: want 1 to 100", pt.Share)
			}
		default:
			if _, ok := g.Size(size); !ok {
				return Profile{}, from.PointError(pt, "%d GPCs: %s can be cut into %s", size, g.Name, sizeList(g))
			}
		}
		point := Point{GPCs: size, Batch: pt.Batch, Processes: pt.Processes,
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

// tableOf finds the table of the GPU that a header names; known is false where
// there is none, and the GPU then has only a name.
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

// sizeList are a GPU's sizes as a sentence has them.
func sizeList(g GPU) string {
	if g.Percent {
		return fmt.Sprintf("1 to %d steps, by shares in percent", g.GPCs)
	}
	text := ""
	for i, s := range g.Sizes {
		switch {
		case i == 0:
		case i == len(g.Sizes)-1:
			text += " or "
		default:
			text += ", "
		}
		text += fmt.Sprint(s.GPCs)
	}
	return text + " GPCs"
}
