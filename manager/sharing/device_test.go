package sharing

import (
	"testing"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/control"
)

func TestChange(t *testing.T) {
	undivided, divided := &control.GPU{}, &control.GPU{GroupSMs: []int{8, 8}}
	for name, c := range map[string]struct {
		device                    Device
		auto, shadow, partitioned configs.Change
	}{
		"CPU":                 {Device{}, configs.ChangeShadow, configs.ChangeShadow, configs.ChangeShadow},
		"GPU":                 {Device{GPU: divided, MPS: true}, configs.ChangeShadow, configs.ChangeShadow, configs.ChangePartition},
		"GPU without groups":  {Device{GPU: undivided, MPS: true}, configs.ChangeShadow, configs.ChangeShadow, configs.ChangeShadow},
		"GPU with few groups": {Device{GPU: divided, MPS: true, noGroups: true}, configs.ChangeShadow, configs.ChangeShadow, configs.ChangeShadow},
		"GPU without MPS":     {Device{GPU: undivided}, configs.ChangeInPlace, configs.ChangeShadow, configs.ChangeInPlace},
	} {
		for _, want := range [][2]configs.Change{{configs.ChangeAuto, c.auto}, {configs.ChangeShadow, c.shadow}, {configs.ChangePartition, c.partitioned}, {configs.ChangeNone, configs.ChangeNone}} {
			if got := c.device.changeOn(want[0]); got != want[1] {
				t.Errorf("%s: %s is %s, want %s", name, want[0], got, want[1])
			}
		}
	}
}
