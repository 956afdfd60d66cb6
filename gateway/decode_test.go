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
	request := httptest.NewRequestWithContext(ctx, http.MethodPost, "/v2/models/finder/infer", bytes.NewReader(file[:len(file)-20]))
	request.Header.Set("Content-Type", "image/jpeg")
	response := httptest.NewRecorder()
	s.routes().ServeHTTP(response, request)
	if text := response.Body.String(); !strings.Contains(text, context.Canceled.Error()) {
		t.Errorf("%d %s, want %v", response.Code, text, context.Canceled)
	}
}
