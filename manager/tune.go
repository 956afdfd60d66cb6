package manager

import (
	"cmp"
	"fmt"
	"math"
	"time"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/datapath"
	"github.com/penstock/penstock/manager/policy/gslice"
	"github.com/penstock/penstock/models"
)

// The manager's part in the policy gslice: the manager measures, package gslice decides,
// and the instances' pairs apply the decisions.

// shareIn adds a new function's instances and returns their shares. The others' shares
// change at once.
func (m *Manager) shareIn(c configs.Function, card *models.Card) []float64 {
	shares := make([]float64, c.Instances)
	if m.cfg.ChangeOf(c) == configs.ChangeNone {
		return shares
	}
	for i := range c.Instances {
		// The initial share of the configuration takes the place of the knee.
		id := gslice.ID{IF: c.Name, Instance: i}
		m.shares.add(id, cmp.Or(c.SharePercent, card.KneePercent))
		m.shares.setSteps(id, m.stepsFor(m.device.changeOn(m.cfg.ChangeOf(c)), card, c.SharePercent))
	}
	plan := m.reshare(c.Name + " was added")
	for _, s := range plan.Status {
		if s.ID.IF == c.Name {
			shares[s.ID.Instance] = s.Percent
		}
	}
	return shares
}

// shareReplaced forgets the measurements of an instance's old model. Shares change at once.
func (m *Manager) shareReplaced(in *instance) {
	if in.f.whole() {
		return
	}
	if m.shares.replace(in.id(), cmp.Or(in.f.config.SharePercent, in.pair.Card().KneePercent)) && m.cfg.Shares.Tune {
		m.reshare("the model of " + in.f.name + " was replaced")
	}
}

// shareEdited allocates shares again after an edit of a function's share_percent.
func (m *Manager) shareEdited(f *function) {
	if m.cfg.Guarantees() {
		m.guarantees()
		return
	}
	for _, in := range f.instances {
		m.shares.replace(in.id(), cmp.Or(f.config.SharePercent, f.model.desired.KneePercent))
	}
	m.reshare("share_percent of " + f.name + " was edited")
}

// shareOut removes a function's instances from the shares.
func (m *Manager) shareOut(f *function) {
	if f.whole() {
		return
	}
	for _, in := range f.instances {
		m.shares.remove(in.id())
	}
	m.reshare(f.name + " was removed")
}

// tune measures every instance and lets the policy decide.
func (m *Manager) tune(now time.Time) {
	elapsed := m.shares.lap(now)
	if m.cfg.Guarantees() {
		m.renewGuarantees(elapsed)
	}
	observed := map[gslice.ID]gslice.Observation{}
	for _, f := range m.functions {
		for _, in := range f.instances {
			if o, ok := in.measure(now); ok && !f.whole() {
				observed[in.id()] = o
			}
		}
	}
	if m.cfg.Shares.Tune && !m.cfg.Guarantees() {
		m.apply(m.shares.policy.Step(now.Sub(m.started), observed), "")
	}
}

// tuneEarly tunes out of turn when libml reports that a share is too small (paper 3.3.1).
func (m *Manager) tuneEarly(in *instance) {
	const minInterval = 100 * time.Millisecond
	if now := time.Now(); in.batching.Fit == control.FitUnder && now.Sub(m.shares.tuned) >= minInterval {
		m.tune(now)
	}
}

// reshare allocates all shares again because a function was added, removed or changed, or because
// the allowed shares have changed. cause tells which.
func (m *Manager) reshare(cause string) gslice.Plan {
	m.eachInstance(func(in *instance) {
		if !in.f.whole() && !in.f.removing {
			m.shares.setSteps(in.id(), in.steps())
		}
	})
	plan := m.shares.allocate(time.Since(m.started))
	m.apply(plan, cause)
	return plan
}

// apply carries out a plan. A non-empty cause, a function that was added or removed,
// replaces the observation as the logged reason.
func (m *Manager) apply(plan gslice.Plan, cause string) {
	for _, c := range plan.Changes {
		in := m.instance(c.ID.IF, c.ID.Instance)
		if in == nil {
			continue // it is being added, and begins with its share
		}
		event := in.log.Info().Float64("from_percent", round(c.From)).Float64("to_percent", round(c.To)).Str("why", cmp.Or(cause, c.Why))
		if o, _ := in.measured.Observation(); cause == "" {
			event = event.Dur("tail_ms", o.Latency).Dur("left_ms", o.SLO).
				Float64("can_rps", round(o.Throughput)).Float64("must_rps", round(o.ArrivalRate))
			if !m.onGPU() {
				event = event.Dur("cpu_ms", in.measured.cpuPerRequest)
			}
		}
		event.Msg("share changes")
		in.setShare(c.To)
	}
}

// setShare sets the desired share; 0 means no share, the whole device.
func (in *instance) setShare(percent float64) {
	in.pair.SetShare(percent)
	in.m.device.allocator.Invalidate()
	if in.f.whole() {
		percent = wholePercent
	}
	in.queue.SetWeight(percent)
}

// sharePercent is the current share: that of the active process.
func (in *instance) sharePercent() float64 {
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
	// cpuPerRequest is a smoothed mean of CPU time; 0 if it is not known.
	cpuPerRequest time.Duration
}

// measure moves the window statistics into the averages and returns how the instance performs
// with its present share. ok is false while there is too little data.
func (in *instance) measure(now time.Time) (o gslice.Observation, ok bool) {
	m, percent := &in.measured, in.sharePercent()
	// A measurement must not cover two shares, a change of share, a share that is not the
	// policy's, or only some of the batch sizes.
	changed := !m.Measures(percent) || !in.f.whole() && percent != in.pair.Share() || in.pair.Changing() || in.moving() || in.growing() || in.pair.Active() == nil
	w, enough := in.traffic.TakeWindow(func(w *datapath.Window) bool {
		return changed || m.Enough(w.Arrived, w.Answered, now)
	})
	switch {
	case changed:
		m.Restart(percent, now)
	case enough:
		m.Add(gslice.Window{
			Arrived: w.Arrived, Answered: w.Answered, Aggregation: w.Aggregation,
			Tail: w.Tail(), Throughput: in.throughput(&w, percent),
		}, now, in.f.slo, in.f.within())
	}
	return m.Observation()
}

// throughput is requests per busy second of the share, 0 if nothing ran. Under a CPU quota
// a process runs at full speed until the quota is used up, so there the CPU time per
// request counts.
func (in *instance) throughput(w *datapath.Window, percent float64) float64 {
	if w.Ran == 0 || w.Busy <= 0 {
		return 0
	}
	speed := float64(w.Ran) / w.Busy.Seconds()
	if in.m.onGPU() || in.measured.cpuPerRequest <= 0 {
		return speed
	}
	part := percent / 100 * float64(max(1, in.m.orchestrator.observed.CPUs))
	return min(speed, part/in.measured.cpuPerRequest.Seconds())
}

// noteCPU records the CPU time that a process spent on that many requests.
func (m *measurement) noteCPU(spent time.Duration, requests int64) {
	m.cpuPerRequest = smooth(m.cpuPerRequest, spent/time.Duration(requests))
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
func (in *instance) boundBy() (what, why string) {
	if o, _ := in.measured.Observation(); !o.AggregationBound {
		return "", ""
	}
	return "aggregation", fmt.Sprintf("objective %v is missed before requests are complete: their fragments come too late, and no share helps", in.f.slo)
}

// round rounds to hundredths, for display.
func round(v float64) float64 { return math.Round(100*v) / 100 }
