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
	"syscall"
	"time"

	"github.com/penstock/penstock/private"
)

// AdminSocket is the name of the manager's Unix socket, in the runtime folder,
// that takes a person's orders: HTTP, POST, one JSON object, answered 200 with the
// one line that says what was done, or 400 with the one that says what was wrong. GET of
// StatusPath is answered there, too.
const AdminSocket = "admin.sock"

// ListenAdmin opens the admin socket of the manager whose runtime folder is dir. ErrInUse is
// returned when another process listens there.
func ListenAdmin(dir string) (*Listener, error) {
	l, err := openListener("unix", filepath.Join(dir, AdminSocket))
	if err != nil {
		return nil, fmt.Errorf("open admin socket: %w", err)
	}
	return l, nil
}

// RecordFile is the name of the file in the runtime folder where a manager records what it
// was told at run time, for the one that is started when it died.
const RecordFile = "functions.json"

// The paths of the admin socket.
const (
	AddPath      = "/add"      // a configs.Function; answered when it serves, or was taken off again
	RemovePath   = "/remove"   // NameOrder
	ReplacePath  = "/replace"  // ReplaceOrder; answered when the new model serves, or cannot
	RollbackPath = "/rollback" // NameOrder; as replace, with the model before the one that it runs
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
func SendOrder(ctx context.Context, dir, path string, order any) (done string, err error) {
	body, err := json.Marshal(order)
	if err != nil {
		return "", fmt.Errorf("encode order: %w", err)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://manager"+path, bytes.NewReader(body))
	if err != nil {
		return "", fmt.Errorf("make order: %w", err)
	}
	request.Header.Set("Content-Type", "application/json")
	text, err := ask(dir, request)
	return strings.TrimSpace(string(text)), err
}

// statusPatience is how long a manager may take for its status, which is in its memory.
const statusPatience = 5 * time.Second

// ReadStatus asks the manager whose runtime folder is dir how its functions are. One that
// hangs is given up after some seconds.
func ReadStatus(ctx context.Context, dir string) (Status, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, statusPatience, errMute)
	defer cancel()
	var s Status
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://manager"+StatusPath, nil)
	if err != nil {
		return s, fmt.Errorf("ask for status: %w", err)
	}
	text, err := ask(dir, request)
	if err != nil {
		return s, err
	}
	if err := json.Unmarshal(text, &s); err != nil {
		return s, fmt.Errorf("read manager's status: %w", err)
	}
	return s, nil
}

// errMute is why a status is not waited for any longer.
var errMute = fmt.Errorf("no answer within %s: its process is stopped or hangs", statusPatience)

// maxAnswer bounds what a manager may say at a time: the status of a few hundred
// functions.
const maxAnswer = 16 << 20

// ask has the manager whose runtime folder is dir answer a request.
func ask(dir string, request *http.Request) ([]byte, error) {
	// Another user's socket would get the order, and could answer anything.
	folder, err := private.OpenFolder(dir)
	if errors.Is(err, private.ErrNotPrivate) {
		return nil, fmt.Errorf("reach manager: open runtime folder: %w; use a node as its user", err)
	}
	if err != nil {
		return nil, fmt.Errorf("reach manager: open runtime folder: %w; is a node running with this runtime folder? --runtime-dir says which", err)
	}
	defer folder.Close()
	socket := filepath.Join(folder.Path(), AdminSocket)
	client := http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", socket)
		},
	}}
	response, err := client.Do(request)
	if cause := context.Cause(request.Context()); err != nil && cause != nil {
		return nil, fmt.Errorf("reach manager: %w", cause)
	}
	if err != nil {
		var noise *url.Error // "Post http://manager/add" is no place that a person knows
		if errors.As(err, &noise) {
			err = noise.Err
		}
		if errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) {
			return nil, fmt.Errorf("reach manager: it ended before it answered: %w; `penstock if list` says what is there when another runs", err)
		}
		return nil, fmt.Errorf("reach manager: %w; is a node running with this runtime folder? --runtime-dir says which", err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err != nil {
		return nil, fmt.Errorf("read manager's answer: %w", err)
	}
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("manager: %s", strings.TrimSpace(string(text)))
	}
	return text, nil
}
