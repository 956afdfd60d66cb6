package plan_test

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/models/profile"
	"github.com/penstock/penstock/plan"
)

func lookup(t testing.TB, name string) plan.GPU {
	t.Helper()
	g, err := plan.Lookup(name)
	must.OK(t, err)
	return g
}

func TestTables(t *testing.T) {
	names := map[string]bool{}
	for _, g := range plan.GPUs() {
		if names[g.Name] {
			t.Errorf("%s is there twice", g.Name)
		}
		names[g.Name] = true
		if g.Source == "" {
			t.Errorf("%s: no source", g.Name)
		}
		if !slices.IsSortedFunc(g.Sizes, func(a, b plan.Size) int { return a.GPCs - b.GPCs }) {
			t.Errorf("%s: sizes do not ascend", g.Name)
		}
		largest := g.Sizes[len(g.Sizes)-1]
		if largest.GPCs != g.GPCs || largest.Slots != g.Slots || g.UsableSMs() > g.SMs || largest.MemoryMiB > g.MemoryMiB {
			t.Errorf("%s: the largest size is %+v of %+v", g.Name, largest, g)
		}
		for _, s := range g.Sizes {
			last := s.Starts[len(s.Starts)-1]
			if !slices.IsSorted(s.Starts) || s.Starts[0] < 0 || last+s.Slots > g.Slots {
				t.Errorf("%s: size %d of %d slots starts at %v of %d", g.Name, s.GPCs, s.Slots, s.Starts, g.Slots)
			}
			if (s.Profile == "") != g.Percent {
				t.Errorf("%s: size %d has the profile %q", g.Name, s.GPCs, s.Profile)
			}
		}
		if n := fit(g, 0, 0); n > g.GPCs {
			t.Errorf("%s: the table lets %d GPCs lie on %d", g.Name, n, g.GPCs)
		}
	}
	for _, name := range []string{"a30", "a100-40", "a100-80", "h100-80", "h200-141", "v100"} {
		if !names[name] {
			t.Errorf("no table for %s", name)
		}
	}
}

// fit returns the largest sum of GPCs that the table of a GPU with MIG allows
// from a slot on.
func fit(g plan.GPU, slot, gpcs int) int {
	if g.Percent || slot >= g.Slots {
		return gpcs
	}
	most := fit(g, slot+1, gpcs)
	for _, s := range g.Sizes {
		if s.MayStart(slot) {
			most = max(most, fit(g, slot+s.Slots, gpcs+s.GPCs))
		}
	}
	return most
}

func TestUnknownGPU(t *testing.T) {
	_, err := plan.Lookup("a31")
	want := `"a31": no placement table for this GPU; there are: a30, a30-mps, a100-40, a100-40-mps, a100-80`
	if !errors.Is(err, plan.ErrUnknownGPU) || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("%v\nwant %s", err, want)
	}
}

func TestDeviceNames(t *testing.T) {
	for device, name := range map[string]string{
		"NVIDIA A30": "a30", "NVIDIA A100-SXM4-40GB": "a100-40", "NVIDIA A100-SXM4-80GB": "a100-80",
		"NVIDIA A100 80GB PCIe": "a100-80", "NVIDIA H100 80GB HBM3": "h100-80", "NVIDIA H200": "h200-141",
		"Tesla V100-SXM2-16GB": "v100", "Tesla T4": "t4",
	} {
		if g, err := plan.ForDevice(device); err != nil || g.Name != name {
			t.Errorf("%s: %s, %v; want %s", device, g.Name, err, name)
		}
	}
	if g, err := plan.ForDevice("NVIDIA XA30"); err == nil {
		t.Errorf("an XA30 is taken for a %s", g.Name)
	}
}

