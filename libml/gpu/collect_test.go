package gpu

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"github.com/penstock/penstock/internal/testing/devicetest"
	"github.com/penstock/penstock/internal/testing/must"
)

// TestPTXCollect runs the kernel collect in the interpreter. It selects and copies what the definition does, and accesses no
// other memory.
func TestPTXCollect(t *testing.T) {
	const outputsAt, resultsAt, bitmapsAt = 0x0200_0000_0000, 0x7f00_0000_0000, 0x7f10_0000_0000
	kernel, err := parsed("collect")
	must.OK(t, err)
	for seed := range uint64(30) {
		random := rand.New(rand.NewPCG(seed, 36))
		elements, list := devicetest.Selections(random)
		most := 1 + random.IntN(3)
		images := 1 + random.IntN(most)
		outputs := devicetest.SelectedOutputs(random, elements, list, most)

		// Each has its own range of addresses, with unused ones between.
		place := func(base, i int) uint64 { return uint64(base + i<<32) }
		var regions []region
		var results, want, bitmaps [][]byte
		p := collectParameter{Images: uint32(images)}
		var places []collectTable
		for o, output := range outputs {
			results = append(results, bytes.Repeat([]byte{0xa5}, len(output)))
			want = append(want, bytes.Clone(results[o]))
			places = append(places, collectTable{From: place(outputsAt, o), To: place(resultsAt, o), Image: uint32(elements[o])})
			regions = append(regions, region{at: place(outputsAt, o), bytes: output, readOnly: true}, region{at: place(resultsAt, o), bytes: results[o]})
		}
		for i, s := range list {
			bitmaps = append(bitmaps, make([]byte, most*devicetest.BitmapBytes(s)))
			regions = append(regions, region{at: place(bitmapsAt, i), bytes: bitmaps[i]})
			p.add(s, places, place(bitmapsAt, i))
		}
		parameter, err := binary.Append(nil, binary.LittleEndian, &p)
		must.OK(t, err)
		must.OK(t, kernel.launch(1+random.IntN(3), parameter, regions))

		for i, s := range list {
			size := devicetest.BitmapBytes(s)
			bitmap := make([]byte, size)
			for image := range images {
				devicetest.Select(s, devicetest.ImageOf(outputs, elements, image), devicetest.ImageOf(want, elements, image), bitmap)
				if got := bitmaps[i][image*size:][:size]; !bytes.Equal(got, bitmap) {
					t.Fatalf("seed %d: image %d has rows %x, want %x of %+v", seed, image, got, bitmap, s)
				}
			}
			if after := bitmaps[i][images*size:]; len(bytes.Trim(after, "\x00")) > 0 {
				t.Fatalf("seed %d: rows of images after %d are selected", seed, images)
			}
		}
		for o := range results {
			if !bytes.Equal(results[o], want[o]) {
				t.Fatalf("seed %d: output %d differs; selections %+v", seed, o, list)
			}
		}
	}
}
