package openinference

import (
	"fmt"
	"strings"
	"time"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/wire"
)

// Config is a function's configuration in Triton's form, for clients that read it before they send.
type Config struct {
	Name         string         `json:"name"`
	Platform     string         `json:"platform"`
	Backend      string         `json:"backend"`
	MaxBatchSize int            `json:"max_batch_size"`
	Input        []TensorConfig `json:"input"`
	Output       []TensorConfig `json:"output"`
	// SequenceBatching is there if the model has state.
	SequenceBatching *struct{} `json:"sequence_batching,omitempty"`
}

// TensorConfig describes a tensor of one image; -1 is a dimension that varies.
type TensorConfig struct {
	Name     string  `json:"name"`
	DataType string  `json:"data_type"`
	Format   string  `json:"format,omitempty"` // of a picture
	Dims     []int64 `json:"dims"`
}

// Configure returns the configuration of a function.
func Configure(name string, card *models.Card) Config {
	m := Describe(name, card)
	c := Config{Name: name, Platform: m.Platform, Backend: "penstock", MaxBatchSize: MaxImages, Input: perImage(m.Inputs), Output: perImage(m.Outputs)}
	if len(card.Inputs) == 0 {
		c.Input[0].Format = "FORMAT_N" + strings.ToUpper(string(card.Input.WireLayout))
	}
	if len(card.State) > 0 {
		c.MaxBatchSize, c.SequenceBatching = 1, &struct{}{}
	}
	return c
}

func perImage(tensors []TensorMetadata) []TensorConfig {
	list := []TensorConfig{}
	for _, t := range tensors {
		as := "TYPE_" + t.Datatype
		if t.Datatype == "BYTES" {
			as = "TYPE_STRING"
		}
		list = append(list, TensorConfig{Name: t.Name, DataType: as, Dims: t.Shape[1:]})
	}
	return list
}

// Statistics are the counters of a function since its node started, of all its clients.
type Statistics struct {
	Name    string `json:"name"`
	Version string `json:"version"`
	// InferenceCount is the number of images that the model ran, ExecutionCount the number of their batches.
	InferenceCount uint64              `json:"inference_count"`
	ExecutionCount uint64              `json:"execution_count"`
	InferenceStats map[string]Duration `json:"inference_stats"`
}

// Duration is the sum of the times of so many requests.
type Duration struct {
	Count       uint64 `json:"count"`
	Nanoseconds uint64 `json:"ns"`
}

// counted are the names of the stages of control.StageNames in the protocol.
var counted = map[string]string{"aggregate": "queue", "queue": "queue", "gather": "compute_input", "infer": "compute_infer", "reply": "compute_output"}

// Count returns the statistics of a function.
func Count(name string, card *models.Card, sample *control.FunctionSample) Statistics {
	s := Statistics{Name: name, Version: fmt.Sprint(card.Version), InferenceCount: sample.Ran, ExecutionCount: sample.Batches, InferenceStats: map[string]Duration{}}
	var success, fail Duration
	for status, n := range sample.Results {
		if wire.Status(status) == wire.StatusOK {
			success.Count = n
		} else {
			fail.Count += n
		}
	}
	for _, name := range []string{"queue", "compute_input", "compute_infer", "compute_output"} {
		s.InferenceStats[name] = Duration{}
	}
	for i, stage := range sample.Stages {
		t := uint64(stage.Seconds * float64(time.Second))
		success.Nanoseconds += t
		if name, ok := counted[control.StageNames[i]]; ok {
			s.InferenceStats[name] = Duration{stage.Count, s.InferenceStats[name].Nanoseconds + t}
		}
	}
	s.InferenceStats["success"], s.InferenceStats["fail"] = success, fail
	return s
}
