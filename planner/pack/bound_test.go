package pack

import (
	"math"
	"testing"

	"github.com/penstock/penstock/internal/testing/must"
)

// The package doc derives this bound by hand.
func TestBound(t *testing.T) {
	in, err := build(published(t, "S3", 10))
	must.OK(t, err)
	price := []float64{4. / 29, 8. / 29, 13. / 29, 16. / 29, 1}
	if top, p := in.kinds[0].cut.dearest(price); top > 1+1e-12 {
		t.Fatalf("pattern %v is worth %v", p, top)
	}
	sum := 0.0
	coverer := &coverer{}
	mix := make([]int, in.items)
	for _, d := range in.demands {
		sum += coverer.cheapest(d, price, mix)
	}
	if math.Abs(sum*29-1043) > 1e-6 {
		t.Errorf("the cheapest mixes cost %v parts of 29, the doc says 1043", sum*29)
	}
	best := in.relax(goal{gpu: 1, item: make([]float64, in.items), gpus: -1}, rounds)
	if math.Abs(best.value-sum) > 1e-6 {
		t.Errorf("relax finds %v, the doc's prices prove %v", best.value, sum)
	}
}
