package repository

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/rs/zerolog"

	"github.com/penstock/penstock/cmd/penstock/inspect"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/tinymodel"
	"github.com/penstock/penstock/models"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == inspect.Verb { // package apart starts this program as penstock
		seen, err := inspect.Observe(os.Args[2], nil)
		if err != nil {
			fmt.Fprintln(os.Stderr, "penstock:", err)
			os.Exit(1)
		}
		os.Stdout.Write(seen)
		return
	}
	os.Exit(m.Run())
}

// harness is a follower of a folder whose node records orders.
type harness struct {
	*testing.T
	follower
	log bytes.Buffer

	mu     sync.Mutex
	has    []string // functions
	orders []string
	refuse string // why orders are refused; empty: they are carried out
}

func newHarness(t *testing.T) *harness {
	h := &harness{T: t}
	node := t.TempDir()
	must.OK(t, os.Chmod(node, 0o700))
	h.follower = follower{dir: t.TempDir(), node: node, drafts: filepath.Join(node, "models"), log: zerolog.New(zerolog.SyncWriter(&h.log))}
	admin, err := control.ListenAdmin(node)
	must.OK(t, err)
	server := &http.Server{Handler: h}
	go server.Serve(admin)
	t.Cleanup(func() { server.Close() })
	return h
}

func (h *harness) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if r.URL.Path == control.StatusPath {
		var s control.Status
		for _, name := range h.has {
			s.Functions = append(s.Functions, control.FunctionStatus{Name: name})
		}
		json.NewEncoder(w).Encode(s)
		return
	}
	var o control.LoadOrder
	json.NewDecoder(r.Body).Decode(&o)
	card, version := filepath.Base(o.Model), uint32(0)
	if c, err := models.ReadCard(o.Model); err == nil {
		version = c.Version
	}
	h.orders = append(h.orders, fmt.Sprintf("%s %s %s v%d x%d", r.URL.Path, o.Name, card, version, o.Instances))
	if h.refuse != "" {
		http.Error(w, h.refuse, http.StatusBadRequest)
		return
	}
	fmt.Fprintln(w, "done")
}

// steps looks until nothing changes any more, and returns the orders and the log.
func (h *harness) steps() (orders []string, log string) {
	h.Helper()
	h.orders = nil
	h.log.Reset()
	for range 3 { // a change is seen, has lasted, and changes nothing more
		h.step(h.Context())
	}
	slices.Sort(h.orders)
	return h.orders, h.log.String()
}

func (h *harness) write(name string, content []byte) {
	h.Helper()
	path := filepath.Join(h.dir, name)
	must.OK(h, os.MkdirAll(filepath.Dir(path), 0o755))
	must.OK(h, os.WriteFile(path, content, 0o644))
}

func (h *harness) remove(name string) { must.OK(h, os.RemoveAll(filepath.Join(h.dir, name))) }

func (h *harness) wants(what string, orders ...string) (log string) {
	h.Helper()
	got, log := h.steps()
	if !slices.Equal(got, orders) {
		h.Errorf("%s: orders %q, want %q; the log:\n%s", what, got, orders, log)
	}
	return log
}

var net = tinymodel.Linear(tinymodel.F32, 2, tinymodel.Dynamic, 3, 8, 8).Encode()

func TestFollow(t *testing.T) {
	h := newHarness(t)
	h.write("tri/1/model.onnx", net)
	h.write("tri/2/model.onnx", net)
	h.write("tri/config.pbtxt", []byte(`
		name: "tri" backend: "onnxruntime" max_batch_size: 8 # as Triton reads it
		input [ { name: "x" data_type: TYPE_FP32 format: FORMAT_NCHW dims: [ 3, 8, 8 ] } ]
		output { name: "y" data_type: TYPE_FP32 dims: 2 label_filename: "labels.txt" }
		instance_group [ { count: 2 kind: KIND_CPU } ]
		dynamic_batching { max_queue_delay_microseconds: 100 }
		parameters { key: "a" value: { string_value: "b" } }
		later_field: { x: 1 }`))
	h.write("tri/labels.txt", []byte("cat\ndog\n"))
	h.write("Plain net.onnx", net)
	h.write(".copying.onnx", net)
	h.write("README.md", nil)
	log := h.wants("start", "/load plain-net 1.yaml v1 x0", "/load tri 2.yaml v2 x2")
	for _, want := range []string{
		`"version":2,"notes":["labels of y","max_batch_size 8","instance_group 2","not taken: dynamic_batching","not taken: parameters","takes x f32 [3, 8, 8] (raw), answers raw"]`,
	} {
		if !strings.Contains(log, want) {
			t.Errorf("the log has no %s:\n%s", want, log)
		}
	}
	card, err := models.ReadCard(filepath.Join(h.drafts, "tri", "card.yaml"))
	must.OK(t, err)
	if !slices.Equal(card.Batches, []int{1, 2, 4, 8}) || !slices.Equal(card.Labels, []string{"cat", "dog"}) {
		t.Errorf("the card has batches %v and labels %v", card.Batches, card.Labels)
	}

	h.wants("no change")
	h.write("tri/3/model.onnx", net)
	h.write("Plain net.onnx", net)
	h.wants("new version and new file", "/load plain-net 2.yaml v2 x0", "/load tri 3.yaml v3 x2")
	h.remove("tri/3")
	h.remove("tri/1")
	h.wants("back to version 2", "/load tri 2.yaml v2 x2")
	h.write("tri/2/model.onnx", append(slices.Clone(net), 0x1a, 0)) // an empty domain
	if log := h.wants("changed version"); !strings.Contains(log, "files changed, and version 2 serves already; want a higher version") {
		t.Errorf("the log of a changed version:\n%s", log)
	}
	h.write("tri/4/model.onnx", net[:100])
	if log := h.wants("incomplete version"); !strings.Contains(log, "incomplete ONNX model") {
		t.Errorf("the log of an incomplete version:\n%s", log)
	}
	h.remove("tri")
	h.remove("Plain net.onnx")
	h.wants("removal", "/remove plain-net . v0 x0", "/remove tri . v0 x0")
	h.write("tri/1/model.onnx", net)
	h.wants("return", "/load tri 1.yaml v1 x1")
}

