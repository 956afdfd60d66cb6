package openinference

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"runtime"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/penstock/penstock/internal/testing/devicetest"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/models"
)

// two takes two numbers and one.
var two = models.Card{Inputs: []models.Tensor{{Name: "v", Type: models.F16, Shape: []int64{2}}, {Name: "s", Type: models.I64}}}

// decoded returns a request with its payloads.
func decoded(body []byte, headerLength string, card *models.Card) (*Request, error) {
	r, err := DecodeRequest(body, headerLength, card, nil)
	if err != nil {
		return nil, err
	}
	return r, r.Fill(make([]byte, r.Needed))
}

// TestInputs decodes the inputs of two images, by name.
func TestInputs(t *testing.T) {
	const (
		v    = `{"name":"v","shape":[2,2],"datatype":"FP16","data":[[1,2],[-2,65504]]}`
		s    = `{"name":"s","shape":[2],"datatype":"INT64","data":[-1,9223372036854775807]}`
		rawV = `{"name":"v","shape":[2,2],"datatype":"FP16","parameters":{"binary_data_size":8}}`
		rawS = `{"name":"s","shape":[2],"datatype":"INT64","parameters":{"binary_data_size":16}}`

		bytesV = "\x00\x3c\x00\x40\x00\xc0\xff\x7b"
		bytesS = "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f"
	)
	want := bytesV[:4] + bytesS[:8] + bytesV[4:] + bytesS[8:]
	for _, c := range []struct{ name, inputs, raw, err string }{
		{"numbers", v + "," + s, "", ""},
		{"other order", s + "," + v, "", ""},
		{"bytes", rawV + "," + rawS, bytesV + bytesS, ""},
		{"bytes in other order", rawS + "," + rawV, bytesS + bytesV, ""},
		{"bytes and numbers", rawS + "," + v, bytesS, ""},
		{"unknown", v + `,{"name":"S"}`, "", `function has no input "S", want "v" (FP16 [2]), "s" (INT64 [])`},
		{"missing", s, "", `input "v" is missing, want "v" (FP16 [2]), "s" (INT64 [])`},
		{"twice", v + "," + v, "", `input "v" is there twice, want it once`},
		{"output twice", v + "," + s + `],"outputs":[{"name":"y"},{"name":"y"}`, "", ""},
		{"null", v + "," + s + ",null", "", "read JSON of request: element of inputs or outputs is null, want an object"},
		{"null output", v + "," + s + `],"outputs":[null`, "", "read JSON of request: element of inputs or outputs is null, want an object"},
		{"images", v + `,{"name":"s","shape":[],"datatype":"INT64","data":[1]}`, "", `input "s" is of 1 images, "v" of 2; want as many of each`},
		{"type", strings.Replace(v, "FP16", "FP32", 1), "", `input "v": datatype is "FP32", want "FP16"`},
		{"shape", strings.Replace(v, "2,2", "4", 1), "", `input "v": shape is [4], want [2], or the same with a number of images from 1 to 256 before it`},
		{"too few bytes", rawV + "," + rawS, bytesV + bytesS[:15], `input "s": binary_data_size is 16, and 15 bytes are left for it after the JSON; the shape wants 16`},
		{"too many bytes", rawV + "," + rawS, bytesV + bytesS + "!", `1 bytes follow the inputs, whose binary_data_size does not count them`},
		{"wrong size", strings.Replace(rawV, "8", "4", 1) + "," + rawS, bytesV + bytesS, `input "v": binary_data_size is 4, and 24 bytes are left for it after the JSON; the shape wants 8`},
		{"both", strings.Replace(rawV, `}}`, `},"data":[1,2,3,4]}`, 1), bytesV, `input "v": has both data and binary_data_size, want one`},
		{"neither", `{"name":"v","shape":[2],"datatype":"FP16"}`, "", `input "v": data is no array of numbers; want one, or a binary_data_size`},
		{"too few numbers", strings.Replace(v, "[1,2]", "[1]", 1), "", `input "v": data has 3 numbers, the shape wants 4`},
		{"empty array", strings.Replace(v, "[1,2]", "[1],[]", 1) + "," + s, "", `input "v": number 4 of data: is missing: an array is empty`},
		{"range of FP16", strings.Replace(v, "65504", "65520", 1) + "," + s, "", `input "v": number 4 of data: "65520", want a number within the range of FP16`},
		{"range of INT64", v + "," + strings.Replace(s, "807", "808", 1), "", `input "s": number 2 of data: "9223372036854775808", want an integer from -9223372036854775808 to 9223372036854775807`},
	} {
		t.Run(c.name, func(t *testing.T) {
			head := `{"inputs":[` + c.inputs + `]}`
			r, err := decoded([]byte(head+c.raw), fmt.Sprint(len(head)), &two)
			if c.err != "" {
				if err == nil || err.Error() != c.err {
					t.Errorf("%v, want %s", err, c.err)
				}
				return
			}
			must.OK(t, err)
			if got := string(r.Payloads[0]) + string(r.Payloads[1]); len(r.Payloads) != 2 || got != want || r.Needed != len(want) {
				t.Errorf("%d payloads, %d bytes needed: % x, want % x", len(r.Payloads), r.Needed, got, want)
			}
		})
	}
}

