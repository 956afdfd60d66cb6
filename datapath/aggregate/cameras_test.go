package aggregate

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/penstock/penstock/datapath/cameras"
	"github.com/penstock/penstock/datapath/ingest"
	"github.com/penstock/penstock/internal/testing/cameratest"
	"github.com/penstock/penstock/wire"
)

// The pictures of these tests have 20 lines of 16 pixels, 3 bytes each.
const (
	pictureWidth, pictureHeight = 16, 20
	pictureBytes                = pictureWidth * pictureHeight * 3
	packetBytes                 = 150 // 7 packets, the last of 60 bytes
	pictureCount                = 7
)

// receiver is where answers about pictures go.
var receiver = netip.MustParseAddrPort("192.0.2.9:9000")

// forCameras configures a harness for pictures in a format.
func forCameras(format cameras.Format) func(c *Config) {
	return func(c *Config) {
		c.Camera = &cameras.Reader{Format: format, Shape: wire.Picture{Format: wire.FormatRGB8, Width: pictureWidth, Height: pictureHeight}}
		c.RequestBytes, c.MinFragmentBytes = pictureBytes, 100
		c.AnswersTo = receiver
		c.AnsweredRequests, c.AnsweredBytes, c.TurnedAwayRequests = 256, 4<<10, 256
	}
}

func gvsp(block uint64) *cameratest.GVSP {
	return &cameratest.GVSP{
		Block: block, Width: pictureWidth, Height: pictureHeight, Format: cameratest.RGB8,
		Timestamp: 1000 + block, Pixels: picture(uint32(block), pictureBytes), Size: packetBytes,
	}
}

func rtp(timestamp uint32) *cameratest.RTP {
	return &cameratest.RTP{
		Timestamp: timestamp, Stream: 7, Sequence: 0xfffe, Width: pictureWidth, PixelBytes: 3,
		Pixels: picture(timestamp, pictureBytes), Size: packetBytes,
	}
}

// packets sends packets of one camera in one batch.
func (b *harness) packets(from netip.AddrPort, packets ...[]byte) *Events {
	b.t.Helper()
	var batch []ingest.Datagram
	for _, p := range packets {
		batch = append(batch, b.land(from, p, 0))
	}
	return b.add(batch...)
}

// wantPictures checks which pictures have become complete, answers them, and checks their pixels.
func (b *harness) wantPictures(e *Events, ids ...uint32) {
	b.t.Helper()
	var got []uint32
	for _, slot := range slices.Clone(e.Complete) {
		id := b.table.requests[slot].ID
		got = append(got, id)
		if pixels := b.assemble(slot); !bytes.Equal(pixels, picture(id, len(pixels))) {
			b.t.Errorf("picture %d has other pixels than the camera sent", id)
		}
		o, ok := b.a.Origin(slot)
		if !ok || !o.From.Addr().IsLoopback() || o.To != receiver || o.RequestID != id {
			b.t.Errorf("origin of picture %d is %+v, %v; want receiver %v", id, o, ok, receiver)
		}
		b.end(slot, wire.StatusOK, "")
	}
	slices.Sort(got)
	want(b, "pictures", got, ids)
}

// wantDrops checks how many packets were dropped for each reason since the test began.
func (b *harness) wantDrops(drops map[Drop]uint64) {
	b.t.Helper()
	got := map[Drop]uint64{}
	for reason, n := range b.a.Stats().Dropped {
		if n > 0 {
			got[Drop(reason)] = n
		}
	}
	want(b, "drops", got, drops)
}

// wantAnswer checks the only answer of events.
func (b *harness) wantAnswer(e *Events, id uint32, status wire.Status, missing uint16) {
	b.t.Helper()
	if len(e.Reported) != 1 {
		b.t.Fatalf("%d answers, want one", len(e.Reported))
	}
	if a := e.Reported[0]; a.To != receiver || a.RequestID != id || a.Status != status || a.Missing != missing {
		b.t.Errorf("answer %+v; want %v about picture %d to %v, %d missing", a, status, id, receiver, missing)
	}
}

// wantRefusal checks the latest refusal.
func (b *harness) wantRefusal(text string) {
	b.t.Helper()
	if got := b.config.Camera.Explain(b.a.Stats().Refusal); got != text {
		b.t.Errorf("refusal %q, want %q", got, text)
	}
}

var none32 []uint32

