package sampling

import (
	"image"
	"math"
	"testing"

	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/wire"
	"pgregory.net/rapid"
)

// sample returns a sample of a row, bit by bit.
func sample(l wire.PictureLayout, row []byte, i int) float64 {
	bit := func(n int) int { return int(row[n/8]) >> (n % 8) & 1 }
	bits := make([]int, l.Bits) // places of the bits, from the lowest on
	for b := range bits {
		switch {
		case l.Packing == wire.Tight:
			bits[b] = i*l.Bits + b
		case l.Packing == wire.HighFirst && b < l.Bits-8:
			bits[b] = i/2*24 + 8 + i%2*4 + b
		case l.Packing == wire.HighFirst:
			bits[b] = i/2*24 + i%2*16 + b - (l.Bits - 8)
		default:
			bits[b] = i*((l.Bits+7)/8*8) + b
		}
	}
	v := 0
	for b, n := range bits {
		v |= bit(n) << b
	}
	return float64(v)
}

// high returns the high 8 bits of sample i of 10 bits, the highest first.
func high(row []byte, i int) (v byte) {
	for bit := 10 * i; bit < 10*i+8; bit++ {
		v = v<<1 | row[bit/8]>>(7-bit%8)&1
	}
	return v
}

// naive returns the levels of red, green and blue of a pixel, by the formats' definitions.
func naive(p wire.Picture, data []byte, x, y int, in models.Input) [3]float64 {
	l, _ := p.Format.Layout()
	stride, height := p.Stride, p.Height
	row := data[min(y*stride, len(data)):] // of YYYYUV it is another one
	most := float64(int(1)<<l.Bits - 1)
	low := 0.0
	if l.Bits > 8 && in.Range[1] > 0 {
		low, most = float64(in.Range[0]), float64(in.Range[1])
	}
	level := func(v float64) float64 { return min(max((v-low)*255/(most-low), 0), 255) }
	yuv := func(y, u, v byte) [3]float64 {
		// Y is 219 steps (255 of full range) of light, U and V are 112 (127.5) times how blue and red exceed it, over their largest
		// possible excess (ITU-R BT.709, 3.2 and 3.4).
		red, blue := 0.299, 0.114
		switch p.Colours &^ wire.FullRange {
		case wire.BT709:
			red, blue = 0.2126, 0.0722
		case wire.BT2020:
			red, blue = 0.2627, 0.0593
		}
		light, u1, v1 := max(float64(y)-16, 0)/219, (float64(u)-128)/112, (float64(v)-128)/112
		if p.Colours&wire.FullRange != 0 {
			light, u1, v1 = float64(y)/255, (float64(u)-128)/127.5, (float64(v)-128)/127.5
		}
		r, b := light+v1*(1-red), light+u1*(1-blue)
		g := (light - red*r - blue*b) / (1 - red - blue)
		clamp := func(v float64) float64 { return min(max(math.Round(255*v), 0), 255) }
		return [3]float64{clamp(r), clamp(g), clamp(b)}
	}
	switch p.Format {
	case wire.FormatRGB8:
		return [3]float64{float64(row[3*x]), float64(row[3*x+1]), float64(row[3*x+2])}
	case wire.FormatBGR8:
		return [3]float64{float64(row[3*x+2]), float64(row[3*x+1]), float64(row[3*x])}
	case wire.FormatRGBA8:
		alpha := float64(row[4*x+3]) / 255
		var out [3]float64
		for c := range out {
			out[c] = alpha*float64(row[4*x+c]) + (1-alpha)*float64(in.Background[c])
		}
		return out
	case wire.FormatNV12:
		uv := data[(height+y/2)*stride+x/2*2:]
		return yuv(row[x], uv[0], uv[1])
	case wire.FormatI420:
		u := data[height*stride+y/2*(stride/2)+x/2:]
		v := data[height*stride+height/2*(stride/2)+y/2*(stride/2)+x/2:]
		return yuv(row[x], u[0], v[0])
	case wire.FormatUYVY:
		pair := row[x/2*4:]
		return yuv(pair[1+x%2*2], pair[0], pair[2])
	case wire.FormatYUYV:
		pair := row[x/2*4:]
		return yuv(pair[x%2*2], pair[1], pair[3])
	case wire.FormatRGB10:
		return [3]float64{float64(high(row, 3*x)), float64(high(row, 3*x+1)), float64(high(row, 3*x+2))}
	case wire.FormatUYVY10:
		return yuv(high(row, x/2*4+1+x%2*2), high(row, x/2*4), high(row, x/2*4+2))
	case wire.FormatYYYYUV:
		four := data[y/2*stride+x/2*6:]
		return yuv(four[y%2*2+x%2], four[4], four[5])
	}
	at := func(x, y int) float64 { return sample(l, data[y*stride:], x) }
	if !l.Bayer {
		v := level(at(x, y))
		return [3]float64{v, v, v}
	}
	x, y = min(max(x, 1), p.Width-2), min(max(y, 1), height-2)
	// A colour is the mean of its samples among the nine nearest: of a pixel that has it only itself.
	var sums, counts [3]float64
	colourOf := func(x, y int) int {
		return [4][4]int{{0, 1, 1, 2}, {1, 0, 2, 1}, {1, 2, 0, 1}, {2, 1, 1, 0}}[l.Order][y%2*2+x%2]
	}
	for dy := -1; dy <= 1; dy++ {
		for dx := -1; dx <= 1; dx++ {
			c := colourOf(x+dx, y+dy)
			own := colourOf(x, y)
			if c == own && (dx != 0 || dy != 0) {
				continue
			}
			sums[c] += at(x+dx, y+dy)
			counts[c]++
		}
	}
	var out [3]float64
	for c := range out {
		out[c] = level(math.Floor(sums[c]/counts[c] + 0.5))
	}
	return out
}

