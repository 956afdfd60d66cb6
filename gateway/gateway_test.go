package gateway

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"image"
	"image/color"
	"image/jpeg"
	"io"
	"mime/multipart"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/rs/zerolog"

	"github.com/penstock/penstock/client"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/gateway/functions"
	"github.com/penstock/penstock/gateway/openinference"
	"github.com/penstock/penstock/internal/freeport"
	"github.com/penstock/penstock/internal/testing/clienttest"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/wire"
)

// The fake node's functions. Each takes small pictures, so that tests can read them.
var (
	finder = models.Card{
		Name: "finder", Version: 3, Framework: "onnx", Labels: []string{"cat", "dog"}, Decoder: models.Decoder{Name: "boxes"},
		Input: models.Input{Name: "image", Height: 4, Width: 4, Channels: 3, WireType: models.U8, WireLayout: models.HWC},
	}
	raw = models.Card{
		Name: "raw", Version: 1, Framework: "onnx", Decoder: models.Decoder{Name: "raw"},
		Input:   models.Input{Name: "x", Height: 1, Width: 2, Channels: 1, WireType: models.F32, WireLayout: models.HWC},
		Outputs: []models.Tensor{{Name: "sum", Type: models.F32, Shape: []int64{1}}, {Name: "pair", Type: models.F32, Shape: []int64{2}}},
	}
)

// counter is raw with a state.
var counter = func() models.Card {
	c := raw
	c.Name, c.State = "counter", []models.State{{Input: "h", Output: models.Tensor{Name: "hn", Type: models.F32}}}
	return c
}()

// fakeNode answers for the manager of a node with the functions finder and raw. It returns the
// runtime folder.
func fakeNode(t *testing.T, answer clienttest.Handler) (dir string) {
	t.Helper()
	return fakeNodeWith(t, answer, &atomic.Pointer[control.Picture]{})
}

// fakeNodeWith is fakeNode with a picture of finder.
func fakeNodeWith(t *testing.T, answer clienttest.Handler, picture *atomic.Pointer[control.Picture]) (dir string) {
	t.Helper()
	peer, err := clienttest.NewManager(answer, clienttest.ManagerOptions{})
	must.OK(t, err)
	t.Cleanup(peer.Close)

	dir = t.TempDir()
	must.OK(t, os.Chmod(dir, 0o700))
	admin, err := control.ListenAdmin(dir)
	must.OK(t, err)
	cards := map[string]*models.Card{"finder": &finder, "raw": &raw, "counter": &counter}
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+control.SamplePath, func(w http.ResponseWriter, _ *http.Request) {
		status := control.Status{Started: time.Unix(1, 0)}
		for _, c := range cards {
			status.Functions = append(status.Functions, control.FunctionStatus{
				Name: c.Name, Address: peer.Addr().Addr().String(), Port: int(peer.Addr().Port()), Model: c.Name, Version: c.Version,
				Instances: []control.InstanceStatus{{Processes: []control.ProcessStatus{{Generation: 1, Role: control.Serve, State: control.Active}}}},
			})
		}
		sample := control.Sample{At: time.Now(), Status: status}
		for _, f := range status.Functions {
			s := control.FunctionSample{Name: f.Name}
			if p := picture.Load(); p != nil && f.Name == finder.Name {
				s.Picture = p.Number
			}
			sample.Functions = append(sample.Functions, s)
		}
		json.NewEncoder(w).Encode(sample)
	})
	mux.HandleFunc("GET "+control.CardPath, func(w http.ResponseWriter, r *http.Request) {
		json.NewEncoder(w).Encode(cards[r.URL.Query().Get("function")])
	})
	for _, path := range []string{control.LoadPath, control.RemovePath} {
		mux.HandleFunc("POST "+path, func(w http.ResponseWriter, r *http.Request) {
			order, _ := io.ReadAll(r.Body)
			if !strings.Contains(string(order), "finder") {
				http.Error(w, fmt.Sprintf("fake got %s %s", path, order), http.StatusBadRequest)
			}
		})
	}
	mux.HandleFunc("GET "+control.PicturePath, func(w http.ResponseWriter, r *http.Request) { json.NewEncoder(w).Encode(picture.Load()) })
	web := &http.Server{Handler: mux}
	go web.Serve(admin)
	t.Cleanup(func() { web.Close() })

	return dir
}

