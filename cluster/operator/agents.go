package operator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"

	"github.com/penstock/penstock/cluster/fleet"
)

// silence is how long an agent may give no answer. Then its pod counts as cut off.
const silence = 2 * time.Second

// Agents asks the agents of pods.
type Agents interface {
	// Ask reports whether an agent affirms a question. The error is [ErrSilent] if no agent answered within two seconds.
	Ask(ctx context.Context, address string, about string, segment string) (bool, error)
	// Rates returns how many requests the pod's functions have got. The error is [ErrSilent] in the same case.
	Rates(ctx context.Context, address string) ([]fleet.FunctionPage, error)
}

// ErrSilent means that an agent did not answer.
var ErrSilent = errors.New("no answer")

// What agents are asked. These are the paths of their pages.
const (
	serves  = "/readyz"
	drained = "/drained"
	rates   = "/rates"
)

// maxPage is more than a page of all functions of a pod has, in bytes.
const maxPage = 1 << 20

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
func (a *httpAgents) Ask(ctx context.Context, address, about, segment string) (yes bool, err error) {
	err = a.get(ctx, address, url.URL{Path: about, RawQuery: url.Values{"segment": {segment}}.Encode()}, func(r *http.Response) error {
		if yes = r.StatusCode == http.StatusOK; !yes && r.StatusCode != http.StatusServiceUnavailable {
			return fmt.Errorf("status %d, want 200 or 503", r.StatusCode)
		}
		return nil // the body may be endless
	})
	return yes, err
}

// Rates asks until there is an answer, or the agent was silent for too long.
func (a *httpAgents) Rates(ctx context.Context, address string) ([]fleet.FunctionPage, error) {
	var page struct {
		Functions []fleet.FunctionPage `json:"functions"`
	}
	err := a.get(ctx, address, url.URL{Path: rates}, func(r *http.Response) error {
		if r.StatusCode != http.StatusOK {
			return fmt.Errorf("status %d, want 200", r.StatusCode)
		}
		return json.NewDecoder(io.LimitReader(r.Body, maxPage)).Decode(&page)
	})
	return page.Functions, err
}

// get gets a page and passes it to read. It tries again until there is an answer, or the agent was silent for too long.
func (a *httpAgents) get(ctx context.Context, address string, page url.URL, read func(*http.Response) error) error {
	ctx, cancel := context.WithTimeout(ctx, silence)
	defer cancel()
	page.Scheme, page.Host = "http", net.JoinHostPort(address, strconv.Itoa(a.port))
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, page.String(), nil)
	if err != nil {
		return err
	}

	for {
		resp, err := a.client.Do(req)
		if err == nil {
			err = read(resp)
			resp.Body.Close()
			if err == nil {
				return nil
			}
			if ctx.Err() == nil {
				return fmt.Errorf("get %s: %w", page.String(), err)
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w from %s for %s: %w", ErrSilent, page.Host, silence, err)
		case <-time.After(pollInterval):
		}
	}
}
