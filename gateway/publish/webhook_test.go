package publish

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/internal/freeport"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/openfiles"
	"github.com/penstock/penstock/internal/testing/wait"
)

func webhookSpec(address string) configs.Publish {
	return configs.Publish{Name: "hook", Kind: configs.PublishWebhook, Address: address, Timeout: patience}
}

// secretAddress adds a user, a password and a path with a key to a server's address.
func secretAddress(server string) string {
	return strings.Replace(server, "http://", "http://me:pass-word@", 1) + "/hook/secret-path?key=secret-query"
}

// checkSecrets fails the test if the status or the log has a part of secretAddress.
func checkSecrets(t *testing.T, set *running) {
	t.Helper()
	status, err := json.Marshal(set.Status())
	must.OK(t, err)
	for _, secret := range []string{"pass-word", "secret-path", "secret-query"} {
		if strings.Contains(string(status), secret) || strings.Contains(set.log.String(), secret) {
			t.Errorf("%s is shown: %s\n%s", secret, status, set.log.String())
		}
	}
}

func TestWebhook(t *testing.T) {
	openfiles.CheckLeaks(t)
	var mu sync.Mutex
	var bodies []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		user, password, _ := r.BasicAuth()
		if r.Method != "POST" || r.Header.Get("Content-Type") != "application/json" || r.URL.Path != "/hook/secret-path" ||
			r.URL.RawQuery != "key=secret-query" || user != "me" || password != "pass-word" {
			w.WriteHeader(http.StatusTeapot)
			return
		}
		mu.Lock()
		bodies = append(bodies, string(body))
		mu.Unlock()
	}))
	defer server.Close()
	set := newSet(webhookSpec(secretAddress(server.URL)))
	set.start(t)
	set.Publish(found("door", 1, 2))
	set.Publish(found("door", 2))
	wait.For(t, "both", func() bool { return set.Status()[0].Sent == 2 })
	if s := set.Status()[0]; s.State != Running || s.To != server.URL || !strings.Contains(bodies[0], `"frame":1`) || !strings.Contains(bodies[0], `"label":"class2"`) {
		t.Errorf("%+v, %q", s, bodies)
	}
	checkSecrets(t, set)
	set.stop()
}

// Whatever a server does, the receiver's state says it, and the next server that works gets the answer.
func TestHostileWebhook(t *testing.T) {
	var elsewhere atomic.Int64
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { elsewhere.Add(1) }))
	defer other.Close()

	for name, c := range map[string]struct {
		serve   http.HandlerFunc
		want    string
		refused bool
	}{
		"500":      {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) }, "post answer: server answers 500 Internal Server Error", false},
		"429":      {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(429) }, "post answer: server answers 429", false},
		"404":      {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(404) }, "receiver refuses the answer: server answers 404 Not Found", true},
		"hangs up": {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, "EOF", false},
		"other host": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, other.URL+"/hook/secret-path", http.StatusTemporaryRedirect)
		}, "server redirects to another host", true},
		"page": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "/login", http.StatusFound)
		}, "server redirects to a page (status 302)", true},
		"circle": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, r.URL.String(), http.StatusTemporaryRedirect)
		}, "server redirects more than 3 times", true},
		"no place": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", "http://[/hook/secret-path?key=secret-query")
			w.WriteHeader(http.StatusTemporaryRedirect)
		}, "post answer: ", false},
		"headers": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X-Long", strings.Repeat("x", 2*maxReplyHeader))
		}, "post answer: ", false},
	} {
		t.Run(name, func(t *testing.T) {
			openfiles.CheckLeaks(t)
			server := httptest.NewServer(c.serve)
			defer server.Close()
			set := newSet(webhookSpec(secretAddress(server.URL)))
			set.start(t)
			set.Publish(found("door", 1))
			wait.For(t, c.want, func() bool {
				s := set.Status()[0]
				return strings.Contains(s.Error, c.want) && (s.Refused == 1) == c.refused && (s.State == Waiting) == !c.refused
			})
			checkSecrets(t, set)
			set.stop()
		})
	}
	if n := elsewhere.Load(); n != 0 {
		t.Errorf("another host got %d requests", n)
	}
}