// TestNumbers decodes an element of each type.
func TestNumbers(t *testing.T) {
	for _, c := range []struct {
		as         models.DType
		text, want string // bytes, or the end of the error
	}{
		{models.Bool, "true", "\x01"},
		{models.Bool, "false", "\x00"},
		{models.Bool, "1", "want true or false"},
		{models.I8, "-128", "\x80"},
		{models.I8, "128", "want an integer from -128 to 127"},
		{models.I16, "-2", "\xfe\xff"},
		{models.I32, "-2", "\xfe\xff\xff\xff"},
		{models.I64, "9007199254740993", "\x01\x00\x00\x00\x00\x00\x20\x00"},
		{models.I64, "1.5", "want an integer from -9223372036854775808 to 9223372036854775807"},
		{models.U8, "255", "\xff"},
		{models.U8, "-1", "want an integer from 0 to 255"},
		{models.U16, "65534", "\xfe\xff"},
		{models.U32, "4294967294", "\xfe\xff\xff\xff"},
		{models.U32, "4294967296", "want an integer from 0 to 4294967295"},
		{models.U64, "18446744073709551615", "\xff\xff\xff\xff\xff\xff\xff\xff"},
		{models.U64, "18446744073709551616", "want an integer from 0 to 18446744073709551615"},
		{models.F16, "-2", "\x00\xc0"},
		{models.BF16, "-2", "\x00\xc0"},
		{models.BF16, "3.4e38", "want a number within the range of BF16"},
		{models.F32, "16777217", "\x00\x00\x80\x4b"},
		{models.F32, "1e39", "want a number within the range of FP32"},
		{models.F64, "-2", "\x00\x00\x00\x00\x00\x00\x00\xc0"},
		{models.F64, "1e309", "want a number within the range of FP64"},
		{models.F64, `"1"`, "want a number within the range of FP64"},
	} {
		card := models.Card{Inputs: []models.Tensor{{Name: "x", Type: c.as}}}
		r, err := decoded(fmt.Appendf(nil, `{"inputs":[{"name":"x","shape":[1],"datatype":%q,"data":[%s]}]}`, datatypes[c.as], c.text), "", &card)
		if err == nil && string(r.Payloads[0]) != c.want || err != nil && !strings.HasSuffix(err.Error(), c.want) {
			t.Errorf("%s %s: %+v, %v, want %q", c.as, c.text, r, err, c.want)
		}
	}
}

// A picture that the client prepared for the model is the one that the gather prepares in the same way.
func TestModelTensor(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := devicetest.Inputs().Draw(t, "input")
		in.Name, in.WireType, in.TensorType = "x", models.U8, models.F32
		card := &models.Card{Input: in}
		picture := rapid.SliceOfN(rapid.Byte(), in.WireBytes(), in.WireBytes()).Draw(t, "picture")
		tensor := devicetest.Reference(in, picture)
		shape, err := json.Marshal(in.Shape(2))
		must.OK(t, err)
		head := fmt.Sprintf(`{"inputs":[{"name":"x","datatype":"FP32","shape":%s,"parameters":{"binary_data_size":%d}}]}`, shape, 2*len(tensor))
		r, err := decoded(append([]byte(head), append(tensor, tensor...)...), fmt.Sprint(len(head)), card)
		if err != nil || len(r.Payloads) != 2 || !bytes.Equal(r.Payloads[0], picture) || !bytes.Equal(r.Payloads[1], picture) {
			t.Fatalf("%v: %x, want %x twice", err, r.Payloads, picture)
		}
	})
}

func TestWrongModelTensor(t *testing.T) {
	card := &models.Card{Input: models.Input{
		Name: "x", Height: 1, Width: 2, Channels: 1, WireType: models.U8, WireLayout: models.HWC, TensorType: models.F32, TensorLayout: models.CHW,
		Mean: []float32{0}, Std: []float32{255},
	}}
	for data, want := range map[string]string{
		"[0,1]":     "",
		"[0.3,0.7]": "",
		"[1]":       `input "x": data has 1 numbers, the shape wants 2`,
		"[0,255]":   `input "x": element 1 of an image is 65025 in a picture of UINT8, want 0 to 255; prepare pictures as the card says, or send them as they are`,
		"[-1,0]":    `input "x": element 0 of an image is -255 in a picture of UINT8`,
		"[0,1e300]": `input "x": number 2 of data: "1e300", want a number within the range of FP32`,
	} {
		_, err := decoded([]byte(`{"inputs":[{"name":"x","datatype":"FP32","shape":[1,1,1,2],"data":`+data+`}]}`), "", card)
		if (err == nil) != (want == "") || err != nil && !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: %v, want %s", data, err, want)
		}
	}
	head := `{"inputs":[{"name":"x","datatype":"FP32","shape":[1,1,2],"parameters":{"binary_data_size":8}}]}`
	nan := binary.LittleEndian.AppendUint32(make([]byte, 4), math.Float32bits(float32(math.NaN())))
	if _, err := decoded(append([]byte(head), nan...), fmt.Sprint(len(head)), card); err == nil || !strings.Contains(err.Error(), "element 1 of an image is NaN") {
		t.Error(err)
	}
}

// Elements that take more memory than their text are refused before they do.
func TestSmallElements(t *testing.T) {
	for _, c := range []struct{ list, element, want string }{
		{`{"inputs":[%s]}`, "{}", "more than 64 inputs"},
		{`{"outputs":[%s]}`, "{}", "more than 64 inputs or outputs"},
		{`{"inputs":[%s]}`, "0", "cannot unmarshal number"},
		{`{"inputs":[%s]}`, "null", "element of inputs or outputs is null"},
		{`{"inputs":[{"shape":[%s]}]}`, "0", "shape has 2000003 bytes, want at most 256"},
	} {
		body := fmt.Appendf(nil, c.list, strings.Repeat(c.element+",", 1_000_000)+c.element)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := DecodeRequest(body, "", &two, nil)
		runtime.ReadMemStats(&after)
		if took := after.TotalAlloc - before.TotalAlloc; err == nil || !strings.Contains(err.Error(), c.want) || took > uint64(len(body)) {
			t.Errorf("%s of %s: %v, want %s; took %d bytes for %d", c.list, c.element, err, c.want, took, len(body))
		}
	}
}
