package gateway

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/penstock/penstock/client"
	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/gateway/functions"
	"github.com/penstock/penstock/gateway/openinference"
	"github.com/penstock/penstock/gateway/openinference/inference"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/models/picture"
	"github.com/penstock/penstock/wire"
)

func (s *server) routes() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /v2", call(s.describe))
	mux.Handle("GET /v2/{$}", call(s.describe))
	mux.HandleFunc("GET /v2/health/live", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, map[string]bool{"live": true}) })
	mux.Handle("GET /v2/health/ready", call(s.ready))
	mux.Handle("GET /v2/models", call(s.models))
	mux.Handle("GET /v2/models/{$}", call(s.models))
	mux.Handle("GET /v2/models/stats", call(s.statistics))
	mux.Handle("POST /v2/repository/index", handler(s.repositoryIndex))
	mux.Handle("POST /v2/repository/models/{name}/load", handler(s.load))
	mux.Handle("POST /v2/repository/models/{name}/unload", call(s.unload))
	for _, path := range []string{"/v2/systemsharedmemory", "/v2/systemsharedmemory/region/{name}"} {
		mux.Handle("GET "+path+"/status", call(s.regions.status))
		mux.Handle("POST "+path+"/unregister", call(s.regions.unregister))
	}
	mux.Handle("POST /v2/systemsharedmemory/region/{name}/register", handler(s.registerRegion))
	// Clients of system shared memory unregister what is on a GPU, too.
	mux.HandleFunc("POST /v2/cudasharedmemory/unregister", func(http.ResponseWriter, *http.Request) {})
	for _, path := range []string{"/v2/models/{name}", "/v2/models/{name}/versions/{version}"} {
		mux.Handle("GET "+path, about(s, openinference.Describe))
		mux.Handle("GET "+path+"/ready", call(s.modelReady))
		mux.Handle("GET "+path+"/config", about(s, openinference.Configure))
		mux.Handle("GET "+path+"/stats", call(s.statistics))
		mux.Handle("POST "+path+"/infer", handler(s.infer))
	}
	mux.HandleFunc("POST /"+inference.GRPCInferenceService_ServiceDesc.ServiceName+"/{method}", s.rpc.serve)
	mux.HandleFunc("POST /v1/vision/detection", s.detect)
	s.routePage(mux)
	return jsonErrors(mux)
}

// httpError is an error with the status to answer it with.
type httpError struct {
	status int
	err    error
}

func (e *httpError) Error() string { return e.err.Error() }
func (e *httpError) Unwrap() error { return e.err }

// badRequest says that a request is wrong, unless its error has another status.
func badRequest(err error) error {
	if statusOf(err) != http.StatusInternalServerError {
		return err
	}
	return &httpError{http.StatusBadRequest, err}
}

// statuses are the HTTP statuses of answers other than ok.
var statuses = map[client.Status]int{
	client.StatusLate:       http.StatusGatewayTimeout,
	client.StatusBusy:       http.StatusServiceUnavailable,
	client.StatusIncomplete: http.StatusBadGateway,
	client.StatusRefused:    http.StatusBadRequest,
	client.StatusFailed:     http.StatusInternalServerError,
}

// statusOf returns the HTTP status of an error.
func statusOf(err error) int {
	var own *httpError
	var answer client.StatusError
	var large *http.MaxBytesError
	var output *openinference.ErrOutput
	switch {
	case errors.As(err, &own):
		return own.status
	case errors.As(err, &answer):
		return statuses[client.Status(answer)]
	case errors.As(err, &large), errors.Is(err, picture.ErrTooLarge):
		return http.StatusRequestEntityTooLarge
	case errors.As(err, &output), errors.Is(err, picture.ErrDamaged):
		return http.StatusBadRequest
	case errors.Is(err, functions.ErrUnknown):
		return http.StatusNotFound
	case errors.Is(err, functions.ErrNoPicture), errors.Is(err, picture.ErrFormat):
		return http.StatusUnsupportedMediaType
	case errors.Is(err, client.ErrLate), errors.Is(err, client.ErrUnsent), errors.Is(err, client.ErrUnanswered):
		return http.StatusGatewayTimeout
	case errors.Is(err, client.ErrQueueFull), errors.Is(err, client.ErrClosed), errors.Is(err, client.ErrUnreachable):
		return http.StatusServiceUnavailable
	}
	return http.StatusInternalServerError
}

// handler is a handler that has not answered yet if it returns an error.
type handler func(http.ResponseWriter, *http.Request) error

