package gateway

import (
	"bytes"
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// No photo is decoded for a client that has left: this one would be damaged.
func TestClientLeft(t *testing.T) {
	s := newTestServer(t, oneBox)
	ctx, leave := context.WithCancel(t.Context())
	leave()
	file := photo(t, 64, 64)
	request := httptest.NewRequestWithContext(ctx, http.MethodPost, "http://localhost/v2/models/finder/infer", bytes.NewReader(file[:len(file)-20]))
	request.Header.Set("Content-Type", "image/jpeg")
	response := httptest.NewRecorder()
	ownAccess(t).guard(s.routes()).ServeHTTP(response, request)
	if text := response.Body.String(); !strings.Contains(text, context.Canceled.Error()) {
		t.Errorf("%d %s, want %v", response.Code, text, context.Canceled)
	}
}

// A body is a picture by its first bytes. The error names the format, and what to send.
func TestUnknownFormats(t *testing.T) {
	web := newGateway(t, oneBox)
	for name, c := range map[string]struct{ body, want string }{
		"PPM":            {"P6\n2 2\n255\n............", "PPM; send JPEG, PNG"},
		"JPEG XL":        {"\xff\x0a\xfa\x1f", "JPEG XL; send JPEG, PNG"},
		"TIFF":           {"II*\x00\x08\x00\x00\x00", "TIFF; send JPEG, PNG"},
		"HEIC":           {"\x00\x00\x00\x18ftypheic", "HEIC; send JPEG, PNG"},
		"video":          {"\x00\x00\x00\x18ftypisom", "MP4 video; send JPEG, PNG"},
		"lossless JPEG":  {"\xff\xd8\xff\xc3\x00\x0b\x08\x00\x10\x00\x10\x01\x01\x11\x00", "lossless JPEG; send a baseline"},
		"tensor as JSON": {`{"inputs":[]}`, `input \"image\" is missing`},
	} {
		response, text := post(t, web.URL+"/v2/models/finder/infer", "application/octet-stream", []byte(c.body))
		want := http.StatusUnsupportedMediaType
		if name == "tensor as JSON" {
			want = http.StatusBadRequest
		}
		if response.StatusCode != want || !strings.Contains(text, c.want) {
			t.Errorf("%s: %s %s, want %d and %q", name, response.Status, text, want, c.want)
		}
	}
}
