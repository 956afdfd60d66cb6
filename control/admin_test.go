package control

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/testing/must"
)

// adminSocket opens a manager's admin socket in a runtime folder, until the test ends.
func adminSocket(t *testing.T) (dir string, l net.Listener) {
	t.Helper()
	dir = t.TempDir()
	l, err := net.Listen("unix", filepath.Join(dir, AdminSocket))
	must.OK(t, err)
	t.Cleanup(func() { l.Close() })
	return dir, l
}

// A stopped manager still accepts connections, as its kernel does that, but sends no
// answer.
func TestManagerTimeout(t *testing.T) {
	dir, _ := adminSocket(t)
	interrupted := errors.New("interrupted")
	ctx, stop := context.WithCancelCause(context.Background())
	time.AfterFunc(10*time.Millisecond, func() { stop(interrupted) })
	if _, err := SendOrder(ctx, dir, ReplacePath, NameOrder{Name: "face"}); !errors.Is(err, interrupted) {
		t.Errorf("an order: %v", err)
	}
	if _, err := ReadStatus(context.Background(), dir); !errors.Is(err, errNoStatus) {
		t.Errorf("status: %v", err)
	}
}

// If a manager dies in the middle of an order, the runtime folder was the right one.
func TestManagerEnded(t *testing.T) {
	dir, l := adminSocket(t)
	go func() {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		conn.Read(make([]byte, 1<<16))
		conn.Close()
	}()
	_, err := SendOrder(context.Background(), dir, AddPath, NameOrder{Name: "face"})
	if err == nil || !strings.Contains(err.Error(), "manager ended before it answered") || strings.Contains(err.Error(), "--runtime-dir") {
		t.Errorf("an order: %v", err)
	}
}

func TestStatusAt(t *testing.T) {
	page := ""
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != StatusPath || page == "" {
			http.NotFound(w, r)
			return
		}
		io.WriteString(w, page)
	}))
	t.Cleanup(server.Close)
	for text, want := range map[string]string{
		"":                                    ": 404 Not Found",
		"<html>":                              "invalid character",
		`{"functions":3}`:                     "functions",
		strings.Repeat(" ", maxAnswer) + "{}": "EOF",
	} {
		page = text
		_, err := ReadStatusAt(t.Context(), server.URL)
		if err == nil || !strings.HasPrefix(err.Error(), "request manager's status: "+server.URL+StatusPath) || !strings.Contains(err.Error(), want) {
			t.Errorf("%.20q: %v, want %q", text, err, want)
		}
	}

	page = `{"functions":[{"name":"face","port":9001,"limit":4.5}]}`
	s, err := ReadStatusAt(t.Context(), strings.TrimPrefix(server.URL, "http://")+"/")
	must.OK(t, err)
	if face, ok := s.Function("face"); !ok || face.Port != 9001 || face.Limit != 4.5 {
		t.Errorf("status %+v", s)
	}
	ended, stop := context.WithCancel(t.Context())
	stop()
	if _, err := ReadStatusAt(ended, server.URL); !errors.Is(err, context.Canceled) {
		t.Errorf("an ended context: %v", err)
	}
}
