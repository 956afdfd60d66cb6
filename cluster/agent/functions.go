package agent

import (
	"math"
	"net/netip"
	"reflect"
	"slices"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/penstock/penstock/cluster/api/v1alpha1"
	"github.com/penstock/penstock/control"
)

// function is what a node should run of one function.
type function struct {
	// placed is the order of placement. Its one segment has no device yet. It is the sum of the function's segments that do not
	// drain, or of all of them if all drain.
	placed   control.FunctionPlacement
	peers    control.PeersOrder
	segments []segment
}

// segment is a segment of a function.
type segment struct {
	name   string
	drains bool
}

func (f *function) name() string { return f.placed.Name }

// has reports whether a segment is the pod's. On a GPU with MIG a pod has one segment, and its name. On another GPU it has all
// segments of its namespace.
func (p Pod) has(s *v1alpha1.Segment) bool {
	return s.Namespace == p.Namespace && (s.Name == p.Name || s.SharePercent != nil)
}

// functions returns the functions that a plan has for the pod.
func (p Pod) functions(of *v1alpha1.GPUPlan) (list []*function) {
	var names []string
	own := map[string][]v1alpha1.Segment{} // by function
	for _, s := range of.Spec.Segments {
		if !p.has(&s) {
			continue
		}
		if own[s.Function] == nil {
			names = append(names, s.Function)
		}
		own[s.Function] = append(own[s.Function], s)
	}
	for _, name := range names {
		list = append(list, p.function(own[name], of.Status.Segments))
	}
	return list
}

// function returns the function of segments.
func (p Pod) function(all []v1alpha1.Segment, statuses []v1alpha1.SegmentStatus) *function {
	serve := slices.DeleteFunc(slices.Clone(all), func(s v1alpha1.Segment) bool { return s.Draining })
	drain := len(serve) == 0
	if drain {
		serve = all
	}

	first, placed, percent, throughput := serve[0], control.PlacedSegment{}, 0.0, 0.0
	for _, s := range serve {
		placed.Processes += int(max(s.Processes, 1))
		throughput += rate(s.Throughput)
		if s.SharePercent != nil {
			percent += s.SharePercent.AsApproximateFloat64()
		}
	}
	placed.SharePercent = math.Floor(1e6*percent/float64(placed.Processes)) / 1e6 // all are at most 100 % together
	f := &function{
		placed: control.FunctionPlacement{
			Name: first.Function, Model: first.Model, SLO: first.SLO.Duration, Port: uint16(first.Port), Segments: []control.PlacedSegment{placed},
		},
		peers: control.PeersOrder{
			Function: first.Function, Self: netip.AddrPortFrom(p.Address, uint16(first.Port)), Rate: min(throughput, control.MaxRate), Drain: drain,
		},
	}
	for _, s := range all {
		f.segments = append(f.segments, segment{s.Name, s.Draining})
		for _, status := range statuses {
			if status.Name == s.Name {
				f.addPeers(status.Peers, p.Address)
			}
		}
	}
	return f
}

// addPeers adds other nodes. It leaves out wrong addresses: with one of them, a node would refuse the whole order.
func (f *function) addPeers(peers []v1alpha1.Peer, own netip.Addr) {
	for _, p := range peers {
		address, err := netip.ParseAddrPort(p.Address)
		known := slices.ContainsFunc(f.peers.Peers, func(o control.Peer) bool { return o.Address == address })
		if err != nil || known || address.Addr() == own || address.Addr().IsUnspecified() || address.Port() == 0 || len(f.peers.Peers) == control.MaxPeers {
			continue
		}
		f.peers.Peers = append(f.peers.Peers, control.Peer{Address: address, Weight: max(rate(p.Weight), minWeight)})
	}
	slices.SortFunc(f.peers.Peers, func(a, b control.Peer) int { return a.Address.Compare(b.Address) })
}

// rate bounds a rate to what a node takes.
func rate(q resource.Quantity) float64 { return min(max(q.AsApproximateFloat64(), 0), control.MaxRate) }

// minWeight is that of a peer whose weight is wrong: a node refuses weights of 0.
const minWeight = 1e-3

// drainAll lets all segments drain.
func drainAll(list []*function) {
	for _, f := range list {
		f.peers.Drain = true
		for i := range f.segments {
			f.segments[i].drains = true
		}
	}
}

// sent has the last orders for a function that a node has carried out.
type sent struct {
	placed control.FunctionPlacement
	peers  control.PeersOrder
}

// diff returns the orders that give a node the wanted functions. done has what the node has carried out since it
// started.
//
//   - A function that is not wanted is removed, as is one with another model, objective or port. That one is added next.
//   - A function that drains keeps its instances. It is not started only to drain.
func diff(status *control.Status, device string, done map[string]sent, wanted []*function) (places []control.FunctionPlacement, peers []control.PeersOrder) {
	stays := map[string]bool{}
	for _, f := range wanted {
		now, exists := status.Function(f.name())
		want, drains := f.placement(device), f.peers.Drain
		if stays[f.name()] = drains || !differs(&now, &want); exists && !stays[f.name()] {
			continue
		}
		was := done[f.name()]
		if !drains && (!exists || len(now.Instances) != want.Segments[0].Processes || !reflect.DeepEqual(was.placed, want)) {
			places = append(places, want)
		}
		if exists && !reflect.DeepEqual(was.peers, f.peers) {
			peers = append(peers, f.peers)
		}
	}
	for _, now := range status.Functions {
		if !stays[now.Name] {
			places = append(places, control.FunctionPlacement{Name: now.Name})
		}
	}
	return places, peers
}

// placement is the order that places the function on a device.
func (f *function) placement(device string) control.FunctionPlacement {
	placed := f.placed
	placed.Segments = slices.Clone(placed.Segments)
	placed.Segments[0].Device = device
	return placed
}

// differs reports whether a function has to be added again.
func differs(now *control.FunctionStatus, want *control.FunctionPlacement) bool {
	return now.Model != want.Model || now.Port != int(want.Port) || math.Round(now.SLOMillis*1e6) != float64(want.SLO)
}
