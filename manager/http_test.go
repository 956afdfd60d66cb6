package manager

import (
	"encoding/json"
	"net/http/httptest"
	"testing"

	dto "github.com/prometheus/client_model/go"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/control"
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
	b.asked(func() { b.Manager.status(page, nil) })
	if err := json.NewDecoder(page.Body).Decode(&s); err != nil {
		b.t.Fatal(err)
	}
	return s
}

// series returns the values of a metric.
func (b *nodeBed) series(name string) []*dto.Metric {
	b.t.Helper()
	var families []*dto.MetricFamily
	var err error
	b.asked(func() { families, err = b.metrics.registry.Gather() })
	if err != nil {
		b.t.Fatal(err)
	}
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
