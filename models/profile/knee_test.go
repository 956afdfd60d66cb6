package profile

import (
	"cmp"
	"encoding/csv"
	"fmt"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/testing/must"
)

// curve identifies a model's throughput over GPU% at one batch.
type curve struct {
	framework, model string
	batch            int
}

// gslice returns the measurements that GSLICE's authors published, on a V100.
func gslice(t *testing.T) map[curve][]Point {
	t.Helper()
	file, err := os.Open("testdata/gslice_v100/profile.csv")
	must.OK(t, err)
	defer file.Close()
	rows, err := csv.NewReader(file).ReadAll()
	must.OK(t, err)
	points := map[curve][]Point{}
	for _, row := range rows[1:] {
		batch, err := strconv.Atoi(row[3])
		if err != nil {
			continue // adaptive batching
		}
		share, err := strconv.Atoi(row[2])
		must.OK(t, err)
		rate, err := strconv.ParseFloat(row[9], 64)
		must.OK(t, err)
		c := curve{row[0], row[1], batch}
		points[c] = append(points[c], Point{Share: share, Batch: batch, Processes: 1, Throughput: rate})
	}
	return points
}

// The knees that GSLICE 2.1.3 reads off its curves at batch 1.
var paperKnees = map[string]int{"alexnet": 30, "resnet50": 60, "vgg19": 70}

// distance returns how far a rule is from the paper's knees, as a sum over the models
// and both frameworks, in points of GPU%.
func distance(points map[curve][]Point, rule func([]Point) int) int {
	sum := 0
	for model, knee := range paperKnees {
		for _, framework := range []string{"cntk", "tensorrt"} {
			got := rule(points[curve{framework, model, 1}])
			sum += max(got-knee, knee-got)
		}
	}
	return sum
}

func fraction(f float64) func([]Point) int {
	return func(points []Point) int {
		top := slices.MaxFunc(points, func(a, b Point) int { return cmp.Compare(a.Throughput, b.Throughput) }).Throughput
		knee := 100
		for _, p := range points {
			if p.Throughput >= f*top {
				knee = min(knee, p.Share)
			}
		}
		return knee
	}
}

// kneedle returns the share at which the curve is furthest above its chord (Satopää
// et al. 2011), both axes from 0 to 1.
func kneedle(points []Point) int {
	points = slices.SortedFunc(slices.Values(points), Point.Compare)
	rate := func(p Point) float64 { return p.Throughput }
	least := rate(slices.MinFunc(points, func(a, b Point) int { return cmp.Compare(rate(a), rate(b)) }))
	most := rate(slices.MaxFunc(points, func(a, b Point) int { return cmp.Compare(rate(a), rate(b)) }))
	first, last := float64(points[0].Share), float64(points[len(points)-1].Share)
	above := func(p Point) float64 {
		return (rate(p)-least)/(most-least) - (float64(p.Share)-first)/(last-first)
	}
	return slices.MaxFunc(points, func(a, b Point) int { return cmp.Compare(above(a), above(b)) }).Share
}

// efficacy returns the share with the largest throughput² / share.
func efficacy(points []Point) int {
	of := func(p Point) float64 { return p.Throughput * p.Throughput / float64(p.Share) }
	return slices.MaxFunc(points, func(a, b Point) int { return cmp.Compare(of(a), of(b)) }).Share
}

func TestKneesGSLICE(t *testing.T) {
	points := gslice(t)
	for _, c := range []struct {
		framework, model string
		batch, knee      int
	}{
		// The paper: 30, about 60, 70.
		{"cntk", "alexnet", 1, 40}, {"cntk", "resnet50", 1, 40}, {"cntk", "vgg19", 1, 70},
		{"tensorrt", "alexnet", 1, 50}, {"tensorrt", "resnet50", 1, 40}, {"tensorrt", "vgg19", 1, 60},
		{"tensorrt", "mobilenet", 1, 30}, {"cntk", "vgg19", 32, 80},
	} {
		got := Knees(points[curve{c.framework, c.model, c.batch}])
		if want := []Knee{{Batch: c.batch, Share: c.knee}}; !slices.Equal(got, want) {
			t.Errorf("%s under %s: %v, want %v", c.model, c.framework, got, want)
		}
	}
}

