package gateway

import (
	"bytes"
	"compress/gzip"
	"compress/zlib"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	"github.com/penstock/penstock/gateway/openinference"
	"github.com/penstock/penstock/internal/testing/must"
)

// packed returns a text in an encoding.
func packed(t *testing.T, encoding, text string) string {
	t.Helper()
	var b bytes.Buffer
	var w io.WriteCloser = zlib.NewWriter(&b)
	if encoding == "gzip" {
		w = gzip.NewWriter(&b)
	}
	_, err := io.WriteString(w, text)
	must.OK(t, err)
	must.OK(t, w.Close())
	return b.String()
}

// TestCompressedBodies sends tensors in each encoding, broken ones, and bombs.
func TestCompressedBodies(t *testing.T) {
	s := newTestServer(t, oneBox)
	web := ownAccess(t).guard(s.routes())
	head := `{"inputs":[{"name":"image","datatype":"UINT8","shape":[4,4,3],"parameters":{"binary_data_size":48}}]}`
	text := head + strings.Repeat("x", 48)
	bomb := strings.Repeat(" ", maxBody+1)
	for _, c := range []struct {
		name, encoding, body string
		status               int
		want                 string
	}{
		{"none", "identity", text, 200, `"data":[0.25,0.25,0.75,0.75]`},
		{"gzip", "gzip", packed(t, "gzip", text), 200, `"data":[0.25,0.25,0.75,0.75]`},
		{"deflate", "deflate", packed(t, "deflate", text), 200, `"data":[0.25,0.25,0.75,0.75]`},
		{"unknown", "br", text, 415, `content encoding is \"br\", want none, or gzip or deflate without a form`},
		{"not compressed", "gzip", text, 400, "read body: gzip: invalid header"},
		{"cut off", "deflate", packed(t, "deflate", text)[:20], 400, "read body: unexpected EOF"},
		{"gzip bomb", "gzip", packed(t, "gzip", bomb), 413, "too large"},
		{"deflate bomb", "deflate", packed(t, "deflate", bomb), 413, "too large"},
	} {
		t.Run(c.name, func(t *testing.T) {
			body := strings.NewReader(c.body)
			r := httptest.NewRequest("POST", "http://localhost/v2/models/finder/infer", io.NopCloser(body))
			r.Header.Set("Content-Encoding", c.encoding)
			r.Header.Set(openinference.HeaderLength, strconv.Itoa(len(head)))
			w := httptest.NewRecorder()
			web.ServeHTTP(w, r)
			if w.Code != c.status || !strings.Contains(w.Body.String(), c.want) {
				t.Errorf("%d %s, want %d %s", w.Code, w.Body, c.status, c.want)
			}
			if c.status == 200 && body.Len() > 0 {
				t.Errorf("%d bytes of the body were not read", body.Len())
			}
			if !s.memory.bodies.TryAcquire(maxBodies) {
				t.Fatal("memory was not freed")
			}
			s.memory.bodies.Release(maxBodies)
		})
	}

	// A form is not decompressed: its parts would not count.
	r := httptest.NewRequest("POST", "http://localhost/v1/vision/detection", http.NoBody)
	r.Header.Set("Content-Encoding", "gzip")
	w := httptest.NewRecorder()
	if web.ServeHTTP(w, r); w.Code != 415 {
		t.Errorf("form: %d %s", w.Code, w.Body)
	}
}

// A bomb takes the memory of bodies as others do, and is refused when there is none.
func TestBombWithoutMemory(t *testing.T) {
	m := newMemory()
	must.OK(t, m.bodies.Acquire(t.Context(), maxBodies-(1<<20)))
	older, first := io.Pipe() // has the right to wait
	ended := make(chan error, 1)
	go func() {
		b, err := m.read(t.Context(), older, -1)
		if err == nil {
			b.release()
		}
		ended <- err
	}()
	_, err := first.Write([]byte("x"))
	must.OK(t, err)
	packed := packed(t, "gzip", strings.Repeat(" ", 8<<20))
	var own *httpError
	if _, err := m.inflate(t.Context(), "gzip", strings.NewReader(packed), maxBody); !errors.As(err, &own) || own.status != 503 {
		t.Errorf("%v, want status 503", err)
	}
	must.OK(t, first.Close())
	must.OK(t, <-ended)
	if !m.bodies.TryAcquire(1 << 20) {
		t.Error("memory was not freed")
	}
}
