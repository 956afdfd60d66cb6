package plan_test

import (
	"encoding/json"
	"errors"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/models/document"
	"github.com/penstock/penstock/plan"
)

func TestReadProfiles(t *testing.T) {
	published, err := plan.ReadProfiles(os.DirFS("testdata/parvagpu/prof_data"))
	must.OK(t, err)
	if n := len(published["a100-80"]); n != 11 || len(published) != 1 {
		t.Fatalf("%d models on a100-80, %d GPUs; want 11 on one", n, len(published))
	}
	first := published["a100-80"]["resnet50"].Points[1]
	want := plan.Point{GPCs: 1, Batch: 1, Processes: 2, ThroughputRPS: 2 * 125.968, LatencyMS: 8}
	if first != want {
		t.Errorf("second point of resnet50 is %+v, want %+v: throughput in the file is per process", first, want)
	}
	measured, err := plan.ReadProfiles(os.DirFS("testdata/gslice_v100"))
	must.OK(t, err)
	if n := len(measured["v100"]); n != 4 {
		t.Fatalf("%d models on v100, want 4", n)
	}
	shares := map[int]bool{}
	for _, pt := range measured["v100"]["mobilenet"].Points {
		shares[pt.GPCs] = true
	}
	// 2, 4 and 6 % of 40 steps are 0.8, 1.6 and 2.4 steps; 10 % are 4.
	for _, steps := range []int{1, 2, 3, 4, 40} {
		if !shares[steps] {
			t.Errorf("mobilenet has no point at %d steps", steps)
		}
	}
}

func TestReadServicesErrors(t *testing.T) {
	for _, c := range []struct{ name, text, scenario, want string }{
		{"empty", "", "", `s.csv: is empty, want a header with model,rate_rps,slo_ms`},
		{"no rows", "model,rate_rps,slo_ms\n", "", `s.csv: no services: want a row for each under the header`},
		{"no column", "model,rate_rps\n", "", `s.csv:1:7: no column "slo_ms" behind this one: want a header with model,rate_rps,slo_ms`},
		{"unknown column", "model,rate,slo_ms\n", "", `s.csv:1:7: unknown column "rate": want one of model,rate_rps,slo_ms,service,scenario`},
		{"column twice", "model,rate_rps,slo_ms,model\n", "", `s.csv:1:23: column "model" is listed twice`},
		{"short row", "model,rate_rps,slo_ms\na,1\n", "", `s.csv:2:3: 2 fields: want 3, as the header has`},
		{"long row", "model,rate_rps,slo_ms\na,1,2,3\n", "", `s.csv:2:7: 4 fields: want 3, as the header has`},
		{"no number", "model,rate_rps,slo_ms\na,fast,2\n", "", `s.csv:2:3: rate_rps "fast": want a number of requests per second above 0`},
		{"zero", "model,rate_rps,slo_ms\na,1,0\n", "", `s.csv:2:5: slo_ms "0": want a number of milliseconds above 0`},
		{"not a number", "model,rate_rps,slo_ms\na,1,NaN\n", "", `s.csv:2:5: slo_ms "NaN": want a number of milliseconds above 0`},
		{"without end", "model,rate_rps,slo_ms\na,Inf,2\n", "", `s.csv:2:3: rate_rps "Inf": want a number of requests per second above 0`},
		{"a slip", "model,rate_rps,slo_ms\na,2e9,2\n", "", `s.csv:2:3: rate_rps "2e9": want at most 1000000000 requests per second`},
		{"control character", "model,rate_rps,slo_ms,service\na,1,2,\x1b[2J\n", "", `s.csv:2:7: service "\x1b[2J": want no control characters in a name`},
		{"not UTF-8", "model,rate_rps,slo_ms,service\na,1,2,caf\xe9\n", "", `s.csv:2:7: service "caf\xe9": want a name in UTF-8`},
		{"no model", "model,rate_rps,slo_ms\n,1,2\n", "", `s.csv:2:1: no model: want the name of a profile`},
		{"bare quote", "model,rate_rps,slo_ms\na\"b,1,2\n", "", `s.csv:2:2: bare " in non-quoted-field`},
		{"quote that does not end", "model,rate_rps,slo_ms\n\"ab,1,2\n", "", `s.csv:2:9: extraneous or missing " in quoted-field`},
		{"same model twice", "model,rate_rps,slo_ms\na,1,2\nb,1,2\na,3,4\n", "",
			`s.csv:4:1: service "a" is already on line 2: want one row per service, with different names in the column service`},
		{"same service twice", "service,model,rate_rps,slo_ms\nx,a,1,2\nx,b,1,2\n", "",
			`s.csv:3:1: service "x" is already on line 2: want one row per service, with different names in the column service`},
		{"row without scenario", "scenario,model,rate_rps,slo_ms\nS1,a,1,2\n,b,1,2\n", "S1", `s.csv:3:1: no scenario: want a name, as other rows have`},
		{"several scenarios", "scenario,model,rate_rps,slo_ms\nS1,a,1,2\nS2,a,1,2\n", "", `s.csv: several scenarios: choose one of S1, S2 with --scenario`},
		{"unknown scenario", "scenario,model,rate_rps,slo_ms\nS1,a,1,2\nS2,a,1,2\n", "S3", `s.csv: no scenario "S3": want one of S1, S2`},
		{"no scenarios", "model,rate_rps,slo_ms\na,1,2\n", "S3", `s.csv: no column scenario: want one to choose "S3" from`},
		{"a wrong row of another scenario", "scenario,model,rate_rps,slo_ms\nS1,a,1,2\nS2,a,1,x\n", "S1", `s.csv:3:8: slo_ms "x": want a number of milliseconds above 0`},
	} {
		_, err := plan.ReadServices(strings.NewReader(c.text), "s.csv", c.scenario)
		var at *document.Problem
		if err == nil || err.Error() != c.want || !errors.As(err, &at) {
			t.Errorf("%s: %v\nwant %s", c.name, err, c.want)
		}
	}
}