// newTestServer returns a server that has asked the fake node once.
func newTestServer(t *testing.T, answer clienttest.Handler) *server {
	t.Helper()
	s := newServer(Options{Dir: fakeNode(t, answer), Version: "test", Log: zerolog.Nop()})
	must.OK(t, s.functions.Refresh(t.Context()))
	return s
}

// newGateway serves the fake node's functions.
func newGateway(t *testing.T, answer clienttest.Handler) *httptest.Server {
	t.Helper()
	s := newTestServer(t, answer)
	web := httptest.NewServer(ownAccess(t).guard(s.routes()))
	t.Cleanup(web.Close)
	return web
}

// oneBox answers with a box in the middle of the model's input.
func oneBox(clienttest.Request) (wire.Result, []byte, bool) {
	r := wire.Result{Status: wire.StatusOK, Kind: wire.KindBoxes, Batch: 1, Credit: 64, ModelVersion: 3, Infer: 5 * time.Millisecond}
	return r, wire.AppendBoxes(nil, []wire.Box{{Class: 1, Score: 0.75, X0: 0.25, Y0: 0.25, X1: 0.75, Y1: 0.75}}), true
}

// status answers with a status other than ok.
func status(s wire.Status) clienttest.Handler {
	return func(clienttest.Request) (wire.Result, []byte, bool) {
		return wire.Result{Status: s, Credit: 64}, nil, true
	}
}

// post sends a body and returns the response with its body.
func post(t *testing.T, url, media string, body []byte, headers ...string) (*http.Response, string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, bytes.NewReader(body))
	must.OK(t, err)
	request.Header.Set("Content-Type", media)
	for i := 0; i+1 < len(headers); i += 2 {
		request.Header.Set(headers[i], headers[i+1])
	}
	return do(t, request)
}

func do(t *testing.T, request *http.Request) (*http.Response, string) {
	t.Helper()
	response, err := http.DefaultClient.Do(request)
	must.OK(t, err)
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	must.OK(t, err)
	return response, string(text)
}

func photo(t *testing.T, width, height int) []byte {
	t.Helper()
	img := image.NewRGBA(image.Rect(0, 0, width, height))
	for i := range img.Pix {
		img.Pix[i] = 200
	}
	img.Set(0, 0, color.Black)
	var b bytes.Buffer
	must.OK(t, jpeg.Encode(&b, img, nil))
	return b.Bytes()
}

func TestPhoto(t *testing.T) {
	web := newGateway(t, oneBox)
	for _, media := range []string{"image/jpeg", "application/x-www-form-urlencoded"} {
		response, text := post(t, web.URL+"/v2/models/finder/infer", media, photo(t, 400, 200))
		// The input is letterboxed: its middle half is all of the height and half of the width.
		if response.StatusCode != 200 || !strings.Contains(text, `"shape":[1,1,4],"datatype":"FP32","data":[100,0,300,200]`) {
			t.Errorf("%s: %s %s", media, response.Status, text)
		}
		if !strings.Contains(text, `"data":["dog"]`) || !strings.Contains(text, `"infer_us":5000`) || !strings.Contains(text, `"model_version":"3"`) {
			t.Errorf("%s: %s", media, text)
		}
	}
}

