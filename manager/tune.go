package manager

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/manager/share"
	"github.com/penstock/penstock/models"
)

// The manager's part in sharing: it measures, package share decides, and the
// instances' pairs bring the decisions in.

// shareConfig is a configuration as package share wants it.
func shareConfig(c configs.Shares) share.Config {
	s := share.DefaultConfig()
	s.MinimumPercent = c.MinimumPercent
	s.UnknownPercent = c.DefaultPercent
	s.ThresholdPercent = c.ThresholdPercent
	// Shares are looked at every interval, a little sooner or later: the look at the end of a
	// hold-down is meant, not by chance the next.
	s.HoldDown = max(0, c.HoldDown-c.Interval/2)
	// To lend and to be given back are two changes: no more than the hold-down allows.
	s.Silence = max(s.Silence, 2*c.HoldDown)
	s.SpreadSlack = c.SpreadSlack
	s.Steps = c.Steps
	return s
}

// burstMargin is how many times its mean a random stream's rate is to be taken for
// where batches are of that size. A device that is busy two thirds of the time makes a
// request wait for one other in the mean (M/D/1), and for a few at the tail. What comes
// during a batch of n varies by the square root of n: a batch's worth of waiting is as
// rare where the device is idle for an n-th of that. Batches' times vary, too, by some 5 %.
func burstMargin(size float64) float64 { return 1.05 + 0.45/max(1, size) }

// An observation takes so many answers, or so much time and a few: with fewer,
// chance speaks.
const (
	enoughAnswers = 64
	enoughTime    = 5 * time.Second
	leastAnswers  = 4
	// The first observation of a share is of caches, queues and rates that are not
	// its own; two that are make an average.
	settling = 1
	enough   = settling + 2
)

// instanceLoad is how an instance has done since its share last changed.
type instanceLoad struct {
	percent float64 // the share that it speaks of
	since   time.Time
	// batch is the size of batches that throughput is of.
	tail, throughput, batch, rate,
	aggregation share.EWMA
	pace         share.Pace
	observations int
	answers      int  // to requests, in the observations that count
	late         int  // of them, those beyond what was left of the objective
	fits         bool // two batches that it can run fit the objective
	// aside is how many rates in a row lay far from the mean: above, or, negative, below.
	aside int
	// observed is what the averages last said, once they were known.
	observed share.Observation
	known    bool
}

// lending is whether an instance has a use for its share; else it lends.
type lending struct {
	silence share.Silence
	counted int // requests that had arrived of the tally at the last look
	silent  bool
	reach   share.Reach
	unmet   string // says that its objective cannot be met, whatever its share; empty where it can or nobody knows
}

// renew drops what was learnt of another model.
func (l *lending) renew() { l.reach, l.counted = share.Reach{}, 0 }

// shareIn takes a new function's instances in and returns their shares; everybody
// else's move at once. A function without shares is no affair of the others': theirs are
// of the whole device, which it uses, too. Where shares change in place and others serve,
// it gets what these leave until it serves itself, whole: a model takes seconds to load.
func (m *Manager) shareIn(c configs.Function, card *models.Card) []float64 {
	if m.cfg.ChangeOf(c) == configs.ChangeNone {
		return make([]float64, c.Instances)
	}
	waits := m.device.changeOn(m.cfg.ChangeOf(c)) == configs.ChangePartition && slices.ContainsFunc(m.functions, (*function).served)
	for i := range c.Instances {
		id := share.ID{IF: c.Name, Instance: i}
		// The share that the configuration begins with stands for the knee.
		err := m.shares.Add(id, cmp.Or(c.SharePercent, card.KneePercent))
		if err == nil && waits {
			err = m.shares.Wait(id)
		}
		if err != nil {
			m.log.Error().Err(err).Msg("share out")
		}
	}
	plan := m.reshare(c.Name + " was added")
	shares := make([]float64, c.Instances)
	for _, s := range plan.Status {
		if s.ID.IF == c.Name {
			shares[s.ID.Instance] = s.Percent
		}
	}
	return shares
}

