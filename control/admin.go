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
	"net/netip"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/penstock/penstock/private"
)

// AdminSocket is the name of the manager's Unix socket for operators' orders, in the runtime
// folder. An order is an HTTP POST with one JSON object. The answer is one line: with status
// 200 it says what was done, with 400 what was wrong. The socket also answers GET of
// StatusPath, RatesPath, SamplePath, CardPath and PicturePath.
const AdminSocket = "admin.sock"

// ListenAdmin opens the admin socket of the manager whose runtime folder is dir. It returns
// ErrInUse if another process listens there.
func ListenAdmin(dir string) (*Listener, error) {
	l, err := openListener("unix", filepath.Join(dir, AdminSocket))
	if err != nil {
		return nil, fmt.Errorf("open admin socket: %w", err)
	}
	return l, nil
}

// RecordFile is the name of a file in the runtime folder. A manager records in it the orders
// that it got at run time. If the manager dies, the next one reads them.
const RecordFile = "functions.json"

// The paths of the admin socket.
const (
	LoadPath     = "/load"     // LoadOrder; answered like add or replace
	AddPath      = "/add"      // a configs.Function; answered when it serves, or when it has been removed again
	RemovePath   = "/remove"   // NameOrder; answered when the name and the port are free
	ReplacePath  = "/replace"  // ReplaceOrder; answered when the new model serves, or when it cannot
	RollbackPath = "/rollback" // NameOrder; like replace, with the function's previous model
	SharePath    = "/share"    // ShareOrder
	MovePath     = "/move"     // MoveOrder; answered when the new process serves, or when it cannot
	PlacePath    = "/place"    // PlacementOrder; answered when all serve there, or when one cannot and all is as before
	PeersPath    = "/peers"    // PeersOrder
)

// CardPath returns the card of the model that serves a function, a models.Card as JSON.
// The query names the function.
const CardPath = "/card"

// NameOrder names the function of an order.
type NameOrder struct {
	Name string `json:"name"`
}

// LoadOrder adds a function, or replaces its model by one of another version.
type LoadOrder struct {
	Name string `json:"name"`
	// Model is a card's name, or its absolute path; empty: the function's model, or its name if it is new.
	Model string `json:"model,omitempty"`
	// Instances are those of a new function; 0: 1.
	Instances int `json:"instances,omitempty"`
}

// ReplaceOrder replaces a function's model by that of another card.
type ReplaceOrder struct {
	Name string `json:"name"`
	// Model is a card's name, or its absolute path.
	Model string `json:"model"`
}

// ShareOrder sets the share of each of a function's instances.
type ShareOrder struct {
	Name         string  `json:"name"`
	SharePercent float64 `json:"share_percent"`
}

// MoveOrder moves a function to another process.
type MoveOrder struct {
	Name string `json:"name"`
	// Worker is the worker that will host the function; empty: its own process.
	Worker string `json:"worker"`
}

// PlacementOrder says which instances functions should have, and where. It ends when all serve
// there, or when one cannot and everything is as before. Functions that it does not name stay as
// they are.
type PlacementOrder struct {
	Functions []FunctionPlacement `json:"functions"`
}

// PlacementRuns is in the refusal of an order while the node carries out another one.
const PlacementRuns = "another order of placement is running; try again when it has ended"

// FunctionPlacement has the instances of one function.
type FunctionPlacement struct {
	Name string `json:"name"`
	// Model is as in configs.Function. A function that does not exist is added.
	Model string `json:"model,omitempty"`
	// SLO is the latency objective; 0: the card's.
	SLO time.Duration `json:"slo,omitempty"`
	// Port is the UDP port of a function that is added, and that of one that exists; 0: any.
	Port uint16 `json:"port,omitempty"`
	// Segments are all places of the function; none removes it.
	Segments []PlacedSegment `json:"segments"`
}

// PlacedSegment is a number of equal instances on one device.
type PlacedSegment struct {
	// Device is one of Desired.Devices.
	Device string `json:"device"`
	// Processes is the number of instances there.
	Processes int `json:"processes"`
	// SharePercent is that of each instance; 0: no fixed share.
	SharePercent float64 `json:"share_percent,omitempty"`
}

// PeersOrder tells a function which other nodes serve it. Clients that follow are sent to them (docs/wire.md) while
// the function drains, or gets more than Rate.
type PeersOrder struct {
	Function string `json:"function"`
	// Peers are the other nodes, at most MaxPeers; none: no client is sent away.
	Peers []Peer `json:"peers,omitempty"`
	// Self is the address at which clients reach this node.
	Self netip.AddrPort `json:"self,omitzero"`
	// Rate is the planned rate of this node, in requests per second; 0: none.
	Rate float64 `json:"rate,omitempty"`
	// Drain sends all clients that follow to peers. The function still serves the others.
	Drain bool `json:"drain,omitempty"`
}

// Peer is another node that serves the function.
type Peer struct {
	Address netip.AddrPort `json:"address"`
	// Weight is the planned rate of the node, in requests per second.
	Weight float64 `json:"weight"`
}

// MaxPeers is the max number of PeersOrder.Peers.
const MaxPeers = 16

// MaxRate is the max rate and weight of a PeersOrder.
const MaxRate = 1e9