// A query narrows what an answer has.
func TestNarrowed(t *testing.T) {
	var lowest atomic.Uint32
	web := newGateway(t, func(q clienttest.Request) (wire.Result, []byte, bool) {
		lowest.Store(uint32(q.Extension.LowestScore))
		return oneBox(q)
	})
	tensor := fmt.Sprintf(`{"inputs": [{"name": "image", "shape": [4, 4, 3], "datatype": "UINT8", "data": [%s0]}]}`, strings.Repeat("0, ", 47))
	bodies := map[string][]byte{"image/jpeg": photo(t, 400, 200), "application/json": []byte(tensor)}
	for query, want := range map[string]string{
		"score=0.5":             `"data":["dog"]`,
		"classes=dog":           `"data":["dog"]`,
		"classes=0,1&score=0.5": `"data":["dog"]`,
		"classes=cat":           `"shape":[1,0,4]`,
		"classes=dig":           `classes has \"dig\", want labels or numbers below 2, did you mean \"dog\"?`,
		"classes=2":             `classes has \"2\", want labels or numbers below 2`,
		"score=NaN":             `score is \"NaN\", want a number from 0 to 1`,
		"score=50":              `score is \"50\", want a number from 0 to 1`,
	} {
		for media, body := range bodies {
			lowest.Store(0)
			if _, text := post(t, web.URL+"/v2/models/finder/infer?"+query, media, body); !strings.Contains(text, want) {
				t.Errorf("%s of %s: %s, want %s", query, media, text, want)
			}
			if asked := strings.Contains(query, "score=0.5"); asked && lowest.Load() != 0x7fff {
				t.Errorf("%s of %s: the request wants %#x", query, media, lowest.Load())
			}
		}
	}
	for query, want := range map[string]string{"classes=a": "answers of kind tensors have no classes", "score=0.5": "answers of kind tensors have no scores"} {
		if response, text := post(t, web.URL+"/v2/models/raw/infer?"+query, "image/jpeg", photo(t, 4, 4)); response.StatusCode < 400 || !strings.Contains(text, want) {
			t.Errorf("raw, %s: %s %s", query, response.Status, text)
		}
	}
}

func TestDeepStack(t *testing.T) {
	web := newGateway(t, oneBox)
	form := func(field string, confidence string) (string, []byte) {
		var b bytes.Buffer
		w := multipart.NewWriter(&b)
		w.WriteField("api_key", "a text is no file")
		if field != "" {
			part, _ := w.CreateFormFile(field, "a.jpg")
			part.Write(photo(t, 400, 200))
		}
		w.WriteField("min_confidence", confidence)
		w.Close()
		return w.FormDataContentType(), b.Bytes()
	}
	for _, c := range []struct{ field, confidence, want string }{
		{"image", "0.5", `"predictions":[{"label":"dog","confidence":0.75,"x_min":100,"y_min":0,"x_max":300,"y_max":200}],"success":true`},
		{"image", "0.8", `"predictions":[],"success":true`},
		{"image", "much", `min_confidence is \"much\"`},
		{"content", "0.5", `"label":"dog"`},
		{"", "0.5", "form has no file"},
	} {
		media, body := form(c.field, c.confidence)
		if _, text := post(t, web.URL+"/v1/vision/detection", media, body); !strings.Contains(text, c.want) {
			t.Errorf("%+v: %s", c, text)
		}
	}
	media, body := form("image", "0.5")
	response, text := post(t, web.URL+"/v1/vision/detection?function=raw", media, body)
	if response.StatusCode != 400 || !strings.Contains(text, `function raw finds no boxes`) || !strings.Contains(text, `"success":false`) {
		t.Errorf("a function without boxes: %s %s", response.Status, text)
	}
	if response, text := post(t, web.URL+"/v1/vision/detection", "image/jpeg", photo(t, 4, 4)); response.StatusCode != 400 || !strings.Contains(text, "read form") {
		t.Errorf("no form: %s %s", response.Status, text)
	}
}

