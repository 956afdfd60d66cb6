package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/penstock/penstock/cluster/api/v1alpha1"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/wait"
)

// testAgent is a running agent, whose plans the test sends.
type testAgent struct {
	*Agent
	t     *testing.T
	plans chan Plan
	end   context.CancelFunc // ends the pod
	ended chan error
}

func startAgent(t *testing.T, n *fakeNode, change func(*Agent)) *testAgent {
	t.Helper()
	a := &testAgent{New(Options{Pod: testPod, Dir: n.dir, Log: zerolog.New(zerolog.NewTestWriter(t))}), t, make(chan Plan), nil, make(chan error, 1)}
	a.node.grace = 20 * time.Millisecond
	if change != nil {
		change(a.Agent)
	}
	ctx, cancel := context.WithCancel(context.Background())
	a.end = cancel
	finished := make(chan struct{})
	go func() {
		defer close(finished)
		a.ended <- a.Run(ctx, a.plans)
	}()
	t.Cleanup(func() {
		cancel()
		n.stop() // the agent waits for that
		<-finished
	})
	return a
}

func (a *testAgent) plan(segments ...v1alpha1.Segment) {
	a.t.Helper()
	select {
	case a.plans <- Plan{Object: planOf(segments...)}:
	case <-time.After(wait.Patience):
		a.t.Fatal("the agent takes no plan")
	}
}

// get asks for a page.
func (a *testAgent) get(path string) (code int, text string) {
	w := httptest.NewRecorder()
	a.Pages().ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
	return w.Code, strings.TrimSpace(w.Body.String())
}

// answers waits until a page has a status and a text.
func (a *testAgent) answers(path string, code int, text string) {
	a.t.Helper()
	var got string
	if !wait.Within(wait.Patience, func() bool {
		c, s := a.get(path)
		got = fmt.Sprint(c, " ", s)
		return c == code && strings.Contains(s, text)
	}) {
		a.t.Fatalf("%s answers %q, want %d %q", path, got, code, text)
	}
}

// does waits until a node has carried out orders.
func (n *fakeNode) does(want ...string) {
	n.t.Helper()
	var got []string
	if !wait.Within(wait.Patience, func() bool {
		got = append(got, n.logged()...)
		return len(got) >= len(want)
	}) {
		n.t.Fatalf("the node did %q, want %q", got, want)
	}
	if slices.Sort(got); !slices.Equal(got, want) {
		n.t.Errorf("the node did %q, want %q", got, want)
	}
}

func newPair(t *testing.T) (*testAgent, *fakeNode) {
	t.Helper()
	n := newFakeNode(t)
	return startAgent(t, n, nil), n
}

func TestLifeOfSegments(t *testing.T) {
	t.Parallel()
	a, n := newPair(t)
	a.answers("/readyz", 503, noPlan)
	a.answers("/drained?segment=face-7", 503, noPlan)
	face, voice := segmentOf("face-7", "face", share("30", 3)), segmentOf("voice-2", "voice", share("20", 1), func(s *v1alpha1.Segment) { s.Port = 5002 })
	a.plan(face, voice)
	a.answers("/readyz?segment=voice-2", 200, "ready")
	n.does("peers face 0 false", "peers voice 0 false", "place face 3", "place voice 1")
	a.answers("/readyz?segment=face-7", 200, "ready")
	a.answers("/readyz?segment=face-8", 503, `no segment "face-8"`)
	a.answers("/drained?segment=face-7", 503, "does not drain")

	// It drains while requests come and wait, and serves.
	n.set(func() { n.rates["face"] = control.FunctionRate{Offered: 100, Waiting: 1} })
	draining := face
	drains(&draining)
	draining.Processes = 5 // has no effect any more
	a.plan(draining, voice)
	n.does("peers face 0 true")
	a.answers("/drained?segment=face-7", 503, "waits for its clients")
	a.answers("/readyz?segment=face-7", 200, "ready")
	a.answers("/readyz", 200, "ready")
	n.set(func() { n.rates["face"] = control.FunctionRate{Offered: 103} })
	a.answers("/drained?segment=face-7", 200, "drained")
	a.answers("/drained?segment=voice-2", 503, "does not drain")

	// The segment is removed, and another one comes to the same GPU.
	a.plan(voice, segmentOf("face-9", "face", share("10", 1)))
	a.answers("/readyz?segment=face-9", 200, "ready")
	n.does("peers face 0 false", "place face 1")
	a.plan(voice)
	n.does("place face 0")
	a.answers("/readyz?segment=face-9", 503, "no segment")
}

