package sharing

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/rs/zerolog"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/manager/policy/gslice"
)

// shares is the policy gslice: shares are quotas of CPU time, MPS percentages, or groups of
// multiprocessors (groups.go).
type shares struct {
	*gslice.Controller
	cause string // why all shares are allocated again; empty: they are not
}

// wholePercent is the limit of an instance without a share.
const wholePercent = 100

// shareConfig converts a configuration for package gslice.
func shareConfig(cfg *configs.Config) gslice.Config {
	c := cfg.Shares
	return gslice.Config{
		MinimumPercent: c.MinimumPercent, SpreadSlack: c.SpreadSlack,
		// Shares are tuned every interval, a little sooner or later. Without this correction an
		// early tick would miss the end of the hold-down, and the change would wait for the
		// next one.
		HoldDown: max(0, c.HoldDown-c.Interval/2),
	}
}

// reshape makes the next decision allocate all shares again. The first cause is logged.
func (p *shares) reshape(cause string) { p.cause = cmp.Or(p.cause, cause) }

// decide allocates shares again if functions, their shares or their models have changed. It tunes
// them at the end of each interval.
func (p *shares) decide(d *Decider) {
	divided := slices.DeleteFunc(slices.Clone(d.members), func(m *member) bool { return m.whole() || m.f.Removing })
	for _, id := range p.Members() {
		if find(divided, id) == nil {
			p.Remove(id)
			p.reshape(id.IF + " was removed")
		}
	}
	tunes := d.s.Config.Shares.Tune
	for _, m := range divided {
		switch added := p.Adopt(m.id, m.Share, cmp.Or(m.f.ByHand, firstShare(m))); {
		case added:
			p.reshape(m.id.IF + " was added")
		case m.edits != m.f.Edits:
			p.Replace(m.id, firstShare(m))
			p.reshape("share_percent of " + m.id.IF + " was edited")
		case !tunes && m.f.ByHand != 0 && m.byHand != m.f.ByHand:
			p.Set(m.id, m.f.ByHand)
			d.setShare(m, m.f.ByHand)
		}
		m.edits, m.byHand = m.f.Edits, m.f.ByHand
	}
	if p.cause != "" {
		for _, m := range divided {
			p.SetSteps(m.id, d.steps(m))
		}
		p.apply(d, p.Step(d.s.Now, nil), p.cause)
		p.cause = ""
	}
	if d.s.Interval && tunes {
		observed := map[gslice.ID]gslice.Observation{}
		for _, m := range divided {
			if o, known := m.measured.Observation(); known {
				observed[m.id] = o
			}
		}
		p.apply(d, p.Step(d.s.Now, observed), "")
	}
}

// firstShare takes the place of the knee: the configured share, or the knee of the model; 0 if neither is known.
func firstShare(m *member) float64 { return cmp.Or(m.f.Config.SharePercent, m.Card.KneePercent) }

// replaced records that an instance runs another model.
func (p *shares) replaced(d *Decider, m *member) {
	if m.whole() || m.f.Removing {
		return
	}
	p.Replace(m.id, firstShare(m))
	if d.s.Config.Shares.Tune {
		p.reshape("the model of " + m.id.IF + " was replaced")
	}
}

// apply carries out the changes of a decision. A non-empty cause replaces the observation as the logged
// reason.
func (p *shares) apply(d *Decider, changes []gslice.Change, cause string) {
	for _, c := range changes {
		m := find(d.members, c.ID)
		short := m.f.ByHand-c.To >= 1
		if c.From != 0 || short { // else it begins with this share
			fields := map[string]any{"from_percent": round(c.From), "to_percent": round(c.To), "why": cmp.Or(cause, c.Why)}
			if o, _ := m.measured.Observation(); cause == "" {
				fields["tail_ms"], fields["left_ms"] = o.Latency, o.SLO
				fields["can_rps"], fields["must_rps"] = round(o.Throughput), round(o.ArrivalRate)
				if !d.onGPU() {
					fields["cpu_ms"] = m.measured.cpuPerRequest
				}
			}
			if short {
				fields["set_percent"] = m.f.ByHand
				d.log(m.id, zerolog.WarnLevel, "share is smaller than the one that was set by hand", fields)
			} else {
				d.log(m.id, zerolog.InfoLevel, "share changes", fields)
			}
		}
		d.setShare(m, c.To)
	}
}

