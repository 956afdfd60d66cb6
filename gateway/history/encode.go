package history

import (
	"math"
	"strconv"
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
	b := append([]byte(nil), `{"l":[`...)
	b = strconv.AppendInt(b, int64(first), 10)
	for i := first; i <= last; i++ {
		b = append(b, ',')
		b = strconv.AppendUint(b, uint64(p.Latency[i]), 10)
	}
	b = append(b, `],"r":[`...)
	for i, n := range p.Results {
		b = comma(b, i)
		b = strconv.AppendUint(b, uint64(n), 10)
	}
	b = append(b, `],"s":[`...)
	for i, v := range p.StageMillis {
		b = appendFloat(comma(b, i), v)
	}
	b = strconv.AppendUint(append(b, `],"n":`...), uint64(p.Ran), 10)
	for _, v := range []struct {
		key   string
		value float32
	}{{"b", p.BatchSum}, {"q", p.InFlight}, {"g", p.Guarantee}, {"nd", p.Need}, {"u", p.Use}, {"d", p.Demoted}} {
		b = append(append(append(b, `,"`...), v.key...), `":`...)
		b = appendFloat(b, v.value)
	}
	return append(b, '}'), nil
}

func comma(b []byte, i int) []byte {
	if i > 0 {
		b = append(b, ',')
	}
	return b
}

// appendFloat appends a value with two decimals.
func appendFloat(b []byte, v float32) []byte {
	rounded := math.Round(100*float64(v)) / 100
	if math.IsNaN(rounded) || math.IsInf(rounded, 0) {
		rounded = 0
	}
	return strconv.AppendFloat(b, rounded, 'f', -1, 64)
}
