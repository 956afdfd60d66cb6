//go:build cgo

package e2e

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxa100"

	"github.com/penstock/penstock/cuda/mig"
	"github.com/penstock/penstock/internal/testbed"
	"github.com/penstock/penstock/internal/testing/cudafake"
	"github.com/penstock/penstock/internal/testing/migfake"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/nodetest"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/models/profile"
	"github.com/penstock/penstock/plan"
	"github.com/penstock/penstock/profiler"
	"github.com/penstock/penstock/profiler/sweep"
)

// onFake is a machine with MIG of which each instance is the fake driver's first.
type onFake struct{ mig.Session }

func (o onFake) GPUs() ([]mig.GPU, error) {
	gpus, err := o.Session.GPUs()
	for i := range gpus {
		for j := range gpus[i].Instances {
			gpus[i].Instances[j].UUID = cudafake.Instance(0)
		}
	}
	return gpus, err
}

// A profile of MIG instances measures processes in an instance of each size. An interrupted one is continued, and
// the GPU is cut as before after each.
func TestProfileInstances(t *testing.T) {
	card, err := models.ReadCard(nodetest.Card(t, "digest", small))
	must.OK(t, err)
	driver, err := fakeGPU()
	must.OK(t, err)
	mig0 := cudafake.Env(cudafake.Memory(16<<30), cudafake.MIG(0))
	for _, e := range append(withGPU(t, true), mig0, cudafake.NVML(driver), "XDG_CACHE_HOME="+t.TempDir()) {
		name, value, _ := strings.Cut(e, "=")
		t.Setenv(name, value)
	}
	server := migfake.Over(dgxa100.New())
	d, _ := server.DeviceGetHandleByIndex(0)
	d.SetMigMode(nvml.DEVICE_MIG_ENABLE)
	session, err := mig.Over(server)
	must.OK(t, err)
	session = onFake{session}
	gpus, err := session.GPUs()
	must.OK(t, err)
	uuid := gpus[0].UUID

	file := filepath.Join(t.TempDir(), "digest.csv")
	measure := func(ctx context.Context, progress func(sweep.Progress)) (sweep.Report, error) {
		in, err := profiler.OpenInstances(session, uuid, true)
		must.OK(t, err)
		scale, err := in.Scale()
		must.OK(t, err)
		grid, err := scale.Fill(profile.Sweep{Shares: []int{1, 7}, Processes: []int{1, 2},
			WindowSeconds: 0.1, PrecisionPercent: 50, MinWindows: 4, MaxWindows: 4, Quick: true}, card)
		must.OK(t, err)
		p, err := profiler.New(ctx, profiler.Options{
			Setup: testbed.Setup{Binary: penstock, Device: "cuda"}, Card: card, Scale: scale, Grid: grid, Instances: in,
		})
		must.OK(t, err)
		header, err := p.Header()
		must.OK(t, err)
		r, runErr := sweep.Run(ctx, p, sweep.Options{File: file, Header: header, Progress: progress})
		must.OK(t, p.Close())
		must.OK(t, in.Close())
		if gpus, err := session.GPUs(); err != nil || len(gpus[0].Instances) > 0 {
			t.Errorf("cut into %+v (%v), want nothing, as before", gpus[0].Instances, err)
		}
		return r, runErr
	}
	ctx, interrupt := context.WithCancel(longContext(t))
	var cut []string
	_, err = measure(ctx, func(p sweep.Progress) {
		gpus, _ := session.GPUs()
		if i := gpus[0].Instances; p.Ended != nil {
			cut = append(cut, fmt.Sprintf("%d: %s", p.Cell.Share, i[0].Profile))
		}
		if p.Cell.Share == 7 {
			interrupt()
		}
	})
	if !errors.Is(err, context.Canceled) {
		t.Fatalf("interrupted: %v", err)
	}
	r, err := measure(longContext(t), nil)
	must.OK(t, err)
	if r.Before == 0 || r.New == 0 || slices.ContainsFunc(cut, func(c string) bool { return c != "1: 1g.5gb" }) {
		t.Errorf("%d points from before, %d new, cut %v", r.Before, r.New, cut)
	}
	p, err := plan.FromProfile("digest", r.Profile, "")
	if err != nil || p.GPU != "a100-40" || p.HeldBy != "" || len(p.Points) != len(r.Profile.Points) || p.Points[len(p.Points)-1].GPCs != 7 {
		t.Errorf("plans read %+v (%v) of %+v", p, err, r.Profile)
	}
}