// CheckByHand returns an error if no share of a function can be set by hand, or not this one.
func (d *Decider) CheckByHand(s *Snapshot, name string, percent float64) error {
	i := slices.IndexFunc(s.Functions, func(f Function) bool { return f.Config.Name == name })
	f := &s.Functions[i]
	if d.Change(s.Config, f.Config) == configs.ChangeNone && !s.Config.Guarantees() {
		return fmt.Errorf("set share of %s: its change is none, so each process may use the whole device", name)
	}
	if worker := f.worker(); worker != "" {
		return fmt.Errorf("set share of %s: the members of worker %s share its guarantee; change share_percent of the worker in the configuration file, or run `penstock if move %s --own` first", name, worker, name)
	}
	if !(percent > 0 && percent <= 100) {
		return fmt.Errorf("share of %s is %v, want more than 0, at most 100", name, percent)
	}
	others := s.Config.WorkersPercent()
	for j := range s.Functions {
		if j != i {
			others += s.Functions[j].claimedPercent(s.Config)
		}
	}
	if err := configs.CheckSum(percent, len(f.Instances), others); err != nil {
		return fmt.Errorf("share of %s %w", name, err)
	}
	return nil
}

// worker is the worker of the processes that serve; empty: they are in none.
func (f *Function) worker() string {
	for i := range f.Instances {
		if q := f.Instances[i].active(); q != nil {
			return q.Worker
		}
	}
	return f.Instances[0].Worker
}

// claimedPercent is the part that no other function can receive by hand: the function's shares, or the
// guarantees that were set by hand.
func (f *Function) claimedPercent(cfg *configs.Config) (total float64) {
	for _, in := range f.Instances {
		if cfg.Guarantees() {
			total += cmp.Or(f.ByHand, f.Config.SharePercent)
		} else {
			total += in.Share
		}
	}
	return total
}

// byPercentage reports whether a share that changes this way is an MPS percentage.
func (d *Decider) byPercentage(c configs.Change) bool {
	return d.onGPU() && d.Device.MPS && (c == configs.ChangeShadow || c == configs.ChangeRestart)
}

// hasPercentage reports whether a process has an MPS percentage below 100.
func (d *Decider) hasPercentage(c configs.Change, percent float64) bool {
	return d.byPercentage(c) && percent > 0 && percent < wholePercent
}

// steps returns the shares that the instance may have, ascending; nil if it may have any. Shares that
// the operator sets are free until one of them is wrong.
func (d *Decider) steps(m *member) []float64 {
	if !d.byPercentage(m.change) {
		return nil
	}
	wrong, cfg := d.s.Judged[m.Card].Wrong, d.s.Config
	if !cfg.Shares.Tune && len(wrong) == 0 {
		return nil
	}
	steps, own := percentageSteps(d.Device.GPU.SMs, cfg.Shares.MinimumPercent), m.f.Config.SharePercent
	if i, found := slices.BinarySearch(steps, own); !found && own > 0 {
		steps = slices.Insert(steps, i, own)
	}
	return slices.DeleteFunc(steps, func(percent float64) bool { return slices.Contains(wrong, percent) })
}

// percentageSteps returns one whole percentage for each number of multiprocessors that MPS can
// assign. It assigns them in pairs, and rounds down.
func percentageSteps(sms int, minimum float64) (steps []float64) {
	pairs := func(percent int) int { return percent * sms / 100 / 2 }
	for p := 1; p <= wholePercent; p++ {
		if p == wholePercent || float64(p) >= minimum && pairs(p) != pairs(p+1) {
			steps = append(steps, float64(p))
		}
	}
	return steps
}

// learnRight records that a process has checked all its batch sizes.
func (p *shares) learnRight(d *Decider, m *member, q *Process) {
	if j := d.s.Judged[q.Card]; d.hasPercentage(m.change, q.SharePercent) && j.add(q.SharePercent, true) {
		d.judge(q, j, true)
	}
}

// learnWrong learns from a process that ends because its model answers wrongly. If there is another
// share, the end does not count against the model.
func (p *shares) learnWrong(d *Decider, m *member, q *Process, o *control.ObservedProcess) {
	if !o.WrongAnswers || !d.hasPercentage(m.change, q.SharePercent) {
		return
	}
	if j := d.s.Judged[q.Card]; j.add(q.SharePercent, false) {
		const message = "model answers wrongly at a percentage of the GPU"
		d.judge(q, j, false)
		p.reshape(message)
		p.decide(d)
		level := zerolog.WarnLevel
		if m.Share == q.SharePercent {
			level = zerolog.ErrorLevel
		}
		d.log(m.id, level, message, map[string]any{
			"generation": q.Generation, "percent": round(q.SharePercent), "tries_percent": round(m.Share), "reason": o.Reason,
		})
	}
	d.do(Refuse{m.id, q.Generation})
}

// judge keeps what was learned about a process's model for the rest of the snapshot, and beyond.
func (d *Decider) judge(q *Process, j Judged, right bool) {
	d.s.Judged = maps.Clone(d.s.Judged)
	for card := range d.s.Judged {
		if d.s.Judged[card].model == j.model {
			d.s.Judged[card] = j
		}
	}
	d.do(Judge{q.Card, q.SharePercent, right})
}