// Of two segments of a function one drains: the other takes its clients.
func TestDrainedNextToAnother(t *testing.T) {
	t.Parallel()
	a, n := newPair(t)
	first, second := segmentOf("face-7", "face", share("30", 3)), segmentOf("face-8", "face", share("10", 1))
	a.plan(first, second)
	n.does("peers face 0 false", "place face 4")
	n.set(func() { n.rates["face"] = control.FunctionRate{Offered: 1, Waiting: 5} })
	drains(&first)
	a.plan(first, second)
	a.answers("/drained?segment=face-7", 200, "drained")
	a.answers("/drained?segment=face-8", 503, "does not drain")
	n.does("peers face 0 false", "place face 1")
}

// Clients that never leave do not hold up a change for ever.
func TestDrainPatience(t *testing.T) {
	t.Parallel()
	n := newFakeNode(t)
	a := startAgent(t, n, func(a *Agent) { a.node.patience = 300 * time.Millisecond })
	face := segmentOf("face-1", "face")
	a.plan(face)
	a.answers("/readyz", 200, "ready")
	n.set(func() { n.rates["face"] = control.FunctionRate{Offered: 1, Waiting: 5} })
	drains(&face)
	a.plan(face)
	a.answers("/drained?segment=face-1", 503, "waits")
	a.answers("/drained?segment=face-1", 200, "drained")
}

func TestNodeStartedAgain(t *testing.T) {
	t.Parallel()
	a, n := newPair(t)
	face, voice := segmentOf("face-7", "face", share("30", 3)), segmentOf("voice-2", "voice", share("20", 1))
	drains(&voice)
	a.plan(face)
	n.does("peers face 0 false", "place face 3")
	a.plan(face, voice) // not there, so it has no clients
	a.answers("/drained?segment=voice-2", 200, "drained")
	n.stop()
	a.answers("/readyz", 503, "reach manager")
	a.answers("/rates", 503, "reach manager")
	a.answers("/drained?segment=voice-2", 503, "reach manager")
	n.start()
	a.answers("/readyz", 200, "ready")
	n.does("peers face 0 false", "place face 3")
}

// Another agent, or one that was killed, finds what the first has done, and changes nothing that serves.
func TestAgentStartedAgain(t *testing.T) {
	t.Parallel()
	n := newFakeNode(t)
	first := startAgent(t, n, nil)
	first.plan(segmentOf("face-1", "face"))
	first.answers("/readyz", 200, "ready")
	n.does("peers face 0 false", "place face 2")
	second := startAgent(t, n, nil)
	second.plan(segmentOf("face-1", "face"))
	second.answers("/readyz", 200, "ready")
	n.does("peers face 0 false", "place face 2") // the same again
}

// A function that the node refuses does not hold up the others, and is tried again.
func TestRefusedFunction(t *testing.T) {
	t.Parallel()
	a, n := newPair(t)
	n.set(func() { n.refuses["face"] = errNoRoom })
	a.plan(segmentOf("face-7", "face", share("30", 3)))
	a.answers("/readyz", 503, "function face does not serve: manager: it fits on no device")
	a.plan(segmentOf("face-7", "face", share("30", 3)), segmentOf("voice-2", "voice", share("20", 1)))
	a.answers("/readyz?segment=voice-2", 200, "ready")
	a.answers("/readyz?segment=face-7", 503, "it fits on no device")
	a.answers("/readyz", 200, "ready")
	n.set(func() { n.refuses["face"] = nil })
	a.answers("/readyz?segment=face-7", 200, "ready")

	// A changed plan is tried at once, however often the last one failed.
	n.set(func() { n.refuses["face"] = errNoRoom })
	a.plan(segmentOf("face-7", "face", share("30", 5)), segmentOf("voice-2", "voice", share("20", 1)))
	a.answers("/readyz", 200, "ready") // the processes that it has serve on
	a.plan(segmentOf("face-7", "face", share("30", 4)), segmentOf("voice-2", "voice", share("20", 1)))
	n.set(func() { n.refuses["face"] = nil })
	wait.For(t, "the newest plan", func() (is bool) {
		n.set(func() {
			is = slices.ContainsFunc(n.functions, func(f control.FunctionStatus) bool { return len(f.Instances) == 4 })
		})
		return is
	})
}

func TestLostDevice(t *testing.T) {
	t.Parallel()
	a, n := newPair(t)
	n.set(func() { n.lost = "it was unplugged" })
	a.plan(segmentOf("face-1", "face"))
	a.answers("/readyz", 503, "no device that works")
	n.set(func() { n.lost = "" })
	a.answers("/readyz", 200, "ready")
}

