package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/client"
	"github.com/penstock/penstock/internal/testing/nodetest"
	"github.com/penstock/penstock/internal/testing/wait"
)

// TestOverloadWarning adds a function to a node whose only one needs the whole device: `if add` warns at once, and status and
// `if list` name the function that is not kept.
func TestOverloadWarning(t *testing.T) {
	card := nodetest.Card(t, "digest", small)
	nd := start(t, fmt.Sprintf(`
shares: {interval: 100ms}
functions:
  - {name: busy, model: %s, port: 0, slo: 100ms, priority: 1, environment: {PENSTOCK_NULL: "busy=20ms,busy_per_image=20ms"}}
`, card))
	nodetest.Serving(t, nd, "busy")
	load := nodetest.Dial(t, nd, "busy", client.Options{})
	defer sendEvery(2*time.Millisecond, load)()
	wait.For(t, "busy to need all of the device", func() bool {
		f, err := nd.Function("busy")
		return err == nil && f.Guarantee != nil && f.Guarantee.CostMillis > 0 && f.Guarantee.NeedPercent > 90
	})

	out, err := run(t, nd.Dir, "if", "add", "second", "--model", nodetest.Card(t, "other", small), "--priority", "2")
	if err != nil || !strings.Contains(out, "warning: overload: functions need 1") || !strings.Contains(out, "not guaranteed: busy") {
		t.Errorf("if add: %v\n%s", err, out)
	}
	s, err := nd.Status()
	if err != nil || s.Devices[0].NeedsPercent <= 100 {
		t.Errorf("status: needs %v %%, %v; want over 100", s.Devices[0].NeedsPercent, err)
	}
	if n := nodetest.Metric(t, nd, `penstock_needs_ratio{device="cpu"}`); n <= 1 {
		t.Errorf("penstock_needs_ratio %v, want over 1", n)
	}
	if out, err = run(t, nd.Dir, "if", "list"); err != nil || !strings.Contains(out, "overload: functions need 1") {
		t.Errorf("if list: %v\n%s", err, out)
	}
}

// With shares of the paper `priority` has no effect. `up` and `if add` say so.
func TestPriorityWithoutEffect(t *testing.T) {
	card := nodetest.Card(t, "digest", small)
	nd, log := startRecorded(t, fmt.Sprintf("shares: {policy: gslice}\nfunctions:\n  - {name: first, model: %s, port: 0, priority: 1}\n", card))
	out, err := run(t, nd.Dir, "if", "add", "second", "--model", card, "--priority", "2")
	if want := "warning: priority has no effect with `shares: {policy: gslice}`\n"; err != nil || strings.Count(out, want) != 1 {
		t.Errorf("if add: %v\n%s\nwant one line %q", err, out, want)
	}
	if want := "these keys have no effect with `shares: {policy: gslice}`"; strings.Count(log.String(), want) != 1 || !strings.Contains(log.String(), "priority of first") {
		t.Errorf("the log does not say once %q of first", want)
	}
}
