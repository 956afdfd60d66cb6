package operator

import (
	"context"
	"errors"
	"maps"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/penstock/penstock/cluster/api/v1alpha1"
)

const (
	// listenInterval is how often one pod per node is asked, if there are few nodes. Many nodes are asked less often.
	listenInterval = 250 * time.Millisecond
	nodesPerSecond = 1000
	// listenPatience bounds one question. A node that is slow once is asked several times before it counts as silent.
	listenPatience = 500 * time.Millisecond
)

// Silence finds nodes on which no pod of the operator answers for two seconds. It takes their pods out of the Services, and tells
// the controllers when a node falls silent or answers again.
//
// It also runs in an operator that waits for the lease, because the one that has it may be on the silent node. An operator that
// hears less than half of the nodes takes itself to be cut off, and calls none silent.
type Silence struct {
	client.Client
	Agents Agents
	Now    func() time.Time
	// Changed get an event each time that the silent nodes change. A channel that is full gets none.
	Changed []chan event.GenericEvent

	mu     sync.Mutex
	nodes  map[string]*listener // guarded by mu, by name
	silent sets.Set[string]     // guarded by mu; replaced, never changed
}

// listener is what is known of a node with pods whose containers are ready.
type listener struct {
	answered time.Time // when the last question that was answered was asked
	asks     bool
	missed   bool // the last question had no answer
	turn     int
}

// NeedLeaderElection tells the manager not to wait for the lease.
func (s *Silence) NeedLeaderElection() bool { return false }

// Start looks until ctx ends.
func (s *Silence) Start(ctx context.Context) error {
	for {
		n, err := s.look(ctx)
		if err != nil && ctx.Err() == nil {
			log.FromContext(ctx).Error(err, "look for silent nodes; trying again")
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(max(listenInterval, time.Duration(n)*time.Second/nodesPerSecond)):
		}
	}
}

// Silent returns the names of the nodes that are silent. The caller does not change it.
func (s *Silence) Silent() sets.Set[string] {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.silent
}

// Heard returns the names of the nodes that answered in the last two seconds, or are new.
func (s *Silence) Heard() sets.Set[string] {
	s.mu.Lock()
	defer s.mu.Unlock()
	heard := sets.New[string]()
	for node, l := range s.nodes {
		if s.Now().Sub(l.answered) <= silence {
			heard.Insert(node)
		}
	}
	return heard
}

// look asks nodes whose last question has ended, and acts on those that are silent. It returns the number of nodes.
func (s *Silence) look(ctx context.Context) (int, error) {
	var list corev1.PodList
	if err := s.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return 0, err
	}
	pods := map[string][]*corev1.Pod{}
	for i := range list.Items {
		// A pod that is being deleted still runs, if its node is cut off. Kubernetes calls a pod not ready if its node is not.
		if p := &list.Items[i]; metav1.GetControllerOf(p) != nil && hasCondition(p, corev1.ContainersReady) && p.Status.PodIP != "" {
			pods[p.Spec.NodeName] = append(pods[p.Spec.NodeName], p)
		}
	}

	silent, changed := s.listen(ctx, pods)
	var failed []error
	for node := range silent {
		for _, p := range pods[node] {
			failed = append(failed, s.takeOut(ctx, p))
		}
	}
	if changed {
		log.FromContext(ctx).Info("nodes that do not answer have changed", "silent", sets.List(silent))
		for _, c := range s.Changed {
			select {
			case c <- event.GenericEvent{Object: &v1alpha1.Fleet{}}:
			default:
			}
		}
	}
	return len(pods), errors.Join(failed...)
}

// listen asks the nodes with pods, and returns those that are silent.
func (s *Silence) listen(ctx context.Context, pods map[string][]*corev1.Pod) (silent sets.Set[string], changed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.Now()
	maps.DeleteFunc(s.nodes, func(node string, _ *listener) bool { return pods[node] == nil })
	if s.nodes == nil {
		s.nodes = map[string]*listener{}
	}
	silent = sets.New[string]()
	for node, own := range pods {
		l := s.nodes[node]
		if l == nil {
			l = &listener{answered: now}
			s.nodes[node] = l
		}
		if now.Sub(l.answered) > silence {
			silent.Insert(node)
		}
		if l.asks {
			continue
		}
		l.asks = true
		if !l.missed { // one pod is enough
			l.turn++
			own = own[l.turn%len(own):][:1]
		}
		go s.ask(ctx, l, now, own)
	}
	if 2*len(silent) > len(pods) {
		silent = sets.New[string]()
	}
	changed = !silent.Equal(s.silent)
	s.silent = silent
	return silent, changed
}

// ask asks pods of a node. One answer is enough, whatever it says.
func (s *Silence) ask(ctx context.Context, l *listener, at time.Time, pods []*corev1.Pod) {
	ctx, cancel := context.WithTimeout(ctx, listenPatience)
	defer cancel()
	answers := make(chan bool, len(pods))
	for _, p := range pods {
		go func() {
			_, err := s.Agents.Ask(ctx, p.Status.PodIP, serves, "")
			answers <- !errors.Is(err, ErrSilent)
		}()
	}
	answered := false
	for range pods {
		if answered = <-answers; answered {
			break
		}
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	l.asks, l.missed = false, !answered
	if answered {
		l.answered = at
	}
}

// takeOut takes a pod out of the Services. The GPU controller puts it back when its node answers again.
func (s *Silence) takeOut(ctx context.Context, p *corev1.Pod) error {
	changed := p.DeepCopy()
	maps.DeleteFunc(changed.Labels, func(label, _ string) bool { return strings.HasPrefix(label, v1alpha1.ServingPrefix) })
	if maps.Equal(p.Labels, changed.Labels) {
		return nil
	}
	return client.IgnoreNotFound(s.Patch(ctx, changed, client.MergeFrom(p)))
}
