package fleet

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/penstock/penstock/cluster/api/v1alpha1"
	"github.com/penstock/penstock/plan"
)

// Health is what a GPU is good for.
type Health int

const (
	// Good: segments may be created.
	Good Health = iota
	// Unknown: the driver does not say what there is. Segments stay.
	Unknown
	// Leaving: segments serve until they are replaced.
	Leaving
	// Lost: segments do not serve.
	Lost
)

// A Start is where a segment of a size starts on a GPU. It is zero on a GPU without MIG, which is one device.
type Start struct{ GPCs, Slot int }

// A GPU is a GPU of a fleet, as it was observed.
type GPU struct {
	Node, Pool, UUID string
	// Table says how it can be cut. It has only sizes and starts for which the driver publishes devices.
	Table  plan.GPU
	Health Health
	// Why says why it is not Good.
	Why string
	// Devices are the names of its DRA devices.
	Devices map[Start]string

	name string
	cuts string // Table.Sizes as a text
}

// Name is the name of the GPU's GPUPlan.
func (g *GPU) Name() string {
	if g.name != "" {
		return g.name
	}
	return g.newName()
}

func (g *GPU) newName() string {
	if name := strings.ToLower(g.UUID); len(validation.IsDNS1123Label(name)) == 0 {
		return name
	}
	return "gpu-" + hash(g.Pool, g.UUID)
}

// device returns the name of the device for a segment.
func (g *GPU) device(gpcs, slot int) string {
	if g.Table.Percent {
		return g.Devices[Start{}]
	}
	return g.Devices[Start{gpcs, slot}]
}

// hash returns 8 characters for some strings.
func hash(of ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(of, "\x00")))
	return hex.EncodeToString(sum[:4])
}

// Objects are the objects of the cluster that say which GPUs there are. GPUs only reads them.
type Objects struct {
	Fleets []*v1alpha1.Fleet
	Nodes  []*corev1.Node
	Slices []*resourceapi.ResourceSlice
	Claims []*resourceapi.ResourceClaim
	Taints []*resourceapi.DeviceTaintRule
	// Plans are all GPUPlans, of other fleets, too.
	Plans []*v1alpha1.GPUPlan
	// Cut has the names of nodes on which no pod answers, and Heard those of nodes on which one does.
	Cut, Heard sets.Set[string]
	// Silent has the names of GPUPlans none of whose pods answers.
	Silent map[string]bool
	// Read, if not nil, has what was read of the pools before. GPUs updates it.
	Read *Read
}

// Read remembers the GPUs of pools whose slices stay the same. To read the slices of a large cluster takes longer than all else.
type Read struct {
	pools map[[2]string]readPool // by driver and pool
}

type readPool struct {
	slices []*resourceapi.ResourceSlice
	gpus   []GPU
}

// cut returns the GPUs of a pool, as the function cut does. The caller does not change them.
func (r *Read) cut(driver, pool string, list []*resourceapi.ResourceSlice) []GPU {
	if r == nil {
		return cut(driver, list)
	}
	key := [2]string{driver, pool}
	same := func(a, b *resourceapi.ResourceSlice) bool {
		return a.UID == b.UID && a.ResourceVersion == b.ResourceVersion
	}
	known, ok := r.pools[key]
	if !ok || !slices.EqualFunc(known.slices, list, same) {
		known = readPool{list, cut(driver, list)}
		if r.pools == nil {
			r.pools = map[[2]string]readPool{}
		}
		r.pools[key] = known
	}
	return known.gpus
}

// keep forgets the pools of a driver that are gone.
func (r *Read) keep(driver string, whole map[string][]*resourceapi.ResourceSlice) {
	if r != nil {
		maps.DeleteFunc(r.pools, func(key [2]string, _ readPool) bool { return key[0] == driver && whole[key[1]] == nil })
	}
}

// A Fleet is what was observed of one.
type Fleet struct {
	// GPUs are in the order of their nodes, pools and UUIDs.
	GPUs []GPU
	// Nodes is the number of the fleet's nodes.
	Nodes int
	// Overlap names the nodes that an older fleet has, with that fleet: "node-1 (fleet a)".
	Overlap []string
	// Unusable says why GPUs of the fleet's nodes cannot be used at all.
	Unusable []string
}

// Owners returns the fleet of each node. If several fleets select a node, the oldest has it.
func (o *Objects) Owners() map[string]*v1alpha1.Fleet {
	fleets := slices.SortedFunc(slices.Values(o.Fleets), older)
	owners := map[string]*v1alpha1.Fleet{}
	for _, n := range o.Nodes {
		for _, f := range fleets {
			if selects(f, n) {
				owners[n.Name] = f
				break
			}
		}
	}
	return owners
}

