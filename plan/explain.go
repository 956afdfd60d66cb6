package plan

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
)

// Unused returns a note for each GPU of the fleet without profiles.
func (p *Problem) Unused() (messages []string) {
	for _, s := range p.Fleet {
		switch {
		case len(p.Profiles[s.GPU.Name]) > 0:
		case s.Count < 0:
			messages = append(messages, fmt.Sprintf("no profiles of %s, so those are not used", s.GPU.Name))
		default:
			messages = append(messages, fmt.Sprintf("no profiles of %s, so those %d are not used", s.GPU.Name, s.Count))
		}
	}
	return messages
}

// Explain completes a policy's error. If a fleet is too small, it adds the GPUs that the
// policy could not use. If a service cannot be served, it adds one line for each other
// service that cannot be served either.
func (p *Problem) Explain(err error) error {
	var small *TooSmall
	if without := p.Unused(); errors.As(err, &small) && len(without) > 0 {
		return fmt.Errorf("%w; %s", err, strings.Join(without, "; "))
	}
	var unknown *NoProfile
	var slow *Infeasible
	var service Service
	switch {
	case errors.As(err, &unknown):
		service = unknown.Service
	case errors.As(err, &slow) && slow.BoundMS == p.BoundMS(slow.Service):
		service = slow.Service
	default:
		return err // the bound is the policy's own
	}
	all := []error{err}
	for _, s := range p.Services {
		if why := p.unserved(s); why != nil && s != service {
			all = append(all, why)
		} else if why == nil && s == service {
			return err // the rule is the policy's own
		}
	}
	return errors.Join(all...)
}

// unserved returns why none of the available GPUs can serve a service; nil if one can.
func (p *Problem) unserved(s Service) (first error) {
	for _, stock := range p.Stocks() {
		_, err := p.Feasible(stock.GPU, s)
		if err == nil {
			return nil
		}
		first = cmp.Or(first, err)
	}
	return first
}
