//go:build cgo

package onnx

import (
	"errors"
	"strings"
	"testing"

	"github.com/penstock/penstock/models"
)

func TestSummarize(t *testing.T) {
	card := &models.Card{
		Model:   "/m/net.onnx",
		Outputs: []models.Tensor{{Name: "a", Type: models.F32, Shape: []int64{3}}, {Name: "b", Type: models.F32, Shape: []int64{1, 14, 14}}},
	}
	for message, want := range map[string]string{
		"/shared/onnxruntime/core/graph/model.cc:192 onnxruntime::Model::Model(onnx::ModelProto&&, const PathString&, const std::vector<int>* , const logging::Logger&) Unsupported model IR version: 14, max supported IR version: 13":                                                                                                                              "Unsupported model IR version: 14, max supported IR version: 13; export the model with an older version of the onnx package, or lower ir_version in the file",
		"Non-zero status code returned while running Mul node. Name:'m' Status Message: /shared/onnxruntime/core/framework/op_kernel.cc:83 virtual OrtValue* onnxruntime::OpKernelContext::OutputMLValue(int, const onnxruntime::TensorShape&) status.IsOK() was false. OrtValue shape verification failed. Current shape:{1,1,14,14} Requested shape:{1,1,224,224}": `output "b": the card says [1, 14, 14], the model gives [1, 224, 224]`,
		"The output tensor has shape {2,3} but the computed output shape for this run is {2,4}":                                                                 `output "a": the card says [3], the model gives [4]`,
		"The output tensor has shape {2,3} but the computed output shape for this run is {1,3}":                                                                 `output "a": the card says [2, 3], the model gives [1, 3]; if its rows depend on what is in the image, want rows: {max: N}`,
		"/a/onnxruntime/core/x.h:7 auto onnxruntime::F::operator()(int) const It failed. /a/onnxruntime/core/y.cc:8 void onnxruntime::g(int (*)(int)) At last.": "It failed. At last.",
		"Fatal error: TRT:EfficientNMS_TRT(-1) is not a registered function/op":                                                                                 "the model has the operator TRT:EfficientNMS_TRT, which is not part of ONNX Runtime",
		"a message without a position /m/onnxruntime/x.cc":                                                                                                      "a message without a position /m/onnxruntime/x.cc",
	} {
		got := summarize(card, errors.New(message)).Error()
		if got != want && !(strings.HasPrefix(want, "the model has") && strings.HasPrefix(got, want)) {
			t.Errorf("%q\nis  %q\nnot %q", message, got, want)
		}
	}
}
