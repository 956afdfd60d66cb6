package gateway

import (
	"context"
	"crypto/sha256"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"github.com/penstock/penstock/internal/testing/logtest"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/wait"
)

// ownAccess is the access to a gateway on a loopback address without keys.
func ownAccess(t *testing.T) *access {
	t.Helper()
	return must.Get(newAccess(netip.MustParseAddrPort("127.0.0.1:9651"), t.TempDir(), "", zerolog.Nop()))(t)
}

// publicAccess is the access to a gateway on another address with a file of keys.
func publicAccess(t *testing.T, file string, log zerolog.Logger) *access {
	t.Helper()
	return must.Get(newAccess(netip.MustParseAddrPort("192.0.2.1:9651"), t.TempDir(), file, log))(t)
}

// keyLine is a key of a file. Its secret is its name.
func keyLine(name, functions, operations string, more ...string) string {
	return fmt.Sprintf("- {name: %s, sha256: %x, functions: [%s], operations: [%s]%s}\n",
		name, sha256.Sum256([]byte(name)), functions, operations, strings.Join(more, ""))
}

// writeKeys replaces a file of keys, as editors do.
func writeKeys(t *testing.T, file string, keys ...string) {
	t.Helper()
	must.OK(t, os.WriteFile(file+".new", []byte("keys:\n"+strings.Join(keys, "")), 0o600))
	must.OK(t, os.Rename(file+".new", file))
}

// refusals is the counter of a reason.
func refusals(t *testing.T, a *access, reason string) float64 {
	t.Helper()
	r := prometheus.NewRegistry()
	must.OK(t, r.Register(a.refused))
	for _, m := range must.Get(r.Gather())(t)[0].Metric {
		if m.Label[0].GetValue() == reason {
			return m.Counter.GetValue()
		}
	}
	t.Fatalf("no counter for %q", reason)
	return 0
}

func TestAccess(t *testing.T) {
	ok := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	file := filepath.Join(t.TempDir(), "keys.yaml")
	writeKeys(t, file,
		keyLine("old", `"*"`, "infer", ", until: 2020-01-01T00:00:00Z"),
		keyLine("line-3", `"*"`, "infer", ", until: 2120-01-01T00:00:00+01:00"),
		keyLine("line-4", `"*"`, "infer"))
	own, other := ownAccess(t), publicAccess(t, file, zerolog.Nop())
	ownWithKeys := must.Get(newAccess(netip.MustParseAddrPort("127.0.0.1:9651"), t.TempDir(), file, zerolog.Nop()))(t)
	wanted := map[*access]map[string]float64{own: {}, other: {}, ownWithKeys: {}} // refusals
	for _, c := range []struct {
		name                string
		a                   *access
		host, origin, token string
		want                int
		reason              string
	}{
		{"localhost", own, "localhost:9651", "", "", 200, ""},
		{"IPv6", own, "[::1]:9651", "", "", 200, ""},
		{"own page", own, "127.0.0.1:9651", "http://127.0.0.1:9651", "", 200, ""},
		{"foreign page", own, "127.0.0.1:9651", "http://evil.example", "", 403, ""},
		{"null origin", own, "127.0.0.1:9651", "null", "", 403, ""},
		{"foreign host", own, "evil.example", "", "", 403, ""},
		{"key", other, "camera.example", "", "Bearer line-3", 200, ""},
		{"second key", other, "camera.example", "", "Bearer line-4", 200, ""},
		{"no key", other, "camera.example", "", "", 401, refusedMissing},
		{"other scheme", other, "camera.example", "", "Basic line-3", 401, refusedMissing},
		{"wrong key", other, "camera.example", "", "Bearer line-5", 401, refusedWrong},
		{"prefix of key", other, "camera.example", "", "Bearer line-", 401, refusedWrong},
		{"hash of key", other, "camera.example", "", fmt.Sprintf("Bearer %x", sha256.Sum256([]byte("line-3"))), 401, refusedWrong},
		{"expired key", other, "camera.example", "", "Bearer old", 401, refusedExpired},
		{"no key on loopback", ownWithKeys, "localhost", "", "", 401, refusedMissing},
		{"key on loopback", ownWithKeys, "localhost", "", "Bearer line-3", 200, ""},
		{"foreign host with key", ownWithKeys, "evil.example", "", "Bearer line-3", 403, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := httptest.NewRequest(http.MethodGet, "/v2", nil)
			r.Host = c.host
			if c.origin != "" {
				r.Header.Set("Origin", c.origin)
			}
			if c.token != "" {
				r.Header.Set("Authorization", c.token)
			}
			w := httptest.NewRecorder()
			c.a.guard(ok).ServeHTTP(w, r)
			if w.Code != c.want || !strings.Contains(w.Body.String(), c.reason) {
				t.Errorf("%d %s, want %d %s", w.Code, w.Body, c.want, c.reason)
			}
			if c.reason != "" {
				wanted[c.a][c.reason]++
			}
		})
	}
	for a, counts := range wanted {
		for _, reason := range []string{refusedMissing, refusedWrong, refusedExpired, refusedForbidden} {
			if got := refusals(t, a, reason); got != counts[reason] {
				t.Errorf("%v requests refused as %s, want %v", got, reason, counts[reason])
			}
		}
	}
}

