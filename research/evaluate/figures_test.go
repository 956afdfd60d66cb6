package evaluate

import (
	"cmp"
	"encoding/json"
	"maps"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/client"
	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/internal/testbed"
	"github.com/penstock/penstock/loadgen"
)

// everyCase calls do for each case of each figure: on a GPU in full, on a GPU quick, and
// on a CPU quick.
func everyCase(t *testing.T, do func(t *testing.T, f *Figure, c *Case, device string)) {
	for _, f := range allFigures() {
		for _, q := range []struct {
			name, device string
			figure       *Figure
		}{{"whole", "cuda", &f}, {"quick", "cuda", f.quick(false)}, {"cpu", configs.DeviceCPU, f.quick(true)}} {
			for i := range q.figure.Cases {
				t.Run(f.Name+"/"+q.figure.Cases[i].Name+"/"+q.name, func(t *testing.T) { do(t, q.figure, &q.figure.Cases[i], q.device) })
			}
		}
	}
}

// `make -C research evaluate` must know the figures even before its kit exists.
func TestScriptFigures(t *testing.T) {
	const script = "../../test/gpu/run.sh"
	text, err := os.ReadFile(script)
	if err != nil {
		t.Fatal(err)
	}
	want := "\nFIGURES=\"" + strings.Join(Names(), " ") + " table1\"\n"
	if !strings.Contains(string(text), want) {
		t.Errorf("%s does not have%s", script, want)
	}
	for figures, says := range map[string]string{
		"nosuch": "FIGURE=nosuch: want all, or some of fig", "fig8 fig10": "FIGURE=fig10: want", "fig": "FIGURE=fig: want", "*": "FIGURE=*: want",
		"all": "no kit in", "fig8 table1": "no kit in", // known figures, so the script asks for the kit
	} {
		command := exec.Command("bash", append([]string{script, "evaluate"}, strings.Fields(figures)...)...)
		command.Env = append(os.Environ(), "KIT=/nowhere", "WORK="+t.TempDir())
		out, err := command.CombinedOutput()
		if err == nil || !strings.Contains(string(out), says) || strings.Count(string(out), "\n") != 1 {
			t.Errorf("evaluate %s: %v, %q, want one line with %q", figures, err, out, says)
		}
	}
}

func TestCases(t *testing.T) {
	everyCase(t, func(t *testing.T, _ *Figure, c *Case, _ string) {
		percent, names := 0.0, map[string]bool{}
		for _, f := range c.Functions {
			percent += f.Percent
			if names[f.Name] {
				t.Errorf("two functions %s", f.Name)
			}
			names[f.Name] = true
			if len(f.Batches) == 0 || !slices.IsSorted(f.Batches) {
				t.Errorf("%s has batches %v", f.Name, f.Batches)
			}
			if c.Kind != kindBare && (f.SLO <= 0 || f.Batches[0] != 1) {
				t.Errorf("%s has batches %v within %v", f.Name, f.Batches, f.SLO)
			}
		}
		if percent > 100 {
			t.Errorf("%v %% of shares", percent)
		}
		if len(c.Variants) == 0 {
			t.Error("no variants")
		}
		for _, name := range c.Variants {
			if v, err := variantOf(name); err != nil || c.takes(v) <= 0 {
				t.Errorf("%s takes %v, %v", name, c.takes(v), err)
			}
		}
		switch c.Kind {
		case kindLoads:
			if len(c.Levels) < 1 || !slices.IsSorted(c.Levels) || c.Measure <= 0 {
				t.Errorf("levels %v for %v each", c.Levels, c.Measure)
			}
		case kindClosed:
			if c.Measure <= 0 {
				t.Errorf("a window of %v", c.Measure)
			}
		case kindTimeline:
			all, err := c.scripts()
			if err != nil || len(first(all)) == 0 || c.Bin <= 0 || c.Length < 4*c.Bin {
				t.Errorf("scripts %+v, %v; %v in bins of %v", all, err, c.Length, c.Bin)
			}
		case kindBare:
			if c.Ready.Duration <= 0 || len(c.Ready.Streams) == 0 {
				t.Errorf("ready batches %+v", c.Ready)
			}
		default:
			t.Errorf("kind %q", c.Kind)
		}
	})
}