// The H200's steps are two of 132 multiprocessors, so 10 % are 6.6 steps.
func TestSteps(t *testing.T) {
	h200 := lookup(t, "h200-141-mps")
	for percent, steps := range map[float64]int{0: 0, -1: 0, 101: 0, 0.1: 1, 10: 7, 30: 20, 50: 33, 100: 66} {
		if n := h200.Steps(percent); n != steps {
			t.Errorf("%v %%: %d steps, want %d", percent, n, steps)
		}
	}
	if n := h200.Steps(math.NaN()); n != 0 {
		t.Errorf("no number: %d steps", n)
	}
	rapid.Check(t, func(t *rapid.T) {
		g := plan.PercentGPU("any", rapid.IntRange(2, 200).Draw(t, "SMs"), 0, rapid.IntRange(1, 2).Draw(t, "step"))
		percent := rapid.IntRange(1, 100).Draw(t, "percent")
		n := g.Steps(float64(percent))
		if n < 1 || n > g.GPCs || n*100 < percent*g.GPCs || (n-1)*100 >= percent*g.GPCs {
			t.Fatalf("%d %% of %d steps are %d", percent, g.GPCs, n)
		}
	})
}

func TestPercentProfile(t *testing.T) {
	from := profile.Profile{Header: profile.Header{GPU: "NVIDIA H200", Unit: profile.Percent}, Points: []profile.Point{
		{Share: 10, Batch: 4, Processes: 2, Throughput: 50, Latency: 40e6, MemoryMiB: 700},
		{Share: 20, Batch: 4, Processes: 2, OOM: true},
		{Share: 30, Batch: 4, Processes: 1, Throughput: 50, Latency: 40e6},
		{Share: 60, Batch: 4, Processes: 2, Throughput: 50, Latency: 40e6},
	}}
	from.Header.Wrong = []profile.Wrong{{Share: 30, Processes: 1}} // each of two has that of 60
	p, err := plan.FromProfile("m", from, "a30")
	must.OK(t, err)
	want := plan.Point{GPCs: 7, SharePercent: 10, Batch: 4, Processes: 2, ThroughputRPS: 100, LatencyMS: 40, MemoryMiB: 700}
	if p.GPU != "h200-141-mps" || len(p.Points) != 1 || p.Points[0] != want {
		t.Errorf("%+v, want %+v on h200-141-mps", p, want)
	}
	from.Header = profile.Header{Device: "cpu", GPU: "AMD EPYC, 2", Unit: profile.Percent}
	if p, err = plan.FromProfile("m", from, "a30"); err != nil || p.GPU != "cpu" || p.Points[0].GPCs != 10 {
		t.Errorf("on the CPU: %+v, %v", p, err)
	}
}

func TestProfileTooLarge(t *testing.T) {
	from := profile.Profile{Header: profile.Header{Unit: profile.GPCs}, Points: []profile.Point{{Share: 7, Batch: 1, Processes: 1, Throughput: 1, Latency: 1}}}
	_, err := plan.FromProfile("m", from, "a30")
	if want := "7 GPCs: a30 can be cut into 1, 2 or 4 GPCs"; err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
	from.Header.Model = "other"
	_, err = plan.FromProfile("m", from, "a100-80")
	if want := `the header names model "other": want the file's name, "m"`; err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
}

func TestProfileErrors(t *testing.T) {
	const columns = "Mig instance,Batch size,Workload Number,Throughput,Latency\n"
	header := func(fields string) string {
		return "# {\n#   \"version\": 1, \"share\": \"gpcs\",\n#   " + fields + "\n# }\n"
	}
	for _, c := range []struct{ file, text, want string }{
		{"m.csv", columns + "9,1,1,100,0.01\n", ": 9 GPCs: a100-80 can be cut into 1, 2, 3, 4 or 7 GPCs"},
		{"m.csv", columns + "7,1,1,100,0.01\n1,1,1,10,0.1\n5,2,1,100,0.01\n", ": 5 GPCs: "},
		{"m.csv", header(`"model": "n"`) + columns + "1,1,1,100,0.01\n", `: the header names model "n": want the file's name, "m"`},
		{"a30/m.csv", columns + "7,1,1,100,0.01\n", ": 7 GPCs: a30 can be cut into 1, 2 or 4 GPCs"},
		{"a30/m.csv", header(`"gpu": "h100-80"`) + columns + "1,1,1,100,0.01\n", ": measured on h100-80: want it in a folder of that name"},
		{"a30/m.csv", columns + "one,1,1,100,0.01\n", `:2:1: "one" is no share in gpcs`},
	} {
		dir := t.TempDir()
		file := filepath.Join(dir, c.file)
		must.OK(t, os.MkdirAll(filepath.Dir(file), 0o755))
		must.OK(t, os.WriteFile(file, []byte(c.text), 0o644))
		if _, err := plan.ReadProfiles(os.DirFS(dir)); err == nil || !strings.HasPrefix(err.Error(), file+c.want) {
			t.Errorf("%v\nwant %s%s", err, file, c.want)
		}
	}
}

