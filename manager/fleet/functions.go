package fleet

import (
	"fmt"
	"slices"
	"strings"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/manager/policy/gslice"
	"github.com/penstock/penstock/manager/sharing"
)

// functions are those of a node. The control loop owns them.
type functions []*function

// find returns the function of that name, nil if there is none.
func (list functions) find(name string) *function {
	for _, f := range list {
		if f.name == name {
			return f
		}
	}
	return nil
}

func (list functions) unknown(name string) error {
	var names []string
	for _, f := range list {
		names = append(names, f.name)
	}
	return fmt.Errorf("no function %q; known are: %s", name, strings.Join(names, ", "))
}

// instance returns an instance of the function of that name, nil if there is none.
func (list functions) instance(id gslice.ID) *instance {
	if f := list.find(id.IF); f != nil && id.Instance >= 0 && id.Instance < len(f.instances) {
		return f.instances[id.Instance]
	}
	return nil
}

func (list functions) eachInstance(do func(*instance)) {
	for _, f := range list {
		for _, in := range f.instances {
			do(in)
		}
	}
}

// portHolder names the function that has a network port; "" if the port is free or 0.
func (list functions) portHolder(port uint16) string {
	for _, f := range list {
		if port != 0 && f.port.LocalAddr().Port() == port {
			return f.name
		}
	}
	return ""
}

// removing reports whether a function is being removed.
func (list functions) removing() bool {
	return slices.ContainsFunc(list, func(f *function) bool { return f.removing })
}

// replacing reports whether a function's model is being replaced.
func (list functions) replacing() bool {
	return slices.ContainsFunc(list, func(f *function) bool { return f.model.replacing != nil })
}

// instances are those of a function.
type instances []*instance

// on reports whether an instance is on a device, or is moving there or away.
func (list instances) on(d *device) bool {
	return slices.ContainsFunc(list, func(in *instance) bool { return in.pair.On(d.Device.Name) })
}

// uses returns those of the instances; nil if the node has no guarantees.
func (list instances) uses() (uses []sharing.Use) {
	for _, in := range list {
		if u, ok := in.device().Use(in.id); ok {
			uses = append(uses, u)
		}
	}
	return uses
}

// served reports whether any instance has an active process.
func (list instances) served() bool {
	return slices.ContainsFunc(list, func(in *instance) bool { return in.pair.Active() != nil })
}

// serving reports whether every instance has a process that serves, except for those that join or leave.
func (list instances) serving() bool {
	return !slices.ContainsFunc(list, func(in *instance) bool {
		q := in.pair.Active()
		return (q == nil || q.State != control.Active) && !in.joining() && !in.leaving
	})
}

// failures counts the processes that ended unexpectedly.
func (list instances) failures() (n uint64) {
	for _, in := range list {
		n += in.failures.count
	}
	return n
}

// failure tells why the last process of an instance failed. It is "" if none failed.
func (list instances) failure() string {
	for _, in := range list {
		if in.failures.reason != "" {
			return in.failures.reason
		}
	}
	return ""
}

// processes counts the processes that exist or should exist.
func (list instances) processes() (n int) {
	for _, in := range list {
		n += len(in.pair.Processes())
	}
	return n
}
