package fleet

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/penstock/penstock/cluster/api/v1alpha1"
	"github.com/penstock/penstock/plan"
)

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// profiles are those that were published with ParvaGPU, for A100s that are cut, and the same for uncut ones.
func profiles(t testing.TB) map[string]map[string]plan.Profile {
	t.Helper()
	all, err := plan.ReadProfiles(os.DirFS("../../plan/testdata/parvagpu/prof_data"))
	if err != nil {
		t.Fatal(err)
	}
	uncut := map[string]plan.Profile{}
	table, _ := plan.Lookup("a100-80-mps")
	for model, p := range all["a100-80"] {
		p.GPU, p.Points = table.Name, slices.Clone(p.Points)
		for i := range p.Points {
			pt := &p.Points[i]
			pt.SharePercent = float64(pt.GPCs) * 14
			pt.GPCs = table.Steps(pt.SharePercent)
		}
		uncut[model] = p
	}
	all[table.Name] = uncut
	return all
}

// gpus returns GPUs of a table, 4 per node.
func gpus(table string, count int) (out []GPU) {
	t, err := plan.Lookup(table)
	if err != nil {
		panic(err)
	}
	for i := range count {
		g := GPU{Node: fmt.Sprintf("node-%s-%d", table, i/4), UUID: fmt.Sprintf("GPU-%s-%d", table, i), Table: t, Devices: map[Start]string{{}: fmt.Sprintf("gpu-%d", i%4)}}
		g.Pool = g.Node
		if !t.Percent {
			delete(g.Devices, Start{})
			for _, s := range t.Sizes {
				for _, slot := range s.Starts {
					g.Devices[Start{s.GPCs, slot}] = fmt.Sprintf("gpu-%d-mig-%d-%d", i%4, s.GPCs, slot)
				}
			}
		}
		out = append(out, g)
	}
	return out
}

// function returns a function with a port of its own.
func function(name, model string, rate float64) Function {
	namespace, name, _ := strings.Cut(name, "/")
	port := int32(2000)
	for _, c := range name {
		port = port*31%60000 + c
	}
	return Function{NamespacedName: types.NamespacedName{Namespace: namespace, Name: name}, Model: model, SLO: 400 * time.Millisecond, Port: 1024 + port%60000, Created: start, Rate: rate}
}

// changes counts the changes of all tests.
var changes time.Duration

// apply takes steps, as the operator does, and records the planned rates.
func apply(s *State, r *Result) {
	changes++
	Name(r.Steps, s.Fleet, start.Add(changes))
	plans := map[string]*v1alpha1.GPUPlan{}
	for _, p := range s.Plans {
		plans[p.Name] = p.DeepCopy()
	}
	for _, step := range r.Steps {
		p := plans[step.GPUPlan]
		if p == nil {
			p = &v1alpha1.GPUPlan{ObjectMeta: metav1.ObjectMeta{Name: step.GPUPlan}, Spec: v1alpha1.GPUPlanSpec{Fleet: s.Fleet, Place: step.Place}}
			plans[step.GPUPlan] = p
		}
		at := slices.IndexFunc(p.Spec.Segments, func(g v1alpha1.Segment) bool { return g.Name == step.Segment.Name })
		switch step.Op {
		case v1alpha1.Create:
			p.Spec.Segments = append(p.Spec.Segments, step.Segment)
		case v1alpha1.Retune:
			p.Spec.Segments[at] = step.Segment
		case v1alpha1.Destroy:
			if p.Spec.Segments = slices.Delete(p.Spec.Segments, at, at+1); len(p.Spec.Segments) == 0 {
				delete(plans, p.Name)
			}
		}
	}
	s.Plans = nil
	for _, name := range slices.Sorted(maps.Keys(plans)) {
		s.Plans = append(s.Plans, plans[name])
	}
	for i := range s.Functions {
		s.Functions[i].Planned = r.Rates[s.Functions[i].String()]
	}
}

// segments returns the running segments by function, as text.
func segments(s *State) map[string][]string {
	out := map[string][]string{}
	for _, p := range s.Plans {
		for _, g := range p.Spec.Segments {
			name := g.Namespace + "/" + g.Function
			out[name] = append(out[name], fmt.Sprintf("%s %s %s %d.%d", p.Name, g.Device, g.Name, g.Batch, g.Processes))
		}
	}
	return out
}

