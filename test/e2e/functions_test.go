package e2e

import (
	"encoding/binary"
	"fmt"
	"math"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/penstock/penstock/client"
	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/nodetest"
	"github.com/penstock/penstock/internal/testing/tinymodel"
	"github.com/penstock/penstock/internal/testing/wait"
	"github.com/penstock/penstock/node"
)

// run runs a verb of penstock against a node.
func run(t *testing.T, dir string, arguments ...string) (string, error) {
	t.Helper()
	c := exec.CommandContext(nodetest.Context(t), penstock, append(arguments, "--runtime-dir", dir)...)
	out, err := c.CombinedOutput()
	return string(out), err
}

// failsInOneLine checks that a verb fails with one line that contains all these words.
func failsInOneLine(t *testing.T, nd *node.Node, words []string, arguments ...string) {
	t.Helper()
	out, err := run(t, nd.Dir, arguments...)
	if err == nil || strings.Count(strings.TrimSpace(out), "\n") != 0 {
		t.Errorf("%s: %v, said:\n%s\nwant one line with %q", strings.Join(arguments, " "), err, out, words)
		return
	}
	for _, word := range words {
		if !strings.Contains(out, word) {
			t.Errorf("%s said:\n%s\nwant one line with %q", strings.Join(arguments, " "), out, word)
		}
	}
}

// refuses checks that adding a function fails in one line with all these words, and leaves
// nothing.
func refuses(t *testing.T, nd *node.Node, name, card string, words ...string) {
	t.Helper()
	failsInOneLine(t, nd, append(words, "the function was removed"), "if", "add", name, "--model", card)
	if _, err := nd.Function(name); err == nil {
		t.Errorf("%s is there, though its addition failed", name)
	}
}

func TestAddRemove(t *testing.T) {
	t.Parallel()
	nd, other := start(t, oneFunction(nodetest.Card(t, "digest", small))), nodetest.Card(t, "other", small)
	got := stream(t, nd, 400, func() {
		if out, err := run(t, nd.Dir, "if", "add", "second", "--model", other); err != nil {
			t.Fatalf("add: %v\n%s", err, out)
		}
	})
	if got.By[client.StatusOK] != 400 {
		t.Errorf("%s; want 400 ok beside the addition", got)
	}
	must.OK(t, nd.WaitReady(nodetest.Context(t)))
	if out, err := run(t, nd.Dir, "if", "list"); err != nil || !strings.Contains(out, "second") || !strings.Contains(out, "other v1") || !strings.Contains(out, "serves") {
		t.Errorf("list: %v\n%s", err, out)
	}
	c := nodetest.Dial(t, nd, "second", client.Options{Timeout: patience})
	if _, err := c.Do(nodetest.Context(t), nodetest.Picture(small, 1), client.RequestOptions{}); err != nil {
		t.Fatalf("the added function: %v", err)
	}
	port := portOf(t, nd, "second")
	if out, err := run(t, nd.Dir, "if", "remove", "second"); err != nil || out != "second is removed\n" {
		t.Fatalf("remove: %v\n%s", err, out)
	}
	// The function is gone when the command returns: its name and its port are free.
	if out, err := run(t, nd.Dir, "if", "add", "second", "--model", other, "--port", port); err != nil {
		t.Fatalf("add it again: %v\n%s", err, out)
	}
	if out, err := run(t, nd.Dir, "if", "remove", "second"); err != nil {
		t.Fatalf("remove it again: %v\n%s", err, out)
	}
	if out, err := run(t, nd.Dir, "if", "remove", "second"); err == nil || !strings.Contains(out, `no function "second"; known are: fn`) {
		t.Errorf("removing it again: %v\n%s", err, out)
	}
	if out, err := run(t, t.TempDir(), "if", "list"); err == nil || !strings.Contains(out, "--runtime-dir") {
		t.Errorf("list of no node: %v\n%s", err, out)
	}
	nodetest.Settled(t, nd, "fn")
}

