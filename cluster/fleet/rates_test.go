package fleet

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/penstock/penstock/cluster/api/v1alpha1"
)

// read is what pods of function a/f counted at a time: a page for each pod that has a number.
func read(second int, offered map[string]uint64) (pages []Page) {
	for pod, n := range offered {
		pages = append(pages, Page{Pod: types.NamespacedName{Namespace: "a", Name: pod}, Functions: []FunctionPage{{"f", n}},
			At: start.Add(time.Duration(second) * time.Second)})
	}
	return pages
}

var functionF = types.NamespacedName{Namespace: "a", Name: "f"}

func TestObserved(t *testing.T) {
	type counts = map[string]uint64
	unknown := math.NaN()
	for _, test := range []struct {
		name  string
		pages []counts // every 10 s
		want  []float64
	}{
		{"a counter since start", []counts{{"p": 5000}, {"p": 5100}}, []float64{unknown, 10}},
		{"two pods", []counts{{"p": 0, "q": 0}, {"p": 100, "q": 50}}, []float64{unknown, 15}},
		{"a new pod takes half", []counts{{"p": 0}, {"p": 200}, {"p": 300, "q": 100}, {"p": 400, "q": 200}}, []float64{unknown, 20, 20, 20}},
		{"a new pod, and more requests", []counts{{"p": 0}, {"p": 200}, {"p": 500, "q": 100}, {"p": 800, "q": 400}}, []float64{unknown, 20, 30, 60}},
		{"a new pod at the second page", []counts{{"p": 0}, {"p": 100, "q": 7}, {"p": 200, "q": 107}}, []float64{unknown, unknown, 20}},
		{"a pod starts again", []counts{{"p": 0, "q": 0}, {"p": 100, "q": 100}, {"p": 200, "q": 9}, {"p": 300, "q": 109}}, []float64{unknown, 20, 20, 20}},
		{"a page is missing", []counts{{"p": 0, "q": 0}, {"p": 100, "q": 100}, {"p": 200}, {"p": 300, "q": 300}, {"p": 400, "q": 400}}, []float64{unknown, 20, 20, 20, 20}},
		{"a pod is gone", []counts{{"p": 0, "q": 0}, {"p": 100, "q": 100}, {"p": 200}, {"p": 300}}, []float64{unknown, 20, 20, 10}},
		{"all pods are new", []counts{{"p": 0}, {"p": 100}, {"q": 7000}, {"q": 7050}}, []float64{unknown, 10, 10, 5}},
		{"no request", []counts{{"p": 0}, {"p": 0}}, []float64{unknown, 0}},
	} {
		r := NewRates()
		for i, offered := range test.pages {
			r.Read(read(10*i, offered))
			rate, lie, ok := r.Observed(functionF)
			if want := test.want[i]; ok == math.IsNaN(want) || ok && rate != want || lie != "" {
				t.Errorf("%s: page %d: observed %v, %v, %q, want %v", test.name, i, rate, ok, lie, want)
			}
		}
	}
}

// ranged is a function with a range of rates.
func ranged(least, most, planned float64) *v1alpha1.Function {
	f := &v1alpha1.Function{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "f"}}
	lowest, highest, now := v1alpha1.Rate(least), v1alpha1.Rate(most), v1alpha1.Rate(planned)
	f.Spec.Rate.Min, f.Spec.Rate.Max, f.Status.PlannedRate = &lowest, &highest, &now
	return f
}

var damping = Rule(v1alpha1.Damping{Headroom: 15, Step: 10, UpAfter: metav1.Duration{Duration: 10 * time.Second},
	DownAfter: metav1.Duration{Duration: 10 * time.Minute}, DownBelow: 70, Between: metav1.Duration{Duration: 30 * time.Second}})

