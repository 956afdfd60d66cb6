package fleet

import (
	"time"

	"github.com/penstock/penstock/control/runclock"
	"github.com/penstock/penstock/models"
)

// tenure is the time since a process got an instance's ring. The control loop owns it. The zero
// value means that no process has had the ring.
type tenure struct {
	since time.Duration // by runclock.Now
	// batchesSince is when a process last got the last of its batch sizes, by runclock.Now.
	batchesSince time.Duration
	// The models of the process that had the ring before, and of the one that has it.
	before, model *models.Card
}

// begin records that a process with a model gets the ring.
func (t *tenure) begin(model *models.Card) {
	t.since = runclock.Now()
	t.before, t.model = t.model, model
}

// completeBatches records that a process has all its batch sizes.
func (t *tenure) completeBatches() { t.batchesSince = runclock.Now() }

// sameModel reports whether the process before ran the same model.
func (t *tenure) sameModel() bool { return t.before != nil && t.before.Equal(t.model) }

// movable returns since when a process could move, by runclock.Now. Before it had the ring it was
// linking, and for its batch sizes the orchestrator has a timeout.
func (t *tenure) movable() time.Duration { return max(t.since, t.batchesSince) }
