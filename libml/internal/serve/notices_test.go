package serve

import (
	"reflect"
	"testing"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/unixsock"
)

func TestNotices(t *testing.T) {
	own, end, err := unixsock.Pair()
	must.OK(t, err)
	parent, err := control.NewParent(own, false)
	must.OK(t, err)
	defer parent.Close()
	must.OK(t, parent.Order(control.Order{Do: control.DoStart, Start: &control.Start{IF: "test"}}))
	child, err := control.NewChild(end)
	must.OK(t, err)
	defer child.Close()
	received := func() control.Notice {
		t.Helper()
		n, err := parent.ReadNotice()
		must.OK(t, err)
		return n
	}
	if n := received(); n.State != control.Starting {
		t.Fatalf("first notice is %+v", n)
	}

	s := notices{child: child}
	s.sendComplete(false) // nothing to send yet
	send := func(what string, n, want control.Notice) {
		t.Helper()
		s.send(n)
		if got := received(); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: sent %+v, want %+v", what, got, want)
		}
	}
	ready := control.Notice{State: control.Ready, SMs: 8, SMGroups: []int{1}, Batches: []int{1}, WarmingUp: true, EphemeralBytes: 5}
	send("state", ready, ready)
	send("without a state", control.Notice{EphemeralBytes: 7}, control.Notice{State: control.Ready, EphemeralBytes: 7})
	s.keepReason("small", control.Notice{Batches: []int{1, 2}})
	if got, want := received(), (control.Notice{State: control.Ready, Reason: "small", Batches: []int{1, 2}}); !reflect.DeepEqual(got, want) {
		t.Errorf("with a reason to keep: sent %+v, want %+v", got, want)
	}
	send("kept reason", control.Notice{State: control.Active}, control.Notice{State: control.Active, Reason: "small"})
	s.sendComplete(true)
	want := control.Notice{
		State: control.Active, Reason: "small", Woken: true, SMs: 8, SMGroups: []int{1}, Batches: []int{1, 2}, EphemeralBytes: 7,
	}
	if got := received(); !reflect.DeepEqual(got, want) {
		t.Errorf("complete: sent %+v, want %+v", got, want)
	}
	send("end", control.Notice{State: control.Stopped}, control.Notice{State: control.Stopped})
}
