package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/private"
)

// fakeNode is a node's admin socket. It can be bad in several ways.
type fakeNode struct {
	t    *testing.T
	dir  string
	done chan struct{} // closed at the end of the test; ends slow answers

	mu        sync.Mutex
	listener  *control.Listener
	started   time.Time
	functions []control.FunctionStatus
	peers     map[string]control.PeersOrder
	rates     map[string]control.FunctionRate
	log       []string         // what it has carried out
	refuses   map[string]error // placements, by function
	lost      string           // why the device is lost

	mode atomic.Pointer[http.HandlerFunc] // answers in place of the node; nil: the node answers
}

func newFakeNode(t *testing.T) *fakeNode {
	n := &fakeNode{
		t: t, dir: t.TempDir(), done: make(chan struct{}), peers: map[string]control.PeersOrder{}, rates: map[string]control.FunctionRate{},
		refuses: map[string]error{},
	}
	must.Get(private.MakeFolder(n.dir, 0o700))(t).Close()
	n.start()
	t.Cleanup(func() {
		close(n.done)
		n.stop()
	})
	return n
}

// start starts a node without functions.
func (n *fakeNode) start() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.started, n.functions = time.Now(), nil
	clear(n.peers)
	l, err := control.ListenAdmin(n.dir)
	must.OK(n.t, err)
	n.listener = l
	go http.Serve(l, http.HandlerFunc(n.serve))
}

func (n *fakeNode) stop() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.listener != nil {
		n.listener.Close()
		n.listener = nil
	}
}

func (n *fakeNode) serve(w http.ResponseWriter, r *http.Request) {
	if mode := n.mode.Load(); mode != nil {
		(*mode)(w, r)
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	var err error
	switch r.URL.Path {
	case control.StatusPath:
		json.NewEncoder(w).Encode(control.Status{
			Started: n.started, Devices: []control.DeviceStatus{{Name: "cpu", Lost: n.lost}}, Functions: n.functions,
		})
		return
	case control.RatesPath:
		rates := control.Rates{}
		for _, f := range n.functions {
			rate := n.rates[f.Name]
			rate.Name, rate.Ready = f.Name, true
			rates.Functions = append(rates.Functions, rate)
		}
		json.NewEncoder(w).Encode(rates)
		return
	case control.PlacePath:
		var o control.PlacementOrder
		if err = json.NewDecoder(r.Body).Decode(&o); err == nil {
			err = n.place(o)
		}
	case control.PeersPath:
		var o control.PeersOrder
		if err = json.NewDecoder(r.Body).Decode(&o); err == nil {
			n.peers[o.Function] = o
			n.log = append(n.log, fmt.Sprintf("peers %s %d %v", o.Function, len(o.Peers), o.Drain))
		}
	default:
		err = fmt.Errorf("no order %s", r.URL.Path)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
	}
}

func (n *fakeNode) place(o control.PlacementOrder) error {
	for _, p := range o.Functions {
		if err := n.refuses[p.Name]; err != nil {
			return err
		}
	}
	for _, p := range o.Functions {
		n.functions = slices.DeleteFunc(n.functions, func(f control.FunctionStatus) bool { return f.Name == p.Name })
		n.log = append(n.log, fmt.Sprintf("place %s %d", p.Name, processes(p)))
		if len(p.Segments) > 0 {
			n.functions = append(n.functions, control.FunctionStatus{
				Name: p.Name, Model: p.Model, Port: int(p.Port), SLOMillis: float64(p.SLO) / 1e6, Instances: make([]control.InstanceStatus, processes(p)),
			})
		}
	}
	return nil
}

// logged returns what the node has carried out since the last call.
func (n *fakeNode) logged() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	log := n.log
	n.log = nil
	slices.Sort(log)
	return log
}

// set changes the node under its lock.
func (n *fakeNode) set(change func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	change()
}

// bad are the ways in which an admin socket can be bad.
func (n *fakeNode) bad() map[string]http.HandlerFunc {
	return map[string]http.HandlerFunc{
		"refuses all":   func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusBadRequest) },
		"no JSON":       func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "\x00\xff{{{") },
		"nothing in it": func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "{}") },
		"other types":   func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"functions":7,"devices":"x"}`) },
		"null":          func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "null") },
		"hangs up":      func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		"never ends": func(w http.ResponseWriter, r *http.Request) {
			for r.Context().Err() == nil {
				if _, err := w.Write(make([]byte, 1<<16)); err != nil {
					return
				}
			}
		},
		"says nothing": func(_ http.ResponseWriter, r *http.Request) {
			select {
			case <-r.Context().Done():
			case <-n.done:
			}
		},
		"only a status": func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != control.StatusPath {
				http.Error(w, "no", http.StatusBadRequest)
				return
			}
			fmt.Fprint(w, `{"devices":[{"name":"cpu"}],"functions":[{"name":"x"},{"name":"x"}]}`)
		},
	}
}

var errNoRoom = errors.New("it fits on no device")
