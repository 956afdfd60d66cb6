package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/client"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/nodetest"
	"github.com/penstock/penstock/internal/testing/wait"
)

// cpuProfile is a profile of a model on a CPU: each tenth of it serves a hundred requests per second.
func cpuProfile(model string) string {
	text := fmt.Sprintf("# {\"version\": 1, \"model\": %q, \"device\": \"cpu\", \"gpu\": \"cpu\", \"share\": \"percent\", \"total\": 100, \"complete\": true}\n", model) +
		"Mig instance,Batch size,Workload Number,Throughput,Latency\n"
	for tenth := 1; tenth <= 3; tenth++ {
		text += fmt.Sprintf("%d,4,1,%d,0.02\n", 10*tenth, 100*tenth)
	}
	return text
}

// TestPlan carries out plans on a node that answers requests, and follows a rate.
func TestPlan(t *testing.T) {
	t.Parallel()
	card := nodetest.Card(t, "digest", small)
	dir, profiles := t.TempDir(), t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		must.OK(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	must.OK(t, os.WriteFile(filepath.Join(profiles, "digest.csv"), []byte(cpuProfile("digest")), 0o600))
	nd := start(t, fmt.Sprintf("models: [%s]\nfunctions:\n  - {name: one, model: digest, port: 0}\n  - {name: other, model: digest, port: 0}\n", filepath.Dir(card)))
	apply := func(rows string) string {
		t.Helper()
		services := write("services.csv", "service,model,rate_rps,slo_ms\n"+rows)
		out, err := run(t, nd.Dir, "plan", "--profiles", profiles, "--services", services, "--apply")
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return out
	}
	instances := func(name string) int {
		f, err := nd.Function(name)
		must.OK(t, err)
		return len(f.Instances)
	}

	got := nodetest.NewAnswers()
	c := nodetest.Dial(t, nd, "one", client.Options{Deliver: got.Deliver(small), Timeout: 20 * time.Second})
	sending := make(chan struct{})
	go func() {
		defer close(sending)
		nodetest.Send(t, c, small, 0, 1000, 2*time.Millisecond)
	}()
	if out := apply("one,digest,250,10000\ntwo,digest,90,10000\n"); !strings.Contains(out, "remove other") || !strings.Contains(out, "start two: 1 in cpu") {
		t.Errorf("says\n%s", out)
	}
	one, two := instances("one"), instances("two")
	if status, err := nd.Status(); err != nil || len(status.Functions) != 2 || one == 0 || two != 1 {
		t.Errorf("%d and %d instances, %+v, %v", one, two, status.Functions, err)
	}
	apply("one,digest,700,10000\ntwo,digest,90,10000\n")
	if more := instances("one"); more <= one || instances("two") != two {
		t.Errorf("%d instances of one, and %d before", more, one)
	}
	if out := apply("one,digest,700,10000\ntwo,digest,90,10000\n"); !strings.Contains(out, "Nothing to do") {
		t.Errorf("a second time it says\n%s", out)
	}
	<-sending
	got.Wait(1000)
	if got.By[client.StatusOK] != 1000 || got.Wrong > 0 {
		t.Errorf("answers %s", got)
	}
	wait.For(t, "the functions to settle", func() bool {
		one, err := nd.Function("one")
		return err == nil && one.Lost == 0 && one.InFlight == 0
	})
}