// Each sequence of a user has its own stream, and each request without a sequence too.
func TestSequences(t *testing.T) {
	seen := make(chan uint32, 1)
	dir := fakeNode(t, func(q clienttest.Request) (wire.Result, []byte, bool) {
		seen <- q.Extension.Stream
		return wire.Result{Status: wire.StatusOK, Kind: wire.KindRaw, Batch: 1, Credit: 64}, make([]byte, 12), true
	})
	s := newServer(Options{Dir: dir, Version: "test", Log: zerolog.Nop()})
	must.OK(t, s.functions.Refresh(t.Context()))
	web := ownAccess(t).guard(s.routes())
	infer := func(user, parameters string, pictures int) (int, string) {
		body := fmt.Sprintf(`{"parameters":{%s},"inputs":[{"name":"x","shape":[%d,1,2,1],"datatype":"FP32","data":[%s]}]}`,
			parameters, pictures, strings.TrimSuffix(strings.Repeat("1,2,", pictures), ","))
		r := httptest.NewRequest("POST", "http://127.0.0.1/v2/models/counter/infer", strings.NewReader(body))
		r.RemoteAddr = user
		w := httptest.NewRecorder()
		web.ServeHTTP(w, r)
		return w.Code, w.Body.String()
	}
	stream := func(user, parameters string) uint32 {
		t.Helper()
		if code, text := infer(user, parameters, 1); code != 200 {
			t.Fatal(code, text)
		}
		return <-seen
	}

	const ann, bob = "192.0.2.1:5000", "192.0.2.2:5000"
	first := stream(ann, `"sequence_id":7`)
	if again := stream("192.0.2.1:5001", `"sequence_id":7,"sequence_start":false`); again != first {
		t.Errorf("the next request of a sequence is of stream %d, the first of %d", again, first)
	}
	streams := map[uint32]string{0: "no stream", first: "the first"}
	for _, c := range []struct{ user, parameters string }{
		{bob, `"sequence_id":7`},
		{ann, `"sequence_id":"7"`},
		{ann, `"sequence_id":8`},
		{ann, `"sequence_id":18446744073709551615`},
		{ann, `"sequence_id":18446744073709551614`},
		{ann, `"sequence_id":7,"sequence_start":true`},
		{ann, `"sequence_id":0`},
		{ann, ``},
		{ann, ``},
	} {
		id := stream(c.user, c.parameters)
		if other := streams[id]; other != "" {
			t.Errorf("%s %s has the stream of %s", c.user, c.parameters, other)
		}
		streams[id] = c.user + " " + c.parameters
	}
	if code, text := infer(ann, `"sequence_id":7`, 2); code != 400 || !strings.Contains(text, "has 2 images at once, want one per message") {
		t.Errorf("two inputs: %d %s", code, text)
	}
	for _, id := range []string{`{}`, `-1`, `"` + strings.Repeat("x", 256) + `"`} {
		if code, text := infer(ann, `"sequence_id":`+id, 1); code != 400 || !strings.Contains(text, "want a text or a number") {
			t.Errorf("sequence %.10s: %d %s", id, code, text)
		}
	}
}

func TestTensors(t *testing.T) {
	web := newGateway(t, func(q clienttest.Request) (wire.Result, []byte, bool) {
		a := float32frombytes(q.Picture)
		b := float32frombytes(q.Picture[4:])
		return wire.Result{Status: wire.StatusOK, Kind: wire.KindRaw, Batch: 2, Credit: 64}, wire.AppendRaw(nil, []float32{a + b, a, b}), true
	})
	url := web.URL + "/v2/models/raw/infer"
	input := `{"id":"7","inputs":[{"name":"x","shape":[2,1,2,1],"datatype":"FP32"`
	t.Run("json", func(t *testing.T) {
		_, text := post(t, url, "application/json", []byte(input+`,"data":[[1,2],[3,4.5]]}]}`))
		if !strings.Contains(text, `"id":"7"`) || !strings.Contains(text, `"name":"sum","shape":[2,1],"datatype":"FP32","data":[3,7.5]`) ||
			!strings.Contains(text, `"name":"pair","shape":[2,2],"datatype":"FP32","data":[1,2,3,4.5]`) {
			t.Error(text)
		}
	})
	t.Run("binary", func(t *testing.T) {
		head := input + `,"parameters":{"binary_data_size":16}}],"outputs":[{"name":"sum","parameters":{"binary_data":true}}]}`
		body := []byte(head)
		for _, v := range []float32{1, 2, 3, 4.5} {
			body = append(body, wire.AppendRaw(nil, []float32{v})...)
		}
		response, text := post(t, url, "application/octet-stream", body, openinference.HeaderLength, fmt.Sprint(len(head)))
		var length int
		fmt.Sscan(response.Header.Get(openinference.HeaderLength), &length)
		if length == 0 || !strings.Contains(text, `"binary_data_size":8`) || text[length:] != string(wire.AppendRaw(nil, []float32{3, 7.5})) {
			t.Errorf("%d: %q", length, text)
		}
	})
	t.Run("unknown output", func(t *testing.T) {
		response, text := post(t, url, "application/json", []byte(input+`,"data":[1,2,3,4]}],"outputs":[{"name":"mean"}]}`))
		if response.StatusCode != 400 || !strings.Contains(text, `no output \"mean\", want one of sum, pair`) {
			t.Error(response.Status, text)
		}
	})
}

