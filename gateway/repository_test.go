package gateway

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	rpcstatus "google.golang.org/grpc/status"

	"github.com/penstock/penstock/gateway/openinference/inference"
)

// TestRepository loads and unloads functions over HTTP and gRPC.
func TestRepository(t *testing.T) {
	text := func(s string) *inference.ModelRepositoryParameter {
		return &inference.ModelRepositoryParameter{ParameterChoice: &inference.ModelRepositoryParameter_StringParam{StringParam: s}}
	}
	client, s := dial(t, oneBox, ownAccess(t))
	s.mayLoad = true
	web := ownAccess(t).guard(s.routes())
	for _, c := range []struct {
		verb, name, parameter, value string
		status                       int
		code                         codes.Code
		err                          string
	}{
		{"load", "finder", "", "", 200, codes.OK, ""},
		{"load", "finder", "model", "other", 200, codes.OK, ""},
		{"unload", "finder", "", "", 200, codes.OK, ""},
		{"load", "nope", "model", "m", 400, codes.InvalidArgument, `failed to load 'nope': manager: fake got /load {"name":"nope","model":"m"}`},
		{"unload", "nope", "", "", 404, codes.NotFound, `failed to unload 'nope': Request for unknown model: no such function: "nope"`},
		{"load", "finder", "model", "../x", 400, codes.InvalidArgument, "parameter model is unknown or no name; want only `model`, a card's name"},
		{"load", "finder", "config", "{}", 400, codes.InvalidArgument, "parameter config is unknown"},
	} {
		t.Run(strings.Join([]string{c.verb, c.name, c.parameter, c.value}, " "), func(t *testing.T) {
			body, parameters := "", map[string]*inference.ModelRepositoryParameter{}
			if c.parameter != "" {
				body = `{"parameters":{"` + c.parameter + `":"` + c.value + `"}}`
				parameters[c.parameter] = text(c.value)
			}
			w := httptest.NewRecorder()
			web.ServeHTTP(w, httptest.NewRequest("POST", "http://localhost/v2/repository/models/"+c.name+"/"+c.verb, strings.NewReader(body)))
			if got := strings.ReplaceAll(w.Body.String(), `\"`, `"`); w.Code != c.status || !strings.Contains(got, c.err) {
				t.Errorf("HTTP: %d %s, want %d %s", w.Code, got, c.status, c.err)
			}
			var err error
			if c.verb == "load" {
				_, err = client.RepositoryModelLoad(t.Context(), &inference.RepositoryModelLoadRequest{ModelName: c.name, Parameters: parameters})
			} else {
				_, err = client.RepositoryModelUnload(t.Context(), &inference.RepositoryModelUnloadRequest{ModelName: c.name})
			}
			if rpcstatus.Code(err) != c.code || !strings.Contains(errors.Join(err, errors.New("")).Error(), c.err) {
				t.Errorf("gRPC: %v, want %v %s", err, c.code, c.err)
			}
		})
	}
}

// TestRepositoryOff loads and unloads without the configuration's permission.
func TestRepositoryOff(t *testing.T) {
	client, s := dial(t, oneBox, ownAccess(t))
	const why = "gateway does not load or unload functions; `gateway: {load: true}` in the configuration permits it"
	_, load := client.RepositoryModelLoad(t.Context(), &inference.RepositoryModelLoadRequest{ModelName: "finder"})
	_, unload := client.RepositoryModelUnload(t.Context(), &inference.RepositoryModelUnloadRequest{ModelName: "finder"})
	for _, err := range []error{load, unload} {
		if rpcstatus.Code(err) != codes.PermissionDenied || rpcstatus.Convert(err).Message() != why {
			t.Errorf("%v, want %s", err, why)
		}
	}
	for _, verb := range []string{"load", "unload"} {
		w := httptest.NewRecorder()
		ownAccess(t).guard(s.routes()).ServeHTTP(w, httptest.NewRequest("POST", "http://localhost/v2/repository/models/finder/"+verb, http.NoBody))
		if w.Code != http.StatusForbidden || !strings.Contains(w.Body.String(), why) {
			t.Errorf("%s: %d %s", verb, w.Code, w.Body)
		}
	}
}

// A body of JSON is not read beyond its limit: decoded it would take a multiple of it.
func TestLargeJSON(t *testing.T) {
	s := newTestServer(t, oneBox)
	s.mayLoad = true
	for _, path := range []string{"index", "models/finder/load"} {
		w := httptest.NewRecorder()
		body := `{"parameters":{"a":[0` + strings.Repeat(",0", maxJSON/2) + `]}}`
		ownAccess(t).guard(s.routes()).ServeHTTP(w, httptest.NewRequest("POST", "http://localhost/v2/repository/"+path, strings.NewReader(body)))
		if w.Code != http.StatusRequestEntityTooLarge {
			t.Errorf("%s: %d %s", path, w.Code, w.Body)
		}
	}
}
