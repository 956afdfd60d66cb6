package capi

import (
	"encoding/json"
	"fmt"

	"github.com/penstock/penstock/models"
)

// cardFile is a card with the keys of its file, for penstock_environment.card. It also has the
// defaults, and its paths are absolute.
type cardFile struct {
	Name        string               `json:"name"`
	Version     uint32               `json:"version"`
	Framework   string               `json:"framework,omitempty"`
	Command     []string             `json:"command,omitempty"`
	Model       string               `json:"model,omitempty"`
	Input       *cardInput           `json:"input,omitempty"`
	Inputs      []cardTensor         `json:"inputs,omitempty"`
	Constants   map[string][]float64 `json:"constants,omitempty"`
	Outputs     []cardTensor         `json:"outputs"`
	Batches     []int                `json:"batches"`
	SLO         float64              `json:"slo"` // seconds
	KneePercent float64              `json:"knee_percent,omitempty"`
	Knees       []cardKnee           `json:"knees,omitempty"`
	Threads     int                  `json:"threads"`
	Decoder     map[string]any       `json:"decoder"`
	Labels      []string             `json:"labels,omitempty"`

	// File is the card's file, Dir its folder.
	File string `json:"file"`
	Dir  string `json:"dir"`
}

// cardInput is the card's input.
type cardInput struct {
	Name            string     `json:"name,omitempty"`
	Size            [3]int     `json:"size"`
	Wire            cardFormat `json:"wire"`
	Tensor          cardFormat `json:"tensor"`
	ReverseChannels bool       `json:"reverse_channels"`
	Mean            []float32  `json:"mean,omitempty"`
	Std             []float32  `json:"std,omitempty"`
}

// cardFormat is the type of elements and the order of axes.
type cardFormat struct {
	Type   models.DType  `json:"type"`
	Layout models.Layout `json:"layout"`
}

// cardTensor is one of the card's inputs or outputs.
type cardTensor struct {
	Name  string       `json:"name"`
	Type  models.DType `json:"type"`
	Shape []int64      `json:"shape"`
}

// cardKnee is one of the card's knees.
type cardKnee struct {
	Batch   int     `json:"batch"`
	Percent float64 `json:"percent"`
}

// cardJSON returns penstock_environment.card.
func cardJSON(c *models.Card) ([]byte, error) {
	in := &c.Input
	card := cardFile{
		Name: c.Name, Version: c.Version, Framework: c.Framework, Command: c.Command, Model: c.Model,
		Constants: c.Constants, Batches: c.Batches, SLO: c.SLO.Seconds(), KneePercent: c.KneePercent, Threads: c.Threads,
		Decoder: map[string]any{}, Labels: c.Labels, File: c.File, Dir: c.Dir,
	}
	if len(c.Inputs) == 0 {
		card.Input = &cardInput{
			Name: in.Name, Size: [3]int{in.Height, in.Width, in.Channels},
			Wire: cardFormat{in.WireType, in.WireLayout}, Tensor: cardFormat{in.TensorType, in.TensorLayout},
			ReverseChannels: in.ReverseChannels, Mean: in.Mean, Std: in.Std,
		}
	}
	for _, t := range c.Inputs {
		card.Inputs = append(card.Inputs, cardTensor{t.Name, t.Type, t.Shape})
	}
	for _, t := range c.Outputs {
		card.Outputs = append(card.Outputs, cardTensor{t.Name, t.Type, t.Shape})
	}
	for _, k := range c.Knees {
		card.Knees = append(card.Knees, cardKnee(k))
	}
	for key, value := range c.Decoder.Params {
		card.Decoder[key] = value
	}
	card.Decoder["name"] = c.Decoder.Name
	text, err := json.Marshal(card)
	if err != nil {
		return nil, fmt.Errorf("write card %s as JSON: %w", c.Name, err)
	}
	return text, nil
}