// shareServed gives an instance that waited with what others left what it wants: a process
// serves it with all its batch sizes. Before, it could not move to where it has more.
func (m *Manager) shareServed(in *instance) {
	if m.shares.Serves(in.id()) {
		m.reshare(in.f.name + " serves")
	}
}

// shareReplaced forgets what was learnt of an instance's old model; shares move at
// once.
func (m *Manager) shareReplaced(in *instance) {
	in.tryObjective(0) // what no share of the old model's met, one of the new one's may
	if in.f.whole() {
		return
	}
	id := share.ID{IF: in.f.name, Instance: in.index}
	if err := m.shares.Replace(id, cmp.Or(in.f.config.SharePercent, in.pair.Card().KneePercent)); err != nil {
		m.log.Error().Err(err).Msg("share out")
		return
	}
	if m.cfg.Shares.Tune {
		m.lend(in)
		m.reshare("the model of " + in.f.name + " was replaced")
	}
}

// shareOut lets a function's instances go.
func (m *Manager) shareOut(f *function) {
	if f.whole() {
		return
	}
	name, instances := f.name, len(f.instances)
	for i := range instances {
		if err := m.shares.Remove(share.ID{IF: name, Instance: i}); err != nil {
			m.log.Error().Err(err).Msg("share out")
		}
	}
	m.reshare(name + " was removed")
}

// tune measures every instance and lets package share decide.
func (m *Manager) tune(now time.Time) {
	m.tuned = now
	observed := map[share.ID]share.Observation{}
	for _, f := range m.functions {
		for _, in := range f.instances {
			o, ok := in.measure(now)
			if f.whole() {
				continue
			}
			if ok {
				observed[in.id()] = o
			}
			if m.cfg.Shares.Tune && !f.removing { // its share is the others' already
				m.lend(in)
			}
		}
	}
	if m.cfg.Shares.Tune {
		m.apply(m.shares.Step(now.Sub(m.started), observed), "")
	}
}

// lend tells package share whether an instance has no use for its share.
func (m *Manager) lend(in *instance) {
	loan := share.NoLoan
	switch {
	case in.silent:
		loan = share.Silent
	case in.unmet != "":
		loan = share.Vain
	}
	if err := m.shares.Lend(in.id(), loan); err != nil {
		m.log.Error().Err(err).Msg("share out")
	}
}

// look is tune out of turn: libml found a share too small, or perhaps too large.
func (m *Manager) look(in *instance) {
	const atMostEvery = 100 * time.Millisecond
	if now := time.Now(); in.fit == control.FitUnder && now.Sub(m.tuned) >= atMostEvery {
		m.tune(now)
	}
}

// reshare gives everybody a share anew, since somebody came, went or changed: cause says
// it.
func (m *Manager) reshare(cause string) share.Plan {
	plan := m.shares.Step(time.Since(m.started), nil)
	m.apply(plan, cause)
	return plan
}

// apply brings a plan in. Where functions came or went, cause says so: then that is
// why, and not what was observed.
func (m *Manager) apply(plan share.Plan, cause string) {
	for _, c := range plan.Changes {
		in := m.instance(c.ID.IF, c.ID.Instance)
		if in == nil {
			continue // it is being added, and begins with its share
		}
		event := in.log.Info().Float64("from_percent", round(c.From)).Float64("to_percent", round(c.To)).Str("why", cmp.Or(cause, c.Why))
		if o := in.load.observed; cause == "" {
			event = event.Dur("tail_ms", o.Latency).Dur("left_ms", o.SLO).
				Float64("can_rps", round(o.Throughput)).Float64("must_rps", round(o.ArrivalRate))
			if !m.onGPU() {
				event = event.Dur("cpu_ms", in.cpuPerRequest)
			}
		}
		event.Msg("share changes")
		in.setShare(c.To)
	}
}

