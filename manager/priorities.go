package manager

import (
	"cmp"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/control"
)

// Guarantees need stream priorities that hold between processes. If they do not on this GPU, the
// manager divides the GPU by shares, unless the operator has chosen guarantees.

// prioritiesLack is the reason in the log.
const prioritiesLack = "stream priorities do not hold between processes on this GPU and driver"

// mustDivide reports whether the functions have to get shares although the configuration names no
// policy. It logs what the device lacks.
func (m *Manager) mustDivide(o *control.Observed) bool {
	if !m.cfg.Guarantees() || o.Device == nil || !o.Device.PrioritiesFail() {
		return false
	}
	if m.cfg.PolicySet {
		m.log.Warn().Str("why", prioritiesLack).Msg("functions are not protected from each other; set `shares: {policy: gslice}`")
		return false
	}
	if len(m.cfg.Workers) > 0 {
		m.log.Warn().Str("why", prioritiesLack).Msg("functions are not protected from each other: workers do not go with `policy: gslice`")
		return false
	}
	divided := m.cfg
	divided.Shares.Policy = configs.PolicyGSLICE
	all := m.configured()
	for i := range all {
		if err := divided.FitShare(&all[i], all[:i]); err != nil {
			m.log.Error().Err(err).Str("if", all[i].Name).Str("why", prioritiesLack).
				Msg("functions are not protected from each other, and cannot have shares")
			return false
		}
	}
	m.log.Warn().Str("why", prioritiesLack).Msg("using `policy: gslice`")
	return true
}

// divide changes the policy to gslice. The functions have no processes yet; the caller allocates
// their shares.
func (m *Manager) divide() {
	m.cfg.Shares.Policy, m.shares.fellBack = configs.PolicyGSLICE, true
	for _, f := range m.functions {
		f.configured = m.cfg.ChangeOf(f.config)
		if f.removing {
			continue
		}
		for _, in := range f.instances {
			first := cmp.Or(f.byHand, f.config.SharePercent, f.model.desired.KneePercent)
			m.shares.add(in.id(), first)
		}
		if m.cfg.Shares.Tune {
			f.byHand = 0
		}
	}
}

// unprotected tells why this GPU does not protect functions from each other; empty if it does.
func (m *Manager) unprotected() control.Unprotected {
	if m.onGPU() && m.device.gpu.PrioritiesFail() {
		return control.UnprotectedByPriorities
	}
	return ""
}
