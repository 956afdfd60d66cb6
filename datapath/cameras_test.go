package datapath

import (
	"bytes"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/penstock/penstock/datapath/cameras"
	"github.com/penstock/penstock/datapath/udp"
	"github.com/penstock/penstock/internal/testing/cameratest"
	"github.com/penstock/penstock/internal/testing/datapathtest"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/wire"
)

// answerReceiver is a socket that answers about pictures of cameras go to.
type answerReceiver struct {
	t    *testing.T
	conn *net.UDPConn
}

func newAnswerReceiver(t *testing.T) answerReceiver {
	t.Helper()
	conn, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	must.OK(t, err)
	t.Cleanup(func() { conn.Close() })
	return answerReceiver{t, conn}
}

func (r answerReceiver) address() netip.AddrPort { return r.conn.LocalAddr().(*net.UDPAddr).AddrPort() }

func (r answerReceiver) next() (wire.Header, wire.Result, []byte) {
	r.t.Helper()
	b := make([]byte, wire.MaxDatagram)
	must.OK(r.t, r.conn.SetReadDeadline(time.Now().Add(datapathtest.Patience)))
	n, err := r.conn.Read(b)
	must.OK(r.t, err)
	h, result, payload, err := wire.DecodeResult(b[:n])
	must.OK(r.t, err)
	return h, result, payload
}

// gvspOptions are the options for a GigE Vision camera with the pictures of datapathtest, 32 x 32 x 3.
func gvspOptions(to netip.AddrPort) Options {
	o := testOptions(1)
	o.Camera, o.AnswersTo = &cameras.Reader{Format: cameras.GVSP, Shape: wire.Picture{Format: wire.FormatRGB8, Width: 32, Height: 32}}, to
	return o
}

func gvsp(block uint64) *cameratest.GVSP {
	return &cameratest.GVSP{Block: block, Width: 32, Height: 32, Format: cameratest.RGB8, Timestamp: 77, Pixels: datapathtest.Picture(byte(block)), Size: 1000}
}

// TestCamera sends pictures of a camera through a kernel socket to a process. The answers go to
// another address.
func TestCamera(t *testing.T) {
	answers := newAnswerReceiver(t)
	b := newHarnessOn(t, open(t, loopback(), 1), gvspOptions(answers.address()))
	c, camera := b.owner(0, 1), b.dialRaw()
	for _, block := range []uint64{0xffff, 1} {
		for _, p := range gvsp(block).Packets() {
			camera.Write(p)
		}
		slot := c.Await(1)[0]
		got := make([]byte, datapathtest.PictureBytes)
		for _, p := range c.Fragments(slot) {
			copy(got[p.Place:], b.Slab().Bytes()[p.Offset:][:p.Length])
		}
		if !bytes.Equal(got, datapathtest.Picture(byte(block))) {
			t.Error("the descriptors do not lead to the picture that was sent")
		}
		c.Answer([]uint32{slot}, []byte{1, 2, 3, 4})
		if h, r, payload := answers.next(); h.RequestID != uint32(block) || r.Status != wire.StatusOK || r.SentAt != 77 || len(payload) != 4 {
			t.Errorf("answer %+v, %+v, %d bytes; want ok about block %d", h, r, len(payload), block)
		}
	}

	wrong := gvsp(2)
	wrong.Height = 33
	camera.Write(wrong.Leader())
	if h, r, _ := answers.next(); h.RequestID != 2 || r.Status != wire.StatusRefused {
		t.Errorf("answer %+v, %+v; want refused", h, r)
	}
	if why := b.Requests().Refusal; gvspOptions(netip.AddrPort{}).Camera.Explain(why) != "the camera sends 32 x 33 RGB8, want 32 x 32 RGB8" {
		t.Errorf("refusal is %+v", why)
	}
}

// TestPictureOfCamera copies a camera's picture for the page.
func TestPictureOfCamera(t *testing.T) {
	b := newHarnessOn(t, open(t, loopback(), 1), gvspOptions(netip.AddrPort{}))
	b.SetPictures(time.Nanosecond)
	c, camera := b.owner(0, 1), b.dialRaw()
	for _, p := range gvsp(6).Packets() {
		camera.Write(p)
	}
	c.Answer(c.Await(1), []byte{1, 2, 3, 4})
	b.eventually("the picture is copied", func() bool { return b.PictureNumber() == 1 })
	if p, ok := b.Picture(); !ok || !bytes.Equal(p.Pixels, datapathtest.Picture(6)) || p.RequestID != 6 || !p.From.Addr().IsLoopback() {
		t.Errorf("picture %d of %v, %v; want that of block 6", p.RequestID, p.From, ok)
	}
}