// measure empties the tally into the averages and says how the instance does with
// its present share; ok is false while there is nothing to judge it by.
func (in *instance) measure(now time.Time) (o share.Observation, ok bool) {
	f := in.f
	load := &in.load
	elapsed := now.Sub(load.since)
	percent := in.sharePercent()
	changed := percent != load.percent || in.pair.Changing() || in.moving() || in.growing() || in.pair.Active() == nil
	f.mu.Lock()
	t, asked := in.tally, in.inFlight > 0
	full := t.answered >= enoughAnswers || elapsed >= enoughTime && (t.answered >= leastAnswers || t.arrived == 0)
	if changed || full {
		in.tally = t.next()
	}
	f.mu.Unlock()
	in.hearken(now, t.arrived, changed || full, asked)
	switch {
	case changed:
		// What was measured is of another share, of two at once, or of a part of the batch
		// sizes.
		*load = instanceLoad{percent: percent, since: now}
		in.bound = ""
		return o, false
	case !full:
		return load.observed, load.known
	}
	load.since = now
	aggregation, _ := load.aggregation.Mean()
	in.tryObjective(aggregation)
	if t.arrived == 0 && t.answered == 0 {
		// A pause, or silence: no word on a load.
		load.forgetQueue(in.left(aggregation))
		load.known = false
		return o, false
	}
	if load.observations++; load.observations <= settling {
		return o, false
	}
	in.reach.Note(in.onPercent(percent), t.singles, t.quickest)
	stepped := load.stepped(t.arrived, elapsed)
	if stepped {
		load.aside, load.answers, load.late, load.rate, load.aggregation = 0, 0, 0, share.EWMA{}, share.EWMA{}
	}
	// What nothing is heard of stays as it was: the share that it is of has not changed.
	add := func(mean *share.EWMA, v float64) {
		if stepped {
			*mean = share.EWMA{}
		}
		mean.Add(v)
	}
	load.answers += t.answered
	load.rate.Add(float64(t.arrived) / elapsed.Seconds())
	load.pace.Join(&t.pace)
	if t.arrived > 0 {
		load.aggregation.Add(t.aggregation.Seconds() / float64(t.arrived))
	}
	aggregation, _ = load.aggregation.Mean()
	left := in.left(aggregation)
	load.late += t.beyond(left)
	switch {
	case t.ran > 0 && t.busy > 0:
		tail, throughput := in.atShare(&t, load.percent)
		throughput, batch, fits := in.atLargerBatches(throughput, left)
		load.fits = fits
		add(&load.tail, tail.Seconds())
		add(&load.throughput, throughput)
		add(&load.batch, batch)
	case t.answered > 0: // all late
		add(&load.tail, t.tail().Seconds())
	}
	tail, haveLatency := load.tail.Mean()
	throughput, haveThroughput := load.throughput.Mean()
	batch, _ := load.batch.Mean()
	rate, _ := load.rate.Mean()
	o = share.Observation{
		Latency: duration(tail), Throughput: throughput, ArrivalRate: rate * burstMargin(batch), SLO: left, Fits: load.fits,
		Doubt: in.doubt(tail, left, t.answered),
		// Paper 3.2.1: whichever part takes longer is the bottleneck.
		AggregationBound: aggregation > tail && aggregation+tail > f.within().Seconds(),
	}
	in.bound = ""
	if o.AggregationBound {
		in.bound = "aggregation"
	}
	// After one rate far above the mean, the mean is perhaps of a load that was: the next
	// look says so. Until then nothing is cut for it.
	load.observed, load.known = o, haveLatency && haveThroughput && load.observations >= enough && load.aside <= 0
	return load.observed, load.known
}

// left is what a mean time of aggregation, in seconds, leaves of the objective. What a share
// can shorten comes after the pieces: they have had their part by then.
func (in *instance) left(aggregation float64) time.Duration {
	return max(in.f.within()-duration(aggregation), in.f.slo/10)
}

// hearken takes in how many requests have arrived of a tally, which emptied says is the last
// word of it, and whether some wait for their answers: they are served with its share, how
// long ago they came. Nobody falls silent whom nobody serves: there is no telling.
func (in *instance) hearken(now time.Time, arrived int, emptied, asked bool) {
	came := arrived > in.counted || asked
	if in.counted = arrived; emptied {
		in.counted = 0
	}
	if in.pair.Active() == nil {
		if in.silent = in.silent && !came; !in.silent {
			in.silence = share.Silence{}
		}
		return
	}
	in.silent = in.silence.Look(now.Sub(in.m.started), came, shareConfig(in.m.cfg.Shares))
}