// settled returns the segments of functions that have no reason to change.
func settled(s *State) map[string][]string {
	out := segments(s)
	health := map[string]Health{}
	for i := range s.GPUs {
		health[s.GPUs[i].Name()] = s.GPUs[i].Health
	}
	changed := map[string]bool{}
	for _, f := range s.Functions {
		changed[f.String()] = f.Rate != f.Planned
		for _, p := range s.Plans {
			for _, g := range p.Spec.Segments {
				if g.Namespace == f.Namespace && g.Function == f.Name {
					_, known := point(s.Profiles, &running{Segment: g, gpu: &GPU{Table: plan.GPU{Name: p.Spec.Table}}})
					changed[f.String()] = changed[f.String()] || g.Model != f.Model || g.SLO.Duration != f.SLO || health[p.Name] >= Leaving || s.Dead[g.Name] || !known
				}
			}
		}
	}
	maps.DeleteFunc(out, func(name string, _ []string) bool { moved, exists := changed[name]; return moved || !exists })
	return out
}

// free returns the number of good GPUs that have no segments.
func free(s *State) (count int) {
	for i := range s.GPUs {
		name := s.GPUs[i].Name()
		if s.GPUs[i].Health == Good && !slices.ContainsFunc(s.Plans, func(p *v1alpha1.GPUPlan) bool { return p.Name == name }) {
			count++
		}
	}
	return count
}

type tester interface {
	Helper()
	Fatalf(string, ...any)
}

// next plans, checks the answer, and carries it out.
func next(t tester, s *State) *Result {
	t.Helper()
	r := Next(s)
	steps(t, s, r)
	before, roomy := settled(s), free(s) > len(s.Functions)
	apply(s, r)
	holds(t, s, r)
	for name, was := range before {
		if now := segments(s)[name]; roomy && r.Conditions[name].OK && !slices.Equal(now, was) {
			t.Fatalf("%s did not change, and moved from %v to %v", name, was, now)
		}
	}
	for tries := 0; ; tries++ {
		again := Next(s)
		if len(again.Steps) == 0 && reflect.DeepEqual(again.Rates, r.Rates) {
			break
		}
		// If a fleet is too small, a change can find room that the plan before did not.
		if r.Fleet.OK || tries > 2 {
			t.Fatalf("the same state again: %d steps, first %+v; rates %v, before %v", len(again.Steps), again.Steps[:min(1, len(again.Steps))], again.Rates, r.Rates)
		}
		r = again
		steps(t, s, r)
		apply(s, r)
		holds(t, s, r)
	}
	return r
}

// steps checks each step: no slot is used twice, and names are new.
func steps(t tester, s *State, r *Result) {
	t.Helper()
	names := map[string]bool{}
	slots := map[string]string{} // GPU and slot
	tables := map[string]plan.GPU{}
	for i := range s.GPUs {
		tables[s.GPUs[i].Name()] = s.GPUs[i].Table
	}
	set := func(gpu string, g v1alpha1.Segment, name string) {
		size, _ := tables[gpu].Size(int(g.GPCs))
		for slot := int(g.Slot); slot < int(g.Slot)+size.Slots; slot++ {
			at := fmt.Sprint(gpu, " ", slot)
			if other := slots[at]; name != "" && other != "" {
				t.Fatalf("%s: %s is where %s is", at, name, other)
			}
			slots[at] = name
		}
	}
	for _, p := range s.Plans {
		for _, g := range p.Spec.Segments {
			names[g.Name] = true
			set(p.Name, g, g.Name)
		}
	}
	for i, step := range r.Steps {
		name := step.Segment.Name
		if step.Segment.Device == "" || step.Why == "" {
			t.Fatalf("step %d: %+v", i, step)
		}
		switch step.Op {
		case v1alpha1.Create:
			if names[name] {
				t.Fatalf("step %d: %s is made twice", i, name)
			}
			names[name] = true
			set(step.GPUPlan, step.Segment, name)
		case v1alpha1.Retune:
			if !names[name] || step.Was.Name != name {
				t.Fatalf("step %d: %s is retuned from %+v", i, name, step.Was)
			}
		case v1alpha1.Destroy:
			if !names[name] {
				t.Fatalf("step %d: %s does not exist", i, name)
			}
			set(step.GPUPlan, step.Segment, "")
		}
	}
}

