package configs

import (
	"fmt"
	"strings"
)

// All of a device is 100 %. Every way to give a function a share, the configuration file,
// `penstock if add` and `penstock if share`, is held to that by CheckSum.

// roundingPercent is how far a sum of exact shares may lie above 100 %: 3 times 33.3334 is no
// mistake of the operator's.
const roundingPercent = 0.01

// CheckSum reports whether each of instances can have percent of the device when the other
// functions have assignedPercent of it together.
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
		fmt.Fprintf(&b, ", and the other functions have %.4g %%", assignedPercent)
	}
	fmt.Fprintf(&b, ": %.4g %% together, want at most 100 %%", sum)
	return fmt.Errorf("%s", b.String())
}

// FitShare reports whether a function fits on the device beside others: each instance needs
// its share_percent, or shares.minimum_percent if it has none. Guarantees have no min, and
// functions with ChangeNone no shares.
func (c *Config) FitShare(f *Function, others []Function) error {
	assignedPercent := 0.0
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

// needPercent is what each instance of a function needs at least, in percent of the device.
func (c *Config) needPercent(f *Function) float64 {
	switch {
	case c.Guarantees():
		return f.SharePercent
	case c.ChangeOf(*f) == ChangeNone:
		return 0
	}
	return max(f.SharePercent, c.Shares.MinimumPercent)
}
