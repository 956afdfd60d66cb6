package gateway

import (
	"bytes"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/penstock/penstock/gateway/functions"
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
	// Found is in the pixels of a picture of Width, if it is set, else of this one.
	Found []seen `json:"found"`
	Width int    `json:"width,omitempty"`
	// Client is the address of a UDP client whose picture it is; empty for the gateway's own.
	Client string `json:"client,omitempty"`
}

// seen is something that was found, with the corners of its mask's rectangles.
type seen struct {
	functions.Item
	Mask [][4]int `json:"mask,omitempty"`
}

// seenIn never returns nil: the page wants a list.
func seenIn(items []functions.Item) []seen {
	list := make([]seen, len(items))
	for i, item := range items {
		list[i].Item = item
		for _, r := range item.Shape.Mask {
			list[i].Mask = append(list[i].Mask, [4]int{r.Min.X, r.Min.Y, r.Max.X, r.Max.Y})
		}
	}
	return list
}

// The wall keeps pictures up to maxWallBytes, maxWallSum in all, and shows them for wallAge.
const (
	maxWallBytes = 4 << 20
	maxWallSum   = 32 << 20
	wallAge      = time.Minute
)

func newWall() *wall { return &wall{pictures: map[string]*wallPicture{}} }

// show replaces the function's picture by a copy. width is that of the
// picture in whose pixels the items are, if it is another one.
func (w *wall) show(function string, file []byte, latency time.Duration, items []functions.Item, width int) {
	w.add(&wallPicture{file: file, at: time.Now(), shown: shown{
		Function: function, LatencyMS: millis(latency), Found: seenIn(items), Width: width,
	}})
}

// add replaces the function's picture by p, unless p is too large.
func (w *wall) add(p *wallPicture) {
	if len(p.file) > maxWallBytes {
		return
	}
	p.file = bytes.Clone(p.file) // it may be part of a body of many megabytes
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