func (h handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if err := h(w, r); err != nil {
		writeError(w, statusOf(err), err)
	}
}

// call is an operation of the protocol with a function or region, or with all if name is empty. Its answer is the JSON of HTTP,
// and the message of gRPC. A call may have none.
type call func(ctx context.Context, name, version string) (answer any, err error)

func (c call) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	answer, err := c(r.Context(), r.PathValue("name"), r.PathValue("version"))
	if err != nil {
		writeError(w, statusOf(err), err)
		return
	}
	if answer != nil {
		writeJSON(w, answer)
	}
}

// writeError answers with an error in the protocol's form.
func writeError(w http.ResponseWriter, status int, err error) {
	w.Header().Set("Content-Type", "application/json")
	if status == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", "1")
	}
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(map[string]string{"error": err.Error()})
}

func writeJSON(w http.ResponseWriter, v any) error {
	w.Header().Set("Content-Type", "application/json")
	json.NewEncoder(w).Encode(v) // the client may have gone
	return nil
}

func (s *server) describe(context.Context, string, string) (any, error) {
	extensions := []string{"binary_tensor_data", "classification", "model_configuration", "model_repository", "statistics", "system_shared_memory"}
	return map[string]any{"name": "penstock", "version": s.version, "extensions": extensions}, nil
}

// ready answers when every function of the key has a process that serves, and none is missing. KServe's client reads "ready", and the protocol's
// definition has "live".
func (s *server) ready(ctx context.Context, _, _ string) (any, error) {
	if err := s.functions.Complete(); err != nil {
		return nil, badRequest(err)
	}
	for _, f := range s.all(ctx) {
		if err := s.functions.Ready(f.Name); err != nil {
			return nil, badRequest(err)
		}
	}
	return map[string]bool{"live": true, "ready": true}, nil
}

// listedModel is an entry of the list of models. The names are those of Triton's repository index.
type listedModel struct {
	Name    string `json:"name"`
	Version string `json:"version"`
	State   string `json:"state"` // READY or UNAVAILABLE
	Reason  string `json:"reason,omitempty"`
}

// models lists the functions of the key.
func (s *server) models(ctx context.Context, _, _ string) (any, error) {
	return map[string]any{"models": s.index(ctx, false)}, nil
}

// repositoryIndex lists functions in Triton's form.
func (s *server) repositoryIndex(w http.ResponseWriter, r *http.Request) error {
	var only struct {
		Ready bool `json:"ready"`
	}
	if err := s.readJSON(w, r, &only); err != nil {
		return err
	}
	return writeJSON(w, s.index(r.Context(), only.Ready))
}

// maxJSON is the max length of a body that is no message: decoded into maps, it takes up to 20 times as much.
const maxJSON = 1 << 20

// readJSON reads a body, which may be empty.
func (s *server) readJSON(w http.ResponseWriter, r *http.Request, to any) error {
	r.Body = http.MaxBytesReader(w, r.Body, maxJSON)
	content, err := s.body(w, r)
	if err != nil {
		return err
	}
	defer content.release()
	if len(content.data) == 0 {
		return nil
	}
	if err := json.Unmarshal(content.data, to); err != nil {
		return badRequest(fmt.Errorf("read JSON of request: %w", err))
	}
	return nil
}

// index lists the functions of the key, or those of them that are ready.
func (s *server) index(ctx context.Context, ready bool) []listedModel {
	list := []listedModel{}
	for _, f := range s.all(ctx) {
		m := listedModel{Name: f.Name, Version: fmt.Sprint(f.Card.Version), State: "READY"}
		if err := s.functions.Ready(f.Name); err != nil {
			m.State, m.Reason = "UNAVAILABLE", err.Error()
		}
		if m.Reason == "" || !ready {
			list = append(list, m)
		}
	}
	return list
}

// all returns the functions of a request's key.
func (s *server) all(ctx context.Context) []*functions.Function {
	k := keyOf(ctx)
	return slices.DeleteFunc(s.functions.All(), func(f *functions.Function) bool { return k == nil || !k.Allows(f.Name) })
}

