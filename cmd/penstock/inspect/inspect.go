// Package inspect drafts the card of a model's file, and keeps it.
package inspect

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/penstock/penstock/cmd/penstock/apart"
	"github.com/penstock/penstock/internal/atomicfile"
	"github.com/penstock/penstock/libml/onnx"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/models/draft"
	"github.com/penstock/penstock/models/onnxfile"
)

// Result is what is known of a file.
type Result struct {
	File     *onnxfile.Model `json:"file"`
	Observed *draft.Observed `json:"observed"`
	draft.Card

	took    time.Duration
	options draft.Options
}

// Extension is that of model files.
const Extension = ".onnx"

// File runs a model, and drafts a card that lies beside it and has its name.
func File(ctx context.Context, file string, options draft.Options) (*Result, error) {
	file, err := filepath.Abs(file)
	if err != nil {
		return nil, fmt.Errorf("find model: %w", err)
	}
	model, err := onnxfile.Read(file)
	if err != nil {
		return nil, fmt.Errorf("inspect model: %w", err)
	}
	if _, err := onnxfile.DataFiles(file); err != nil {
		return nil, fmt.Errorf("inspect %s: %w", file, err)
	}
	args := []string{Verb, file}
	for _, n := range options.Size {
		args = append(args, strconv.FormatInt(n, 10))
	}
	output, err := apart.Run(ctx, args...)
	if err != nil {
		return nil, fmt.Errorf("inspect %s: %w", file, err)
	}
	var seen observation
	if err := json.Unmarshal(output, &seen); err != nil {
		return nil, fmt.Errorf("inspect %s: read what its process printed: %w", file, err)
	}

	r := &Result{File: model, Observed: seen.Observed, took: seen.Took, options: options}
	if err := r.draft(filepath.Base(file), CardName(file)); err != nil {
		return nil, err
	}
	return r, nil
}

// SaveAs saves the card in another folder than the model's, and under another name.
func (r *Result) SaveAs(path, file, name string) error {
	if err := r.draft(file, name); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("save card: %w", err)
	}
	return Save(path, r.Text)
}

// draft drafts the card with that path of the model, and that name.
func (r *Result) draft(model, name string) error {
	card, err := draft.Write(name, model, r.File, r.Observed, r.took, r.options)
	if err != nil {
		return err
	}
	r.Card = *card
	return nil
}

// CardName makes the name of a card from that of a file.
func CardName(file string) string {
	name := strings.ToLower(strings.TrimSuffix(filepath.Base(file), Extension))
	name = strings.Trim(regexp.MustCompile(`[^a-z0-9_-]+`).ReplaceAllString(name, "-"), "-_")
	return name[:min(len(name), 64)]
}

// CardFile returns the place of a model's card: beside the model.
func CardFile(file string) string { return strings.TrimSuffix(file, Extension) + ".yaml" }

// Verb is the verb of the process that runs a model. Its main calls Observe.
const Verb = "try-model"

// observation is what that process prints.
type observation struct {
	Observed *draft.Observed
	Took     time.Duration // of one image
}

// Observe runs the model of a file, and returns what is to be printed.
func Observe(file string, size []int64) ([]byte, error) {
	model, err := onnxfile.Read(file)
	if err != nil {
		return nil, err
	}
	e, err := onnx.NewExperiment(file, model)
	if err != nil {
		return nil, err
	}
	timed := &stopwatch{runner: e}
	observed, err := draft.Observe(model, size, timed)
	if err = errors.Join(err, e.Close()); err != nil {
		return nil, err
	}
	return json.Marshal(observation{observed, timed.shortest})
}

// stopwatch measures the shortest successful run. The first one also allocates memory.
type stopwatch struct {
	runner   draft.Runner
	shortest time.Duration
}

func (s *stopwatch) Run(inputs []draft.Tensor) ([]draft.Tensor, error) {
	began := time.Now()
	outputs, err := s.runner.Run(inputs)
	if took := time.Since(began); err == nil && (s.shortest == 0 || took < s.shortest) {
		s.shortest = took
	}
	return outputs, err
}

// ErrCard is returned by Save if there is a card that Save must not overwrite.
var ErrCard = errors.New("there is a card that was edited")

// Save writes a draft, and replaces an earlier one.
func Save(path, text string) error {
	old, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return fmt.Errorf("save card: %w", err)
	case !bytes.HasPrefix(old, []byte(draft.Marker)):
		return fmt.Errorf("save card: %w: %s; edit it, or move it away", ErrCard, path)
	}
	if err := atomicfile.Replace(path, []byte(text), 0o644); err != nil {
		return fmt.Errorf("save card: %w", err)
	}
	if _, err := models.ReadCard(path); err != nil {
		return fmt.Errorf("the drafted card is not complete: %w", err)
	}
	return nil
}