// Servers that do not read, do not answer, or never end their answer cost a timeout.
func TestSlowWebhook(t *testing.T) {
	for name, serve := range map[string]func(c net.Conn){
		"never reads":   func(net.Conn) {},
		"never answers": func(c net.Conn) { _, _ = io.Copy(io.Discard, c) },
		"endless header": func(c net.Conn) {
			_, _ = c.Read(make([]byte, 1)) // the request has begun
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\n")
			for _, err := io.WriteString(c, "X: "); err == nil; _, err = io.WriteString(c, "x") {
				time.Sleep(time.Millisecond)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			openfiles.CheckLeaks(t)
			address := listen(t, serve)
			s := webhookSpec(secretAddress("http://" + address))
			s.Timeout = 20 * time.Millisecond
			set := newSet(s)
			set.start(t)
			a := found("door", 1)
			a.Values = make([]float32, 1<<20) // more than sockets hold
			set.Publish(a)
			wait.For(t, "an error", func() bool { s := set.Status()[0]; return s.State == Waiting && s.Error != "" && s.Sent == 0 })
			checkSecrets(t, set)
			set.stop()
		})
	}
}

// An endless answer is not read to its end.
func TestEndlessReply(t *testing.T) {
	openfiles.CheckLeaks(t)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		for _, err := w.Write(make([]byte, 1<<10)); err == nil; _, err = w.Write(make([]byte, 1<<10)) {
		}
	}))
	defer server.Close()
	set := newSet(webhookSpec(server.URL))
	set.start(t)
	for i := range uint64(3) {
		set.Publish(found("door", i))
	}
	wait.For(t, "the answers", func() bool { return set.Status()[0].Sent == 3 })
	set.stop()
}

// A redirect on the same host is followed with the body.
func TestRedirect(t *testing.T) {
	openfiles.CheckLeaks(t)
	var got atomic.Value
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/new" {
			http.Redirect(w, r, "/new", http.StatusPermanentRedirect)
			return
		}
		body, _ := io.ReadAll(r.Body)
		got.Store(string(body))
	}))
	defer server.Close()
	set := newSet(webhookSpec(server.URL + "/old"))
	set.start(t)
	set.Publish(found("door", 5))
	wait.For(t, "the answer", func() bool { return set.Status()[0].Sent == 1 })
	if body, _ := got.Load().(string); !strings.Contains(body, `"frame":5`) {
		t.Error(body)
	}
	set.stop()
}

// writeToken writes the file of a token.
func writeToken(t *testing.T, file, text string) {
	t.Helper()
	must.OK(t, os.WriteFile(file, []byte(text), 0o600))
}

// Requests have the token of the file, also after a redirect. A token that is replaced is used at once.
// Neither status nor log has it, also if the server sends it back.
func TestToken(t *testing.T) {
	openfiles.CheckLeaks(t)
	const first, second = "first-token.1", "second-token/2"
	var wanted, echo atomic.Value
	wanted.Store(first)
	echo.Store("")
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if text := echo.Load().(string); text != "" {
			conn, _, err := w.(http.Hijacker).Hijack()
			if err == nil {
				_, _ = io.WriteString(conn, strings.ReplaceAll(text, "TOKEN", r.Header.Get("Authorization")))
				conn.Close()
			}
			return
		}
		switch {
		case r.Header.Get("Authorization") != "Bearer "+wanted.Load().(string):
			w.WriteHeader(http.StatusUnauthorized)
		case r.URL.Path == "/old":
			http.Redirect(w, r, "/new", http.StatusPermanentRedirect)
		}
	}))
	defer server.Close()
	s := webhookSpec(server.URL + "/old")
	s.TokenFile = filepath.Join(t.TempDir(), "token")
	set := newSet(s)
	set.start(t)
	shows := func(text string) func() bool {
		return func() bool { return strings.Contains(set.Status()[0].Error, text) }
	}

	set.Publish(found("door", 1))
	wait.For(t, "an error without a file", shows("read token: open "))
	writeToken(t, s.TokenFile, "Bearer "+first+"\n")
	wait.For(t, "an error about the file", shows("has blanks, quotes"))
	writeToken(t, s.TokenFile, first+"\n")
	wait.For(t, "the answer", func() bool { return set.Status()[0].Sent == 1 })

	wanted.Store(second)
	set.Publish(found("door", 2))
	wait.For(t, "a refused answer", func() bool {
		return shows("server answers 401 Unauthorized")() && set.Status()[0].Refused == 1
	})
	writeToken(t, s.TokenFile, second)
	set.Publish(found("door", 3))
	wait.For(t, "the next answer", func() bool { return set.Status()[0].Sent == 2 })

	echo.Store("TOKEN TOKEN\r\n\r\n")
	set.Publish(found("door", 4))
	wait.For(t, "a hidden token", shows("***"))
	echo.Store("HTTP/1.1 200 OK\r\nTOKEN\r\n\r\n")
	wait.For(t, "a hidden token in a header", shows("malformed MIME header"))
	set.stop()
	status, err := json.Marshal(set.Status())
	must.OK(t, err)
	for _, token := range []string{first, second} {
		if strings.Contains(string(status)+set.log.String(), token) {
			t.Errorf("%s is shown: %s\n%s", token, status, set.log.String())
		}
	}
}