// named returns the function with a name, if it serves that version; "": any. The error says so if the request's key
// does not allow the operation with it.
func (s *server) named(ctx context.Context, operation configs.Operation, name, v string) (*functions.Function, error) {
	if err := permit(ctx, operation, name); err != nil {
		return nil, err
	}
	f, err := s.functions.Function(name)
	if err != nil {
		var own []string // others are a secret
		for _, f := range s.all(ctx) {
			own = append(own, f.Name)
		}
		const unknown = "Request for unknown model" // Triton's clients look for these words
		return nil, fmt.Errorf("%s: %w: %q; the node has %q", unknown, functions.ErrUnknown, name, own)
	}
	if v != "" && v != fmt.Sprint(f.Card.Version) {
		return nil, &httpError{http.StatusNotFound, fmt.Errorf("function %s serves version %d of its model, not %s", f.Name, f.Card.Version, v)}
	}
	return f, nil
}

// about answers with what of says about a function and its card.
func about[T any](s *server, of func(name string, card *models.Card) T) call {
	return func(ctx context.Context, name, version string) (any, error) {
		f, err := s.named(ctx, configs.OperationDescribe, name, version)
		if err != nil {
			return nil, err
		}
		return of(f.Name, f.Card), nil
	}
}

// statistics are those of a function, or of all of the key.
func (s *server) statistics(ctx context.Context, name, version string) (any, error) {
	if err := permit(ctx, configs.OperationLook, ""); err != nil {
		return nil, err
	}
	all := s.all(ctx)
	if name != "" {
		f, err := s.named(ctx, configs.OperationLook, name, version)
		if err != nil {
			return nil, err
		}
		all = []*functions.Function{f}
	}
	list := []openinference.Statistics{}
	for _, f := range all {
		c := s.functions.Counters(f.Name)
		list = append(list, openinference.Count(f.Name, f.Card, &c))
	}
	return map[string]any{"model_stats": list}, nil
}

func (s *server) modelReady(ctx context.Context, name, version string) (any, error) {
	f, err := s.named(ctx, configs.OperationDescribe, name, version)
	if err != nil {
		return nil, err
	}
	if err = s.functions.Ready(f.Name); err != nil {
		err = badRequest(err)
	}
	return map[string]any{"name": f.Name, "ready": true}, err
}

// infer answers a message of the protocol, or a photo.
func (s *server) infer(w http.ResponseWriter, r *http.Request) error {
	f, err := s.named(r.Context(), configs.OperationInfer, r.PathValue("name"), r.PathValue("version"))
	if err != nil {
		return err
	}
	if strings.HasPrefix(r.Header.Get("Content-Type"), "multipart/form-data") {
		image, minimum, err := s.form(w, r)
		if err != nil {
			return err
		}
		defer image.release()
		return s.inferPhoto(w, r, f, image.data, minimum)
	}
	content, err := s.body(w, r)
	if err != nil {
		return err
	}
	defer content.release()
	body := content.data

	// curl calls a body a form if the user does not say what it is.
	if strings.HasPrefix(r.Header.Get("Content-Type"), "image/") || picture.Format(body) != "" {
		return s.inferPhoto(w, r, f, body, 0)
	}
	wanted, err := queryWanted(r, f.Card)
	if err != nil {
		return err
	}
	header := r.Header.Get(openinference.HeaderLength)
	text := len(body)
	if n, err := strconv.Atoi(header); err == nil && n >= 0 {
		text = min(text, n)
	}
	q, err := s.tensors(r.Context(), content, text, func() (*openinference.Request, error) {
		return openinference.DecodeRequest(body, header, f.Card, s.regions.tensors(r.Context(), content))
	})
	if err != nil {
		return err
	}
	answers, err := s.inferTensors(r.Context(), r.RemoteAddr, f, q, wanted)
	if err != nil {
		return err
	}
	return s.answer(w, f, q, answers)
}

// tensors decodes a message of the protocol with so many bytes that are no raw tensors. Its payloads may be used until the body is
// released.
func (s *server) tensors(ctx context.Context, body *buffer, text int, read func() (*openinference.Request, error)) (q *openinference.Request, err error) {
	decode := func() error {
		if q, err = read(); err != nil {
			return badRequest(err)
		}
		if err := body.reserve(ctx, q.Needed); err != nil {
			return err
		}
		if err := q.Fill(make([]byte, q.Needed)); err != nil {
			return badRequest(err)
		}
		return nil
	}
	const small = 64 << 10 // bytes, not worth the wait for a turn
	if text <= small {
		err = decode()
	} else {
		err = s.memory.decode(ctx, openinference.DecodeBytes*text, decode)
	}
	return q, err
}

