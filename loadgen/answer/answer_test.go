package answer_test

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/penstock/penstock/loadgen/answer"
	"github.com/penstock/penstock/wire"
	"pgregory.net/rapid"
)

func class(number uint16, p float32) wire.Class { return wire.Class{Class: number, P: p} }

func box(class uint16, score, x0, y0, x1, y1 float32) wire.Box {
	return wire.Box{Class: class, Score: score, X0: x0, Y0: y0, X1: x1, Y1: y1}
}

func classes(list ...wire.Class) answer.Answer {
	return answer.Answer{Kind: wire.KindTopK, Payload: wire.AppendTopK(nil, list)}
}

func boxes(list ...wire.Box) answer.Answer {
	return answer.Answer{Kind: wire.KindBoxes, Payload: wire.AppendBoxes(nil, list)}
}

func raw(list ...float32) answer.Answer {
	return answer.Answer{Kind: wire.KindRaw, Payload: wire.AppendRaw(nil, list)}
}

func embedding(list ...float32) answer.Answer {
	return answer.Answer{Kind: wire.KindEmbedding, Payload: wire.AppendRaw(nil, list)}
}

func polygon(side float32) answer.Answer {
	return answer.Answer{Kind: wire.KindPolygons, Payload: wire.AppendPolygon(nil, 1, 0.9, []wire.Point{{}, {X: side}, {Y: side}})}
}

// cells is a map of 200 cells of which the first ones are of class 1.
func cells(first int) answer.Answer {
	payload := wire.AppendMapHead(nil, wire.MapClasses, 10, 20)
	return answer.Answer{Kind: wire.KindMap, Payload: wire.AppendRun(wire.AppendRun(payload, 1, first), 0, 200-first)}
}

func text(line string, score float32) answer.Answer {
	return answer.Answer{Kind: wire.KindText, Payload: wire.AppendText(nil, score, []byte(line))}
}

func tensors(name string, shape []int64, values ...float32) answer.Answer {
	head := wire.AppendTensorHead(nil, name, "f32", shape)
	return answer.Answer{Kind: wire.KindTensors, Payload: wire.AppendRaw(head, values)}
}

// compare compares with the default tolerance and the given threshold.
func compare(got, want answer.Answer, threshold float64) error {
	comparer := answer.Comparer{Tolerance: answer.Default}
	comparer.Tolerance.Threshold = threshold
	return comparer.Compare(got, want)
}

