package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/penstock/penstock/client"
	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/wire"
)

// Fault is the report of `bench fault`: a neighbour's kernel reads where it may not,
// which under MPS ends every process on the GPU.
type Fault struct {
	Machine       Machine       `json:"machine"`
	Device        string        `json:"device"`
	Mechanism     string        `json:"mechanism"`
	RatePerSecond float64       `json:"rate_per_s"` // of each function
	Functions     []string      `json:"functions"`
	Faults        []FaultResult `json:"faults"`
	// Silence sums up the longest silence of each fault; Node what the node itself
	// says of it.
	Silence PartMillis `json:"silence_ms"`
	Node    PartMillis `json:"node_silence_ms"`
	// Answers are to all requests of all functions but the neighbour's, from
	// beginning to end. Lost were accepted and never answered, the neighbour's too.
	Requests uint64  `json:"requests"`
	Answers  Answers `json:"answers"`
	Lost     uint64  `json:"lost"`
}

// FaultResult is one fault.
type FaultResult struct {
	// SilenceMillis is how long each function gave no ok answer around the fault,
	// Longest the longest of them, NodeMillis how long the node says it was.
	SilenceMillis map[string]float64 `json:"silence_ms"`
	Longest       float64            `json:"longest_ms"`
	NodeMillis    float64            `json:"node_ms"`
	// Answers are those to requests that ended while the node was out.
	Answers Answers `json:"answers"`
}

// FaultOptions say what is disturbed.
type FaultOptions struct {
	Options
	ModelNames []string
	Number     int
	// RatePerSecond is each function's open-loop load.
	RatePerSecond float64
}

const neighbour = "neighbour"

// faultFor is what the framework null is told so that it takes the device down (or,
// on a CPU, itself) in the 51st batch of a process.
func faultFor(device string) string {
	if device == configs.DeviceCPU {
		return "crash_after=50"
	}
	return "fault_after=50"
}

// RunFault has the neighbour fault so many times under load.
func RunFault(ctx context.Context, o FaultOptions) (r Fault, err error) {
	r = Fault{Machine: o.Machine, RatePerSecond: o.RatePerSecond}
	dir, err := newBedDir()
	if err != nil {
		return r, err
	}
	defer os.RemoveAll(dir)
	const requestBytes = 1024
	null, err := nullCard(dir, neighbour, requestBytes, "[1]")
	if err != nil {
		return r, err
	}
	functions := []served{{name: neighbour, card: null, percent: 10, environment: map[string]string{"PENSTOCK_NULL": faultFor(o.Device)}}}
	pictures := map[string][]byte{}
	for _, name := range o.ModelNames {
		card, err := o.card(name)
		if err != nil {
			return r, err
		}
		file, err := variant(dir, card, []int{1, 2, 4, 8})
		if err != nil {
			return r, err
		}
		r.Functions = append(r.Functions, card.Name)
		pictures[card.Name] = noisePicture(card)
		functions = append(functions, served{name: card.Name, card: file, percent: float64(90 / len(o.ModelNames))})
	}
	b, err := startBed(ctx, o.Binary, bedOptions{device: o.Device, change: configs.ChangeAuto, functions: functions})
	if err != nil {
		return r, err
	}
	defer b.kill()
	status, err := b.Status()
	if err != nil {
		return r, err
	}
	r.Device, r.Mechanism = deviceName(&status), status.Mechanism

	loads := map[string]*traffic{}
	defer func() {
		for _, l := range loads {
			l.stop()
		}
	}()
	for name, picture := range pictures {
		f, err := b.Function(name)
		if err != nil {
			return r, err
		}
		// As many in flight as come in two seconds of silence.
		loads[name], err = newTraffic(ctx, trafficOptions{port: f.Port, flows: 1, inFlight: 256, picture: picture, timeout: 20 * time.Second})
		if err != nil {
			return r, err
		}
		loads[name].pace(o.RatePerSecond)
	}
	var longest, told []time.Duration
	for i := range o.Number {
		o.say("fault %d of %d", i+1, o.Number)
		f, err := o.fault(ctx, b, loads)
		if err != nil {
			return r, fmt.Errorf("fault %d: %w", i+1, err)
		}
		r.Faults = append(r.Faults, f)
		longest = append(longest, time.Duration(f.Longest*float64(time.Millisecond)))
		told = append(told, time.Duration(f.NodeMillis*float64(time.Millisecond)))
	}
	r.Silence, r.Node = partMillis(longest), partMillis(told)
	var all []answered
	for _, l := range loads {
		l.stop()
		r.Requests += l.sent()
		all = append(all, l.between(0, 0)...)
	}
	r.Answers = count(all)
	if status, err = b.Status(); err != nil {
		return r, err
	}
	for _, f := range status.Functions {
		r.Lost += f.Lost
	}
	return r, b.end()
}

