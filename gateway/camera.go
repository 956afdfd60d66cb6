package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/coder/websocket"

	"github.com/penstock/penstock/client"
	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/gateway/functions"
	"github.com/penstock/penstock/models/picture"
)

// The limits of cameras. Each may hold one frame.
const (
	maxCameras     = 32
	maxFramePixels = 4 << 20 // of an encoded frame
	frameTimeout   = 10 * time.Second
	// cameraIdle is the time without a frame after which a camera may lose its place to another.
	cameraIdle = 5 * time.Second
)

// cameras are the browsers' cameras that send frames.
type cameras struct {
	mu   sync.Mutex
	open map[*camera]bool
}

// camera is a browser's camera.
type camera struct {
	conn   *websocket.Conn // nil before it is accepted
	active time.Time       // the last frame
}

func newCameras() *cameras { return &cameras{open: map[*camera]bool{}} }

// enter gives a new camera a place: a free one, or that of the camera that is idle longest. It returns
// nil if all are active.
func (s *cameras) enter(now time.Time) *camera {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.open) >= maxCameras {
		var longest *camera
		for c := range s.open {
			if longest == nil || c.active.Before(longest.active) {
				longest = c
			}
		}
		if now.Sub(longest.active) < cameraIdle {
			return nil
		}
		delete(s.open, longest)
		if longest.conn != nil {
			go longest.conn.Close(websocket.StatusTryAgainLater, "no frame for a while; another camera has this one's place")
		}
	}
	c := &camera{active: now}
	s.open[c] = true
	return c
}

func (s *cameras) leave(c *camera) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.open, c)
}

// note records a camera's connection and that it is active. It reports whether it has a place.
func (s *cameras) note(c *camera, conn *websocket.Conn, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	c.conn, c.active = conn, now
	return s.open[c]
}

// frameAnswer is the answer to one frame of a camera. Boxes are in the frame's pixels.
type frameAnswer struct {
	// Status is a client.Status as text, or "unanswered".
	Status    string           `json:"status"`
	Error     string           `json:"error,omitempty"`
	LatencyMS float64          `json:"latency_ms"`
	Stages    map[string]int64 `json:"stages,omitempty"`
	Found     []seen           `json:"found"`
}

// camera answers the frames of a browser's camera. Each message is a frame, encoded as a
// photo. The client sends the next frame after the answer.
func (s *server) camera(w http.ResponseWriter, r *http.Request) {
	name := r.URL.Query().Get("function")
	f, err := s.named(r.Context(), configs.OperationInfer, name, "")
	if err == nil && !f.TakesPhotos() {
		err = fmt.Errorf("%s: %w", name, functions.ErrNoPicture)
	}
	if err != nil {
		writeError(w, statusOf(err), err)
		return
	}
	place := s.cameras.enter(time.Now())
	if place == nil {
		writeError(w, http.StatusServiceUnavailable, fmt.Errorf("%d cameras send frames, want this one later", maxCameras))
		return
	}
	defer s.cameras.leave(place)
	conn, err := websocket.Accept(w, r, nil) // it refuses other origins
	if err != nil {
		return // it has answered
	}
	defer conn.CloseNow()
	conn.SetReadLimit(maxWallBytes)
	for s.cameras.note(place, conn, time.Now()) {
		_, message, err := conn.Reader(r.Context())
		if err != nil {
			return
		}
		late := time.AfterFunc(frameTimeout, func() { conn.CloseNow() })
		frame, err := s.memory.read(r.Context(), message, -1)
		late.Stop()
		if err != nil {
			conn.Close(websocket.StatusTryAgainLater, shorten(err.Error()))
			return
		}
		text, code, err := s.answerFrame(r.Context(), name, frame.data)
		frame.release()
		if err != nil {
			conn.Close(code, shorten(err.Error()))
			return
		}
		ctx, cancel := context.WithTimeout(r.Context(), writeTimeout)
		err = conn.Write(ctx, websocket.MessageText, text)
		cancel()
		if err != nil {
			return
		}
	}
}

// answerFrame returns the JSON of the answer to a frame. The code is for the end of the connection if
// there is an error.
func (s *server) answerFrame(ctx context.Context, name string, frame []byte) (text []byte, code websocket.StatusCode, err error) {
	f, err := s.named(ctx, configs.OperationInfer, name, "") // its model may have been replaced
	if err != nil {
		return nil, websocket.StatusGoingAway, err
	}
	answer, err := s.inferFrame(ctx, f, frame)
	if err != nil {
		return nil, websocket.StatusUnsupportedData, err
	}
	text, err = json.Marshal(answer)
	return text, websocket.StatusInternalError, err
}

// shorten cuts a text to what the reason of a closed WebSocket may have (RFC 6455, 5.5).
func shorten(text string) string { return text[:min(len(text), 120)] }

// inferFrame answers a frame. The error is for a frame that is not valid.
func (s *server) inferFrame(ctx context.Context, f *functions.Function, frame []byte) (answer frameAnswer, err error) {
	began := time.Now()
	pixels, err := picture.Pixels(frame)
	if err != nil {
		return answer, fmt.Errorf("frame of %d bytes, want a picture: %w", len(frame), err)
	}
	if pixels > maxFramePixels {
		return answer, fmt.Errorf("frame has %d pixels, want at most %d", pixels, maxFramePixels)
	}
	photo, err := s.memory.prepare(ctx, f, frame)
	if err != nil && statusOf(err) == http.StatusServiceUnavailable {
		return frameAnswer{Status: client.StatusBusy.String(), Error: err.Error(), LatencyMS: millis(time.Since(began)), Found: []seen{}}, nil
	}
	if err != nil {
		return answer, err
	}
	a, found, err := f.InferPrepared(ctx, &photo, functions.Wanted{})
	answer = frameAnswer{LatencyMS: millis(time.Since(began)), Found: seenIn(f.Items(a, found))}
	status, answered := errors.AsType[client.StatusError](err)
	switch {
	case answered:
		answer.Status = client.Status(status).String()
	case err != nil:
		answer.Status, answer.Error = client.StatusUnanswered.String(), err.Error()
	default:
		answer.Status, answer.Stages = a.Status.String(), stages(&a)
	}
	return answer, nil
}
