package fleet

import (
	"bytes"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/datapath/aggregate"
	"github.com/penstock/penstock/datapath/cameras"
	"github.com/penstock/penstock/internal/testing/cameratest"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/wait"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/wire"
)

func TestCheckCamera(t *testing.T) {
	input := func(channels int) models.Input {
		return models.Input{Height: 8, Width: 16, Channels: channels, WireType: models.U8, WireLayout: models.HWC}
	}
	planes, floats, wide, odd := input(3), input(3), input(3), input(3)
	odd.Width = 15
	planes.WireLayout, floats.WireType, wide.Width = models.CHW, models.F32, 1<<15
	for _, row := range []struct {
		name   string
		format configs.Format
		input  models.Input
		want   string

		largest configs.PictureSize
	}{
		{"no camera", "", floats, "", ""},
		{"Mono8", configs.FormatGVSP, input(1), "", ""},
		{"RGB8", configs.FormatGVSP, input(3), "", ""},
		{"RGB over RTP", configs.FormatRFC4175, input(3), "", ""},
		{"BGR over RTP", configs.FormatRFC4175BGR, input(3), "", ""},
		{"UYVY over RTP", configs.FormatRFC4175UYVY, input(3), "", ""},
		{"odd lines of UYVY", configs.FormatRFC4175UYVY, odd, "15 x 8 pixels, want even numbers for uyvy", ""},
		{"grey model of RTP", configs.FormatRFC4175, input(1), "", ""},
		{"four channels", configs.FormatGVSP, input(4), "is gvsp, and the model takes 4 channels of u8; want a model that takes pictures", ""},
		{"planes", configs.FormatGVSP, planes, "want a card with `wire: {layout: hwc}`, or max_picture", ""},
		{"planes of RTP", configs.FormatRFC4175, planes, "", ""},
		{"floats", configs.FormatRFC4175, floats, "takes 3 channels of f32; want a model that takes pictures", ""},
		{"too wide", configs.FormatRFC4175, wide, "with pictures of 32768 x 8 pixels; want at most 32767 on each side", ""},
		{"any picture", configs.FormatGVSP, wide, "", "640x480"},
		{"any picture over RTP", configs.FormatRFC4175UYVY, odd, "", "640x480"},
		{"odd lines over RTP", configs.FormatRFC4175UYVY, input(3), "is rfc4175-uyvy, whose picture has 641 x 480 pixels, want even numbers for uyvy", "641x480"},
		{"half a group of RTP", configs.FormatRFC4175RGB10, input(3), "is rfc4175-rgb10, whose lines of 642 pixels end within a group; want a multiple of 4", "642x480"},
		{"too wide over RTP", configs.FormatRFC4175, input(3), "with pictures of 32768 x 8 pixels; want at most 32767", "32768x8"},
	} {
		t.Run(row.name, func(t *testing.T) {
			err := checkCamera(&configs.Function{Format: row.format, MaxPicture: row.largest}, &row.input)
			if row.want == "" && err != nil || row.want != "" && (err == nil || !strings.Contains(err.Error(), row.want)) {
				t.Errorf("error %v, want %q", err, row.want)
			}
		})
	}
}

// TestReaderOf checks what cameras send.
func TestReaderOf(t *testing.T) {
	rgb := wire.Picture{Format: wire.FormatRGB8, Width: 16, Height: 8, Stride: 48}
	yuv := wire.Picture{Format: wire.FormatUYVY, Width: 16, Height: 8, Stride: 32, Colours: wire.BT709 | wire.FullRange}
	for name, row := range map[string]struct {
		function configs.Function
		shape    wire.Picture
		largest  int
	}{
		"GVSP":                     {configs.Function{Format: configs.FormatGVSP}, rgb, 0},
		"GVSP of any shape":        {configs.Function{Format: configs.FormatGVSP, MaxPicture: "32x32", Colours: "bt2020"}, wire.Picture{Colours: wire.BT2020}, 4096},
		"the card's picture":       {configs.Function{Format: configs.FormatRFC4175}, rgb, 0},
		"its size":                 {configs.Function{Format: configs.FormatRFC4175UYVY, Colours: "bt709-full"}, yuv, 256},
		"10 bits":                  {configs.Function{Format: configs.FormatRFC4175UYVY10}, wire.Picture{Format: wire.FormatUYVY10, Width: 16, Height: 8, Stride: 40}, 320},
		"another size":             {configs.Function{Format: configs.FormatRFC4175BGR, MaxPicture: "32x4"}, wire.Picture{Format: wire.FormatBGR8, Width: 32, Height: 4, Stride: 96}, 512},
		"two rows of 4:2:0 in one": {configs.Function{Format: configs.FormatRFC4175YYYYUV, MaxPicture: "32x4"}, wire.Picture{Format: wire.FormatYYYYUV, Width: 32, Height: 4, Stride: 96}, 512},
	} {
		in := models.Input{Height: 8, Width: 16, Channels: 3, WireType: models.U8, WireLayout: models.HWC}
		if r := readerOf(&row.function, &in); r.Shape != row.shape || r.Largest != row.largest {
			t.Errorf("%s: %+v, want %+v of up to %d bytes", name, r, row.shape, row.largest)
		}
	}
}