func float32frombytes(b []byte) float32 {
	v, _ := wire.DecodeRaw(nil, binary.LittleEndian.AppendUint32(nil, binary.LittleEndian.Uint32(b)))
	return v[0]
}

func TestStatuses(t *testing.T) {
	for s, want := range map[wire.Status]int{
		wire.StatusLate: 504, wire.StatusBusy: 503, wire.StatusIncomplete: 502, wire.StatusRefused: 400, wire.StatusFailed: 500,
	} {
		response, text := post(t, newGateway(t, status(s)).URL+"/v2/models/finder/infer", "image/jpeg", photo(t, 4, 4))
		if response.StatusCode != want || !strings.HasPrefix(text, `{"error":`) {
			t.Errorf("%v: %s %s, want %d", s, response.Status, text, want)
		}
		if retry := response.Header.Get("Retry-After"); (retry != "") != (want == 503) {
			t.Errorf("%v: Retry-After %q", s, retry)
		}
	}
}

func TestUnreachable(t *testing.T) {
	if got := statusOf(fmt.Errorf("request 1: %w", client.ErrUnreachable)); got != 503 {
		t.Errorf("no process listens at the function's port: %d, want 503", got)
	}
}

func TestBadInput(t *testing.T) {
	web := newGateway(t, oneBox)
	infer := web.URL + "/v2/models/finder/infer"
	huge := photo(t, 8, 8)
	// The frame header of a JPEG has height and width as two bytes each.
	at := bytes.Index(huge, []byte{0xff, 0xc0}) + 5
	copy(huge[at:], []byte{0xea, 0x60, 0xea, 0x60})
	for name, c := range map[string]struct {
		url, media string
		body       []byte
		status     int
		want       string
	}{
		"unknown function":    {web.URL + "/v2/models/nope/infer", "image/jpeg", photo(t, 4, 4), 404, `the node has [\"counter\" \"finder\" \"raw\"]`},
		"wrong version":       {web.URL + "/v2/models/finder/versions/9/infer", "image/jpeg", photo(t, 4, 4), 404, "serves version 3"},
		"no picture":          {infer, "image/jpeg", []byte("GIF87"), 415, "unknown; send JPEG, PNG"},
		"damaged picture":     {infer, "image/jpeg", photo(t, 64, 64)[:300], 400, "picture"},
		"60,000 × 60,000":     {infer, "image/jpeg", huge, 413, "60000 × 60000 pixels, want at most 64 Mpixel"},
		"photo for a tensor":  {web.URL + "/v2/models/raw/infer", "image/jpeg", photo(t, 4, 4), 415, "send a tensor"},
		"bad timeout":         {infer + "?timeout=soon", "image/jpeg", photo(t, 4, 4), 400, "want a duration like 25ms"},
		"empty":               {infer, "application/json", nil, 400, "read JSON"},
		"no input":            {infer, "application/json", []byte(`{"inputs":[]}`), 400, `input \"image\" is missing, want \"image\" (UINT8 [4 4 3])`},
		"wrong name":          {infer, "application/json", []byte(`{"inputs":[{"name":"a"}]}`), 400, `no input \"a\", want \"image\" (UINT8 [4 4 3])`},
		"wrong type":          {infer, "application/json", []byte(`{"inputs":[{"name":"image","datatype":"FP32"}]}`), 400, `want \"UINT8\"`},
		"overflowing shape":   {infer, "application/json", []byte(`{"inputs":[{"name":"image","datatype":"UINT8","shape":[9223372036854775807,4,4,3]}]}`), 400, "from 1 to 256"},
		"one number short":    {infer, "application/json", []byte(`{"inputs":[{"name":"image","datatype":"UINT8","shape":[4,4,3],"data":[` + strings.Repeat("1,", 46) + `1]}]}`), 400, "has 47 numbers, the shape wants 48"},
		"number out of range": {infer, "application/json", []byte(`{"inputs":[{"name":"image","datatype":"UINT8","shape":[4,4,3],"data":[256` + strings.Repeat(",1", 47) + `]}]}`), 400, "integer from 0 to 255"},
		"no array":            {infer, "application/json", []byte(`{"inputs":[{"name":"image","datatype":"UINT8","shape":[4,4,3],"data":{"a":1}}]}`), 400, "no array"},
	} {
		t.Run(name, func(t *testing.T) {
			response, text := post(t, c.url, c.media, c.body)
			if response.StatusCode != c.status || !strings.Contains(text, c.want) {
				t.Errorf("%s %s, want %d and %q", response.Status, text, c.status, c.want)
			}
		})
	}
	t.Run("one byte short", func(t *testing.T) {
		head := `{"inputs":[{"name":"image","datatype":"UINT8","shape":[4,4,3],"parameters":{"binary_data_size":47}}]}`
		response, text := post(t, infer, "application/octet-stream", append([]byte(head), make([]byte, 47)...), openinference.HeaderLength, fmt.Sprint(len(head)))
		if response.StatusCode != 400 || !strings.Contains(text, "the shape wants 48") {
			t.Error(response.Status, text)
		}
	})
	t.Run("header length", func(t *testing.T) {
		response, text := post(t, infer, "application/octet-stream", []byte("{}"), openinference.HeaderLength, "3")
		if response.StatusCode != 400 || !strings.Contains(text, "body's 2") {
			t.Error(response.Status, text)
		}
	})
}

