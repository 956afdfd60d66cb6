package fleet

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/penstock/penstock/cluster/api/v1alpha1"
	"github.com/penstock/penstock/planner/follow"
)

// MaxOfferedRate is the highest rate of requests that a node can receive: more than 100 Gbit/s bring in packets that are cut
// as small as possible. A page that shows more is wrong.
const MaxOfferedRate = 150e6

// A Page is what a pod says about its functions.
type Page struct {
	// Pod identifies the pod. Functions are in its namespace.
	Pod       types.NamespacedName
	Functions []FunctionPage
	// At is when the page was read.
	At time.Time
}

// A FunctionPage is a function on a page.
type FunctionPage struct {
	Name string `json:"name"`
	// Offered is how many requests have ever arrived.
	Offered uint64 `json:"offered"`
}

// Rates follows the rates of functions. Only one goroutine may use it. After a restart, a new Rates continues with what
// Functions have in their status.
type Rates struct {
	// counts are those of the last pages, by pod and function.
	counts    map[[2]types.NamespacedName]count
	functions map[types.NamespacedName]*measured
}

type count struct {
	offered uint64
	at      time.Time
}

type measured struct {
	follow.Service
	rate     float64
	from, to time.Time
	// wanted is the rate to plan for instead of planned.
	wanted, planned float64
	// lie says what is wrong with a page.
	lie string
}

// NewRates returns a Rates that has seen nothing.
func NewRates() *Rates {
	return &Rates{counts: map[[2]types.NamespacedName]count{}, functions: map[types.NamespacedName]*measured{}}
}

// Read takes new pages. A counter that is lower than before is that of a node that has started again. Its requests since then are
// not those of a known time, so they count from the next page on, as those of a new pod do.
func (r *Rates) Read(pages []Page) {
	counts := make(map[[2]types.NamespacedName]count, len(r.counts))
	sums := map[types.NamespacedName]*sum{}
	for _, p := range pages {
		for _, f := range p.Functions {
			name := types.NamespacedName{Namespace: p.Pod.Namespace, Name: f.Name}
			key := [2]types.NamespacedName{p.Pod, name}
			if _, twice := counts[key]; twice {
				continue
			}
			counts[key] = count{f.Offered, p.At}
			if sums[name] == nil {
				sums[name] = &sum{}
			}
			was, known := r.counts[key]
			sums[name].add(p.Pod, was, counts[key], known)
		}
	}
	for key := range r.counts {
		if _, answers := counts[key]; !answers && sums[key[1]] != nil {
			sums[key[1]].partial = true
		}
	}
	r.counts = counts

	for _, m := range r.functions {
		m.from = m.to // nothing new
	}
	for name, sum := range sums {
		m := r.functions[name]
		if m == nil {
			m = &measured{}
			r.functions[name] = m
		}
		m.lie = sum.lie
		// Part of the pods can show that a rate has grown, but not that it fell.
		if m.lie == "" && (!sum.partial || !m.to.IsZero() && sum.rate > m.rate) {
			m.rate, m.from, m.to = sum.rate, sum.from, sum.to
		}
	}
}

// A sum is the rate of a function's pods on two pages each.
type sum struct {
	rate     float64
	from, to time.Time
	// partial means that the rate of a pod is not known.
	partial bool
	lie     string
}

func (s *sum) add(pod types.NamespacedName, was, now count, known bool) {
	if !known || now.offered < was.offered || !now.at.After(was.at) {
		s.partial = true
		return
	}
	rate := float64(now.offered-was.offered) / now.at.Sub(was.at).Seconds()
	if rate > MaxOfferedRate {
		s.lie = fmt.Sprintf("pod %s counted %.4g requests/s, which is not possible: the rate is ignored", pod, rate)
		return
	}
	s.rate += rate
	if s.from.IsZero() || was.at.Before(s.from) {
		s.from = was.at
	}
	if now.at.After(s.to) {
		s.to = now.at
	}
}

// Keep forgets functions that are not in a set.
func (r *Rates) Keep(functions map[types.NamespacedName]bool) {
	for name := range r.functions {
		if !functions[name] {
			delete(r.functions, name)
		}
	}
}

// Observed returns the last rate of a function that is known. ok is false if no two pages of all its pods had it yet.
// lie, if not empty, says what is wrong with the last pages.
func (r *Rates) Observed(function types.NamespacedName) (rate float64, lie string, ok bool) {
	m := r.functions[function]
	if m == nil {
		return 0, "", false
	}
	return m.rate, m.lie, !m.to.IsZero()
}

// Want returns the rate to plan for. It follows the observed rate within the function's range. Call it once after each Read.
func (r *Rates) Want(f *v1alpha1.Function, rule follow.Rule) float64 {
	if f.Spec.Rate.Fixed != nil {
		return f.Spec.Rate.Fixed.AsApproximateFloat64()
	}
	planned, least, most := 0.0, 0.0, 0.0
	if q := f.Status.PlannedRate; q != nil {
		planned = q.AsApproximateFloat64()
	}
	if q := f.Spec.Rate.Min; q != nil {
		least = q.AsApproximateFloat64()
	}
	if q := f.Spec.Rate.Max; q != nil {
		most = q.AsApproximateFloat64()
	}
	want := planned
	if m := r.functions[types.NamespacedName{Namespace: f.Namespace, Name: f.Name}]; m != nil && planned > 0 {
		if m.to.After(m.from) {
			m.wanted, m.planned = m.Observe(rule, m.from, m.to, m.rate, planned), planned
			m.from = m.to
		}
		if m.planned == planned {
			want = m.wanted
		}
	}
	return min(max(want, least), most)
}

// Rule returns a fleet's damping.
func Rule(d v1alpha1.Damping) follow.Rule {
	return follow.Rule{Headroom: 1 + float64(d.Headroom)/100, Step: 1 + float64(d.Step)/100,
		UpAfter: d.UpAfter.Duration, DownAfter: d.DownAfter.Duration, DownBelow: float64(d.DownBelow) / 100, Between: d.Between.Duration}
}