// A node accepts every variant's configuration. Settings that are equal in all variants
// are written in the same way.
func TestConfigurations(t *testing.T) {
	everyCase(t, func(t *testing.T, _ *Figure, c *Case, device string) {
		if c.Kind == kindBare {
			return
		}
		var first configs.Config
		for i, name := range c.Variants {
			v, err := variantOf(name)
			if err != nil {
				t.Fatal(err)
			}
			o := nodeOptions{device: device, reserved: 2, intake: intakeOf(c), frugal: c.Frugal, cards: map[string]string{}}
			for _, f := range c.Functions {
				o.cards[f.Name] = "/cards/" + f.Model + ".yaml"
			}
			text, err := v.config(o, c.Functions)
			if err != nil {
				t.Fatal(err)
			}
			got, err := configs.Decode(name, []byte(text))
			if err != nil {
				t.Fatalf("%s: %v\n%s", name, err, text)
			}
			_, lab, _ := strings.Cut(v.lab(o).Environment(), "=")
			t.Setenv(configs.LabVariable, lab)
			if got.Lab, err = configs.ReadLab(); err != nil || got.Lab != v.lab(o) {
				t.Fatalf("%s: lab %s reads %s, %v", name, lab, got.Lab, err)
			}
			if err := got.Check(); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			got.Lab = configs.Lab{}
			for n, f := range c.Functions {
				added := v.added(o, f)
				added.Port = 0
				if want := o.intake.receivers[f.Name]; got.Functions[n].Receivers != want || added.Receivers != want || got.ReceiversOf(added) != want {
					t.Errorf("%s: %s has %d receivers, %d where it is added, want %d", name, f.Name, got.Functions[n].Receivers, added.Receivers, want)
				}
				if err := added.Check(); err != nil {
					t.Errorf("%s, as an order: %v", name, err)
				}
			}
			if device == configs.DeviceCPU {
				v = v.onCPU()
			}
			if want := v.tune && !v.guarantees && !c.Frugal; got.Shares.SpreadSlack != want {
				t.Errorf("%s: spread_slack is %v, want %v", name, got.Shares.SpreadSlack, want)
			}
			// These fields name the differences between variants.
			got.Shares = configs.Shares{}
			got.Text, got.Digest = nil, ""
			for i := range got.Functions {
				got.Functions[i].SharePercent, got.Functions[i].InFlight = 0, 0
			}
			if i == 0 {
				first = got
			} else if !reflect.DeepEqual(got, first) {
				t.Errorf("%s differs in more than it says:\n%+v\n%+v", name, got, first)
			}
		}
	})
}

func TestVariants(t *testing.T) {
	seen := map[string]bool{}
	for _, v := range variants {
		if seen[v.name] || v.label == "" || v.what == "" {
			t.Errorf("variant %+v", v)
		}
		seen[v.name] = true
	}
	for _, name := range []string{"", "fixed-", "fixed-0", "fixed-08", "fixed--1", "fixed-8x", "none"} {
		if v, err := variantOf(name); err == nil {
			t.Errorf("variant %q is %+v", name, v)
		}
	}
}

func TestInterleaving(t *testing.T) {
	f := Figure{Name: "f", Cases: []Case{{Name: "a", Variants: []string{defaultMPS, mpsSLAB}}, {Name: "b", Variants: []string{partition}}}}
	steps, err := f.plan(2)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, s := range steps {
		got = append(got, strings.Join([]string{s.c.Name, s.variant.name, string(rune('0' + s.run))}, " "))
	}
	want := []string{"a mps 1", "a mps-slab 1", "b penstock 1", "a mps-slab 2", "a mps 2", "b penstock 2"}
	if !slices.Equal(got, want) {
		t.Errorf("steps %q, want %q", got, want)
	}
	f.Cases[0].Variants[0] = "nothing"
	if _, err := f.plan(1); err == nil || !strings.Contains(err.Error(), "nothing") {
		t.Errorf("a variant that there is not: %v", err)
	}
}