func older(a, b *v1alpha1.Fleet) int {
	return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
}

func selects(f *v1alpha1.Fleet, n *corev1.Node) bool {
	return labels.SelectorFromSet(f.Spec.NodeSelector).Matches(labels.Set(n.Labels))
}

// GPUs returns what there is of a fleet.
func (o *Objects) GPUs(f *v1alpha1.Fleet) Fleet {
	var out Fleet
	owners := o.Owners()
	nodes := map[string]*corev1.Node{}
	for _, n := range o.Nodes {
		switch owner := owners[n.Name]; {
		case owner == f:
			nodes[n.Name] = n
			out.Nodes++
		case owner != nil && selects(f, n):
			out.Overlap = append(out.Overlap, fmt.Sprintf("%s (fleet %s)", n.Name, owner.Name))
		}
	}
	slices.Sort(out.Overlap)

	found := map[[2]string]*GPU{} // by pool and UUID
	whole := o.pools(f.Spec.Driver)
	o.Read.keep(f.Spec.Driver, whole)
	for _, pool := range slices.Sorted(maps.Keys(whole)) {
		for _, g := range o.Read.cut(f.Spec.Driver, pool, whole[pool]) {
			if nodes[g.Node] == nil {
				continue
			}
			if g.Why != "" {
				out.Unusable = append(out.Unusable, fmt.Sprintf("%s on node %s: %s", g.UUID, g.Node, g.Why))
				continue
			}
			found[[2]string{pool, g.UUID}] = &g
		}
	}
	out.Unusable = append(out.Unusable, odd(found)...)

	o.planned(f, found, whole)
	o.taken(f, found)
	o.tainted(f, found, whole)
	for _, g := range found {
		if n := nodes[g.Node]; n != nil {
			nodeHealth(n, o.Heard.Has(n.Name)).apply(g)
		}
		if o.Cut.Has(g.Node) {
			health{Lost, "its node does not answer"}.apply(g)
		}
		if o.Silent[g.Name()] {
			health{Lost, "its pods do not answer"}.apply(g)
		}
		out.GPUs = append(out.GPUs, *g)
	}
	slices.SortFunc(out.GPUs, func(a, b GPU) int {
		return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.Pool, b.Pool), cmp.Compare(a.UUID, b.UUID))
	})
	return out
}

// health is a fact about a GPU. The worst fact counts.
type health struct {
	health Health
	why    string
}

func (h health) apply(g *GPU) {
	if h.health > g.Health {
		g.Health, g.Why = h.health, h.why
	}
}

// nodeHealth judges a node. If it is not ready, but its pods answer, they serve until others do. After a stop of the API server,
// all nodes seem to be lost for a while.
func nodeHealth(n *corev1.Node, heard bool) health {
	ready := false
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			ready = c.Status == corev1.ConditionTrue
		}
	}
	lost := Lost
	if heard {
		lost = Leaving
	}
	switch {
	case !ready:
		return health{lost, "node " + n.Name + " is not ready"}
	case n.DeletionTimestamp != nil:
		return health{Leaving, "node " + n.Name + " is being deleted"}
	case n.Spec.Unschedulable:
		return health{Leaving, "node " + n.Name + " is cordoned"}
	}
	for _, t := range n.Spec.Taints {
		switch {
		case t.Effect != corev1.TaintEffectNoExecute:
		case t.Key == corev1.TaintNodeUnreachable, t.Key == corev1.TaintNodeNotReady, t.Key == corev1.TaintNodeOutOfService:
			return health{lost, "node " + n.Name + " has the taint " + t.Key}
		default:
			return health{Leaving, "node " + n.Name + " has the taint " + t.Key}
		}
	}
	return health{}
}

// pools returns the devices of a driver's complete pools, by pool. A driver that publishes a new generation of a pool writes
// its slices one by one. Until all are there, an older generation counts if it is still complete.
func (o *Objects) pools(driver string) map[string][]*resourceapi.ResourceSlice {
	type generation struct {
		pool   string
		number int64
	}
	all := map[generation][]*resourceapi.ResourceSlice{}
	for _, s := range o.Slices {
		if s.Spec.Driver == driver {
			g := generation{s.Spec.Pool.Name, s.Spec.Pool.Generation}
			all[g] = append(all[g], s)
		}
	}
	newest := map[string]int64{}
	whole := map[string][]*resourceapi.ResourceSlice{}
	for g, list := range all {
		if last, ok := newest[g.pool]; int64(len(list)) == list[0].Spec.Pool.ResourceSliceCount && (!ok || g.number > last) {
			newest[g.pool] = g.number
			slices.SortFunc(list, func(a, b *resourceapi.ResourceSlice) int { return cmp.Compare(a.Name, b.Name) })
			whole[g.pool] = list
		}
	}
	return whole
}

