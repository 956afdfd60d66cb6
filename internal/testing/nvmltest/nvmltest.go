// Package nvmltest is a suite for package nvml on a machine with a GPU.
package nvmltest

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/cuda/nvml"
	"github.com/penstock/penstock/internal/testing/must"
)

// Run queries the library of the machine's driver.
func Run(t *testing.T) {
	s, err := nvml.Open()
	must.OK(t, err)
	version, cuda, err := s.Driver()
	if err != nil || version == "" || cuda < 11000 {
		t.Fatalf("driver %q, CUDA %d, %v", version, cuda, err)
	}
	devices, err := s.Devices()
	if err != nil || len(devices) == 0 {
		t.Fatalf("devices %+v, %v", devices, err)
	}
	if _, err := s.Usage("GPU-00000000-0000-0000-0000-000000000000"); !errors.Is(err, nvml.ErrNoDevice) {
		t.Errorf("a device that is not there: %v", err)
	}
	for _, d := range devices {
		if !strings.HasPrefix(d.UUID, "GPU-") || d.Name == "" || d.MemoryBytes <= 0 {
			t.Errorf("device %+v", d)
		}
		u, err := s.Usage(d.UUID)
		if err != nil || u.TotalBytes != d.MemoryBytes || u.FreeBytes <= 0 || u.UsedBytes < 0 || u.FreeBytes+u.UsedBytes > u.TotalBytes {
			t.Errorf("usage of %+v: %+v, %v", d, u, err)
		}
		const rounds = 100
		mean := func(ask func() error) time.Duration {
			began := time.Now()
			for range rounds {
				must.OK(t, ask())
			}
			return time.Since(began) / rounds
		}
		usage := mean(func() error { _, err := s.Usage(d.UUID); return err })
		processes := mean(func() error { _, err := s.Processes(d.UUID); return err })
		t.Logf("driver %s, CUDA %d: %+v, %+v; usage takes %v, processes %v", version, cuda, d, u, usage, processes)
	}
}