// TestDefinition compares with the definitions of formats, interpolation and area, in floating point.
func TestDefinition(t *testing.T) {
	var formats []wire.PictureFormat
	for f := range 256 {
		if _, ok := wire.PictureFormat(f).Layout(); ok {
			formats = append(formats, wire.PictureFormat(f))
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		format := rapid.SampledFrom(formats).Draw(t, "format")
		width, height := 2*rapid.IntRange(2, 30).Draw(t, "width/2"), 2*rapid.IntRange(2, 20).Draw(t, "height/2")
		p, data := randomPicture(format, width, height, rapid.Uint64().Draw(t, "seed"))
		p.Stride, p.Colours = p.RowBytes(), rapid.SampledFrom([]wire.Colours{0, 1, 2, 4, 5, 6}).Draw(t, "colours")
		channels := rapid.SampledFrom([]int{1, 3}).Draw(t, "channels")
		in := input(rapid.IntRange(1, 40).Draw(t, "to width"), rapid.IntRange(1, 40).Draw(t, "to height"), channels)
		in.TensorLayout = rapid.SampledFrom([]models.Layout{models.HWC, models.CHW}).Draw(t, "layout")
		in.ReverseChannels = rapid.Bool().Draw(t, "reverse")
		padding := [3]float64{30, 60, 90}
		if channels == 1 {
			padding = [3]float64{30, 30, 30}
		}
		in.Pad = []int{30, 60, 90}[:channels]
		in.Antialias, in.Background = rapid.Bool().Draw(t, "area"), [3]uint8{10, 200, 30}
		if rapid.Bool().Draw(t, "range") {
			in.Range = [2]int{100, 900}
		}
		part := func(limit int, name string) (int, int) {
			a := rapid.IntRange(0, limit-1).Draw(t, name)
			return a, rapid.IntRange(a+1, limit).Draw(t, name+" end")
		}
		var r Region
		r.Part.Min.X, r.Part.Max.X = part(width, "part x")
		r.Part.Min.Y, r.Part.Max.Y = part(height, "part y")
		r.Inside.Min.X, r.Inside.Max.X = part(in.Width, "inside x")
		r.Inside.Min.Y, r.Inside.Max.Y = part(in.Height, "inside y")
		got, err := tensorOf(in, p, r, bytesOf(data))
		if err != nil {
			t.Fatal(err)
		}
		for y := range in.Height {
			for x := range in.Width {
				want := padding
				if (image.Point{x, y}).In(r.Inside) {
					want = resampled(p, data, x-r.Inside.Min.X, y-r.Inside.Min.Y, r, in)
				}
				for c := range channels {
					v, field := 0.0, c
					if in.ReverseChannels {
						field = channels - 1 - c
					}
					v = want[field]
					if channels == 1 {
						v = 0.299*want[0] + 0.587*want[1] + 0.114*want[2]
					}
					at := (y*in.Width+x)*channels + c
					if in.TensorLayout == models.CHW {
						at = (c*in.Height+y)*in.Width + x
					}
					// A conversion from YUV may round to the other level.
					if d := math.Abs(float64(got[at]) - v); !(d <= 1.2) {
						t.Fatalf("%s: channel %d of (%d, %d) is %v, want %v", format, c, x, y, got[at], v)
					}
				}
			}
		}
	})
}

