package check

import (
	"context"
	"errors"
	"fmt"

	"github.com/rs/zerolog"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/orchestrator/mps"
)

// mpsDaemon looks at a GPU's MPS daemon of the node that runs here, or else tries to start one. A
// node whose daemon did not start keeps running without MPS; that is a finding too.
func mpsDaemon(ctx context.Context, m *machine, d device) Finding {
	g, dir, uuid := m.gpus(), m.config.RuntimeDir, d.uuid
	switch pid, clients, ok := mps.Running(ctx, dir, uuid); {
	case ok:
		return pass(fmt.Sprintf("a node runs here: daemon %d, clients %d", pid, len(clients)))
	case pid != 0:
		return fail(fmt.Sprintf("the daemon of a running node, process %d, does not answer; processes that have the GPU keep it", pid), "")
	}
	if err := m.tryMPS(ctx, mps.Options{UUID: uuid, Session: g.session, Log: zerolog.Nop()}); err != nil {
		f := fail(fmt.Sprintf("%v; functions take turns on the GPU without enforced shares", err), "")
		if p, ok := errors.AsType[*mps.Problem](err); ok {
			f.Fix = p.Fix
		}
		return f
	}

	f := pass("can run here (tried)")
	if s := m.foreignMPS(dir, uuid); len(s) > 0 {
		f.Text += fmt.Sprintf("; another daemon, process %d, runs in %s, and its clients take turns with a node's", s[0].PID, s[0].Folder)
		f.Fix = s[0].Quit()
	}
	s, _ := control.ReadStatus(ctx, dir) // without a node it has no devices
	for _, d := range s.Devices {
		if d.GPU != nil && d.GPU.UUID == uuid && d.Mechanism == "time-slicing" && d.GPU.Why != "" {
			f.OK, f.Fix = false, "restart the node; it tries MPS when it starts"
			f.Text += "; but the running node started without MPS: " + d.GPU.Why
		}
	}
	return f
}