// A body of 4 GiB is refused by its header alone.
func TestLargeBody(t *testing.T) {
	web := newGateway(t, oneBox)
	conn, err := net.Dial("tcp", strings.TrimPrefix(web.URL, "http://"))
	must.OK(t, err)
	defer conn.Close()
	fmt.Fprintf(conn, "POST /v2/models/finder/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n", 4<<30)
	answer := make([]byte, 12)
	if _, err := io.ReadFull(conn, answer); err != nil || string(answer) != "HTTP/1.1 413" {
		t.Errorf("%q, %v", answer, err)
	}
}

// While other requests hold the memory, more are answered busy.
func TestMemoryIsBounded(t *testing.T) {
	s := newTestServer(t, oneBox)
	others := &buffer{memory: s.memory}
	must.OK(t, others.grow(t.Context(), maxBodies))
	s.memory.reading[others] = true
	web := httptest.NewServer(ownAccess(t).guard(s.routes()))
	defer web.Close()
	response, text := post(t, web.URL+"/v2/models/finder/infer", "image/jpeg", photo(t, 4, 4))
	if response.StatusCode != 503 || response.Header.Get("Retry-After") == "" {
		t.Error(response.Status, text)
	}
	others.release()
	delete(s.memory.reading, others)
	if response, text = post(t, web.URL+"/v2/models/finder/infer", "image/jpeg", photo(t, 4, 4)); response.StatusCode != 200 {
		t.Error(response.Status, text)
	}
}

func TestMetadata(t *testing.T) {
	web := newGateway(t, oneBox)
	for path, want := range map[string]string{
		"/v2":                                `"extensions":["binary_tensor_data","classification","model_configuration","model_repository","statistics","system_shared_memory"]`,
		"/v2/models":                         `{"name":"finder","version":"3","state":"READY"}`,
		"/v2/models/finder":                  `"inputs":[{"name":"image","datatype":"UINT8","shape":[-1,4,4,3]}],"outputs":[{"name":"boxes"`,
		"/v2/models/raw":                     `{"name":"pair","datatype":"FP32","shape":[-1,2]}`,
		"/v2/models/finder/versions/3":       `"versions":["3"]`,
		"/v2/models/finder/config":           `"max_batch_size":256,"input":[{"name":"image","data_type":"TYPE_UINT8","format":"FORMAT_NHWC","dims":[4,4,3]}],"output":[{"name":"boxes","data_type":"TYPE_FP32","dims":[-1,4]}`,
		"/v2/models/counter/config":          `"max_batch_size":1,`,
		"/v2/models/finder/stats":            `{"model_stats":[{"name":"finder","version":"3","inference_count":0,`,
		"/v2/models/stats":                   `{"name":"raw","version":"1","inference_count":0,`,
		"/v2/health/live":                    `{"live":true}`,
		"/v2/health/ready":                   `{"live":true,"ready":true}`,
		"/v2/models/finder/ready":            `{"name":"finder","ready":true}`,
		"/v2/models/finder/versions/3/ready": `{"name":"finder","ready":true}`,
	} {
		request, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, web.URL+path, nil)
		if response, text := do(t, request); response.StatusCode != 200 || !strings.Contains(text, want) {
			t.Errorf("%s: %s %s", path, response.Status, text)
		}
	}
}

