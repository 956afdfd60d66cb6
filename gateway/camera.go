package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/coder/websocket"

	"github.com/penstock/penstock/client"
	"github.com/penstock/penstock/gateway/functions"
	"github.com/penstock/penstock/models/picture"
	"github.com/penstock/penstock/wire"
)

// The limits of cameras. Each may hold one frame.
const (
	maxCameras     = 32
	maxFramePixels = 4 << 20 // of an encoded frame
)

// frameAnswer is the answer to one frame of a camera. Boxes are in the frame's pixels.
type frameAnswer struct {
	// Status is a wire.Status as text, or "unanswered".
	Status    string           `json:"status"`
	Error     string           `json:"error,omitempty"`
	LatencyMS float64          `json:"latency_ms"`
	Stages    map[string]int64 `json:"stages,omitempty"`
	Boxes     []box            `json:"boxes"`
	Classes   []class          `json:"classes,omitempty"`
}

type class struct {
	Label string  `json:"label"`
	Score float32 `json:"score"`
}

// camera answers the frames of a browser's camera. Each message is a frame: exactly the bytes that
// the function takes, or an encoded picture. The client sends the next frame after the answer.
func (s *server) camera(w http.ResponseWriter, r *http.Request) {
	name := r.URL.Query().Get("function")
	f, err := s.functions.Function(name)
	if err == nil && !f.TakesPhotos() {
		err = fmt.Errorf("%s: %w", name, functions.ErrNoPicture)
	}
	if err != nil {
		fail(w, err)
		return
	}
	if !s.cameras.TryAcquire(1) {
		writeError(w, http.StatusServiceUnavailable, fmt.Errorf("%d cameras send frames, want this one later", maxCameras))
		return
	}
	defer s.cameras.Release(1)
	conn, err := websocket.Accept(w, r, nil) // it refuses other origins
	if err != nil {
		return // it has answered
	}
	defer conn.CloseNow()
	conn.SetReadLimit(int64(max(f.Card.Input.WireBytes(), maxWallBytes)))
	for {
		_, frame, err := conn.Read(r.Context())
		if err != nil {
			return
		}
		// The model may have been replaced.
		if f, err = s.functions.Function(name); err != nil {
			conn.Close(websocket.StatusGoingAway, err.Error())
			return
		}
		answer, err := inferFrame(r.Context(), f, frame)
		if err != nil {
			conn.Close(websocket.StatusUnsupportedData, shorten(err.Error()))
			return
		}
		text, err := json.Marshal(answer)
		if err != nil {
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

// shorten cuts a text to what the reason of a closed WebSocket may have (RFC 6455, 5.5).
func shorten(text string) string { return text[:min(len(text), 120)] }

// inferFrame answers a frame. The error is for a frame that is not valid.
func inferFrame(ctx context.Context, f *functions.Function, frame []byte) (answer frameAnswer, err error) {
	began := time.Now()
	var a functions.Answer
	var found []functions.Detection
	if len(frame) == f.Card.Input.WireBytes() {
		a, found, err = f.InferFrame(ctx, frame)
	} else {
		pixels, headerErr := picture.Pixels(frame)
		if headerErr != nil {
			return answer, fmt.Errorf("frame has %d bytes, want %d or a picture: %w", len(frame), f.Card.Input.WireBytes(), headerErr)
		}
		if pixels > maxFramePixels {
			return answer, fmt.Errorf("frame has %d pixels, want at most %d", pixels, maxFramePixels)
		}
		photo, decodeErr := picture.Decode(ctx, frame)
		if decodeErr != nil {
			return answer, decodeErr
		}
		a, found, err = f.InferPhoto(ctx, photo, 0)
	}
	answer = frameAnswer{LatencyMS: millis(time.Since(began)), Boxes: boxes(found)}
	var status client.StatusError
	switch {
	case errors.As(err, &status):
		answer.Status = wire.Status(status).String()
	case err != nil:
		answer.Status, answer.Error = "unanswered", err.Error()
	default:
		answer.Status, answer.Stages = a.Status.String(), stages(&a)
		answer.Classes = classes(f, &a)
	}
	return answer, nil
}

func classes(f *functions.Function, a *functions.Answer) (list []class) {
	for _, c := range a.Classes {
		list = append(list, class{f.Label(c.Class), c.P})
	}
	return list
}
