package sharing

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/datapath"
	"github.com/penstock/penstock/manager/policy/gslice"
)

// The policy gslice: this package measures (measure), package gslice decides (Tune, reshare), and the
// instances' pairs apply the decisions.

// shareConfig converts a configuration for package gslice.
func shareConfig(cfg *configs.Config) gslice.Config {
	c, s := cfg.Shares, gslice.DefaultConfig()
	s.MinimumPercent = c.MinimumPercent
	// Shares are tuned every interval, a little sooner or later. Without this correction an
	// early tick would miss the end of the hold-down, and the change would wait for the
	// next one.
	s.HoldDown = max(0, c.HoldDown-c.Interval/2)
	s.SpreadSlack = c.SpreadSlack
	return s
}

// firstShare takes the place of the knee: the configured share, or the knee of the model; 0 if neither is known.
func (in *Instance) firstShare() float64 {
	return cmp.Or(in.f.Configuration().SharePercent, in.pair.Card().KneePercent)
}

// check logs an error of the policy, which would be a mistake of this package.
func (s *Sharing) check(err error) (ok bool) {
	if err != nil {
		s.log.Error().Err(err).Msg("cannot share out the device")
	}
	return err == nil
}

// Replaced forgets the measurements of an instance that has another process. another: its model is another
// one, too, and the shares change at once.
func (in *Instance) Replaced(another bool) {
	if !another {
		in.Measured.Measurement = gslice.Measurement{} // it was measured against another objective
		return
	}
	in.forget()
	if s := in.f.s; !in.f.whole() && s.check(s.policy.Replace(in.id, in.firstShare())) && s.cfg.Shares.Tune {
		s.reshare("the model of " + in.f.name + " was replaced")
	}
}

// forget drops the measurements of a model that no longer serves.
func (in *Instance) forget() {
	in.Measured = measurement{}
	in.Entitled.forgetCosts()
	in.Traffic.ResetWindow()
}

// Edited allocates shares again after an edit of a function's share_percent.
func (s *Sharing) Edited(f *Function) {
	f.ByHand = 0
	if s.cfg.Guarantees() {
		s.Guarantee()
		return
	}
	for _, in := range f.instances {
		s.check(s.policy.Replace(in.id, in.firstShare()))
	}
	s.reshare("share_percent of " + f.name + " was edited")
}

// SetByHand sets the share of each instance. If shares are tuned, it lasts until the next tuning.
// Otherwise it is their desired share whenever functions are added, begin to serve or are removed.
func (s *Sharing) SetByHand(f *Function, percent float64) error {
	if f.whole() && !s.cfg.Guarantees() {
		return fmt.Errorf("set share of %s: its change is none, so each process may use the whole device", f.name)
	}
	if worker := f.WorkerOf(nil); worker != "" {
		return fmt.Errorf("set share of %s: the members of worker %s share its guarantee; change share_percent of the worker in the configuration file, or run `penstock if move %s --own` first", f.name, worker, f.name)
	}
	if !(percent > 0 && percent <= 100) {
		return fmt.Errorf("share of %s is %v, want more than 0, at most 100", f.name, percent)
	}
	others := s.cfg.WorkersPercent()
	for _, other := range s.functions {
		if other != f {
			others += other.claimedPercent()
		}
	}
	if err := configs.CheckSum(percent, len(f.instances), others); err != nil {
		return fmt.Errorf("share of %s %w", f.name, err)
	}
	if s.cfg.Guarantees() {
		f.ByHand = percent
		s.Guarantee()
		return nil
	}
	set := s.policy.Set
	if s.cfg.Shares.Tune {
		set = s.policy.Failed
	} else {
		f.ByHand = percent
	}
	for _, in := range f.instances {
		in.SetShare(percent)
		if err := set(in.id, percent); err != nil {
			return err
		}
	}
	return nil
}

// claimedPercent is the part that no other function can receive by hand: the function's shares, or the
// guarantees that were set by hand.
func (f *Function) claimedPercent() float64 {
	if f.s.cfg.Guarantees() {
		return cmp.Or(f.ByHand, f.Configuration().SharePercent) * float64(len(f.instances))
	}
	total := 0.0
	for _, in := range f.instances {
		total += in.pair.Share()
	}
	return total
}

// Restore sets shares that were set by hand under an earlier manager. First it sets all desired shares,
// before it changes any: as before, their sum may exceed what there is. Then functions that give up some
// of their share come first, because the total is 100 %.
func (s *Sharing) Restore(byHand map[*Function]float64) {
	if s.cfg.Guarantees() {
		for f, percent := range byHand {
			f.ByHand = percent
		}
		return
	}
	if s.cfg.Shares.Tune || len(byHand) == 0 {
		return
	}
	list := slices.DeleteFunc(slices.Clone(s.functions), func(f *Function) bool { return byHand[f] == 0 || f.whole() })
	for _, f := range list {
		f.ByHand = byHand[f]
		for _, in := range f.instances {
			s.check(s.policy.Replace(in.id, f.ByHand))
		}
	}
	s.reshare("set by hand before")
	more := func(f *Function) float64 { return byHand[f]*float64(len(f.instances)) - f.claimedPercent() }
	slices.SortStableFunc(list, func(a, b *Function) int { return cmp.Compare(more(a), more(b)) })
	for _, f := range list {
		if err := s.SetByHand(f, byHand[f]); err != nil {
			s.log.Info().Err(err).Msg("cannot restore a share that was set by hand in full; using what the others leave")
		}
	}
}