func TestGVSPPictures(t *testing.T) {
	for _, row := range []struct {
		name string
		test func(b *harness)
	}{
		{"in order", func(b *harness) {
			for block := range uint64(3) {
				b.wantPictures(b.packets(camera, gvsp(block).Packets()...), uint32(block))
			}
			b.wantDrops(map[Drop]uint64{})
		}},
		{"time of the camera", func(b *harness) {
			e := b.packets(camera, gvsp(5).Packets()...)
			if r := b.end(e.Complete[0], wire.StatusOK, ""); r.SentAt != 1005 {
				b.t.Errorf("the answer has the time %d, want the leader's", r.SentAt)
			}
		}},
		{"64-bit blocks", func(b *harness) {
			p := gvsp(9)
			p.Block, p.Extended = 1<<32|9, true
			b.wantPictures(b.packets(camera, p.Packets()...), 9)
		}},
		{"block ids wrap at 16 bits", func(b *harness) {
			for _, block := range []uint64{0xfffe, 0xffff, 0, 1} {
				b.wantPictures(b.packets(camera, gvsp(block).Packets()...), uint32(block))
			}
		}},
		{"block ids wrap at 32 of 64 bits", func(b *harness) {
			for _, block := range []uint64{1<<32 - 1, 1 << 32, 1<<32 + 1} {
				p := gvsp(uint64(uint32(block)))
				p.Block, p.Extended = block, true
				b.wantPictures(b.packets(camera, p.Packets()...), uint32(block))
			}
		}},
		{"mixed blocks", func(b *harness) {
			first, second := gvsp(1).Packets(), gvsp(2).Packets()
			var mixed [][]byte
			for i := range first {
				mixed = append(mixed, second[i], first[i])
			}
			b.wantPictures(b.packets(camera, mixed...), 1, 2)
		}},
		{"the same block of two cameras", func(b *harness) {
			p := gvsp(1).Packets()
			b.wantPictures(b.packets(camera, p[:4]...), none32...)
			b.wantPictures(b.packets(address(2), p...), 1)
			b.wantPictures(b.packets(camera, p[4:]...), 1)
		}},
		{"backwards", func(b *harness) {
			b.wantPictures(b.packets(camera, gvsp(1).Packets()...), 1) // shows the fragments' size
			p := gvsp(2).Packets()
			slices.Reverse(p)
			b.wantPictures(b.packets(camera, p...), 2)
			b.wantDrops(map[Drop]uint64{dropLate: 1}) // the trailer, before anything else
		}},
		{"backwards as the first picture", func(b *harness) {
			p := gvsp(1).Packets()[:pictureCount+1]
			slices.Reverse(p)
			b.wantPictures(b.packets(camera, p...), none32...)
			b.wantDrops(map[Drop]uint64{dropContradictory: pictureCount - 1}) // they are larger than the last one
			b.wantAnswer(b.pass(time.Second), 1, wire.StatusIncomplete, 15)
		}},
		{"padded last packet", func(b *harness) {
			p := gvsp(1)
			packets := p.Packets()
			packets[pictureCount] = append(packets[pictureCount], make([]byte, packetBytes-60)...)
			b.wantPictures(b.packets(camera, packets...), 1)
		}},
		{"each packet twice", func(b *harness) {
			for _, p := range gvsp(1).Packets()[:pictureCount] {
				b.wantPictures(b.packets(camera, p, p), none32...)
			}
			b.wantPictures(b.packets(camera, gvsp(1).Payload(pictureCount-1)), 1)
			b.wantDrops(map[Drop]uint64{dropDuplicate: pictureCount})
		}},
		{"packets after the answer", func(b *harness) {
			b.wantPictures(b.packets(camera, gvsp(1).Packets()[:pictureCount+1]...), 1)
			b.packets(camera, gvsp(1).Packets()...)
			b.wantDrops(map[Drop]uint64{dropLate: pictureCount + 2})
		}},
		{"lost payload", func(b *harness) {
			p := gvsp(1).Packets()
			b.packets(camera, slices.Delete(p, 3, 5)...)
			e := b.pass(time.Second)
			b.wantAnswer(e, 1, wire.StatusIncomplete, 2)
			if len(e.NACKs) > 0 {
				b.t.Errorf("%d NACKs to a camera", len(e.NACKs))
			}
		}},
		{"lost leader", func(b *harness) {
			b.packets(camera, gvsp(1).Packets()[1:]...)
			b.wantAnswer(b.pass(time.Second), 1, wire.StatusIncomplete, 1)
		}},
		{"leader only", func(b *harness) {
			b.packets(camera, gvsp(1).Leader())
			b.wantAnswer(b.pass(time.Second), 1, wire.StatusIncomplete, 10)
		}},
		{"trailer without leader", func(b *harness) {
			b.packets(camera, gvsp(1).Trailer())
			b.wantDrops(map[Drop]uint64{dropLate: 1})
			if n := b.a.Stats().Begun; n != 0 {
				b.t.Errorf("%d pictures began, want none", n)
			}
		}},
		{"lost trailer", func(b *harness) {
			b.wantPictures(b.packets(camera, gvsp(1).Packets()[:pictureCount+1]...), 1)
		}},
		{"leader after some pixels", func(b *harness) {
			p := gvsp(1).Packets()
			p[0], p[1] = p[1], p[0]
			b.wantPictures(b.packets(camera, p...), 1)
		}},
		{"leader last", func(b *harness) {
			p := gvsp(1).Packets()
			b.wantPictures(b.packets(camera, append(p[1:pictureCount+1], p[0])...), 1)
		}},
		{"wrong leader", func(b *harness) {
			p := gvsp(1)
			p.Width = 32
			e := b.packets(camera, p.Packets()...)
			b.wantAnswer(e, 1, wire.StatusRefused, 0)
			b.wantRefusal("the camera sends 32 x 20 RGB8, want 16 x 20 RGB8")
			b.wantDrops(map[Drop]uint64{dropForeign: pictureCount + 2})
			if n := b.a.Stats().Refused; n != 1 {
				b.t.Errorf("%d pictures refused, want 1", n)
			}
		}},
		{"wrong leader after pixels", func(b *harness) {
			p := gvsp(1)
			p.Format = cameratest.Mono8
			e := b.packets(camera, p.Payload(0), p.Payload(1), p.Leader(), p.Payload(2))
			b.wantAnswer(e, 1, wire.StatusRefused, 0)
			b.wantRefusal("the camera sends 16 x 20 Mono8, want 16 x 20 RGB8")
		}},
		{"second leader that differs", func(b *harness) {
			p, other := gvsp(1), gvsp(1)
			other.Height = 21
			e := b.packets(camera, p.Leader(), p.Payload(0), other.Leader(), p.Payload(1))
			b.wantAnswer(e, 1, wire.StatusRefused, 0)
		}},
		{"wrong leader of a complete picture", func(b *harness) {
			p, other := gvsp(1), gvsp(1)
			other.Height = 21
			e := b.packets(camera, append(p.Packets(), other.Leader())...)
			b.wantDrops(map[Drop]uint64{dropDuplicate: 1})
			b.wantPictures(e, 1)
		}},
		{"trailer of fewer lines", func(b *harness) {
			p, other := gvsp(1), gvsp(1)
			other.Height = 10
			e := b.packets(camera, p.Leader(), p.Payload(0), other.Trailer())
			b.wantAnswer(e, 1, wire.StatusRefused, 0)
			b.wantRefusal("the camera's pictures end after 10 lines, want 16 x 20 RGB8")
		}},
		{"packet id beyond the picture", func(b *harness) {
			p := gvsp(1)
			b.packets(camera, p.Leader(), p.Payload(0), p.Packet(cameratest.Payload, 8, make([]byte, packetBytes)), p.Packet(cameratest.Payload, 0xffffff, make([]byte, packetBytes)))
			b.wantDrops(map[Drop]uint64{dropContradictory: 2})
			b.pass(time.Second)
		}},
		{"huge 32-bit packet id", func(b *harness) {
			p := gvsp(1)
			p.Extended = true
			b.packets(camera, p.Leader(), p.Payload(0), p.Packet(cameratest.Payload, 0xffffffff, make([]byte, packetBytes)))
			b.wantDrops(map[Drop]uint64{dropContradictory: 1})
			b.pass(time.Second)
		}},
		{"packets of other sizes", func(b *harness) {
			p := gvsp(1)
			b.packets(camera, p.Leader(), p.Payload(0), p.Packet(cameratest.Payload, 2, make([]byte, packetBytes-1)), p.Packet(cameratest.Payload, 3, make([]byte, packetBytes+1)))
			b.wantDrops(map[Drop]uint64{dropContradictory: 2})
			b.pass(time.Second)
		}},
		{"tiny packets", func(b *harness) {
			p := gvsp(1)
			p.Size = 1
			e := b.packets(camera, p.Packets()...)
			b.wantAnswer(e, 1, wire.StatusBusy, 0) // more packets than there are descriptors
		}},
		{"a datagram of Penstock's protocol", func(b *harness) {
			b.packets(camera, fragment{id: 1}.datagram())
			if n := b.a.Stats().Malformed[wire.ReasonStatus]; n != 1 {
				b.t.Errorf("%d malformed, want 1", n)
			}
		}},
		{"drain", func(b *harness) {
			p := gvsp(1).Packets()
			b.packets(camera, p[:3]...)
			b.a.Drain()
			b.wantPictures(b.packets(camera, p[3:]...), 1)
			b.wantAnswer(b.packets(camera, gvsp(2).Packets()...), 2, wire.StatusBusy, 0)
			b.a.Resume()
		}},
	} {
		t.Run(row.name, func(t *testing.T) { onBed(t, forCameras(cameras.GVSP), row.test) })
	}
}

