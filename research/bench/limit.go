package bench

import (
	"context"
	"fmt"
	"math"
	"os"
	"slices"
	"time"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/internal/testbed"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/shm"
)

// Limit is the report of `penstock-lab limit`: a model's rate at each limit, alone and next
// to an aggressor that has the rest of the device.
type Limit struct {
	Machine testbed.Machine `json:"machine"`
	Device  string          `json:"device"`
	Model   string          `json:"model"`
	Batch   int             `json:"batch"`
	// Aggressor is what the neighbouring function runs: a model, or "spin".
	Aggressor string        `json:"aggressor"`
	GroupSMs  []int         `json:"group_sms,omitempty"`
	SMs       int           `json:"sms,omitempty"`
	Series    []LimitSeries `json:"series"`
}

// LimitSeries is one mechanism.
type LimitSeries struct {
	// Change is how the limit is set: "shadow" (a percentage under MPS), "partition" (the
	// function's own SM groups), or on a CPU "in-place" (a quota).
	Change    string       `json:"change"`
	Mechanism string       `json:"mechanism"`
	Points    []LimitPoint `json:"points"`
}

// LimitPoint is one limit.
type LimitPoint struct {
	Percent float64 `json:"percent"`
	// Groups is the number of ordered SM groups, SMs the number of multiprocessors that the
	// process counted.
	Groups int       `json:"groups,omitempty"`
	SMs    int       `json:"sms,omitempty"`
	Alone  LimitLoad `json:"alone"`
	// Loaded is the same measurement while the aggressor is busy; nil at 100 %.
	Loaded *LimitLoad `json:"beside,omitempty"`
	// AggressorSMs is the number of the aggressor's multiprocessors in that measurement.
	AggressorSMs int `json:"aggressor_sms,omitempty"`
}

// LimitLoad is the result of a closed loop.
type LimitLoad struct {
	ImagesPerSecond float64 `json:"images_per_s"`
	MeanBatch       float64 `json:"mean_batch"`
	Latency         Micros  `json:"latency_us"`
	Answers         Answers `json:"answers"`
	// AggressorImagesPerSecond is the aggressor's rate in the same time.
	AggressorImagesPerSecond float64 `json:"aggressor_images_per_s,omitempty"`
}

// Spin is an aggressor without a model: kernels that keep all their multiprocessors busy and
// do not touch memory.
const Spin = "spin"

// LimitOptions say what is measured.
type LimitOptions struct {
	Setup
	Model     string
	Batch     int
	Aggressor string
	Changes   []configs.Change
	// Percents are the limits for percentages; a partition takes each number of groups.
	Percents []float64
	Duration time.Duration // of each measurement
}

// RunLimit measures each limit of each mechanism.
func RunLimit(ctx context.Context, o LimitOptions) (Limit, error) {
	r := Limit{Machine: o.Machine, Model: o.Model, Batch: o.Batch, Aggressor: o.Aggressor}
	for _, change := range o.Changes {
		s, err := o.series(ctx, &r, change)
		if err != nil {
			return r, fmt.Errorf("limits by %s: %w", change, err)
		}
		r.Series = append(r.Series, s)
	}
	return r, nil
}

const (
	limited   = "limited"
	aggressor = "aggressor"
)

func (o *LimitOptions) series(ctx context.Context, r *Limit, change configs.Change) (s LimitSeries, err error) {
	s = LimitSeries{Change: string(change)}
	card, err := o.Card(o.Model)
	if err != nil {
		return s, err
	}
	dir, err := testbed.NewDir()
	if err != nil {
		return s, err
	}
	defer os.RemoveAll(dir)
	file, err := testbed.Variant(dir, card, testbed.Ladder(o.Batch))
	if err != nil {
		return s, err
	}
	neighbour, neighbourCard, err := o.neighbour(dir)
	if err != nil {
		return s, err
	}
	neighbour.Percent = 90
	b, err := testbed.Start(ctx, o.Binary, testbed.Options{Device: o.Device, Change: change,
		More: configuration([]Served{{Name: limited, Card: file, Percent: 10}, neighbour}, 0)})
	if err != nil {
		return s, err
	}
	defer b.Kill()
	status, err := b.Status()
	if err != nil {
		return s, err
	}
	s.Mechanism, r.Device = status.Devices[0].Mechanism, deviceName(&status)
	percents := o.Percents
	if status.Devices[0].GPU != nil {
		r.SMs = status.Devices[0].GPU.SMs
		if change == configs.ChangePartition {
			r.GroupSMs = status.Devices[0].GPU.GroupSMs
			if len(r.GroupSMs) == 0 {
				return s, fmt.Errorf("%s cannot be partitioned: %s", r.Device, status.Devices[0].GPU.Why)
			}
			percents = groupPercents(r.GroupSMs)
		}
	}
	pictures := [2][]byte{testbed.Noise(card, 2), testbed.Noise(neighbourCard, 2)}
	for _, percent := range percents {
		o.Printf("%s: %.1f %%", change, percent)
		p, err := o.point(ctx, b, change, percent, pictures)
		if err != nil {
			return s, fmt.Errorf("at %.1f %%: %w", percent, err)
		}
		s.Points = append(s.Points, p)
	}
	return s, drain(b)
}