// cut returns the GPUs of a pool. Why is set if one cannot be used at all.
func cut(driver string, list []*resourceapi.ResourceSlice) []GPU {
	type parts struct {
		GPU
		product string
		mig     []*resourceapi.Device
	}
	gpus := map[string]*parts{}
	for _, s := range list {
		for i := range s.Spec.Devices {
			d := &s.Spec.Devices[i]
			kind, uuid := attribute(driver, d, "type"), attribute(driver, d, "uuid")
			if kind == "mig" {
				uuid = attribute(driver, d, "parentUUID")
			}
			if uuid == "" || kind != "mig" && kind != "gpu" {
				continue
			}
			g := gpus[uuid]
			if g == nil {
				g = &parts{GPU: GPU{Pool: s.Spec.Pool.Name, UUID: uuid, Devices: map[Start]string{}}}
				gpus[uuid] = g
			}
			if s.Spec.NodeName != nil {
				g.Node = *s.Spec.NodeName
			}
			g.product = cmp.Or(g.product, attribute(driver, d, "productName"))
			if kind == "mig" {
				g.mig = append(g.mig, d)
			} else {
				g.Devices[Start{}] = d.Name
			}
		}
	}
	var out []GPU
	for _, uuid := range slices.Sorted(maps.Keys(gpus)) {
		g := gpus[uuid]
		var err error
		if len(g.mig) == 0 {
			g.Table, err = plan.ForUncut(g.product)
		} else if g.Table, err = plan.ForDevice(g.product); err == nil {
			g.Devices = places(driver, g.Table, g.mig)
			if g.Table = published(g.Table, g.Devices); len(g.Table.Sizes) == 0 {
				err = fmt.Errorf("none of its MIG devices is a place of table %s: want devices with a profile and counters memory-slice-N", g.Table.Name)
			}
		}
		if err != nil {
			g.Why = err.Error()
		}
		g.name, g.cuts = g.newName(), fmt.Sprint(g.Table.Sizes)
		out = append(out, g.GPU)
	}
	return out
}

// attribute returns a text attribute of a device, which may be qualified with the driver's name.
func attribute(driver string, d *resourceapi.Device, name string) string {
	for _, n := range []string{name, driver + "/" + name} {
		if a, ok := d.Attributes[resourceapi.QualifiedName(n)]; ok && a.StringValue != nil {
			return *a.StringValue
		}
	}
	return ""
}

// places returns the names of MIG devices by place. A device starts at the lowest of its memory slices.
func places(driver string, table plan.GPU, devices []*resourceapi.Device) map[Start]string {
	at := map[Start]string{}
	for _, d := range devices {
		size := slices.IndexFunc(table.Sizes, func(s plan.Size) bool { return s.Profile == attribute(driver, d, "profile") })
		slot := -1
		for _, c := range d.ConsumesCounters {
			for name := range c.Counters {
				number, ok := strings.CutPrefix(name, "memory-slice-")
				if n, err := strconv.Atoi(number); ok && err == nil && (slot < 0 || n < slot) {
					slot = n
				}
			}
		}
		if size >= 0 && table.Sizes[size].MayStart(slot) {
			at[Start{table.Sizes[size].GPCs, slot}] = d.Name
		}
	}
	return at
}

// published returns the part of a table for which there are devices.
func published(table plan.GPU, devices map[Start]string) plan.GPU {
	var sizes []plan.Size
	for _, s := range table.Sizes {
		var starts []int
		for _, slot := range s.Starts {
			if _, ok := devices[Start{s.GPCs, slot}]; ok {
				starts = append(starts, slot)
			}
		}
		if s.Starts = starts; len(starts) > 0 {
			sizes = append(sizes, s)
		}
	}
	table.Sizes = sizes
	return table
}

// odd makes GPUs unusable whose driver publishes other places than on most GPUs of the same model. A plan has one table per
// model.
func odd(found map[[2]string]*GPU) (messages []string) {
	count := map[string]map[string]int{}
	for _, g := range found {
		if count[g.Table.Name] == nil {
			count[g.Table.Name] = map[string]int{}
		}
		count[g.Table.Name][g.cuts]++
	}
	for _, key := range slices.SortedFunc(maps.Keys(found), func(a, b [2]string) int { return slices.Compare(a[:], b[:]) }) {
		g := found[key]
		if len(count[g.Table.Name]) == 1 {
			continue
		}
		for other, n := range count[g.Table.Name] {
			if own := g.cuts; n > count[g.Table.Name][own] || n == count[g.Table.Name][own] && other < own {
				messages = append(messages, fmt.Sprintf("%s on node %s: its driver publishes other MIG devices than on most GPUs of table %s", g.UUID, g.Node, g.Table.Name))
				delete(found, key)
				break
			}
		}
	}
	return messages
}

