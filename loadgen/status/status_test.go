package status_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/loadgen/status"
)

const golden = `{"functions":[{"name":"face","port":9001,"slo_ms":25,"share_percent":37.5,"swaps":2,` +
	`"swap_idle_us":{"last":41,"p50":40,"max":55.5},"accepted":1000,"replied":998,"lost":0,"kernel_drops":3,` +
	`"input":{"height":128,"width":128,"channels":3},"limit":4.5}]}`

func serve(t *testing.T, handler http.HandlerFunc) *status.Client {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	client := status.New(strings.TrimPrefix(server.URL, "http://"))
	t.Cleanup(client.Close)
	return client
}

func TestStatus(t *testing.T) {
	client := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != control.StatusPath {
			http.NotFound(w, r)
			return
		}
		io.WriteString(w, golden)
	})
	got, err := client.Status(context.Background())
	must.OK(t, err)
	want := control.FunctionStatus{
		Name: "face", Port: 9001, SLOMillis: 25, SharePercent: 37.5, Swaps: 2,
		SwapIdle: control.IdleMicros{Last: 41, P50: 40, Max: 55.5},
		Accepted: 1000, Replied: 998, KernelDrops: 3,
		Input: control.InputStatus{Height: 128, Width: 128, Channels: 3}, Limit: 4.5,
	}
	if face, found := got.Function("face"); !found || !reflect.DeepEqual(face, want) {
		t.Errorf("got %+v, want %+v", face, want)
	}
	if _, found := got.Function("detect"); found {
		t.Error("a function that is not there was found")
	}
}

func TestStatusErrors(t *testing.T) {
	for name, test := range map[string]struct {
		handler http.HandlerFunc
		want    string
	}{
		"not found":   {http.NotFound, "404"},
		"no JSON":     {func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "<html>") }, "invalid character"},
		"wrong shape": {func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, `{"functions":3}`) }, "functions"},
		"too long": {func(w http.ResponseWriter, _ *http.Request) {
			io.WriteString(w, strings.Repeat(" ", status.MaxBytes+1))
		}, "longer than"},
	} {
		_, err := serve(t, test.handler).Status(context.Background())
		if err == nil || !strings.HasPrefix(err.Error(), "request manager's status: ") || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want it to tell %q", name, err, test.want)
		}
	}
}

func TestStatusContext(t *testing.T) {
	release := make(chan struct{})
	client := serve(t, func(http.ResponseWriter, *http.Request) { <-release })
	defer close(release)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := client.Status(ctx); err == nil {
		t.Error("no error of a cancelled question")
	}
}