func TestCueErrors(t *testing.T) {
	one := []Function{{Name: "a"}}
	for name, cues := range map[string][]Cue{
		"no beginning":    {{time.Second, cueRate, "a", 1}},
		"ends first":      {{2 * time.Second, cueBegin, "a", 1}, {time.Second, cueEnd, "a", 0}},
		"ends after all":  {{0, cueBegin, "a", 1}, {time.Minute, cueEnd, "a", 0}},
		"no such cue":     {{0, cueBegin, "a", 1}, {time.Second, "sleep", "a", 0}},
		"begins too late": {{10 * time.Second, cueBegin, "a", 1}},
	} {
		c := Case{Name: name, Functions: one, Events: cues, Length: 10 * time.Second}
		if all, err := c.scripts(); err == nil {
			t.Errorf("%s: %+v", name, all)
		}
	}
}

// answeredOK returns a sample that was to be sent at intended and was answered latency
// later.
func answeredOK(intended, latency time.Duration, batch int) sample {
	return sample{intended: int64(intended), arrived: int64(intended + latency), status: client.StatusOK, batch: batch,
		stages: [...]time.Duration{latency / 16, latency / 8, latency / 4, latency / 4, latency / 16}}
}

func TestMisses(t *testing.T) {
	f := Function{Name: "f", SLO: 10 * time.Millisecond}
	all := []sample{
		answeredOK(1, 4*time.Millisecond, 2), answeredOK(2, 4*time.Millisecond, 2), answeredOK(3, 10*time.Millisecond, 1),
		answeredOK(4, 30*time.Millisecond, 1), // ok, but too late
		{intended: 5, arrived: 6, status: client.StatusLate}, {intended: 5, arrived: 6, status: client.StatusBusy},
		{intended: 5, arrived: 6, status: client.StatusIncomplete}, {intended: 5, arrived: 6, status: client.StatusRefused},
		{intended: 5, arrived: 6, status: client.StatusFailed}, {intended: 5}, {intended: 5, unsent: true},
	}
	l := summarize(f, all, 2*time.Second)
	if l.Sent != 11 || l.OK != 4 || l.Late != 1 || l.Busy != 1 || l.Incomplete != 1 || l.Refused != 1 || l.Failed != 1 || l.Unanswered != 2 || l.Unsent != 1 {
		t.Errorf("counts %+v", l)
	}
	if l.OfferedRPS != 5.5 || l.AnsweredRPS != 2 || l.GoodputRPS != 1.5 || math.Abs(l.WithinPercent-300.0/11) > 1e-9 {
		t.Errorf("rates %+v", l)
	}
	// Four answers take 48 ms together. Batches: one of 2, two of 1.
	if l.MeanMillis != 12 || l.P50Millis != 10 || l.P99Millis != 30 || math.Abs(l.MeanBatch-4.0/3) > 1e-9 || math.Abs(l.GUE-2.0/12) > 1e-9 {
		t.Errorf("latencies %+v", l)
	}
	if l.BatchMillis != 5 || l.InferMillis != 2.5 {
		t.Errorf("batches %+v", l)
	}
	stages := map[string]loadgen.StageReport{
		"aggregate": {P50: 0.625, P99: 1.875}, "queue": {P50: 1.25, P99: 3.75}, "gather": {P50: 2.5, P99: 7.5},
		"infer": {P50: 2.5, P99: 7.5}, "reply": {P50: 0.625, P99: 1.875}, "way": {P50: 2.5, P99: 7.5},
	}
	if !maps.Equal(l.Stages, stages) {
		t.Errorf("stages %+v, want %+v", l.Stages, stages)
	}
	if empty := summarize(f, nil, time.Second); empty.Sent != 0 || empty.GUE != 0 || empty.P99Millis != 0 {
		t.Errorf("nothing at all: %+v", empty)
	}
}

func TestLoadSum(t *testing.T) {
	l := Load{SenderBusyPercent: 10, Functions: []FunctionLoad{
		{OfferedRPS: 100, AnsweredRPS: 100, GoodputRPS: 90, OK: 100, MeanMillis: 2},
		{OfferedRPS: 100, AnsweredRPS: 50, GoodputRPS: 10, OK: 50, MeanMillis: 8},
	}}
	l.sum()
	if l.OfferedRPS != 200 || l.GoodputRPS != 100 || l.WithinPercent != 50 || l.GUE != 150/4.0 || l.SenderBehind {
		t.Errorf("%+v", l)
	}
	for _, behind := range []Load{{SenderBusyPercent: 99}, {Functions: []FunctionLoad{{SendLagP99Millis: 5}}}} {
		if behind.sum(); !behind.SenderBehind {
			t.Errorf("%+v did not fall behind", behind)
		}
	}
}

func TestIntendedTime(t *testing.T) {
	all := []sample{{intended: 10}, {intended: 20}, {intended: 20}, {intended: 30}}
	for _, c := range []struct {
		from, to int64
		want     int
	}{{0, 10, 0}, {0, 11, 1}, {20, 30, 2}, {20, 31, 3}, {11, 19, 0}, {31, 99, 0}} {
		if got := within(all, c.from, c.to); len(got) != c.want {
			t.Errorf("from %d to %d: %d, want %d", c.from, c.to, len(got), c.want)
		}
	}
}

// Streams add their samples independently, so a sample can follow a later one of another
// stream.
func TestSampleOrder(t *testing.T) {
	var r record
	for tag, intended := range []int64{10, 30, 20, 40} {
		r.begin(intended, uint64(tag))
	}
	all := r.all()
	if !slices.IsSortedFunc(all, func(a, b sample) int { return cmp.Compare(a.intended, b.intended) }) {
		t.Errorf("samples %+v", all)
	}
	if got := len(within(all, 0, 25)) + len(within(all, 25, 99)); got != len(all) {
		t.Errorf("%d samples lie in either half, there are %d", got, len(all))
	}
}

func TestT90(t *testing.T) {
	bin := func(batch float64) Bin { return Bin{Offered: 1, MeanBatch: batch} }
	for name, c := range map[string]struct {
		bins []Bin
		want float64
	}{
		"grows":          {[]Bin{{}, {}, bin(1), bin(4), bin(8), bin(9.5), bin(10), bin(10), bin(10), bin(10)}, 0.4},
		"at once":        {[]Bin{bin(5), bin(5), bin(5), bin(5), bin(5), bin(5)}, 0.1},
		"too little":     {[]Bin{bin(5), bin(5)}, 0},
		"no request":     {[]Bin{{}, {}, {}}, 0},
		"with a silence": {[]Bin{bin(1), {Offered: 3}, bin(8), bin(8), bin(8), bin(8), bin(8)}, 0.3},
	} {
		if got := t90(c.bins, 100*time.Millisecond); math.Abs(got-c.want) > 1e-9 {
			t.Errorf("%s: %v s, want %v", name, got, c.want)
		}
	}
}

func TestBins(t *testing.T) {
	f := Function{Name: "f", SLO: 5 * time.Millisecond}
	start := int64(time.Hour)
	var all []sample
	for i := range 100 {
		s := answeredOK(time.Hour+time.Duration(i)*10*time.Millisecond, time.Millisecond, 1)
		if i >= 50 {
			s.arrived += int64(10 * time.Millisecond)
		}
		all = append(all, s)
	}
	all = append(all, answeredOK(time.Hour+time.Second, time.Hour, 1)) // intended just after the end
	shares := func(at time.Duration, percent float64) observed {
		return observed{at: start + int64(at), shares: map[string]float64{"f": percent}, limits: map[string]float64{"f": 2}}
	}
	told := &timelineEvents{start: start, states: []observed{shares(10*time.Millisecond, 30), shares(600*time.Millisecond, 60)}}
	line := bins(f, all, told, &Case{Length: time.Second, Bin: 250 * time.Millisecond})
	offered, in := 0, 0
	var percents []float64
	for _, b := range line.Bins {
		offered, in = offered+b.Offered, in+b.Within
		percents = append(percents, b.SharePercent)
	}
	if offered != 101 || in != 50 || line.Total.Sent != 101 || !slices.Equal(percents, []float64{30, 30, 60, 60}) {
		t.Errorf("%d offered, %d within, shares %v, total %+v", offered, in, percents, line.Total)
	}
}