func TestRFC4175Pictures(t *testing.T) {
	for _, row := range []struct {
		name string
		test func(b *harness)
	}{
		{"in order", func(b *harness) {
			for timestamp := range uint32(3) {
				b.wantPictures(b.packets(camera, rtp(timestamp).Packets()...), timestamp)
			}
			b.wantDrops(map[Drop]uint64{})
		}},
		{"timestamp wraps", func(b *harness) {
			for _, timestamp := range []uint32{0xffffffff, 0, 3000} {
				b.wantPictures(b.packets(camera, rtp(timestamp).Packets()...), timestamp)
			}
		}},
		{"backwards", func(b *harness) {
			p := rtp(1).Packets()
			slices.Reverse(p)
			b.wantPictures(b.packets(camera, p...), 1)
		}},
		{"mixed pictures", func(b *harness) {
			first, second := rtp(1).Packets(), rtp(2).Packets()
			var mixed [][]byte
			for i := range first {
				mixed = append(mixed, second[i], first[i])
			}
			b.wantPictures(b.packets(camera, mixed...), 1, 2)
		}},
		{"marker lost", func(b *harness) {
			p := rtp(1)
			packets := p.Packets()
			packets[len(packets)-1][1] &^= 0x80
			b.wantPictures(b.packets(camera, packets...), 1)
		}},
		{"packet with the marker lost", func(b *harness) {
			p := rtp(1).Packets()
			b.packets(camera, p[:len(p)-1]...)
			b.wantPictures(b.packets(camera, rtp(2).Packets()...), 2)
			b.wantAnswer(b.pass(time.Second), 1, wire.StatusIncomplete, 1)
		}},
		{"marker too early", func(b *harness) {
			p := rtp(1)
			packets := p.Packets()
			packets[2][1] |= 0x80
			b.wantAnswer(b.packets(camera, packets...), 1, wire.StatusRefused, 0)
			b.wantRefusal("the camera's pictures end after 10 lines of 6 pixels, want 16 x 20 rgb8")
		}},
		{"each packet twice", func(b *harness) {
			packets := rtp(1).Packets()
			for _, p := range packets[:len(packets)-1] {
				b.packets(camera, p, p)
			}
			b.wantPictures(b.packets(camera, packets[len(packets)-1]), 1)
			b.wantDrops(map[Drop]uint64{dropDuplicate: uint64(len(packets) - 1)})
		}},
		{"overlapping runs", func(b *harness) {
			p := rtp(1)
			b.packets(camera, p.Packets()[1]) // bytes 150 to 299: from line 3, pixel 2, to line 6, pixel 3
			b.packets(camera,
				lineRun(p, 147, 6),
				lineRun(p, 297, 6),
				lineRun(p, 192, 3),
				lineRun(p, 144, 192),
			)
			b.wantDrops(map[Drop]uint64{dropOverlapping: 4})
			b.pass(time.Second)
		}},
		{"packets of all sizes", func(b *harness) {
			p := rtp(1)
			var packets [][]byte
			for at, size := 0, 99; at < pictureBytes; at += size {
				size = min(size, pictureBytes-at)
				packets = append(packets, lineRun(p, at, size))
			}
			b.wantPictures(b.packets(camera, packets...), 1)
		}},
		{"another stream with the same timestamp", func(b *harness) {
			p, other := rtp(1), rtp(1)
			other.Stream = 8
			packets := p.Packets()
			b.packets(camera, packets[:3]...)
			b.packets(camera, other.Packets()...)
			b.wantPictures(b.packets(camera, packets[3:]...), 1)
			b.wantDrops(map[Drop]uint64{dropContradictory: pictureCount})
		}},
		{"lost packets", func(b *harness) {
			b.packets(camera, slices.Delete(rtp(1).Packets(), 2, 4)...)
			b.wantAnswer(b.pass(time.Second), 1, wire.StatusIncomplete, 2)
		}},
		{"pictures of more lines", func(b *harness) {
			p := rtp(1)
			p.Pixels = make([]byte, 2*pictureBytes)
			b.wantAnswer(b.packets(camera, p.Packets()...), 1, wire.StatusRefused, 0)
			b.wantRefusal("the camera's pictures have at least 21 lines, want 16 x 20 rgb8")
			if n := b.a.Stats().Refused; n != 1 {
				b.t.Errorf("%d pictures refused, want 1", n)
			}
		}},
		{"wider pictures", func(b *harness) {
			p := rtp(1)
			p.Width = 2 * pictureWidth
			b.wantAnswer(b.packets(camera, p.Packets()...), 1, wire.StatusRefused, 0)
			b.wantRefusal("the camera's lines have at least 32 pixels, want 16 x 20 rgb8")
		}},
		{"narrower pictures", func(b *harness) {
			p := rtp(1)
			p.Width, p.Pixels, p.Size = 8, p.Pixels[:pictureBytes/2], 24
			b.wantAnswer(b.packets(camera, p.Packets()...), 1, wire.StatusRefused, 0)
			b.wantRefusal("the camera's pictures end after 20 lines of 8 pixels, want 16 x 20 rgb8")
		}},
		{"shed by the kernel", func(b *harness) {
			d := b.land(camera, rtp(1).Packets()[0], 0)
			d.Shed = true
			b.add(d)
			b.wantDrops(map[Drop]uint64{dropShed: 1})
		}},
	} {
		t.Run(row.name, func(t *testing.T) { onBed(t, forCameras(cameras.RFC4175), row.test) })
	}
}

