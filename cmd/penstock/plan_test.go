package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/penstock/penstock/cuda/mig"
	"github.com/penstock/penstock/internal/testing/migfake"
	"github.com/penstock/penstock/plan"
)

const (
	published = "../../plan/testdata/parvagpu/prof_data"
	scenarios = "../../plan/testdata/parvagpu/scenarios_s1_s3.csv"
)

// penstock runs the program with these arguments.
func penstock(t testing.TB, args ...string) (out string, err error) {
	t.Helper()
	var stdout bytes.Buffer
	cmd := root()
	cmd.SetArgs(args)
	cmd.SetOut(&stdout)
	cmd.SetErr(io.Discard)
	err = cmd.ExecuteContext(context.Background())
	return stdout.String(), err
}

// file writes a file in a temporary folder of the test.
func file(t testing.TB, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func services(t testing.TB, rows string) string {
	return file(t, "services.csv", "model,rate_rps,slo_ms\n"+rows)
}

// plannedWith runs `penstock plan` on the published profiles, and fails t on an error.
func plannedWith(t testing.TB, args ...string) string {
	t.Helper()
	out, err := penstock(t, append([]string{"plan", "--profiles", published}, args...)...)
	if err != nil {
		t.Fatalf("%v: %v", args, err)
	}
	return out
}

// read reads a plan as --from does.
func read(t testing.TB, text string) *plan.Plan {
	t.Helper()
	p, err := plan.Read(strings.NewReader(text), "plan.json")
	if err != nil {
		t.Fatalf("%v:\n%s", err, text)
	}
	return p
}

func TestPlanPublished(t *testing.T) {
	for scenario, want := range map[string]struct{ gpus, gpcs int }{"S1": {2, 10}, "S2": {3, 20}, "S3": {5, 30}} {
		p := read(t, plannedWith(t, "--services", scenarios, "--scenario", scenario, "-o", "json"))
		if p.GPUs != want.gpus || p.GPCs != want.gpcs || p.Policy != "penstock" || p.GPUModel != "a100-80" {
			t.Errorf("%s: %d GPUs, %d GPCs, want %+v", scenario, p.GPUs, p.GPCs, want)
		}
		if p.DelayMS <= 0 {
			t.Errorf("%s: planned in no time", scenario)
		}
	}
}

func TestPlanJSON(t *testing.T) {
	out := plannedWith(t, "--services", scenarios, "--scenario", "S1", "-o", "json")
	var p map[string]any
	if err := json.Unmarshal([]byte(out), &p); err != nil {
		t.Fatal(err)
	}
	has := func(where string, object any, names ...string) {
		for _, name := range names {
			if _, ok := object.(map[string]any)[name]; !ok {
				t.Errorf("%s has no %s", where, name)
			}
		}
	}
	has("the plan", p, "version", "policy", "gpu_model", "gpus", "gpcs", "internal_slack", "external_fragmentation", "optimal", "delay_ms", "services", "segments")
	has("a service", p["services"].([]any)[0], "service", "model", "rate_rps", "slo_ms", "latency_bound_ms", "assigned_rps")
	has("a segment", p["segments"].([]any)[0], "gpu", "gpu_model", "slot", "size_gpcs", "service", "model", "batch", "processes", "throughput_rps", "latency_ms", "load_rps")
	if p["version"] != 1.0 {
		t.Errorf("version %v, want 1", p["version"])
	}
	for _, more := range []string{"change", "replay", "steps"} {
		if _, ok := p[more]; ok {
			t.Errorf("has %s, which nobody asked for", more)
		}
	}
}

func TestPlanTable(t *testing.T) {
	out := plannedWith(t, "--services", scenarios, "--scenario", "S2")
	for _, want := range []string{"3 × a100-80", "20 of 21 GPCs", "GPU 2", "│resnet50", "276 of 412"} {
		if !strings.Contains(out, want) {
			t.Errorf("does not say %q:\n%s", want, out)
		}
	}
}

func TestPlanReproducible(t *testing.T) {
	delay := regexp.MustCompile(`"delay_ms": [0-9.e-]+`)
	var first string
	for range 2 {
		out := delay.ReplaceAllString(plannedWith(t, "--services", scenarios, "--scenario", "S3", "-o", "json"), "")
		if first != "" && out != first {
			t.Errorf("plans\n%s\nthen\n%s", first, out)
		}
		first = out
	}
}

func TestPlanFleet(t *testing.T) {
	fleet := file(t, "fleet.csv", "gpu,count\na100-80,3\nh100-80,unlimited\n")
	p := read(t, plannedWith(t, "--services", scenarios, "--scenario", "S2", "--fleet", fleet, "-o", "json"))
	if p.GPUs != 3 || p.GPUModel != "a100-80" {
		t.Errorf("%d × %s, want 3 × a100-80", p.GPUs, p.GPUModel)
	}
}

func TestPlanPercentGPU(t *testing.T) {
	out, err := penstock(t, "plan", "--profiles", "../../plan/testdata/gslice_v100", "--gpu", "v100",
		"--services", "../../plan/testdata/gslice_v100_services.csv")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"× v100", "steps of SMs", "SMs ", "GPU 0"} {
		if !strings.Contains(out, want) {
			t.Errorf("does not say %q:\n%s", want, out)
		}
	}
}

