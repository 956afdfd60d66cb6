package publish

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"
)

// The limits of what a webhook's server can make the gateway do.
const (
	maxRedirects     = 3
	maxReply         = 64 << 10 // bytes; longer replies cost the connection
	maxReplyHeader   = 64 << 10
	idleWebhook      = time.Minute
	webhookUserAgent = "penstock"
)

// webhook posts messages to an address.
type webhook struct {
	address   string
	tokenFile string // empty: no token
	client    *http.Client
}

func newWebhook(u *url.URL, tokenFile string, timeout time.Duration) *webhook {
	transport := &http.Transport{
		Proxy: http.ProxyFromEnvironment, MaxConnsPerHost: 1, IdleConnTimeout: idleWebhook, MaxResponseHeaderBytes: maxReplyHeader,
		TLSHandshakeTimeout: timeout, ForceAttemptHTTP2: true,
	}
	client := &http.Client{Transport: transport, Timeout: timeout, CheckRedirect: func(next *http.Request, via []*http.Request) error {
		first := via[0]
		switch {
		case next.URL.Host != first.URL.Host || next.URL.Scheme != first.URL.Scheme:
			return refusal("server redirects to another host or scheme; want that address in the configuration")
		case next.Method != http.MethodPost:
			return refusal("server redirects to a page (status %d); want the address that takes POST", next.Response.StatusCode)
		case len(via) > maxRedirects:
			return refusal("server redirects more than %d times", maxRedirects)
		}
		return nil
	}}
	return &webhook{address: u.String(), tokenFile: tokenFile, client: client}
}

func (w *webhook) open(context.Context) error { return nil }

func (w *webhook) lost() <-chan struct{} { return nil }

func (w *webhook) close() { w.client.CloseIdleConnections() }

func (w *webhook) send(ctx context.Context, m message) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, w.address, bytes.NewReader(m.text))
	if err != nil {
		return errors.New("make request: address is not valid")
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("User-Agent", webhookUserAgent)
	token := ""
	if w.tokenFile != "" {
		if token, err = ReadToken(w.tokenFile); err != nil { // each time: the token may be replaced
			return err
		}
		request.Header.Set("Authorization", "Bearer "+token)
	}
	response, err := w.client.Do(request)
	if err != nil {
		if detailed, ok := errors.AsType[*url.Error](err); ok { // it contains the address
			err = detailed.Err
		}
		return fmt.Errorf("post answer: %w", hideToken(err, token))
	}
	defer response.Body.Close()
	_, _ = io.CopyN(io.Discard, response.Body, maxReply) // so that the connection can be used again

	switch status := response.StatusCode; {
	case status >= 200 && status < 300:
		return nil
	case status == http.StatusRequestTimeout, status == http.StatusTooManyRequests, status >= 500:
		return fmt.Errorf("post answer: server answers %d %s", status, http.StatusText(status))
	default:
		return refusal("server answers %d %s", status, http.StatusText(status))
	}
}