// inferTensors answers a message from an address.
func (s *server) inferTensors(ctx context.Context, from string, f *functions.Function, q *openinference.Request, wanted functions.Wanted) ([]functions.Answer, error) {
	wanted.Deadline = cmp.Or(q.Timeout, wanted.Deadline)
	wanted.Sequence = functions.Sequence{Name: q.Sequence, Start: q.SequenceStart}
	var err error
	if wanted.Sequence.User, _, err = net.SplitHostPort(from); err != nil {
		return nil, fmt.Errorf("read address of client: %w", err)
	}
	if q.Sequence != "" && len(q.Payloads) > 1 {
		return nil, badRequest(fmt.Errorf("sequence %q has %d images at once, want one per message", q.Sequence, len(q.Payloads)))
	}
	return s.inferAll(ctx, f, q, wanted)
}

// maxFiles is the max number of files that a message has in the queue of decoders.
const maxFiles = 8

// inferAll sends each picture of a request and waits for all answers. The error is the first
// one, by the order of the pictures.
func (s *server) inferAll(ctx context.Context, f *functions.Function, q *openinference.Request, wanted functions.Wanted) ([]functions.Answer, error) {
	answers := make([]functions.Answer, len(q.Payloads))
	errs := make([]error, len(q.Payloads))
	var wait sync.WaitGroup
	decoding := make(chan struct{}, maxFiles)
	for i, p := range q.Payloads {
		wait.Go(func() {
			if q.Photos {
				decoding <- struct{}{}
				answers[i], errs[i] = s.inferFile(ctx, f, p, wanted)
				<-decoding
				return
			}
			began := time.Now()
			answers[i], errs[i] = f.Infer(ctx, p, wanted)
			s.publishTensor(f, &answers[i], time.Since(began), errs[i])
		})
	}
	wait.Wait()
	for i, err := range errs {
		if err != nil && len(errs) > 1 {
			return nil, fmt.Errorf("picture %d of %d: %w", i+1, len(errs), err)
		}
		if err != nil {
			return nil, err
		}
	}
	return answers, nil
}

// answer writes the response to a request.
func (s *server) answer(w http.ResponseWriter, f *functions.Function, q *openinference.Request, answers []functions.Answer) error {
	slowest, outputs, err := merge(f, answers)
	if err != nil {
		return err
	}
	body, headerLength, err := openinference.EncodeResponse(q, f.Name, version(slowest), stages(slowest), outputs)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	if headerLength > 0 {
		w.Header().Set("Content-Type", "application/octet-stream")
		w.Header().Set(openinference.HeaderLength, strconv.Itoa(headerLength))
	}
	w.Write(body) // the client may have gone
	return nil
}

// merge returns the outputs of a request, and its slowest answer.
func merge(f *functions.Function, answers []functions.Answer) (slowest *functions.Answer, outputs []openinference.Tensor, err error) {
	content := make([]openinference.Answer, len(answers))
	slowest = &answers[0]
	for i := range answers {
		a := &answers[i]
		content[i] = openinference.Answer{Kind: a.Kind, Content: a.Content}
		if a.Latency > slowest.Latency {
			slowest = a
		}
	}
	if outputs, err = openinference.Outputs(f.Card, content); err != nil {
		return nil, nil, &httpError{http.StatusServiceUnavailable, err}
	}
	return slowest, outputs, nil
}

func version(a *functions.Answer) string { return fmt.Sprint(a.ModelVersion) }

// stages are the times of the slowest picture as parameters of a response, in microseconds.
func stages(a *functions.Answer) map[string]int64 {
	times := map[string]int64{"latency_us": a.Latency.Microseconds(), "batch": int64(a.Batch)}
	for i, t := range a.Stages.Times() {
		times[wire.StageNames[i]+"_us"] = t.Microseconds()
	}
	return times
}

// body reads a request's body.
func (s *server) body(w http.ResponseWriter, r *http.Request) (*buffer, error) {
	encoding := takeEncoding(r.Header, "Content-Encoding")
	if err := checkBody(w, r); err != nil {
		return nil, err
	}
	if encoding != "" {
		b, err := s.memory.inflate(r.Context(), encoding, r.Body, maxBody)
		return b, bodyError(err)
	}
	b, err := s.memory.read(r.Context(), r.Body, r.ContentLength)
	return b, bodyError(err)
}