// resampled returns a pixel of the result.
func resampled(p wire.Picture, data []byte, x, y int, r Region, in models.Input) (out [3]float64) {
	type tap struct {
		at     int
		weight float64
	}
	taps := func(i, begin, length, count, limit int) (all []tap) {
		step := float64(length) / float64(count)
		if in.Antialias && step > 1 {
			from, to := float64(begin)+float64(i)*step, float64(begin)+float64(i+1)*step
			for at := int(from); at < limit; at++ {
				if covered := min(to, float64(at+1)) - max(from, float64(at)); covered > 0 {
					all = append(all, tap{at, covered / step})
				}
			}
			return all
		}
		centre := min(max(float64(begin)+(float64(i)+0.5)*step-0.5, 0), float64(limit-1))
		low := int(centre)
		return []tap{{low, 1 - (centre - float64(low))}, {min(low+1, limit-1), centre - float64(low)}}
	}
	for _, v := range taps(y, r.Part.Min.Y, r.Part.Dy(), r.Inside.Dy(), p.Height) {
		for _, h := range taps(x, r.Part.Min.X, r.Part.Dx(), r.Inside.Dx(), p.Width) {
			pixel := naive(p, data, h.at, v.at, in)
			for c := range out {
				out[c] += v.weight * h.weight * pixel[c]
			}
		}
	}
	return out
}

func TestTypes(t *testing.T) {
	p, data := randomPicture(wire.FormatGrey8, 4, 4, 1)
	region := Region{image.Rect(0, 0, 4, 4), image.Rect(0, 0, 4, 4)}
	for _, name := range models.PictureTypes {
		in, typ := input(4, 4, 1), models.DType(name)
		in.TensorType = typ
		s := must.Get(New(in))(t)
		tensor := make([]byte, in.TensorBytes())
		must.OK(t, s.Sample(tensor, p, region, bytesOf(data)))
		for i, level := range data {
			want := float32(level)
			if typ == models.I8 {
				want = min(want, math.MaxInt8)
			}
			if got := typ.Float(tensor[i*typ.Bytes():]); got != want {
				t.Errorf("%s: level %d is %v", typ, level, got)
			}
		}
	}
}

func TestRefusals(t *testing.T) {
	s := must.Get(New(input(8, 8, 3)))(t)
	whole := image.Rect(0, 0, 8, 8)
	for name, c := range map[string]struct {
		p wire.Picture
		r Region
	}{
		"unknown format":    {wire.Picture{Format: 99, Width: 8, Height: 8}, Region{whole, whole}},
		"odd width of NV12": {wire.Picture{Format: wire.FormatNV12, Width: 7, Height: 8}, Region{image.Rect(0, 0, 7, 8), whole}},
		"short stride":      {wire.Picture{Format: wire.FormatRGB8, Width: 8, Height: 8, Stride: 23}, Region{whole, whole}},
		"other colours":     {wire.Picture{Format: wire.FormatNV12, Width: 8, Height: 8, Colours: 7}, Region{whole, whole}},
		"no pixels":         {wire.Picture{Format: wire.FormatRGB8, Height: 8}, Region{whole, whole}},
		"beyond picture":    {wire.Picture{Format: wire.FormatRGB8, Width: 7, Height: 8}, Region{whole, whole}},
		"beyond tensor":     {wire.Picture{Format: wire.FormatRGB8, Width: 8, Height: 8}, Region{whole, image.Rect(1, 0, 9, 8)}},
		"nothing":           {wire.Picture{Format: wire.FormatRGB8, Width: 8, Height: 8}, Region{image.Rect(1, 1, 1, 8), whole}},
	} {
		if err := s.Sample(make([]byte, 8*8*3*4), c.p, c.r, bytesOf(nil)); err == nil {
			t.Errorf("%s is not refused", name)
		}
	}
}
