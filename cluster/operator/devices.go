package operator

import (
	"cmp"
	"fmt"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// A pool has the devices that a DRA driver publishes for a node, and the claims that have them.
type pool struct {
	driver, name string
	devices      map[string]resourceapi.Device
	counters     map[counter]resource.Quantity
	claims       []*resourceapi.ResourceClaim // allocated
}

// A counter is what a GPU's devices share, such as a memory slice. Devices that overlap consume the same counters.
type counter struct{ set, name string }

// newPool reads the newest generation of a pool's slices. Claims without an allocation are left out.
func newPool(driver, name string, published []resourceapi.ResourceSlice, claims []resourceapi.ResourceClaim) *pool {
	p := &pool{
		driver:   driver,
		name:     name,
		devices:  map[string]resourceapi.Device{},
		counters: map[counter]resource.Quantity{},
	}
	newest := int64(0)
	for _, s := range published {
		newest = max(newest, s.Spec.Pool.Generation)
	}
	for _, s := range published {
		if s.Spec.Pool.Generation != newest {
			continue
		}
		for _, d := range s.Spec.Devices {
			p.devices[d.Name] = d
		}
		for _, set := range s.Spec.SharedCounters {
			for name, c := range set.Counters {
				p.counters[counter{set.Name, name}] = c.Value
			}
		}
	}
	for i := range claims {
		p.add(&claims[i])
	}
	return p
}

// add takes note of a claim that has an allocation.
func (p *pool) add(c *resourceapi.ResourceClaim) {
	if c.Status.Allocation != nil {
		p.claims = append(p.claims, c)
	}
}

// rival returns the claim that keeps another one from a device: it has the device, or an overlapping one. Only claims with the
// first right count. The error says that the driver does not publish the device.
func (p *pool) rival(c *resourceapi.ResourceClaim, device string) (*resourceapi.ResourceClaim, error) {
	want, ok := p.devices[device]
	if !ok {
		return nil, fmt.Errorf("driver %s publishes no device %s in pool %s", p.driver, device, p.name)
	}
	left := map[counter]*resource.Quantity{}
	for _, need := range want.ConsumesCounters {
		for name, q := range need.Counters {
			available := p.counters[counter{need.CounterSet, name}].DeepCopy()
			available.Sub(q.Value)
			left[counter{need.CounterSet, name}] = &available
		}
	}
	for _, other := range p.claims {
		if other.UID == c.UID || !precedes(other, c) {
			continue
		}
		for _, r := range other.Status.Allocation.Devices.Results {
			switch {
			case r.Driver != p.driver || r.Pool != p.name || r.AdminAccess != nil && *r.AdminAccess:
				continue
			case r.Device == device:
				return other, nil
			}
			for _, use := range p.devices[r.Device].ConsumesCounters {
				for name, q := range use.Counters {
					rest := left[counter{use.CounterSet, name}]
					if rest == nil {
						continue
					}
					if rest.Sub(q.Value); rest.Sign() < 0 {
						return other, nil
					}
				}
			}
		}
	}
	return nil, nil
}

// taken says why a claim cannot have a device; empty if it can.
func (p *pool) taken(c *resourceapi.ResourceClaim, device string) string {
	rival, err := p.rival(c, device)
	switch {
	case err != nil && c.Status.Allocation != nil:
		return "" // the driver may restart
	case err != nil:
		return err.Error()
	case rival != nil:
		return fmt.Sprintf("device %s is taken by claim %s/%s", device, rival.Namespace, rival.Name)
	}
	return ""
}

// precedes reports whether claim a has the first right to a device that both need. It was allocated first.
//
// The cache shows claims in the order in which they were written. A controller that sees its own allocation thus sees each
// earlier one. If it starts pods only then, of two claims with the same device only the first one gets a pod.
func precedes(a, b *resourceapi.ResourceClaim) bool {
	if b.Status.Allocation == nil {
		return true
	}
	when := func(c *resourceapi.ResourceClaim) int64 {
		if t := c.Status.Allocation.AllocationTimestamp; t != nil {
			return t.Unix()
		}
		return 0 // allocated by something that sets no time
	}
	return cmp.Or(cmp.Compare(when(a), when(b)), cmp.Compare(a.UID, b.UID)) < 0
}

// allocatedTo reports whether a claim has the planned device, and no other.
func allocatedTo(have, planned *resourceapi.ResourceClaim) bool {
	return slices.EqualFunc(have.Status.Allocation.Devices.Results, planned.Status.Allocation.Devices.Results,
		func(a, b resourceapi.DeviceRequestAllocationResult) bool {
			return a.Driver == b.Driver && a.Pool == b.Pool && a.Device == b.Device
		})
}