// checkBody refuses bodies that are too large or encoded, and bounds the others.
func checkBody(w http.ResponseWriter, r *http.Request) error {
	if e := r.Header.Get("Content-Encoding"); e != "" && e != "identity" {
		return &httpError{http.StatusUnsupportedMediaType, fmt.Errorf("content encoding is %q, want none, or gzip or deflate without a form", e)}
	}
	if r.ContentLength > maxBody {
		return &httpError{http.StatusRequestEntityTooLarge, fmt.Errorf("body has %d bytes, want at most %d", r.ContentLength, maxBody)}
	}
	r.Body = http.MaxBytesReader(w, r.Body, maxBody)
	return nil
}

// bodyError is the error for the client whose body was not read.
func bodyError(err error) error {
	if err == nil {
		return nil
	}
	return badRequest(fmt.Errorf("read body: %w", err))
}

// photo decodes a photo, within the memory that all requests share, and infers it.
func (s *server) photo(ctx context.Context, f *functions.Function, file []byte, wanted functions.Wanted) (a functions.Answer, found []functions.Detection, err error) {
	photo, err := s.memory.prepare(ctx, f, file)
	if err != nil {
		return a, nil, err
	}
	began := time.Now()
	a, found, err = f.InferPrepared(ctx, &photo, wanted)
	s.publishHTTP(f, photo.Size, &a, found, time.Since(began), err)
	if err == nil {
		s.wall.show(f.Name, file, a.Latency, f.Items(a, found), 0)
	}
	return a, found, err
}

// queryWanted reads what a query wants: timeout=25ms, score=0.5, classes=person,car.
func queryWanted(r *http.Request, card *models.Card) (w functions.Wanted, err error) {
	query, kind := r.URL.Query(), card.Kind()
	if text := query.Get("timeout"); text != "" {
		if w.Deadline, err = time.ParseDuration(text); err != nil || w.Deadline <= 0 {
			return w, badRequest(fmt.Errorf("timeout is %q, want a duration like 25ms", text))
		}
	}
	if text := query.Get("score"); text != "" {
		if w.LowestScore, err = strconv.ParseFloat(text, 64); err != nil || !(w.LowestScore >= 0 && w.LowestScore <= 1) {
			return w, badRequest(fmt.Errorf("score is %q, want a number from 0 to 1", text))
		}
		if !kind.HasClasses() && kind != wire.KindText {
			return w, badRequest(fmt.Errorf("score is %q, and answers of kind %v have no scores", text, kind))
		}
	}
	if text := query.Get("classes"); text != "" {
		if !kind.HasClasses() {
			return w, badRequest(fmt.Errorf("classes is %q, and answers of kind %v have no classes", text, kind))
		}
		if w.Only, err = card.Only(strings.Split(text, ",")); err != nil {
			return w, badRequest(err)
		}
	}
	return w, nil
}

// inferPhoto answers a photo.
func (s *server) inferPhoto(w http.ResponseWriter, r *http.Request, f *functions.Function, file []byte, minScore float64) error {
	wanted, err := queryWanted(r, f.Card)
	if err != nil {
		return err
	}
	wanted.LowestScore = max(wanted.LowestScore, minScore)
	a, err := s.inferFile(r.Context(), f, file, wanted)
	if err != nil {
		return err
	}
	return s.answer(w, f, &openinference.Request{}, []functions.Answer{a})
}

// inferFile infers a photo. Boxes are in its pixels.
func (s *server) inferFile(ctx context.Context, f *functions.Function, file []byte, wanted functions.Wanted) (functions.Answer, error) {
	a, found, err := s.photo(ctx, f, file, wanted)
	if err == nil && f.Card.FindsBoxes() {
		a.Content = inPhoto(&a.Content, found)
	}
	return a, err
}

// inPhoto returns what was found in a photo, in its pixels. Masks stay in the grid that covers it.
func inPhoto(c *wire.Content, found []functions.Detection) wire.Content {
	in := wire.Content{PerBox: c.PerBox, Rows: c.Rows, Columns: c.Columns}
	for _, d := range found {
		if len(c.Polygons) > 0 {
			p := wire.Polygon{Class: d.Class, Score: d.Score}
			for _, at := range d.Outline {
				p.Points = append(p.Points, wire.Point{X: float32(at.X), Y: float32(at.Y)})
			}
			in.Polygons = append(in.Polygons, p)
			continue
		}
		in.Boxes = append(in.Boxes, wire.Box{
			Class: d.Class, Score: d.Score,
			X0: float32(d.Box.Min.X), Y0: float32(d.Box.Min.Y), X1: float32(d.Box.Max.X), Y1: float32(d.Box.Max.Y),
		})
		for k, at := range d.Points {
			in.Points = append(in.Points, wire.Point{X: float32(at.X), Y: float32(at.Y), Score: c.Points[d.Index*c.PerBox+k].Score})
		}
		if len(c.Masks) > 0 {
			in.Masks = append(in.Masks, c.Masks[d.Index])
		}
	}
	return in
}

