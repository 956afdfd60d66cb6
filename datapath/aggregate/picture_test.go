package aggregate

import (
	"bytes"
	"slices"
	"testing"

	"github.com/penstock/penstock/datapath/ingest"
	"github.com/penstock/penstock/wire"
)

const testLargest = 4000

func pictureHarness(t failer) *harness {
	return newHarness(t, func(c *Config) { c.LargestPicture, c.MaxFragments = testLargest, 2*testLargest/testFragment })
}

// fragmentsOf returns the fragments of a request of total bytes that says to have the picture.
func fragmentsOf(total int, p wire.Picture) (fragments []fragment) {
	for i := range wire.Fragments(total, testFragment) {
		fragments = append(fragments, fragment{id: 1, total: total, size: testFragment, index: i})
	}
	if p != (wire.Picture{}) {
		fragments[0].extension = &wire.Extension{Picture: p, SentAt: 7}
	}
	return fragments
}

func TestPictures(t *testing.T) {
	nv12 := wire.Picture{Format: wire.FormatNV12, Width: 40, Height: 30}
	for _, row := range []struct {
		name    string
		total   int
		picture wire.Picture
		ok      bool
	}{
		{"the card's", testRequest, wire.Picture{}, true},
		{"nv12", 1800, nv12, true},
		{"small", 3, wire.Picture{Format: wire.FormatRGB8, Width: 1, Height: 1}, true},
		{"the largest, with gaps", testLargest, wire.Picture{Format: wire.FormatGrey8, Width: 3, Height: 4, Stride: 1000}, true},
		{"the card's size in another format", testRequest, wire.Picture{Format: wire.FormatUYVY, Width: 50, Height: 10}, true},
		{"another size than the card's", 1800, wire.Picture{}, false},
		{"another size than the picture's", 1799, nv12, false},
		{"above the largest", testLargest + 1, wire.Picture{Format: wire.FormatGrey8, Width: testLargest + 1, Height: 1}, false},
		{"unknown format", 1800, wire.Picture{Format: 99, Width: 40, Height: 30}, false},
		{"odd", 1800, wire.Picture{Format: wire.FormatNV12, Width: 1, Height: 1200}, false},
		{"65,535 squared", 1800, wire.Picture{Format: wire.FormatRGBA8, Width: 65535, Height: 65535}, false},
	} {
		for _, order := range []string{"in order", "backwards"} {
			t.Run(row.name+" "+order, func(t *testing.T) {
				b := pictureHarness(t)
				fragments := fragmentsOf(row.total, row.picture)
				if order == "backwards" {
					slices.Reverse(fragments)
				}
				e := b.send(address(1), fragments...)
				if !row.ok {
					if len(e.Complete) != 0 || len(e.Reported) != 1 {
						t.Fatalf("%d requests are complete, answers are %+v; want one refusal", len(e.Complete), e.Reported)
					}
					got := e.Reported[0].Result
					if got.Status != wire.StatusRefused || got.PictureBytes != testRequest || got.LargestPicture != testLargest {
						t.Errorf("answer is %+v, want a refusal with both sizes", got)
					}
					return
				}
				if len(e.Complete) != 1 {
					t.Fatalf("%d requests are complete, answers are %+v; want one request", len(e.Complete), e.Reported)
				}
				entry := b.table.requests[e.Complete[0]]
				if entry.Picture() != row.picture || int(entry.Bytes) != row.total || !bytes.Equal(b.assemble(e.Complete[0]), picture(1, row.total)) {
					t.Errorf("request is %+v, want %d bytes of %+v", entry, row.total, row.picture)
				}
			})
		}
	}

	t.Run("not taken", func(t *testing.T) {
		b := newHarness(t, nil)
		e := b.send(address(1), fragmentsOf(testRequest, wire.Picture{Format: wire.FormatUYVY, Width: 50, Height: 10})...)
		if len(e.Complete) != 0 || len(e.Reported) != 1 || e.Reported[0].Status != wire.StatusRefused || e.Reported[0].LargestPicture != 0 {
			t.Errorf("%d requests are complete, answers are %+v; want one refusal", len(e.Complete), e.Reported)
		}
	})

	t.Run("that changes", func(t *testing.T) {
		b := pictureHarness(t)
		fragments := fragmentsOf(1800, nv12)
		again := fragments[0]
		again.again, again.extension = true, &wire.Extension{Picture: wire.Picture{Format: wire.FormatGrey8, Width: 60, Height: 30}}
		e := b.send(address(1), append([]fragment{fragments[0], again}, fragments[1:]...)...)
		if len(e.Complete) != 1 || b.table.requests[e.Complete[0]].Picture() != nv12 {
			t.Errorf("%d requests are complete, answers are %+v; want one with the first picture", len(e.Complete), e.Reported)
		}
	})
}

// FuzzAddPicture sends fragments of requests whose format, size and fragments need not agree. A complete request has
// exactly the bytes of its picture.
func FuzzAddPicture(f *testing.F) {
	f.Add(uint8(wire.FormatNV12), uint16(40), uint16(30), uint32(0), uint16(1800), []byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17})
	f.Add(uint8(wire.FormatRGB8), uint16(65535), uint16(65535), uint32(0), uint16(1000), []byte{9, 8, 7, 6, 5, 4, 3, 2, 1, 0})
	f.Add(uint8(0), uint16(0), uint16(0), uint32(0), uint16(1000), []byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9})
	f.Add(uint8(wire.FormatGrey8), uint16(3), uint16(2), uint32(50), uint16(100), []byte{0})
	f.Fuzz(func(t *testing.T, format uint8, width, height uint16, stride uint32, total uint16, order []byte) {
		b := pictureHarness(t)
		fragments := fragmentsOf(max(1, int(total)), wire.Picture{Format: wire.PictureFormat(format), Width: int(width), Height: int(height), Stride: int(stride)})
		complete := 0
		for _, index := range order[:min(len(order), 100)] {
			p := fragments[int(index)%len(fragments)]
			p.again = index >= 128
			d := b.land(address(1), p.datagram(), int(index))
			for _, slot := range b.add([]ingest.Datagram{d}...).Complete {
				r := b.table.requests[slot]
				want := testRequest
				if shape := r.Picture(); shape.Format != 0 {
					var err error
					if want, err = shape.Bytes(); err != nil {
						t.Fatalf("picture %+v is taken: %v", shape, err)
					}
				}
				if int(r.Bytes) != want || want > testLargest || !bytes.Equal(b.assemble(slot), picture(1, want)) {
					t.Fatalf("request %+v is complete, want one of %d bytes", r, want)
				}
				complete++
			}
		}
		if complete > 1 {
			t.Fatalf("the request is complete %d times", complete)
		}
	})
}