func TestWriteRead(t *testing.T) {
	r := &Report{Version: version, Figure: "fig8", Title: "t", Device: "d", Runs: 3, Seed: 1, Settings: "x",
		Cases:    []CaseSetting{{Name: "c", Kind: kindLoads, Functions: []FunctionSetting{{Name: "f", Batches: []int{1}}}, Variants: []string{defaultMPS}}},
		Variants: []VariantSetting{{Name: defaultMPS, Baseline: true}},
		Capacity: []Capacity{{Model: "m", PerSecond: 12.5}},
		Results: []Result{
			{Case: "c", Variant: defaultMPS, Run: 1, Loads: []Load{{Level: 0.5, Functions: []FunctionLoad{{Name: "f", Sent: 3, OK: 3}}}}},
			{Case: "c", Variant: defaultMPS, Run: 2, Error: "e", Points: []Point{{Model: "m", Batch: 8}},
				Timeline: &Timeline{BinSeconds: 1, Events: []Event{{1, "begin", "f", 2}}, Functions: []FunctionTimeline{{Name: "f", Bins: []Bin{{Offered: 1}}}}}},
		}}
	file := filepath.Join(t.TempDir(), "new", "r.json")
	if err := r.Write(file); err != nil {
		t.Fatal(err)
	}
	got, err := read(file)
	if err != nil || !reflect.DeepEqual(got, r) {
		t.Errorf("read %+v, %v\nwant %+v", got, err, r)
	}
	if left, _ := filepath.Glob(filepath.Dir(file) + "/*"); len(left) != 1 {
		t.Errorf("the folder has %v", left)
	}
	if got.result("c", defaultMPS, 1) == nil || got.result("c", defaultMPS, 2) != nil || got.capacity("m") != 12.5 || got.capacity("n") != 0 {
		t.Error("run 1 was measured, run 2 failed, m has a capacity")
	}
	got.put(Result{Case: "c", Variant: defaultMPS, Run: 2})
	if len(got.Results) != 2 || got.result("c", defaultMPS, 2) == nil {
		t.Errorf("run 2 again: %+v", got.Results)
	}
}

func TestReadErrors(t *testing.T) {
	dir := t.TempDir()
	o := Options{Figure: "fig16", Out: dir, Runs: 1, Seed: 1, Quick: true}
	o.Device = configs.DeviceCPU
	o.Machine.CPU = "this one"
	file := filepath.Join(dir, "fig16.json")
	write := func(change func(*Report)) {
		t.Helper()
		if err := os.RemoveAll(file); err != nil {
			t.Fatal(err)
		}
		r, err := newRunner(o)
		if err != nil {
			t.Fatal(err)
		}
		change(r.report)
		if err := r.report.Write(file); err != nil {
			t.Fatal(err)
		}
	}
	for name, change := range map[string]func(*Report){
		"version 99":     func(r *Report) { r.Version = 99 },
		`figure "fig1"`:  func(r *Report) { r.Figure = "fig1" },
		"other settings": func(r *Report) { r.Settings = "others" },
		"measured on":    func(r *Report) { r.Device = "another" },
	} {
		write(change)
		if _, err := Prepare(o); err == nil || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), file) {
			t.Errorf("%s: %v", name, err)
		}
	}
	write(func(*Report) {})
	if _, err := Prepare(o); err != nil {
		t.Errorf("a report that is right: %v", err)
	}
	other := o
	other.Seed = 2
	if _, err := Prepare(other); err == nil {
		t.Error("a report of another seed is gone on with")
	}
	if err := os.WriteFile(file, []byte(`{"version": 1, "results": [`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Prepare(o); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("half a report: %v", err)
	}
}