func TestPlanChange(t *testing.T) {
	old := plannedWith(t, "--services", scenarios, "--scenario", "S3", "-o", "json")
	from := file(t, "old.json", old)
	text, err := os.ReadFile(scenarios)
	if err != nil {
		t.Fatal(err)
	}
	more := strings.Replace(string(text), "S3,resnet50,1463,138", "S3,resnet50,2100,138", 1)
	args := []string{"--services", file(t, "more.csv", more), "--scenario", "S3", "--from", from}
	out := plannedWith(t, append(args, "-o", "json")...)
	before, after := read(t, old), read(t, out)
	of := func(p *plan.Plan) (list []plan.Segment) {
		for _, s := range p.Segments {
			if s.Service != "resnet50" {
				list = append(list, s)
			}
		}
		return list
	}
	if !slices.Equal(of(before), of(after)) {
		t.Errorf("others moved: %+v\nbefore %+v", of(after), of(before))
	}
	var said struct {
		Change struct {
			Services []struct{ Service, Fate string }
			Steps    []struct{ Op string }
		}
	}
	if err := json.Unmarshal([]byte(out), &said); err != nil {
		t.Fatal(err)
	}
	if len(said.Change.Services) != 11 || len(said.Change.Steps) == 0 {
		t.Errorf("says of the change %+v", said.Change)
	}
	const want = "resnet50 changes, from 1463 to 2100 requests/s."
	if out := plannedWith(t, args...); !strings.Contains(out, want) {
		t.Errorf("the table does not say %q:\n%s", want, out)
	}
	// A printed plan can be changed again, including its additional fields.
	again := plannedWith(t, "--services", args[1], "--scenario", "S3", "--from", file(t, "new.json", out))
	if !strings.Contains(again, "11 of 11 services stay as they are") {
		t.Errorf("the same once more is\n%s", again)
	}
}

// A change keeps only the latency bounds. It would lose any other rule of a policy
// and still keep the policy's name.
func TestPlanFromInvalid(t *testing.T) {
	args := []string{"--services", scenarios, "--scenario", "S1"}
	from := plannedWith(t, append(args, "-o", "json")...)
	if out := plannedWith(t, append(args, "--from", file(t, "old.json", from))...); !strings.Contains(out, "6 of 6 services stay as they are") {
		t.Errorf("the same once more is\n%s", out)
	}
	from = strings.Replace(from, `"policy": "penstock"`, `"policy": "penstock-sim"`, 1)
	_, err := penstock(t, append([]string{"plan", "--profiles", published, "--from", file(t, "old.json", from)}, args...)...)
	if err == nil || !strings.Contains(err.Error(), `it is of policy "penstock-sim"`) {
		t.Error(err)
	}
}

func TestPlanInfeasible(t *testing.T) {
	services := file(t, "bad.csv", "model,rate_rps,slo_ms\nresnet50,10,100\ngpt,1,9\nvgg16,10,1\nllama,1,9\n")
	_, err := penstock(t, "plan", "--profiles", published, "--services", services)
	if err == nil {
		t.Fatal("planned")
	}
	lines := strings.Split(err.Error(), "\n")
	slices.Sort(lines)
	want := []string{`service "gpt": no profile`, `service "llama": no profile`, `service "vgg16" (model vgg16 on a100-80): SLO 1 ms`}
	if !slices.EqualFunc(lines, want, strings.HasPrefix) {
		t.Error(err)
	}
}

func TestPlanNoProfiles(t *testing.T) {
	const want = "no profiles of h100-80, so those 8 are not used"
	args := []string{"--services", scenarios, "--scenario", "S3"}
	_, err := penstock(t, append([]string{"plan", "--profiles", published, "--fleet", file(t, "f.csv", "gpu,count\nh100-80,8\na100-80,2\n")}, args...)...)
	if err == nil || !strings.HasSuffix(err.Error(), "; "+want) {
		t.Error(err)
	}
	if out := plannedWith(t, append(args, "--fleet", file(t, "g.csv", "gpu,count\nh100-80,8\na100-80,9\n"))...); !strings.Contains(out, want) {
		t.Errorf("does not say %q:\n%s", want, out)
	}
}