// lineRun returns a packet with size bytes of a picture from at on.
func lineRun(p *cameratest.RTP, at, size int) []byte {
	const lineBytes = pictureWidth * 3
	var lines []cameratest.Line
	for from := at; from < at+size; {
		to := min(at+size, (from/lineBytes+1)*lineBytes)
		lines = append(lines, cameratest.Line{Bytes: to - from, Line: from / lineBytes, Pixel: from % lineBytes / 3})
		from = to
	}
	return p.Packet(0, at+size == pictureBytes, lines, p.Pixels[at:at+size])
}

// TestPicturesInTwoSpans lands each packet in two runs of the slab, cut at every offset.
func TestPicturesInTwoSpans(t *testing.T) {
	for _, format := range []cameras.Format{cameras.GVSP, cameras.RFC4175} {
		onBed(t, forCameras(format), func(b *harness) {
			for at := 1; at < packetBytes+8; at++ {
				packets := rtp(uint32(at)).Packets()
				if format == cameras.GVSP {
					packets = gvsp(uint64(at)).Packets()
				}
				var batch []ingest.Datagram
				for _, p := range packets {
					batch = append(batch, b.land(camera, p, at))
				}
				b.wantPictures(b.add(batch...), uint32(at))
			}
		})
	}
}

// TestDamagedPictures sends pictures whose packets are lost, repeated and reordered at random. The
// pictures without loss become complete, with the right pixels. The others are incomplete.
func TestDamagedPictures(t *testing.T) {
	for _, format := range []cameras.Format{cameras.GVSP, cameras.RFC4175} {
		for seed := range uint64(50) {
			onBed(t, forCameras(format), func(b *harness) {
				random := rand.New(rand.NewPCG(seed, 0))
				b.a.fragmentBytes = packetBytes // the size of pictures before
				var sent [][]byte
				var complete []uint32
				for id := range uint32(8) {
					packets := rtp(id).Packets()
					if format == cameras.GVSP {
						packets = gvsp(uint64(id)).Packets()
					}
					lost := random.IntN(2) == 0
					if lost {
						at := random.IntN(pictureCount) // not the trailer
						packets = slices.Delete(packets, at, at+1)
					} else {
						complete = append(complete, id)
					}
					for _, p := range packets {
						sent = append(sent, p)
						if random.IntN(8) == 0 {
							sent = append(sent, p)
						}
					}
				}
				random.Shuffle(len(sent), func(i, j int) { sent[i], sent[j] = sent[j], sent[i] })
				e := b.packets(camera, sent...)
				b.wantPictures(e, complete...)
				if e := b.pass(time.Second); len(e.Reported) != 8-len(complete) {
					t.Errorf("seed %d: %d answers about incomplete pictures, want %d", seed, len(e.Reported), 8-len(complete))
				}
			})
		}
	}
}