func TestOptionErrors(t *testing.T) {
	good := Options{Figure: "fig16", Out: t.TempDir(), Runs: 1, Quick: true}
	good.Device = configs.DeviceCPU
	if _, err := Prepare(good); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*Options){
		"runs":                  func(o *Options) { o.Runs = 0 },
		"folder":                func(o *Options) { o.Out = "" },
		"fig99":                 func(o *Options) { o.Figure = "fig99" },
		"this machine's 1 GPUs": func(o *Options) { o.Device, o.Machine.GPUs = "cuda:7", []testbed.GPU{{Name: "g", UUID: "GPU-1"}} },
		"a device?":             func(o *Options) { o.Device, o.Machine.GPUs = "a device?", []testbed.GPU{{Name: "g", UUID: "GPU-1"}} },
	} {
		o := good
		change(&o)
		if _, err := Prepare(o); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A plan counts the remaining measurements, and uses how long a variant took before.
func TestPlanRest(t *testing.T) {
	o := Options{Figure: "fig16", Out: t.TempDir(), Runs: 3, Quick: true}
	o.Device = configs.DeviceCPU
	before, err := Prepare(o)
	if err != nil {
		t.Fatal(err)
	}
	r, err := newRunner(o)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range r.figure.models() {
		r.report.Capacity = append(r.report.Capacity, Capacity{Model: f.Model, PerSecond: 1})
	}
	whole := completeReport(t, o)
	i := slices.IndexFunc(whole.Results, func(x Result) bool { return x.Variant == partition && x.Run == 1 })
	x := whole.Results[i]
	x.TookSeconds = 100
	r.report.put(x)
	r.report.put(Result{Case: r.figure.Cases[0].Name, Variant: shadow, Run: 1, Error: "failed"})
	if err := r.report.Write(r.file); err != nil {
		t.Fatal(err)
	}
	after, err := Prepare(o)
	if err != nil {
		t.Fatal(err)
	}
	if before.Left != 9 || after.Left != 8 || after.Steps != 9 || after.Takes < 200*time.Second {
		t.Errorf("before %+v, after %+v: want 9 and 8 left, two of which take 100 s", before, after)
	}
	if v, err := variantOf(partition); err != nil || after.Next != r.figure.Cases[0].takes(v) {
		t.Errorf("the next takes %v, %v: want what a run takes that nobody timed", after.Next, err)
	}
	if text, err := json.Marshal(after); err != nil || len(text) == 0 {
		t.Error(err)
	}
}

func TestDevice(t *testing.T) {
	m := &testbed.Machine{CPU: "c", GPUs: []testbed.GPU{{Name: "a", UUID: "GPU-0a"}, {Name: "b", UUID: "GPU-1b"}, {Name: "c", UUID: "GPU-2c"}}}
	for _, c := range []struct{ name, visible, want string }{
		{"cuda", "", "GPU-0a"}, {"cuda:2", "", "GPU-2c"}, {"GPU-1b", "", "GPU-1b"}, {"cpu", "", "cpu"},
		{"cuda", "1", "GPU-1b"}, {"cuda:1", "2,0", "GPU-0a"}, {"cuda:0", "GPU-2", "GPU-2c"}, {"GPU-2c", "2", "GPU-2c"},
		{"cuda:3", "", ""}, {"cuda:1", "1", ""}, {"GPU-0a", "1", ""}, {"cuda", "-1", ""}, {"cuda:1", "0,9,1", ""}, {"gpu", "", ""}, {"cuda:x", "", ""},
	} {
		got, _, err := resolve(c.name, c.visible, m)
		if got != c.want || (err == nil) != (c.want != "") {
			t.Errorf("%s with CUDA_VISIBLE_DEVICES=%q: %q, %v, want %q", c.name, c.visible, got, err, c.want)
		}
	}
}
