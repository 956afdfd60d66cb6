// Package webserver has the bounds of the node's HTTP servers: how much a client can make them hold,
// for how long, and which pages of a browser may ask.
//
// Each read of a request and each write of an answer has a deadline. Connections are bounded in all
// and per address. If there is no room for a new one, it takes the place of one that has not sent a
// complete request. So idle connections cannot lock out a client.
package webserver

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"time"

	"github.com/rs/zerolog"
)

// The deadlines. Between the end of a request and its answer there is none: the handler sets it.
const (
	headerTimeout = 5 * time.Second
	readTimeout   = 30 * time.Second // of a request with its body
	writeTimeout  = 10 * time.Second // of each part of an answer
	idleTimeout   = 2 * time.Minute
	// restTimeout is how long the rest of a request that is already answered may take. A client that
	// sends it in time reads the answer, and may use the connection again.
	restTimeout = 500 * time.Millisecond
)

// writePart is the max length of a part of an answer, in bytes.
const writePart = 256 << 10

// maxRest is the max length of that rest.
const maxRest = 64 << 20

// The limits of a connection of HTTP/2: requests at once, and bytes that no handler has read yet. A request with a picture of
// 224 x 224 fits, so that its client need not wait for permission to send the rest.
const (
	maxStreams = 128
	maxUnread  = 256 << 10
)

const maxHeaderBytes = 64 << 10

// Options configure a server.
type Options struct {
	// Connections is the max number of open ones; each address may have half of them. It is lower if
	// this process may open fewer than four times as many files.
	Connections int
	// HTTP2 also serves HTTP/2. Without TLS it is for clients that begin with it.
	HTTP2 bool
	// Certificate returns the certificate for the next connection; nil for a server without TLS. Any goroutine calls it.
	Certificate func() *tls.Certificate
	Log         zerolog.Logger
}

// Server is an http.Server that serves one listener, within the bounds of this package.
type Server struct {
	*http.Server
	listener *listener
}

// New returns a server that will own l.
func New(l net.Listener, handler http.Handler, o Options) *Server {
	s := &Server{listener: newListener(l, min(o.Connections, maxFiles()/4))}
	s.Server = &http.Server{
		Handler: receive(handler), ReadHeaderTimeout: headerTimeout, ReadTimeout: readTimeout, IdleTimeout: idleTimeout,
		HTTP2:          &http.HTTP2Config{MaxConcurrentStreams: maxStreams, MaxReceiveBufferPerConnection: maxUnread, MaxReceiveBufferPerStream: maxUnread},
		MaxHeaderBytes: maxHeaderBytes, ErrorLog: log.New(errorLog{o.Log, l.Addr()}, "", 0), Protocols: new(http.Protocols),
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, connKey{}, own(c))
		},
		ConnState: func(c net.Conn, state http.ConnState) {
			if state == http.StateIdle {
				own(c).wait()
			}
		},
	}
	s.Protocols.SetHTTP1(true)
	s.Protocols.SetUnencryptedHTTP2(o.HTTP2 && o.Certificate == nil)
	s.Protocols.SetHTTP2(o.HTTP2)
	if o.Certificate != nil {
		s.TLSConfig = &tls.Config{GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return o.Certificate(), nil }}
	}
	return s
}

// Run serves until Shutdown or Close, which make it return nil.
func (s *Server) Run() error {
	serve := s.Serve
	if s.TLSConfig != nil {
		serve = func(l net.Listener) error { return s.ServeTLS(l, "", "") }
	}
	err := serve(s.listener)
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// errorLog turns the lines of an http.Server into records.
type errorLog struct {
	log     zerolog.Logger
	address net.Addr
}

func (e errorLog) Write(line []byte) (int, error) {
	level := zerolog.ErrorLevel
	if bytes.Contains(line, []byte("TLS handshake error")) {
		level = zerolog.DebugLevel // any stranger can cause one
	}
	e.log.WithLevel(level).Stringer("listener", e.address).Bytes("error", bytes.TrimSpace(line)).Msg("HTTP server error")
	return len(line), nil
}

// connKey is the context key of a request's *conn.
type connKey struct{}

// receive watches for the end of each request.
func receive(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		q := &request{ResponseWriter: w, conn: r.Context().Value(connKey{}).(*conn)}
		q.replied = r.ProtoMajor > 1 // clients of HTTP/2 read an answer while they send
		if r.ContentLength == 0 {
			q.end()
		} else {
			q.body, q.asks = r.Body, r.Header.Get("Expect") != ""
			r.Body = &body{r.Body, q}
		}
		next.ServeHTTP(q, r)
	})
}

// request is a request, and the writer of its answer. It is used by the handler's goroutine.
type request struct {
	http.ResponseWriter
	conn    *conn
	body    io.Reader
	asks    bool // before it sends the body
	ended   bool
	replied bool
}

// end notes that the request is complete. net/http has ended its deadline.
func (q *request) end() {
	q.ended = true
	q.conn.work()
}

// Unwrap is for http.ResponseController.
func (q *request) Unwrap() http.ResponseWriter { return q.ResponseWriter }

// WriteHeader first receives the rest of a request: many clients read no answer before they have sent
// all. net/http closes the connection if there is more, or if the time is over.
func (q *request) WriteHeader(status int) {
	if !q.replied && !q.ended && status >= http.StatusOK {
		// Errors show again when the answer is sent.
		_ = http.NewResponseController(q.ResponseWriter).SetReadDeadline(time.Now().Add(restTimeout))
		if !q.asks {
			_, _ = io.CopyN(io.Discard, q.body, maxRest)
		}
	}
	q.replied = true
	q.ResponseWriter.WriteHeader(status)
}

func (q *request) Write(b []byte) (int, error) {
	if !q.replied {
		q.WriteHeader(http.StatusOK)
	}
	return q.ResponseWriter.Write(b)
}

// body is a request's body.
type body struct {
	io.ReadCloser
	request *request
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err == io.EOF {
		b.request.end()
	}
	return n, err
}