// Tune measures every instance and lets the policy decide. The manager calls it every shares.interval.
func (s *Sharing) Tune(now time.Time) {
	elapsed := now.Sub(s.tuned)
	s.tuned = now
	if s.cfg.Guarantees() {
		s.renewGuarantees(elapsed)
	}
	observed := map[gslice.ID]gslice.Observation{}
	s.eachInstance(func(in *Instance) {
		if o, ok := in.measure(now); ok && !in.f.whole() {
			observed[in.id] = o
		}
	})
	if s.cfg.Shares.Tune && !s.cfg.Guarantees() {
		s.apply(s.policy.Step(now.Sub(s.started), observed), "")
	}
}

// tuneEarly tunes out of turn when libml reports that a share is too small (paper 3.3.1).
func (s *Sharing) tuneEarly(in *Instance) {
	const minInterval = 100 * time.Millisecond
	if now := time.Now(); in.Fit == control.FitUnder && now.Sub(s.tuned) >= minInterval {
		s.Tune(now)
	}
}

// reshare allocates all shares again because a function was added, removed or changed, or because
// the allowed shares have changed. cause tells which.
func (s *Sharing) reshare(cause string) {
	s.eachInstance(func(in *Instance) {
		if !in.f.whole() && !in.f.leaving {
			s.check(s.policy.SetSteps(in.id, in.steps()))
		}
	})
	s.apply(s.policy.Step(time.Since(s.started), nil), cause)
}

// apply carries out a plan. A non-empty cause, a function that was added or removed,
// replaces the observation as the logged reason.
func (s *Sharing) apply(plan gslice.Plan, cause string) {
	for _, c := range plan.Changes {
		in := s.instance(c.ID)
		if c.From == 0 {
			in.SetShare(c.To) // it begins with this share
			continue
		}
		event := in.log.Info().Float64("from_percent", round(c.From)).Float64("to_percent", round(c.To)).Str("why", cmp.Or(cause, c.Why))
		if o, _ := in.Measured.Observation(); cause == "" {
			event = event.Dur("tail_ms", o.Latency).Dur("left_ms", o.SLO).
				Float64("can_rps", round(o.Throughput)).Float64("must_rps", round(o.ArrivalRate))
			if !s.onGPU() {
				event = event.Dur("cpu_ms", in.Measured.CPUPerRequest)
			}
		}
		event.Msg("share changes")
		in.SetShare(c.To)
	}
}

// SetShare sets the desired share; 0 means no share, the whole device.
func (in *Instance) SetShare(percent float64) {
	in.pair.SetShare(percent)
	in.f.s.Device.allocator.Invalidate()
	if in.f.whole() {
		percent = wholePercent
	}
	in.queue.SetWeight(percent)
}

// SharePercent is the current share: that of the active process.
func (in *Instance) SharePercent() float64 {
	if in.f.whole() {
		return wholePercent
	}
	if q := in.pair.Active(); q != nil {
		return q.SharePercent
	}
	return in.pair.Share()
}

// measurement is what the manager measures of an instance's share. The control loop owns it.
type measurement struct {
	gslice.Measurement
	// CPUPerRequest is a smoothed mean of CPU time; 0 if it is not known.
	CPUPerRequest time.Duration
}

// measure moves the window statistics into the averages and returns how the instance performs
// with its present share. ok is false while there is too little data.
func (in *Instance) measure(now time.Time) (o gslice.Observation, ok bool) {
	m, percent := &in.Measured, in.SharePercent()
	// A measurement must not cover two shares, a change of share, a share that is not the
	// policy's, or only some of the batch sizes.
	changed := !m.Measures(percent) || !in.f.whole() && percent != in.pair.Share() || in.pair.Changing() || in.Moving() || in.Growing() || in.pair.Active() == nil
	w, enough := in.Traffic.TakeWindow(func(w *datapath.Window) bool {
		return changed || m.Enough(w.Arrived, w.Answered, now)
	})
	switch {
	case changed:
		m.Restart(percent, now)
	case enough:
		m.Add(gslice.Window{
			Arrived: w.Arrived, Answered: w.Answered, Aggregation: w.Aggregation,
			Tail: w.Tail(), Throughput: in.throughput(&w, percent),
		}, now, in.f.Objective(), in.f.within())
	}
	return m.Observation()
}

// throughput is requests per busy second of the share, 0 if nothing ran. Under a CPU quota
// a process runs at full speed until the quota is used up, so there the CPU time per
// request counts.
func (in *Instance) throughput(w *datapath.Window, percent float64) float64 {
	if w.Ran == 0 || w.Busy <= 0 {
		return 0
	}
	speed := float64(w.Ran) / w.Busy.Seconds()
	if in.f.s.onGPU() || in.Measured.CPUPerRequest <= 0 {
		return speed
	}
	part := percent / 100 * float64(max(1, in.f.s.cpus))
	return min(speed, part/in.Measured.CPUPerRequest.Seconds())
}

// noteCPU records the CPU time that a process spent on that many requests.
func (m *measurement) noteCPU(spent time.Duration, requests int64) {
	m.CPUPerRequest = smooth(m.CPUPerRequest, spent/time.Duration(requests))
}

// smooth moves a mean, 0 if there is none yet, towards a value.
func smooth(mean, value time.Duration) time.Duration {
	if mean == 0 {
		return value
	}
	return mean + (value-mean)/8
}

// boundBy tells why requests are late with any share, in a word and in a sentence; both are
// empty if that is not so.
func (in *Instance) boundBy() (what, why string) {
	if o, _ := in.Measured.Observation(); !o.AggregationBound {
		return "", ""
	}
	return "aggregation", fmt.Sprintf("objective %v is missed before requests are complete: their fragments come too late, and no share helps", in.f.Objective())
}

// round rounds to hundredths, for display.
func round(v float64) float64 { return math.Round(100*v) / 100 }