func TestReadToken(t *testing.T) {
	dir := t.TempDir()
	pipe := filepath.Join(dir, "pipe")
	must.OK(t, unix.Mkfifo(pipe, 0o600))
	for name, c := range map[string]struct{ text, want string }{
		"empty":   {" \n", "is empty; want one token"},
		"two":     {"secret secret\n", "has blanks"},
		"quoted":  {`"secret"`, "has blanks, quotes"},
		"control": {"sec\x00ret", "has blanks"},
		"foreign": {"sécret", "characters beyond ASCII"},
		"long":    {strings.Repeat("secret", maxTokenFile), "want at most 8192"},
	} {
		file := filepath.Join(dir, name)
		writeToken(t, file, c.text)
		if _, err := ReadToken(file); err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v, want %s", name, err, c.want)
		}
	}
	for file, want := range map[string]string{pipe: "is not a regular file", dir: "is not a regular file", filepath.Join(dir, "none"): "no such file"} {
		if _, err := ReadToken(file); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", file, err, want)
		}
	}
}

// A server that comes later gets the answers that waited.
func TestLateServer(t *testing.T) {
	openfiles.CheckLeaks(t)
	at, err := freeport.Find()
	must.OK(t, err)
	set := newSet(webhookSpec("http://" + at.String()))
	set.start(t)
	set.Publish(found("door", 1))
	wait.For(t, "an error", func() bool { return strings.Contains(set.Status()[0].Error, "connection refused") })

	l, err := net.Listen("tcp", at.String())
	must.OK(t, err)
	server := &http.Server{Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})}
	go server.Serve(l)
	defer server.Close()
	wait.For(t, "the answer", func() bool { s := set.Status()[0]; return s.Sent == 1 && s.State == Running && s.Error == "" })
	set.stop()
}

// listen accepts connections until the test ends. Each is served in a goroutine, and closed at the
// end.
func listen(t *testing.T, serve func(net.Conn)) (address string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must.OK(t, err)
	var open []net.Conn
	var accepting, all sync.WaitGroup
	accepting.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			open = append(open, c)
			all.Go(func() { serve(c) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		accepting.Wait()
		for _, c := range open {
			c.Close()
		}
		all.Wait()
	})
	return l.Addr().String()
}

func TestSecrets(t *testing.T) {
	for address, want := range map[string][]string{
		"https://me:pa%2Fss@host/hook/1234?key=5678": {"/hook/1234?key=5678", "/hook/1234", "key=5678", "me:pa%2Fss", "pa%2Fss", "pa/ss"},
		"https://token@host/":                        {"token"},
		"http://host":                                nil,
	} {
		u, err := url.Parse(address)
		must.OK(t, err)
		if got := secrets(u, configs.PublishWebhook); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s: %q, want %q", address, got, want)
		}
	}
}