// cameraNode has a function cam for a GigE Vision camera with pictures of 32 x 24. A model whose
// name ends in -wide takes pictures of 24 x 32.
func cameraNode(t *testing.T) *nodeBed {
	t.Helper()
	b := newNode(t, configs.DeviceCPU, nil, "governor")
	b.changeCards(func(name string, card *models.Card) {
		in := &card.Input
		in.Width, in.Height, in.Channels, in.WireType, in.WireLayout = 32, 24, 3, models.U8, models.HWC
		if strings.HasSuffix(name, "-wide") {
			in.Width, in.Height = 24, 32
		}
	})
	to := netip.MustParseAddrPort("127.0.0.1:9")
	must.OK(t, b.add(configs.Function{Name: "cam", Instances: 1, SharePercent: 20, Format: configs.FormatGVSP, AnswersTo: &to}))
	b.turns()
	return b
}

// TestRefusals checks when the reason of refused pictures is shown.
func TestRefusals(t *testing.T) {
	wide, high := cameras.Refusal{Cause: 1, A: 640}, cameras.Refusal{Cause: 1, A: 32}
	var r refusals
	for _, step := range []struct {
		name              string
		now               time.Duration
		refused, complete uint64
		latest            cameras.Refusal
		shown             cameras.Refusal
		changed           bool
	}{
		{name: "pictures arrive", now: time.Hour, complete: 1},
		{"one is refused", 2 * time.Hour, 1, 1, wide, wide, true},
		{"one more", 2*time.Hour + time.Second, 2, 1, wide, wide, false},
		{"for another reason", 2*time.Hour + 2*time.Second, 3, 1, high, high, true},
		{"nothing arrives", 3 * time.Hour, 3, 1, high, high, false},
		{"another camera's arrive", 3*time.Hour + time.Second, 4, 2, high, high, false},
		{"all arrive", 3*time.Hour + time.Second + refusalShown - 1, 4, 3, high, high, false},
		{"for long enough", 3*time.Hour + time.Second + refusalShown, 4, 4, high, cameras.Refusal{}, false},
		{"one is refused again", 4 * time.Hour, 5, 4, high, high, true},
	} {
		s := aggregate.Stats{Refused: step.refused, Complete: step.complete, Refusal: step.latest}
		if changed := r.note(&s, step.now); changed != step.changed || r.why != step.shown {
			t.Errorf("%s: changed %v, reason %+v; want %v, %+v", step.name, changed, r.why, step.changed, step.shown)
		}
	}
}

// TestRefusedPictures sends pictures of another size. The status and one line of the log say why,
// until the camera is corrected.
func TestRefusedPictures(t *testing.T) {
	b := cameraNode(t)
	f := b.functions.find("cam")
	var log bytes.Buffer
	f.log = zerolog.New(&log)
	conn, err := net.Dial("udp4", f.port.LocalAddr().String())
	must.OK(t, err)
	defer conn.Close()
	for block := range uint64(3) {
		p := cameratest.GVSP{Block: block, Width: 640, Height: 480, Format: cameratest.Mono8}
		must.Get(conn.Write(p.Leader()))(t)
	}

	wait.For(t, "the pictures are refused", func() bool {
		f.watch()
		return b.status("cam").Camera.Refused == 3
	})
	f.watch()
	const why = "the camera sends 640 x 480 Mono8, want 32 x 24 RGB8"
	if c := b.status("cam").Camera; c.RefusedWhy != why || c.Format != "gvsp" || c.AnswersTo != "127.0.0.1:9" || c.Incomplete != 0 {
		t.Errorf("status is %+v", c)
	}
	if n := strings.Count(log.String(), why); n != 1 {
		t.Errorf("the log says it %d times, want once: %s", n, &log)
	}

	f.camera.refusals.at -= refusalShown
	right := cameratest.GVSP{Block: 3, Width: 32, Height: 24, Format: cameratest.RGB8, Pixels: make([]byte, 32*24*3), Size: 1000}
	wait.For(t, "the reason disappears", func() bool {
		for _, packet := range right.Packets() {
			must.Get(conn.Write(packet))(t)
		}
		right.Block++
		return b.status("cam").Camera.RefusedWhy == ""
	})
	if n := b.status("cam").Camera.Refused; n != 3 {
		t.Errorf("%d pictures were refused, want 3", n)
	}
}

// TestReplaceCameraModel replaces the model by one for pictures of the same number of bytes in
// another shape.
func TestReplaceCameraModel(t *testing.T) {
	b := cameraNode(t)
	_, err := b.replace("cam", "other-wide")
	refused(t, err, "other-wide takes pictures of 24 x 32 pixels, and the camera sends 32 x 24")
	b.replaced("cam", "same")
}

// TestEditCamera edits the receiver of a running function's answers.
func TestEditCamera(t *testing.T) {
	camera := func(to string) configs.Function {
		address := netip.MustParseAddrPort(to)
		return configs.Function{Name: "cam", Instances: 1, Format: configs.FormatGVSP, AnswersTo: &address}
	}
	b := beganWith(t, configs.DeviceCPU, nil, camera("127.0.0.1:9"))
	if err := b.edited(camera("127.0.0.1:9")); err != nil {
		t.Errorf("an edit that changes nothing: %v", err)
	}
	refused(t, b.edited(camera("127.0.0.1:10")), "function cam: answers_to cannot change while it runs")
}