// TestIncompletePicture loses a packet: the answer comes after the deadline.
func TestIncompletePicture(t *testing.T) {
	answers := newAnswerReceiver(t)
	o := gvspOptions(answers.address())
	o.Gather = 10 * time.Millisecond
	b := newHarnessOn(t, open(t, loopback(), 1), o)
	camera := b.dialRaw()
	for _, p := range gvsp(3).Packets()[:3] {
		camera.Write(p)
	}
	if h, r, _ := answers.next(); h.RequestID != 3 || r.Status != wire.StatusIncomplete || r.Missing == 0 {
		t.Errorf("answer %+v, %+v; want incomplete", h, r)
	}
}

// TestOverduePicture has no process: the answer is late.
func TestOverduePicture(t *testing.T) {
	answers := newAnswerReceiver(t)
	o := gvspOptions(answers.address())
	o.Objective = 20 * time.Millisecond
	b := newHarnessOn(t, open(t, loopback(), 1), o)
	c, camera := b.owner(0, 1), b.dialRaw()
	for _, p := range gvsp(4).Packets() {
		camera.Write(p)
	}
	slot := c.Await(1)
	b.Queue(0).Rouse()
	if h, r, _ := answers.next(); h.RequestID != 4 || r.Status != wire.StatusLate {
		t.Errorf("answer %+v, %+v; want late", h, r)
	}
	c.Answer(slot, nil)
}

// TestLossyCamera loses one of 100 packets of large pictures. The camera sends them again, and also loses one of 100 of these.
func TestLossyCamera(t *testing.T) {
	const pictures, width, height = 20, 1920, 1200
	network := KernelNetwork(udp.Options{
		Listen:    netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), 0),
		SlabBytes: 64 << 20, RecvBuffer: 1 << 20,
	}, zerolog.Nop())
	o := testOptions(1)
	o.LargestPicture, o.Gather = 4*width*height, 2*time.Second
	o.Camera = &cameras.Reader{Format: cameras.GVSP, Largest: o.LargestPicture}
	b := newHarnessOn(t, open(t, network, 1), o)
	b.SetPictures(time.Nanosecond)
	c := b.owner(0, 1)
	camera := must.Get(cameratest.NewCamera(netip.MustParseAddrPort("127.0.57.1:3956"), b.LocalAddr(), 0.01))(t)
	t.Cleanup(camera.Close)
	picture := cameratest.GVSP{Width: width, Height: height, Format: cameratest.BayerRG12p, Pixels: make([]byte, width*height*3/2), Size: 1400}
	for i := range picture.Pixels {
		picture.Pixels[i] = byte(i * 7 >> 3)
	}
	complete := 0
	for block := range pictures {
		picture.Block = uint64(block)
		camera.Send(&picture)
		b.eventually("the picture has ended", func() bool { s := b.Requests(); return int(s.Complete+s.Incomplete) == block+1 })
		if int(b.Requests().Complete) == complete {
			continue
		}
		complete++
		slot := c.Await(1)[0]
		got := make([]byte, len(picture.Pixels))
		for _, p := range c.Fragments(slot) {
			copy(got[p.Place:], b.Slab().Bytes()[p.Offset:][:p.Length])
		}
		if !bytes.Equal(got, picture.Pixels) {
			t.Error("the descriptors do not lead to the picture that was sent")
		}
		c.Answer([]uint32{slot}, nil)
	}
	shape := wire.Picture{Format: wire.FormatBayerRG12p, Width: width, Height: height}
	b.eventually("the last picture is copied for the page", func() bool { return b.PictureNumber() == pictures })
	if p, _ := b.Picture(); p.Shape != shape || !bytes.Equal(p.Pixels, picture.Pixels) {
		t.Errorf("copied %d bytes of %v, want the picture that was sent", len(p.Pixels), p.Shape)
	}
	if complete < pictures || camera.Lost() < pictures {
		t.Errorf("%d of %d pictures are complete; the camera lost %d packets", complete, pictures, camera.Lost())
	}
}

// TestCameraWithoutReceiver sends no answer: it is only counted.
func TestCameraWithoutReceiver(t *testing.T) {
	b := newHarnessOn(t, open(t, loopback(), 1), gvspOptions(netip.AddrPort{}))
	c, camera := b.owner(0, 1), b.dialRaw()
	for _, p := range gvsp(5).Packets() {
		camera.Write(p)
	}
	c.Answer(c.Await(1), []byte{1, 2, 3, 4})
	b.eventually("the answer is counted", func() bool { return b.Stats().Results[wire.StatusOK] == 1 })
	if n := b.Stats().Unsent; n != 0 {
		t.Errorf("%d datagrams unsent, want none", n)
	}
}