// A model's file is enough: its card is drafted. With flags it takes pictures.
func TestAddFile(t *testing.T) {
	t.Parallel()
	nd := start(t, oneFunction(nodetest.Card(t, "digest", small)))
	dir, err := openFolder("", "models")
	must.OK(t, err)
	t.Cleanup(func() { must.OK(t, os.RemoveAll(dir)) })
	file := filepath.Join(dir, "net.onnx")
	must.OK(t, os.WriteFile(file, tinymodel.Linear(tinymodel.F32, 2, tinymodel.Dynamic, 3, 8, 8).Encode(), 0o644))

	out, err := run(t, nd.Dir, "if", "add", "raw", "--model", file)
	if err != nil || !strings.Contains(out, "drafted "+filepath.Join(dir, "net.yaml")) || !strings.Contains(out, "--scale 1/255 --colour rgb") || !strings.Contains(out, "raw serves at") {
		t.Fatalf("add: %v\n%s", err, out)
	}
	out, err = run(t, nd.Dir, "if", "add", "pictures", "--model", file, "--scale", "1/255", "--colour", "bgr")
	if err != nil || !strings.Contains(out, "takes pictures, fitted into 8 x 8") || !strings.Contains(out, "pictures serves at") {
		t.Fatalf("add with flags: %v\n%s", err, out)
	}

	// Pixel p of a picture is (p, 2p, 3p), and the tensor is BGR in planes.
	picture, planes, want := make([]byte, 8*8*3), make([]byte, 0, 4*8*8*3), float32(0)
	for p := range 64 {
		for c := range 3 {
			picture[3*p+c] = byte((c + 1) * p)
		}
	}
	for c := range 3 {
		for p := range 64 {
			v := float32(picture[3*p+2-c]) / 255
			planes = binary.LittleEndian.AppendUint32(planes, math.Float32bits(v))
			want += v * float32(64*c+p+1) / 1024
		}
	}
	for name, payload := range map[string][]byte{"raw": planes, "pictures": picture} {
		c := nodetest.Dial(t, nd, name, client.Options{Timeout: patience})
		got, err := c.Do(nodetest.Context(t), payload, client.RequestOptions{})
		must.OK(t, err)
		if v := math.Float32frombits(binary.LittleEndian.Uint32(got.Payload)); got.Status != client.StatusOK || math.Abs(float64(v-want)) > 1e-3*float64(want) {
			t.Errorf("%s: %v, first value %g, want %g", name, got.Status, v, want)
		}
	}
}

// A model with a constant and a state serves from its file. Streams do not share their state, and neither do clients.
func TestAddFileWithState(t *testing.T) {
	t.Parallel()
	nd := start(t, oneFunction(nodetest.Card(t, "digest", small)))
	dir, err := openFolder("", "models")
	must.OK(t, err)
	t.Cleanup(func() { must.OK(t, os.RemoveAll(dir)) })
	file := filepath.Join(dir, "sum.onnx")
	const rate = 16000 // drafted for the name
	batch := []int64{tinymodel.Dynamic, 4}
	model := tinymodel.Model{
		Inputs:  []tinymodel.Value{{Name: "x", Type: tinymodel.F32, Dims: batch}, {Name: "sr", Type: tinymodel.I64}, {Name: "h", Type: tinymodel.F32, Dims: batch}},
		Outputs: []tinymodel.Value{{Name: "y", Type: tinymodel.F32, Dims: batch}, {Name: "hn", Type: tinymodel.F32, Dims: batch}},
		Nodes: []tinymodel.Node{
			{Op: "Cast", Inputs: []string{"sr"}, Outputs: []string{"rate"}, Attribute: "to", Int: int64(tinymodel.F32)},
			{Op: "Mul", Inputs: []string{"x", "rate"}, Outputs: []string{"scaled"}},
			{Op: "Add", Inputs: []string{"scaled", "h"}, Outputs: []string{"y"}},
			{Op: "Add", Inputs: []string{"x", "h"}, Outputs: []string{"hn"}},
		},
	}
	must.OK(t, os.WriteFile(file, model.Encode(), 0o644))
	if out, err := run(t, nd.Dir, "if", "add", "sum", "--model", file); err != nil || !strings.Contains(out, "sum serves at") {
		t.Fatalf("add: %v\n%s", err, out)
	}

	type stream struct {
		client *client.Client
		id     uint32
		sum    float32
	}
	one, other := nodetest.Dial(t, nd, "sum", client.Options{Timeout: patience}), nodetest.Dial(t, nd, "sum", client.Options{Timeout: patience})
	streams := []*stream{{client: one, id: 1}, {client: one, id: 2}, {client: other, id: 1}}
	for i := range 30 {
		s := streams[i%len(streams)]
		x := float32(i + 1)
		payload, err := binary.Append(nil, binary.LittleEndian, []float32{x, 2 * x, 3 * x, 4 * x})
		must.OK(t, err)
		got, err := s.client.Do(nodetest.Context(t), payload, client.RequestOptions{Stream: s.id})
		must.OK(t, err)
		for k, y := range floatsOf(t, got.Kind, got.Payload) {
			if want := float64(k+1) * float64(x*rate+s.sum); y != want {
				t.Fatalf("request %d, stream %d, value %d: %v, want %v", i, s.id, k, y, want)
			}
		}
		s.sum += x
	}
}

