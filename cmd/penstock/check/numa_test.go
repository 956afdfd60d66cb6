package check

import (
	"fmt"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"testing"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/orchestrator"
	"github.com/penstock/penstock/orchestrator/topology"
)

func TestNearDevices(t *testing.T) {
	node0, node1 := []int{0, 1}, []int{2, 3}
	server := topology.Machine{
		Nodes: []topology.Node{{ID: 0, CPUs: node0}, {ID: 1, CPUs: node1}},
		GPUs:  []topology.Device{{Address: "0000:19:00.0", Node: 0}, {Address: "0000:86:00.0", Node: 1}, {Address: "0000:87:00.0", Node: 1}, {Address: "0000:88:00.0", Node: topology.Unknown}},
		NICs:  []topology.Device{{Address: "0000:3b:00.0", Node: 1}},
	}
	for _, several := range []struct {
		devices []configs.DeviceName
		want    orchestrator.Near
	}{
		{[]configs.DeviceName{configs.DeviceAll}, orchestrator.Near{GPU: []int{0, 1, 2, 3}, Part: 1}},
		{[]configs.DeviceName{"cuda:0", "cuda:2", "cuda:3"}, orchestrator.Near{GPU: []int{0, 1, 2, 3}, Part: 2.0 / 3}},
		{[]configs.DeviceName{"cuda:1", "cuda:2"}, orchestrator.Near{GPU: node1, Part: 1}},
		{[]configs.DeviceName{"cuda:1", configs.DeviceCPU}, orchestrator.Near{}},
	} {
		if got := nearDevices(configs.Config{Devices: several.devices}, server); !reflect.DeepEqual(got, several.want) {
			t.Errorf("devices %s: %+v, want %+v", several.devices, got, several.want)
		}
	}
	for device, want := range map[string]orchestrator.Near{
		"cpu": {}, "auto": {}, "cuda": {GPU: node0, Part: 1}, "cuda:2": {GPU: node1, Part: 0.5}, "cuda:3": {}, "cuda:9": {},
	} {
		c := configs.Config{Device: device, Listen: netip.MustParseAddr("127.0.0.1")}
		if got := nearDevices(c, server); !reflect.DeepEqual(got, want) {
			t.Errorf("device %s: %+v, want %+v", device, got, want)
		}
		c.Source.DPDK, want.NIC = &configs.DPDK{Port: "0000:3B:00.0,mprq_en=1"}, node1
		if got := nearDevices(c, server); !reflect.DeepEqual(got, want) {
			t.Errorf("device %s with a card: %+v, want %+v", device, got, want)
		}
	}
}

func TestNUMANodes(t *testing.T) {
	dir := writeMachine(t, with(dpdkServer(), "/sys/devices/system/cpu/cpu5/topology/core_id", "0"))
	claim := topology.Take(dir, []int{5})
	defer claim.Release()

	found := numaNodes(t.Context(), &machine{files: root(dir)})
	want := []Finding{
		{Subject: "numa node 0", OK: true, Text: "CPUs 0-3, card eno1"},
		{Subject: "numa node 1", OK: true, Text: fmt.Sprintf("CPUs 4-7, GPU 0000:86:00.0, card 0000:3b:00.0; the node of process %d has 5", os.Getpid())},
	}
	if !slices.Equal(found, want) {
		t.Errorf("findings\n%+v, want\n%+v", found, want)
	}
}