// forAnySize is forCameras for GVSP's pictures of up to 1,000 bytes.
func forAnySize(c *Config) {
	forCameras(cameras.GVSP)(c)
	c.LargestPicture, c.MaxFragments = 1000, 40
	c.Camera = &cameras.Reader{Format: cameras.GVSP, Largest: 1000}
}

// bayer is a picture of 12 bits.
func bayer(block uint64, height uint32) *cameratest.GVSP {
	p := gvsp(block)
	p.Height, p.Format, p.Pixels = height, 0x01100011, picture(uint32(block), pictureWidth*int(height)*2)
	return p
}

// TestPicturesOfAnySize sends pictures whose leaders say their format and size.
func TestPicturesOfAnySize(t *testing.T) {
	onBed(t, forAnySize, func(b *harness) {
		for block, height := range []uint32{20, 8, 30} {
			e := b.packets(camera, bayer(uint64(block), height).Packets()...)
			want := wire.Picture{Format: wire.FormatBayerRG12, Width: pictureWidth, Height: int(height)}
			for _, slot := range e.Complete {
				if r := b.table.requests[slot]; r.Picture() != want || int(r.Bytes) != pictureWidth*int(height)*2 {
					b.t.Errorf("picture is %v of %d bytes, want %v", r.Picture(), r.Bytes, want)
				}
			}
			b.wantPictures(e, uint32(block))
		}
		// Pixels before their leader belong to a picture like the last one.
		late := bayer(3, 30).Packets()
		b.wantPictures(b.packets(camera, append(late[1:], late[0])...), 3)
		changed := bayer(4, 10).Packets()
		b.wantAnswer(b.packets(camera, changed[1], changed[0]), 4, wire.StatusRefused, 0)
		b.wantRefusal("the camera changed from pictures of 960 bytes to 320, and its packets arrive in another order; want one format and size")
		b.wantAnswer(b.packets(camera, bayer(5, 32).Packets()...), 5, wire.StatusRefused, 0)
		b.wantRefusal("the camera sends 16 x 32 BayerRG12: picture of 16 x 32 of bayer_rg12 has 1024 bytes, and the function takes at most 1000")
	})
}

