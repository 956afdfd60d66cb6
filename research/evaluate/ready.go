package evaluate

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/rs/zerolog"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/cuda/nvml"
	"github.com/penstock/penstock/orchestrator/mps"
	"github.com/penstock/penstock/research/bench"
	"github.com/penstock/penstock/shm/cpuset"
)

// groupCounts are the numbers of SM groups that are measured, of the 16 groups that an H200 has
// at the driver's granularity. The last number is the whole device, the reference for the
// others.
var groupCounts = []int{1, 2, 4, 6, 8, 12, 16}

// ready measures frameworks alone, without a node and without traffic.
func (r *runner) ready(ctx context.Context, v variant, c *Case) (points []Point, err error) {
	if err := cpuset.Pin(r.cpus.all); err != nil {
		return nil, err
	}
	var env []string
	if r.device != configs.DeviceCPU {
		env = append(env, "CUDA_VISIBLE_DEVICES="+r.device) // frameworks use the first visible GPU
	}
	percents := []float64{0}
	if v.by == byPercentage && r.device != configs.DeviceCPU {
		daemon, err := r.startMPS(ctx)
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, daemon.Close()) }()
		for name, value := range daemon.Environment() {
			env = append(env, name+"="+value)
		}
		percents = c.Percents
	}
	for _, f := range c.Functions {
		o := bench.ReadyOptions{Model: f.Model, Batches: c.Ready.Batches, Streams: c.Ready.Streams, Duration: c.Ready.Duration}
		if v.by == byGroups && r.device != configs.DeviceCPU {
			o.Groups = groupCounts
		}
		if r.device == configs.DeviceCPU {
			o.Streams = []int{1}
		}
		for _, percent := range percents {
			own := slices.Clone(env)
			if percent > 0 {
				own = append(own, fmt.Sprintf("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=%g", percent))
			}
			all, err := bench.ReadyApart(ctx, r.Options.Setup, o, own)
			if ctx.Err() != nil {
				return nil, context.Cause(ctx)
			}
			if err != nil {
				// Wrong answers at a percentage are a result, not a failure.
				if v.by != byPercentage {
					return nil, err
				}
				points = append(points, Point{Model: f.Model, By: v.by, Percent: percent, Error: shortened(err)})
				continue
			}
			for _, p := range all {
				points = append(points, Point{Model: f.Model, Batch: p.Batch, Streams: p.Streams, By: v.by, Percent: percent,
					SMs: p.SMs, ImagesPerSecond: p.ImagesPerSecond, BatchTime: p.Time})
			}
		}
	}
	// The whole device was measured too; the parts are relative to it.
	for i := range points {
		r.report.SMs = max(r.report.SMs, points[i].SMs)
	}
	for i := range points {
		points[i].Percent = r.percentOf(points[i].Percent, points[i].SMs)
	}
	return points, nil
}

// percentOf returns the ordered share, or otherwise the multiprocessors' part of the device.
func (r *runner) percentOf(ordered float64, sms int) float64 {
	switch {
	case ordered > 0:
		return ordered
	case r.report.SMs > 0 && sms > 0:
		return 100 * float64(sms) / float64(r.report.SMs)
	}
	return 100
}

// startMPS starts a daemon for the GPU, with its own folder.
func (r *runner) startMPS(ctx context.Context) (*mps.Daemon, error) {
	session, err := nvml.Open()
	if err != nil {
		session = nil // skip the checks that need it
	}
	return mps.Start(ctx, mps.Options{Dir: r.dir, UUID: r.device, Session: session, Log: zerolog.Nop()})
}

// shortened cuts an error's text to what fits into a report. It keeps the start, which says
// what failed, and the end, which has the last output of a process or a node.
func shortened(err error) string {
	const most = 800
	text := []rune(err.Error())
	if len(text) > most {
		return string(text[:most/2]) + " … " + string(text[len(text)-most/2:])
	}
	return string(text)
}