func TestReadServicesOrder(t *testing.T) {
	text := "\ufeffslo_ms, model ,service,rate_rps,scenario\r\n20,b,front,1.5,S1\r\n10,a,,2,S2\r\n30,b,,3,S1\r\n"
	got, err := plan.ReadServices(strings.NewReader(text), "s.csv", "S1")
	must.OK(t, err)
	want := []plan.Service{{Name: "front", Model: "b", RateRPS: 1.5, SLOMS: 20}, {Name: "b", Model: "b", RateRPS: 3, SLOMS: 30}}
	if len(got) != 2 || got[0] != want[0] || got[1] != want[1] {
		t.Errorf("%+v, want %+v", got, want)
	}
}

func TestReadFleetErrors(t *testing.T) {
	fleet, err := plan.ReadFleet(strings.NewReader("gpu,count\na30,4\na100-80,unlimited\n"), "f.csv")
	if err != nil || len(fleet) != 2 || fleet[0].Count != 4 || fleet[0].GPU.Name != "a30" || fleet[1].Count >= 0 {
		t.Fatalf("%v, %v", fleet, err)
	}
	for _, c := range []struct{ name, text, want string }{
		{"no rows", "gpu,count\n", `f.csv: no GPUs: want a row for each model under the header`},
		{"unknown", "count,gpu\n1,a31\n", `f.csv:2:3: "a31": no placement table for this GPU; there are: `},
		{"twice", "gpu,count\na30,1\na30,2\n", `f.csv:3:1: GPU "a30" is already on line 2: want one row per model`},
		{"none", "gpu,count\na30,0\n", `f.csv:2:5: count "0": want a whole number above 0, or "unlimited"`},
		{"half", "gpu,count\na30,1.5\n", `f.csv:2:5: count "1.5": want a whole number above 0, or "unlimited"`},
	} {
		_, err := plan.ReadFleet(strings.NewReader(c.text), "f.csv")
		if err == nil || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%s: %v\nwant %s", c.name, err, c.want)
		}
	}
}

// small is a plan of one segment, as JSON.
const small = `{
  "version": 1, "policy": "parvagpu", "gpu_model": "a100-80", "gpus": 1, "gpcs": 2,
  "internal_slack": 0.5, "external_fragmentation": 0.7, "optimal": false, "delay_ms": 0.1,
  "services": [{"service": "x", "model": "a", "rate_rps": 5, "slo_ms": 10, "latency_bound_ms": 4.5, "assigned_rps": 10}],
  "segments": [{"gpu": 0, "gpu_model": "a100-80", "slot": 2, "size_gpcs": 2, "service": "x", "model": "a",
    "batch": 4, "processes": 1, "throughput_rps": 10, "latency_ms": 4, "load_rps": 5}],
  "sms_per_gpu": {"a100-80": 98}
}`

func TestWriteRead(t *testing.T) {
	pl, err := plan.Read(strings.NewReader(small), "old.json")
	must.OK(t, err)
	first, err := json.Marshal(pl)
	must.OK(t, err)
	again, err := plan.Read(strings.NewReader("\ufeff"+string(first)), "old.json") // some editors write the mark
	must.OK(t, err)
	if !reflect.DeepEqual(again, pl) {
		t.Errorf("read again it is %+v\nwant %+v", again, pl)
	}
}

func TestReadErrors(t *testing.T) {
	for _, c := range []struct{ name, old, new, want string }{
		{"empty", small, "", "old.json:1:1: is empty, want a plan"},
		{"cut off", `"sms_per_gpu": {"a100-80": 98}` + "\n}", "", "old.json:7:2: ends in the middle of a plan"},
		{"unknown field", `"delay_ms"`, `"delay"`, `unknown field "delay"`},
		{"text for a number", `"gpcs": 2`, `"gpcs": "two"`, `old.json:2:86: gpcs: want a whole number, not string`},
		{"no JSON", `"optimal": false`, `"optimal": maybe`, `old.json:3:68: invalid character 'm'`},
		{"more", "98}\n}", "98}\n} {}", "old.json:8:1: more after a plan: want nothing else"},
		{"version", `"version": 1`, `"version": 2`, "old.json: version 2: want 1"},
		{"objective", `"slo_ms": 10`, `"slo_ms": 0`, "old.json: services[0]: rate_rps 5, slo_ms 0: want numbers above 0"},
	} {
		text := strings.Replace(small, c.old, c.new, 1)
		if text == small {
			t.Fatalf("%s: nothing replaced", c.name)
		}
		_, err := plan.Read(strings.NewReader(text), "old.json")
		var at *document.Problem
		if err == nil || !strings.Contains(err.Error(), c.want) || !errors.As(err, &at) {
			t.Errorf("%s: %v\nwant %s", c.name, err, c.want)
		}
	}
}
