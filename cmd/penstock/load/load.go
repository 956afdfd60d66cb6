// Package load is `penstock load`: it sends traffic to a running node and prints the report.
package load

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/penstock/penstock/client"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/libml/frameworks"
	"github.com/penstock/penstock/libml/reference"
	"github.com/penstock/penstock/loadgen"
	"github.com/penstock/penstock/loadgen/capture"
	"github.com/penstock/penstock/loadgen/tabular"
	"github.com/penstock/penstock/loadgen/traffic"
	"github.com/penstock/penstock/models"
)

// Options of a run. Errors name the flags of `penstock load`.
type Options struct {
	// Status reads the status of the node.
	Status  func(context.Context) (control.Status, error)
	Traffic traffic.Options
	// Check compares the answers with those of the same model run in this process.
	Check  bool
	Output string // table or json
	// Draw is the folder for the pictures with the results drawn on them; empty for none.
	Draw string
	// KeyFile has the key of the functions; empty: each function's own file is read.
	KeyFile string
	// FiguresOnly leaves out what the models found in the pictures.
	FiguresOnly bool
}

// Validate checks the options that need no node.
func (o *Options) Validate() error {
	t := &o.Traffic
	switch {
	case t.Spec.Duration <= 0:
		return fmt.Errorf("--duration %v: want more than 0, like 30s", t.Spec.Duration)
	case t.Spec.Warmup < 0:
		return fmt.Errorf("--warmup %v: want 0 or more", t.Spec.Warmup)
	case t.Deadline < 0:
		return fmt.Errorf("--deadline %v: want 0 or more; 0 for none", t.Deadline)
	case t.Streams < 1:
		return fmt.Errorf("--streams %d: want at least 1", t.Streams)
	}
	return nil
}

// Run sends the traffic and prints the report, which it also returns. The error is a loadgen.Faults
// if a request was lost or an answer was wrong.
func Run(ctx context.Context, o Options) (*loadgen.Report, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	now, err := o.Status(ctx)
	if err != nil {
		return nil, err
	}
	o.Traffic.Warn = func(line string) { fmt.Fprintln(os.Stderr, "penstock load:", line) }
	if o.Check {
		o.Traffic.Reference = Reference
	}
	run, err := traffic.New(now, o.Traffic)
	if err != nil {
		return nil, err
	}
	defer run.Close()

	progress := loadgen.NewProgress(os.Stderr, tabular.WidthOf(os.Stderr))
	options := loadgen.Options{
		Dial:    loadgen.DialClient(client.Options{KeyFile: o.KeyFile}),
		Status:  o.Status,
		Observe: progress.Show,
	}
	if o.Check {
		options.Reference = run
	}
	report, err := loadgen.Run(ctx, run.Spec, options)
	progress.End()
	if err != nil {
		return nil, err
	}
	if err := Print(report, o.Output); err != nil {
		return nil, err
	}
	if !o.FiguresOnly {
		if err := o.show(run, report); err != nil {
			return nil, err
		}
	}
	if faults := report.Faults(); len(faults) > 0 {
		return report, loadgen.Faults(faults)
	}
	return report, nil
}

// Reference runs the model of a card in this process.
func Reference(card *models.Card) (traffic.Model, error) {
	return reference.New(card, frameworks.New)
}

// Print prints a report on standard output, as table or json.
func Print(r *loadgen.Report, output string) error {
	if output == "json" {
		return r.WriteJSON(os.Stdout)
	}
	return r.WriteTable(os.Stdout, tabular.Width(os.Stdout))
}

// show prints what the models found in the photos, and draws it if Draw is set.
func (o *Options) show(run *traffic.Traffic, report *loadgen.Report) error {
	seen, err := run.Inspect(report)
	if err != nil {
		return err
	}
	out := os.Stdout
	if o.Output != "table" {
		out = os.Stderr
	}
	for _, s := range seen {
		if s.Asked {
			fmt.Fprintln(out, s)
		}
	}
	if o.Draw == "" || len(seen) == 0 {
		return nil
	}
	paths, err := loadgen.WritePictures(o.Draw, seen)
	if err != nil {
		return err
	}
	fmt.Fprintln(out, "drawn:", strings.Join(paths, " "))
	return nil
}

// captureGrace is how long PlayCapture waits for another answer.
const captureGrace = 2 * time.Second

// PlayCapture plays a capture to a node, and writes how many answers came, as table or json.
func PlayCapture(ctx context.Context, w io.Writer, node control.Status, file string, speed float64, output string) error {
	if !(speed > 0 && speed <= 1e6) {
		return fmt.Errorf("--speed %v: want more than 0, at most 1000000", speed)
	}
	o := capture.Options{File: file, Speed: speed, Grace: captureGrace}
	for _, f := range node.Functions {
		o.Functions = append(o.Functions, capture.Function{Name: f.Name, Addr: f.ClientAddr()})
	}
	report, err := capture.Play(ctx, o)
	if err != nil {
		return err
	}
	if output == "json" {
		encoder := json.NewEncoder(w)
		encoder.SetIndent("", "  ")
		return encoder.Encode(report)
	}
	return report.WriteTable(w)
}
