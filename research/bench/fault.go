package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/penstock/penstock/client"
	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/internal/testbed"
	"github.com/penstock/penstock/shm"
)

// Fault is the report of `penstock-lab fault`. A kernel of another function, the neighbour,
// makes an illegal memory access. Under MPS that ends every process on the GPU.
type Fault struct {
	Machine       testbed.Machine `json:"machine"`
	Device        string          `json:"device"`
	Mechanism     string          `json:"mechanism"`
	RatePerSecond float64         `json:"rate_per_s"` // of each function
	Functions     []string        `json:"functions"`
	Faults        []FaultResult   `json:"faults"`
	// Silence summarizes the longest silence of each fault.
	Silence PartMillis `json:"silence_ms"`
	// Answers are to all requests of all functions except the neighbour, over the whole
	// run. Lost requests were accepted and never answered; they include the neighbour's.
	Requests uint64  `json:"requests"`
	Answers  Answers `json:"answers"`
	Lost     uint64  `json:"lost"`
}

// FaultResult describes one fault.
type FaultResult struct {
	// SilenceMillis is how long each function gave no ok answer around the fault. Longest
	// is the longest of them.
	SilenceMillis map[string]float64 `json:"silence_ms"`
	Longest       float64            `json:"longest_ms"`
	// Answers are to requests that ended during the longest silence.
	Answers Answers `json:"answers"`
}

// FaultOptions say which functions are disturbed, and how.
type FaultOptions struct {
	Setup
	ModelNames []string
	Number     int
	// RatePerSecond is each function's open-loop load.
	RatePerSecond float64
}

const neighbour = "neighbour"

// faultFor returns the setting that makes the framework null crash the device, or on a CPU
// its own process, in the process's 51st batch.
func faultFor(device string) string {
	if device == configs.DeviceCPU {
		return "crash_after=50"
	}
	return "fault_after=50"
}

// RunFault provokes the given number of faults in the neighbour under load.
func RunFault(ctx context.Context, o FaultOptions) (r Fault, err error) {
	r = Fault{Machine: o.Machine, RatePerSecond: o.RatePerSecond}
	dir, err := testbed.NewDir()
	if err != nil {
		return r, err
	}
	defer os.RemoveAll(dir)
	const requestBytes = 1024
	null, err := nullCard(dir, neighbour, requestBytes, "[1]")
	if err != nil {
		return r, err
	}
	functions := []Served{{Name: neighbour, Card: null, Percent: 10, Environment: map[string]string{"PENSTOCK_NULL": faultFor(o.Device)}}}
	pictures := map[string][]byte{}
	for _, name := range o.ModelNames {
		card, err := o.Card(name)
		if err != nil {
			return r, err
		}
		file, err := testbed.Variant(dir, card, []int{1, 2, 4, 8})
		if err != nil {
			return r, err
		}
		r.Functions = append(r.Functions, card.Name)
		pictures[card.Name] = testbed.Noise(card, 2)
		functions = append(functions, Served{Name: card.Name, Card: file, Percent: float64(90 / len(o.ModelNames))})
	}
	b, err := testbed.Start(ctx, o.Binary, testbed.Options{Device: o.Device, More: configuration(functions, 0)})
	if err != nil {
		return r, err
	}
	defer b.Kill()
	status, err := b.Status()
	if err != nil {
		return r, err
	}
	r.Device, r.Mechanism = deviceName(&status), status.Devices[0].Mechanism

	loads := map[string]*Traffic{}
	defer func() {
		for _, l := range loads {
			l.Stop()
		}
	}()
	for name, picture := range pictures {
		f, err := b.Function(name)
		if err != nil {
			return r, err
		}
		// Allow as many requests in flight as arrive in two seconds of silence.
		loads[name], err = NewTraffic(ctx, TrafficOptions{Port: f.Port, Flows: 1, InFlight: 256, Picture: picture, Timeout: 20 * time.Second})
		if err != nil {
			return r, err
		}
		loads[name].Pace(o.RatePerSecond)
	}
	var longest []time.Duration
	for i := range o.Number {
		o.Printf("fault %d of %d", i+1, o.Number)
		f, err := o.fault(ctx, b, loads)
		if err != nil {
			return r, fmt.Errorf("fault %d: %w", i+1, err)
		}
		r.Faults = append(r.Faults, f)
		longest = append(longest, time.Duration(f.Longest*float64(time.Millisecond)))
	}
	r.Silence = partMillis(longest)
	var all []Answered
	for _, l := range loads {
		l.Stop()
		r.Requests += l.Sent()
		all = append(all, l.Between(0, 0)...)
	}
	r.Answers = Count(all)
	if status, err = b.Status(); err != nil {
		return r, err
	}
	for _, f := range status.Functions {
		r.Lost += f.Lost
	}
	return r, drain(b)
}

// fault waits until every function has a shadow, provokes a fault in the neighbour, and
// measures until every function answers again.
func (o *FaultOptions) fault(ctx context.Context, b *testbed.Harness, loads map[string]*Traffic) (r FaultResult, err error) {
	for name := range loads {
		if err := shadowReady(ctx, b, name); err != nil {
			return r, err
		}
	}
	if err := shadowReady(ctx, b, neighbour); err != nil {
		return r, err
	}
	if err := testbed.Pause(ctx, time.Second); err != nil { // collect answers, as the reference for the silence
		return r, err
	}
	before := shm.Now()
	if err := provoke(ctx, b); err != nil {
		return r, err
	}
	began := shm.Now()
	// Wait until every function has answered again for a while.
	limit, cancel := context.WithTimeoutCause(ctx, time.Minute, errors.New("not everybody answered again within a minute"))
	defer cancel()
	err = b.WaitFor(limit, "answers", func() bool {
		for _, l := range loads {
			if Count(l.Between(max(began, shm.Now()-int64(time.Second/2)), 0)).OK == 0 {
				return false
			}
		}
		return true
	})
	if err != nil {
		return r, err
	}
	if err := testbed.Pause(ctx, 2*time.Second); err != nil {
		return r, err
	}
	r.SilenceMillis = map[string]float64{}
	var during []Answered
	for name, l := range loads {
		all := l.Between(before-int64(time.Second), 0)
		silence, from, to := longestPause(all)
		r.SilenceMillis[name] = silence.Seconds() * 1000
		r.Longest = max(r.Longest, r.SilenceMillis[name])
		during = append(during, l.Between(from+1, to)...)
	}
	r.Answers = Count(during)
	return r, nil
}

// provoke sends requests to the neighbour, one at a time, until its process ends.
func provoke(ctx context.Context, b *testbed.Harness) error {
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
		case errors.As(err, &status) && client.Status(status) == client.StatusFailed:
			return nil
		default:
			return fmt.Errorf("the neighbour's request ended without an honest answer: %w", err)
		}
	}
	return fmt.Errorf("the neighbour answered %d requests and did not fault; the node said: %s", most, lastOf(b.Log()))
}

// longestPause returns the longest time between two ok answers, and when it was. all must
// be sorted by time.
func longestPause(all []Answered) (silence time.Duration, from, to int64) {
	last := int64(0)
	for _, a := range all {
		if a.Status != client.StatusOK {
			continue
		}
		if gap := time.Duration(a.At - last); last > 0 && gap > silence {
			silence, from, to = gap, last, a.At
		}
		last = a.At
	}
	return silence, from, to
}
