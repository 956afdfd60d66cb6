//go:build gpu

package nvml

import (
	"strings"
	"testing"
	"time"
)

// TestRealDevices asks the library of the machine's driver.
func TestRealDevices(t *testing.T) {
	s, err := Open()
	if err != nil {
		t.Fatal(err)
	}
	version, cuda, err := s.Driver()
	if err != nil || version == "" || cuda < 11000 {
		t.Fatalf("driver %q, CUDA %d, %v", version, cuda, err)
	}
	devices, err := s.Devices()
	if err != nil || len(devices) == 0 {
		t.Fatalf("devices %+v, %v", devices, err)
	}
	for _, d := range devices {
		if !strings.HasPrefix(d.UUID, "GPU-") || d.Name == "" || d.MemoryBytes <= 0 {
			t.Errorf("device %+v", d)
		}
		u, err := s.Usage(d.UUID)
		if err != nil || u.TotalBytes != d.MemoryBytes || u.FreeBytes <= 0 || u.UsedBytes < 0 || u.FreeBytes+u.UsedBytes > u.TotalBytes {
			t.Errorf("usage of %+v: %+v, %v", d, u, err)
		}
		p, err := s.Processes(d.UUID)
		if err != nil {
			t.Error(err)
		}
		const rounds = 100
		began := time.Now()
		for range rounds {
			if _, err := s.Usage(d.UUID); err != nil {
				t.Fatal(err)
			}
		}
		usage := time.Since(began) / rounds
		began = time.Now()
		for range rounds {
			if _, err := s.Processes(d.UUID); err != nil {
				t.Fatal(err)
			}
		}
		t.Logf("driver %s, CUDA %d: %+v, %+v, %+v; usage takes %v, processes %v", version, cuda, d, u, p, usage, time.Since(began)/rounds)
	}
}