// A file that still grows is not read, and the folder's other models do not wait for it.
func TestCopy(t *testing.T) {
	h := newHarness(t)
	h.step(t.Context())
	h.write("other.onnx", net)
	for n := 100; n < len(net); n += 100 {
		h.write("net.onnx", net[:n])
		h.step(t.Context())
	}
	h.write("net.onnx", net)
	if len(h.orders) != 1 || strings.Contains(h.log.String(), "incomplete") {
		t.Errorf("orders %q while a file grew; the log:\n%s", h.orders, &h.log)
	}
	h.wants("complete", "/load net 1.yaml v1 x0")
}

func TestBad(t *testing.T) {
	config := func(text string) func(*harness) {
		return func(h *harness) {
			h.write("net/1/model.onnx", net)
			h.write("net/config.pbtxt", []byte(text))
		}
	}
	for name, c := range map[string]struct {
		make func(*harness)
		want string
	}{
		"no model":       {func(h *harness) { h.write("net.onnx", []byte("<html>")) }, "a web page"},
		"no version":     {func(h *harness) { h.write("net/README", nil) }, "has no version; want a folder like 1 with model.onnx"},
		"version 0":      {func(h *harness) { h.write("net/0/model.onnx", net) }, "has no version"},
		"version 2^32":   {func(h *harness) { h.write("net/4294967296/model.onnx", net) }, "has no version"},
		"another format": {func(h *harness) { h.write("net/1/model.plan", nil) }, "only models of ONNX Runtime"},
		"broken card": {func(h *harness) {
			h.write("net.onnx", net)
			h.write("net.yaml", []byte("name: 7"))
		}, "net.yaml:1"},
		"file and folder": {func(h *harness) {
			h.write("net.onnx", net)
			h.write("net/1/model.onnx", net)
		}, "the name net has a folder and a file"},
		"two names": {func(h *harness) {
			h.write("Net.onnx", []byte("claims the name first"))
			h.write("net.onnx", net)
			h.write("NET.onnx", net)
		}, "has the name net, too"},
		"function of the configuration": {func(h *harness) {
			h.has = []string{"net"}
			h.write("net.onnx", net)
		}, "the node has another function net"},
		"refused":           {func(h *harness) { h.refuse = "no room"; h.write("net.onnx", net) }, "manager: no room"},
		"loop of links":     {func(h *harness) { must.OK(t, os.Symlink(".", filepath.Join(h.dir, "net"))) }, "has no version"},
		"dangling link":     {func(h *harness) { must.OK(t, os.Symlink("x", filepath.Join(h.dir, "net.onnx"))) }, "no such file"},
		"other name":        {config(`name: "other"`), `name is "other", want "net"`},
		"platform":          {config(`platform: "tensorrt_plan"`), `platform is "tensorrt_plan"`},
		"sequence":          {config(`sequence_batching { direct {} }`), "sequence_batching is not served"},
		"ensemble":          {config(`ensemble_scheduling { step { model_name: "a" } }`), "ensemble_scheduling is not served"},
		"no text format":    {config(`name = {`), "config.pbtxt: "},
		"nested":            {config(strings.Repeat("optimization {", 10_000)), "config.pbtxt: "},
		"long":              {config(strings.Repeat("#", maxConfigBytes+1)), "want at most"},
		"batch":             {config(`max_batch_size: -1`), "max_batch_size is -1"},
		"file elsewhere":    {config(`default_model_filename: "../../x"`), "want a name in the version's folder"},
		"versions":          {config(`version_policy { specific { versions: [2, 3] } }`), "has no version"},
		"unknown input":     {config(`input { name: "z" data_type: TYPE_FP32 dims: 3 }`), `input "z" is none of the model's: x`},
		"type of the input": {config(`input { name: "x" data_type: TYPE_UINT8 dims: 3 }`), "input x is TYPE_UINT8, and the model's is f32"},
		"unknown output":    {config(`output { name: "z" data_type: TYPE_FP32 }`), `output "z" is none of the model's: y`},
		"labels":            {config(`output { name: "y" data_type: TYPE_FP32 label_filename: "missing" }`), "the drafted card is not complete"},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			c.make(h)
			h.write("good.onnx", net)
			orders, log := h.steps()
			if !slices.Contains(orders, "/load good 1.yaml v1 x0") {
				t.Errorf("orders %q without the good model", orders)
			}
			if strings.Count(log, `"level":"error"`) < 1 || !strings.Contains(log, strings.Trim(fmt.Sprintf("%q", c.want), `"`)) {
				t.Errorf("the log has no %q:\n%s", c.want, log)
			}
		})
	}
}

// A node that does not answer is asked again. A folder that cannot be read changes nothing.
func TestUnreachable(t *testing.T) {
	h := newHarness(t)
	node := h.node
	h.node = t.TempDir()
	h.write("net.onnx", net)
	if h.wants("without a node"); h.models != nil {
		t.Error("models count as loaded without a node")
	}
	h.node = node
	h.wants("with a node", "/load net 1.yaml v1 x0")
	dir := h.dir
	h.dir = filepath.Join(dir, "missing")
	if log := h.wants("without the folder"); strings.Count(log, "cannot read the folder") != 1 {
		t.Errorf("the log:\n%s", log)
	}
	h.dir = dir
	h.wants("with the folder")
}
