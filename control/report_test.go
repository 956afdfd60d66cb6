package control

import "testing"

func TestReportEqual(t *testing.T) {
	with := func(r Residency) Report { return Report{Generation: 1, Residency: &r} }
	measured := func(size int) Report {
		return Report{Generation: 1, Measurements: &Measurements{Batches: []BatchTime{{Size: size}}}}
	}
	tests := map[string]struct {
		a, b Report
		want bool
	}{
		"no residency":        {Report{Generation: 1}, Report{Generation: 1}, true},
		"other figures":       {Report{Generation: 1}, Report{Generation: 2}, false},
		"one has a residency": {Report{Generation: 1}, with(Residency{}), false},
		"equal residencies":   {with(Residency{Loads: 1}), with(Residency{Loads: 1}), true},
		"other residency":     {with(Residency{Loads: 1}), with(Residency{Loads: 2}), false},
		"equal measurements":  {measured(1), measured(1), true},
		"other measurements":  {measured(1), measured(2), false},
	}
	for name, c := range tests {
		t.Run(name, func(t *testing.T) {
			if c.a.Equal(c.b) != c.want || c.b.Equal(c.a) != c.want {
				t.Errorf("Equal(%+v, %+v) is not %v", c.a, c.b, c.want)
			}
		})
	}
}
