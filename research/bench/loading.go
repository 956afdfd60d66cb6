package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/penstock/penstock/client"
	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/internal/testbed"
	"github.com/penstock/penstock/node"
)

// Loading is what loads cost: the request that waits for one, and a neighbour in its own process. The
// members of a worker whose memory holds only some of them get one request after the other, so that each
// request needs a load. Each list has a value per round, on the same node. Times are milliseconds.
type Loading struct {
	Machine   testbed.Machine `json:"machine"`
	Device    string          `json:"device"`
	Models    []string        `json:"models"` // of the members
	MemoryMiB int             `json:"memory_mib"`
	Neighbour string          `json:"neighbour"` // its model
	Rate      float64         `json:"rate"`      // its requests per second

	// Resident is the median latency of the first member if only that one gets requests. Linked is its
	// median if all get requests in turn. Each of these needed LoadsPerRequest loads.
	Resident        []float64 `json:"resident_ms"`
	Linked          []float64 `json:"linked_ms"`
	LoadsPerRequest []float64 `json:"loads_per_request"`
	// Load is the first member's last load. Added is Linked - Resident - Load.
	Load  []float64 `json:"load_ms"`
	Added []float64 `json:"added_ms"`
	// Alone is the p99 of the neighbour while the members get no requests, Beside while they do.
	Alone    []float64 `json:"neighbour_alone_p99_ms"`
	Beside   []float64 `json:"neighbour_beside_p99_ms"`
	P99Ratio float64   `json:"neighbour_p99_ratio"` // of the medians

	// Early is the median latency of a request whose sending takes SpreadMillis and whose model is evicted.
	SpreadMillis float64   `json:"spread_ms"`
	Early        []float64 `json:"early_ms"`
}

// LoadingOptions say what RunLoading measures.
type LoadingOptions struct {
	Setup
	ModelNames []string // of the members
	MemoryMiB  int
	Neighbour  string
	PerSecond  float64 // of the neighbour
	Spread     time.Duration
	Duration   time.Duration
	Rounds     int
}

// RunLoading measures the worker alone, the neighbour alone, and both, Rounds times on one node.
func RunLoading(ctx context.Context, o LoadingOptions) (Loading, error) {
	r := Loading{
		Machine: o.Machine, Device: o.Device, Models: o.ModelNames, MemoryMiB: o.MemoryMiB, Neighbour: o.Neighbour, Rate: o.PerSecond,
		SpreadMillis: o.Spread.Seconds() * 1000,
	}
	if err := checkCards(&o.Setup, append(slices.Clone(o.ModelNames), o.Neighbour)); err != nil {
		return r, err
	}
	if len(o.ModelNames) < 2 {
		return r, errors.New("measure loads: a single member is never evicted; want two models or more")
	}
	if err := o.onNode(ctx, func(n *node.Node, status *control.Status) error {
		members, err := dialMembers(ctx, o, status, 0)
		if err != nil {
			return err
		}
		defer members.close()
		if _, err := members.cycle(ctx, time.Second, len(members)); err != nil { // warm up
			return err
		}
		for round := range o.Rounds {
			o.Printf("round %d of %d", round+1, o.Rounds)
			if err := o.round(ctx, n, members, uint64(round+1), &r); err != nil {
				return err
			}
		}
		return o.spread(ctx, status, &r.Early)
	}); err != nil {
		return r, err
	}
	alone, _, _ := Spread(r.Alone)
	beside, _, _ := Spread(r.Beside)
	r.P99Ratio = beside / alone
	return r, nil
}

// onNode starts a node, measures on it and stops it.
func (o *LoadingOptions) onNode(ctx context.Context, measure func(*node.Node, *control.Status) error) error {
	starting, cancel := context.WithTimeoutCause(ctx, workerPatience, fmt.Errorf("not all functions served after %v", workerPatience))
	defer cancel()
	o.Printf("start node")
	n, err := node.Start(starting, node.Options{Binary: o.Binary, Config: o.config(), Environment: []string{configs.Lab{}.Environment()}})
	if err != nil {
		return err
	}
	defer n.Kill()
	var status control.Status
	if err := n.WaitFor(starting, "every function and shadow", func() bool { return loaded(n, &status) }); err != nil {
		return err
	}
	if err := loadEach(starting, o.Device, n, &status); err != nil {
		return err
	}
	if err := measure(n, &status); err != nil {
		return err
	}
	return n.Stop()
}

// spread adds the median latencies of requests that are sent slowly.
func (o *LoadingOptions) spread(ctx context.Context, status *control.Status, to *[]float64) error {
	members, err := dialMembers(ctx, *o, status, o.Spread)
	if err != nil {
		return err
	}
	defer members.close()
	for range o.Rounds {
		latencies, err := members.cycle(ctx, o.Duration, len(members))
		if err != nil {
			return err
		}
		*to = append(*to, micros(latencies).P50/1000)
	}
	return nil
}

