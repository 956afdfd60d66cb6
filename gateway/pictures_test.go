package gateway

import (
	"bytes"
	"image/jpeg"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"reflect"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/gateway/functions"
	"github.com/penstock/penstock/internal/testing/clienttest"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/wire"
)

// The manager's copies come to the wall while a page is open, but not those of the gateway's own
// requests.
func TestPictures(t *testing.T) {
	var copied atomic.Pointer[control.Picture]
	s := newServer(Options{Dir: fakeNodeWith(t, oneBox, &copied), Version: "test", Log: zerolog.Nop()})
	must.OK(t, s.functions.Refresh(t.Context()))
	show := func(p control.Picture) {
		t.Helper()
		copied.Store(&p)
		must.OK(t, s.functions.Refresh(t.Context()))
		select {
		case due := <-s.pictures.due:
			for _, name := range due {
				if err := s.pictures.fetch(t.Context(), name); err != nil {
					t.Error(err)
				}
			}
		default:
		}
	}
	pixels := bytes.Repeat([]byte{250, 10, 10}, 4*4)
	_, payload, _ := oneBox(clienttest.Request{})
	p := control.Picture{
		Number: 1, From: netip.MustParseAddrPort("192.0.2.7:5000"), Answered: time.Now().Add(-5 * time.Second), Latency: 3 * time.Millisecond,
		ModelVersion: finder.Version, Kind: wire.KindBoxes, Payload: payload, Pixels: pixels,
	}
	if show(p); len(s.wall.list()) != 0 {
		t.Errorf("the wall has %+v, and no page is open", s.wall.list())
	}

	s.events.subscribe()
	show(p)
	list := s.wall.list()
	if len(list) != 1 || list[0].Function != "finder" || list[0].Client != "192.0.2.7:5000" || list[0].LatencyMS != 3 || list[0].AgeMS < 5000 {
		t.Fatalf("the wall has %+v", list)
	}
	if want := []seen{{Item: functions.Item{Label: "dog", Class: 1, Score: 0.75, Box: []int{1, 1, 3, 3}}}}; !reflect.DeepEqual(list[0].Found, want) {
		t.Errorf("found %+v, want %+v", list[0].Found, want)
	}
	response := httptest.NewRecorder()
	ownAccess(t).guard(s.routes()).ServeHTTP(response, httptest.NewRequest(http.MethodGet, "http://localhost/api/wall/finder", nil))
	photo, err := jpeg.Decode(response.Body)
	must.OK(t, err)
	if r, g, _, _ := photo.At(2, 2).RGBA(); photo.Bounds().Dx() != 4 || r>>8 < 200 || g>>8 > 60 {
		t.Errorf("picture %v with %d red and %d green", photo.Bounds(), r>>8, g>>8)
	}

	// A picture of another format and size is shown smaller, with what was found in its own pixels.
	p.Number, p.Shape = 2, wire.Picture{Format: wire.FormatNV12, Width: 1280, Height: 720}
	p.Pixels = bytes.Repeat([]byte{82}, 1280*720*3/2)
	for i := 1280 * 720; i < len(p.Pixels); i += 2 {
		p.Pixels[i], p.Pixels[i+1] = 90, 240 // red
	}
	show(p)
	if list = s.wall.list(); list[0].Width != 1280 || !reflect.DeepEqual(list[0].Found[0].Box, []int{320, 180, 960, 540}) {
		t.Errorf("the wall has %+v", list)
	}
	response = httptest.NewRecorder()
	ownAccess(t).guard(s.routes()).ServeHTTP(response, httptest.NewRequest(http.MethodGet, "http://localhost/api/wall/finder", nil))
	photo, err = jpeg.Decode(response.Body)
	must.OK(t, err)
	if r, g, _, _ := photo.At(2, 2).RGBA(); photo.Bounds().Dx() != 640 || photo.Bounds().Dy() != 360 || r>>8 < 200 || g>>8 > 60 {
		t.Errorf("picture %v with %d red and %d green", photo.Bounds(), r>>8, g>>8)
	}

	own, err := s.functions.Function("finder")
	must.OK(t, err)
	for name, change := range map[string]func(p *control.Picture){
		"the gateway's own": func(p *control.Picture) { p.From = own.LocalAddr() },
		"another model's":   func(p *control.Picture) { p.ModelVersion++ },
	} {
		other := p
		other.Number, other.Latency = p.Number+1, time.Second
		change(&other)
		show(other)
		if list := s.wall.list(); list[0].LatencyMS != 3 {
			t.Errorf("%s picture is shown: %+v", name, list)
		}
		p.Number = other.Number
	}
}
