package fleet

import (
	"testing"
	"time"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/internal/testing/must"
)

func TestCard(t *testing.T) {
	b := newNode(t, configs.DeviceCPU, nil, "governor", named("a", 20))
	card, err := b.Card("a")
	must.OK(t, err)
	if card.Name != "a" || card.Input.Width != testCard().Input.Width {
		t.Errorf("card %+v", card)
	}
	_, err = b.Card("nope")
	refused(t, err, `no function "nope"`)
}

// Without an orchestrator, a drain does not wait for a process that would have served.
func TestDrainWithoutOrchestrator(t *testing.T) {
	b := newGuaranteedNode(t, configs.DeviceCPU, objective("a", time.Second))
	b.Drain()
	b.Step()
	if len(b.functions) == 0 {
		t.Fatal("the drain does not wait for processes of an orchestrator that runs")
	}
	b.gone = true
	b.Step()
	if !(len(b.functions) == 0) {
		t.Errorf("the drain still waits: %s", b.Undrained())
	}
}

// If a node is killed, its processes end together with the orchestrator, perhaps before the manager
// has told them to drain.
func TestDrainWithoutReports(t *testing.T) {
	b := newGuaranteedNode(t, configs.DeviceCPU, objective("a", time.Second))
	active, _ := b.serves("a")
	shadow, _ := b.shadow("a")
	b.Drain()
	in := b.instance("a", 0)
	in.lost(active)
	b.Step()
	b.Step()
	in.lost(shadow)
	b.Step()
	if !(len(b.functions) == 0) {
		t.Errorf("the drain still waits: %s", b.Undrained())
	}
}

// A drain ends functions one by one. The shares of those that are left may still change.
func TestDrainWhileSharing(t *testing.T) {
	b := newNode(t, configs.DeviceCPU, nil, "governor", named("a", 60), named("b", 30))
	b.turns()
	b.Drain()
	b.functions.find("a").leaves = true
	left := b.functions.find("b")
	left.config.SharePercent = 90
	left.shareEdits++
	b.devices[0].decide(occasion{})
	if got := b.instance("b", 0).pair.Share(); got != 90 {
		t.Errorf("b has %v %%, want the 90 that are free", got)
	}
}
