package manager

import (
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/rs/zerolog"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/models"
)

// asked runs the control loop's calls until question returns.
func (b *nodeBed) asked(question func()) {
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		question()
	}()
	for {
		select {
		case call := <-b.calls:
			call()
		case <-answered:
			return
		}
	}
}

// page returns the status page.
func (b *nodeBed) page() (s control.Status) {
	b.t.Helper()
	page := httptest.NewRecorder()
	b.asked(func() { b.show(statusOf)(page, nil) })
	must.OK(b.t, json.NewDecoder(page.Body).Decode(&s))
	return s
}

// series returns the values of a metric.
func (b *nodeBed) series(name string) []*dto.Metric {
	b.t.Helper()
	var families []*dto.MetricFamily
	var err error
	b.asked(func() { families, err = b.metrics.Registry.Gather() })
	must.OK(b.t, err)
	for _, f := range families {
		if f.GetName() == name {
			return f.GetMetric()
		}
	}
	return nil
}

func TestStatusStartTime(t *testing.T) {
	b := newNode(t, configs.DeviceCPU, nil, "governor", named("a", 20))
	if s := b.page(); s.Started.IsZero() || !s.Started.Equal(b.started) || len(s.Functions) != 1 {
		t.Errorf("the page says %+v, and the manager started at %v", s, b.started)
	}
}

func TestCardPath(t *testing.T) {
	b := newNode(t, configs.DeviceCPU, nil, "governor", named("a", 20))
	get := func(name string) *httptest.ResponseRecorder {
		page := httptest.NewRecorder()
		b.asked(func() { b.card(page, httptest.NewRequest("GET", control.CardPath+"?function="+name, nil)) })
		return page
	}
	var card models.Card
	if page := get("a"); json.NewDecoder(page.Body).Decode(&card) != nil || card.Name != "a" || card.Input.Width != testCard().Input.Width {
		t.Errorf("%d, card %+v", page.Code, card)
	}
	if page := get("nope"); page.Code != 400 {
		t.Errorf("%d %s", page.Code, page.Body)
	}
}

// The status port answers next to connections that send nothing, and not to pages of other sites.
func TestStatusPort(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must.OK(t, err)
	web := &servers{}
	page := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte("ok")) })
	web.serve(l, ownPages(page, true), zerolog.Nop())
	defer web.close()
	for range 3 * maxConnections {
		c, err := net.Dial("tcp", l.Addr().String())
		must.OK(t, err)
		defer c.Close()
	}

	client := http.Client{Timeout: 10 * time.Second}
	for _, c := range []struct {
		name, host, site string
		want             int
	}{
		{"own", "", "", 200},
		{"name of this machine", "localhost:9650", "none", 200},
		{"another name", "evil.example", "", 403},
		{"a port that is a name", "localhost:evil.example", "", 403},
		{"page of another site", "", "cross-site", 403},
	} {
		request, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+l.Addr().String(), nil)
		request.Host = c.host
		if c.site != "" {
			request.Header.Set("Sec-Fetch-Site", c.site)
		}
		response, err := client.Do(request)
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		response.Body.Close()
		if response.StatusCode != c.want {
			t.Errorf("%s: %s, want %d", c.name, response.Status, c.want)
		}
	}
	request := httptest.NewRequest(http.MethodGet, "http://node.example:9650/", nil)
	answer := httptest.NewRecorder()
	if ownPages(page, false).ServeHTTP(answer, request); answer.Code != 200 {
		t.Errorf("on another address than loopback: %d %s", answer.Code, answer.Body)
	}
}
