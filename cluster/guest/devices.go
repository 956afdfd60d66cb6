package guest

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
)

// EndTaint is the key of the taint on devices whose guests must end.
const EndTaint = "penstock.io/guest-ends"

// gpu is a GPU that has one pod of functions.
type gpu struct {
	UUID string
	// Table is the name of its placement table, such as a100-80.
	Table string
	// Pod is the pod of functions.
	Pod types.UID
}

// serving returns the GPUs that guests may use, in the order of their UUIDs. All nodes are those of this machine. A guest can
// wait for the functions of one pod only.
func serving(nodes []node) (gpus []gpu) {
	count := map[string]int{}
	for _, n := range nodes {
		count[n.UUID]++
	}
	for _, n := range nodes {
		if count[n.UUID] == 1 && !n.ends {
			gpus = append(gpus, n.gpu)
		}
	}
	slices.SortFunc(gpus, func(a, b gpu) int { return strings.Compare(a.UUID, b.UUID) })
	return gpus
}

// deviceName is never the name of another pod's device.
func (g gpu) deviceName(i int) string {
	sum := sha256.Sum256([]byte(g.UUID + "/" + string(g.Pod)))
	return fmt.Sprintf("guest-%s-%d", hex.EncodeToString(sum[:8]), i)
}

// devices returns what the driver publishes: perGPU devices of each GPU, and those in use that are none of them, with a taint.
func devices(gpus []gpu, perGPU int, used []string) (all []resourceapi.Device) {
	offered := sets.New[string]()
	for _, g := range gpus {
		for i := range perGPU {
			name := g.deviceName(i)
			offered.Insert(name)
			all = append(all, resourceapi.Device{Name: name, Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
				"uuid": {StringValue: &g.UUID},
				"gpu":  {StringValue: &g.Table},
			}})
		}
	}
	for _, name := range sets.List(sets.New(used...).Difference(offered)) {
		all = append(all, resourceapi.Device{Name: name, Taints: []resourceapi.DeviceTaint{{
			Key:    EndTaint,
			Effect: resourceapi.DeviceTaintEffectNoExecute,
		}}})
	}
	return all
}
