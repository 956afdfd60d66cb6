package fleet

import (
	"testing"

	"github.com/penstock/penstock/cluster/api/v1alpha1"
)

// TestSegmentsOverlap has a GPU with a segment that covers slots of an older one. The plan ends it, and keeps the older one.
func TestSegmentsOverlap(t *testing.T) {
	s := many(t, 4)
	apply(s, Next(s))
	p := s.Plans[0]
	old := p.Spec.Segments[0]
	twice := old
	twice.Name = "twice"
	p.Spec.Segments = append(p.Spec.Segments, twice)

	r := Next(s)
	if !r.Fleet.OK || len(r.Steps) == 0 {
		t.Fatalf("the fleet is %+v, with %d steps", r.Fleet, len(r.Steps))
	}
	ended := map[string]bool{}
	for _, step := range r.Steps {
		ended[step.Segment.Name] = ended[step.Segment.Name] || step.Op == v1alpha1.Destroy
	}
	if first := r.Steps[0]; first.Op != v1alpha1.Destroy || first.Segment.Name != "twice" || ended[old.Name] {
		t.Errorf("steps %+v, want one that ends the segment that overlaps, and none that ends the older one", r.Steps)
	}
	apply(s, r)
	if r := Next(s); len(r.Steps) > 0 {
		t.Errorf("then there are steps: %+v", r.Steps)
	}
}