// groupPercents returns the shares of 1, 2, ... all groups: the multiprocessors of the first
// groups in percent of all.
func groupPercents(groups []int) (percents []float64) {
	total, sum := 0, 0
	for _, sms := range groups {
		total += sms
	}
	for _, sms := range groups {
		sum += sms
		percents = append(percents, 100*float64(sum)/float64(total))
	}
	return percents
}

// neighbour returns the aggressor's function and its card.
func (o *LimitOptions) neighbour(dir string) (Served, *models.Card, error) {
	s := Served{Name: aggressor}
	if o.Aggressor != Spin {
		card, err := o.Card(o.Aggressor)
		if err != nil {
			return s, nil, err
		}
		s.Card, err = testbed.Variant(dir, card, testbed.Ladder(o.Batch))
		return s, card, err
	}
	const requestBytes = 1024
	file, err := nullCard(dir, Spin, requestBytes, "[1]")
	if err != nil {
		return s, nil, err
	}
	s.Card = file
	s.Environment = map[string]string{"PENSTOCK_NULL": spinFor(o.Device)}
	card, err := models.ReadCard(file)
	return s, card, err
}

// spinFor returns the setting that makes a batch of the framework null keep the device busy.
func spinFor(device string) string {
	if device == configs.DeviceCPU {
		return "busy=2ms"
	}
	return "spin=2ms"
}

// point sets one limit, gives the aggressor the rest, and measures.
func (o *LimitOptions) point(ctx context.Context, b *testbed.Harness, change configs.Change, percent float64, pictures [2][]byte) (p LimitPoint, err error) {
	p.Percent = percent
	rest := math.Floor(100*(100-percent)) / 100 // rounded down, so that the sum never exceeds 100
	// Shrink one share first, so that the sum never exceeds the device.
	steps := []struct {
		name    string
		percent float64
	}{{aggressor, rest}, {limited, percent}}
	if _, _, f, err := servingProcess(b, limited); err != nil {
		return p, err
	} else if f.SharePercent > percent {
		slices.Reverse(steps)
	}
	for _, s := range steps {
		if s.name == aggressor && rest < 0.1 {
			if err := b.Remove(ctx, aggressor); err != nil {
				return p, err
			}
			continue
		}
		if change == configs.ChangeShadow {
			if err := shadowReady(ctx, b, s.name); err != nil {
				return p, err
			}
		}
		if err := setShare(ctx, b, s.name, s.percent, change); err != nil {
			return p, err
		}
	}
	_, _, f, err := servingProcess(b, limited)
	if err != nil {
		return p, err
	}
	own, err := NewTraffic(ctx, TrafficOptions{Port: f.Port, Flows: 2, InFlight: 2 * o.Batch, Picture: pictures[0]})
	if err != nil {
		return p, err
	}
	defer own.Stop()
	if err := own.Keep(2 * o.Batch); err != nil {
		return p, err
	}
	if p.Alone, err = o.measure(ctx, own, nil); err != nil {
		return p, err
	}
	// Count only after the process has run on its groups, not during its move.
	process, in, _, err := servingProcess(b, limited)
	if err != nil {
		return p, err
	}
	if p.SMs, p.Groups = process.SMs, len(in.SMGroups); rest < 0.1 {
		return p, nil
	}
	process, _, f, err = servingProcess(b, aggressor)
	if err != nil {
		return p, err
	}
	p.AggressorSMs = process.SMs
	other, err := NewTraffic(ctx, TrafficOptions{Port: f.Port, Flows: 1, InFlight: 4 * o.Batch, Picture: pictures[1]})
	if err != nil {
		return p, err
	}
	defer other.Stop()
	if err := other.Keep(4 * o.Batch); err != nil {
		return p, err
	}
	beside, err := o.measure(ctx, own, other)
	if err != nil {
		return p, err
	}
	p.Loaded = &beside
	own.Stop()
	other.Stop()
	if n := Count(append(own.Between(0, 0), other.Between(0, 0)...)); n.Unanswered > 0 {
		return p, fmt.Errorf("%d requests were not answered; the node said: %s", n.Unanswered, lastOf(b.Log()))
	}
	return p, nil
}

// measure watches loads that already run. It lets them settle for a third of the time, then
// measures for all of it.
func (o *LimitOptions) measure(ctx context.Context, own, other *Traffic) (l LimitLoad, err error) {
	if err := testbed.Pause(ctx, o.Duration/3); err != nil {
		return l, err
	}
	from := shm.Now()
	if err := testbed.Pause(ctx, o.Duration); err != nil {
		return l, err
	}
	to := shm.Now()
	seconds := time.Duration(to - from).Seconds()
	all := own.Between(from, to)
	l.Answers, l.MeanBatch, l.Latency = Count(all), meanBatch(all), micros(latenciesOf(all))
	l.ImagesPerSecond = float64(l.Answers.OK) / seconds
	if other != nil {
		l.AggressorImagesPerSecond = float64(Count(other.Between(from, to)).OK) / seconds
	}
	return l, nil
}