func TestReplaySeed(t *testing.T) {
	args := []string{"--services", scenarios, "--scenario", "S1", "--replay", "--requests", "2000"}
	out := plannedWith(t, args...)
	for _, want := range []string{"\nReplay\n", "seed 1.", "p99 ms"} {
		if !strings.Contains(out, want) {
			t.Errorf("does not say %q:\n%s", want, out)
		}
	}
	replayed := func(seed string) string {
		var p struct{ Replay json.RawMessage }
		if err := json.Unmarshal([]byte(plannedWith(t, append(args, "-o", "json", "--seed", seed)...)), &p); err != nil {
			t.Fatal(err)
		}
		return string(p.Replay)
	}
	if one := replayed("1"); one != replayed("1") || one == replayed("2") || !strings.Contains(one, "violations") {
		t.Error("want the same of the same seed, and another of another")
	}
}

// applying is a node on two A100s and an A30 that may cut them, and the arguments that plan for it. The
// services' models have cards.
func applying(t *testing.T, rows string) (n *migfake.Node, args []string) {
	t.Helper()
	n = migfake.NewNode(t, 2)
	cards := t.TempDir()
	for _, model := range []string{"resnet50", "vgg19"} {
		card := "name: " + model + "\nversion: 1\nframework: \"null\"\nslo: 10s\nbatches: [1]\ndecoder: {name: raw}\noutputs: [{name: y, shape: [1]}]\n" +
			"input: {size: [8, 8, 1], wire: {type: u8, layout: hwc}, tensor: {type: u8, layout: hwc}}\n"
		if err := os.WriteFile(filepath.Join(cards, model+".yaml"), []byte(card), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	n.File = file(t, "node.yaml", "mig: manage\ndevices: [cpu]\nmodels: ["+cards+"]\nfunctions: []\n")
	opened := openMIG
	t.Cleanup(func() { openMIG = opened })
	openMIG = n.Open
	return n, []string{"--runtime-dir", n.Serve(t), "--apply", "--services", services(t, rows)}
}

func TestPlanApply(t *testing.T) {
	rows := "resnet50,3000,100\nvgg19,50,300\n"
	n, args := applying(t, rows)
	out := plannedWith(t, append(args, "--dry-run")...)
	for _, want := range []string{"× a100-80", "start resnet50: ", "start vgg19: ", "create 1g.10gb in slot"} {
		if !strings.Contains(out, want) {
			t.Errorf("does not say %q:\n%s", want, out)
		}
	}
	if len(n.Taken) > 0 || len(n.Runs) > 0 {
		t.Errorf("a dry run took %v", n.Taken)
	}
	n.Refuse = "no memory"
	if _, err := penstock(t, append([]string{"plan", "--profiles", published}, args...)...); err == nil ||
		!strings.HasSuffix(err.Error(), ": manager: no memory; everything is as before") || len(n.Runs) > 0 || len(n.Has[0].Instances) > 0 {
		t.Errorf("%v, runs %v on %v", err, n.Runs, n.Has[0].Instances)
	}
	var p struct{ Steps []string }
	if err := json.Unmarshal([]byte(plannedWith(t, append(args, "-o", "json")...)), &p); err != nil || len(p.Steps) < 6 || len(n.Runs) != 2 {
		t.Errorf("took %v, %v, and runs %v", p.Steps, err, n.Runs)
	}
	if out := plannedWith(t, args...); !strings.Contains(out, "Nothing to do: the node runs this plan already.") || !strings.Contains(out, "2 of 2 services stay as they are") {
		t.Errorf("a second time it says\n%s", out)
	}
	args[len(args)-1] = services(t, "vgg19,50,300\n")
	if plannedWith(t, args...); len(n.Runs) != 1 || len(n.Has[0].Instances)+len(n.Has[2].Instances) != 1 {
		t.Errorf("runs %v, on %v and %v", n.Runs, n.Has[0].Instances, n.Has[2].Instances)
	}
}

// An order that cannot be carried out gets one line, and nothing changes.
func TestPlanApplyErrors(t *testing.T) {
	n, args := applying(t, "resnet50,3000,100\nvgg19,50,300\n")
	for _, c := range []struct {
		name   string
		args   []string
		change func()
		want   string
	}{
		{"other hardware", append(args, "--gpu", "a100-80", "--fleet", file(t, "f.csv", "gpu,count\na100-80,1\n")), nil, "--gpu and --fleet: want one of them"},
		{"more GPUs", append(args[:4:4], services(t, "resnet50,90000,100\n"), "--gpu", "a100-80"), nil, "GPU 2 of the plan is missing: want another a100-80 with MIG, and there is GPU-a100-80-0, GPU-a100-80-2; plan without"},
		{"a model without a card", append(args[:4:4], services(t, "bert,10,6000\n")), nil, `service "bert": find card: unknown model "bert"`},
		{"from", append(args, "--from", "x"), nil, "--from and --apply: want one of them"},
		{"no such node", append([]string{"--runtime-dir", t.TempDir()}, args[2:]...), nil, "check that a node runs with this runtime folder"},
		{"a folder of no apply", append(args[:2:2], args[3:]...), nil, "--runtime-dir without --apply: want both"},
		{"no rights", args, func() { openMIG = func() (mig.Session, error) { return nil, errors.New("only root may") } }, "--apply: no device of the node has a placement table: only root may"},
		{"no permission", args, func() {
			n.File, openMIG = file(t, "node.yaml", strings.Replace(mustRead(t, n.File), "mig: manage\n", "", 1)), n.Open
		}, "the node's configuration does not allow it; add `mig: manage`"},
		{"a fit for none", append(args[:4:4], services(t, "resnet50,90000,100\n")), nil, "is too small: 0 of 1 services fit"},
	} {
		if c.change != nil {
			c.change()
		}
		_, err := penstock(t, append([]string{"plan", "--profiles", published}, c.args...)...)
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") || len(n.Taken) > 0 || len(n.Runs) > 0 {
			t.Errorf("%s: %v\nwant %s", c.name, err, c.want)
		}
	}
}

func TestPlanHelp(t *testing.T) {
	out, err := penstock(t, "plan", "--help")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"--profiles", "--services", "--scenario", "--gpu", "--fleet", "--from", "--replay", "--seed", "--apply", "--dry-run", "--output"} {
		if !strings.Contains(out, want) {
			t.Errorf("the help does not say %s", want)
		}
	}
}