func TestEdit(t *testing.T) {
	t.Parallel()
	card := nodetest.Card(t, "digest", small)
	nd := start(t, oneFunction(card))
	text, err := os.ReadFile(nd.Config)
	must.OK(t, err)
	edit := func(more string) {
		t.Helper()
		must.OK(t, os.WriteFile(nd.Config, append(text[:len(text):len(text)], more...), 0o600))
	}
	edit(fmt.Sprintf("  - {name: second, model: %s, port: 0}\n", card))
	wait.For(t, "the added function", func() bool {
		_, err := nd.Function("second")
		return err == nil
	})
	edit("  - {name: third, prot: 0}\n")
	nodetest.Logged(t, nd, "prot")
	if _, err := nd.Function("second"); err != nil {
		t.Errorf("a wrong edit was followed: %v", err)
	}
	edit("")
	wait.For(t, "the function to be gone", func() bool {
		_, err := nd.Function("second")
		return err != nil
	})
}

// The configuration of a running node is valid, although that node already uses its ports. Another configuration with
// these ports is not.
func TestCheckRunningNode(t *testing.T) {
	card := nodetest.Card(t, "digest", small)
	port := freePort(t).Port()
	nd := start(t, fmt.Sprintf("functions:\n  - {name: fn, model: %s, port: %d}\n", card, port))
	for _, dir := range []string{nd.Dir, t.TempDir()} {
		out, err := run(t, dir, "check", nd.Config)
		if err != nil || !strings.Contains(out, "a node runs with this configuration, in "+nd.Dir) || !strings.Contains(out, "a node can run with it") {
			t.Errorf("check with runtime folder %s: %v\n%s", dir, err, out)
		}
	}

	text, err := os.ReadFile(nd.Config)
	must.OK(t, err)
	other := filepath.Join(t.TempDir(), "other.yaml")
	must.OK(t, os.WriteFile(other, text, 0o600))
	if out, err := run(t, t.TempDir(), "check", other); err == nil || !strings.Contains(out, fmt.Sprintf("port %d is in use", port)) {
		t.Errorf("check of another configuration: %v\n%s", err, out)
	}
}