// onPercent is how much of the device the process that serves has with a share, in percent:
// on a GPU multiprocessors come in groups, and two shares may give the same.
func (in *instance) onPercent(share float64) float64 {
	if gpu, q := in.m.device.gpu, in.pair.Active(); gpu != nil && gpu.SMs > 0 && q != nil {
		if sms := in.seen[q.Generation].sms; sms > 0 {
			return 100 * min(1, float64(sms)/float64(gpu.SMs))
		}
	}
	return share
}

// boundBy says why no share meets the objective, in a word and in a sentence; both are empty
// where one may.
func (in *instance) boundBy() (what, why string) {
	switch {
	case in.unmet != "":
		return "objective", in.unmet
	case in.bound != "":
		return in.bound, fmt.Sprintf("objective %v is missed before requests are whole: their pieces come too late, and no share helps", in.f.slo)
	}
	return "", ""
}

// tryObjective notes whether the objective can be met at all, whatever the share: it cannot
// where one request takes longer with the whole device. What takes longer by less than the
// threshold is within what measuring tells.
func (in *instance) tryObjective(aggregation float64) {
	f := in.f
	percent, least, whole := in.reach.Best()
	beyond := f.within()
	if in.unmet == "" {
		beyond += time.Duration(float64(beyond) * in.m.cfg.Shares.ThresholdPercent / 100)
	}
	if whole <= beyond {
		if in.unmet != "" {
			in.unmet = ""
			in.log.Info().Dur("slo", f.slo).Msg("nothing says any more that the objective cannot be met")
		}
		return
	}
	possible := whole + duration(aggregation) + in.m.cfg.Transit
	told := in.unmet != ""
	in.unmet = fmt.Sprintf("objective %v cannot be met: one request takes %v at least on %.0f %% of the device, and would take %v at least on all of it; the least objective would be %v or more",
		f.slo, brief(least), percent, brief(whole), brief(possible))
	if !told {
		in.log.Warn().Dur("slo", f.slo).Str("why", in.unmet).Msg("objective cannot be met")
	}
}

// forgetQueue is called where nothing came: a latency beyond what is left of the objective
// was that of a queue in which nobody is any more. Who came would have a batch's.
func (l *instanceLoad) forgetQueue(left time.Duration) {
	tail, _ := l.tail.Mean()
	throughput, _ := l.throughput.Mean()
	if batch, ok := l.batch.Mean(); ok && throughput > 0 && tail > left.Seconds() {
		l.tail = share.EWMA{}
		l.tail.Add(batch / throughput)
	}
}

// loadStep is how far from their mean rates in a row must lie, as a part of it, to be
// another load: so many above, so many below. A burst that is taken for a load does no
// harm, a pause between bursts cuts the share that the next one needs. A rate of
// enoughAnswers requests varies by an eighth of itself; one of fewer by more, and must lie
// farther off.
const (
	loadStep  = 0.3
	stepAfter = 2
	fallAfter = 4
)

// stepped reports whether the load has become another one with these arrivals. What was
// averaged before says nothing of it, and the averages would take ten observations to
// forget.
func (l *instanceLoad) stepped(arrived int, elapsed time.Duration) bool {
	mean, ok := l.rate.Mean()
	expected := mean * elapsed.Seconds()
	far := loadStep * max(expected, math.Sqrt(expected*enoughAnswers))
	switch off := float64(arrived) - expected; {
	case ok && off > far:
		l.aside = max(l.aside, 0) + 1
	case ok && off < -far:
		l.aside = min(l.aside, 0) - 1
	default:
		l.aside = 0
	}
	return l.aside >= stepAfter || l.aside <= -fallAfter
}

// tailChance is how much a tail of enoughAnswers latencies varies from look to look, as a
// part of it (its standard deviation): a quarter to a third behind a queue (M/D/1) that is
// busy half to two thirds of the time.
const tailChance = 0.25

