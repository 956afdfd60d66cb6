package profiler

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/cuda/mig"
	"github.com/penstock/penstock/cuda/nvml"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/models/profile"
	"github.com/penstock/penstock/plan"
)

// Scale is the unit of shares, and their relation to the device.
type Scale struct {
	Unit      profile.Unit
	Total     int
	Shares    []int // by default
	Percent   func(share int) float64
	MemoryMiB func(share int) float64 // nil: all of the device's
}

// PercentScale returns a scale in percent of any device.
func PercentScale() Scale {
	s := Scale{Unit: profile.Percent, Total: 100, Percent: func(share int) float64 { return float64(share) }}
	for share := 10; share <= s.Total; share += 10 {
		s.Shares = append(s.Shares, share)
	}
	return s
}

// MIGScale returns a scale in the sizes of a GPU's MIG instances. If the GPU is not in MIG mode,
// there are no instances, and shares are percentages of as many multiprocessors. cuts allows to
// cut the GPU into instances.
func MIGScale(device string, cuts bool, open func() (mig.Session, error)) (s Scale, in *Instances, err error) {
	if device == configs.DeviceCPU {
		return s, nil, errors.New("a CPU is not cut into MIG instances; leave it out, or name a GPU with --device")
	}
	gpu, err := findGPU(device)
	if err != nil {
		return s, nil, err
	}
	if gpu.MIG || cuts {
		session, err := open()
		if err != nil {
			return s, nil, err
		}
		if in, err = OpenInstances(session, gpu.UUID, cuts); err != nil {
			return s, nil, err
		}
		s, err = in.Scale()
		return s, in, err
	}
	g, err := plan.ForDevice(gpu.Name)
	if err != nil {
		return s, nil, err
	}
	if g.Percent {
		return s, nil, fmt.Errorf("%s has no MIG; leave it out", g.Name)
	}
	s = Scale{Unit: profile.GPCs, Total: g.GPCs}
	for _, size := range g.Sizes {
		s.Shares = append(s.Shares, size.GPCs)
	}
	// Fill has checked that the size exists.
	s.Percent = func(share int) float64 {
		size, _ := g.Size(share)
		return 100 * float64(size.SMs) / float64(g.SMs)
	}
	s.MemoryMiB = func(share int) float64 {
		size, _ := g.Size(share)
		return float64(size.MemoryMiB)
	}
	return s, nil, nil
}

// findGPU returns the GPU that --device names.
func findGPU(device string) (nvml.Device, error) {
	session, err := nvml.Open()
	if err != nil {
		return nvml.Device{}, err
	}
	devices, err := session.Devices()
	if err != nil {
		return nvml.Device{}, err
	}
	index, byIndex := strings.CutPrefix(device, "cuda:")
	for i, d := range devices {
		if device == "cuda" && i == 0 || byIndex && index == strconv.Itoa(i) || strings.HasPrefix(d.UUID, device) {
			return d, nil
		}
	}
	return nvml.Device{}, fmt.Errorf("no GPU is %s", device)
}

// quickShares are the default shares of a quick measurement, in percent.
var quickShares = []int{20, 50, 100}

// Fill sets a grid's shares to the scale's and its batch sizes to the card's, if it
// has none. It checks that the shares belong to the scale.
func (s *Scale) Fill(g profile.Sweep, card *models.Card) (profile.Sweep, error) {
	if len(g.Shares) == 0 {
		g.Shares = s.Shares
		if g.Quick && s.Unit == profile.Percent {
			g.Shares = quickShares
		}
	}
	if len(g.Batches) == 0 {
		g.Batches = card.Batches
		if g.Quick && len(g.Batches) > 2 {
			g.Batches = []int{g.Batches[0], g.Batches[len(g.Batches)-1]}
		}
	}
	for _, share := range g.Shares {
		if share > s.Total || s.Unit == profile.GPCs && !slices.Contains(s.Shares, share) {
			if s.Unit == profile.GPCs {
				return g, fmt.Errorf("--shares %d: the GPU is cut into %v GPCs", share, s.Shares)
			}
			return g, fmt.Errorf("--shares %d: want 1 to %d percent", share, s.Total)
		}
		if most := slices.Max(g.Processes); s.Percent(share) < float64(most) {
			return g, fmt.Errorf("--shares %d: is less than 1 percent for each of %d processes; take larger shares or fewer --processes", share, most)
		}
	}
	return g, nil
}
