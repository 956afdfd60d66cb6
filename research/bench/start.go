package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/internal/testbed"
)

// Start is the report of `penstock-lab start`: how long functions take from their order until they
// serve, and until they have all their batch sizes.
type Start struct {
	Machine testbed.Machine `json:"machine"`
	Device  string          `json:"device"`
	Models  []StartModel    `json:"models"`
}

// StartModel has a value per start, in their order. The first one may include the preparation of the
// model's file.
type StartModel struct {
	Model   string    `json:"model"`
	Batches []int     `json:"batches"`
	Serves  []float64 `json:"serves_s"`
	All     []float64 `json:"all_sizes_s"`
}

// StartOptions say which models start, and how often.
type StartOptions struct {
	Setup
	ModelNames []string
	Number     int
}

// RunStart adds a function of each model to a node that has no other, and removes it again, Number times.
func RunStart(ctx context.Context, o StartOptions) (r Start, err error) {
	r = Start{Machine: o.Machine}
	b, err := testbed.Start(ctx, o.Binary, testbed.Options{Device: o.Device})
	if err != nil {
		return r, err
	}
	defer b.Kill()
	dir, err := testbed.NewDir()
	if err != nil {
		return r, err
	}
	defer os.RemoveAll(dir)
	for _, name := range o.ModelNames {
		card, err := o.Card(name)
		if err != nil {
			return r, err
		}
		file, err := testbed.Variant(dir, card, card.Batches)
		if err != nil {
			return r, err
		}
		m := StartModel{Model: card.Name, Batches: card.Batches}
		for i := range o.Number {
			o.Printf("%s: start %d of %d", card.Name, i+1, o.Number)
			serves, all, err := startOnce(ctx, b, card.Name, file)
			if err != nil {
				return r, fmt.Errorf("start %d of %s: %w", i+1, card.Name, err)
			}
			m.Serves, m.All = append(m.Serves, serves.Seconds()), append(m.All, all.Seconds())
		}
		r.Models = append(r.Models, m)
	}
	status, err := b.Status()
	if err != nil {
		return r, err
	}
	r.Device = deviceName(&status)
	return r, drain(b)
}

// startOnce adds a function, and removes it when it has all its batch sizes.
func startOnce(ctx context.Context, b *testbed.Harness, name, card string) (serves, all time.Duration, err error) {
	began := time.Now()
	if err := b.Order(control.AddPath, configs.Function{Name: name, Model: card, Instances: 1}); err != nil {
		return 0, 0, err
	}
	serves = time.Since(began)
	limit, cancel := context.WithTimeoutCause(ctx, 2*time.Minute, errors.New("it did not have all batch sizes within two minutes"))
	defer cancel()
	if err := b.WaitFor(limit, "all batch sizes", func() bool {
		p, _, _, err := servingProcess(b, name)
		return err == nil && p.PID != 0 && !p.WarmingUp
	}); err != nil {
		return 0, 0, err
	}
	return serves, time.Since(began), b.Remove(ctx, name)
}
