package configs

import (
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/testing/must"
)

func TestWorkers(t *testing.T) {
	const cold = "workers: [{name: cold, share_percent: 30}]"
	for name, row := range map[string]struct {
		text  string
		words []string // of the one error; nil: accepted
	}{
		"members":           {"{" + cold + ", functions: [{name: a, port: 1, worker: cold}, {name: b, port: 2, worker: cold, weights: shared, slo: 5ms}], device: auto}", nil},
		"worker after list": {"{functions: [{name: a, port: 1, worker: cold}], " + cold + "}", nil},
		"no member":         {"{" + cold + ", functions: [{name: a, port: 1, share_percent: 70}]}", nil},
		"unknown":           {"{" + cold + ", functions: [{name: a, port: 1, worker: clod}]}", []string{"f.yaml:1:85: functions[0].worker", `is "clod", which no worker has`, `did you mean "cold"?`}},
		"no workers":        {"functions: [{name: a, port: 1, worker: cold}]", []string{"functions[0].worker", "has no workers", "want `workers: [{name: cold, share_percent: 30}]`"}},
		"two of a name":     {"{workers: [{name: cold, share_percent: 30}, {name: cold, share_percent: 20}], functions: []}", []string{"workers[1].name", `is "cold", which another worker has`}},
		"bad name":          {"{workers: [{name: ../cold, share_percent: 30}], functions: []}", []string{"workers[0].name", "want lower case letters"}},
		"no name":           {"{workers: [{share_percent: 30}], functions: [{name: a, port: 1, worker: cold}]}", []string{"workers[0].name", "missing"}},
		"a map":             {"{workers: {cold: {share_percent: 30}}, functions: [{name: a, port: 1, worker: cold}]}", []string{"workers: is a map, want a list"}},
		"empty name":        {"{workers: [{name: '', share_percent: 30}], functions: [{name: a, port: 1, worker: cold}]}", []string{"workers[0].name", "want lower case letters"}},
		"no guarantee":      {"{workers: [{name: cold}], functions: []}", []string{"workers[0].share_percent", "missing"}},
		"guarantee of 0":    {"{workers: [{name: cold, share_percent: 0}], functions: []}", []string{"workers[0].share_percent", "0.1 to 100"}},
		"unknown key":       {"{workers: [{name: cold, share_percent: 30, evict: lru}], functions: []}", []string{`unknown key "evict"`}},
		"memory":            {"{workers: [{name: cold, share_percent: 30, memory: 8GiB}], functions: []}", nil},
		"bad memory":        {"{workers: [{name: cold, share_percent: 30, memory: lots}], functions: []}", []string{"workers[0].memory", `is "lots"`, "want a size from 1MiB to 16TiB"}},
		"memory of 0":       {"{workers: [{name: cold, share_percent: 30, memory: 0}], functions: []}", []string{"workers[0].memory", "1MiB"}},
		"host memory":       {"{device: auto, workers: [{name: cold, share_percent: 30, memory: 8GiB, host_memory: 16GiB}], functions: []}", nil},
		"host memory on a CPU": {"{device: cpu, workers: [{name: cold, share_percent: 30, memory: 8GiB, host_memory: 16GiB}], functions: []}",
			[]string{"workers[0].host_memory", "is for a GPU", "delete the key"}},
		"host memory alone": {"{device: auto, workers: [{name: cold, share_percent: 30, host_memory: 16GiB}], functions: []}",
			[]string{"workers[0].host_memory", "without memory no model is loaded again", "want `memory: 8GiB`"}},
		"sum of workers": {"{workers: [{name: a, share_percent: 60}, {name: b, share_percent: 50}], functions: [{name: a, port: 1}]}", []string{"workers[1].share_percent", "is 50 %, and the others have 60 %", "110 % together"}},
		"sum with a function": {"{" + cold + ", functions: [{name: a, port: 1, share_percent: 80}]}",
			[]string{"functions[0].share_percent", "is 80 %, and the others have 30 %", "at most 100 %"}},
		"gslice": {"{" + cold + ", shares: {policy: gslice}, functions: [{name: a, port: 1, worker: cold}, {name: b, port: 2, worker: cold}]}",
			[]string{"f.yaml:1:11: workers", "need `policy: guarantee`", "gslice"}},
		"share_percent": {"{" + cold + ", functions: [{name: a, port: 1, worker: cold, share_percent: 20}]}", []string{"functions[0].share_percent", "is 20 %", `worker "cold"`, "delete one of the two keys"}},
		"change":        {"{" + cold + ", functions: [{name: a, port: 1, worker: cold, change: shadow}]}", []string{"functions[0].change", "is shadow", `worker "cold"`, "delete one"}},
		"instances":     {"{" + cold + ", functions: [{name: a, port: 1, worker: cold, instances: 2}]}", []string{"functions[0].instances", "is 2", `worker "cold"`, "delete one"}},
		"in_flight":     {"{device: auto, " + cold + ", functions: [{name: a, port: 1, worker: cold, in_flight: 2}]}", []string{"functions[0].in_flight", "is 2", `worker "cold"`, "delete one"}},
		"lanes":         {"{workers: [{name: cold, share_percent: 30, lanes: 0}], functions: []}", []string{"workers[0].lanes", "1 to 16"}},
		"policy":        {"{workers: [{name: cold, share_percent: 30, policy: edg}], functions: []}", []string{"workers[0].policy", `is "edg"`, `did you mean "edf"?`}},
		"environment":   {"{" + cold + ", functions: [{name: a, port: 1, worker: cold, environment: {A: b}}]}", []string{"functions[0].environment", "belongs to a process", `worker "cold"`, "delete one"}},
	} {
		t.Run(name, func(t *testing.T) { decodeChecked(t, row.text, row.words) })
	}
}

// A function of `penstock if` passes no file: the same rules hold.
func TestWorkerAtRunTime(t *testing.T) {
	c, err := Decode("f.yaml", []byte("{workers: [{name: cold, share_percent: 30}], functions: []}"))
	must.OK(t, err)
	for worker, want := range map[string]string{"": "", "cold": "", "clod": `did you mean "cold"?`} {
		f := Function{Name: "a", Instances: 1, Worker: worker}
		err := f.Under(&c)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("worker %q: %v, want %q", worker, err, want)
		}
	}
	c.Lab.Change = ChangeShadow
	f := Function{Name: "a", Instances: 1, Worker: "cold"}
	if err := f.Under(&c); err == nil || !strings.Contains(err.Error(), "policy: guarantee") {
		t.Errorf("a baseline with shares: %v", err)
	}
}
