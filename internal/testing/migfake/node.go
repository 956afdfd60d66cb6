package migfake

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"slices"
	"sync"
	"testing"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/internal/testing/must"
)

// Node is a node on a machine with MIG. It runs the functions that orders place, and opens the
// instances that they name. Nothing destroys an instance in which they run.
type Node struct {
	*Machine
	Uncut []control.DeviceStatus
	Runs  map[string]control.FunctionPlacement
	// Refuse is the reason to refuse the next order.
	Refuse string
	// File is the node's configuration.
	File string
	// Offered counts the requests of functions.
	Offered map[string]uint64
	mu      sync.Mutex
}

// NewNode returns a node without functions on a machine of A100s.
func NewNode(t *testing.T, gpus int) *Node {
	return &Node{Machine: A100s(t, gpus), Runs: map[string]control.FunctionPlacement{}, Offered: map[string]uint64{}}
}

// Status is the status of the node.
func (n *Node) Status() control.Status {
	n.mu.Lock()
	defer n.mu.Unlock()
	s := control.Status{Policy: "gslice", Devices: slices.Clone(n.Uncut), Configuration: control.ConfigurationStatus{File: n.File}}
	for _, g := range n.Has {
		for _, in := range g.Instances {
			if in.UUID != "" {
				s.Devices = append(s.Devices, control.DeviceStatus{Name: in.UUID, GPU: &control.GPU{UUID: in.UUID, Name: g.Name + " MIG " + in.Profile}})
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(n.Runs)) {
		placed := n.Runs[name]
		f := control.FunctionStatus{Name: name, Model: placed.Model, SLOMillis: placed.SLO.Seconds() * 1000, Offered: n.Offered[name]}
		for _, g := range placed.Segments {
			for range g.Processes {
				f.Instances = append(f.Instances, control.InstanceStatus{Device: g.Device, SharePercent: g.SharePercent, WholeDevice: g.SharePercent == 0})
			}
		}
		s.Functions = append(s.Functions, f)
	}
	return s
}

// Place carries out an order.
func (n *Node) Place(_ context.Context, order control.PlacementOrder) error {
	devices := n.Status().Devices
	n.mu.Lock()
	defer n.mu.Unlock()
	if why := n.Refuse; why != "" {
		n.Refuse = ""
		return control.Refusal(why)
	}
	for i := range order.Functions {
		f := &order.Functions[i]
		if now, exists := n.Runs[f.Name]; exists {
			if f.Model != "" && f.Model != now.Model || f.SLO != 0 && f.SLO != now.SLO {
				return control.Refusal(fmt.Sprintf("%s runs model %s", f.Name, now.Model))
			}
			f.Model, f.SLO = now.Model, now.SLO
		}
		for _, s := range f.Segments {
			if s.Processes < 1 || !slices.ContainsFunc(devices, func(d control.DeviceStatus) bool { return d.Name == s.Device }) {
				return control.Refusal(fmt.Sprintf("no device %q for %d processes", s.Device, s.Processes))
			}
		}
		if n.Runs[f.Name] = *f; len(f.Segments) == 0 {
			delete(n.Runs, f.Name)
		}
	}
	for _, g := range n.Has {
		for i := range g.Instances {
			in := &g.Instances[i]
			in.PIDs = nil
			for _, f := range n.Runs {
				if slices.ContainsFunc(f.Segments, func(s control.PlacedSegment) bool { return s.Device == in.UUID }) {
					in.PIDs = []int{1}
				}
			}
		}
	}
	return nil
}

// Serve answers like a manager until the test ends. It returns the runtime folder.
func (n *Node) Serve(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	must.OK(t, os.Chmod(dir, 0o700))
	admin, err := control.ListenAdmin(dir)
	must.OK(t, err)
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+control.StatusPath, func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(n.Status())
	})
	mux.HandleFunc("POST "+control.PlacePath, func(w http.ResponseWriter, r *http.Request) {
		var order control.PlacementOrder
		err := json.NewDecoder(r.Body).Decode(&order)
		if err == nil {
			err = n.Place(r.Context(), order)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
		}
	})
	server := http.Server{Handler: mux}
	go server.Serve(admin)
	t.Cleanup(func() { server.Close() })
	return dir
}
