package fleet

import (
	"testing"
	"time"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/manager/sharing"
)

// newNodeWithoutMPS is newGuaranteedNode on a GPU without MPS.
func newNodeWithoutMPS(t *testing.T, functions ...configs.Function) *nodeBed {
	t.Helper()
	gpu := h200()
	gpu.GroupSMs = nil
	b := newNode(t, "cuda", gpu, sharing.MechanismTimeSlicing)
	b.cfg.Shares.Policy = configs.PolicyGuarantee
	for _, f := range functions {
		must.OK(t, b.add(f))
	}
	b.turns()
	return b
}

func TestBatchCaps(t *testing.T) {
	b := newNodeWithoutMPS(t, objective("quick", 10*time.Millisecond), objective("slow", time.Second))
	sizes := testCard().Batches
	b.instance("slow", 0).reported.Limit = float64(sizes[len(sizes)-1])
	for range 3 {
		b.load("quick", 10, time.Millisecond)
		b.load("slow", 10000, 3*time.Millisecond)
	}
	slow := b.wanted("slow")[control.Serve]
	if slow.MaxBatch != 2 {
		t.Errorf("batches of slow have up to %d requests of 3 ms, want 2: quick has 10 ms and takes 1 itself", slow.MaxBatch)
	}
	if n := b.wanted("quick")[control.Serve].MaxBatch; n != 0 {
		t.Errorf("batches of quick have up to %d requests, want no limit", n)
	}
	if s := b.status("quick").Guarantee; s.Unprotected != control.UnprotectedByDevice || s.Infeasible != "" {
		t.Errorf("status %+v", s)
	}
	b.sharing.Device.MPS = true
	b.turn()
	if n := b.wanted("slow")[control.Serve].MaxBatch; n != 0 {
		t.Errorf("batches of slow have up to %d requests with MPS, want no limit", n)
	}
}
