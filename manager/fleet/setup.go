package fleet

import (
	"cmp"
	"reflect"
	"time"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/datapath/aggregate"
	"github.com/penstock/penstock/models"
)

// setup is what the processes of a function get besides their model. It is pure data, and fixed
// for the life of a process. A function gets another setup like another model, by a shadow
// swap.
type setup struct {
	slo         time.Duration
	hangTimeout time.Duration
	weights     configs.Weights
	streams     int // 0: libml chooses
	environment map[string]string
	largest     int    // picture, in bytes; 0: only the card's
	worker      string // "": its own process
}

// setupUnder derives the setup of a function with a model from its configuration.
func setupUnder(cfg *configs.Config, c configs.Function, card *models.Card) setup {
	s := setup{
		slo:         cmp.Or(c.SLO, card.SLO),
		weights:     cmp.Or(c.Weights, cfg.Weights),
		streams:     c.InFlight,
		environment: c.Environment,
		largest:     largestPicture(&c, card),
		worker:      c.Worker,
	}
	s.hangTimeout = cmp.Or(cfg.HangTimeout, max(2*time.Second, 10*s.slo))
	return s
}

// attached converts the setup to the message for a process.
func (s setup) attached(cfg *configs.Config) control.Setup {
	return control.Setup{
		SLONanos:       int64(aggregate.Within(s.slo, cfg.Transit)),
		Streams:        s.streams,
		LargestPicture: s.largest,
		BusyPollNanos:  int64(cfg.BusyPoll),
		Batching:       cfg.Lab.Batching,
		Copy:           cfg.Lab.CopyGather,
	}
}

// equal reports whether both setups have the same effect on processes.
func (s setup) equal(other setup) bool {
	if len(s.environment) == 0 && len(other.environment) == 0 {
		s.environment, other.environment = nil, nil
	}
	return reflect.DeepEqual(s, other)
}

// setupFor is the setup of processes that run a card.
func (f *function) setupFor(card *models.Card) setup {
	if s, ok := f.model.setups[card]; ok {
		return s
	}
	return f.setup
}

// adopt makes a setup the current one when processes with it serve. New requests get its
// deadlines, and measurements are compared with its objective.
func (f *function) adopt(s setup) {
	if f.setup.equal(s) {
		return
	}
	f.setup = s
	f.port.SetObjective(s.slo, gatherTimeout(&f.fleet.cfg, s.slo))
	f.log.Info().Dur("slo", f.slo).Msg("setup of function changed")
}

// gatherTimeout is how long a request may take to be complete.
func gatherTimeout(cfg *configs.Config, slo time.Duration) time.Duration {
	return cmp.Or(cfg.Aggregate.Deadline, slo/4)
}
