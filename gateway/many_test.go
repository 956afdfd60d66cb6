package gateway

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/internal/testing/clienttest"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/wire"
)

// manyFunctions is the number of functions that a page must cope with.
const manyFunctions = 20

// manySample is what the manager of a busy node with many functions says at a time. Its counters
// rise with the time.
func manySample(at time.Time, peer *clienttest.Manager) *control.Sample {
	steps := uint64(at.UnixMilli() / 250)
	s := &control.Sample{At: at, Status: control.Status{Started: time.Unix(1, 0), Devices: []control.DeviceStatus{{Name: control.DeviceCPU}}}}
	for b := range 32 {
		s.BoundsMillis = append(s.BoundsMillis, 0.05*math.Pow(1.5, float64(b)))
	}
	for i := range manyFunctions {
		name := fmt.Sprintf("function-%02d", i)
		phase := steps/4 + uint64(i)
		s.Status.Functions = append(s.Status.Functions, control.FunctionStatus{
			Name: name, Address: peer.Addr().Addr().String(), Port: int(peer.Addr().Port()), Model: finder.Name, Version: finder.Version, SLOMillis: 10,
			Swaps: phase / 400, InFlight: int(phase % 7), Guarantee: &control.GuaranteeStatus{UsePercent: 4 + float64(phase%10)/10, DemotedPercent: float64(phase%3) / 2},
			Instances: []control.InstanceStatus{{Device: control.DeviceCPU, Processes: []control.ProcessStatus{{Generation: 1, Role: control.Serve, State: control.Active}}}},
		})
		f := control.FunctionSample{Name: name, Latency: make([]uint64, len(s.BoundsMillis)+1), Results: make([]uint64, wire.NumStatuses), Ran: 40 * steps, BatchSum: 90 * float64(steps)}
		for b := range 12 {
			f.Latency[5+b] = steps * uint64(1+(b+i)%9)
		}
		for status := range f.Results {
			f.Results[status] = steps / uint64(1+8*status) * 40
		}
		for stage := range control.StageNames {
			f.Stages = append(f.Stages, control.StageSample{Seconds: float64(steps) * float64(1+(stage+i)%5) / 200, Count: 40 * steps})
		}
		s.Functions = append(s.Functions, f)
	}
	return s
}

// The page copes with many functions and a full history, on a desktop and on a phone. No task of
// the browser's main thread makes the charts of more than one function. The log has the CPU time of
// the longest task, which depends on the machine.
func TestPageWithManyFunctions(t *testing.T) {
	modules := os.Getenv("PENSTOCK_NODE_MODULES")
	if modules == "" {
		t.Skip("not on this machine: PENSTOCK_NODE_MODULES names no folder with playwright-core (.ci/run installs it, and Chromium)")
	}
	if testing.Short() {
		t.Skip("not with -short: it drives a browser for 20 s")
	}
	peer, err := clienttest.NewManager(oneBox, clienttest.ManagerOptions{})
	must.OK(t, err)
	defer peer.Close()
	dir := t.TempDir()
	must.OK(t, os.Chmod(dir, 0o700))
	admin, err := control.ListenAdmin(dir)
	must.OK(t, err)
	var asked atomic.Int64
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+control.SamplePath, func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		json.NewEncoder(w).Encode(manySample(time.Now(), peer))
	})
	mux.HandleFunc("GET "+control.CardPath, func(w http.ResponseWriter, _ *http.Request) { json.NewEncoder(w).Encode(finder) })
	manager := &http.Server{Handler: mux}
	go manager.Serve(admin)
	defer manager.Close()

	// Six hours of history, as coarse as the levels keep it.
	s := newServer(Options{Dir: dir, Version: "test", Log: zerolog.Nop()})
	now := time.Now()
	for at := now.Add(-6 * time.Hour); at.Before(now); {
		s.history.Add(manySample(at, peer))
		switch age := now.Sub(at); {
		case age > 15*time.Minute:
			at = at.Add(10 * time.Second)
		case age > 2*time.Minute:
			at = at.Add(time.Second)
		default:
			at = at.Add(250 * time.Millisecond)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go s.functions.Run(ctx)
	web := httptest.NewServer(ownAccess(t).guard(s.routes()))
	defer web.CloseClientConnections()
	defer cancel()

	screenshots := t.TempDir()
	if kept := os.Getenv("PENSTOCK_SCREENSHOTS"); kept != "" {
		screenshots = kept
	}
	script, err := filepath.Abs("../test/browser/many.mjs")
	must.OK(t, err)
	for _, width := range []int{1280, 375} {
		command := exec.CommandContext(ctx, "node", script, modules, web.URL, screenshots, fmt.Sprint(width), fmt.Sprint(manyFunctions))
		command.Stderr = os.Stderr
		text, err := command.Output()
		if err != nil {
			t.Fatalf("many.mjs: %v", err)
		}
		var seen struct {
			Rows, ScrollWidth, Tasks, Updates int
			RowsPerTask                       int     // max
			Longest                           float64 // ms of thread CPU time
			Above50                           int
			Busy                              float64
			Errors                            []string
		}
		if err := json.Unmarshal(text, &seen); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		t.Logf("%d pixels wide: of %d tasks the longest took %.1f ms of CPU time, %d more than 50 ms; the main thread was busy for %.0f %% of the time", width, seen.Tasks, seen.Longest, seen.Above50, seen.Busy)
		if seen.Rows != manyFunctions || seen.ScrollWidth > width || seen.Updates < 10 || seen.Tasks < 100 || len(seen.Errors) > 0 {
			t.Errorf("%s", text)
		}
		if seen.RowsPerTask != 1 {
			t.Errorf("%d pixels wide: one task made %d rows, want 1", width, seen.RowsPerTask)
		}
	}
}