// Each bad input gives a one-line error with the fault, its place and a valid
// value. Nothing else is printed.
func TestPlanErrors(t *testing.T) {
	good := services(t, "vgg19,500,200\nresnet50,3000,100\n")
	old := file(t, "old.json", plannedWith(t, "--services", good, "-o", "json"))
	fleet := func(rows string) string { return file(t, "fleet.csv", "gpu,count\n"+rows) }
	badProfiles := filepath.Dir(file(t, "m.csv", "Mig instance,Batch size,Workload Number,Throughput,Latency\n1,1,x,3,4\n"))
	on := func(services string, more ...string) []string {
		return append([]string{"--profiles", published, "--services", services}, more...)
	}
	illegal := file(t, "illegal.json", strings.Replace(mustRead(t, old), `"slot": 2`, `"slot": 3`, 1))
	for _, c := range []struct {
		name string
		args []string
		want string
	}{
		{"no flag", nil, "--profiles is missing: want the folder"},
		{"no services", []string{"--profiles", published}, "--services is missing: want a CSV file with the columns model, rate_rps, slo_ms"},
		{"no such folder", []string{"--profiles", "nowhere", "--services", good}, "--profiles nowhere: no such file or directory: want a folder"},
		{"a file for a folder", []string{"--profiles", good, "--services", good}, "is a file, want a folder"},
		{"no profiles", []string{"--profiles", t.TempDir(), "--services", good}, "no profile in this folder, want MODEL.csv"},
		{"a malformed profile", []string{"--profiles", badProfiles, "--services", good}, "m.csv:2:5: "},

		{"no such file", on("nofile.csv"), "--services nofile.csv: no such file or directory"},
		{"a folder for a file", on(published), "is a folder, want a file"},
		{"an empty file", on(file(t, "s.csv", "")), "s.csv: is empty, want a header with model,rate_rps,slo_ms"},
		{"no rows", on(services(t, "")), "services.csv: no services: want a row"},
		{"a quote that does not end", on(services(t, "bert,\"1,2\n")), "services.csv:2:11: "},
		{"a wrong column", on(file(t, "s.csv", "model,rate,slo_ms\nbert,1,2\n")), `s.csv:1:7: unknown column "rate": want`},
		{"a missing column", on(file(t, "s.csv", "model,rate_rps\nbert,1\n")), `s.csv:1:7: no column "slo_ms" behind this one: want`},
		{"a short row", on(services(t, "bert,3\n")), "services.csv:2:6: 2 fields: want 3"},
		{"a rate that is none", on(services(t, "bert,fast,6434\n")), `services.csv:2:6: rate_rps "fast": want a number`},
		{"a rate below 0", on(services(t, "bert,-3,6434\n")), `services.csv:2:6: rate_rps "-3": want a number of requests per second above 0`},
		{"an objective of 0", on(services(t, "bert,3,0\n")), `services.csv:2:8: slo_ms "0": want a number of milliseconds above 0`},
		{"a rate beyond all GPUs", on(services(t, "bert,1e12,6434\n")), `services.csv:2:6: rate_rps "1e12": want at most`},
		{"the same model twice", on(services(t, "bert,3,6434\nbert,4,6434\n")), `services.csv:3:1: service "bert" is already on line 2`},
		{"the same service twice", on(file(t, "s.csv", "service,model,rate_rps,slo_ms\na,bert,3,6434\na,vgg16,4,400\n")), `s.csv:3:1: service "a" is already on line 2`},
		{"several scenarios", on(scenarios), "several scenarios: choose one of S1, S2, S3"},
		{"no such scenario", on(scenarios, "--scenario", "S9"), `no scenario "S9": want one of S1, S2, S3`},
		{"no scenarios", on(good, "--scenario", "S1"), `no column scenario: want one to choose "S1" from`},

		{"no profile of a model", on(services(t, "alexnet,3,100\n")), `service "alexnet": no profile of model "alexnet" on a100-80; there are: bert, densenet121`},
		{"an objective that nothing meets", on(services(t, "vgg19,100,3\n")), `SLO 3 ms leaves a batch less than 1.35 ms; the fastest point (size 7, batch 1, 1 process) takes 2 ms, 0.65 ms too long`},

		{"no table", on(good, "--gpu", "a100"), `--gpu "a100": no placement table for this GPU; there are: a30`},
		{"no profiles of that GPU", on(good, "--gpu", "h100-80"), "no profile for h100-80; there are profiles for a100-80"},
		{"GPU and fleet", on(good, "--gpu", "a30", "--fleet", fleet("a30,1\n")), "--gpu and --fleet: want one of them"},
		{"no such fleet", on(good, "--fleet", "nofile.csv"), "--fleet nofile.csv: no such file or directory"},
		{"a malformed fleet", on(good, "--fleet", file(t, "f.csv", "gpu;count\n")), `f.csv:1:1: unknown column "gpu;count"`},
		{"a fleet of none", on(good, "--fleet", fleet("a100-80,0\n")), `fleet.csv:2:9: count "0": want a whole number above 0`},
		{"a fleet without a table", on(good, "--fleet", fleet("a100-81,1\n")), `fleet.csv:2:1: "a100-81": no placement table`},
		{"a fleet that is too small", on(good, "--fleet", fleet("a100-80,1\n")), "the fleet (1 × a100-80) is too small: 1 of 2 services fit; in part: resnet50 ("},

		{"no such old plan", on(good, "--from", "nofile.json"), "--from nofile.json: no such file or directory"},
		{"an old plan that is none", on(good, "--from", good), "services.csv:1:1: invalid character"},
		{"an old plan that is illegal", on(good, "--from", illegal), "--from: the old plan cannot be changed: segments["},
		{"an old plan on other GPUs", on(good, "--from", old, "--fleet", fleet("a100-40,9\na30,unlimited\n")), "there are profiles for a100-80"},

		{"no such form", on(good, "-o", "xml"), `--output is "xml", want table or json`},
		{"an argument", on(good, "extra"), `"extra"`},
		{"no such flag", on(good, "--nope"), "unknown flag: --nope; see `penstock plan --help`"},
		{"dry run of nothing", on(good, "--dry-run"), "--dry-run without --apply: want both"},
		{"seed of nothing", on(good, "--seed", "3"), "--seed without --replay: want both"},
		{"no requests", on(good, "--replay", "--requests", "0"), "--requests 0: want at least 1"},
	} {
		out, err := penstock(t, append([]string{"plan"}, c.args...)...)
		switch {
		case err == nil || !strings.Contains(err.Error(), c.want):
			t.Errorf("%s: %v\nwant %s", c.name, err, c.want)
		case strings.Contains(err.Error(), "\n"):
			t.Errorf("%s: several lines: %v", c.name, err)
		case out != "":
			t.Errorf("%s: printed %s", c.name, out)
		}
	}
}

func mustRead(t testing.TB, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