// TestLyingPages reads half an hour of pages that are not true. The wanted rate stays finite and within the function's range.
func TestLyingPages(t *testing.T) {
	for _, test := range []struct {
		name    string
		offered func(i int) uint64
		lie     string
		want    float64 // at the end
	}{
		{"honest", func(i int) uint64 { return uint64(1000 * i) }, "", 100},
		{"nothing", func(int) uint64 { return 0 }, "", 10},
		{"the largest number", func(i int) uint64 { return math.MaxUint64 * uint64(i%2) }, "not possible", 100},
		{"always more than possible", func(i int) uint64 { return uint64(i) * 1e16 }, "not possible", 100},
		{"as much as possible", func(i int) uint64 { return uint64(i) * MaxOfferedRate * 10 }, "", 1000},
		{"backward", func(i int) uint64 { return 1e6 - uint64(i) }, "", 100},
	} {
		r, f := NewRates(), ranged(10, 1000, 100)
		for i := range 180 {
			r.Read(read(10*i, map[string]uint64{"p": test.offered(i)}))
			want := r.Want(f, damping)
			if math.IsNaN(want) || want < 10 || want > 1000 {
				t.Fatalf("%s: page %d: want %v", test.name, i, want)
			}
			planned := v1alpha1.Rate(want)
			f.Status.PlannedRate = &planned
		}
		_, lie, _ := r.Observed(functionF)
		if got := f.Status.PlannedRate.AsApproximateFloat64(); got != test.want || !strings.Contains(lie, test.lie) || (lie == "") != (test.lie == "") {
			t.Errorf("%s: planned for %v, want %v; %q, want %q", test.name, got, test.want, lie, test.lie)
		}
	}
}

// TestPageTwice has a page that names a function many times. It counts once.
func TestPageTwice(t *testing.T) {
	r := NewRates()
	for i := range 2 {
		pages := read(10*i, map[string]uint64{"p": uint64(100 * i)})
		pages[0].Functions = slices.Repeat(pages[0].Functions, 1000)
		r.Read(pages)
	}
	if rate, _, ok := r.Observed(functionF); !ok || rate != 10 {
		t.Errorf("observed %v, %v, want 10", rate, ok)
	}
}

// TestPageNumbers reads numbers that are none as no page at all.
func TestPageNumbers(t *testing.T) {
	for _, number := range []string{"-1", "1e300", "NaN", "0.5", `"7"`, "18446744073709551616"} {
		var page FunctionPage
		if err := json.Unmarshal([]byte(`{"name":"f","offered":`+number+`}`), &page); err == nil {
			t.Errorf("offered %s was read as %d", number, page.Offered)
		}
	}
}

// TestBurstyDay follows a day with bursts. A plan grows at most once per burst, shrinks at most once after each, and keeps what a
// burst got for ten minutes.
func TestBurstyDay(t *testing.T) {
	const interval = 10 * time.Second
	for seed := range uint64(5) {
		random := rand.New(rand.NewPCG(seed, 40))
		r, f := NewRates(), ranged(1, 1e5, 120)
		counted := [3]float64{}
		var burst, until time.Duration // the next burst's start and end
		factor, bursts, ups, downs := 1.0, 0, 0, 0
		next := func(after time.Duration) {
			burst = after + time.Duration(random.ExpFloat64()*float64(20*time.Minute))
			until = burst + time.Duration(1+random.IntN(12))*interval
			factor = 2 + 4*random.Float64()
			bursts++
		}
		next(0)
		var changed, grown time.Time
		for at := time.Duration(0); at < 24*time.Hour; at += interval {
			if at >= until {
				next(at)
			}
			rate := 100.0
			if at >= burst {
				rate *= factor
			}
			offered := map[string]uint64{}
			for i := range counted {
				counted[i] += rate / float64(len(counted)) * interval.Seconds() * (0.98 + 0.04*random.Float64())
				if random.IntN(2000) == 0 {
					counted[i] = 0 // the node starts again
				}
				offered[fmt.Sprint("p", i)] = uint64(counted[i])
			}
			r.Read(read(int(at/time.Second), offered))
			want, was := r.Want(f, damping), f.Status.PlannedRate.AsApproximateFloat64()
			if now := start.Add(at); want != was && now.Sub(changed) >= damping.Between {
				changed = now
				switch {
				case want > was:
					ups, grown = ups+1, now
				case !grown.IsZero() && now.Sub(grown) < damping.DownAfter:
					t.Errorf("seed %d: at %v the plan shrinks from %v to %v, %v after it grew", seed, at, was, want, now.Sub(grown))
				default:
					downs++
				}
				planned := v1alpha1.Rate(want)
				f.Status.PlannedRate = &planned
			}
		}
		t.Logf("seed %d: %d bursts, %d times up, %d times down", seed, bursts, ups, downs)
		if ups == 0 || ups > bursts || downs > bursts {
			t.Errorf("seed %d: %d bursts made the plan grow %d times and shrink %d times", seed, bursts, ups, downs)
		}
	}
}