// TestResends loses packets of a picture. Commands name them until they come or the deadline passes.
func TestResends(t *testing.T) {
	onBed(t, forAnySize, func(b *harness) {
		asked := func(e *Events, ranges ...[2]uint32) {
			b.t.Helper()
			var got [][2]uint32
			for _, r := range e.Resends {
				if r.To != netip.AddrPortFrom(camera.Addr(), cameras.ControlPort) || r.Block != 1<<32|1 || !r.Extended {
					b.t.Errorf("command is %+v", r)
				}
				got = append(got, [2]uint32{r.First, r.Last})
			}
			want(b, "packets", got, ranges)
		}
		p := bayer(1<<32|1, 30) // 7 packets of 150 bytes but the last
		p.Extended = true
		all := p.Packets()
		asked(b.packets(camera, all[2], all[4]))
		asked(b.pass(b.a.config.NACKAfter)) // the size of the first picture is unknown without the leader
		b.packets(camera, all[0], all[2], all[4])
		asked(b.pass(b.a.config.NACKAfter), [2]uint32{1, 1}, [2]uint32{3, 3}, [2]uint32{5, 7})
		asked(b.packets(camera, all[1], all[5]))
		asked(b.pass(b.a.config.NACKAfter - 1))
		asked(b.pass(1), [2]uint32{3, 3}, [2]uint32{6, 7})
		asked(b.pass(2*b.a.config.NACKAfter), [2]uint32{3, 3}, [2]uint32{6, 7})
		b.wantPictures(b.packets(camera, all[3], all[6], all[7]), 1)

		p = bayer(1<<32|1<<16, 30)
		p.Extended = true
		all = p.Packets()
		b.packets(camera, all[1:]...)
		if e := b.pass(b.a.config.NACKAfter); len(e.Resends) != 1 || e.Resends[0].First != 0 || e.Resends[0].Last != 0 {
			b.t.Errorf("commands %+v, want one for the leader", e.Resends)
		}
		b.wantPictures(b.packets(camera, all[0]), 1<<16)

		p.Block++
		b.packets(camera, p.Packets()[:3]...)
		if e := b.pass(b.a.config.Deadline); len(e.Resends) != b.a.config.MaxNACKs {
			b.t.Errorf("%d commands until the deadline, want %d", len(e.Resends), b.a.config.MaxNACKs)
		}
	})
	onBed(t, forCameras(cameras.RFC4175), func(b *harness) {
		b.packets(camera, rtp(1).Packets()[1:]...)
		if e := b.pass(b.a.config.Deadline); len(e.Resends) > 0 {
			b.t.Errorf("an RTP sender was asked for %+v", e.Resends)
		}
	})
}

