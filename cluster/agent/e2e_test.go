package agent

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/penstock/penstock/client"
	"github.com/penstock/penstock/cluster/api/v1alpha1"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/internal/freeport"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/nodetest"
	"github.com/penstock/penstock/internal/testing/wait"
	penstock "github.com/penstock/penstock/node"
)

// realPod is a node on the CPU, an agent next to it, and the agent's API server.
type realPod struct {
	*testAgent
	api     *fakeAPI
	node    *penstock.Node
	address netip.Addr
	config  string
}

const pictureBytes = 4096

func startPod(t *testing.T, address string, models string) *realPod {
	t.Helper()
	dir := must.Get(os.MkdirTemp("", "penstock-agent-"))(t)
	t.Cleanup(func() { os.RemoveAll(dir) })
	p := &realPod{api: newFakeAPI(t), address: netip.MustParseAddr(address)}
	p.config = fmt.Sprintf("listen: %s\ndevices: all\nfunctions: []\nmodels: [%s]\n", address, models)
	p.testAgent = &testAgent{t: t, ended: make(chan error, 1), Agent: New(Options{
		Pod: Pod{Namespace: "shop", Name: "pod", Address: p.address}, Dir: filepath.Join(dir, "node"), Log: zerolog.Nop(),
	})}
	p.startNode()

	ctx, cancel := context.WithCancel(context.Background())
	plans := p.api.watch(ctx, p.Dir)
	finished := make(chan struct{})
	go func() {
		defer close(finished)
		p.ended <- p.Run(ctx, plans)
	}()
	t.Cleanup(func() {
		cancel()
		p.node.Stop()
		<-finished
	})
	return p
}

// startNode starts the node. It has the runtime folder of the node before.
func (p *realPod) startNode() {
	p.t.Helper()
	p.node = nodetest.Start(p.t, penstock.Options{Config: p.config, Args: []string{"--runtime-dir", p.Dir}})
}

// serves checks that a function answers rightly.
func (p *realPod) serves(port int32) {
	p.t.Helper()
	answers := nodetest.NewAnswers()
	c, err := client.Dial(p.t.Context(), fmt.Sprintf("%s:%d", p.address, port), client.Options{Deliver: answers.Deliver(pictureBytes)})
	must.OK(p.t, err)
	defer c.Close()
	nodetest.Send(p.t, c, pictureBytes, 0, 20, time.Millisecond)
	answers.Wait(20)
	if answers.By[client.StatusOK] != 20 || answers.Wrong > 0 {
		p.t.Errorf("port %d: answers %s, want 20", port, answers)
	}
}

// runs waits until the node runs the functions named, and no others.
func (p *realPod) runs(names ...string) {
	p.t.Helper()
	var got []string
	if !wait.Within(wait.Patience, func() bool {
		status, err := control.ReadStatus(p.t.Context(), p.Dir)
		got = nil
		for _, f := range status.Functions {
			got = append(got, fmt.Sprintf("%s*%d", f.Name, len(f.Instances)))
		}
		return err == nil && strings.Join(got, " ") == strings.Join(names, " ")
	}) {
		p.t.Fatalf("the node runs %q, want %q", got, names)
	}
}

// A real node follows its plan: functions come, change, drain without a lost answer, and go; processes and nodes start again.
func TestRealNode(t *testing.T) {
	binary := filepath.Join(t.TempDir(), "penstock")
	build := exec.CommandContext(t.Context(), "go", "build", "-tags", "null", "-o", binary, "./cmd/penstock")
	build.Dir = "../.."
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build penstock: %v\n%s", err, out)
	}
	nodetest.Binary = binary
	models := filepath.Dir(nodetest.Card(t, "digest", pictureBytes))
	here, other := startPod(t, "127.0.0.1", models), startPod(t, "127.0.0.2", models)

	face := segmentOf("face-1", "face", share("30", 2), func(s *v1alpha1.Segment) {
		s.Model, s.SLO.Duration, s.Port = "digest", 5*time.Second, int32(must.Get(freeport.Find())(t).Port())
	})
	voice, there := face, face
	voice.Name, voice.Function, voice.Port = "voice-1", "voice", int32(must.Get(freeport.Find())(t).Port())
	there.Name = "face-2"
	here.api.set(planOf(face, voice))
	other.api.set(planOf(there))
	here.answers("/readyz?segment=face-1", 200, "ready")
	here.answers("/readyz?segment=voice-1", 200, "ready")
	other.answers("/readyz", 200, "ready")
	here.runs("face*2", "voice*2")
	here.serves(face.Port)
	here.serves(voice.Port)

	more := voice
	more.Processes = 3
	here.api.set(planOf(face, more))
	here.runs("face*2", "voice*3")

	// A manager that dies restores its functions, and the agent orders them again.
	nodetest.Kill(t, nodetest.Child(t, here.node, "manager"))
	here.runs("face*2", "voice*3")
	here.answers("/readyz?segment=voice-1", 200, "ready")
	here.serves(voice.Port)

	// The function drains under load: its client goes to the other node, and loses nothing.
	answers := nodetest.NewAnswers()
	both := fmt.Sprintf("%s:%d,%s:%d", here.address, face.Port, other.address, face.Port)
	c, err := client.Dial(t.Context(), both, client.Options{Deliver: answers.Deliver(pictureBytes)})
	must.OK(t, err)
	defer c.Close()
	sent := 0
	send := func() {
		nodetest.Send(t, c, pictureBytes, sent, 100, 5*time.Millisecond)
		sent += 100
	}
	send()
	draining := planOf(face, more)
	drains(&draining.Spec.Segments[0])
	draining.Status.Segments = []v1alpha1.SegmentStatus{{
		Name: "face-1", Peers: []v1alpha1.Peer{{Address: fmt.Sprintf("%s:%d", other.address, face.Port), Weight: resource.MustParse("100")}},
	}}
	here.api.set(draining)
	for code := 0; code != 200; {
		send()
		code, _ = here.get("/drained?segment=face-1")
		if sent > 6000 {
			t.Fatal("the function does not drain")
		}
	}
	send()
	answers.Wait(sent)
	if answers.By[client.StatusOK] != sent || answers.Wrong > 0 {
		t.Errorf("answers %s, want %d", answers, sent)
	}
	here.serves(face.Port) // other clients are still served

	// The function is gone from the plan. Then the node starts again, without its functions, while there is no API server.
	here.api.set(planOf(more))
	here.runs("voice*3")
	here.answers("/drained?segment=face-1", 503, "no segment")
	here.api.gone()
	must.OK(t, here.node.Stop())
	here.answers("/readyz", 503, "reach manager")
	here.startNode()
	here.runs("voice*3")
	here.answers("/readyz", 200, "ready")
	here.serves(voice.Port)
	other.runs("face*2")
}