// Objective, share and port change while requests are in flight, and none is lost.
func TestEditsUnderLoad(t *testing.T) {
	card := nodetest.Card(t, "digest", small)
	entry := func(rest string) string {
		return fmt.Sprintf("shares: {policy: gslice, tune: false}\nfunctions:\n  - {name: fn, model: %s, %s}\n", card, rest)
	}
	nd := start(t, entry("port: 0, slo: 5s, share_percent: 30"), "PENSTOCK_NULL=busy=1ms")
	nodetest.Serving(t, nd, "fn")
	text, err := os.ReadFile(nd.Config)
	must.OK(t, err)
	head := string(text[:strings.Index(string(text), "shares:")]) // the lines that the harness wrote
	got := stream(t, nd, 400, func() {
		edited := head + "# a comment\n" + entry("port: 0, slo: 4s, share_percent: 60")
		must.OK(t, os.WriteFile(nd.Config, []byte(edited), 0o600))
		wait.For(t, "the edit to be followed", func() bool {
			f, err := nd.Function("fn")
			return err == nil && f.SLOMillis == 4000 && f.SharePercent == 60
		})
	})
	if got.By[client.StatusOK] != 400 || got.Wrong > 0 {
		t.Errorf("%s; want 400 right answers", got)
	}
	nodetest.Settled(t, nd, "fn")
	if nodetest.Metric(t, nd, "penstock_configuration_rejected") != 0 {
		t.Error("the edit counts as rejected")
	}
}

func TestReplace(t *testing.T) {
	t.Parallel()
	nd := start(t, oneFunction(nodetest.Card(t, "digest", small)))
	nodetest.Serving(t, nd, "fn")
	if out, err := run(t, nd.Dir, "if", "replace", "fn", secondVersion(t)); err != nil {
		t.Fatalf("replace: %v\n%s", err, out)
	}
	wait.For(t, "version 2 to answer", func() bool { return versionOf(t, nd, "fn") == 2 })

	bad := brokenCard(t)
	got := stream(t, nd, 400, func() { failsInOneLine(t, nd, []string{"keeping the old one"}, "if", "replace", "fn", bad) })
	if got.By[client.StatusOK] != 400 || got.Wrong > 0 {
		t.Errorf("%s; want 400 right answers while the new model failed", got)
	}
	if v := versionOf(t, nd, "fn"); v != 2 {
		t.Errorf("version %d answers, want 2", v)
	}
	if out, err := run(t, nd.Dir, "if", "rollback", "fn"); err != nil {
		t.Fatalf("rollback: %v\n%s", err, out)
	}
	wait.For(t, "version 1 to answer", func() bool { return versionOf(t, nd, "fn") == 1 })
	nodetest.Settled(t, nd, "fn")
}

// secondVersion returns the card of nullCard's digest with version 2.
func secondVersion(t *testing.T) string {
	t.Helper()
	path := nodetest.Card(t, "digest", small)
	text, err := os.ReadFile(path)
	must.OK(t, err)
	must.OK(t, os.WriteFile(path, []byte(strings.Replace(string(text), "version: 1", "version: 2", 1)), 0o600))
	return path
}

// versionOf returns the version of the model that answers for a function.
func versionOf(t *testing.T, nd *node.Node, function string) uint32 {
	t.Helper()
	c := nodetest.Dial(t, nd, function, client.Options{Timeout: patience})
	r, err := c.Do(nodetest.Context(t), nodetest.Picture(small, 1), client.RequestOptions{})
	must.OK(t, err)
	return r.ModelVersion
}

func TestReplaceOtherSize(t *testing.T) {
	t.Parallel()
	nd := start(t, oneFunction(nodetest.Card(t, "digest", small)))
	out, err := run(t, nd.Dir, "if", "replace", "fn", nodetest.Card(t, "bigger", 2*small))
	if err == nil || !strings.Contains(out, "4096") || !strings.Contains(out, "2048") {
		t.Errorf("%v: %s; want a refusal that names both sizes", err, out)
	}
}

