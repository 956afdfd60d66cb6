package mig

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

func TestSteps(t *testing.T) {
	g := GPU{UUID: "gpu-0", MIG: true, Profiles: []Profile{
		{Name: "1g.10gb", Number: 0, Slices: 1, Size: 1}, {Name: "2g.20gb", Number: 1, Slices: 2, Size: 2}, {Name: "3g.40gb", Number: 2, Slices: 3, Size: 4},
	}}
	four := Instance{ID: 1, Profile: "4g.40gb", Slices: 4, Start: 0, Size: 4, Compute: []Compute{{0, 4}}}
	divided := Instance{ID: 3, Profile: "2g.20gb", Slices: 2, Start: 4, Size: 2, Compute: []Compute{{0, 1}, {1, 1}}}
	one := Instance{ID: 9, Profile: "1g.10gb", Slices: 1, Start: 6, Size: 1, Compute: []Compute{{0, 1}}}
	g.Instances = []Instance{four, divided, one}
	again := divided
	again.ID, again.Compute = 7, []Compute{{4, 1}, {5, 1}} // the driver's numbers of another time
	whole := divided
	whole.Compute = []Compute{{Slices: 2}}
	for _, c := range []struct {
		name         string
		wanted, want string
		instances    []Instance
	}{
		{name: "as it is", instances: []Instance{four, again, one}},
		{name: "none", want: "destroy compute instance 0 (4 slices) of 4g.40gb in slots 0–3; destroy 4g.40gb in slots 0–3; " +
			"destroy compute instance 0 (1 slice) of 2g.20gb in slots 4–5; destroy compute instance 1 (1 slice) of 2g.20gb in slots 4–5; destroy 2g.20gb in slots 4–5; " +
			"destroy compute instance 0 (1 slice) of 1g.10gb in slot 6; destroy 1g.10gb in slot 6"},
		{name: "not divided", instances: []Instance{four, whole, one}, want: "destroy compute instance 0 (1 slice) of 2g.20gb in slots 4–5; " +
			"destroy compute instance 1 (1 slice) of 2g.20gb in slots 4–5; destroy 2g.20gb in slots 4–5; " +
			"create 2g.20gb in slots 4–5; create a compute instance (2 slices) in 2g.20gb in slots 4–5"},
	} {
		var text []string
		steps := g.Steps(c.instances)
		for _, s := range steps {
			text = append(text, strings.ReplaceAll(s.String(), fmt.Sprintf(" of GPU %d (%s)", s.Index, s.GPU), ""))
			if s.Profile == "2g.20gb" && s.Number != 1 {
				t.Errorf("%s: %v has profile %d", c.name, s, s.Number)
			}
		}
		if got := strings.Join(text, "; "); got != c.want {
			t.Errorf("%s: %s\nwant %s", c.name, got, c.want)
		}
		var back []Op
		for _, s := range slices.Backward(steps) {
			back = append(back, s.Inverse().Op)
		}
		if c.name == "not divided" && !slices.Equal(back, []Op{DestroyCompute, DestroyInstance, CreateInstance, CreateCompute, CreateCompute}) {
			t.Errorf("%s: the way back is %v", c.name, back)
		}
	}
}
