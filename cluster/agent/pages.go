package agent

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/penstock/penstock/control"
)

// The paths of the agent's pages. All are read with GET.
const (
	// RatesPath is the node's page of rates, control.Rates.
	RatesPath = control.RatesPath
	// ReadyPath answers 200 if the pod serves a function that does not drain, or all of them drain, else 503 with the reason.
	// With `?segment=NAME` it answers for the function of one segment.
	ReadyPath = "/readyz"
	// DrainedPath with `?segment=NAME` answers 200 if the clients of a segment have left, else 503 with the reason.
	DrainedPath = "/drained"
	// EndPath answers when the pod ends and the clients of all its segments have left. The kubelet stops the node then.
	EndPath = "/end"
)

// ratesPatience is shorter than the time after which the operator gives up.
const ratesPatience = 1500 * time.Millisecond

// Pages serves the agent's pages.
func (a *Agent) Pages() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+RatesPath, func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), ratesPatience)
		defer cancel()
		rates, err := control.ReadRates(ctx, a.Dir)
		if err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		json.NewEncoder(w).Encode(rates)
	})
	mux.HandleFunc("GET "+ReadyPath, func(w http.ResponseWriter, r *http.Request) {
		_, problem := a.state()
		if name := r.URL.Query().Get("segment"); name != "" {
			problem = a.about(name, func(s segmentState) bool { return s.ready })
		}
		answer(w, "ready", problem)
	})
	mux.HandleFunc("GET "+DrainedPath, func(w http.ResponseWriter, r *http.Request) {
		answer(w, "drained", a.about(r.URL.Query().Get("segment"), func(s segmentState) bool { return s.drained }))
	})
	mux.HandleFunc("GET "+EndPath, func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).SetReadDeadline(time.Time{}) // the answer takes longer than others may
		select {
		case <-a.drained:
			answer(w, "drained", "")
		case <-r.Context().Done():
		}
	})
	return mux
}

func answer(w http.ResponseWriter, yes, problem string) {
	if problem != "" {
		http.Error(w, problem, http.StatusServiceUnavailable)
		return
	}
	fmt.Fprintln(w, yes)
}

// about returns why a segment is not in a state; empty: it is.
func (a *Agent) about(name string, is func(segmentState) bool) string {
	segments, problem := a.state()
	switch s, known := segments[name]; {
	case !known:
		return cmp.Or(problem, fmt.Sprintf("the pod has no segment %q", name))
	case !is(s):
		return cmp.Or(s.message, "it does not drain")
	}
	return ""
}

func (a *Agent) state() (map[string]segmentState, string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.segments, a.problem
}