func (o *LoadingOptions) config() string {
	var config strings.Builder
	config.WriteString(deviceAndModels(&o.Setup))
	fmt.Fprintf(&config, "workers: [{name: cold, share_percent: 40, lanes: 1, memory: %dMiB}]\nfunctions:\n", o.MemoryMiB)
	// The neighbour's objective is longer than any load: late answers must count, too.
	fmt.Fprintf(&config, "  - {name: near, model: %q, port: 0, slo: 10s}\n", o.Neighbour)
	for i, name := range o.ModelNames {
		fmt.Fprintf(&config, "  - {name: fn%d, model: %q, port: 0, slo: 2s, worker: cold}\n", i, name)
	}
	return config.String()
}

// round adds the values of one round.
func (o *LoadingOptions) round(ctx context.Context, n *node.Node, members loadedMembers, seed uint64, r *Loading) error {
	resident, err := members.cycle(ctx, o.Duration, 1)
	if err != nil {
		return err
	}
	neighbour := func(to *[]float64) error {
		sharing := SharingOptions{Setup: o.Setup, Duration: o.Duration}
		report, err := sharing.runLoad(ctx, n.Dir, map[string]float64{"near": o.PerSecond}, seed)
		switch {
		case err != nil:
			return err
		case len(report.Functions) != 1 || report.Functions[0].OK == 0:
			return errors.New("measure the neighbour: it answered no request")
		}
		*to = append(*to, report.Functions[0].P99Millis)
		return nil
	}
	if err := neighbour(&r.Alone); err != nil {
		return err
	}

	before, err := n.Status()
	if err != nil {
		return err
	}
	loads, _ := residencyOf(&before)
	var cycling sync.WaitGroup
	var linked []time.Duration
	var cycleErr error
	cycling.Go(func() { linked, cycleErr = members.cycle(ctx, o.Duration+time.Second, len(members)) })
	err = neighbour(&r.Beside)
	cycling.Wait()
	if err := errors.Join(err, cycleErr); err != nil {
		return err
	}
	after, err := n.Status()
	if err != nil {
		return err
	}
	now, millis := residencyOf(&after)
	if now == loads {
		return fmt.Errorf("measure loads: no request needed one, because %d MiB hold all members; use less memory", o.MemoryMiB)
	}
	load := millis[0]
	r.LoadsPerRequest = append(r.LoadsPerRequest, ratio(float64(now-loads), float64(len(linked)*len(members))))
	r.Load = append(r.Load, load)
	one, many := micros(resident).P50/1000, micros(linked).P50/1000
	r.Resident, r.Linked, r.Added = append(r.Resident, one), append(r.Linked, many), append(r.Added, many-one-load)
	return nil
}

// loadedMembers are clients of a worker's members, with a picture for each.
type loadedMembers []loadedMember

type loadedMember struct {
	client  *client.Client
	picture []byte
}

// spreadParts is in how many bursts a slow request is sent.
const spreadParts = 32

// dialMembers opens a client for each function of the worker. Each sends a request within spread; 0 is at once.
func dialMembers(ctx context.Context, o LoadingOptions, status *control.Status, spread time.Duration) (m loadedMembers, err error) {
	defer func() {
		if err != nil {
			m.close()
		}
	}()
	for i, name := range o.ModelNames {
		card, err := o.Card(name)
		if err != nil {
			return m, err
		}
		at := slices.IndexFunc(status.Functions, func(f control.FunctionStatus) bool { return f.Name == fmt.Sprintf("fn%d", i) })
		if at < 0 {
			return m, fmt.Errorf("find function fn%d: the node does not have it", i)
		}
		bytes, with := card.Input.WireBytes(), client.Options{Timeout: 10 * time.Second}
		if spread > 0 {
			with.PaceBytes, with.BurstBytes = int64(float64(bytes)/spread.Seconds()), max(2048, bytes/spreadParts)
		}
		c, err := client.Dial(ctx, fmt.Sprintf("127.0.0.1:%d", status.Functions[at].Port), with)
		if err != nil {
			return m, err
		}
		m = append(m, loadedMember{c, make([]byte, bytes)})
	}
	return m, nil
}

func (m loadedMembers) close() {
	for _, one := range m {
		one.client.Close()
	}
}

// cycle sends a request to each of the first n members in turn, each after the answer to the one before, and
// returns the latencies of the first. A late answer counts with its latency. A request that the model does
// not answer in time does not count: a busy machine has some.
func (m loadedMembers) cycle(ctx context.Context, duration time.Duration, n int) (latencies []time.Duration, err error) {
	for end := time.Now().Add(duration); time.Now().Before(end); {
		for i := range n {
			began := time.Now()
			_, err := m[i].client.Do(ctx, m[i].picture, client.RequestOptions{Deadline: 2 * time.Second})
			took := time.Since(began)
			switch {
			case errors.Is(err, client.StatusError(client.StatusLate)):
			case isBusy(err):
				continue
			case err != nil:
				return latencies, fmt.Errorf("request to member %d: %w", i, err)
			}
			if i == 0 {
				latencies = append(latencies, took)
			}
		}
	}
	return latencies, nil
}