// Whatever the admin socket does, the pages answer, and the agent goes on when the socket is as it should be.
func TestBadNode(t *testing.T) {
	t.Parallel()
	for name, mode := range newFakeNode(t).bad() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, n := newPair(t)
			if name == "says nothing" {
				mode = n.bad()[name]
			}
			a.plan(segmentOf("face-1", "face"))
			a.answers("/readyz", 200, "ready")
			n.logged()
			n.mode.Store(&mode)
			a.answers("/readyz", 503, "")
			began := time.Now()
			if code, _ := a.get("/rates"); code != 503 && name != "nothing in it" && name != "null" {
				t.Errorf("/rates answers %d, want 503", code)
			}
			if took := time.Since(began); took > 2*ratesPatience {
				t.Errorf("/rates took %v", took)
			}
			a.answers("/drained?segment=face-1", 503, "")
			n.mode.Store(nil)
			a.answers("/readyz", 200, "ready")
		})
	}
}

// The GPUPlan was deleted, or the pod ends: everything drains, and nothing is removed.
func TestGone(t *testing.T) {
	t.Parallel()
	for name, gone := range map[string]func(*testAgent){
		"plan deleted": func(a *testAgent) { a.plans <- Plan{Object: planOf(segmentOf("face-1", "face")), Gone: true} },
		"pod ends":     func(a *testAgent) { a.end() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, n := newPair(t)
			a.plan(segmentOf("face-1", "face"))
			a.answers("/readyz", 200, "ready")
			n.logged()
			gone(a)
			n.does("peers face 0 true")
			a.answers("/drained?segment=face-1", 200, "drained")
			a.answers("/readyz", 200, "ready")
			if log := n.logged(); len(log) > 0 {
				t.Errorf("the node did %q after that", log)
			}
			n.stop()
			a.end()
			select {
			case err := <-a.ended:
				must.OK(t, err)
			case <-time.After(wait.Patience):
				t.Error("the agent goes on after its node has ended")
			}
		})
	}
}

// The kubelet stops the node when the page answers: when all clients have left the pod that ends.
func TestEndOfPod(t *testing.T) {
	t.Parallel()
	a, n := newPair(t)
	a.plan(segmentOf("face-1", "face"), segmentOf("voice-2", "voice", share("20", 1), func(s *v1alpha1.Segment) { s.Port = 5002 }))
	a.answers("/readyz?segment=face-1", 200, "ready")
	a.answers("/readyz?segment=voice-2", 200, "ready")
	n.set(func() { n.rates["voice"] = control.FunctionRate{Offered: 1, Waiting: 1} })
	page := make(chan string)
	go func() {
		code, text := a.get(EndPath)
		page <- fmt.Sprint(code, " ", text)
	}()
	silent := func(why string) {
		t.Helper()
		select {
		case got := <-page:
			t.Fatalf("the page answers %q although %s", got, why)
		case <-time.After(5 * a.node.grace):
		}
	}
	silent("the pod does not end")
	a.end()
	a.answers("/drained?segment=face-1", 200, "drained")
	silent("a request waits")
	n.set(func() { n.rates["voice"] = control.FunctionRate{Offered: 1} })
	select {
	case got := <-page:
		if got != "200 drained" {
			t.Errorf("the page answers %q", got)
		}
	case <-time.After(wait.Patience):
		t.Error("the page does not answer")
	}
}

// Without a change the agent sends nothing to its node.
func TestSteady(t *testing.T) {
	t.Parallel()
	a, n := newPair(t)
	a.plan(segmentOf("face-1", "face"))
	n.does("peers face 0 false", "place face 2")
	p := planOf(segmentOf("face-1", "face"))
	for range 20 {
		a.plans <- Plan{Object: p.DeepCopy()}
	}
	if log := n.logged(); len(log) > 0 {
		t.Errorf("the node did %q", log)
	}

	// Peers are the one thing that changes.
	p.Status.Segments = []v1alpha1.SegmentStatus{{Name: "face-1", Peers: []v1alpha1.Peer{{Address: "10.1.0.6:5001", Weight: resource.MustParse("80")}}}}
	a.plans <- Plan{Object: p}
	n.does("peers face 1 false")
}

func TestRatesPage(t *testing.T) {
	t.Parallel()
	a, n := newPair(t)
	a.plan(segmentOf("face-1", "face"))
	a.answers("/readyz", 200, "ready")
	n.set(func() { n.rates["face"] = control.FunctionRate{Offered: 7, Planned: 100, Waiting: 1} })
	code, text := a.get("/rates")
	var got control.Rates
	must.OK(t, json.Unmarshal([]byte(text), &got))
	want := control.Rates{Functions: []control.FunctionRate{{Name: "face", Offered: 7, Planned: 100, Ready: true, Waiting: 1}}}
	if code != 200 || !reflect.DeepEqual(got, want) {
		t.Errorf("%d %s", code, text)
	}
}
