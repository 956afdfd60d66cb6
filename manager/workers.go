package manager

import (
	"maps"
	"time"

	"github.com/rs/zerolog"

	"github.com/penstock/penstock/manager/policy/guarantee"
)

// workers are the workers that host processes. All members of a worker have its guarantee, and the
// CPU time of its process is that of all members. The control loop owns it.
type workers struct {
	guarantees map[string]guarantee.Action
	ran        map[string]int64 // requests that the members ran
}

func newWorkers() workers {
	return workers{guarantees: map[string]guarantee.Action{}, ran: map[string]int64{}}
}

// settle publishes a worker's guarantee.
func (w *workers) settle(name string, objective time.Duration, a guarantee.Action, log zerolog.Logger) {
	w.guarantees[name] = settleGuarantee(log.With().Str("worker", name).Logger(), "worker", objective, w.guarantees[name], a)
}

// keepOnly drops the guarantees of workers without processes.
func (w *workers) keepOnly(used func(name string) bool) {
	maps.DeleteFunc(w.guarantees, func(name string, _ guarantee.Action) bool { return !used(name) })
}

// count adds requests that a member ran, and returns those of all members so far.
func (w *workers) count(name string, ran int64) (total int64) {
	w.ran[name] += ran
	return w.ran[name]
}