// fault waits until everybody has a shadow, has the neighbour fault, and measures
// until everybody answers again.
func (o *FaultOptions) fault(ctx context.Context, b *bed, loads map[string]*traffic) (r FaultResult, err error) {
	for name := range loads {
		if err := b.shadowReady(ctx, name); err != nil {
			return r, err
		}
	}
	if err := b.shadowReady(ctx, neighbour); err != nil {
		return r, err
	}
	if err := pause(ctx, time.Second); err != nil { // of answers, to measure the silence against
		return r, err
	}
	before := client.Now()
	if err := provoke(ctx, b); err != nil {
		return r, err
	}
	began := client.Now()
	// Everybody answers again, and has done so for a while.
	limit, cancel := context.WithTimeoutCause(ctx, time.Minute, errors.New("not everybody answered again within a minute"))
	defer cancel()
	err = b.WaitFor(limit, "answers", func() bool {
		for _, l := range loads {
			if count(l.between(max(began, client.Now()-int64(time.Second/2)), 0)).OK == 0 {
				return false
			}
		}
		return true
	})
	if err != nil {
		return r, err
	}
	if err := pause(ctx, 2*time.Second); err != nil {
		return r, err
	}
	r.SilenceMillis = map[string]float64{}
	var during []answered
	for name, l := range loads {
		all := l.between(before-int64(time.Second), 0)
		silence, from, to := longestSilence(all)
		r.SilenceMillis[name] = silence.Seconds() * 1000
		r.Longest = max(r.Longest, r.SilenceMillis[name])
		during = append(during, l.between(from+1, to)...)
	}
	r.Answers = count(during)
	status, err := b.Status()
	if err != nil {
		return r, err
	}
	r.NodeMillis = status.Faults.LastMillis
	return r, nil
}

// provoke asks the neighbour, one request at a time, until it is gone.
func provoke(ctx context.Context, b *bed) error {
	f, err := b.Function(neighbour)
	if err != nil {
		return err
	}
	c, err := client.Dial(ctx, fmt.Sprintf("127.0.0.1:%d", f.Port), client.Options{Timeout: 10 * time.Second})
	if err != nil {
		return err
	}
	defer c.Close()
	picture := make([]byte, f.Input.Bytes)
	const most = 1000
	for range most {
		_, err := c.Do(ctx, picture, client.RequestOptions{})
		var status client.StatusError
		switch {
		case err == nil:
		case errors.As(err, &status) && wire.Status(status) == wire.StatusFailed:
			return nil
		default:
			return fmt.Errorf("the neighbour's request ended without an honest answer: %w", err)
		}
	}
	return fmt.Errorf("the neighbour answered %d requests and did not fault: %s", most, strings.TrimSpace(b.Log()))
}

// longestSilence is the longest time between two ok answers, and when it was. all
// ascends in time.
func longestSilence(all []answered) (silence time.Duration, from, to int64) {
	last := int64(0)
	for _, a := range all {
		if a.lost || a.status != wire.StatusOK {
			continue
		}
		if gap := time.Duration(a.at - last); last > 0 && gap > silence {
			silence, from, to = gap, last, a.at
		}
		last = a.at
	}
	return silence, from, to
}