// Each route asks what the key allows.
func TestKeyRights(t *testing.T) {
	s := newTestServer(t, oneBox)
	file := filepath.Join(t.TempDir(), "keys.yaml")
	writeKeys(t, file,
		keyLine("finder", "finder", "infer"), keyLine("other", `"raw*"`, "infer, look"), keyLine("looks", `"*"`, "look"),
		keyLine("changes", `"*"`, "change"), keyLine("all", `"*"`, "infer, look, change"))
	s.mayLoad = true
	s.demo = &Demo{Kill: func() (string, error) { return "finder", nil }}
	a := publicAccess(t, file, zerolog.Nop())
	web := a.guard(s.routes())
	picture := string(photo(t, 4, 4))
	for _, c := range []struct {
		request string
		allowed []string // keys
	}{
		{"GET /v2", []string{"finder", "other", "looks", "changes", "all"}},
		{"GET /v2/models/finder", []string{"finder", "looks", "changes", "all"}},
		{"GET /v2/models/finder/ready", []string{"finder", "looks", "changes", "all"}},
		{"POST /v2/models/finder/infer", []string{"finder", "all"}},
		{"POST /v2/models/finder/versions/3/infer", []string{"finder", "all"}},
		{"POST /v1/vision/detection?function=finder", []string{"finder", "all"}},
		{"GET /api/camera?function=finder", []string{"finder", "all"}},
		{"GET /v2/models/finder/stats", []string{"looks", "all"}},
		{"GET /v2/models/stats", []string{"other", "looks", "all"}},
		{"GET /api/state", []string{"looks", "all"}},
		{"GET /api/wall/finder", []string{"looks", "all"}},
		{"GET /", []string{"looks", "all"}},
		{"GET /metrics", []string{"looks", "all"}},
		{"POST /api/demo/kill", []string{"changes", "all"}},
		{"POST /v2/repository/models/finder/load", []string{"changes", "all"}},
		{"POST /v2/repository/models/finder/unload", []string{"changes", "all"}},
	} {
		for _, k := range []string{"finder", "other", "looks", "changes", "all"} {
			method, path, _ := strings.Cut(c.request, " ")
			r := httptest.NewRequest(method, path, strings.NewReader(picture))
			r.Header.Set("Authorization", "Bearer "+k)
			before := refusals(t, a, refusedForbidden)
			w := httptest.NewRecorder()
			web.ServeHTTP(w, r)
			counted := refusals(t, a, refusedForbidden) - before
			forbidden := w.Code == http.StatusForbidden
			if allowed := strings.Contains(strings.Join(c.allowed, " "), k); allowed == forbidden || forbidden != (counted == 1) {
				t.Errorf("%s with key %s: %d %s, counted %v", c.request, k, w.Code, w.Body, counted)
			}
		}
	}

	// A key lists only its own functions, and does not learn which others there are.
	for path, want := range map[string]string{
		"/v2/models":         `"name":"raw"`,
		"/v2/models/stats":   `"name":"raw"`,
		"/v2/models/unknown": `key other is not for the function \"unknown\"`,
		"/v2/models/raw-2":   `no such function: \"raw-2\"; the node has [\"raw\"]`,
		"/api/camera":        `no such function: \"\"; the node has [\"raw\"]`,
	} {
		r := httptest.NewRequest(http.MethodGet, path, nil)
		r.Header.Set("Authorization", "Bearer other")
		w := httptest.NewRecorder()
		web.ServeHTTP(w, r)
		if !strings.Contains(w.Body.String(), want) || strings.Contains(w.Body.String(), "finder") {
			t.Errorf("%s: %s", path, w.Body)
		}
	}
}

