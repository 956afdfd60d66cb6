package fleet

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/internal/testing/datapathtest"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/wire"
)

func TestPicture(t *testing.T) {
	b := newBed(t, configs.Default(), 100)
	b.fleet.functions = functions{b.function}
	ask := func(function string) (control.Picture, error) {
		get, err := b.fleet.Picture(function)
		if err != nil {
			return control.Picture{}, err
		}
		return get()
	}
	for function, want := range map[string]string{"test": "`pictures: 1/s`", "other": "other"} {
		_, err := ask(function)
		refused(t, err, want)
	}

	b.port.SetPictures(configs.PictureRate("10/s").Interval())
	c, s := b.owner(0, 1), b.dial()
	before := time.Now()
	s.Send(3)
	c.Answer(c.Await(1), nil)
	s.Next()
	b.eventually("the picture is copied", func() bool { return b.port.PictureNumber() == 1 })
	p, err := ask("test")
	must.OK(t, err)
	if p.Number != 1 || !bytes.Equal(p.Pixels, datapathtest.Picture(3)) || !p.From.IsValid() || p.Kind != wire.KindRaw || p.ModelVersion != 7 {
		t.Errorf("picture %d of %d bytes from %v", p.Number, len(p.Pixels), p.From)
	}
	if after := time.Now(); p.Answered.Before(before) || p.Answered.After(after) || p.Latency <= 0 || p.Latency > after.Sub(before) {
		t.Errorf("answered at %v after %v, want between %v and %v", p.Answered, p.Latency, before, after)
	}
}

// Tensors and pictures that are too large are not kept.
func TestPicturesRefused(t *testing.T) {
	b := beganWith(t, configs.DeviceCPU, nil, named("a", 20))
	inputs := map[string]models.Input{
		"tensor": {Height: 32, Width: 32, Channels: 3, WireType: models.F32},
		"large":  {Height: 2048, Width: 2048, Channels: 3, WireType: models.U8},
	}
	find := b.find
	b.find = func(name string) (*models.Card, error) {
		c, err := find(name)
		if in, ok := inputs[name]; ok {
			c.Input = in
		}
		return c, err
	}
	for name, words := range map[string][]string{
		"tensor": {"pictures is 1/s, and model tensor takes 3 channels of f32", "u8"},
		"large":  {"pictures is 1/s, and model large takes pictures of 12582912 bytes"},
	} {
		f := named(name, 20)
		f.Pictures = "1/s"
		refused(t, b.add(f), append(words, "add function "+name)...)
		f = named("a", 20)
		f.Model, f.Pictures = name, "1/s"
		refused(t, b.edited(f), append(words, "reconfigure function a")...)
	}
}

func TestMaxPicture(t *testing.T) {
	picture, tensor := testCard(), testCard()
	tensor.Input.WireType, tensor.Input.Channels = models.F32, 3
	for name, row := range map[string]struct {
		function configs.Function
		card     *models.Card
		want     string // part of the error; empty for none
	}{
		"none":    {configs.Function{Format: configs.FormatGVSP}, tensor, ""},
		"picture": {configs.Function{MaxPicture: "1920x1200"}, picture, ""},
		"tensor":  {configs.Function{MaxPicture: "1920x1200"}, tensor, "is 1920x1200, and model test takes 3 channels of f32"},
		"camera":  {configs.Function{MaxPicture: "1920x1200", Format: configs.FormatGVSP}, picture, ""},
		"large":   {configs.Function{MaxPicture: "4096x4096"}, picture, "or 67108864 bytes; want at most 67107840"},
		"wide":    {configs.Function{MaxPicture: "65536x1"}, picture, "is 65536x1; want at most 65535 pixels on each side"},
	} {
		err := checkMaxPicture(&row.function, row.card)
		if row.want == "" && err != nil || row.want != "" && (err == nil || !strings.Contains(err.Error(), row.want)) {
			t.Errorf("%s: error is %v, want %q", name, err, row.want)
		}
	}
}

// TestReplaceByTensors replaces a model whose pictures the page shows by one that takes as many bytes of another kind.
func TestReplaceByTensors(t *testing.T) {
	b := newNode(t, configs.DeviceCPU, nil, "governor")
	b.changeCards(func(name string, card *models.Card) {
		in := &card.Input
		in.Width, in.Height, in.Channels, in.WireType, in.WireLayout = 32, 24, 3, models.U8, models.HWC
		if strings.HasSuffix(name, "-float") {
			in.Width, in.WireType = 8, models.F32
		}
	})
	must.OK(t, b.add(configs.Function{Name: "a", Instances: 1, SharePercent: 20, Pictures: "1/s"}))
	b.turns()
	_, err := b.replace("a", "other-float")
	refused(t, err, "replace model of a: pictures is 1/s, and model other-float takes 3 channels of f32; want a model that takes pictures")
	b.replaced("a", "same")
}