func TestSlackAndFragmentation(t *testing.T) {
	g := lookup(t, "a100-80")
	p := &plan.Problem{GPU: g, Services: []plan.Service{{Name: "a", Model: "m", RateRPS: 150, SLOMS: 100}, {Name: "b", Model: "m", RateRPS: 50, SLOMS: 100}}}
	point := func(gpcs int, rps float64) plan.Point {
		return plan.Point{GPCs: gpcs, Batch: 1, Processes: 1, ThroughputRPS: rps, LatencyMS: 1}
	}
	pl := plan.New(p, "test", []plan.Segment{
		plan.SegmentOf(9, g, 4, p.Services[1], point(3, 100)),
		plan.SegmentOf(2, g, 0, p.Services[0], point(4, 150)),
		plan.SegmentOf(9, g, 0, p.Services[0], point(2, 50)),
	})
	if pl.GPUs != 2 || pl.GPCs != 9 || pl.GPUModel != "a100-80" || pl.SMsPerGPU["a100-80"] != 98 {
		t.Errorf("%d GPUs, %d GPCs on %s of %v SMs", pl.GPUs, pl.GPCs, pl.GPUModel, pl.SMsPerGPU)
	}
	// Service a reaches 200 and carries 150: its 84 SMs are three quarters busy.
	// b's 42 are half busy. 126 of 196 SMs are in segments.
	if want := 1 - (84*0.75+42*0.5)/126; math.Abs(pl.InternalSlack-want) > 1e-12 {
		t.Errorf("slack %v, want %v", pl.InternalSlack, want)
	}
	if want := 1 - 126.0/196; math.Abs(pl.ExternalFragmentation-want) > 1e-12 {
		t.Errorf("fragmentation %v, want %v", pl.ExternalFragmentation, want)
	}
	var places [][2]int
	load := map[string]float64{}
	for _, s := range pl.Segments {
		places = append(places, [2]int{s.GPU, s.Slot})
		load[s.Service] += s.LoadRPS
	}
	if want := [][2]int{{0, 0}, {1, 0}, {1, 4}}; !slices.Equal(places, want) {
		t.Errorf("segments at %v, want %v", places, want)
	}
	if load["a"] != 150 || load["b"] != 50 {
		t.Errorf("loads %v", load)
	}
}

func TestFeasible(t *testing.T) {
	g := lookup(t, "a30")
	points := []plan.Point{
		{GPCs: 1, Batch: 1, Processes: 1, ThroughputRPS: 10, LatencyMS: 44.9},
		{GPCs: 1, Batch: 2, Processes: 1, ThroughputRPS: 20, LatencyMS: 45},
		{GPCs: 2, Batch: 1, Processes: 1, ThroughputRPS: 20, LatencyMS: 20, MemoryMiB: 11971},
		{GPCs: 4, Batch: 1, Processes: 1, ThroughputRPS: 40, LatencyMS: 10, MemoryMiB: 11971},
	}
	p := &plan.Problem{GPU: g, Profiles: map[string]map[string]plan.Profile{"a30": {"m": {Model: "m", GPU: "a30", Points: points}}}}
	s := plan.Service{Name: "s", Model: "m", RateRPS: 1, SLOMS: 100}
	got, err := p.Feasible(g, s)
	if want := []plan.Point{points[0], points[3]}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %v; want %v: the bound is 45 ms, and size 2 has 11970 MiB", got, err, want)
	}
	s.SLOMS = 20
	_, err = p.Feasible(g, s)
	want := `service "s" (model m on a30): SLO 20 ms leaves a batch less than 9 ms; the fastest point (size 4, batch 1, 1 process) takes 10 ms, 1 ms too long; an SLO above 22.22 ms can be met`
	if err == nil || err.Error() != want {
		t.Errorf("%v\nwant %s", err, want)
	}
	p.Bound = func(plan.Service) float64 { return 15 }
	if got, err = p.Feasible(g, s); err != nil || len(got) != 1 {
		t.Errorf("with a bound of 15 ms: %v, %v", got, err)
	}
}
