package manager

import (
	"time"

	"github.com/rs/zerolog"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/manager/policy/gslice"
)

// shares are the parts of the device that the policy gslice assigns to instances. The control
// loop owns it.
type shares struct {
	policy *gslice.Controller
	log    zerolog.Logger
	tuned  time.Time // when the instances were last measured
	// fellBack: the policy is gslice because this GPU cannot hold the configured guarantees.
	fellBack bool
}

func newShares(cfg *configs.Config, started time.Time, log zerolog.Logger) (shares, error) {
	policy, err := gslice.NewController(shareConfig(cfg))
	return shares{policy: policy, log: log, tuned: started}, err
}

// shareConfig converts a configuration for package gslice.
func shareConfig(cfg *configs.Config) gslice.Config {
	c, s := cfg.Shares, gslice.DefaultConfig()
	s.MinimumPercent = c.MinimumPercent
	s.UnknownPercent = c.DefaultPercent
	s.ThresholdPercent = c.ThresholdPercent
	// Shares are tuned every interval, a little sooner or later. Without this correction an
	// early tick would miss the end of the hold-down, and the change would wait for the
	// next one.
	s.HoldDown = max(0, c.HoldDown-c.Interval/2)
	s.SpreadSlack = c.SpreadSlack
	return s
}

// add adds an instance. first takes the place of the knee; 0: it is not known.
func (s *shares) add(id gslice.ID, first float64) { s.check(s.policy.Add(id, first)) }

// replace forgets the measurements of an instance's old model.
func (s *shares) replace(id gslice.ID, first float64) (ok bool) {
	return s.check(s.policy.Replace(id, first))
}

func (s *shares) remove(id gslice.ID) { s.check(s.policy.Remove(id)) }

func (s *shares) check(err error) (ok bool) {
	if err != nil {
		s.log.Error().Err(err).Msg("cannot share out the device")
	}
	return err == nil
}

// set records a share that was set by hand. If shares are tuned, it lasts until the next tuning.
func (s *shares) set(id gslice.ID, percent float64, tuned bool) error {
	if tuned {
		return s.policy.Failed(id, percent)
	}
	return s.policy.Set(id, percent)
}

// setSteps sets the shares that an instance may have; nil for any.
func (s *shares) setSteps(id gslice.ID, steps []float64) { s.check(s.policy.SetSteps(id, steps)) }

// allocate assigns all shares again. now is the time since the manager began.
func (s *shares) allocate(now time.Duration) gslice.Plan { return s.policy.Step(now, nil) }

// lap begins the next measurement and returns how long the last one took.
func (s *shares) lap(now time.Time) (elapsed time.Duration) {
	elapsed, s.tuned = now.Sub(s.tuned), now
	return elapsed
}