// doubt is how far the mean tail, in seconds, may be off by chance, when the last observation
// had so many answers. Of few that is much, and the mean is of few for ever; so where more
// were late than the tail allows, too many for chance, a tail beyond what is left of the
// objective is no chance. On a GPU throughput decides, and it is not asked.
func (in *instance) doubt(tail float64, left time.Duration, answered int) time.Duration {
	if in.m.onGPU() || tail > left.Seconds() && in.load.missed() {
		return 0
	}
	heard := min(in.load.answers, share.Remembered*answered)
	return duration(tail * tailChance * math.Sqrt(enoughAnswers/float64(max(1, heard))))
}

// missed reports whether more answers were late than the tail allows, by more than chance:
// by four standard deviations, since late ones come together.
func (l *instanceLoad) missed() bool {
	allowed := (1 - tailQuantile) * float64(l.answers)
	return float64(l.late) > allowed+4*math.Sqrt(tailQuantile*allowed)
}

// atShare turns what was measured into what the share stands for. On a GPU it is
// that: a smaller share makes every batch slower. On a CPU it is not: a quota
// lets a process run at full speed until it is used up, so a batch within it says
// nothing of the share: its time is stretched to what its CPU time takes at the
// share, and so is the throughput of a busy second. Where the quota did bind, the
// measured numbers are the longer ones and stay.
func (in *instance) atShare(t *tally, percent float64) (tail time.Duration, throughput float64) {
	tail = t.tail()
	throughput = float64(t.ran) / t.busy.Seconds()
	if in.m.onGPU() || in.cpuPerRequest <= 0 || percent <= 0 {
		return tail, throughput
	}
	part := percent / 100 * float64(max(1, in.m.observed.CPUs))
	each := time.Duration(float64(in.cpuPerRequest) / part)
	if measured := t.busy / time.Duration(t.ran); each > measured {
		tail += each - measured
		throughput = 1 / each.Seconds()
	}
	if in.cpuPerRequest > quotaSlice {
		tail = max(tail, each+time.Duration(float64(tickOverrun)/part))
	}
	return tail, throughput
}

// atLargerBatches turns the throughput of the batches that ran into that of the batches
// that there would be with more to do, and says how large those are, and whether two of
// any size fit what is left of the objective. An IF that keeps up runs small ones, since its
// latency is short then. On a CPU a batch takes its requests' times, more or less, and what
// was measured stays.
func (in *instance) atLargerBatches(measured float64, left time.Duration) (throughput, batch float64, fits bool) {
	if !in.m.onGPU() {
		return measured, 1, false
	}
	can, size := in.load.pace.Best(in.sizes(), left)
	if can > measured {
		return can, float64(size), true
	}
	return measured, in.load.pace.Mean(), size > 0
}

// sizes are the batch sizes that the rule may choose from, ascending: those of the model
// that serves, as far as its process has them. It must have one.
func (in *instance) sizes() []int {
	q := in.pair.Active()
	sizes := q.Card.Batches
	most := sizes[len(sizes)-1]
	switch in.f.batching.Rule {
	case configs.One:
		most = 1
	case configs.Fixed:
		most = in.f.batching.Size
	}
	// One that ran out of memory stays without the larger ones.
	if has := in.seen[q.Generation].batches; len(has) > 0 {
		most = min(most, slices.Max(has))
	}
	end, _ := slices.BinarySearch(sizes, most+1)
	return sizes[:end]
}

// A process that needs more than one quota's worth is stopped by the scheduler's
// tick, and may have overrun by one: it then stands still until its share has paid
// for that too. (Measured at 250 Hz: 1 ms of quota in 10 ms gives pauses of 27 to
// 35 ms; see orchestrator/quota.go.)
const (
	quotaSlice  = time.Millisecond
	tickOverrun = 4 * time.Millisecond
)

// round is for people: hundredths.
func round(v float64) float64 { return math.Round(100*v) / 100 }

// brief is for people, too: three digits.
func brief(d time.Duration) time.Duration {
	grain := time.Duration(1)
	for d >= 1000*grain {
		grain *= 10
	}
	return d.Round(grain)
}

func duration(seconds float64) time.Duration { return time.Duration(seconds * float64(time.Second)) }
