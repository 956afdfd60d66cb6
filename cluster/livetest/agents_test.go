package livetest

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/penstock/penstock/cluster/fleet"
	"github.com/penstock/penstock/cluster/operator"
	"github.com/penstock/penstock/internal/testing/must"
)

// agents answer for the agents of all pods.
type agents struct {
	mu     sync.Mutex
	pods   map[string]*counted // by address
	rates  map[string]float64  // requests per second, by function
	number map[string]int      // pods, by function
	asked  map[string]int      // questions about segments that drain, by segment
	silent map[string]bool     // pods whose agents do not answer, by UID
}

// counted is a pod, and how many requests it got.
type counted struct {
	function, uid string
	offered       float64
	at            time.Time
}

// serveAgents serves the pages of agents until the test ends.
func serveAgents(t testing.TB, config *rest.Config) *agents {
	t.Helper()
	a := &agents{pods: map[string]*counted{}, rates: map[string]float64{}, number: map[string]int{}, asked: map[string]int{}, silent: map[string]bool{}}
	api, err := kubernetes.NewForConfig(config)
	must.OK(t, err)
	factory := informers.NewSharedInformerFactoryWithOptions(api, 0, informers.WithTweakListOptions(func(o *metav1.ListOptions) {
		o.LabelSelector = operator.OurPods.String()
	}))
	pods := factory.Core().V1().Pods().Informer()
	_, err = pods.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { a.see(o.(*corev1.Pod), false) },
		UpdateFunc: func(_, o any) { a.see(o.(*corev1.Pod), false) },
		DeleteFunc: func(o any) {
			if pod, ok := o.(*corev1.Pod); ok {
				a.see(pod, true)
			}
		},
	})
	must.OK(t, err)
	factory.Start(t.Context().Done())

	l, err := net.Listen("tcp", fmt.Sprintf(":%d", operator.AgentPort))
	must.OK(t, err)
	server := &http.Server{Handler: a, ReadHeaderTimeout: time.Minute}
	go server.Serve(l)
	t.Cleanup(func() { server.Close() })
	return a
}

// see notes a pod that has an address, or is gone.
func (a *agents) see(p *corev1.Pod, gone bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	address, function := p.Status.PodIP, functionOf(p.Name)
	known := a.pods[address]
	switch {
	case gone && known != nil && known.uid == string(p.UID):
		delete(a.pods, address)
		a.number[function]--
	case !gone && address != "" && (known == nil || known.uid != string(p.UID)):
		a.pods[address] = &counted{function: function, uid: string(p.UID), at: time.Now()}
		a.number[function]++
	}
}

func (a *agents) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	address, _, _ := net.SplitHostPort(r.Context().Value(http.LocalAddrContextKey).(net.Addr).String())
	a.mu.Lock()
	defer a.mu.Unlock()
	pod := a.pods[address]
	switch segment := r.URL.Query().Get("segment"); {
	case pod == nil || a.silent[pod.uid]:
		panic(http.ErrAbortHandler)
	case r.URL.Path == "/rates":
		now := time.Now()
		pod.offered += a.rates[pod.function] / float64(a.number[pod.function]) * now.Sub(pod.at).Seconds()
		pod.at = now
		json.NewEncoder(w).Encode(map[string]any{"functions": []fleet.FunctionPage{{Name: pod.function, Offered: uint64(pod.offered)}}})
	case r.URL.Path == "/drained":
		if a.asked[segment]++; a.asked[segment] <= 2 {
			http.Error(w, "clients leave", http.StatusServiceUnavailable)
		}
	}
}

// set changes the agents' behaviour.
func (a *agents) set(change func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	change()
}
