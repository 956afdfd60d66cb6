package sampling

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"image"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/wire"
)

// bytesOf is a picture in one piece. It fails if more is read than there is.
type bytesOf []byte

func (b bytesOf) Bytes(_, place, count int) []byte { return b[place:][:count:count] }

func randomPicture(f wire.PictureFormat, width, height int, seed uint64) (wire.Picture, []byte) {
	p := wire.Picture{Format: f, Width: width, Height: height}
	n, err := p.Bytes()
	if err != nil {
		panic(err)
	}
	random := rand.New(rand.NewPCG(seed, uint64(f)))
	data := make([]byte, n)
	for i := range data {
		data[i] = byte(random.Uint32())
	}
	if l, _ := f.Layout(); l.Bits > 8 && l.Packing == wire.Whole {
		for i := 1; i < len(data); i += 2 {
			data[i] &= byte(1<<(l.Bits-8) - 1)
		}
	}
	return p, data
}

func tensorOf(in models.Input, p wire.Picture, r Region, from Source) ([]float32, error) {
	s, err := New(in)
	if err != nil {
		return nil, err
	}
	tensor := make([]byte, in.TensorBytes())
	if err := s.Sample(tensor, p, r, from); err != nil {
		return nil, err
	}
	values := make([]float32, len(tensor)/4)
	_, err = binary.Decode(tensor, binary.NativeEndian, values)
	return values, err
}

func input(width, height, channels int) models.Input {
	return models.Input{Width: width, Height: height, Channels: channels, WireType: models.U8, WireLayout: models.HWC, TensorType: models.F32, TensorLayout: models.HWC}
}

// TestOpenCV compares with OpenCV's cvtColor and resize.
func TestOpenCV(t *testing.T) {
	python := os.Getenv("PENSTOCK_REFERENCE_PYTHON")
	if python == "" {
		t.Skip("not on this machine: PENSTOCK_REFERENCE_PYTHON names no python3 with libml/decode/testdata/requirements.txt (.ci/run installs it)")
	}
	type query struct {
		Picture  string `json:"picture"`
		Format   string `json:"format"`
		Width    int    `json:"width"`
		Height   int    `json:"height"`
		ToWidth  int    `json:"to_width"`
		ToHeight int    `json:"to_height"`
		Area     bool   `json:"area"`
		Result   string `json:"result"`
	}
	dir := t.TempDir()
	var queries bytes.Buffer
	var all []query
	got := map[string][]float32{}
	for f := range 256 {
		format := wire.PictureFormat(f)
		l, ok := format.Layout()
		if !ok || l.Packing != wire.Whole || format == wire.FormatRGBA8 {
			continue
		}
		for _, c := range []struct {
			width, height, toWidth, toHeight int
			area                             bool
		}{{96, 64, 33, 21, false}, {64, 48, 200, 131, false}, {320, 200, 50, 31, true}, {40, 40, 40, 40, false}, {90, 60, 30, 20, false}, {90, 60, 30, 20, true}} {
			p, data := randomPicture(format, c.width, c.height, 1)
			q := query{Format: l.Name, Width: c.width, Height: c.height, ToWidth: c.toWidth, ToHeight: c.toHeight, Area: c.area}
			q.Picture = filepath.Join(dir, fmt.Sprint(len(all), ".picture"))
			q.Result = filepath.Join(dir, fmt.Sprint(len(all), ".result"))
			must.OK(t, os.WriteFile(q.Picture, data, 0o600))
			must.OK(t, json.NewEncoder(&queries).Encode(q))
			all = append(all, q)
			region := Region{image.Rect(0, 0, c.width, c.height), image.Rect(0, 0, c.toWidth, c.toHeight)}
			in := input(c.toWidth, c.toHeight, 3)
			in.Antialias = c.area
			got[q.Result] = must.Get(tensorOf(in, p, region, bytesOf(data)))(t)
		}
	}
	cmd := exec.CommandContext(t.Context(), python, "testdata/opencv.py")
	cmd.Stdin = &queries
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, q := range all {
		file := must.Get(os.ReadFile(q.Result))(t)
		want := make([]float32, len(file)/4)
		must.Get(binary.Decode(file, binary.LittleEndian, want))(t)
		if len(want) != len(got[q.Result]) {
			t.Fatalf("%+v: OpenCV has %d values", q, len(want))
		}
		// A pixel in 3,000 of YUV becomes the next level. OpenCV then rounds between its two steps.
		worst, far := 0.0, 0
		for i, v := range got[q.Result] {
			d := math.Abs(float64(v - want[i]))
			worst = max(worst, d)
			if d > 1 {
				far++
			}
		}
		if worst > 1.6 || far > len(want)/2000 {
			t.Errorf("%s of %d x %d to %d x %d, area %v: up to %.2f levels away, %d of %d more than one", q.Format, q.Width, q.Height, q.ToWidth, q.ToHeight, q.Area, worst, far, len(want))
		}
	}
}
