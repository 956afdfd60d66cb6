package operator

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"
)

// silence is how long an agent may give no answer. Then its pod counts as cut off.
const silence = 2 * time.Second

// Agents asks the agents of pods.
type Agents interface {
	// Ask reports whether an agent affirms a question. The error is [ErrSilent] if no agent answered within two seconds.
	Ask(ctx context.Context, address string, about string, segment string) (bool, error)
}

// ErrSilent means that an agent did not answer.
var ErrSilent = errors.New("no answer")

// What agents are asked. These are the paths of their pages.
const (
	serves  = "/readyz"
	drained = "/drained"
)

// A question to the agent of a pod is about one segment.
type question struct{ about, address, segment string }

// ask asks all questions at once, and returns those that were affirmed. A silent agent has no clients, so it has drained.
func ask(ctx context.Context, agents Agents, questions []question) map[question]bool {
	yes := make([]bool, len(questions))
	var wg sync.WaitGroup
	for i, q := range questions {
		wg.Go(func() {
			answer, err := agents.Ask(ctx, q.address, q.about, q.segment)
			yes[i] = answer || q.about == drained && errors.Is(err, ErrSilent)
		})
	}
	wg.Wait()

	affirmed := map[question]bool{}
	for i, q := range questions {
		affirmed[q] = yes[i]
	}
	return affirmed
}

// httpAgents asks agents over HTTP. An agent says yes with status 200 and no with 503.
type httpAgents struct {
	client http.Client
	port   int
}

// NewHTTPAgents asks agents at a TCP port of their pods.
func NewHTTPAgents(port int) Agents {
	return &httpAgents{
		client: http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }},
		port:   port,
	}
}

// Ask asks until there is an answer, or the agent was silent for too long.
func (a *httpAgents) Ask(ctx context.Context, address, about, segment string) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, silence)
	defer cancel()
	page := url.URL{
		Scheme:   "http",
		Host:     net.JoinHostPort(address, strconv.Itoa(a.port)),
		Path:     about,
		RawQuery: url.Values{"segment": {segment}}.Encode(),
	}

	for {
		code, err := a.get(ctx, page.String())
		switch {
		case err == nil && code == http.StatusOK:
			return true, nil
		case err == nil && code == http.StatusServiceUnavailable:
			return false, nil
		case err == nil:
			return false, fmt.Errorf("get %s: status %d, want 200 or 503", page.String(), code)
		}
		select {
		case <-ctx.Done():
			return false, fmt.Errorf("%w from %s for %s: %w", ErrSilent, page.Host, silence, err)
		case <-time.After(pollInterval):
		}
	}
}

// get returns the status of a page. It reads none of the body, which may be endless.
func (a *httpAgents) get(ctx context.Context, page string) (code int, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, page, nil)
	if err != nil {
		return 0, err
	}
	resp, err := a.client.Do(req)
	if err != nil {
		return 0, err
	}
	return resp.StatusCode, resp.Body.Close()
}
