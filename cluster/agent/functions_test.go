package agent

import (
	"encoding/json"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/penstock/penstock/cluster/api/v1alpha1"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/internal/testing/must"
)

var testPod = Pod{Namespace: "shop", Name: "face-1", Address: netip.MustParseAddr("10.1.0.5")}

// segmentOf returns a segment of a MIG instance.
func segmentOf(name, function string, change ...func(*v1alpha1.Segment)) v1alpha1.Segment {
	s := v1alpha1.Segment{
		Name: name, Namespace: testPod.Namespace, Function: function, Model: "resnet", SLO: metav1.Duration{Duration: 20 * time.Millisecond}, Port: 5001,
		Processes: 2, Batch: 8, Throughput: v1alpha1.Rate(100),
	}
	for _, c := range change {
		c(&s)
	}
	return s
}

func drains(s *v1alpha1.Segment) { s.Draining = true }

// share gives a segment a part of an uncut GPU.
func share(percent string, processes int32) func(*v1alpha1.Segment) {
	return func(s *v1alpha1.Segment) {
		s.SharePercent, s.Processes = new(resource.MustParse(percent)), processes
	}
}

func planOf(segments ...v1alpha1.Segment) *v1alpha1.GPUPlan {
	p := &v1alpha1.GPUPlan{ObjectMeta: metav1.ObjectMeta{Name: "gpu-1"}}
	p.Spec.Segments = segments
	return p
}

// orders formats what functions want of a node.
func orders(list []*function) string {
	var b strings.Builder
	for _, f := range list {
		placed, _ := json.Marshal(f.placed)
		peers, _ := json.Marshal(f.peers)
		b.Write(placed)
		b.Write(peers)
	}
	return b.String()
}