// TestCamerasShareSlots lets a camera whose pictures stay incomplete take slots while others send.
func TestCamerasShareSlots(t *testing.T) {
	onBed(t, forCameras(cameras.GVSP), func(b *harness) {
		for block := range uint64(200) {
			b.packets(camera, gvsp(block).Payload(0))
		}
		for n := range 8 {
			b.wantPictures(b.packets(address(300+n), gvsp(1).Packets()...), 1)
		}
		b.pass(time.Second)
	})
}

// TestAnswersWithoutReceiver has no receiver of answers: they have no valid address.
func TestAnswersWithoutReceiver(t *testing.T) {
	onBed(t, func(c *Config) { forCameras(cameras.RFC4175)(c); c.AnswersTo = netip.AddrPort{} }, func(b *harness) {
		e := b.packets(camera, rtp(1).Packets()...)
		if o, ok := b.a.Origin(e.Complete[0]); !ok || o.To.IsValid() {
			b.t.Errorf("the answer goes to %v, want nowhere", o.To)
		}
		b.packets(camera, rtp(2).Packets()[0])
		if e := b.pass(time.Second); len(e.Reported) != 1 || e.Reported[0].To.IsValid() {
			b.t.Errorf("answers %+v, want one to nowhere", e.Reported)
		}
	})
}

// cameraStream is stream for pictures of a camera.
func cameraStream(format cameras.Format) (s *stream, setID func(id uint32)) {
	const width, height, size = 128, 128, 1400
	s = &stream{now: 1}
	c := Config{
		Slots: 64, RequestBytes: width * height * 3, MaxFragments: 2 * 128, MinFragmentBytes: width * 3, SLO: 100 * time.Millisecond,
		Camera: &cameras.Reader{Format: format, Shape: wire.Picture{Format: wire.FormatRGB8, Width: width, Height: height}}, AnswersTo: receiver,
	}
	pixels := picture(1, c.RequestBytes)
	packets := (&cameratest.RTP{Width: width, PixelBytes: 3, Pixels: pixels, Size: size / 3 * 3}).Packets()
	if format == cameras.GVSP {
		packets = (&cameratest.GVSP{Width: width, Height: height, Format: cameratest.RGB8, Pixels: pixels, Size: size}).Packets()
	}
	for _, p := range packets {
		s.batch = append(s.batch, ingest.Datagram{From: camera, First: ingest.Span{Offset: uint64(len(s.memory)), Length: uint32(len(p))}})
		s.memory = append(s.memory, p...)
	}
	s.table = newPaper(c.Slots, c.MaxFragments)
	s.a = New(c, s.memory, s.table)
	return s, func(id uint32) {
		for i := range s.batch {
			at := s.batch[i].First.Offset
			if format == cameras.GVSP {
				binary.BigEndian.PutUint16(s.memory[at+2:], uint16(id))
			} else {
				binary.BigEndian.PutUint32(s.memory[at+4:], id)
			}
		}
	}
}

// picture sends and answers a picture.
func (s *stream) picture(t failer) {
	s.now += 1_000_000
	s.events.Reset()
	s.a.Add(s.now, s.batch, &s.events)
	if len(s.events.Complete) != 1 {
		t.Fatalf("%d pictures became complete, want one", len(s.events.Complete))
	}
	result := wire.Result{Status: wire.StatusOK, Kind: wire.KindTopK}
	s.a.End(s.now, s.events.Complete[0], &result, s.memory[:60], &s.events)
}

