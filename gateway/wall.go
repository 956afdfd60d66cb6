package gateway

import (
	"fmt"
	"image"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/penstock/penstock/gateway/functions"
	"github.com/penstock/penstock/models/picture"
)

// wall keeps the newest picture of each function that came through the gateway.
type wall struct {
	mu       sync.Mutex
	number   int
	pictures map[string]*wallPicture
}

// wallPicture is a picture with its answer. It is immutable.
type wallPicture struct {
	shown
	file []byte
	at   time.Time
}

// shown describes a picture of the wall to the page.
type shown struct {
	Function string `json:"function"`
	// Number changes with each picture.
	Number    int     `json:"number"`
	LatencyMS float64 `json:"latency_ms"`
	AgeMS     int64   `json:"age_ms"`
	Boxes     []box   `json:"boxes"`
	Classes   []class `json:"classes,omitempty"`
	// Client is the address of a UDP client whose picture it is; empty for the gateway's own.
	Client string `json:"client,omitempty"`
}

// box is in the picture's pixels.
type box struct {
	Label string  `json:"label"`
	Score float32 `json:"score"`
	X0    int     `json:"x0"`
	Y0    int     `json:"y0"`
	X1    int     `json:"x1"`
	Y1    int     `json:"y1"`
	// Points and Corners have x and y of each, Mask the corners of rectangles.
	Points  [][2]int `json:"points,omitempty"`
	Corners [][2]int `json:"corners,omitempty"`
	Mask    [][4]int `json:"mask,omitempty"`
}

// The wall keeps pictures up to maxWallBytes, maxWallSum in all, and shows them for wallAge.
const (
	maxWallBytes = 4 << 20
	maxWallSum   = 32 << 20
	wallAge      = time.Minute
)

func newWall() *wall { return &wall{pictures: map[string]*wallPicture{}} }

// show replaces the function's picture. The wall keeps the file, which must not change.
func (w *wall) show(function string, file []byte, latency time.Duration, found []functions.Detection) {
	w.put(function, file, latency, boxes(found))
}

// put is show for boxes.
func (w *wall) put(function string, file []byte, latency time.Duration, found []box) {
	w.add(&wallPicture{file: file, at: time.Now(), shown: shown{Function: function, LatencyMS: millis(latency), Boxes: found}})
}

// add replaces the function's picture by p, unless p is too large.
func (w *wall) add(p *wallPicture) {
	if len(p.file) > maxWallBytes {
		return
	}
	if cap(p.file) > 2*len(p.file) {
		p.file = slices.Clone(p.file) // the rest is of no use
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.number++
	p.Number = w.number
	w.pictures[p.Function] = p
	w.forgetLocked()
}

// forgetLocked drops the oldest pictures until the others have at most maxWallSum bytes.
func (w *wall) forgetLocked() {
	for {
		sum, oldest := 0, (*wallPicture)(nil)
		for _, p := range w.pictures {
			if sum += cap(p.file); oldest == nil || p.Number < oldest.Number {
				oldest = p
			}
		}
		if sum <= maxWallSum {
			return
		}
		delete(w.pictures, oldest.Function)
	}
}

func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func boxes(found []functions.Detection) []box {
	list := make([]box, 0, len(found))
	for _, d := range found {
		list = append(list, boxOf(d.Label, d.Score, d.Box, &d.Shape, 1))
	}
	return list
}

// boxOf returns something that was found, in the pixels of a picture that was scaled by a factor.
func boxOf(label string, score float32, at image.Rectangle, s *picture.Shape, factor float64) box {
	scale := func(n int) int { return int(float64(n) * factor) }
	pairs := func(points []image.Point) (list [][2]int) {
		for _, p := range points {
			list = append(list, [2]int{scale(p.X), scale(p.Y)})
		}
		return list
	}
	b := box{
		Label: label, Score: score, X0: scale(at.Min.X), Y0: scale(at.Min.Y), X1: scale(at.Max.X), Y1: scale(at.Max.Y),
		Points: pairs(s.Points), Corners: pairs(s.Outline),
	}
	for _, r := range s.Mask {
		b.Mask = append(b.Mask, [4]int{scale(r.Min.X), scale(r.Min.Y), scale(r.Max.X), scale(r.Max.Y)})
	}
	return b
}

// list returns what the wall shows, and forgets old pictures.
func (w *wall) list() (list []shown) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for name, p := range w.pictures {
		age := time.Since(p.at)
		if age > wallAge {
			delete(w.pictures, name)
			continue
		}
		s := p.shown
		s.AgeMS = age.Milliseconds()
		list = append(list, s)
	}
	slices.SortFunc(list, func(a, b shown) int { return strings.Compare(a.Function, b.Function) })
	return list
}

// serve answers with a function's picture.
func (w *wall) serve(out http.ResponseWriter, r *http.Request) {
	w.mu.Lock()
	p := w.pictures[r.PathValue("function")]
	w.mu.Unlock()
	if p == nil {
		writeError(out, http.StatusNotFound, fmt.Errorf("function %q has no picture of the last minute", r.PathValue("function")))
		return
	}
	out.Header().Set("Content-Type", http.DetectContentType(p.file))
	out.Header().Set("Cache-Control", "no-store")
	out.Write(p.file)
}