func TestFunctions(t *testing.T) {
	withPeers := planOf(segmentOf("face-1", "face", drains))
	withPeers.Status.Segments = []v1alpha1.SegmentStatus{
		{Name: "face-1", Peers: []v1alpha1.Peer{
			{Address: "10.1.0.7:5001", Weight: resource.MustParse("0")},
			{Address: "10.1.0.6:5001", Weight: resource.MustParse("1500m")},
			{Address: "10.1.0.6:5001", Weight: resource.MustParse("1")},
			{Address: "10.1.0.5:5001", Weight: resource.MustParse("1")}, // itself
			{Address: "no address", Weight: resource.MustParse("1")},
			{Address: "0.0.0.0:5001", Weight: resource.MustParse("1")},
		}},
		{Name: "other", Peers: []v1alpha1.Peer{{Address: "10.1.0.8:5001", Weight: resource.MustParse("1")}}},
	}
	for name, c := range map[string]struct {
		plan *v1alpha1.GPUPlan
		want string
	}{
		"no segments": {planOf(), ""},
		"its segment of a cut GPU": {
			planOf(segmentOf("other-1", "other"), segmentOf("face-1", "face"), segmentOf("face-1", "face", func(s *v1alpha1.Segment) { s.Namespace = "lab" })),
			`{"name":"face","model":"resnet","slo":20000000,"port":5001,"segments":[{"device":"","processes":2}]}` +
				`{"function":"face","self":"10.1.0.5:5001","rate":100}`,
		},
		"all segments of its namespace on another GPU": {
			planOf(segmentOf("face-7", "face", share("30", 3)), segmentOf("x", "x", share("50", 1), func(s *v1alpha1.Segment) { s.Namespace = "lab" }),
				segmentOf("voice-2", "voice", share("33333m", 1)), segmentOf("face-8", "face", share("10", 1))),
			`{"name":"face","model":"resnet","slo":20000000,"port":5001,"segments":[{"device":"","processes":4,"share_percent":10}]}` +
				`{"function":"face","self":"10.1.0.5:5001","rate":200}` +
				`{"name":"voice","model":"resnet","slo":20000000,"port":5001,"segments":[{"device":"","processes":1,"share_percent":33.333}]}` +
				`{"function":"voice","self":"10.1.0.5:5001","rate":100}`,
		},
		"peers": {
			withPeers,
			`{"name":"face","model":"resnet","slo":20000000,"port":5001,"segments":[{"device":"","processes":2}]}` +
				`{"function":"face","peers":[{"address":"10.1.0.6:5001","weight":1.5},{"address":"10.1.0.7:5001","weight":0.001}],"self":"10.1.0.5:5001","rate":100,"drain":true}`,
		},
		"one of two segments drains": {
			planOf(segmentOf("face-7", "face", share("30", 3), drains), segmentOf("face-8", "face", share("10", 1))),
			`{"name":"face","model":"resnet","slo":20000000,"port":5001,"segments":[{"device":"","processes":1,"share_percent":10}]}` +
				`{"function":"face","self":"10.1.0.5:5001","rate":100}`,
		},
		"values that no planner writes": {
			planOf(segmentOf("face-1", "face", func(s *v1alpha1.Segment) {
				s.Processes, s.Throughput = -3, resource.MustParse("1e18")
			})),
			`{"name":"face","model":"resnet","slo":20000000,"port":5001,"segments":[{"device":"","processes":1}]}` +
				`{"function":"face","self":"10.1.0.5:5001","rate":1000000000}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			list := testPod.functions(c.plan)
			if got := orders(list); got != c.want {
				t.Errorf("got\n%s, want\n%s", got, c.want)
			}
			for _, f := range list {
				must.OK(t, f.peers.Check())
			}
		})
	}
}

// statusOf is the status of a node that runs functions as ordered.
func statusOf(functions ...*function) (s control.Status, done map[string]sent) {
	done = map[string]sent{}
	for _, f := range functions {
		want := f.placement("cuda:0")
		s.Functions = append(s.Functions, control.FunctionStatus{
			Name: f.name(), Model: want.Model, Port: int(want.Port), SLOMillis: float64(want.SLO) / 1e6, Instances: make([]control.InstanceStatus, processes(want)),
		})
		done[f.name()] = sent{want, f.peers}
	}
	return s, done
}

func TestDiff(t *testing.T) {
	face, voice := segmentOf("face-7", "face", share("30", 3)), segmentOf("voice-2", "voice", share("20", 1))
	before := testPod.functions(planOf(face, voice))
	more, slower, drained := face, face, face
	more.Processes = 4
	slower.SLO.Duration = time.Second
	drained.Draining = true
	for name, c := range map[string]struct {
		after        []v1alpha1.Segment
		change       func(*control.Status, map[string]sent)
		places, tell string // functions; - removes, + drains
	}{
		"as planned":            {[]v1alpha1.Segment{face, voice}, nil, "", ""},
		"more processes":        {[]v1alpha1.Segment{more, voice}, nil, "face", ""},
		"another objective":     {[]v1alpha1.Segment{slower, voice}, nil, "-face", ""},
		"draining":              {[]v1alpha1.Segment{drained, voice}, nil, "", "+face"},
		"gone from the plan":    {[]v1alpha1.Segment{voice}, nil, "-face", ""},
		"both gone":             {nil, nil, "-face -voice", ""},
		"node started again":    {[]v1alpha1.Segment{face, voice}, func(s *control.Status, d map[string]sent) { s.Functions = nil; clear(d) }, "face voice", ""},
		"agent started again":   {[]v1alpha1.Segment{face, voice}, func(_ *control.Status, d map[string]sent) { clear(d) }, "face voice", "face voice"},
		"draining, node anew":   {[]v1alpha1.Segment{drained}, func(s *control.Status, d map[string]sent) { s.Functions = nil; clear(d) }, "", ""},
		"a stranger's function": {[]v1alpha1.Segment{face, voice}, func(s *control.Status, _ map[string]sent) { s.Functions[0].Name = "x" }, "face -x", ""},
		"fewer instances":       {[]v1alpha1.Segment{face, voice}, func(s *control.Status, _ map[string]sent) { s.Functions[0].Instances = nil }, "face", ""},
		"another model":         {[]v1alpha1.Segment{face, voice}, func(s *control.Status, _ map[string]sent) { s.Functions[0].Model = "x" }, "-face", ""},
		"another port":          {[]v1alpha1.Segment{face, voice}, func(s *control.Status, _ map[string]sent) { s.Functions[0].Port = 0 }, "-face", ""},
	} {
		t.Run(name, func(t *testing.T) {
			status, done := statusOf(before...)
			if c.change != nil {
				c.change(&status, done)
			}
			places, peers := diff(&status, "cuda:0", done, testPod.functions(planOf(c.after...)))
			var ordered, told []string
			for _, p := range places {
				if len(p.Segments) == 0 {
					p.Name = "-" + p.Name
				}
				ordered = append(ordered, p.Name)
			}
			for _, o := range peers {
				if o.Drain {
					o.Function = "+" + o.Function
				}
				told = append(told, o.Function)
			}
			if got, also := strings.Join(ordered, " "), strings.Join(told, " "); got != c.places || also != c.tell {
				t.Errorf("it places %q and sends peers of %q, want %q and %q", got, also, c.places, c.tell)
			}
		})
	}
}

// A node that carries out each order becomes the plan, whatever it ran before, and gets no more orders then.
func TestDiffConverges(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		draw := func(name string) []*function {
			var segments []v1alpha1.Segment
			for i := range rapid.IntRange(0, 5).Draw(t, name) {
				function := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "function")
				segments = append(segments, segmentOf(function+string(rune('0'+i)), function, share("10", rapid.Int32Range(1, 4).Draw(t, "processes")), func(s *v1alpha1.Segment) {
					s.Port, s.Model = int32(5000+i/3), rapid.SampledFrom([]string{"m", "n"}).Draw(t, "model")
					s.Draining = rapid.Bool().Draw(t, "drains")
				}))
			}
			return testPod.functions(planOf(segments...))
		}
		wanted := draw("wanted")
		status, done := statusOf(draw("before")...)
		for round := 0; ; round++ {
			places, peers := diff(&status, "cuda:0", done, wanted)
			if len(places)+len(peers) == 0 {
				break
			}
			if round == 3 {
				t.Fatalf("it still has orders: %+v, %+v", places, peers)
			}
			for _, o := range peers {
				d := done[o.Function]
				d.peers = o
				done[o.Function] = d
			}
			for _, p := range places {
				status.Functions = deleteFunction(status.Functions, p.Name)
				if len(p.Segments) == 0 {
					delete(done, p.Name)
					continue
				}
				status.Functions = append(status.Functions, control.FunctionStatus{
					Name: p.Name, Model: p.Model, Port: int(p.Port), SLOMillis: float64(p.SLO) / 1e6, Instances: make([]control.InstanceStatus, processes(p)),
				})
				done[p.Name] = sent{p, done[p.Name].peers}
			}
		}
		for _, f := range wanted {
			if !f.peers.Drain && !reflect.DeepEqual(done[f.name()], sent{f.placement("cuda:0"), f.peers}) {
				t.Errorf("%s is %+v, want %+v", f.name(), done[f.name()], f)
			}
		}
		if len(status.Functions) > len(wanted) {
			t.Errorf("the node has %d functions, want at most %d", len(status.Functions), len(wanted))
		}
	})
}

func deleteFunction(list []control.FunctionStatus, name string) (kept []control.FunctionStatus) {
	for _, f := range list {
		if f.Name != name {
			kept = append(kept, f)
		}
	}
	return kept
}
