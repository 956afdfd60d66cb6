//go:build cgo

package profiler

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	lib "github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxa100"

	"github.com/penstock/penstock/cuda/mig"
	"github.com/penstock/penstock/internal/testing/migfake"
	"github.com/penstock/penstock/internal/testing/must"
)

// a100s are eight A100s. The first is in MIG mode, with a 3g, and a 2g for two processes.
func a100s(t *testing.T) (server *migfake.Server, session mig.Session, first string) {
	t.Helper()
	server = migfake.Over(dgxa100.New())
	d, _ := server.DeviceGetHandleByIndex(0)
	d.SetMigMode(lib.DEVICE_MIG_ENABLE)
	session, err := mig.Over(server)
	must.OK(t, err)
	gpus, err := session.GPUs()
	must.OK(t, err)
	first = gpus[0].UUID
	for _, step := range gpus[0].Steps([]mig.Instance{
		{Profile: "2g.10gb", Size: 2, Compute: []mig.Compute{{Slices: 1}, {Slices: 1}}}, {Profile: "3g.20gb", Start: 4, Size: 4, Compute: []mig.Compute{{Slices: 3}}},
	}) {
		must.OK(t, session.Take(step))
	}
	return server, session, first
}

// cutInto lists the instances of the first GPU.
func cutInto(t *testing.T, session mig.Session) (list []string) {
	t.Helper()
	gpus, err := session.GPUs()
	must.OK(t, err)
	for _, i := range gpus[0].Instances {
		text := fmt.Sprintf("%s at %d of", i.Profile, i.Start)
		for _, c := range i.Compute {
			text += fmt.Sprint(" ", c.Slices)
		}
		list = append(list, text)
	}
	return list
}

var before = []string{"2g.10gb at 0 of 1 1", "3g.20gb at 4 of 3"}

func TestInstances(t *testing.T) {
	server, session, first := a100s(t)
	in, err := OpenInstances(session, first, false)
	must.OK(t, err)
	scale, err := in.Scale()
	must.OK(t, err)
	if !slices.Equal(scale.Shares, []int{3}) || scale.Total != 7 {
		t.Errorf("sizes %v of %d, want that of the instance that is one device", scale.Shares, scale.Total)
	}
	changes := server.Changes()
	device, err := in.use(3)
	if err != nil || !strings.HasPrefix(device, "MIG-") || server.Changes() != changes {
		t.Errorf("an instance that exists: device %q, %v, %d changes", device, err, server.Changes()-changes)
	}
	server.Run(0, 4, true)
	if _, err := in.use(3); err == nil || !strings.Contains(err.Error(), "no idle 3g.20gb any more") {
		t.Errorf("an instance that another program uses: %v", err)
	}
}

func TestCutInstances(t *testing.T) {
	server, session, first := a100s(t)
	in, err := OpenInstances(session, first, true)
	must.OK(t, err)
	scale, err := in.Scale()
	must.OK(t, err)
	if !slices.Equal(scale.Shares, []int{1, 2, 3, 4, 7}) {
		t.Errorf("sizes %v, want all", scale.Shares)
	}
	for gpcs, want := range map[int]string{7: "7g.40gb at 0 of 7", 1: "1g.5gb at 0 of 1", 4: "4g.20gb at 0 of 4"} {
		device, err := in.use(gpcs)
		if err != nil || !strings.HasPrefix(device, "MIG-") || !slices.Equal(cutInto(t, session), []string{want}) {
			t.Errorf("%d GPCs: device %q, %v; cut into %v", gpcs, device, err, cutInto(t, session))
		}
	}
	must.OK(t, in.Close())
	if got := cutInto(t, session); !slices.Equal(got, before) {
		t.Errorf("cut into %v, want as before: %v", got, before)
	}

	for nth := 1; nth <= 7; nth++ { // of the steps that destroy and create something
		server.FailAt(nth, lib.ERROR_UNKNOWN)
		if _, err := in.use(7); !errors.Is(err, lib.ERROR_UNKNOWN) {
			t.Errorf("change %d fails: %v", nth, err)
		}
		must.OK(t, in.Close())
		if got := cutInto(t, session); !slices.Equal(got, before) {
			t.Errorf("change %d fails: cut into %v, want as before: %v", nth, got, before)
		}
	}
	_, err = in.use(7)
	must.OK(t, err)
	server.Run(0, 0, true)
	if err := in.Close(); !errors.Is(err, mig.ErrInUse) || !strings.Contains(err.Error(), "cut it by hand, as before") {
		t.Errorf("a process that stays in an instance: %v", err)
	}
	server.Run(0, 0, false)
	must.OK(t, in.Close())
	if got := cutInto(t, session); !slices.Equal(got, before) {
		t.Errorf("cut into %v, want as before: %v", got, before)
	}
}

func TestInstancesRefused(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(*migfake.Server)
		gpu   int
		cuts  bool
		want  string
	}{
		"no rights":       {spoil: (*migfake.Server).Demote, want: "run as root"},
		"no MIG mode":     {gpu: 1, cuts: true, want: "MIG mode is off; turn it on (nvidia-smi -i 1 -mig 1 resets the GPU), or leave out --cut"},
		"no MIG":          {gpu: -1, cuts: true, want: "GPU-none has no MIG; leave out --cut"},
		"in use, and cut": {spoil: func(s *migfake.Server) { s.Run(0, 4, true) }, cuts: true, want: "3g.20gb at slot 4: a process runs in it"},
		"all are in use":  {spoil: func(s *migfake.Server) { s.Run(0, 0, true); s.Run(0, 4, true) }, want: "has no idle instance of a size that plans use; allow to cut it with --cut"},
	} {
		server, session, _ := a100s(t)
		gpus, err := session.GPUs()
		must.OK(t, err)
		uuid := "GPU-none"
		if c.gpu >= 0 {
			uuid = gpus[c.gpu].UUID
		}
		if c.spoil != nil {
			c.spoil(server)
		}
		changes := server.Changes()
		_, err = OpenInstances(session, uuid, c.cuts)
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") || server.Changes() != changes {
			t.Errorf("%s: %v\nwant %s; %d changes", name, err, c.want, server.Changes()-changes)
		}
	}
}
