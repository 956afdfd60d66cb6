package e2e

import (
	"testing"
	"time"

	"github.com/penstock/penstock/client"
	"github.com/penstock/penstock/internal/testing/nodetest"
)

// TestLongDeadline sends many pictures at once that have time, next to pictures that have one objective. None
// of the many is late, and they do not keep the others waiting until they are.
func TestLongDeadline(t *testing.T) {
	const n, few = 200, 20 // the many take 25 batches of 8: 2.5 s
	nd := start(t, oneFunction(nodetest.Card(t, "digest", small), ", slo: 600ms"), "PENSTOCK_NULL=busy=100ms")
	nodetest.Serving(t, nd, "fn")
	long, short := nodetest.NewAnswers(), nodetest.NewAnswers()
	patient := nodetest.Dial(t, nd, "fn", client.Options{Timeout: patience, Deliver: long.Deliver(small)})
	for i := range n {
		o := client.RequestOptions{Deadline: patience, Tag: uint64(i)}
		if _, err := patient.Send(nodetest.Picture(small, i), o); err != nil {
			t.Fatal(err)
		}
	}
	nodetest.Send(t, nodetest.Dial(t, nd, "fn", client.Options{Timeout: patience, Deliver: short.Deliver(small)}), small, 0, few, 100*time.Millisecond)
	short.Wait(few)
	long.Wait(n)
	// A busy machine may answer some busy: clients share its slots.
	if long.By[client.StatusOK]+long.By[client.StatusBusy] != n || long.By[client.StatusOK] < n/2 || long.Wrong > 0 {
		t.Errorf("with a long deadline: %v, want %d ok", long, n)
	}
	if short.By[client.StatusOK] == 0 || short.Wrong > 0 {
		t.Errorf("with one objective: %v, want %d ok", short, few)
	}
}
