package gateway

import (
	"fmt"
	"io/fs"
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/gateway/history"
	"github.com/penstock/penstock/gateway/page"
	"github.com/penstock/penstock/gateway/publish"
	"github.com/penstock/penstock/models/zoo"
)

// contentPolicy lets the page load from the gateway alone.
const contentPolicy = "default-src 'self'; img-src 'self' blob: data:; object-src 'none'; base-uri 'none'; frame-ancestors 'none'"

// routePage adds what shows and changes the whole node.
func (s *server) routePage(mux *http.ServeMux) {
	look := func(pattern string, h http.Handler) { mux.Handle(pattern, allow(configs.OperationLook, h)) }
	static := http.FileServerFS(page.Files)
	// Not all of "/": a GET of a path that has only POST would be 404, and 405 would allow GET.
	for _, path := range []string{"/{$}", "/{file}", "/vendor/"} {
		look("GET "+path, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Security-Policy", contentPolicy)
			w.Header().Set("Cache-Control", "no-cache")
			static.ServeHTTP(w, r)
		}))
	}
	look("GET /api/state", http.HandlerFunc(s.state))
	look("GET /api/events", http.HandlerFunc(s.events.serve))
	look("GET /api/history", handler(s.points))
	look("GET /api/outliers", handler(s.outliers))
	look("GET /api/wall/{function}", http.HandlerFunc(s.wall.serve))
	mux.HandleFunc("GET /api/camera", s.camera)
	look("GET /api/streams", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, s.streams.Status()) }))
	look("GET /api/publish", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, s.publishers.Status()) }))
	look("GET /api/clip/", http.StripPrefix("/api/clip/", http.FileServerFS(zoo.PictureFS())))
	look("GET /metrics", promhttp.HandlerFor(s.metrics, promhttp.HandlerOpts{}))
	if s.demo != nil {
		mux.Handle("POST /api/demo/crowd", allow(configs.OperationChange, handler(s.crowd)))
		mux.Handle("POST /api/demo/kill", allow(configs.OperationChange, handler(s.kill)))
	}
}

// state is what the page needs besides the events.
type state struct {
	Version string          `json:"version"`
	Status  *control.Status `json:"status"`
	// StatusAgeMS is the time since the manager answered, Error why it does not.
	StatusAgeMS  int64           `json:"status_age_ms"`
	Error        string          `json:"error,omitempty"`
	BoundsMillis []float64       `json:"bounds_ms"`
	Stages       []string        `json:"stages"`
	Levels       []history.Level `json:"levels"`
	Marks        []history.Mark  `json:"marks"`
	Functions    []functionState `json:"functions"`
	Clip         []string        `json:"clip"`
	// Receivers of published answers.
	Receivers []publish.Status `json:"receivers,omitempty"`
	Demo      bool             `json:"demo,omitempty"`
}

// functionState says what a function takes.
type functionState struct {
	Name string `json:"name"`
	// Pictures reports whether the function takes photos.
	Pictures bool `json:"pictures"`
}

func (s *server) state(w http.ResponseWriter, _ *http.Request) {
	sample := s.history.Sample()
	_, age, err := s.functions.Status()
	st := state{
		Version: s.version, Status: &sample.Status, StatusAgeMS: age.Milliseconds(), BoundsMillis: sample.BoundsMillis, Stages: control.StageNames,
		Marks: s.history.Marks(), Functions: []functionState{}, Receivers: s.publishers.Status(), Demo: s.demo != nil,
	}
	if err != nil {
		st.Error = err.Error()
	}
	st.Levels = history.Levels[:]
	for _, f := range s.functions.All() {
		st.Functions = append(st.Functions, functionState{f.Name, f.TakesPhotos()})
	}
	st.Clip, _ = fs.Glob(zoo.PictureFS(), "*.jpg")
	w.Header().Set("Cache-Control", "no-store")
	writeJSON(w, st)
}

// points answers with a function's history of a level.
func (s *server) points(w http.ResponseWriter, r *http.Request) error {
	number, err := strconv.Atoi(r.URL.Query().Get("level"))
	if err != nil || number < 0 || number >= len(history.Levels) {
		return badRequest(fmt.Errorf("level is %q, want 0 to %d", r.URL.Query().Get("level"), len(history.Levels)-1))
	}
	points, millis := s.history.Points(r.URL.Query().Get("function"), number)
	if points == nil {
		points = []history.Point{}
	}
	w.Header().Set("Cache-Control", "no-store")
	return writeJSON(w, map[string]any{"t": millis, "step_ms": history.Levels[number].StepMillis, "points": points})
}

// outliers answers with the requests that were slow, late or failed in an interval.
func (s *server) outliers(w http.ResponseWriter, r *http.Request) error {
	var bounds [2]time.Time
	for i, key := range []string{"from", "to"} {
		millis, err := strconv.ParseInt(r.URL.Query().Get(key), 10, 64)
		if err != nil {
			return badRequest(fmt.Errorf("%s is %q, want milliseconds since 1970", key, r.URL.Query().Get(key)))
		}
		bounds[i] = time.UnixMilli(millis)
	}
	list := s.history.Outliers(r.URL.Query().Get("function"), bounds[0], bounds[1])
	if list == nil {
		list = []control.Outlier{}
	}
	w.Header().Set("Cache-Control", "no-store")
	return writeJSON(w, list)
}

func (s *server) crowd(w http.ResponseWriter, r *http.Request) error {
	on, err := strconv.ParseBool(r.URL.Query().Get("on"))
	if err != nil {
		return badRequest(fmt.Errorf("on is %q, want true or false", r.URL.Query().Get("on")))
	}
	s.demo.Crowd(on)
	return nil
}

func (s *server) kill(w http.ResponseWriter, _ *http.Request) error {
	name, err := s.demo.Kill()
	if err != nil {
		return err
	}
	return writeJSON(w, map[string]string{"killed": name})
}
