// Package traffic makes the traffic for the functions of a node: their rates and
// pictures, and the models that check their answers.
package traffic

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/loadgen"
	"github.com/penstock/penstock/loadgen/answer"
	"github.com/penstock/penstock/loadgen/arrival"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/models/picture"
	"github.com/penstock/penstock/models/zoo"
	"github.com/penstock/penstock/wire"
)

// Options are the options of `penstock load` for its traffic. Errors name its flags.
type Options struct {
	// Spec has the times and the seed; New adds the functions and the schedule.
	Spec loadgen.Spec
	// Rates are requests per second by function; if empty, each function gets defaultRate.
	Rates    map[string]string
	Arrivals string
	Streams  int
	Schedule string // file; empty for none
	Pictures string // folder; the built-in pictures if empty
	Models   []string
	Deadline time.Duration
	Priority uint8
	// Reference runs a card's model in this process; nil leaves answers unchecked.
	Reference func(*models.Card) (Model, error)
	// Warn is called with each reason why answers are not checked.
	Warn func(line string)
}

// defaultRate is the rate of a function without one, in requests per second.
const defaultRate = 10

// Model is the interface of reference.Model.
type Model interface {
	Answer(picture []byte) (payload []byte, kind uint8, err error)
	Close() error
}

// Traffic is a run with everything that it needs. It is the run's loadgen.Reference.
type Traffic struct {
	Spec loadgen.Spec

	options   Options
	models    map[string]Model // by the file of their card
	functions []function       // in Spec's order
}

type function struct {
	name   string
	card   *models.Card // nil if no card was found: answers are unchecked
	photos *picture.Photos
}

// New makes traffic for the functions of the node. The caller closes it.
func New(node control.Status, o Options) (_ *Traffic, err error) {
	t := &Traffic{Spec: o.Spec, options: o, models: map[string]Model{}}
	defer func() {
		if err != nil {
			t.Close()
		}
	}()
	process, err := arrival.Parse(o.Arrivals)
	if err != nil {
		return nil, err
	}
	functions, err := o.fromNetwork(node.Functions)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, f := range functions {
		names = append(names, f.Name)
	}
	rates, err := parseRates(o.Rates, names)
	if err != nil {
		return nil, err
	}
	if t.Spec.Schedule, err = readSchedule(o.Schedule, names); err != nil {
		return nil, err
	}
	photos, err := readPhotos(o.Pictures)
	if err != nil {
		return nil, err
	}
	for _, f := range functions {
		rate, ok := rates[f.Name]
		if !ok {
			continue
		}
		if err := t.add(f, rate, process, photos); err != nil {
			return nil, err
		}
	}
	return t, nil
}

// Close closes the models.
func (t *Traffic) Close() {
	for _, m := range t.models {
		m.Close()
	}
}

// Answer implements loadgen.Reference.
func (t *Traffic) Answer(function string, picture []byte) (answer.Answer, error) {
	model := t.model(function)
	if model == nil {
		return answer.Answer{}, loadgen.ErrNoReference
	}
	payload, kind, err := model.Answer(picture)
	return answer.Answer{Kind: wire.Kind(kind), Payload: payload}, err
}

// model returns the model that checks a function's answers; nil if there is none.
func (t *Traffic) model(function string) Model {
	for _, f := range t.functions {
		if f.name == function && f.card != nil {
			return t.models[f.card.File]
		}
	}
	return nil
}

// Inspect returns what a run of this traffic found in the photos.
func (t *Traffic) Inspect(report *loadgen.Report) ([]loadgen.Seen, error) {
	var views []loadgen.View
	for i, f := range t.functions {
		if f.photos == nil || f.card == nil {
			continue
		}
		views = append(views, loadgen.View{
			Function: f.name, Photos: f.photos, Answers: report.Functions[i].Answers, Labels: f.card.Labels,
		})
	}
	return loadgen.Inspect(views)
}

// fromNetwork returns the functions that take requests: one for cameras does not.
func (o *Options) fromNetwork(all []control.FunctionStatus) ([]control.FunctionStatus, error) {
	var out []control.FunctionStatus
	for _, f := range all {
		_, named := o.Rates[f.Name]
		switch {
		case f.Camera == nil:
			out = append(out, f)
		case named:
			return nil, fmt.Errorf("%s takes pictures of cameras only (format: %s); choose another function", f.Name, f.Camera.Format)
		}
	}
	if len(out) == 0 {
		return nil, errors.New("the node has no function that takes requests from the network")
	}
	return out, nil
}

// parseRates returns the rates of those named functions that get traffic.
func parseRates(given map[string]string, names []string) (map[string]float64, error) {
	rates := map[string]float64{}
	if len(given) == 0 {
		for _, name := range names {
			rates[name] = defaultRate
		}
	}
	for name, text := range given {
		if !slices.Contains(names, name) {
			return nil, fmt.Errorf("--rate %s=%s: the node has no function %q; it has: %s", name, text, name, strings.Join(names, ", "))
		}
		rate, err := strconv.ParseFloat(text, 64)
		if err != nil || !(rate >= 0 && rate <= 1e7) {
			return nil, fmt.Errorf("--rate %s=%s: want 0 to 10000000 requests per second", name, text)
		}
		rates[name] = rate
	}
	return rates, nil
}

// readSchedule reads a file of rates for the named functions. It returns nil if file
// is empty.
func readSchedule(file string, names []string) (s arrival.Schedule, err error) {
	if file == "" {
		return nil, nil
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read schedule: %w", err)
	}
	if s, err = arrival.ParseSchedule(file, data); err != nil {
		return nil, err
	}
	return s, s.CheckFunctions(names)
}

// add adds one function's traffic.
func (t *Traffic) add(f control.FunctionStatus, rate float64, process arrival.Process, photos []picture.Photo) error {
	o := &t.options
	made := function{name: f.Name}
	pictures, err := o.pictures(&made, f.Input, photos)
	if err != nil {
		return err
	}
	tolerance := answer.Default
	made.card, err = zoo.Registry{Dirs: o.Models}.Find(f.Model)
	switch {
	case errors.Is(err, zoo.ErrUnknownModel):
		if o.Reference != nil {
			o.Warn(fmt.Sprintf("answers of %s are not checked: no card %q found; name its folder with --models", f.Name, f.Model))
		}
	case err != nil:
		return err
	case o.Reference == nil:
	case made.card.Framework == "" || made.card.SeparateProgram() != "":
		o.Warn(fmt.Sprintf("answers of %s are not checked: %s is a separate program", f.Name, f.Model))
	default:
		if t.models[made.card.File] == nil {
			model, err := o.Reference(made.card)
			if err != nil {
				return fmt.Errorf("run %s in this process: %w", f.Model, err)
			}
			t.models[made.card.File] = model
		}
		if made.card.Input.TensorType == models.F16 {
			tolerance = answer.Half
		}
		if threshold, ok := made.card.Decoder.Params["score_threshold"].(float64); ok {
			tolerance.Threshold = threshold
		}
	}
	t.functions = append(t.functions, made)
	t.Spec.Functions = append(t.Spec.Functions, loadgen.Function{
		Name: f.Name,
		Addr: f.ClientAddr().String(), KeyFile: f.KeyFile,
		SLO: time.Duration(f.SLOMillis * float64(time.Millisecond)), PerSecond: rate, Arrivals: process,
		Streams: o.Streams, Pictures: pictures, Deadline: o.Deadline, Priority: o.Priority, Tolerance: tolerance,
	})
	return nil
}
