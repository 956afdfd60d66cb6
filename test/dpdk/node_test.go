package dpdk

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/libml/null"
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
	card := nullCard(t, s.bytes)
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
	text += fmt.Sprintf("functions:\n  - {name: fn, model: %s, port: %d, share_percent: 50}\n", card, port)
	for _, line := range s.functions {
		text += "  - " + strings.ReplaceAll(line, "CARD", card) + "\n"
	}
	return text, filepath.Dir(card)
}

// ordinaryPages selects packet memory that every machine has.
const ordinaryPages = "huge_pages: false"

// nullCard writes a card for a model that computes nothing: it answers with a digest of
// the picture. Even a slow machine meets its objective, so a test loses only what it
// loses on purpose.
func nullCard(t *testing.T, bytes int) string {
	t.Helper()
	text := fmt.Sprintf(`name: digest
version: 1
framework: "null"
input:
  size: [%d, 1024, 1]
  wire: {type: u8, layout: hwc}
  tensor: {type: u8, layout: hwc}
outputs:
  - {name: digest, shape: [1]}
batches: [1, 2, 4, 8]
slo: 60s
decoder: {name: raw}
`, bytes/1024)
	path := filepath.Join(t.TempDir(), "digest.yaml")
	must(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

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
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// try is start for nodes that may fail to start.
func (l *laboratory) try(t *testing.T, s setup) (*running, error) {
	t.Helper()
	text, models := s.config(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	var n *node.Node
	var err error
	l.node.do(func() {
		n, err = node.Start(ctx, node.Options{
			Binary: penstock, Config: text, Args: s.args, HTTP: netip.MustParseAddrPort(nodeMgmt + ":9650"),
			OnThread: true, // the thread's network
		})
	})
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() {
		if t.Failed() {
			text, _ := n.Metrics() // if it still runs
			t.Logf("the node said:\n%s\nand counted:\n%s", n.Log(), portMetrics(text))
		}
		n.Kill()
		waitFor(t, "the node's processes to end", func() bool { return len(processes(n.Dir)) == 0 })
	})
	return &running{Node: n, lab: l, setup: s, models: models}, nil
}

// process is a process of a node. It is found by the runtime folder in its arguments or
// environment.
type process struct {
	pid     int
	command string // up, manager, orchestrator, if
}

func processes(dir string) (found []process) {
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		var pid int
		if _, err := fmt.Sscanf(e.Name(), "%d", &pid); err != nil {
			continue
		}
		arguments, err := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		if err != nil || len(arguments) == 0 {
			continue
		}
		environment, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "environ"))
		if words := strings.Split(string(arguments), "\x00"); len(words) > 1 &&
			(bytes.Contains(arguments, []byte(dir)) || bytes.Contains(environment, []byte(dir))) {
			found = append(found, process{pid: pid, command: words[1]})
		}
	}
	return found
}

// child returns the process of a node that runs that verb.
func (r *running) child(t *testing.T, verb string) int {
	t.Helper()
	for _, p := range processes(r.Dir) {
		if p.command == verb {
			return p.pid
		}
	}
	t.Fatalf("the node has no %s; it has %v", verb, processes(r.Dir))
	return 0
}

// metric reads one value from /metrics; 0 if the series is missing.
func (r *running) metric(t *testing.T, series string) float64 {
	t.Helper()
	text, err := r.Metrics()
	must(t, err)
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, series+" "); ok {
			var v float64
			if _, err := fmt.Sscan(rest, &v); err != nil {
				t.Fatalf("read %q: %v", line, err)
			}
			return v
		}
	}
	return 0
}

// dropped returns how many frames were dropped for that reason (frame.Reason's names).
func (r *running) dropped(t *testing.T, reason string) float64 {
	t.Helper()
	return r.metric(t, fmt.Sprintf("penstock_port_frames_total{reason=%q}", reason))
}

// settled waits until nothing is in flight and no packet memory is held. It checks that
// no accepted request was lost.
func (r *running) settled(t *testing.T) control.FunctionStatus {
	t.Helper()
	var f control.FunctionStatus
	waitFor(t, "packet memory to come back", func() bool {
		var err error
		f, err = r.Function("fn")
		return err == nil && f.Accepted == f.Replied && f.HeldBytes == 0
	})
	if f.Lost != 0 {
		t.Errorf("%d accepted requests were lost", f.Lost)
	}
	return f
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
	must(t, json.Unmarshal(out.Bytes(), &report))
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

// picture returns a picture whose bytes depend on i.
func picture(bytes, i int) []byte {
	p := make([]byte, bytes)
	for j := range p {
		p[j] = byte(j*7 + i*13)
	}
	return p
}

// isDigest reports whether an answer is the model's answer to that picture.
func isDigest(r *wire.Result, payload, p []byte) bool {
	return r != nil && r.Status == wire.StatusOK && len(payload) == 4 &&
		math.Float32frombits(binary.LittleEndian.Uint32(payload)) == null.Value(null.Digest(p), 0, 0)
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
	must(t, os.WriteFile(file, []byte(config), 0o600))
	var out []byte
	l.node.do(func() { out, err = exec.Command(penstock, "doctor", "--config", file).CombinedOutput() })
	return string(out), err
}