func TestRepositoryIndex(t *testing.T) {
	web := newGateway(t, oneBox)
	for body, want := range map[string]string{
		"":                 `[{"name":"counter","version":"1","state":"READY"},{"name":"finder",`,
		`{"ready": true}`:  `[{"name":"counter","version":"1","state":"READY"},{"name":"finder",`,
		`{"ready": "yes"}`: `{"error":"read JSON of request: json: cannot unmarshal string`,
	} {
		if _, text := post(t, web.URL+"/v2/repository/index", "application/json", []byte(body)); !strings.HasPrefix(text, want) {
			t.Errorf("%s: %s", body, text)
		}
	}
}

// A reader gets each update, numbered, and one that does not read costs the others nothing.
func TestEvents(t *testing.T) {
	s := newTestServer(t, oneBox)
	web := httptest.NewServer(ownAccess(t).guard(s.routes()))
	defer web.Close()
	stalled := s.events.subscribe()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	request, _ := http.NewRequestWithContext(ctx, http.MethodGet, web.URL+"/api/events", nil)
	response, err := http.DefaultClient.Do(request)
	must.OK(t, err)
	defer response.Body.Close()
	var samples sync.WaitGroup
	samples.Go(func() {
		for ctx.Err() == nil {
			s.functions.Refresh(ctx)
		}
	})
	lines := bufio.NewScanner(response.Body)
	last := uint64(0)
	for n := 0; n < 2*readerQueue+2 && lines.Scan(); {
		text, event := strings.CutPrefix(lines.Text(), "data: ")
		if !event {
			continue
		}
		var u update
		if err := json.Unmarshal([]byte(text), &u); err != nil || u.Number <= last {
			t.Fatalf("%s, %v after number %d", text, err, last)
		}
		last = u.Number
		n++
	}
	cancel()
	samples.Wait()
	if len(stalled) != readerQueue {
		t.Errorf("a reader that does not read has %d events", len(stalled))
	}
}

func TestEventReadersAreLimited(t *testing.T) {
	s := newTestServer(t, oneBox)
	for range maxReaders {
		s.events.subscribe()
	}
	web := httptest.NewServer(ownAccess(t).guard(s.routes()))
	defer web.Close()
	request, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, web.URL+"/api/events", nil)
	if response, text := do(t, request); response.StatusCode != 503 {
		t.Error(response.Status, text)
	}
}

func TestPage(t *testing.T) {
	s := newTestServer(t, oneBox)
	must.OK(t, s.functions.Refresh(t.Context()))
	web := httptest.NewServer(ownAccess(t).guard(s.routes()))
	defer web.Close()
	post(t, web.URL+"/v2/models/finder/infer", "image/jpeg", photo(t, 8, 8))
	for path, want := range map[string]string{
		"/":                                    `<script type="module" src="app.js">`,
		"/app.js":                              "EventSource",
		"/vendor/uplot/uPlot.esm.js":           "uPlot",
		"/api/state":                           `"name":"finder","pictures":true`,
		"/api/history?function=finder&level=0": `"points":[`,
		"/api/history?function=nope&level=2":   `"points":[]`,
		"/api/outliers?function=finder&from=0&to=1": "[]",
		"/api/clip/astronaut.jpg":                   "JFIF",
		"/api/wall/finder":                          "\xff\xd8",
	} {
		request, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, web.URL+path, nil)
		if response, text := do(t, request); response.StatusCode != 200 || !strings.Contains(text, want) {
			t.Errorf("%s: %s %.200s", path, response.Status, text)
		}
	}
	for path, status := range map[string]int{
		"/api/history?function=finder&level=3": 400, "/api/history?level=x": 400, "/api/outliers?from=a": 400, "/api/wall/nope": 404,
		"/nope": 404, "/api/demo/kill": 404, "/api/clip/../main.go": 404, "/api/camera?function=nope": 404, "/api/camera?function=raw": 415,
	} {
		request, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, web.URL+path, nil)
		if response, text := do(t, request); response.StatusCode != status {
			t.Errorf("%s: %s %.200s, want %d", path, response.Status, text, status)
		}
	}
}