// A node that cannot start reports the reason in one line, and leaves nothing behind.
func TestStartErrors(t *testing.T) {
	t.Parallel()
	taken, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	must.OK(t, err)
	defer taken.Close()
	port := taken.LocalAddr().(*net.UDPAddr).Port
	card := nodetest.Card(t, "digest", small)
	misspelt := nodetest.Card(t, "misspelt", small, "kneee_percent: 30")
	missing := nodetest.Card(t, "missing", small, "model: nowhere.onnx")
	cases := map[string]struct {
		config string
		want   []string
	}{
		"a port that is taken":   {fmt.Sprintf("functions: [{name: fn, model: %s, port: %d}]", card, port), []string{fmt.Sprint(port), "address already in use"}},
		"a misspelt key":         {fmt.Sprintf("functions: [{name: fn, model: %s, prot: 1}]", card), []string{"config.yaml:3:", `"prot"`, `"port"`}},
		"a card's misspelt key":  {fmt.Sprintf("functions: [{name: fn, model: %s, port: 0}]", misspelt), []string{"misspelt.yaml:", `"kneee_percent"`, `"knee_percent"`}},
		"a missing model":        {fmt.Sprintf("functions: [{name: fn, model: %s, port: 0}]", missing), []string{"nowhere.onnx", "no such file"}},
		"an unknown model":       {"functions: [{name: fcae, port: 0}]", []string{`"fcae"`, "face"}},
		"shares out of range":    {"shares: {minimum_percent: 400}", []string{"config.yaml:3:", "minimum_percent"}},
		"a slab of no size":      {"slab: {size: lots}", []string{"config.yaml:3:", "lots", "want a size from 1MiB to 64GiB"}},
		"more than the memory":   {fmt.Sprintf("slab: {size: 4096GiB}\nfunctions: [{name: fn, model: %s, port: 0}]", card), []string{"config.yaml:3:", "4096GiB"}},
		"a slab over all memory": {fmt.Sprintf("slab: {size: 60GiB}\nfunctions: [{name: fn, model: %s, port: 0}]", card), []string{"make slab", "64424509440 bytes"}},
		"slots no power of two":  {"aggregate: {slots: 100}", []string{"power of two"}},
		"two functions one name": {fmt.Sprintf("functions: [{name: fn, model: %s, port: 0}, {name: fn, model: %s, port: 0}]", card, card), []string{`"fn"`, "another function"}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			file := filepath.Join(dir, "config.yaml")
			must.OK(t, os.WriteFile(file, []byte("http: 127.0.0.1:0\ngateway: off\n"+c.config+"\n"), 0o600))
			started := time.Now()
			out, err := run(t, dir, "up", "--config", file)
			if err == nil {
				t.Fatalf("started, after %s:\n%s", time.Since(started), out)
			}
			out = strings.ReplaceAll(out, `\"`, `"`) // the line is JSON
			for _, want := range c.want {
				if !strings.Contains(out, want) {
					t.Errorf("said:\n%s\nwant %q in it", out, want)
				}
			}
			if len(nodetest.Processes(dir)) > 0 {
				t.Errorf("left behind: %v", nodetest.Processes(dir))
			}
		})
	}
}

// A card that contradicts its model is refused. A model that never becomes ready is removed, without effect on the other
// functions.
func TestWrongModel(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	nd := start(t, oneFunction(nodetest.Card(t, "digest", small)))
	model := tinymodel.Linear(tinymodel.F32, 2, tinymodel.Dynamic, 1, 8, 8)
	wide := tinymodel.Card{Name: "wide", Version: 1, Height: 8, Width: 9, Outputs: 2, Model: model.Encode()}.Write(t, dir)
	failsInOneLine(t, nd, []string{"wide.yaml:5:", "input.size", "8, 8]", "8, 9]"}, "if", "add", "wide", "--model", wide)
	model.Nodes[2].Op = "NoSuchOperator"
	file := tinymodel.Card{Name: "wrong", Version: 1, Height: 8, Width: 8, Outputs: 2, Model: model.Encode()}.Write(t, dir)
	refuses(t, nd, "wrong", file, "NoSuchOperator")
	response, err := http.Get("http://" + nd.HTTP.String() + "/readyz")
	must.OK(t, err)
	if response.Body.Close(); response.StatusCode != http.StatusOK {
		t.Errorf("readyz after a failed addition: %s, want 200", response.Status)
	}
	if out, err := run(t, nd.Dir, "if", "add", "wrong", "--model", nodetest.Card(t, "right", small)); err != nil {
		t.Errorf("adding a model that starts under the same name: %v\n%s", err, out)
	}
	got := stream(t, nd, 200, func() {})
	if got.By[client.StatusOK] != 200 {
		t.Errorf("%s; want 200 ok beside the model that cannot start", got)
	}
}

