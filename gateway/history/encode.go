package history

import (
	"encoding/json"
	"math"
)

// MarshalJSON writes a point in the page's short form; null if it is not known. Latency is the
// number of the first bucket that is not empty, then the counts.
func (p Point) MarshalJSON() ([]byte, error) {
	if !p.Known {
		return []byte("null"), nil
	}
	first, last := 0, len(p.Latency)-1
	for first <= last && p.Latency[first] == 0 {
		first++
	}
	for last > first && p.Latency[last] == 0 {
		last--
	}
	stages := make([]float64, len(p.StageMillis))
	for i, v := range p.StageMillis {
		stages[i] = rounded(v)
	}
	return json.Marshal(struct {
		Latency   []uint32  `json:"l"`
		Results   []uint32  `json:"r"`
		Stages    []float64 `json:"s"`
		Ran       uint32    `json:"n"`
		BatchSum  float64   `json:"b"`
		InFlight  float64   `json:"q"`
		Guarantee float64   `json:"g"`
		Need      float64   `json:"nd"`
		Use       float64   `json:"u"`
		Demoted   float64   `json:"d"`
	}{
		append([]uint32{uint32(first)}, p.Latency[first:last+1]...), p.Results[:], stages, p.Ran,
		rounded(p.BatchSum), rounded(p.InFlight), rounded(p.Guarantee), rounded(p.Need), rounded(p.Use), rounded(p.Demoted),
	})
}

// rounded keeps two decimals; it is 0 for values that JSON does not have.
func rounded(v float32) float64 {
	r := math.Round(100*float64(v)) / 100
	if math.IsNaN(r) || math.IsInf(r, 0) {
		return 0
	}
	return r
}
