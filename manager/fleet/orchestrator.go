package fleet

import (
	"reflect"
	"slices"

	"github.com/penstock/penstock/control"
)

// orchestrator is the manager's end of the orchestrator: what the manager has published, and what
// the orchestrator has observed. The control loop owns it.
type orchestrator struct {
	link     Link
	desired  control.Desired // as last published
	observed control.Observed
	alive    bool
	next     []control.DesiredProcess // memory for the next desired processes
}

// publish publishes the desired processes on devices if either have changed. It takes them over.
func (o *orchestrator) publish(devices []string, processes []control.DesiredProcess) error {
	o.next = processes
	if o.desired.Seq != 0 && slices.Equal(devices, o.desired.Devices) && reflect.DeepEqual(processes, o.desired.Processes) {
		return nil
	}
	desired := o.desired
	desired.Seq++
	desired.Devices, desired.Processes = devices, processes
	if err := o.link.Publish(desired); err != nil {
		return err
	}
	o.desired, o.next = desired, make([]control.DesiredProcess, 0, len(processes))
	return nil
}

// receive keeps an orchestrator's report. ok is false for one that does not know this manager yet.
// another reports that the orchestrator is not the one before.
func (o *orchestrator) receive(observed control.Observed) (ok, another bool) {
	if observed.ManagerID != o.desired.ManagerID {
		return false, false
	}
	another = observed.OrchestratorID != o.observed.OrchestratorID
	o.observed = observed
	return true, another
}

// checkAlive reports whether the orchestrator has stopped reporting since the last check.
func (o *orchestrator) checkAlive() (stopped bool) {
	before := o.alive
	o.alive = o.link.PeerAlive()
	return before && !o.alive
}

// publish sends the desired processes to the orchestrator if they have changed.
func (fl *Fleet) publish() {
	processes := fl.orchestrator.next[:0]
	fl.functions.eachInstance(func(in *instance) { processes = in.desire(processes) })
	devices := make([]string, 0, len(fl.devices))
	for _, d := range fl.devices {
		devices = append(devices, d.Device.Name)
	}
	if err := fl.orchestrator.publish(devices, processes); err != nil { // the next step tries again
		fl.log.Error().Err(err).Msg("cannot publish desired state")
	}
}