// planned adds GPUs that have a GPUPlan but were not found. Those whose pool is complete are lost: their driver knows of no
// such GPU. If the pool is not complete, the driver is not running or is writing it.
func (o *Objects) planned(f *v1alpha1.Fleet, found map[[2]string]*GPU, whole map[string][]*resourceapi.ResourceSlice) {
	owners := o.Owners()
	exists := map[string]bool{}
	for _, n := range o.Nodes {
		exists[n.Name] = true
	}
	for _, p := range o.Plans {
		key := [2]string{p.Spec.Pool, p.Spec.GPU}
		if p.Spec.Fleet != f.Name || found[key] != nil {
			continue
		}
		table, err := plan.Lookup(p.Spec.Table)
		g := &GPU{Node: p.Spec.Node, Pool: p.Spec.Pool, UUID: p.Spec.GPU, Table: table}
		found[key] = g
		switch {
		case !exists[g.Node]:
			health{Lost, "node " + g.Node + " does not exist"}.apply(g)
		case owners[g.Node] != f:
			health{Leaving, "node " + g.Node + " is not in the fleet"}.apply(g)
		case err != nil:
			health{Leaving, err.Error()}.apply(g)
		case whole[g.Pool] != nil:
			health{Lost, "the driver does not publish it any more"}.apply(g)
		default:
			health{Unknown, "the driver has not published the pool " + g.Pool + " completely"}.apply(g)
		}
	}
}

// taken marks GPUs of which a claim of others has a device.
func (o *Objects) taken(f *v1alpha1.Fleet, found map[[2]string]*GPU) {
	by := map[[2]string]string{} // claims of others, by pool and device
	for _, c := range o.Claims {
		if c.Status.Allocation == nil || c.Labels[v1alpha1.FleetLabel] == f.Name {
			continue
		}
		for _, r := range c.Status.Allocation.Devices.Results {
			if r.Driver == f.Spec.Driver {
				by[[2]string{r.Pool, r.Device}] = c.Namespace + "/" + c.Name
			}
		}
	}
	if len(by) == 0 {
		return
	}
	of := o.devices(f.Spec.Driver)
	for at, claim := range by {
		if g := found[[2]string{at[0], of[at]}]; g != nil {
			health{Leaving, "claim " + claim + " has device " + at[1]}.apply(g)
		}
	}
}

// devices returns the UUID of the GPU that has a device, by pool and device.
func (o *Objects) devices(driver string) map[[2]string]string {
	of := map[[2]string]string{}
	for _, s := range o.Slices {
		if s.Spec.Driver != driver {
			continue
		}
		for i := range s.Spec.Devices {
			d := &s.Spec.Devices[i]
			of[[2]string{s.Spec.Pool.Name, d.Name}] = cmp.Or(attribute(driver, d, "parentUUID"), attribute(driver, d, "uuid"))
		}
	}
	return of
}

// tainted marks GPUs of which a device has a taint that is not the fleet's own.
func (o *Objects) tainted(f *v1alpha1.Fleet, found map[[2]string]*GPU, whole map[string][]*resourceapi.ResourceSlice) {
	keepsOff := func(t resourceapi.DeviceTaint) bool {
		return t.Effect != resourceapi.DeviceTaintEffectNone && (t.Key != v1alpha1.PoolTaint || t.Value != f.Name)
	}
	var rules []*resourceapi.DeviceTaintRule
	for _, r := range o.Taints {
		if s := r.Spec.DeviceSelector; s != nil && keepsOff(r.Spec.Taint) && (s.Driver == nil || *s.Driver == f.Spec.Driver) {
			rules = append(rules, r)
		}
	}
	for pool, list := range whole {
		for _, s := range list {
			for i := range s.Spec.Devices {
				d := &s.Spec.Devices[i]
				key := ""
				for _, t := range d.Taints {
					if keepsOff(t) {
						key = t.Key
					}
				}
				for _, r := range rules {
					s := r.Spec.DeviceSelector
					if (s.Pool == nil || *s.Pool == pool) && (s.Device == nil || *s.Device == d.Name) {
						key = r.Spec.Taint.Key
					}
				}
				if key == "" {
					continue
				}
				uuid := cmp.Or(attribute(f.Spec.Driver, d, "parentUUID"), attribute(f.Spec.Driver, d, "uuid"))
				if g := found[[2]string{pool, uuid}]; g != nil {
					health{Leaving, "device " + d.Name + " has the taint " + key}.apply(g)
				}
			}
		}
	}
}