func TestCamera(t *testing.T) {
	s := newTestServer(t, oneBox)
	web := httptest.NewServer(ownAccess(t).guard(s.routes()))
	defer web.Close()
	url := strings.Replace(web.URL, "http", "ws", 1) + "/api/camera?function=finder"
	for name, c := range map[string]struct {
		frame []byte
		box   []int
	}{
		"small": {photo(t, 4, 4), []int{1, 1, 3, 3}},
		"large": {photo(t, 400, 200), []int{100, 0, 300, 200}},
	} {
		t.Run(name, func(t *testing.T) {
			want := []seen{{Item: functions.Item{Label: "dog", Class: 1, Score: 0.75, Box: c.box}}}
			conn, _, err := websocket.Dial(t.Context(), url, nil)
			must.OK(t, err)
			defer conn.CloseNow()
			for range 3 {
				must.OK(t, conn.Write(t.Context(), websocket.MessageBinary, c.frame))
				_, text, err := conn.Read(t.Context())
				must.OK(t, err)
				var a frameAnswer
				if err := json.Unmarshal(text, &a); err != nil || a.Status != "ok" || !reflect.DeepEqual(a.Found, want) {
					t.Errorf("%s, %v, want %+v", text, err, want)
				}
			}
		})
	}
	for name, frame := range map[string][]byte{"garbage": []byte("hello"), "empty": {}, "raw": make([]byte, finder.Input.WireBytes())} {
		t.Run(name, func(t *testing.T) {
			conn, _, err := websocket.Dial(t.Context(), url, nil)
			must.OK(t, err)
			defer conn.CloseNow()
			must.OK(t, conn.Write(t.Context(), websocket.MessageBinary, frame))
			if _, text, err := conn.Read(t.Context()); websocket.CloseStatus(err) != websocket.StatusUnsupportedData {
				t.Errorf("%s, %v, want the connection closed", text, err)
			}
		})
	}
	t.Run("foreign origin", func(t *testing.T) {
		_, response, err := websocket.Dial(t.Context(), url, &websocket.DialOptions{HTTPHeader: http.Header{"Origin": {"http://evil.example"}}})
		if err == nil || response == nil || response.StatusCode != 403 {
			t.Errorf("%v, %v", response, err)
		}
	})
	t.Run("late", func(t *testing.T) {
		late := newTestServer(t, status(wire.StatusLate))
		f, err := late.functions.Function("finder")
		must.OK(t, err)
		if a, err := late.inferFrame(t.Context(), f, photo(t, 4, 4)); err != nil || a.Status != "late" {
			t.Errorf("%+v, %v", a, err)
		}
	})
}

// The gateway waits for an address that is taken, and answers once it is free.
func TestRun(t *testing.T) {
	address, err := freeport.Find()
	must.OK(t, err)
	taken, err := net.Listen("tcp", address.String())
	must.OK(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ready, ended := make(chan netip.AddrPort, 1), make(chan error, 1)
	go func() {
		ended <- Run(ctx, Options{Address: address, Dir: t.TempDir(), Log: zerolog.Nop()}, func(a netip.AddrPort) { ready <- a })
	}()
	select {
	case a := <-ready:
		t.Fatalf("listens on %v, which is taken", a)
	case <-time.After(50 * time.Millisecond):
	}
	taken.Close()
	if a := <-ready; a != address {
		t.Errorf("listens on %v, want %v", a, address)
	}
	request, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address.String()+"/v2/health/ready", nil)
	if response, text := do(t, request); response.StatusCode != 400 || !strings.Contains(text, "manager does not answer") {
		t.Error(response.Status, text)
	}
	// An open page does not hold the end up.
	events, err := http.Get("http://" + address.String() + "/api/events")
	must.OK(t, err)
	defer events.Body.Close()
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