func TestPortInUse(t *testing.T) {
	t.Parallel()
	taken := freePort(t).Port()
	nd := start(t, fmt.Sprintf("functions:\n  - {name: first, model: %s, port: %d}\n", nodetest.Card(t, "digest", small), taken))
	for port, want := range map[string]string{
		fmt.Sprint(taken): fmt.Sprintf(`port %d belongs to function "first"`, taken),
		"65536":           "--port 65536: want 1 to 65535",
		"-1":              "--port -1: want 1 to 65535",
	} {
		out, err := run(t, nd.Dir, "if", "add", "second", "--port", port, "--model", nodetest.Card(t, "other", small))
		if err == nil || !strings.Contains(out, want) {
			t.Errorf("add at %s: %v, said:\n%s\nwant %q", port, err, out, want)
		}
	}
}

// An edit that misspells a function's name adds another function and removes the old one.
// The node must not do that.
func TestEditMisspelt(t *testing.T) {
	t.Parallel()
	nd := start(t, oneFunction(nodetest.Card(t, "digest", small)))
	wrong := "functions:\n  - {name: fm, model: nosuch, port: 0}\n"
	must.OK(t, os.WriteFile(nd.Config, []byte(wrong), 0o600))
	nodetest.Logged(t, nd, `unknown model \"nosuch\"`)
	if got := stream(t, nd, 50, func() {}); got.By[client.StatusOK] != 50 {
		t.Errorf("%s; want 50 ok of the function that was there", got)
	}
	if log := nd.Log(); strings.Contains(log, "function is being removed") {
		t.Errorf("it was removed:\n%s", log)
	}
}

// If one entry of an edit cannot be applied, no entry is applied.
func TestEditInvalid(t *testing.T) {
	t.Parallel()
	card := nodetest.Card(t, "digest", small)
	second := fmt.Sprintf("  - {name: second, model: %s, port: 0}\n", card)
	nd := start(t, oneFunction(card)+second)
	text, err := os.ReadFile(nd.Config)
	must.OK(t, err)
	edited := strings.Replace(strings.Replace(string(text), second, "", 1), "{name: fn,", "{name: fn, receivers: 2,", 1) +
		fmt.Sprintf("  - {name: third, model: %s, port: 0}\n", card)
	must.OK(t, os.WriteFile(nd.Config, []byte(edited), 0o600))
	nodetest.Logged(t, nd, "reconfigure function fn")
	for name, want := range map[string]bool{"fn": true, "second": true, "third": false} {
		if _, err := nd.Function(name); (err == nil) != want {
			t.Errorf("function %s: %v; want it there: %v", name, err, want)
		}
	}
	if log := nd.Log(); strings.Contains(log, "function is being removed") {
		t.Errorf("one was removed:\n%s", log)
	}
}

// brokenCard writes a card whose model cannot be loaded.
func brokenCard(t *testing.T) string {
	t.Helper()
	return tinymodel.Card{Name: "bad", Version: 3, Height: 2, Width: 1024, Outputs: 1, Model: tinymodel.Truncated}.Write(t, t.TempDir())
}

// If a change restarts the process, the old model has ended when the new one fails, and
// must be started again.
func TestRollback(t *testing.T) {
	t.Parallel()
	nd := start(t, oneFunction(nodetest.Card(t, "digest", small)), configs.Lab{Change: configs.ChangeRestart}.Environment())
	if out, err := run(t, nd.Dir, "if", "replace", "fn", brokenCard(t)); err == nil || !strings.Contains(out, "bad.onnx") {
		t.Errorf("replacing with a broken model: %v, said:\n%s\nwant why it failed", err, out)
	}
	must.OK(t, nd.WaitReady(nodetest.Context(t)))
	got := stream(t, nd, 100, func() {})
	if got.By[client.StatusOK] != 100 || got.Wrong > 0 {
		t.Errorf("%s; want 100 right answers of the old model", got)
	}
	nodetest.Settled(t, nd, "fn")
}

