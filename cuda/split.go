package cuda

import (
	"errors"
	"fmt"
	"slices"
)

// resource is a CUdevResource, a struct of the driver that is copied unchanged.
type resource [18]uint64

// resourceSM is CU_DEV_RESOURCE_TYPE_SM.
const resourceSM = 1

// sms returns the number of multiprocessors of a resource, and of the smallest part of one. A type and 92 bytes
// come before them.
func (r *resource) sms() (sms, smallest int) { return int(uint32(r[12])), int(r[12] >> 32) }

// split fills groups. If groups is empty it returns how many there would be.
func (r *resource) split(smallest int, groups []resource) (count int, rest resource, err error) {
	n, err := cuDevSmResourceSplitByCount.special(func(address uint64) ([2]uint64, int32) {
		return resourceSplit(address, r, smallest, groups, &rest)
	})
	return int(n), rest, err
}

// Split says how a device's multiprocessors divide into disjoint groups. It is plain data
// and owns nothing. A group's index names the same physical multiprocessors in every
// process that splits the same device (measured on an H200 under MPS). So processes with
// disjoint indices share no multiprocessor.
type Split struct {
	device Device
	groups []resource
	sms    []int
}

// Split splits the device's multiprocessors into the smallest groups that keep thread-block
// clusters whole (8 on Hopper). The multiprocessors left over form one more group, the
// last. It needs no context. Any goroutine may call it. If there are no green contexts,
// which came with CUDA 12.4, the error is ErrNotSupported.
func (d Device) Split() (*Split, error) {
	if err := Open(); err != nil {
		return nil, err
	}
	var whole resource
	if _, err := with(cuDeviceGetDevResource, &whole, d.handle, buffer, resourceSM); err != nil {
		return nil, fmt.Errorf("split %v: %w", d, err)
	}
	all, smallest := whole.sms()
	count, _, err := whole.split(smallest, nil)
	if err != nil {
		return nil, fmt.Errorf("split %v by %d: %w", d, smallest, err)
	}
	s := &Split{device: d, groups: make([]resource, count)}
	made, rest, err := whole.split(smallest, s.groups)
	if err != nil {
		return nil, fmt.Errorf("split %v by %d: %w", d, smallest, err)
	}
	s.groups = s.groups[:min(made, len(s.groups))]
	for _, g := range s.groups {
		sms, _ := g.sms()
		s.sms = append(s.sms, sms)
		all -= sms
	}
	if sms, _ := rest.sms(); sms > 0 && all > 0 {
		s.groups, s.sms = append(s.groups, rest), append(s.sms, sms)
	}
	return s, nil
}

// GroupSMs returns the number of multiprocessors in each group, by its index. The caller
// owns the slice. The last group has the remainder.
func (s *Split) GroupSMs() []int { return slices.Clone(s.sms) }

// Green is a green context: a part of the device's multiprocessors. Work that is queued on
// its streams runs only on those. Only one goroutine at a time may use it, except for
// NewStream.
type Green struct {
	parent *Context
	kept   *keptGreen // nil once destroyed
}

// keptGreen is a green context of the driver. For each one ever made, the driver keeps 4
// MiB of device memory for ever (measured: 580.159 on an H200, with and without streams,
// bound or not). Making one takes 0.8 ms when nothing runs. So a Context keeps unused green
// contexts until it is closed, and reuses them for the same groups.
type keptGreen struct {
	handle  uint64
	context uint64
	sms     int
	users   int
}

