package suites

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/tinymodel"
	"github.com/penstock/penstock/internal/testing/venv"
)

// examples names the folder of the example programs of Triton's Python client (src/python/examples of its repository). No registry
// that CI may use has them.
const examples = "PENSTOCK_TRITON_EXAMPLES"

// The example programs of Triton's Python client get what they want, except those in docs/coming-from.md. The models have the names
// and tensors that they ask for.
func TestTritonExamples(t *testing.T) {
	programs := os.Getenv(examples)
	if programs == "" {
		t.Skipf("not on this machine: %s names no folder with the example programs of Triton's client", examples)
	}
	nd, gateway := start(t)
	dir, _ := venv.Make(t, "triton_examples.txt")
	add(t, nd, gateway, dir, "simple", "", sums(tinymodel.I32).Encode())
	add(t, nd, gateway, dir, "simple_int8", "", sums(tinymodel.I8).Encode())
	add(t, nd, gateway, dir, "simple_sequence", sequenceCard, sequence().Encode())
	add(t, nd, gateway, dir, "densenet_onnx", densenetCard, densenet().Encode())
	clothes, err := os.ReadFile("../../models/zoo/fashion/model.onnx")
	must.OK(t, err)
	add(t, nd, gateway, dir, "clothes", clothesCard, clothes)
	picture, err := filepath.Abs(photo)
	must.OK(t, err)

	for _, words := range []string{
		"simple_http_infer_client", "simple_http_infer_client --request-compression-algorithm gzip --response-compression-algorithm gzip",
		"simple_http_infer_client --request-compression-algorithm deflate --response-compression-algorithm deflate",
		"simple_http_async_infer_client", "simple_http_aio_infer_client", "simple_http_shm_client", "reuse_infer_objects_client -i http",
		"simple_grpc_infer_client", "simple_grpc_infer_client --grpc-compression-algorithm gzip", "simple_grpc_infer_client --grpc-compression-algorithm deflate",
		"simple_grpc_async_infer_client", "simple_grpc_aio_infer_client", "simple_grpc_shm_client", "reuse_infer_objects_client -i grpc",
		"simple_grpc_keepalive_client", "simple_grpc_custom_args_client", "grpc_explicit_int_content_client", "grpc_explicit_int8_content_client",
		"simple_http_sequence_sync_infer_client", "simple_grpc_sequence_sync_infer_client", "simple_grpc_sequence_stream_infer_client",
		"simple_grpc_aio_sequence_stream_infer_client", "grpc_client",
		"image_client -m clothes -c 3 -b 2 PHOTO", "image_client -m clothes -i grpc --streaming PHOTO",
		"image_client -m clothes -i grpc --async PHOTO", "grpc_image_client -m clothes -c 3 -b 2 PHOTO",
		"ensemble_image_client -m clothes -c 3 PHOTO", "ensemble_image_client -m clothes -i grpc PHOTO",
	} {
		t.Run(words, func(t *testing.T) {
			program, arguments, _ := strings.Cut(words, " ")
			command := exec.CommandContext(t.Context(), filepath.Join(dir, "bin/python"), filepath.Join(programs, program+".py"), "-u", gateway)
			command.Args = append(command.Args, strings.Fields(strings.ReplaceAll(arguments, "PHOTO", picture))...)
			out, err := command.CombinedOutput()
			t.Logf("%s", out)
			if err != nil || strings.Contains(strings.ToLower(string(out)), "failed") {
				t.Error(err)
			}
		})
	}
}

// sums is Triton's model simple: the sum and the difference of two inputs. ONNX Runtime has them for 32 bits, not for 8.
func sums(element tinymodel.Type) (m tinymodel.Model) {
	x := []int64{tinymodel.Dynamic, 16}
	cast := func(from, to string, element tinymodel.Type) {
		m.Nodes = append(m.Nodes, tinymodel.Node{Op: "Cast", Inputs: []string{from}, Outputs: []string{to}, Attribute: "to", Int: int64(element)})
	}
	for _, number := range []string{"0", "1"} {
		m.Inputs = append(m.Inputs, tinymodel.Value{Name: "INPUT" + number, Type: element, Dims: x})
		m.Outputs = append(m.Outputs, tinymodel.Value{Name: "OUTPUT" + number, Type: element, Dims: x})
		cast("INPUT"+number, "in"+number, tinymodel.I32)
	}
	m.Nodes = append(m.Nodes,
		tinymodel.Node{Op: "Add", Inputs: []string{"in0", "in1"}, Outputs: []string{"out0"}},
		tinymodel.Node{Op: "Sub", Inputs: []string{"in0", "in1"}, Outputs: []string{"out1"}})
	cast("out0", "OUTPUT0", element)
	cast("out1", "OUTPUT1", element)
	return m
}

// sequence is Triton's model simple_sequence: the first answer of a sequence is its input and 1, others are their inputs. Triton says
// with a control input which request is the first. Here it is the one whose state is zero.
func sequence() tinymodel.Model {
	x := []int64{tinymodel.Dynamic, 1}
	return tinymodel.Model{
		Inputs:  []tinymodel.Value{{Name: "INPUT", Type: tinymodel.I32, Dims: x}, {Name: "before", Type: tinymodel.I32, Dims: x}},
		Outputs: []tinymodel.Value{{Name: "OUTPUT", Type: tinymodel.I32, Dims: x}, {Name: "after", Type: tinymodel.I32, Dims: x}},
		Nodes: []tinymodel.Node{
			{Op: "Cast", Inputs: []string{"one"}, Outputs: []string{"unit"}, Attribute: "to", Int: int64(tinymodel.I32)},
			{Op: "Sub", Inputs: []string{"unit", "before"}, Outputs: []string{"first"}},
			{Op: "Add", Inputs: []string{"INPUT", "first"}, Outputs: []string{"OUTPUT"}},
			{Op: "Add", Inputs: []string{"before", "first"}, Outputs: []string{"after"}},
		},
		Weights: []tinymodel.Weights{{Name: "one", Dims: []int64{1}, Values: []float32{1}}},
	}
}

const sequenceCard = `inputs: [{name: INPUT, type: i32, shape: [1]}]
outputs:
  - {name: OUTPUT, type: i32, shape: [1]}
  - {name: after, type: i32, shape: [1]}
state: {before: after}
decoder: {name: tensors}
slo: 20s
`

// densenet has the tensors of Triton's model densenet_onnx.
func densenet() tinymodel.Model {
	return tinymodel.Model{
		Inputs:  []tinymodel.Value{{Name: "data_0", Type: tinymodel.F32, Dims: []int64{tinymodel.Dynamic, 3, 224, 224}}},
		Outputs: []tinymodel.Value{{Name: "fc6_1", Type: tinymodel.F32, Dims: []int64{tinymodel.Dynamic, 3, 1, 1}}},
		Nodes:   []tinymodel.Node{{Op: "GlobalMaxPool", Inputs: []string{"data_0"}, Outputs: []string{"fc6_1"}}},
	}
}

const densenetCard = `inputs: [{name: data_0, shape: [3, 224, 224]}]
outputs: [{name: fc6_1, shape: [3, 1, 1]}]
decoder: {name: tensors}
slo: 20s
`

const clothesCard = `input:
  name: image
  size: [28, 28, 1]
  wire: {type: u8, layout: hwc}
  tensor: {type: f32, layout: chw}
outputs: [{name: prob, shape: [10]}]
decoder: {name: raw}
slo: 20s
labels: [T-shirt/top, trouser, pullover, dress, coat, sandal, shirt, sneaker, bag, ankle boot]
`