func TestCamerasAllocateNothing(t *testing.T) {
	for _, format := range []cameras.Format{cameras.GVSP, cameras.RFC4175} {
		s, setID := cameraStream(format)
		round := func() {
			s.id++
			setID(s.id)
			s.picture(t)
		}
		for range 20 {
			round()
		}
		if n := testing.AllocsPerRun(200, round); n != 0 {
			t.Errorf("%v: %v allocations per picture", format, n)
		}

		// Lost packets and packets out of order cost no allocation either.
		slices.Reverse(s.batch[2:])
		round()
		if n := testing.AllocsPerRun(200, round); n != 0 {
			t.Errorf("%v: %v allocations per reordered picture", format, n)
		}
		lossy := s.batch[1:]
		mishap := func() {
			s.id++
			setID(s.id)
			s.events.Reset()
			s.a.Add(s.now, lossy, &s.events)
			for len(s.events.Reported) == 0 && s.a.NextDeadline() != 0 { // it requests the packets first
				s.now = s.a.NextDeadline()
				s.a.Expire(s.now, &s.events)
			}
			if len(s.events.Reported) != 1 {
				t.Fatalf("%d answers, want one", len(s.events.Reported))
			}
		}
		mishap()
		if n := testing.AllocsPerRun(200, mishap); n != 0 {
			t.Errorf("%v: %v allocations per incomplete picture", format, n)
		}
	}
}

// BenchmarkAddPacket is BenchmarkAdd for cameras.
func BenchmarkAddPacket(b *testing.B) {
	for _, format := range []cameras.Format{cameras.GVSP, cameras.RFC4175} {
		b.Run(fmt.Sprint(format), func(b *testing.B) {
			s, setID := cameraStream(format)
			b.ReportAllocs()
			for b.Loop() {
				s.id++
				setID(s.id)
				s.picture(b)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(s.batch)), "ns/datagram")
		})
	}
}

// fuzzPackets splits bytes into packets of a few cameras and adds them. Nothing panics, and the
// invariants hold. Each span is held by a live slot or released once, and in the end nothing is
// left. A complete picture has all its bytes.
func fuzzPackets(f *testing.F, configure func(c *Config), packets [][]byte) {
	var sound []byte
	for _, p := range packets {
		sound = append(sound, 0, byte(len(p)), byte(len(p)>>8))
		sound = append(sound, p...)
	}
	f.Add(sound)
	f.Fuzz(func(t *testing.T, data []byte) {
		b := newHarness(t, configure)
		for datagrams := 0; len(data) >= 3 && datagrams < 300; datagrams++ {
			how, n := data[0], int(binary.LittleEndian.Uint16(data[1:]))
			n = min(n, len(data)-3)
			e := b.add(b.land(address(int(how&3)), data[3:3+n], int(how>>2)))
			for _, slot := range slices.Clone(e.Complete) {
				b.assemble(slot)
				if how&4 != 0 {
					b.end(slot, wire.Status(how>>4%wire.NumStatuses), "answer")
				}
			}
			if how&8 != 0 {
				b.pass(time.Duration(how) * time.Millisecond / 16)
			}
			data = data[3+n:]
		}
		b.atEnd()
	})
}

func FuzzAddGVSP(f *testing.F) {
	fuzzPackets(f, forCameras(cameras.GVSP), slices.Concat(gvsp(1).Packets(), gvsp(2).Packets()))
}

func FuzzAddGVSPOfAnySize(f *testing.F) {
	fuzzPackets(f, forAnySize, slices.Concat(bayer(1, 20).Packets(), bayer(2, 8).Packets(), gvsp(3).Packets()))
}

func FuzzAddRFC4175(f *testing.F) {
	fuzzPackets(f, forCameras(cameras.RFC4175), slices.Concat(rtp(1).Packets(), rtp(2).Packets()))
}

func TestAllowed(t *testing.T) {
	allow := func(c *Config) {
		forCameras(cameras.GVSP)(c)
		c.Allowed = []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32"), netip.MustParsePrefix("fe80::/64")}
	}
	onBed(t, allow, func(b *harness) {
		packets := gvsp(1).Packets()
		e := b.packets(netip.MustParseAddrPort("127.0.0.2:5000"), packets...)
		if len(e.Reported)+len(e.Complete) > 0 {
			t.Errorf("packets of another address make %+v", e)
		}
		b.wantDrops(map[Drop]uint64{dropAddress: uint64(len(packets) - 1), dropLate: 1}) // the trailer begins no picture
		if s := b.a.Stats(); s.Begun != 0 || s.Clients != 0 || s.Remembered != 0 {
			t.Errorf("they leave %+v", s)
		}
		b.wantPictures(b.packets(netip.MustParseAddrPort("[::ffff:127.0.0.1]:5000"), packets...), 1)
		b.wantPictures(b.packets(netip.MustParseAddrPort("127.0.0.1:5000"), gvsp(2).Packets()...), 2)
		if !b.a.config.allows(netip.MustParseAddr("fe80::7%eth0")) || b.a.config.allows(netip.MustParseAddr("fe81::7")) {
			t.Error("an address of IPv6 is not judged by its network")
		}
	})
}
