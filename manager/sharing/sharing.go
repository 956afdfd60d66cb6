// Package sharing divides a device among the instances of functions that run there:
//
//	Snapshot ──Decide──> Actions ──(manager/fleet)──> pairs, queues, orders
//
// Decide is pure. It reads a snapshot of the node (decide.go), and has the policy of the configuration
// decide about it:
//
//	guarantee.go           each instance has a guarantee of the device's time
//	shares.go, groups.go   its share is a quota of CPU time, an MPS percentage, or a set of groups of
//	                       multiprocessors
//
// The packages below manager/policy are the rules of these policies. Besides Decide, this package has what
// the processes on a GPU share: turns, the busy word, and the percentages at which models answer rightly.
package sharing

import (
	"slices"

	"github.com/rs/zerolog"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/manager/policy/gslice"
	"github.com/penstock/penstock/manager/policy/guarantee"
	"github.com/penstock/penstock/manager/policy/pair"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/shm"
)

// Options configures a Sharing.
type Options struct {
	Config *configs.Config
	// Device is its name in control.Desired.
	Device string
	// Dir is the runtime folder.
	Dir string
	// Cache is the folder for what is learned about the GPU; empty: nothing is kept.
	Cache string
	Log   zerolog.Logger
}

// Sharing is a Decider with what the processes on a GPU share. The control loop owns it.
type Sharing struct {
	Decider

	log         zerolog.Logger
	percentages percentages
	turns       turns
	busy        busy
}

// NewDecider returns a Decider for a device that has seen no function.
func NewDecider(cfg *configs.Config, device string) Decider {
	return Decider{
		Device:     Device{Name: device, Known: device == configs.DeviceCPU},
		shares:     shares{Controller: gslice.NewController(shareConfig(cfg))},
		guarantees: guarantees{workers: map[string]guarantee.Action{}, ran: map[string]int64{}},
	}
}

// New returns a Sharing that has seen no function. Close frees it.
func New(o Options) *Sharing {
	return &Sharing{
		Decider: NewDecider(o.Config, o.Device), log: o.Log,
		percentages: percentages{cache: o.Cache, log: o.Log},
		turns:       turns{files: map[bool]*shm.Turns{}, holders: map[int]*turnHolder{}},
		busy:        busy{dir: o.Dir, log: o.Log},
	}
}

// Close frees shared memory. Processes keep their mappings.
func (s *Sharing) Close() {
	s.turns.close()
	s.busy.close()
}

// Watch passes on a turn that does not move, and lets guests go on that wait for processes that have
// ended.
func (s *Sharing) Watch() {
	if pid := s.turns.watch(shm.Now()); pid != 0 {
		s.log.Warn().Int("pid", pid).Dur("after_ms", shm.TurnPatience).
			Msg("a process keeps the GPU while others wait; their batches now run next to its batch")
	}
	if s.onGPU() {
		s.busy.sweep()
	}
}

// Judged completes a snapshot with what is known of the percentages of its models.
func (s *Sharing) Judged(snapshot *Snapshot) {
	if !s.onGPU() || !s.Device.MPS {
		return
	}
	snapshot.Judged = map[*models.Card]Judged{}
	know := func(card *models.Card) {
		if _, known := snapshot.Judged[card]; !known {
			snapshot.Judged[card] = s.percentages.of(card)
		}
	}
	for i := range snapshot.Functions {
		f := &snapshot.Functions[i]
		if !s.byPercentage(s.Change(snapshot.Config, f.Config)) {
			continue
		}
		for _, in := range f.Instances {
			know(in.Card)
			for _, q := range in.Processes {
				know(q.Card)
			}
		}
	}
}

// Keep carries out a Judge.
func (s *Sharing) Keep(a Judge) { s.percentages.judge(a.Card, a.Percent, a.Right) }

// Open reads what was learned about a GPU.
func (s *Sharing) Open(gpu *control.GPU) { s.percentages.open(gpu) }

// AnswersRightly reports whether a process of a function may serve before all its batch sizes are checked.
func (s *Sharing) AnswersRightly(cfg *configs.Config, f configs.Function, q *pair.Process) bool {
	if !s.hasPercentage(s.Change(cfg, f), q.SharePercent) {
		return true
	}
	return slices.Contains(s.percentages.of(q.Card).Right, q.SharePercent)
}