// A handler that no guard protects serves nothing.
func TestNoGuard(t *testing.T) {
	w := httptest.NewRecorder()
	newTestServer(t, oneBox).routes().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/v2/models/finder", nil))
	if w.Code != http.StatusForbidden {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// Edits of the file of keys take effect, and end the open requests of keys that are gone.
func TestFollowKeys(t *testing.T) {
	s := newTestServer(t, oneBox)
	file, log := filepath.Join(t.TempDir(), "keys.yaml"), &logtest.Log{}
	first, second := keyLine("first", `"*"`, "look"), keyLine("second", `"*"`, "look")
	writeKeys(t, file, first)
	a := publicAccess(t, file, zerolog.New(log))
	ctx, cancel := context.WithCancel(t.Context())
	var follows sync.WaitGroup
	follows.Go(func() { a.follow(ctx) })
	defer follows.Wait()
	defer cancel()
	web := httptest.NewServer(a.guard(s.routes()))
	defer web.Close()
	open := func(secret string) *http.Response {
		r := must.Get(http.NewRequestWithContext(t.Context(), http.MethodGet, web.URL+"/api/events", nil))(t)
		r.Header.Set("Authorization", "Bearer "+secret)
		response := must.Get(http.DefaultClient.Do(r))(t)
		t.Cleanup(func() { response.Body.Close() })
		return response
	}
	find := func(secret string) bool { k, _ := a.find(secret); return k != nil }
	wait.For(t, "watch", func() bool { return log.Count("keys in force") == 1 })

	writeKeys(t, file, first, second)
	wait.For(t, "second key", func() bool { return find("second") })
	revoked, kept := open("first"), open("second")
	if !find("first") || revoked.StatusCode != 200 || kept.StatusCode != 200 {
		t.Fatalf("with two keys: %s, %s", revoked.Status, kept.Status)
	}

	// A wrong file changes nothing, with one line in the log.
	writeKeys(t, file, second, "- {name: third}\n")
	wait.For(t, "rejected keys", func() bool { return log.Count("keys rejected") > 0 })
	if !find("first") || !find("second") || log.Count("keys rejected") != 1 || log.Count(file+":3:4: keys[1].sha256: is missing") != 1 {
		t.Errorf("after a wrong file: %s", log.String())
	}

	writeKeys(t, file, second)
	wait.For(t, "end of first key", func() bool { return !find("first") })
	if _, err := revoked.Body.Read(make([]byte, 1)); err == nil {
		t.Error("the open request of a revoked key did not end")
	}
	if r := open("first"); r.StatusCode != http.StatusUnauthorized {
		t.Errorf("a revoked key: %s", r.Status)
	}
	s.events.close()
	if _, err := kept.Body.Read(make([]byte, 1)); err == nil || !find("second") {
		t.Errorf("the request of a key that stays ended with %v, want the end of all events", err)
	}
}

// A request ends with the time of its key.
func TestKeyExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "keys.yaml")
		writeKeys(t, file, keyLine("short", `"*"`, "look", ", until: "+time.Now().Add(time.Hour).UTC().Format(time.RFC3339)))
		a := publicAccess(t, file, zerolog.Nop())
		r := httptest.NewRequest(http.MethodGet, "/api/events", nil)
		r.Header.Set("Authorization", "Bearer short")
		began := time.Now()
		a.guard(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })).ServeHTTP(httptest.NewRecorder(), r)
		if took := time.Since(began); took != time.Hour {
			t.Errorf("request ended after %v, want one hour", took)
		}
		if _, reason := a.find("short"); reason != refusedExpired {
			t.Errorf("reason %q, want %s", reason, refusedExpired)
		}
	})
}

// A browser gives the secret once in the address, and has it in a cookie from then on.
func TestBrowserToken(t *testing.T) {
	file := filepath.Join(t.TempDir(), "keys.yaml")
	writeKeys(t, file, keyLine("0123456789abcdef", `"*"`, "look"))
	a := publicAccess(t, file, zerolog.Nop())
	page := a.guard(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte("page")) }))
	first := httptest.NewRecorder()
	page.ServeHTTP(first, httptest.NewRequest(http.MethodGet, "http://camera.example//evil.example/?token=0123456789abcdef&level=1", nil))
	if first.Code != http.StatusSeeOther || strings.Contains(first.Header().Get("Location"), "token") || strings.HasPrefix(first.Header().Get("Location"), "//") {
		t.Fatalf("%d, Location %q", first.Code, first.Header().Get("Location"))
	}
	r := httptest.NewRequest(http.MethodGet, "http://camera.example/", nil)
	for _, c := range first.Result().Cookies() {
		if !c.HttpOnly || c.SameSite != http.SameSiteStrictMode {
			t.Errorf("cookie %+v", c)
		}
		r.AddCookie(c)
	}
	second := httptest.NewRecorder()
	page.ServeHTTP(second, r)
	if second.Body.String() != "page" {
		t.Errorf("%d %s", second.Code, second.Body)
	}
	wrong := httptest.NewRecorder()
	page.ServeHTTP(wrong, httptest.NewRequest(http.MethodGet, "http://camera.example/?token=wrong", nil))
	if wrong.Code != http.StatusUnauthorized || len(wrong.Result().Cookies()) > 0 {
		t.Errorf("%d with a wrong token", wrong.Code)
	}
}

// Without a file of keys a gateway on another address makes a key, and finds it again.
func TestMadeKey(t *testing.T) {
	dir := t.TempDir()
	public := netip.MustParseAddrPort("0.0.0.0:9651")
	for range 2 {
		a := must.Get(newAccess(public, dir, "", zerolog.Nop()))(t)
		token := strings.TrimSpace(string(must.Get(os.ReadFile(filepath.Join(dir, TokenFile)))(t)))
		if k, _ := a.find(token); k == nil || len(token) < minToken {
			t.Errorf("token %q is not that of a key", token)
		}
	}
	if info, err := os.Stat(filepath.Join(dir, TokenFile)); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	must.OK(t, os.WriteFile(filepath.Join(dir, TokenFile), []byte("1234"), 0o600))
	if _, err := newAccess(public, dir, "", zerolog.Nop()); err == nil || !strings.Contains(err.Error(), "want at least 16") {
		t.Error(err)
	}
}
