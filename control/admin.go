package control

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
)

// AdminSocket is the name of the manager's Unix socket, in the runtime folder,
// that takes a person's orders: HTTP, POST, one JSON object, answered 200 with the
// one line that says what was done, or 400 with the one that says what was wrong.
const AdminSocket = "admin.sock"

// The paths of the admin socket.
const (
	AddPath      = "/add"      // a configs.Function
	RemovePath   = "/remove"   // NameOrder
	ReplacePath  = "/replace"  // ReplaceOrder; answered when the new model serves, or cannot
	RollbackPath = "/rollback" // NameOrder; as replace, with the model before
	SharePath    = "/share"    // ShareOrder
)

// NameOrder names the function that an order is about.
type NameOrder struct {
	Name string `json:"name"`
}

// ReplaceOrder brings the model of another card into a function.
type ReplaceOrder struct {
	Name string `json:"name"`
	// Model is a card's name, or the absolute path of one.
	Model string `json:"model"`
}

// ShareOrder gives each of a function's instances a share by hand.
type ShareOrder struct {
	Name         string  `json:"name"`
	SharePercent float64 `json:"share_percent"`
}

// SendOrder sends an order to the manager whose runtime folder is dir, and returns
// the line that says what was done.
func SendOrder(dir, path string, order any) (done string, err error) {
	socket := filepath.Join(dir, AdminSocket)
	client := http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", socket)
		},
	}}
	body, err := json.Marshal(order)
	if err != nil {
		return "", fmt.Errorf("encode order: %w", err)
	}
	response, err := client.Post("http://manager"+path, "application/json", bytes.NewReader(body))
	if err != nil {
		var noise *url.Error // "Post http://manager/add" is no place that a person knows
		if errors.As(err, &noise) {
			err = noise.Err
		}
		return "", fmt.Errorf("reach manager: %w; is a node running with this runtime folder? --runtime-dir says which", err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, 64<<10))
	if err != nil {
		return "", fmt.Errorf("read manager's answer: %w", err)
	}
	done = strings.TrimSpace(string(text))
	if response.StatusCode != http.StatusOK {
		return "", fmt.Errorf("manager: %s", done)
	}
	return done, nil
}
