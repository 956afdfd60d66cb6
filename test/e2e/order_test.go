package e2e

import (
	"testing"
	"time"

	"github.com/penstock/penstock/client"
	"github.com/penstock/penstock/wire"
)

// TestLongDeadline sends many pictures at once that have time, next to pictures that have one objective. None
// of the many is late, and they do not keep the others waiting until they are.
func TestLongDeadline(t *testing.T) {
	const n, few = 200, 20 // the many take 25 batches of 8: 2.5 s
	nd := start(t, oneFunction(nullCard(t, "digest", small), ", slo: 600ms"), "PENSTOCK_NULL=busy=100ms")
	serving(t, nd, "fn")
	long, short := newAnswers(), newAnswers()
	patient := dial(t, nd, "fn", client.Options{Timeout: patience, Deliver: long.deliver(small)})
	for i := range n {
		o := client.RequestOptions{Deadline: patience, Tag: uint64(i)}
		if _, err := patient.Send(picture(small, i), o); err != nil {
			t.Fatal(err)
		}
	}
	send(t, dial(t, nd, "fn", client.Options{Timeout: patience, Deliver: short.deliver(small)}), small, 0, few, 100*time.Millisecond)
	short.wait(few)
	long.wait(n)
	// A busy machine may answer some busy: clients share its slots.
	if long.by[wire.StatusOK]+long.by[wire.StatusBusy] != n || long.by[wire.StatusOK] < n/2 || long.wrong > 0 {
		t.Errorf("with a long deadline: %v, want %d ok", long, n)
	}
	if short.by[wire.StatusOK] == 0 || short.wrong > 0 {
		t.Errorf("with one objective: %v, want %d ok", short, few)
	}
}