// holds checks what holds for every plan.
func holds(t tester, s *State, r *Result) {
	t.Helper()
	health := map[string]Health{}
	for i := range s.GPUs {
		health[s.GPUs[i].Name()] = s.GPUs[i].Health
	}
	serves, gpcs, fixed := map[string]float64{}, map[string]int{}, map[string]int{}
	devices, names, numbers := map[string]bool{}, map[string]bool{}, map[int32]bool{}
	for _, p := range s.Plans {
		table, _ := plan.Lookup(p.Spec.Table)
		if numbers[p.Spec.Number] {
			t.Fatalf("two GPUs have the number %d", p.Spec.Number)
		}
		numbers[p.Spec.Number] = true
		if health[p.Name] == Lost {
			t.Fatalf("%s is lost and has segments", p.Name)
		}
		for _, g := range p.Spec.Segments {
			if device := p.Spec.Pool + " " + g.Device; devices[device] && !table.Percent || names[g.Name] {
				t.Fatalf("%s: device %s or name %s is used twice", p.Name, device, g.Name)
			} else {
				devices[device], names[g.Name] = true, true
			}
			serves[g.Namespace+"/"+g.Function] += g.Throughput.AsApproximateFloat64()
			gpcs[g.Namespace] += sevenths(table, int(g.GPCs))
			if health[p.Name] == Unknown {
				fixed[g.Namespace] += sevenths(table, int(g.GPCs)) // stay, even if a limit falls
			}
		}
	}
	for _, f := range s.Functions {
		name := f.String()
		c, known := r.Conditions[name]
		if !known || c.Message == "" || c.OK != (c.Reason == v1alpha1.ReasonPlanned) {
			t.Fatalf("%s: condition %+v", name, c)
		}
		if c.OK && r.Rates[name] < whole(f.Rate) || r.Rates[name] > whole(f.Rate) && c.Reason != v1alpha1.ReasonChangeFailed {
			t.Fatalf("%s wants %v and is planned for %v: %+v", name, f.Rate, r.Rates[name], c)
		}
		if c.OK && serves[name] < r.Rates[name]*(1-1e-6)-0.01 {
			t.Fatalf("%s is planned for %v: its segments serve %v", name, r.Rates[name], serves[name])
		}
		delete(serves, name)
	}
	if len(serves) > 0 {
		t.Fatalf("segments of functions that do not exist: %v", serves)
	}
	if strings.HasPrefix(r.Fleet.Message, "the plan stays") {
		t.Fatalf("%s", r.Fleet.Message)
	}
	for namespace, most := range s.Limits {
		if gpcs[namespace] > max(most, fixed[namespace]) {
			t.Fatalf("namespace %s has %d GPCs, of %d", namespace, gpcs[namespace], most)
		}
	}
}

func TestFirstPlan(t *testing.T) {
	for _, table := range []string{"a100-80", "a100-80-mps"} {
		s := &State{Fleet: "f", GPUs: gpus(table, 8), Profiles: profiles(t),
			Functions: []Function{function("a/one", "resnet50", 2000), function("a/two", "vgg19", 500), function("b/one", "bert", 40)}}
		if r := next(t, s); !r.Fleet.OK || len(r.Steps) < 3 {
			t.Errorf("%s: %+v", table, r)
		}
		// A rate grows: the others keep their segments.
		before := segments(s)
		s.Functions[0].Rate = 4000
		r := next(t, s)
		after := segments(s)
		if !r.Fleet.OK || len(r.Steps) == 0 || !reflect.DeepEqual(before["a/two"], after["a/two"]) || !reflect.DeepEqual(before["b/one"], after["b/one"]) {
			t.Errorf("%s: %+v, from %v to %v", table, r, before, after)
		}
		// All functions are deleted.
		s.Functions = nil
		if next(t, s); len(s.Plans) != 0 {
			t.Errorf("%s: %d GPUs are left", table, len(s.Plans))
		}
	}
}

