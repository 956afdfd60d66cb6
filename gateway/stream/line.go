package stream

import (
	"time"

	"github.com/penstock/penstock/gateway/functions"
	"github.com/penstock/penstock/wire"
)

// Line is a Result as a line of JSON.
type Line struct {
	Stream   string `json:"stream"`
	Function string `json:"function"`
	Frame    uint64 `json:"frame"`
	// PTS is the source's time of the frame, in seconds.
	PTS       float64 `json:"pts"`
	Width     int     `json:"width"`
	Height    int     `json:"height"`
	AgeMS     float64 `json:"age_ms"`
	Status    string  `json:"status"`
	Error     string  `json:"error,omitempty"`
	Skipped   uint64  `json:"skipped,omitempty"`
	Model     uint32  `json:"model_version,omitempty"`
	LatencyMS float64 `json:"latency_ms,omitempty"`
	// StagesMS has the names of wire.StageNames.
	StagesMS map[string]float64 `json:"stages_ms,omitempty"`
	Found    []functions.Item   `json:"found,omitempty"`
	Values   []float32          `json:"values,omitempty"`
	Tensors  []wire.Tensor      `json:"tensors,omitempty"`
}

func millis(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// Line is the result without its picture.
func (r *Result) Line() Line {
	size := r.Frame.Image.Bounds().Size()
	l := Line{
		Stream: r.Stream, Function: r.Function, Frame: r.Frame.Number, PTS: r.Frame.PTS.Seconds(), Width: size.X, Height: size.Y,
		AgeMS: millis(r.Age), Status: r.Status, Skipped: r.Skipped, Model: r.Answer.ModelVersion, LatencyMS: millis(r.Answer.Latency),
		Found: r.Items, Values: r.Answer.Values, Tensors: r.Answer.Tensors,
	}
	if r.Err != nil {
		l.Error = r.Err.Error()
		return l
	}
	l.StagesMS = map[string]float64{}
	for i, t := range r.Answer.Stages.Times() {
		l.StagesMS[wire.StageNames[i]] = millis(t)
	}
	return l
}
