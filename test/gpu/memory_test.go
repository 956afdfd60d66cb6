//go:build gpu

package gpu

import (
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/cuda"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/nodetest"
	"github.com/penstock/penstock/internal/testing/wait"
)

// exported returns the card of one of the torchvision models that run.sh exports.
func exported(t *testing.T, name string) string {
	t.Helper()
	card := filepath.Join(os.Getenv("PENSTOCK_MODELS"), name, "card.yaml")
	if _, err := os.Stat(card); err != nil {
		t.Fatalf("find %s: %v; `test/gpu/run.sh export` makes it, PENSTOCK_MODELS says where", name, err)
	}
	return card
}

// hog allocates the GPU's memory except for that many bytes, until release. It uses
// plain allocations.
func hog(t *testing.T, leave int64) (release func()) {
	t.Helper()
	took, let, ended := make(chan error), make(chan struct{}), make(chan error)
	go func() {
		runtime.LockOSThread() // the context is bound to this thread, which ends with the goroutine
		ended <- hold(leave, took, let)
	}()
	if err := <-took; err != nil {
		t.Fatalf("take the GPU's memory: %v", err)
	}
	return func() {
		close(let)
		if err := <-ended; err != nil {
			t.Errorf("give the GPU's memory back: %v", err)
		}
	}
}

func hold(leave int64, took chan<- error, let <-chan struct{}) error {
	found, err := cuda.Find("cuda")
	if err != nil {
		took <- err
		return nil
	}
	context, err := found.OpenContext()
	if err == nil {
		err = context.Bind()
	}
	var held []cuda.Pointer
	for chunk := int64(1 << 30); err == nil && chunk >= 2<<20; {
		free, _, memoryErr := context.Memory()
		if err = memoryErr; err != nil {
			break
		}
		if free-chunk < leave {
			chunk /= 2
			continue
		}
		var p cuda.Pointer
		if p, err = context.Allocate(int(chunk)); err == nil {
			held = append(held, p)
		}
	}
	took <- err
	<-let
	for _, p := range held {
		if freeErr := context.Free(p); err == nil {
			err = freeErr
		}
	}
	if closeErr := context.Close(); err == nil {
		err = closeErr
	}
	return err
}

var (
	outOfMemory = regexp.MustCompile(`(?i)out.of.memory|memory allocation|allocate`)
	atLink      = regexp.MustCompile(`link model`)
)

// A model is added to a GPU with less and less free memory. If there is too little to
// link it, the error is one line and nothing is left. If there is too little only for
// its larger batches, it serves without them and reports that. Neither affects the
// neighbour.
func TestOutOfMemory(t *testing.T) {
	card := exported(t, "vgg19")
	n := start(t, `
shares: {policy: gslice, tune: false, change: shadow}
functions:
  - {name: fashion, port: 0, slo: 5s, share_percent: 30}
`)
	fashion := send(t, n, "fashion", 200)
	fashion.flows(t)
	nodetest.Serving(t, n, "fashion")
	add := func() error {
		return n.Order(control.AddPath, configs.Function{Name: "big", Model: card, Instances: 1, SharePercent: 50})
	}
	remove := func() {
		must.OK(t, n.Order(control.RemovePath, control.NameOrder{Name: "big"}))
		wait.For(t, "big to be gone", func() bool {
			_, err := n.Function("big")
			return err != nil
		})
	}
	link, small := false, false
	const step, most = 400 << 20, 8 << 30
	for leave := int64(step); ; leave += step {
		if leave > most {
			t.Fatalf("big does not start with %d bytes free", leave)
		}
		release := hog(t, leave)
		err := add()
		if err == nil {
			var p control.ProcessStatus
			wait.For(t, "big to have the batch sizes that it can have", func() bool {
				f, err := n.Function("big")
				serves := false
				if err == nil && len(f.Instances) > 0 {
					p, serves = f.Instances[0].Serving()
				}
				return serves && len(p.Batches) > 0 && !p.WarmingUp
			})
			t.Logf("with %d MiB free big serves batches of %v: %s", leave>>20, p.Batches, p.Reason)
			release()
			remove()
			if p.Reason == "" {
				break
			}
			small = true
			if !outOfMemory.MatchString(p.Reason) || strings.Contains(p.Reason, "\n") {
				t.Errorf("with %d MiB free it says %q; want one line about memory", leave>>20, p.Reason)
			}
			continue
		}
		said := err.Error()
		t.Logf("with %d MiB free: %s", leave>>20, said)
		if !outOfMemory.MatchString(said) || strings.Contains(said, "\n") {
			t.Errorf("with %d MiB free it said %q; want one line about memory", leave>>20, said)
		}
		first := !link && atLink.MatchString(said)
		link = link || first
		release()
		if _, err := n.Function("big"); err == nil {
			t.Fatalf("with %d MiB free big is there, though its addition failed", leave>>20)
		}
		if first { // now there is memory
			if err := add(); err != nil {
				t.Fatalf("big does not start though there is memory: %v", err)
			}
			remove()
		}
	}
	if !link || !small {
		t.Errorf("out of memory at link: %v, for larger batches: %v; want both", link, small)
	}
	fashion.stop().answeredAll(t, 0)
	nodetest.Settled(t, n, "fashion")
}
