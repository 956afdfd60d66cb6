package control

import "testing"

func TestInstanceStatus(t *testing.T) {
	in := InstanceStatus{Processes: []ProcessStatus{
		{Generation: 1, Role: Drain, State: Active}, // it has not released the ring yet
		{Generation: 2, Role: Serve, State: Active},
		{Generation: 3, Role: Serve, State: Linking},
		{Generation: 4, Role: Shadow, State: Loaded},
		{Generation: 5, Role: Shadow, State: Starting},
	}}
	if p, ok := in.Serving(); !ok || p.Generation != 2 {
		t.Errorf("%+v serves, %v", p, ok)
	}
	if p, ok := in.Standby(); !ok || p.Generation != 4 {
		t.Errorf("%+v stands by, %v", p, ok)
	}
	in.Processes = in.Processes[2:3]
	if p, ok := in.Serving(); ok {
		t.Errorf("%+v serves, and nobody does", p)
	}
	if p, ok := in.Standby(); ok {
		t.Errorf("%+v stands by, and nobody does", p)
	}
}
