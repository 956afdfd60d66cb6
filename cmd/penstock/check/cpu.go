package check

import (
	"context"
	"fmt"
	"runtime"

	"github.com/penstock/penstock/orchestrator"
	"github.com/penstock/penstock/orchestrator/cpushare"
)

var cpuChecks = []row{
	{subject: "cpus", run: cpus},
	{each: numaNodes},
	{each: shareMechanisms},
}

func cpus(_ context.Context, m *machine) Finding {
	managerCPUs, ifCPUs := orchestrator.IFCPUs(m.config.ReservedCPUs, nearDevices(m.config, m.topology()))
	text := fmt.Sprintf("%d; manager on %v, inference functions on %v (their 100 %%)", runtime.NumCPU(), managerCPUs, ifCPUs)
	if len(managerCPUs) == 0 {
		return fail(text, "manager and inference functions share one CPU; give the machine more CPUs, or expect late answers")
	}
	return pass(text)
}

// shareMechanisms lists what can enforce CPU shares. The node uses the first that works, so
// only those before it need fixing.
func shareMechanisms(context.Context, *machine) (list []Finding) {
	found := false
	for _, p := range cpushare.Probe() {
		f := Finding{Subject: p.Mechanism, OK: p.Usable, Text: p.Why, Fix: p.Fix}
		switch {
		case p.Usable && !found:
			f.Text, found = "usable; a node enforces shares with it", true
		case p.Usable:
			f.Text = "usable"
		case found:
			f.Fix = ""
		}
		list = append(list, f)
	}
	return list
}