// Green makes a green context of some groups of a split: at least one, each once, in any
// order. The caller owns it until Destroy. Modules, memory and events of c work in it. Any
// bound thread may call it.
//
// The first call for a set of groups takes one to two milliseconds of the driver's time,
// and 5 MiB of device memory until c is closed. It waits until this process's kernels on
// the device are done, but not for other processes'. Launches by other threads go on. Later
// calls for the same groups take no time. A process that moves between partitions should
// therefore make its green contexts while it is idle, or on another thread.
//
// If groups are wrong, Green itself makes the error, an *Error of CUDA_ERROR_INVALID_VALUE.
func (c *Context) Green(s *Split, groups []int) (*Green, error) {
	sorted := slices.Sorted(slices.Values(groups))
	parts, wrong := c.parts(s, sorted)
	if wrong != "" {
		return nil, fmt.Errorf("green context of groups %v: %s: %w", groups, wrong, &Error{Op: "cuDevResourceGenerateDesc", Code: InvalidValue})
	}
	name := fmt.Sprint(sorted)
	c.mu.Lock()
	defer c.mu.Unlock()
	kept := c.greens[name]
	if kept == nil {
		var err error
		if kept, err = makeGreen(c.device, parts); err != nil {
			return nil, fmt.Errorf("green context of groups %v: %w", groups, err)
		}
		if c.greens == nil {
			c.greens = map[string]*keptGreen{}
		}
		c.greens[name] = kept
	}
	kept.users++
	return &Green{parent: c, kept: kept}, nil
}

// parts returns the resources of groups, which are sorted, or says what is wrong with the
// groups.
func (c *Context) parts(s *Split, groups []int) (parts []resource, wrong string) {
	if s.device != c.device {
		return nil, "the split is of " + s.device.String()
	}
	if len(groups) == 0 {
		return nil, "no group"
	}
	for i, g := range groups {
		if g < 0 || g >= len(s.groups) {
			return nil, fmt.Sprintf("there are %d groups", len(s.groups))
		}
		if i > 0 && g == groups[i-1] {
			return nil, fmt.Sprintf("group %d is listed twice", g)
		}
		parts = append(parts, s.groups[g])
	}
	return parts, ""
}

// greenDefaultStream is CU_GREEN_CTX_DEFAULT_STREAM.
const greenDefaultStream = 1

func makeGreen(d Device, parts []resource) (*keptGreen, error) {
	description, err := with(cuDevResourceGenerateDesc, &parts[0], out, buffer, uint64(len(parts)))
	if err != nil {
		return nil, err
	}
	handle, err := cuGreenCtxCreate.get(out, description, d.handle, greenDefaultStream)
	if err != nil {
		return nil, err
	}
	context, err := cuCtxFromGreenCtx.get(out, handle)
	if err != nil {
		cuGreenCtxDestroy.do(handle)
		return nil, err
	}
	var whole resource
	if _, err := with(cuGreenCtxGetDevResource, &whole, handle, buffer, resourceSM); err != nil {
		cuGreenCtxDestroy.do(handle)
		return nil, err
	}
	sms, _ := whole.sms()
	return &keptGreen{handle: handle, context: context, sms: sms}, nil
}

// NewStream makes a stream on the green context's multiprocessors. It takes microseconds,
// whatever runs. Destroy it before the green context.
func (g *Green) NewStream() (Stream, error) { return g.NewPriorityStream(0) }

// NewPriorityStream makes a stream like NewStream, with a priority as in
// Context.NewPriorityStream.
func (g *Green) NewPriorityStream(priority int) (Stream, error) {
	handle, err := cuGreenCtxStreamCreate.get(out, g.kept.handle, streamNonBlocking, uint64(priority))
	return Stream{handle}, err
}

// SMs is the number of its multiprocessors.
func (g *Green) SMs() int { return g.kept.sms }

// Destroy releases the green context, which must not be used afterwards. Its streams must
// have been destroyed, and no work of it may be in flight.
// The Context keeps it for the next call of Green with these groups.
func (g *Green) Destroy() error {
	if g.kept == nil {
		return nil
	}
	g.parent.mu.Lock()
	defer g.parent.mu.Unlock()
	g.kept.users--
	g.kept = nil
	return nil
}

// closeGreens destroys the unused green contexts.
func (c *Context) closeGreens() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var errs []error
	for name, kept := range c.greens {
		if kept.users > 0 {
			errs = append(errs, fmt.Errorf("close context: a green context of groups %s is in use", name))
			continue
		}
		errs = append(errs, cuGreenCtxDestroy.do(kept.handle))
		delete(c.greens, name)
	}
	return errors.Join(errs...)
}
