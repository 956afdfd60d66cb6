package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/penstock/penstock/cluster/api/v1alpha1"
	"github.com/penstock/penstock/cluster/kubetest"
	"github.com/penstock/penstock/cluster/operator"
)

// pods are the operator's pods. This program answers for their agents: clients send as many requests as the functions are
// planned for.
type pods struct {
	mu        sync.Mutex
	all       map[string]*pod // by name
	byAddress map[string]*pod
	serving   int
}

type pod struct {
	function string
	bound    time.Time // when this program saw it
	began    time.Time // when it got an address
	serves   bool      // it is ready, and in its function's Service
}

// servePods follows the operator's pods, and serves their agents' pages.
func servePods(ctx context.Context, config *rest.Config) (*pods, error) {
	p := &pods{all: map[string]*pod{}, byAddress: map[string]*pod{}}
	config = rest.CopyConfig(config)
	config.ContentType = "application/vnd.kubernetes.protobuf"
	api, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", fmt.Sprintf(":%d", operator.AgentPort))
	if err != nil {
		return nil, err
	}
	// The addresses of pods exist only in namespaces of this program.
	if try, err := net.Listen("tcp", "10.64.0.1:0"); err != nil {
		l.Close()
		return nil, fmt.Errorf("answer for the agents of pods, %w without root: %w", kubetest.ErrUnsupported, err)
	} else {
		try.Close()
	}

	factory := informers.NewSharedInformerFactoryWithOptions(api, 0,
		informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.LabelSelector = operator.OurPods.String() }),
		informers.WithTransform(func(o any) (any, error) {
			if all, ok := o.(*corev1.Pod); ok {
				return &corev1.Pod{
					ObjectMeta: metav1.ObjectMeta{Namespace: all.Namespace, Name: all.Name, Labels: all.Labels, ResourceVersion: all.ResourceVersion},
					Spec:       corev1.PodSpec{NodeName: all.Spec.NodeName},
					Status:     corev1.PodStatus{PodIP: all.Status.PodIP, Phase: all.Status.Phase},
				}, nil
			}
			return o, nil
		}))
	_, err = factory.Core().V1().Pods().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { p.see(o.(*corev1.Pod)) },
		UpdateFunc: func(_, o any) { p.see(o.(*corev1.Pod)) },
	})
	if err != nil {
		return nil, err
	}
	factory.Start(ctx.Done())
	go (&http.Server{Handler: p, ReadHeaderTimeout: time.Minute}).Serve(l)
	return p, nil
}

// see notes what became of a pod.
func (p *pods) see(o *corev1.Pod) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.all[o.Name]
	if now == nil {
		now = &pod{function: o.Name[:strings.LastIndex(o.Name, "-")]}
		p.all[o.Name] = now
	}
	if o.Spec.NodeName != "" && now.bound.IsZero() {
		now.bound = time.Now()
	}
	if o.Status.PodIP != "" && now.began.IsZero() {
		now.began = time.Now()
		p.byAddress[o.Status.PodIP] = now
	}
	if !now.serves && o.Status.Phase == corev1.PodRunning && o.Labels[v1alpha1.ServingLabel(now.function)] == v1alpha1.Serving {
		now.serves = true
		p.serving++
	}
}

// count returns how many pods are bound to nodes, and how many serve.
func (p *pods) count() (bound, serving int) {
	return len(p.boundTimes()), p.serving
}

// boundTimes returns when pods were bound, in order.
func (p *pods) boundTimes() []time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	var all []time.Time
	for _, one := range p.all {
		if !one.bound.IsZero() {
			all = append(all, one.bound)
		}
	}
	slices.SortFunc(all, time.Time.Compare)
	return all
}

func (p *pods) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	address, _, _ := net.SplitHostPort(r.Context().Value(http.LocalAddrContextKey).(net.Addr).String())
	p.mu.Lock()
	one := p.byAddress[address]
	p.mu.Unlock()
	switch {
	case one == nil:
		panic(http.ErrAbortHandler)
	case r.URL.Path == "/rates":
		fmt.Fprintf(w, `{"functions": [{"name": %q, "offered": %d}]}`, one.function, int(time.Since(one.began).Seconds()*segmentRate))
	}
}
