package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/penstock/penstock/client"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/nodetest"
	"github.com/penstock/penstock/internal/testing/wait"
	"github.com/penstock/penstock/models/zoo"
	"github.com/penstock/penstock/node"
)

// scarceModels are the models of a worker's members, in turn. scarceMemory holds a third of them; on
// other CPUs models may take another size.
var scarceModels = []string{"face", "fashion", "detect"}

const (
	scarceMembers = 12
	scarceMemory  = "24MiB"
)

// scarce is a node with members of a worker with little memory, and other functions.
func scarce(t *testing.T, more ...string) (nd *node.Node, members []string) {
	t.Helper()
	config := fmt.Sprintf("workers: [{name: cold, share_percent: 60, memory: %s, lanes: 1}]\nfunctions:\n", scarceMemory)
	for i := range scarceMembers {
		name := fmt.Sprintf("fn%d", i)
		members = append(members, name)
		config += fmt.Sprintf("  - {name: %s, model: %s, port: 0, slo: 60s, worker: cold}\n", name, scarceModels[i%len(scarceModels)])
	}
	nd = start(t, config+strings.Join(more, ""))
	for _, name := range members {
		serves(t, nd, name, "cold")
	}
	return nd, members
}

// askPicture returns the answer of a function to the picture of a number.
func askPicture(t *testing.T, c *client.Client, bytes, number int) (status client.Status, payload []byte) {
	t.Helper()
	r, err := c.Do(nodetest.Context(t), nodetest.Picture(bytes, number), client.RequestOptions{})
	var other client.StatusError
	if err != nil && !errors.As(err, &other) {
		t.Errorf("picture %d: %v", number, err)
	}
	return r.Status, r.Payload
}

// inputBytes is the size of a function's requests.
func inputBytes(t *testing.T, nd *node.Node, function string) int {
	t.Helper()
	f, err := nd.Function(function)
	must.OK(t, err)
	return f.Input.Bytes
}

// countedLoads returns the loads and evictions of functions.
func countedLoads(t *testing.T, nd *node.Node, functions []string) (loads, evictions uint64) {
	t.Helper()
	for _, name := range functions {
		f, err := nd.Function(name)
		must.OK(t, err)
		if f.Residency != nil {
			loads, evictions = loads+f.Residency.Loads, evictions+f.Residency.Evictions
		}
	}
	return loads, evictions
}

// TestScarceMemory asks 12 members at once, with memory for a third of their models. Each answer
// equals that of an own process.
func TestScarceMemory(t *testing.T) {
	t.Parallel()
	var own []string
	for _, model := range zoo.Names() {
		own = append(own, fmt.Sprintf("  - {name: own-%[1]s, model: %[1]s, port: 0, slo: 10s}\n", model))
	}
	nd, members := scarce(t, own...)
	const rounds = 5
	o := client.Options{Timeout: 2 * time.Minute}
	want := map[string][][]byte{}
	for _, model := range zoo.Names() {
		serves(t, nd, "own-"+model, "")
		c, size := nodetest.Dial(t, nd, "own-"+model, o), inputBytes(t, nd, "own-"+model)
		for i := range rounds {
			status, payload := askPicture(t, c, size, i)
			if status != client.StatusOK {
				t.Fatalf("own process of %s answers %v", model, status)
			}
			want[model] = append(want[model], payload)
		}
	}

	var all sync.WaitGroup
	for i, name := range members {
		model := scarceModels[i%len(scarceModels)]
		c, size := nodetest.Dial(t, nd, name, o), inputBytes(t, nd, name)
		all.Go(func() {
			for i := range rounds {
				if status, payload := askPicture(t, c, size, i); status != client.StatusOK || !bytes.Equal(payload, want[model][i]) {
					t.Errorf("%s answers picture %d with %v, %d bytes; want the answer of an own process", name, i, status, len(payload))
				}
			}
		})
	}
	all.Wait()
	wait.For(t, "evictions and loads in the status", func() bool {
		loads, evictions := countedLoads(t, nd, members)
		return loads > scarceMembers && evictions > 0
	})
	for _, name := range members {
		nodetest.Settled(t, nd, name)
	}
}

// TestScarceMemoryKilled kills a worker while it loads. All members serve again.
func TestScarceMemoryKilled(t *testing.T) {
	t.Parallel()
	nd, members := scarce(t)
	worker := serves(t, nd, members[0], "cold").PID
	o := client.Options{Timeout: 2 * time.Minute}
	var all sync.WaitGroup
	begun := make(chan struct{}, scarceMembers)
	for _, name := range members {
		c, size := nodetest.Dial(t, nd, name, o), inputBytes(t, nd, name)
		all.Go(func() {
			for i := range 5 {
				if status, _ := askPicture(t, c, size, i); status != client.StatusOK && status != client.StatusFailed {
					t.Errorf("%s answers %v, want ok, or failed for a batch that was running", name, status)
				}
				if i == 0 {
					begun <- struct{}{}
				}
			}
		})
	}
	for range scarceMembers / 2 {
		<-begun
	}
	nodetest.Kill(t, worker)
	all.Wait()
	for _, name := range members {
		if now := serves(t, nd, name, "cold"); now.PID == worker {
			t.Errorf("%s has process %d after it was killed", name, worker)
		}
		nodetest.Settled(t, nd, name)
	}
}

// TestScarceMemoryOnGPU has device memory for one of two models, whose weights take 64 MiB each. A batch that
// runs without them loses the device. The worker is killed in between.
func TestScarceMemoryOnGPU(t *testing.T) {
	t.Parallel()
	nd := start(t, fmt.Sprintf(`
device: cuda
workers: [{name: cold, share_percent: 40, memory: 100MiB, lanes: 1}]
functions:
  - {name: fn, model: %[1]q, port: 0, slo: 10s, worker: cold}
  - {name: other, model: %[1]q, port: 0, slo: 10s, worker: cold}
`, nodetest.Card(t, "digest", small)), append(withGPU(t, true), "PENSTOCK_NULL=allocate=67108864")...)
	members := []string{"fn", "other"}
	for _, name := range members {
		serves(t, nd, name, "cold")
	}
	worker := serves(t, nd, "fn", "cold").PID
	for i := range 10 {
		if i == 5 {
			nodetest.Kill(t, worker)
			wait.For(t, "another process of the worker", func() bool { return serves(t, nd, "fn", "cold").PID != worker })
		}
		for _, name := range members {
			r, err := nodetest.Dial(t, nd, name, client.Options{Timeout: patience}).Do(nodetest.Context(t), nodetest.Picture(small, i), client.RequestOptions{Tag: uint64(i)})
			if err != nil || !nodetest.Right(&r, small) {
				t.Errorf("%s answers picture %d with %v, %v", name, i, r.Status, err)
			}
		}
	}
	wait.For(t, "evictions and loads in the status", func() bool {
		loads, evictions := countedLoads(t, nd, members)
		return loads >= 5 && evictions >= 3
	})
}
