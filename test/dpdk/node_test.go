package dpdk

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/nodetest"
	"github.com/penstock/penstock/node"
	"github.com/penstock/penstock/wire"
)

// Sizes of the pictures: two fragments, and as many as a picture of 224 x 224 has.
const (
	small = 2 * fragmentBytes
	large = 147 * fragmentBytes
)

// port is where the function listens.
const port = 9000

// setup describes a node in the laboratory.
type setup struct {
	device    string // DPDK's name of the port and its arguments
	bytes     int    // of a picture; 0 means small
	addresses []string
	more      []string // lines below source.dpdk
	functions []string // more functions, as lines of YAML
	up        string   // lines at the top level
	args      []string // of penstock up
}

func (s setup) config(t *testing.T) (text, models string) {
	t.Helper()
	if s.bytes == 0 {
		s.bytes = small
	}
	if len(s.addresses) == 0 {
		s.addresses = []string{node4, node6}
	}
	card := nodetest.Card(t, "digest", s.bytes)
	text = fmt.Sprintf(`
log: {level: debug, format: console}
shares: {policy: gslice, tune: false}
%s
source:
  dpdk:
    port: %q
    addresses: ["%s"]
`, s.up, s.device, strings.Join(s.addresses, `", "`))
	for _, line := range s.more {
		text += "    " + line + "\n"
	}
	text += fmt.Sprintf("functions:\n  - {name: fn, model: %s, port: %d, share_percent: 50, slo: 60s}\n", card, port)
	for _, line := range s.functions {
		text += "  - " + strings.ReplaceAll(line, "CARD", card) + "\n"
	}
	return text, filepath.Dir(card)
}

// ordinaryPages selects packet memory that every machine has.
const ordinaryPages = "huge_pages: false"

// running is a running node.
type running struct {
	*node.Node
	lab    *laboratory
	setup  setup
	models string // folder of its card
}

// start starts a node in the laboratory, and ends it with the test.
func (l *laboratory) start(t *testing.T, s setup) *running {
	t.Helper()
	r, err := l.try(t, s)
	must.OK(t, err)
	return r
}

// try is start for nodes that may fail to start.
func (l *laboratory) try(t *testing.T, s setup) (*running, error) {
	t.Helper()
	text, models := s.config(t)
	var n *node.Node
	var err error
	l.node.Do(func() {
		n, err = nodetest.Try(t, node.Options{
			Config: text, Args: s.args, HTTP: netip.MustParseAddrPort(nodeMgmt + ":9650"),
			OnThread: true, // the thread's network
		})
	})
	if err != nil {
		return nil, err
	}
	return &running{Node: n, lab: l, setup: s, models: models}, nil
}

// dropped returns how many frames were dropped for that reason (frame.Reason's names).
func (r *running) dropped(t *testing.T, reason string) float64 {
	t.Helper()
	return nodetest.Metric(t, r.Node, fmt.Sprintf("penstock_port_frames_total{reason=%q}", reason))
}

// loadReport is the part of `penstock load -o json` about the only function.
type loadReport struct {
	Sent, Answered, OK, Late, Incomplete, Busy, Refused, Failed, Unanswered uint64
	Checked, Wrong, Unsent                                                  uint64
	Lost                                                                    *uint64
	P50Millis                                                               float64 `json:"p50_ms"`
	P99Millis                                                               float64 `json:"p99_ms"`
}

func (r loadReport) String() string {
	return fmt.Sprintf("%d sent, %d ok, %d late, %d incomplete, %d busy, %d failed, %d unanswered, %d unsent; %d checked, %d wrong; p50 %.2f p99 %.2f ms",
		r.Sent, r.OK, r.Late, r.Incomplete, r.Busy, r.Failed, r.Unanswered, r.Unsent, r.Checked, r.Wrong, r.P50Millis, r.P99Millis)
}

// load runs `penstock load` against the node, with kernel UDP sockets of the camera's
// network. The load generator checks answers with the same model.
func (r *running) load(t *testing.T, rate string, duration time.Duration) loadReport {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, penstock, "load", "--http", r.HTTP.String(), "--models", r.models,
		"--rate", "fn="+rate, "--duration", duration.String(), "--warmup", "500ms", "-o", "json")
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	if err := cmd.Run(); err != nil {
		t.Fatalf("penstock load: %v\n%s%s", err, &said, &out)
	}
	var report struct{ Functions []loadReport }
	must.OK(t, json.Unmarshal(out.Bytes(), &report))
	for _, f := range report.Functions {
		if f.Sent > 0 {
			t.Log(f)
			return f
		}
	}
	t.Fatalf("penstock load sent nothing:\n%s%s", &said, &out)
	return loadReport{}
}

// right checks that every picture was answered ok and correctly. Fragments that a cable
// or a queue loses are requested by NACKs and sent again.
func (f loadReport) right(t *testing.T) {
	t.Helper()
	if f.OK != f.Sent || f.Unsent > 0 || f.Checked == 0 || f.Wrong > 0 || f.Lost == nil || *f.Lost > 0 {
		t.Errorf("%v; want every picture answered, and right", f)
	}
}

// isDigest reports whether an answer is the model's answer to that picture.
func isDigest(r *wire.Result, payload, p []byte) bool {
	return r != nil && r.Status == wire.StatusOK && nodetest.IsDigest(payload, p)
}

// address4 and address6 are the function's addresses.
var (
	address4 = netip.AddrPortFrom(netip.MustParseAddr(node4), port)
	address6 = netip.AddrPortFrom(netip.MustParseAddr(node6), port)
)

// ask sends a picture and checks the answer.
func (h *host) ask(id uint32, p []byte) {
	h.t.Helper()
	h.send(h.picture(id, p)...)
	h.expect(id, p)
}

// expect waits for the correct answer to a picture that was sent.
func (h *host) expect(id uint32, p []byte) {
	h.t.Helper()
	for {
		head, r, payload := h.answer(patience)
		switch {
		case r == nil:
			h.t.Fatalf("no answer to request %d", id)
		case head.RequestID != id: // an answer to an earlier request
		case !isDigest(r, payload, p):
			h.t.Fatalf("request %d was answered %v (%d bytes), want ok and its digest", id, r.Status, len(payload))
		default:
			return
		}
	}
}

// doctor runs `penstock doctor` in the node's network, with that configuration.
func (l *laboratory) doctor(t *testing.T, config string) (said string, err error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "config.yaml")
	must.OK(t, os.WriteFile(file, []byte(config), 0o600))
	var out []byte
	l.node.Do(func() { out, err = exec.Command(penstock, "doctor", "--config", file).CombinedOutput() })
	return string(out), err
}
