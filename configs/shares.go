package configs

import (
	"fmt"
	"strings"
)

// All of a device is 100 %. CheckSum enforces this for the configuration file, `penstock if
// add` and `penstock if share`.

// roundingPercent is how far a sum of shares may exceed 100 %, because operators round: 3
// times 33.3334 is no mistake.
const roundingPercent = 0.01

// CheckSum returns an error if each of the instances cannot have percent of the device while
// the others have assignedPercent together.
func CheckSum(percent float64, instances int, assignedPercent float64) error {
	sum := assignedPercent + percent*float64(instances)
	if sum <= 100+roundingPercent {
		return nil
	}
	var b strings.Builder
	fmt.Fprintf(&b, "is %v %%", percent)
	if instances > 1 {
		fmt.Fprintf(&b, " for each of %d instances", instances)
	}
	if assignedPercent > 0 {
		fmt.Fprintf(&b, ", and the others have %.4g %%", assignedPercent)
	}
	fmt.Fprintf(&b, ": %.4g %% together, want at most 100 %%", sum)
	return fmt.Errorf("%s", b.String())
}

// FitNode is FitShare for a node. With several devices, the node finds room for each instance at run time;
// FitNode then returns an error only if one instance fits on no device.
func (c *Config) FitNode(f *Function, others []Function) error {
	if !c.severalDevices() {
		return c.FitShare(f, others)
	}
	one := *f
	one.Instances = 1
	return c.FitShare(&one, nil)
}

// FitShare returns an error if a function does not fit on the device together with others and with
// the workers.
// Each instance needs its share_percent, or shares.minimum_percent if it has none. Guarantees
// need no minimum, and functions with ChangeNone need no share.
func (c *Config) FitShare(f *Function, others []Function) error {
	assignedPercent := c.WorkersPercent()
	for i := range others {
		assignedPercent += c.needPercent(&others[i]) * float64(others[i].Instances)
	}
	need := c.needPercent(f)
	err := CheckSum(need, f.Instances, assignedPercent)
	if err == nil || f.SharePercent >= need {
		return err
	}
	return fmt.Errorf("needs shares.minimum_percent for each instance, which %w; want fewer instances, or a smaller minimum_percent", err)
}

// needPercent is the min share of each instance of a function, in percent of the device.
func (c *Config) needPercent(f *Function) float64 {
	switch {
	case c.Guarantees():
		return f.SharePercent
	case c.ChangeOf(*f) == ChangeNone:
		return 0
	}
	return max(f.SharePercent, c.Shares.MinimumPercent)
}