func TestCompare(t *testing.T) {
	nan := float32(math.NaN())
	inf := float32(math.Inf(1))
	for _, test := range []struct {
		name      string
		got, want answer.Answer
		differs   string // "": the same
	}{
		{"equal classes", classes(class(3, 0.9), class(1, 0.05)), classes(class(3, 0.9), class(1, 0.05)), ""},
		{"no classes", classes(), classes(), ""},
		{"other last digits", classes(class(3, 0.9004), class(1, 0.0496)), classes(class(3, 0.9), class(1, 0.05)), ""},
		{"another probability", classes(class(3, 0.89), class(1, 0.05)), classes(class(3, 0.9), class(1, 0.05)), "class 3 with 0.8900, want 0.9000"},
		{"another class", classes(class(4, 0.9), class(1, 0.05)), classes(class(3, 0.9), class(1, 0.05)), "class 4 with 0.9000, which the reference does not list"},
		{"a tie the other way round", classes(class(1, 0.4001), class(3, 0.4)), classes(class(3, 0.4003), class(1, 0.4)), ""},
		{"order against the probabilities", classes(class(1, 0.4001), class(3, 0.402)), classes(class(3, 0.402), class(1, 0.4001)), "class 1 before class 3"},
		{"a tie at the end of the list", classes(class(3, 0.9), class(7, 0.0301)), classes(class(3, 0.9), class(1, 0.0304)), ""},
		{"another only class", classes(class(4, 0.9)), classes(class(3, 0.9)), "it has at most 0.1000"},
		{"a tie of the only class", classes(class(4, 0.4)), classes(class(3, 0.4)), ""},
		{"a good class left out", classes(class(3, 0.9), class(7, 0.001)), classes(class(3, 0.9), class(1, 0.05)), "class 1 with 0.0500 is not listed"},
		{"a class twice", classes(class(3, 0.4), class(3, 0.4)), classes(class(3, 0.4), class(1, 0.4)), "class 3 is listed twice"},
		{"fewer classes", classes(class(3, 0.9)), classes(class(3, 0.9), class(1, 0.05)), "1 classes, want 2"},
		{"NaN probability", classes(class(3, nan)), classes(class(3, 0.9)), "NaN"},
		{"NaN of an unlisted class", classes(class(4, nan)), classes(class(3, 0.9)), "NaN"},
		{"another kind", boxes(), classes(), "kind boxes, want topk"},
		{"broken payload", answer.Answer{Kind: wire.KindTopK, Payload: make([]byte, 5)}, classes(), "decode 5 bytes"},
		{"broken reference", classes(), answer.Answer{Kind: wire.KindTopK, Payload: make([]byte, 5)}, "the reference: "},

		{"unknown kind", answer.Answer{Kind: wire.NumKinds}, answer.Answer{Kind: wire.NumKinds}, "kind unknown"},
		{"payload of kind none", answer.Answer{Payload: []byte{1}}, answer.Answer{}, "decode 1 bytes"},

		{"no boxes", boxes(), boxes(), ""},
		{"boxes in another order",
			boxes(box(1, 0.8, 0, 0, 0.5, 0.5), box(2, 0.7, 0.5, 0.5, 1, 1)),
			boxes(box(2, 0.705, 0.5, 0.505, 1, 1), box(1, 0.8, 0, 0, 0.5, 0.5)), ""},
		{"a box of another class", boxes(box(1, 0.8, 0, 0, 1, 1)), boxes(box(2, 0.8, 0, 0, 1, 1)), "class 1, score 0.800"},
		{"a box elsewhere", boxes(box(1, 0.8, 0, 0, 1, 0.5)), boxes(box(1, 0.8, 0, 0, 1, 0.52)), "where the reference has none"},
		{"another score", boxes(box(1, 0.8, 0, 0, 1, 1)), boxes(box(1, 0.82, 0, 0, 1, 1)), "where the reference has none"},
		{"a box too many", boxes(box(1, 0.8, 0, 0, 1, 1), box(1, 0.8, 0, 0, 1, 1)), boxes(box(1, 0.8, 0, 0, 1, 1)), "where the reference has none"},
		{"a box missing", boxes(), boxes(box(1, 0.8, 0, 0, 1, 1)), "no box where the reference has class 1"},
		// Taken greedily, the first box would take the second's only partner.
		{"boxes on one another",
			boxes(box(1, 0.8, 0, 0, 0.504, 0.5), box(1, 0.8, 0, 0, 0.512, 0.5)),
			boxes(box(1, 0.8, 0, 0, 0.506, 0.5), box(1, 0.8, 0, 0, 0.496, 0.5)), ""},
		{"a box at the threshold is missing", boxes(), boxes(box(1, 0.503, 0, 0, 1, 1)), ""},
		{"a box at the threshold is there", boxes(box(1, 0.503, 0, 0, 1, 1)), boxes(), ""},
		{"NaN corner", boxes(box(1, 0.8, nan, 0, 1, 1)), boxes(box(1, 0.8, 0, 0, 1, 1)), "where the reference has none"},

		{"raw values near", raw(1, 1000, inf), raw(1.0005, 1000.9, inf), ""},
		{"a raw value off", raw(1, 2), raw(1, 2.01), "value 1 is 2, want 2.01"},
		{"fewer raw values", raw(1), raw(1, 2), "1 values, want 2"},
		{"tensors near", tensors("y", []int64{2}, 1, 2), tensors("y", []int64{2}, 1, 2.0001), ""},
		{"a tensor's value off", tensors("y", []int64{2}, 1, 2), tensors("y", []int64{2}, 1, 2.1), `tensor "y": value 1 is 2, want 2.1`},
		{"a tensor of another shape", tensors("y", []int64{1, 2}, 1, 2), tensors("y", []int64{2}, 1, 2), `tensors "y" f32 [1 2], want "y" f32 [2]`},
		{"NaN value", raw(nan), raw(0), "NaN"},

		{"vectors near", embedding(1, 0), embedding(1, 0.0005), ""},
		{"another vector", embedding(1, 0), embedding(0, 1), "value 0 is 1, want 0"},
		{"polygons near", polygon(0.5), polygon(0.505), ""},
		{"a polygon elsewhere", polygon(0.5), polygon(0.6), "where the reference has none"},
		{"one cell of 200", cells(1), cells(0), ""},
		{"three cells of 200", cells(3), cells(0), "3 of 200 cells have another class"},
		{"a map of another size", answer.Answer{Kind: wire.KindMap, Payload: wire.AppendMapHead(nil, 0, 0, 0)}, cells(0), "a map of 0 x 0, want 10 x 20"},
		{"text with almost the same score", text("a", 0.5), text("a", 0.505), ""},
		{"another text", text("a", 0.5), text("b", 0.5), `text "a" with 0.500, want "b"`},
	} {
		t.Run(test.name, func(t *testing.T) {
			err := compare(test.got, test.want, 0.5)
			if test.differs == "" && err != nil {
				t.Errorf("differs: %v", err)
			}
			if test.differs != "" && (err == nil || !strings.Contains(err.Error(), test.differs)) {
				t.Errorf("%v, want %q", err, test.differs)
			}
		})
	}
}