// random draws a state's next surprise.
func random(t *rapid.T, s *State) {
	models := []string{"resnet50", "vgg19", "bert", "mobilenetv2"}
	for range rapid.IntRange(1, 3).Draw(t, "events") {
		at := func(name string) int { return rapid.IntRange(0, len(s.Functions)-1).Draw(t, name) }
		switch event := rapid.SampledFrom([]string{"new", "new", "rate", "rate", "gone", "health", "health", "slo", "model", "dead", "port", "limit", "profile"}).Draw(t, "event"); {
		case event == "new" || len(s.Functions) == 0:
			f := function(fmt.Sprintf("%s/f%d", rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "namespace"), rapid.IntRange(0, 30).Draw(t, "number")),
				rapid.SampledFrom(append(models, "missing")).Draw(t, "model"), whole(rapid.Float64Range(0.001, 3000).Draw(t, "rate")))
			f.Priority = int32(rapid.IntRange(-1, 1).Draw(t, "priority"))
			if !slices.ContainsFunc(s.Functions, func(o Function) bool { return o.NamespacedName == f.NamespacedName }) {
				s.Functions = append(s.Functions, f)
			}
		case event == "rate":
			s.Functions[at("function")].Rate = whole(rapid.Float64Range(0.001, 5000).Draw(t, "rate"))
		case event == "gone":
			i := at("function")
			s.Functions = slices.Delete(s.Functions, i, i+1)
		case event == "health":
			g := &s.GPUs[rapid.IntRange(0, len(s.GPUs)-1).Draw(t, "gpu")]
			g.Health = rapid.SampledFrom([]Health{Good, Good, Unknown, Leaving, Lost}).Draw(t, "health")
			g.Why = "the test says so"
		case event == "slo":
			s.Functions[at("function")].SLO = time.Duration(rapid.IntRange(5, 1000).Draw(t, "slo")) * time.Millisecond
		case event == "model":
			s.Functions[at("function")].Model = rapid.SampledFrom(models).Draw(t, "model")
		case event == "port":
			s.Functions[at("function")].Port = int32(rapid.IntRange(1024, 1030).Draw(t, "port"))
		case event == "limit":
			s.Limits = map[string]int{"a": rapid.IntRange(1, 40).Draw(t, "GPCs")}
		case event == "profile":
			// It is measured again, without some points.
			s.Profiles = maps.Clone(s.Profiles)
			s.Profiles["a100-80"] = maps.Clone(s.Profiles["a100-80"])
			p, rest := s.Profiles["a100-80"]["resnet50"], rapid.IntRange(0, 2).Draw(t, "rest")
			p.Points = slices.DeleteFunc(slices.Clone(p.Points), func(pt plan.Point) bool { return pt.GPCs > 1 && pt.Batch%3 == rest })
			s.Profiles["a100-80"]["resnet50"] = p
		case event == "dead" && len(s.Plans) > 0:
			s.Dead = map[string]bool{}
			if p := s.Plans[rapid.IntRange(0, len(s.Plans)-1).Draw(t, "plan")]; len(p.Spec.Segments) > 0 {
				s.Dead[p.Spec.Segments[0].Name] = true
			}
		}
	}
}

func TestRandom(t *testing.T) {
	known := profiles(t)
	rapid.Check(t, func(t *rapid.T) {
		s := &State{Fleet: "f", Profiles: known,
			GPUs: slices.Concat(gpus("a100-80", rapid.IntRange(1, 20).Draw(t, "cut")), gpus("a100-80-mps", rapid.IntRange(0, 3).Draw(t, "uncut")))}
		for range rapid.IntRange(1, 8).Draw(t, "changes") {
			random(t, s)
			next(t, s)
		}
	})
}

// TestLowPriority adds a function of low priority that the fleet cannot serve completely, or only if others move. The others keep
// their segments, and it gets what is left.
func TestLowPriority(t *testing.T) {
	for _, rate := range []float64{1e6, 9000, 3000} {
		for seed := range uint64(10) {
			random := rand.New(rand.NewPCG(seed, 1))
			s := &State{Fleet: "f", GPUs: gpus("a100-80", 6), Profiles: profiles(t)}
			models := []string{"resnet50", "vgg19", "bert", "mobilenetv2"}
			for i := range 12 {
				f := function(fmt.Sprintf("a/f%d", i), models[i%len(models)], whole(50+400*random.Float64()))
				f.Priority = 1
				s.Functions = append(s.Functions, f)
			}
			if r := next(t, s); !r.Fleet.OK {
				t.Fatalf("seed %d: the fleet is too small for the first functions: %+v", seed, r.Fleet)
			}
			// Some leave, so that free slots are spread.
			s.Functions = slices.DeleteFunc(s.Functions, func(Function) bool { return random.IntN(3) == 0 })
			next(t, s)

			before := segments(s)
			large := function("a/large", "resnet50", rate)
			s.Functions = append(s.Functions, large)
			r := next(t, s)
			after := segments(s)
			if got := r.Rates[large.String()]; got == 0 {
				t.Errorf("rate %v, seed %d: it gets nothing: %+v", rate, seed, r.Conditions[large.String()])
			}
			for name, was := range before {
				if !slices.Equal(after[name], was) || !r.Conditions[name].OK {
					t.Errorf("rate %v, seed %d: %s moved from %v to %v, %+v", rate, seed, name, was, after[name], r.Conditions[name])
				}
			}
		}
	}
}