// Check returns an error if the order cannot be carried out for any function.
func (o *PeersOrder) Check() error {
	if n := len(o.Peers); n > MaxPeers {
		return fmt.Errorf("peers: %d, want at most %d", n, MaxPeers)
	}
	if !(o.Rate >= 0 && o.Rate <= MaxRate) {
		return fmt.Errorf("rate: %v requests per second, want 0 to %v", o.Rate, MaxRate)
	}
	if len(o.Peers) > 0 && !o.Self.IsValid() {
		return errors.New("self: is missing; want the address and port at which clients reach this node")
	}
	for i, p := range o.Peers {
		same := func(other Peer) bool { return other.Address == p.Address }
		switch {
		case !p.Address.IsValid() || p.Address.Addr().IsUnspecified() || p.Address.Port() == 0:
			return fmt.Errorf("peers[%d].address: %v, want an address and a port", i, p.Address)
		case p.Address == o.Self || slices.ContainsFunc(o.Peers[:i], same):
			return fmt.Errorf("peers[%d].address: %v is named twice, want each node once", i, p.Address)
		case !(p.Weight > 0 && p.Weight <= MaxRate):
			return fmt.Errorf("peers[%d].weight: %v requests per second, want more than 0, and at most %v", i, p.Weight, MaxRate)
		}
	}
	return nil
}

// SendOrder sends an order to the manager whose runtime folder is dir. It returns the line
// that says what was done.
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

// statusPatience is the max time for a manager's status, which the manager has in memory.
const statusPatience = 5 * time.Second

// ReadStatus asks the manager whose runtime folder is dir for its status. If the manager
// hangs, ReadStatus gives up after statusPatience.
func ReadStatus(ctx context.Context, dir string) (Status, error) {
	return read[Status](ctx, dir, StatusPath)
}

// ReadRates asks the manager whose runtime folder is dir for its rates.
func ReadRates(ctx context.Context, dir string) (Rates, error) {
	return read[Rates](ctx, dir, RatesPath)
}

// ReadStatusAt asks a manager of any machine for its status. The address is that of its status page:
// "host:port" or a URL.
func ReadStatusAt(ctx context.Context, address string) (s Status, err error) {
	if !strings.Contains(address, "://") {
		address = "http://" + address
	}
	ctx, cancel := context.WithTimeoutCause(ctx, statusPatience, errNoStatus)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(address, "/")+StatusPath, nil)
	if err != nil {
		return s, fmt.Errorf("request manager's status: %w", err)
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}} // no proxy
	response, err := client.Do(request)
	if err != nil {
		return s, fmt.Errorf("request manager's status: %w", err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return s, fmt.Errorf("request manager's status: %s: %s", request.URL, response.Status)
	}
	if err := json.NewDecoder(io.LimitReader(response.Body, maxAnswer)).Decode(&s); err != nil {
		return s, fmt.Errorf("request manager's status: %s: %w", request.URL, err)
	}
	return s, nil
}

// ReadCard asks the manager whose runtime folder is dir for the card of the model that serves
// a function (CardPath).
func ReadCard(ctx context.Context, dir, function string) ([]byte, error) {
	return read[json.RawMessage](ctx, dir, CardPath+"?function="+url.QueryEscape(function))
}

// read gets JSON from the manager whose runtime folder is dir.
func read[T any](ctx context.Context, dir, path string) (value T, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, statusPatience, errNoStatus)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://manager"+path, nil)
	if err != nil {
		return value, fmt.Errorf("request %s: %w", path, err)
	}
	text, err := ask(dir, request)
	if err != nil {
		return value, err
	}
	if err := json.Unmarshal(text, &value); err != nil {
		return value, fmt.Errorf("read manager's answer to %s: %w", path, err)
	}
	return value, nil
}

// errNoStatus is the cause when the wait for a status ends.
var errNoStatus = fmt.Errorf("no answer within %s; its process may be stopped or hang", statusPatience)

// maxAnswer bounds one answer of a manager: the status of a few hundred functions.
const maxAnswer = 16 << 20

// Refusal is a manager's reason to refuse an order or a question. After other errors of SendOrder it may not have received the order.
type Refusal string

func (r Refusal) Error() string { return "manager: " + string(r) }

// ask sends a request to the manager whose runtime folder is dir, and returns the answer.
func ask(dir string, request *http.Request) ([]byte, error) {
	// Another user's socket would receive the order, and could answer anything.
	folder, err := private.OpenFolder(dir)
	if errors.Is(err, private.ErrNotPrivate) {
		return nil, fmt.Errorf("reach manager: open runtime folder: %w; run this command as the user that runs the node", err)
	}
	if err != nil {
		return nil, fmt.Errorf("reach manager: open runtime folder: %w; check that a node runs with this runtime folder, or choose another with --runtime-dir", err)
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
		if noise, ok := errors.AsType[*url.Error](err); ok {
			err = noise.Err // "Post http://manager/add" means nothing to an operator
		}
		if errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) {
			return nil, fmt.Errorf("reach manager: manager ended before it answered: %w; check the functions with `penstock if list` when it runs again", err)
		}
		return nil, fmt.Errorf("reach manager: %w; check that a node runs with this runtime folder, or choose another with --runtime-dir", err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err != nil {
		return nil, fmt.Errorf("read manager's answer: %w", err)
	}
	if response.StatusCode != http.StatusOK {
		return nil, Refusal(strings.TrimSpace(string(text)))
	}
	return text, nil
}