func TestCompareMissingBox(t *testing.T) {
	if compare(boxes(), boxes(box(1, 0.003, 0, 0, 1, 1)), 0) == nil {
		t.Error("a missing box was forgiven")
	}
}

// TestCompareTolerance: boxes that are shuffled
// and moved by less than the tolerance are the same answer. They no longer are
// when one of them moves by more.
func TestCompareTolerance(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 12).Draw(t, "boxes")
		noise := rapid.Float32Range(-0.009, 0.009)
		want, got := make([]wire.Box, n), make([]wire.Box, n)
		for i := range want {
			// Few places, so that boxes overlap.
			x := float32(rapid.IntRange(0, 3).Draw(t, "x")) * 0.007
			want[i] = box(uint16(rapid.IntRange(0, 1).Draw(t, "class")), 0.8, x, 0.1, x+0.3, 0.4)
			got[i] = want[i]
			got[i].Score += noise.Draw(t, "score noise")
			got[i].X0 += noise.Draw(t, "x noise")
			got[i].Y1 += noise.Draw(t, "y noise")
		}
		random := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "shuffle"), 0))
		random.Shuffle(n, func(i, j int) { got[i], got[j] = got[j], got[i] })
		if err := compare(boxes(got...), boxes(want...), 0); err != nil {
			t.Fatalf("differs: %v", err)
		}
		got[random.IntN(n)].Y0 += 0.05
		if compare(boxes(got...), boxes(want...), 0) == nil {
			t.Fatal("a box that moved by 0.05 was not noticed")
		}
	})
}

func TestCompareAllocations(t *testing.T) {
	for name, pair := range map[string][2]answer.Answer{
		"classes": {classes(class(3, 0.9)), classes(class(3, 0.9001))},
		"boxes":   {boxes(box(1, 0.8, 0, 0, 1, 1)), boxes(box(1, 0.801, 0, 0, 1, 1))},
		"raw":     {raw(1, 2, 3), raw(1, 2, 3.0001)},
	} {
		comparer := answer.Comparer{Tolerance: answer.Default}
		if allocs := testing.AllocsPerRun(100, func() { comparer.Compare(pair[0], pair[1]) }); allocs != 0 {
			t.Errorf("%s: %v allocations", name, allocs)
		}
	}
}

// FuzzCompare: the payload comes from a peer.
func FuzzCompare(f *testing.F) {
	f.Add(uint8(1), []byte{3, 2, 0, 0, 0, 0x3f}, []byte{3, 2, 0, 0, 0, 0x3f})
	f.Add(uint8(2), make([]byte, 44), make([]byte, 22))
	f.Fuzz(func(t *testing.T, kind uint8, got, want []byte) {
		a, b := answer.Answer{Kind: wire.Kind(kind), Payload: got}, answer.Answer{Kind: wire.Kind(kind), Payload: want}
		compare(a, b, 0.5)
	})
}