// detect answers in the form of DeepStack, which Frigate and Home Assistant use: a form with
// the file "image" and, if it is given, the field min_confidence.
func (s *server) detect(w http.ResponseWriter, r *http.Request) {
	predictions, err := s.predictions(w, r)
	if err != nil {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(statusOf(err))
		json.NewEncoder(w).Encode(map[string]any{"success": false, "error": err.Error(), "predictions": []prediction{}})
		return
	}
	writeJSON(w, map[string]any{"success": true, "predictions": predictions, "duration": 0})
}

// prediction is DeepStack's form of a box, in the photo's pixels.
type prediction struct {
	Label      string  `json:"label"`
	Confidence float32 `json:"confidence"`
	XMin       int     `json:"x_min"`
	YMin       int     `json:"y_min"`
	XMax       int     `json:"x_max"`
	YMax       int     `json:"y_max"`
}

func (s *server) predictions(w http.ResponseWriter, r *http.Request) ([]prediction, error) {
	f, err := s.detector(r.Context(), r.URL.Query().Get("function"))
	if err != nil {
		return nil, err
	}
	if !f.Card.FindsBoxes() {
		return nil, badRequest(fmt.Errorf("function %s finds no boxes: its decoder is %q", f.Name, f.Card.Decoder.Name))
	}
	image, minimum, err := s.form(w, r)
	if err != nil {
		return nil, err
	}
	defer image.release()
	wanted, err := queryWanted(r, f.Card)
	if err != nil {
		return nil, err
	}
	_, found, err := s.photo(r.Context(), f, image.data, wanted)
	if err != nil {
		return nil, err
	}
	predictions := []prediction{}
	for _, d := range found {
		if float64(d.Score) >= minimum {
			predictions = append(predictions, prediction{d.Label, d.Score, d.Box.Min.X, d.Box.Min.Y, d.Box.Max.X, d.Box.Max.Y})
		}
	}
	return predictions, nil
}

// form reads the form of DeepStack: a file, which it names image, and min_confidence. Clients of LitServe name the file as they like.
func (s *server) form(w http.ResponseWriter, r *http.Request) (image *buffer, minimum float64, err error) {
	if err := checkBody(w, r); err != nil {
		return nil, 0, err
	}
	defer func() {
		if err != nil && image != nil {
			image.release()
		}
	}()
	parts, err := r.MultipartReader()
	if err != nil {
		return nil, 0, badRequest(fmt.Errorf("read form: %w", err))
	}
	for {
		part, err := parts.NextPart()
		switch {
		case err == io.EOF && image == nil:
			return nil, 0, badRequest(errors.New("form has no file"))
		case err == io.EOF:
			return image, minimum, nil
		case err != nil:
			return image, 0, bodyError(err)
		}
		switch name := part.FormName(); {
		case image == nil && (name == "image" || part.FileName() != ""):
			if image, err = s.memory.read(r.Context(), part, r.ContentLength); err != nil {
				return nil, 0, bodyError(err)
			}
		case name == "min_confidence":
			const longest = 32 // characters of a number
			text, err := io.ReadAll(io.LimitReader(part, longest))
			if err != nil {
				return image, 0, bodyError(err)
			}
			if minimum, err = strconv.ParseFloat(string(text), 32); err != nil {
				return image, 0, badRequest(fmt.Errorf("min_confidence is %q, want a number from 0 to 1", text))
			}
		}
	}
}

// detector returns the function of that name. Without a name it is the one with the most
// classes among those of the key that find boxes.
func (s *server) detector(ctx context.Context, name string) (*functions.Function, error) {
	if name != "" {
		return s.named(ctx, configs.OperationInfer, name, "")
	}
	var best *functions.Function
	for _, f := range s.all(ctx) {
		finds := f.Card.FindsBoxes() && f.TakesPhotos()
		if finds && (best == nil || len(f.Card.Labels) > len(best.Card.Labels)) {
			best = f
		}
	}
	if best == nil {
		return nil, fmt.Errorf("%w that finds boxes", functions.ErrUnknown)
	}
	return best, permit(ctx, configs.OperationInfer, best.Name)
}
