package gateway

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
)

// jsonErrors gives the errors of net/http, which are plain text, the form of writeError.
func jsonErrors(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		e := &errorWriter{ResponseWriter: w}
		next.ServeHTTP(e, r)
		switch e.status {
		case 0:
		case http.StatusNotFound:
			writeError(w, e.status, fmt.Errorf("no such path: %q", r.URL.Path))
		case http.StatusMethodNotAllowed:
			writeError(w, e.status, fmt.Errorf("method of %q is %s, want %s", r.URL.Path, r.Method, w.Header().Get("Allow")))
		default:
			writeError(w, e.status, errors.New(strings.TrimSpace(string(e.text))))
		}
	})
}

// errorWriter holds back an error in plain text.
type errorWriter struct {
	http.ResponseWriter
	status int // of the error; 0: none
	text   []byte
}

// Unwrap is for http.ResponseController.
func (e *errorWriter) Unwrap() http.ResponseWriter { return e.ResponseWriter }

func (e *errorWriter) WriteHeader(status int) {
	if status >= http.StatusBadRequest && strings.HasPrefix(e.Header().Get("Content-Type"), "text/plain") {
		e.status = status
		return
	}
	e.ResponseWriter.WriteHeader(status)
}

func (e *errorWriter) Write(b []byte) (int, error) {
	if e.status == 0 {
		return e.ResponseWriter.Write(b)
	}
	e.text = append(e.text, b...)
	return len(b), nil
}
