//go:build gpu

package gpu

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/testing/nodetest"
	"github.com/penstock/penstock/node"
)

// probeRecord is the node's log record of the priority probe.
type probeRecord struct {
	Message string  `json:"message"`
	Cached  bool    `json:"cached"`
	AfterMS float64 `json:"after_ms"`
}

func findProbeRecord(t *testing.T, n *node.Node) probeRecord {
	t.Helper()
	for _, line := range strings.Split(n.Log(), "\n") {
		var r probeRecord
		if strings.Contains(line, "stream priorities") && json.Unmarshal([]byte(line), &r) == nil {
			return r
		}
	}
	t.Fatalf("the log has no record of the priority probe:\n%s", n.Log())
	return probeRecord{}
}

// Stream priorities hold between MPS clients on this GPU, the measurement is quick, and the second
// start reads its result.
func TestPriorityProbe(t *testing.T) {
	const maxMS = 2000
	cache := "XDG_CACHE_HOME=" + t.TempDir()
	config := fmt.Sprintf("log: {format: json}\nfunctions:\n  - {name: fn, model: %s, port: 0}\n", nodetest.Card(t, "digest", 2048))
	for _, c := range []struct {
		name   string
		cached bool
	}{{"first start", false}, {"second start", true}} {
		t.Run(c.name, func(t *testing.T) {
			n := start(t, config, cache)
			nodetest.Serving(t, n, "fn")
			s := status(t, n)
			r := findProbeRecord(t, n)
			t.Logf("%+v, %+v", s.Devices[0].GPU.Priorities, r)
			if p := s.Devices[0].GPU.Priorities; p == nil || !p.Hold || s.Policy != "guarantee" {
				t.Errorf("priorities %+v, policy %s; want them to hold, and guarantees", p, s.Policy)
			}
			if r.Cached != c.cached || r.AfterMS > maxMS {
				t.Errorf("record %+v, want cached %v within %d ms", r, c.cached, maxMS)
			}
		})
	}
}