func TestKneeFraction(t *testing.T) {
	points := gslice(t)
	ours := distance(points, fraction(kneeFraction))
	for _, f := range []float64{0.70, 0.75, 0.80, 0.90, 0.95} {
		if d := distance(points, fraction(f)); d < ours {
			t.Errorf("%.2f is %d points of GPU%% from the paper, %.2f is %d", f, d, kneeFraction, ours)
		}
	}
	for name, rule := range map[string]func([]Point) int{"kneedle": kneedle, "throughput²/share": efficacy} {
		if d := distance(points, rule); d < ours {
			t.Errorf("%s is %d points of GPU%% from the paper, ours %d", name, d, ours)
		}
	}
}

func TestOtherKneeRules(t *testing.T) {
	points := gslice(t)
	at := func(model string, batch int) []Point { return points[curve{"cntk", model, batch}] }
	for _, c := range []struct {
		rule  string
		knees []int
		want  []int
	}{
		{"kneedle", []int{kneedle(at("alexnet", 1)), kneedle(at("resnet50", 1)), kneedle(at("vgg19", 1)), kneedle(at("vgg19", 32))}, []int{40, 40, 40, 50}},
		{"throughput²/share", []int{efficacy(at("alexnet", 1)), efficacy(at("resnet50", 1)), efficacy(at("vgg19", 1))}, []int{30, 20, 80}},
	} {
		if !slices.Equal(c.knees, c.want) {
			t.Errorf("%s says %v; the comment in knee.go has %v", c.rule, c.knees, c.want)
		}
	}
}

// GSLICE 2.1.3, Fig. 3: "with larger batch sizes, the knee shifts towards larger GPU%".
func TestKneesGrowWithBatch(t *testing.T) {
	points := gslice(t)
	for _, framework := range []string{"cntk", "tensorrt"} {
		for model := range paperKnees {
			small := Knees(points[curve{framework, model, 1}])[0].Share
			for _, batch := range []int{4, 8, 16, 32} {
				if large := Knees(points[curve{framework, model, batch}])[0].Share; large <= small {
					t.Errorf("%s under %s: %d %% at batch %d, %d %% at batch 1", model, framework, large, batch, small)
				}
			}
		}
	}
}

func TestKneesMeasured(t *testing.T) {
	points := []Point{
		{Share: 1, Batch: 8, Processes: 1, OOM: true},
		{Share: 2, Batch: 8, Processes: 1, Throughput: 80},
		{Share: 2, Batch: 8, Processes: 2, Throughput: 90},
		{Share: 4, Batch: 8, Processes: 1, Throughput: 90},
		{Share: 2, Batch: 16, Processes: 1, Throughput: 90}, // at one share only
		{Share: 1, Batch: 32, Processes: 1, OOM: true},
	}
	if got, want := Knees(points), []Knee{{8, 2}}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

func TestKneeFor(t *testing.T) {
	const ms = time.Millisecond
	p := Profile{Points: []Point{
		{Share: 10, Batch: 1, Processes: 1, Throughput: 90, Latency: 11 * ms},
		{Share: 20, Batch: 4, Processes: 1, Throughput: 150, Latency: 26 * ms},
		{Share: 30, Batch: 1, Processes: 1, Throughput: 100, Latency: 10 * ms},
		{Share: 30, Batch: 4, Processes: 1, Throughput: 200, Latency: 20 * ms},
	}}
	// A batch of 4 takes 20 ms: less than 90 % of half of 45 ms, but not of 44 ms.
	for objective, want := range map[time.Duration]Knee{
		45 * ms: {4, 30}, 44 * ms: {1, 10}, 30 * ms: {1, 10}, ms: {1, 10},
	} {
		if got, ok := p.KneeFor(objective); !ok || got != want {
			t.Errorf("within %s: %v (%t), want %v", objective, got, ok, want)
		}
	}
	if _, ok := (&Profile{}).KneeFor(time.Second); ok {
		t.Error("a profile without points has a knee")
	}
}

func TestPercent(t *testing.T) {
	for _, c := range []struct {
		header Header
		share  int
		want   string
	}{
		{Header{Unit: Percent, Total: 100}, 30, "30.0"},
		{Header{Unit: GPCs, Total: 7}, 3, "42.9"},
	} {
		if got := fmt.Sprintf("%.1f", c.header.Percent(c.share)); got != c.want {
			t.Errorf("%d of %+v is %s %%, want %s", c.share, c.header, got, c.want)
		}
	}
}
