package serve

import (
	"slices"
	"testing"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/libml/gate"
	"github.com/penstock/penstock/libml/internal/loop"
)

func TestOrders(t *testing.T) {
	var o orders
	o.open()
	wake := control.Order{Do: control.DoWake, SharePercent: 30, GuaranteePercent: 20, Level: 2}
	if o.wake(control.Order{Do: control.DoShare}) || o.awake {
		t.Error("an order of a share wakes the process")
	}
	if o.follow(wake); *o.share.Load() != (loop.Share{Percent: 30, Terms: gate.Terms{Guarantee: 0.2, Level: 2}}) {
		t.Errorf("share is %+v", o.share.Load())
	}
	if !o.wake(wake) || o.wake(wake) || !o.awake || len(o.woken) != 1 {
		t.Errorf("awake %v after two orders to wake, %d passed on; want one", o.awake, len(o.woken))
	}
	for group := range 3 {
		o.move([]int{group})
	}
	if groups := <-o.groups; !slices.Equal(groups, []int{2}) || len(o.groups) != 0 {
		t.Errorf("move to %v and %d others, want the last order only", groups, len(o.groups))
	}
	o.finishPreparation("first")
	o.finishPreparation("no request")
	if failed := <-o.prepared; failed != "first" || len(o.prepared) != 0 {
		t.Errorf("preparation: %q and %d others", failed, len(o.prepared))
	}
}
