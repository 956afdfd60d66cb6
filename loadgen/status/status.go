// Package status asks a manager for the status of its inference functions. It
// reads the JSON that the manager serves at control.StatusPath.
package status

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/penstock/penstock/control"
)

// timeout ends one status request: a manager on the same machine answers in
// milliseconds, a loaded one in tens.
const timeout = 2 * time.Second

// MaxBytes is the longest answer that is read; a thousand functions need less.
const MaxBytes = 1 << 20

// Client asks one manager. Any goroutine may use it.
type Client struct {
	url  string
	http http.Client
}

// New returns a client of the manager at an address: "host:port" or the URL of
// its root. It connects at the first request.
func New(address string) *Client {
	if !strings.Contains(address, "://") {
		address = "http://" + address
	}
	return &Client{
		url:  strings.TrimSuffix(address, "/") + control.StatusPath,
		http: http.Client{Timeout: timeout, Transport: &http.Transport{}},
	}
}

// Status returns the manager's current status.
func (c *Client) Status(ctx context.Context) (control.Status, error) {
	status, err := c.fetch(ctx)
	if err != nil {
		return control.Status{}, fmt.Errorf("request manager's status: %w", err)
	}
	return status, nil
}

func (c *Client) fetch(ctx context.Context) (control.Status, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, c.url, nil)
	if err != nil {
		return control.Status{}, err
	}
	response, err := c.http.Do(request)
	if err != nil {
		return control.Status{}, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return control.Status{}, fmt.Errorf("%s: %s", c.url, response.Status)
	}
	body, err := io.ReadAll(io.LimitReader(response.Body, MaxBytes+1))
	if err != nil {
		return control.Status{}, fmt.Errorf("%s: %w", c.url, err)
	}
	if len(body) > MaxBytes {
		return control.Status{}, fmt.Errorf("%s: the answer is longer than %d bytes", c.url, MaxBytes)
	}
	var status control.Status
	if err := json.Unmarshal(body, &status); err != nil {
		return control.Status{}, fmt.Errorf("%s: %w", c.url, err)
	}
	return status, nil
}

// Close closes idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }
