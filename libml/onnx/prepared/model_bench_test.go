package prepared

import (
	"fmt"
	"testing"
)

// BenchmarkSplit splits a model of 500 MB: 250 matrices of 2 MB with 40 nodes each.
func BenchmarkSplit(b *testing.B) {
	const tensors, columns = 250, 1 << 20
	raw := make([]byte, 2*columns)
	var graph proto
	for i := range tensors {
		name := fmt.Sprintf("weights%d", i)
		graph = graph.sub(graphInitializer, tensorOf(name, 10, raw, columns))
		for range 40 {
			graph = graph.sub(graphNode, nodeOf("", "Gemm", []string{"x", name, "bias"}, "alpha", "beta", "transA", "transB"))
		}
	}
	model := []byte(proto(nil).sub(modelGraph, graph))
	b.SetBytes(int64(len(model)))
	b.ReportAllocs()

	for b.Loop() {
		if _, _, err := splitModel(model, func([]byte) error { return nil }); err != nil {
			b.Fatal(err)
		}
	}
}
