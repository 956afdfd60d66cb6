package wire

import "testing"

func TestAllocations(t *testing.T) {
	all := examples()
	data, bad, nack, result := all["data-middle"], edit(all["data-last"], 8, 33), all["nack"], all["result"]
	topk, boxes := AppendTopK(nil, exampleClasses), AppendBoxes(nil, exampleBoxes)
	present := make([]uint64, 8)
	room := make([]byte, 0, MaxDatagram)
	classes, boxed := make([]Class, 0, 8), make([]Box, 0, 8)
	var sum int
	var reasons [NumReasons]int
	for name, f := range map[string]func(){
		"header": func() { h, _ := DecodeHeader(data); h.Put(room[:HeaderSize]); sum += int(FragmentSize(&h)) },
		"bad":    func() { _, err := DecodeHeader(bad); reasons[ReasonOf(err)]++ },
		"extension": func() {
			exampleExtension.Put(room[:BlockSize])
			e, _ := DecodeExtension(room[:BlockSize])
			sum += int(e.Priority)
		},
		"result": func() {
			_, r, p, _ := DecodeResult(result)
			sum += len(AppendResult(room, 1, &r, p, 8, 1, false))
		},
		"nack": func() {
			d, _ := AppendNACK(room, 1, 1<<20, 500, present, 0)
			sum += len(d)
			w, _ := DecodeNACK(nack)
			for i := range w.Missing {
				sum += i
			}
		},
		"topk":  func() { c, _ := DecodeTopK(classes, topk); sum += len(AppendTopK(room, c)) },
		"boxes": func() { b, _ := DecodeBoxes(boxed, boxes); sum += len(AppendBoxes(room, b)) },
	} {
		if n := testing.AllocsPerRun(100, f); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

func BenchmarkDecodeHeader(b *testing.B) {
	for _, name := range []string{"data-middle", "data-last"} {
		b.Run(name, func(b *testing.B) {
			d := examples()[name]
			for b.Loop() {
				if _, err := DecodeHeader(d); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkPutHeader(b *testing.B) {
	h := FragmentHeader(TypeData, 1, 1<<20, DefaultFragmentBytes, 5)
	room := make([]byte, HeaderSize)
	for b.Loop() {
		h.Put(room)
	}
}

func BenchmarkAppendResult(b *testing.B) {
	payload, room := AppendTopK(nil, exampleClasses), make([]byte, 0, 256)
	for b.Loop() {
		AppendResult(room, 1, &exampleTopK, payload, DefaultFragmentBytes, 0, false)
	}
}

func BenchmarkDecodeResult(b *testing.B) {
	d := examples()["result"]
	for b.Loop() {
		if _, _, _, err := DecodeResult(d); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkAppendNACK(b *testing.B) {
	present, room := make([]uint64, 8), make([]byte, 0, 256)
	for b.Loop() {
		AppendNACK(room, 1, 507*1024, 507, present, 0)
	}
}
