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

// Read takes new pages. A counter that is lower than before is that of a node that has started again.
func (r *Rates) Read(pages []Page) {
	counts := make(map[[2]types.NamespacedName]count, len(r.counts))
	sums := map[types.NamespacedName]*measured{}
	for _, p := range pages {
		for _, f := range p.Functions {
			name := types.NamespacedName{Namespace: p.Pod.Namespace, Name: f.Name}
			key := [2]types.NamespacedName{p.Pod, name}
			was, known := r.counts[key]
			counts[key] = count{f.Offered, p.At}
			if !known || f.Offered < was.offered || !p.At.After(was.at) {
				continue
			}
			sum := sums[name]
			if sum == nil {
				sum = &measured{from: was.at, to: p.At}
				sums[name] = sum
			}
			rate := float64(f.Offered-was.offered) / p.At.Sub(was.at).Seconds()
			if rate > MaxOfferedRate {
				sum.lie = fmt.Sprintf("pod %s counted %.4g requests/s, which is not possible: the rate is ignored", p.Pod, rate)
				continue
			}
			sum.rate += rate
			if p.At.After(sum.to) {
				sum.to = p.At
			}
		}
	}
	r.counts = counts
	for name, m := range r.functions {
		if sums[name] == nil {
			m.from = m.to // nothing new
		}
	}
	for name, sum := range sums {
		m := r.functions[name]
		if m == nil {
			m = &measured{}
			r.functions[name] = m
		}
		if m.lie = sum.lie; m.lie == "" {
			m.rate, m.from, m.to = sum.rate, sum.from, sum.to
		}
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

// Observed returns a function's rate on the last pages. ok is false if no two pages had it.
func (r *Rates) Observed(function types.NamespacedName) (rate float64, lie string, ok bool) {
	m := r.functions[function]
	if m == nil || m.to.IsZero() {
		return 0, "", false
	}
	return m.rate, m.lie, true
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
