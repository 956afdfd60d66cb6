package gateway

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"image"
	"mime/multipart"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/penstock/penstock/gateway/functions"
	"github.com/penstock/penstock/gateway/openinference"
	"github.com/penstock/penstock/gateway/openinference/inference"
	"github.com/penstock/penstock/internal/testing/clienttest"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/wire"
)

// TestFiles sends files of pictures in a tensor and in a form. Boxes are in their pixels.
func TestFiles(t *testing.T) {
	client, s := dial(t, oneBox, ownAccess(t))
	web := ownAccess(t).guard(s.routes())
	file := photo(t, 400, 200)
	element := append(binary.LittleEndian.AppendUint32(nil, uint32(len(file))), file...)
	header := `{"inputs":[{"name":"image","shape":[2,1],"datatype":"BYTES",`
	binaryHeader := header + fmt.Sprintf(`"parameters":{"binary_data_size":%d}}]}`, 2*len(element))
	emptyHeader := header + `"parameters":{"binary_data_size":4000}}]}`
	text := base64.StdEncoding.EncodeToString(file)
	var form bytes.Buffer
	w := multipart.NewWriter(&form)
	part, err := w.CreateFormFile("image", "a.jpg")
	must.OK(t, err)
	part.Write(file)
	must.OK(t, w.Close())

	const one, two = `"data":[100,0,300,200]`, `"data":[100,0,300,200,100,0,300,200]`
	for _, c := range []struct{ name, media, length, body, want string }{
		{"form", w.FormDataContentType(), "", form.String(), one},
		{"base64", "", "", header + `"data":[["` + text + `"],["` + text + `"]]}]}`, two},
		{"binary", "", strconv.Itoa(len(binaryHeader)), binaryHeader + string(element) + string(element), two},
		{"no base64", "", "", header + `"data":["ÿØ"]}]}`, "data is no list of texts in base64"},
		{"number", "", "", header + `"data":[1]}]}`, "data is no list of texts in base64"},
		{"too few", "", "", header + `"data":["` + text + `"]}]}`, "shape is [2 1], and there are 1 files, want [n] with 1 to 256 files"},
		{"cut off", "", strconv.Itoa(len(binaryHeader)), binaryHeader + string(element) + "\xff" + string(element[1:]), "element 2 is longer than the"},
		{"empty files", "", strconv.Itoa(len(emptyHeader)), emptyHeader + strings.Repeat("\x00", 4000), "there are 257 files, want [n] with 1 to 256 files"},
		{"no picture", "", "", header + `"data":["aaaa","` + text + `"]}]}`, "picture 1 of 2: "},
	} {
		r := httptest.NewRequest("POST", "http://localhost/v2/models/finder/infer", strings.NewReader(c.body))
		r.Header.Set("Content-Type", c.media)
		if c.length != "" {
			r.Header.Set(openinference.HeaderLength, c.length)
		}
		w := httptest.NewRecorder()
		if web.ServeHTTP(w, r); !strings.Contains(w.Body.String(), c.want) {
			t.Errorf("%s: %d %s, want %s", c.name, w.Code, w.Body, c.want)
		}
	}

	m := pictureMessage(1)
	m.Inputs[0].Datatype, m.Inputs[0].Shape, m.RawInputContents = "BYTES", []int64{2}, nil
	m.Inputs[0].Contents = &inference.InferTensorContents{BytesContents: [][]byte{file, file}}
	for range 2 {
		answer, err := client.ModelInfer(t.Context(), m)
		must.OK(t, err)
		values := make([]float32, 8)
		_, err = binary.Decode(answer.RawOutputContents[0], binary.LittleEndian, values)
		if want := []float32{100, 0, 300, 200, 100, 0, 300, 200}; err != nil || !slices.Equal(values, want) {
			t.Errorf("%v, %v, want %v", values, err, want)
		}
		m.Inputs[0].Contents, m.RawInputContents = nil, [][]byte{slices.Concat(element, element)}
	}
}

// The map of a photo has no cells of the padding around it.
func TestMapOfPhoto(t *testing.T) {
	s := newTestServer(t, func(clienttest.Request) (wire.Result, []byte, bool) {
		r := wire.Result{Status: wire.StatusOK, Kind: wire.KindMap, Batch: 1, Credit: 64, ModelVersion: 3}
		return r, append(wire.AppendMapHead(nil, wire.MapU8, 4, 4), 9, 9, 9, 9, 255, 0, 255, 0, 0, 255, 0, 255, 9, 9, 9, 9), true
	})
	f := must.Get(s.functions.Function("finder"))(t)
	a, _, err := f.InferPhoto(t.Context(), image.NewGray(image.Rect(0, 0, 400, 200)), functions.Wanted{})
	must.OK(t, err)
	if want := []float32{1, 0, 1, 0, 0, 1, 0, 1}; a.Map.Rows != 2 || a.Map.Columns != 4 || !slices.Equal(a.Map.Values, want) {
		t.Errorf("%+v, want 2 rows: %v", a.Map, want)
	}
}
