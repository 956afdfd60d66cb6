package e2e

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock/penstock/client"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/nodetest"
	"github.com/penstock/penstock/internal/testing/tinymodel"
	"github.com/penstock/penstock/internal/testing/wait"
	"github.com/penstock/penstock/node"
)

// A folder in Triton's layout serves as `penstock if add` serves its model. Versions come and go while clients ask.
func TestRepository(t *testing.T) {
	t.Parallel()
	dir, err := openFolder("", "models")
	must.OK(t, err)
	t.Cleanup(func() { must.OK(t, os.RemoveAll(dir)) })
	write := func(name string, content []byte) {
		t.Helper()
		path := filepath.Join(dir, name)
		must.OK(t, os.MkdirAll(filepath.Dir(path), 0o755))
		must.OK(t, os.WriteFile(path, content, 0o644))
	}
	model := tinymodel.Linear(tinymodel.F32, 2, tinymodel.Dynamic, 3, 8, 8)
	write("net/1/model.onnx", model.Encode())
	write("net/config.pbtxt", []byte(`platform: "onnxruntime_onnx" max_batch_size: 8 input { name: "x" data_type: TYPE_FP32 dims: [3, 8, 8] } dynamic_batching {}`))
	write("broken.onnx", model.Encode()[:200])
	write("fn.onnx", model.Encode())

	status, gateway := freePort(t), freePort(t)
	config := filepath.Join(t.TempDir(), "config.yaml")
	must.OK(t, os.WriteFile(config, fmt.Appendf(nil, "http: %s\ngateway: {address: %q, load: true}\n%s", status, gateway, oneFunction(nodetest.Card(t, "digest", small))), 0o600))
	nd := startWith(t, node.Options{ConfigFile: config, HTTP: status, Args: []string{"--models", dir}})
	must.OK(t, nd.WaitReady(nodetest.Context(t)))
	if f, err := nd.Function("net"); err != nil || !f.Serves() {
		t.Errorf("the node is ready before its folder's models serve: %v", err)
	}
	nodetest.Serving(t, nd, "net")
	for _, line := range []string{`"notes":["max_batch_size 8","not taken: dynamic_batching",`, "an incomplete ONNX model", "the node has another function fn"} {
		nodetest.Logged(t, nd, line)
	}

	var tensor []byte
	for i := range 3 * 8 * 8 {
		tensor = binary.LittleEndian.AppendUint32(tensor, math.Float32bits(float32(i)))
	}
	ask := func(c *client.Client) client.Result {
		t.Helper()
		got, err := c.Do(nodetest.Context(t), tensor, client.RequestOptions{Deadline: time.Minute})
		must.OK(t, err)
		return got
	}
	if out, err := run(t, nd.Dir, "if", "add", "added", "--model", filepath.Join(dir, "net/1/model.onnx")); err != nil {
		t.Fatalf("add: %v\n%s", err, out)
	}
	c := nodetest.Dial(t, nd, "net", client.Options{Timeout: patience})
	first, added := ask(c), ask(nodetest.Dial(t, nd, "added", client.Options{Timeout: patience}))
	if first.Status != client.StatusOK || !bytes.Equal(first.Payload, added.Payload) {
		t.Errorf("%v: %x, want %x as by `penstock if add`", first.Status, first.Payload, added.Payload)
	}

	// The weights of version 2 are twice as large.
	second := model
	second.Weights = append([]tinymodel.Weights(nil), model.Weights...)
	second.Weights[0].Values = append([]float32(nil), model.Weights[0].Values...)
	for i := range second.Weights[0].Values {
		second.Weights[0].Values[i] *= 2
	}
	value := func(r client.Result) float32 { return math.Float32frombits(binary.LittleEndian.Uint32(r.Payload)) }
	var served atomic.Uint32
	done, stop := context.WithCancel(t.Context())
	var load sync.WaitGroup
	for range 4 {
		c := nodetest.Dial(t, nd, "net", client.Options{Timeout: patience})
		load.Go(func() {
			for done.Err() == nil {
				got, err := c.Do(t.Context(), tensor, client.RequestOptions{Deadline: time.Minute})
				if want := float32(got.ModelVersion) * value(first); err != nil || got.Status != client.StatusOK || value(got) != want {
					t.Errorf("version %d: %v, %v; want the value %g", got.ModelVersion, err, got.Status, want)
					return
				}
				served.Store(got.ModelVersion)
			}
		})
	}
	write("net/2/model.onnx", second.Encode())
	wait.For(t, "version 2 to answer", func() bool { return served.Load() == 2 })
	must.OK(t, os.RemoveAll(filepath.Join(dir, "net/2")))
	wait.For(t, "version 1 to answer again", func() bool { return served.Load() == 1 })
	stop()
	load.Wait()
	nodetest.Settled(t, nd, "net")

	order := func(verb string) {
		t.Helper()
		response, err := http.Post(fmt.Sprintf("http://%s/v2/repository/models/net/%s", gateway, verb), "", nil)
		must.OK(t, err)
		response.Body.Close()
		if response.StatusCode != http.StatusOK {
			t.Errorf("%s: %s", verb, response.Status)
		}
	}
	order("unload")
	if _, err := nd.Function("net"); err == nil {
		t.Error("the function is there after unload")
	}
	order("load")
	nodetest.Serving(t, nd, "net")
	must.OK(t, os.RemoveAll(filepath.Join(dir, "net")))
	wait.For(t, "the function to go with its folder", func() bool { _, err := nd.Function("net"); return err != nil })
}