// A function of the configuration file is not removed when its model fails, and follows the
// operator's later changes.
func TestReplaceBrokenModel(t *testing.T) {
	t.Parallel()
	nd := start(t, oneFunction(nodetest.Card(t, "digest", small)))
	text, err := os.ReadFile(nd.Config)
	must.OK(t, err)
	text = fmt.Appendf(text, "  - {name: second, model: %s, port: 0}\n", brokenCard(t))
	must.OK(t, os.WriteFile(nd.Config, text, 0o600))
	nodetest.Logged(t, nd, "load model bad")
	if out, err := run(t, nd.Dir, "if", "replace", "second", nodetest.Card(t, "digest", small)); err != nil {
		t.Fatalf("replace: %v\n%s", err, out)
	}
	c := nodetest.Dial(t, nd, "second", client.Options{Timeout: patience})
	if r, err := c.Do(nodetest.Context(t), nodetest.Picture(small, 1), client.RequestOptions{}); err != nil || r.ModelVersion != 1 {
		t.Errorf("answer %+v, %v; want the good model's", r, err)
	}
}

// An addition continues without the command that ordered it: the function is removed if it
// cannot start, and stays if it can.
func TestAddInterrupted(t *testing.T) {
	t.Parallel()
	nd := start(t, oneFunction(nodetest.Card(t, "digest", small)), "PENSTOCK_NULL=sleep=100ms") // so that the warm-up takes a while
	interrupt := func(name, card string) (added bool) {
		t.Helper()
		c := exec.CommandContext(nodetest.Context(t), penstock, "if", "add", name, "--model", card, "--runtime-dir", nd.Dir)
		out := &strings.Builder{}
		c.Stdout, c.Stderr = out, out
		must.OK(t, c.Start())
		wait.For(t, name+" to be added", func() bool {
			_, err := nd.Function(name)
			return err == nil
		})
		c.Process.Signal(os.Interrupt)
		err := c.Wait()
		if err != nil && !strings.Contains(out.String(), "add "+name+": interrupted; the node continues") {
			t.Errorf("interrupted addition of %s: %v, said:\n%s", name, err, out)
		}
		return err == nil
	}
	if interrupt("never", programCard(t, "/bin/sleep", "60")) {
		t.Error("a function that cannot start was added")
	}
	wait.For(t, "the function that cannot start to be taken off", func() bool {
		f, err := nd.Function("never")
		if err != nil {
			return true
		}
		for _, in := range f.Instances {
			for _, p := range in.Processes {
				if p.PID != 0 {
					syscall.Kill(p.PID, syscall.SIGKILL)
				}
			}
		}
		return false
	})
	nodetest.Logged(t, nd, "killed by signal 9")
	nodetest.Logged(t, nd, "removing the function")
	// On a busy machine a function may be there before the signal is sent.
	name, card := "later", nodetest.Card(t, "other", small)
	for i := 0; interrupt(name, card); i++ {
		if i == 10 {
			t.Fatal("each addition ended before it was interrupted")
		}
		name = fmt.Sprintf("later%d", i)
	}
	wait.For(t, "the function that can start to serve", func() bool {
		f, err := nd.Function(name)
		must.OK(t, err)
		_, serves := f.Instances[0].Serving()
		return serves
	})
}

func TestRename(t *testing.T) {
	t.Parallel()
	card := nodetest.Card(t, "digest", small)
	port := int(freePort(t).Port())
	nd := start(t, fmt.Sprintf("functions:\n  - {name: before, model: %s, port: %d}\n", card, port))
	text, err := os.ReadFile(nd.Config)
	must.OK(t, err)
	must.OK(t, os.WriteFile(nd.Config, []byte(strings.Replace(string(text), "before", "after", 1)), 0o600))
	wait.For(t, "the function under its new name", func() bool {
		f, err := nd.Function("after")
		return err == nil && f.Port == port
	})

	// A manager that is asked to exit before the function has a process waits 20 s for one.
	must.OK(t, nd.WaitReady(nodetest.Context(t)))
}
