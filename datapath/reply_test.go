package datapath

import (
	"testing"

	"github.com/penstock/penstock/shm"
	"github.com/penstock/penstock/wire"
)

func TestPlausible(t *testing.T) {
	const complete, now = 100, 200
	in := func(dispatched, gathered, inferred int64) shm.Result {
		return shm.Result{Dispatched: dispatched, Gathered: gathered, Inferred: inferred}
	}
	for _, c := range []struct {
		name    string
		status  wire.Status
		kind    wire.Kind
		batch   uint16
		payload int
		result  shm.Result
		want    bool
	}{
		{"ok", wire.StatusOK, wire.KindTopK, 1, 5 * wire.ClassSize, in(110, 120, 130), true},
		{"ok, all at once", wire.StatusOK, wire.KindRaw, 1, 4, in(complete, complete, complete), true},
		{"ok, this very moment", wire.StatusOK, wire.KindRaw, 1, 4, in(now, now, now), true},
		{"no box in the picture", wire.StatusOK, wire.KindBoxes, 1, 0, in(110, 120, 130), true},
		{"two boxes", wire.StatusOK, wire.KindBoxes, 9, 2 * wire.BoxSize, in(110, 120, 130), true},
		{"a box and a byte", wire.StatusOK, wire.KindBoxes, 1, wire.BoxSize + 1, in(110, 120, 130), false},
		{"half a class", wire.StatusOK, wire.KindTopK, 1, wire.ClassSize / 2, in(110, 120, 130), false},
		{"half a number", wire.StatusOK, wire.KindRaw, 1, 6, in(110, 120, 130), false},
		{"a map of no cells", wire.StatusOK, wire.KindMap, 1, wire.MapHead, in(110, 120, 130), true},
		{"a map with a cell too many", wire.StatusOK, wire.KindMap, 1, wire.MapHead + 1, in(110, 120, 130), false},
		{"ok of no kind", wire.StatusOK, wire.KindNone, 1, 0, in(110, 120, 130), false},
		{"ok of a kind that is none", wire.StatusOK, wire.NumKinds, 1, 0, in(110, 120, 130), false},
		{"ok in no batch", wire.StatusOK, wire.KindRaw, 0, 4, in(110, 120, 130), false},
		{"ok, never run", wire.StatusOK, wire.KindRaw, 1, 4, in(0, 0, 0), false},
		{"dispatched before it was complete", wire.StatusOK, wire.KindRaw, 1, 4, in(99, 120, 130), false},
		{"gathered before dispatched", wire.StatusOK, wire.KindRaw, 1, 4, in(120, 119, 130), false},
		{"inferred before gathered", wire.StatusOK, wire.KindRaw, 1, 4, in(110, 130, 129), false},
		{"inferred tomorrow", wire.StatusOK, wire.KindRaw, 1, 4, in(110, 120, now+1), false},
		{"before the machine was on", wire.StatusOK, wire.KindRaw, 1, 4, in(-1<<63, -1<<63, -1<<63), false},
		{"late", wire.StatusLate, wire.KindNone, 0, 0, in(0, 0, 0), true},
		{"late, but run", wire.StatusLate, wire.KindNone, 1, 0, in(110, 120, 130), false},
		{"failed before it ran", wire.StatusFailed, wire.KindNone, 0, 0, in(0, 0, 0), true},
		{"failed in its batch", wire.StatusFailed, wire.KindNone, 4, 0, in(110, 120, 130), true},
		{"failed half way", wire.StatusFailed, wire.KindNone, 4, 0, in(110, 0, 0), false},
		{"incomplete is a status of the manager", wire.StatusIncomplete, wire.KindNone, 0, 0, in(0, 0, 0), false},
		{"busy is a status of the manager", wire.StatusBusy, wire.KindNone, 0, 0, in(0, 0, 0), false},
		{"refused is a status of the manager", wire.StatusRefused, wire.KindNone, 0, 0, in(0, 0, 0), false},
		{"a status that is none", wire.NumStatuses, wire.KindNone, 0, 0, in(0, 0, 0), false},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := wire.Result{Status: c.status, Kind: c.kind, Batch: c.batch}
			if got := plausible(&r, &c.result, make([]byte, c.payload), complete, now); got != c.want {
				t.Errorf("plausible = %v, want %v", got, c.want)
			}
		})
	}
}
