package fleet

import (
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/penstock/penstock/cluster/api/v1alpha1"
	"github.com/penstock/penstock/plan"
	"github.com/penstock/penstock/planner/change"
)

// stepper turns the steps of a change into those of a cluster.
type stepper struct {
	*planner
	// gpus are the GPUs by their numbers in the change, refs their GPUPlans.
	gpus []*GPU
	refs map[string]reference
	// spare are the GPUs that nothing uses, numbers the numbers of all GPUPlans.
	spare   []*GPU
	numbers map[int32]bool
	// at are the segments that exist, by place in the change.
	at   map[place]v1alpha1.Segment
	out  []v1alpha1.Step
	made int
}

type place struct{ gpu, slot int }

// steps returns the steps of a change:
//
//  1. end what cannot stay on GPUs that are needed
//  2. the steps of planner/change
//  3. give segments that stay the port and objective of their function
//  4. end segments on GPUs that are lost or leave, once others serve
func (n *planner) steps(c *change.Change) []v1alpha1.Step {
	s := &stepper{planner: n, gpus: slices.Clone(n.board.used), refs: map[string]reference{}, numbers: map[int32]bool{}, at: map[place]v1alpha1.Segment{}}
	for _, p := range n.Plans {
		s.refs[p.Name] = referTo(p)
		s.numbers[p.Spec.Number] = true
	}
	for i := range n.GPUs {
		if g := &n.GPUs[i]; g.Health == Good && !slices.Contains(n.board.used, g) {
			s.spare = append(s.spare, g)
		}
	}
	for _, r := range n.board.running {
		s.at[place{r.as.GPU, r.as.Slot}] = r.Segment
	}
	for _, r := range n.board.first {
		why := "it is not part of the plan"
		switch {
		case r.Draining:
			why = "it already drains"
		case n.Dead[r.Name]:
			why = "its pod does not answer"
		}
		s.end(r, why)
	}
	for _, step := range c.Steps {
		s.step(step)
	}
	s.adjust()
	for _, r := range n.board.last {
		_, wanted := n.byName[r.function()]
		if short := wanted && !n.Conditions[r.function()].OK; r.gpu.Health == Lost || !short {
			s.end(r, r.gpu.Why)
		}
	}
	return s.out
}

func (s *stepper) end(r running, why string) {
	s.out = append(s.out, v1alpha1.Step{Op: v1alpha1.Destroy, GPUPlan: r.ref.name, Place: r.ref.Place, Segment: r.Segment, Why: why})
}

func (s *stepper) step(c change.Step) {
	g := s.gpu(c.Segment)
	at := place{c.Segment.GPU, c.Segment.Slot}
	ref := s.ref(g)
	step := v1alpha1.Step{Op: v1alpha1.StepOp(c.Op), GPUPlan: ref.name, Place: ref.Place, Shadow: c.Shadow, Why: c.Why}
	switch c.Op {
	case change.Destroy:
		step.Segment = s.at[at]
		delete(s.at, at)
	case change.Retune:
		was := s.at[at]
		step.Was = &was
		step.Segment = s.segment(g, c.Segment, was.Name)
		s.at[at] = step.Segment
	case change.Create:
		// A number tells new segments apart until they have names.
		s.made++
		step.Segment = s.segment(g, c.Segment, fmt.Sprint(s.made))
		s.at[at] = step.Segment
	}
	s.out = append(s.out, step)
}

// gpu returns the GPU of a segment. A GPU that was not used gets the next number.
func (s *stepper) gpu(g plan.Segment) *GPU {
	for len(s.gpus) <= g.GPU {
		s.gpus = append(s.gpus, nil)
	}
	if s.gpus[g.GPU] == nil {
		at := slices.IndexFunc(s.spare, func(o *GPU) bool { return o.Table.Name == g.GPUModel })
		s.gpus[g.GPU] = s.spare[at]
		s.spare = slices.Delete(s.spare, at, at+1)
	}
	return s.gpus[g.GPU]
}

// ref returns a GPU's GPUPlan, which may not exist yet.
func (s *stepper) ref(g *GPU) reference {
	ref, ok := s.refs[g.Name()]
	if !ok {
		number := int32(0)
		for s.numbers[number] {
			number++
		}
		s.numbers[number] = true
		ref = reference{g.Name(), v1alpha1.Place{Node: g.Node, Pool: g.Pool, GPU: g.UUID, Table: g.Table.Name, Number: number}}
		s.refs[g.Name()] = ref
	}
	return ref
}

func (s *stepper) segment(g *GPU, p plan.Segment, name string) v1alpha1.Segment {
	f := s.byName[p.Service]
	out := v1alpha1.Segment{Name: name, Namespace: f.Namespace, Function: f.Name, Model: p.Model, SLO: metav1.Duration{Duration: f.SLO}, Port: f.Port,
		Device: g.device(p.GPCs, p.Slot), Slot: int32(p.Slot), GPCs: int32(p.GPCs), Processes: int32(p.Processes), Batch: int32(p.Batch),
		Throughput: v1alpha1.Rate(p.ThroughputRPS)}
	if p.SharePercent > 0 {
		share := resource.MustParse(fmt.Sprintf("%.3f", p.SharePercent))
		out.SharePercent = &share
	}
	return out
}

// adjust retunes segments that stay and whose function has another port or objective.
func (s *stepper) adjust() {
	for _, r := range s.board.running {
		now := s.at[place{r.as.GPU, r.as.Slot}]
		f, wanted := s.byName[r.function()]
		if now.Name != r.Name || !wanted || now.Port == f.Port && now.SLO.Duration == f.SLO || s.board.services[f.String()] == s.wanted[f.String()] {
			continue
		}
		becomes := now
		becomes.Port, becomes.SLO.Duration = f.Port, f.SLO
		s.out = append(s.out, v1alpha1.Step{Op: v1alpha1.Retune, GPUPlan: r.ref.name, Place: r.ref.Place, Segment: becomes, Was: &now, Why: f.String() + " has another port or objective"})
	}
}

// Name gives the new segments of steps names that were never used. The time of the change makes them so.
func Name(steps []v1alpha1.Step, fleet string, at time.Time) {
	names := map[string]string{} // by the number of steps
	for i := range steps {
		g := &steps[i].Segment
		if steps[i].Op == v1alpha1.Create {
			names[g.Name] = g.Function + "-" + hash(fleet, at.UTC().Format(time.RFC3339Nano), g.Namespace, g.Function, g.Name)
		}
		if name, isNew := names[g.Name]; isNew {
			g.Name = name
		}
	}
}
