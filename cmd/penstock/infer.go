package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/rs/zerolog"
	"github.com/spf13/cobra"

	"github.com/penstock/penstock/gateway/functions"
	"github.com/penstock/penstock/models/picture"
	"github.com/penstock/penstock/wire"
)

// inferred is one line of penstock infer -o json.
type inferred struct {
	File      string           `json:"file"`
	LatencyMS float64          `json:"latency_ms"`
	Model     uint32           `json:"model_version"`
	Found     []functions.Item `json:"found,omitempty"`
	Values    []float32        `json:"values,omitempty"`
	Tensors   []wire.Tensor    `json:"tensors,omitempty"`
}

type inferOptions struct {
	dir, output string
	timeout     time.Duration
}

func inferCommand() *cobra.Command {
	var o inferOptions
	cmd := &cobra.Command{
		Use:   "infer FUNCTION FILE...",
		Short: "Send pictures to a function of the running node and print the answers",
		Long: `Sends each file to a function and prints what was found. A file is a JPEG, PNG, GIF, WebP or
BMP picture, which is resized to the model's input, or exactly the bytes that the function takes on
the wire; - is standard input. Boxes are in the picture's pixels.`,
		Example: `  penstock infer face cat.jpg
  penstock infer detect *.jpg -o json | jq -r '.found[].label'`,
		Args: cobra.MinimumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.run(cmd, args[0], args[1:])
		},
	}
	cmd.Flags().StringVar(&o.dir, "runtime-dir", "", nodeUsage)
	cmd.Flags().DurationVar(&o.timeout, "timeout", 0, "how long an answer is useful; the function's objective if left out")
	outputFlag(cmd, &o.output, "text", "json")
	return cmd
}

// nodeFunctions returns the functions of the node that nodeFolder finds.
func nodeFunctions(ctx context.Context, given string) (*functions.Set, error) {
	folder, err := nodeFolder(given)
	if err != nil {
		return nil, err
	}
	set := functions.NewSet(folder, nil, zerolog.Nop())
	return set, set.Refresh(ctx)
}

func (o *inferOptions) run(cmd *cobra.Command, function string, files []string) error {
	if o.timeout < 0 || o.timeout > functions.MaxWait {
		return fmt.Errorf("timeout %s: want a duration up to %s", o.timeout, functions.MaxWait)
	}
	set, err := nodeFunctions(cmd.Context(), o.dir)
	if err != nil {
		return err
	}
	f, err := set.Function(function)
	if err != nil {
		return err
	}

	write := func(r *inferred) error { return r.print(cmd.OutOrStdout()) }
	if o.output == "json" {
		lines := json.NewEncoder(cmd.OutOrStdout())
		write = func(r *inferred) error { return lines.Encode(r) }
	}
	for _, file := range files {
		result, err := inferFile(cmd.Context(), f, file, o.timeout)
		if err != nil {
			return fmt.Errorf("infer %s: %w", file, err)
		}
		if err := write(result); err != nil {
			return err
		}
	}
	return nil
}

// inferFile sends a file and waits for the answer.
func inferFile(ctx context.Context, f *functions.Function, file string, timeout time.Duration) (*inferred, error) {
	content, err := readInput(file)
	if err != nil {
		return nil, err
	}
	var a functions.Answer
	var boxes []functions.Detection
	photo, err := picture.Decode(ctx, content)
	switch {
	case errors.Is(err, picture.ErrFormat) && len(content) == f.Card.Input.WireBytes():
		a, err = f.Infer(ctx, content, functions.Wanted{Deadline: timeout})
	case errors.Is(err, picture.ErrFormat):
		err = fmt.Errorf("%w, and its %d bytes are not the %d that %s takes", err, len(content), f.Card.Input.WireBytes(), f.Name)
	case err == nil:
		a, boxes, err = f.InferPhoto(ctx, photo, functions.Wanted{Deadline: timeout})
	}
	if err != nil {
		return nil, err
	}

	r := &inferred{File: file, LatencyMS: float64(a.Latency) / float64(time.Millisecond), Model: a.ModelVersion, Values: a.Values, Tensors: a.Tensors}
	r.Found = f.Items(a, boxes)
	return r, nil
}

func readInput(file string) ([]byte, error) {
	if file == "-" {
		return io.ReadAll(os.Stdin)
	}
	return os.ReadFile(file)
}

// printedValues is the max number of values of a raw answer that are printed as
// text.
const printedValues = 8

func (r *inferred) print(to io.Writer) error {
	if r.Values != nil {
		_, err := fmt.Fprintf(to, "%s: %d values in %.1f ms, first %v\n", r.File, len(r.Values), r.LatencyMS, r.Values[:min(printedValues, len(r.Values))])
		return err
	}
	if r.Tensors != nil {
		_, err := fmt.Fprintf(to, "%s: %d tensors in %.1f ms\n", r.File, len(r.Tensors), r.LatencyMS)
		for _, t := range r.Tensors {
			first := t
			first.Data = t.Data[:min(printedValues*wire.ElementBytes(t.Type), len(t.Data))]
			_, err = fmt.Fprintf(to, "  %s %s %v, first %v\n", t.Name, t.Type, t.Shape, first.Values())
		}
		return err
	}
	_, err := fmt.Fprintf(to, "%s: %d found in %.1f ms\n", r.File, len(r.Found), r.LatencyMS)
	for _, item := range r.Found {
		name := item.Label
		if name == "" {
			name = fmt.Sprintf("class %d", item.Class)
		}
		if item.Box != nil {
			_, err = fmt.Fprintf(to, "  %5.1f %%  %s at %d,%d to %d,%d\n", 100*item.Score, name, item.Box[0], item.Box[1], item.Box[2], item.Box[3])
		} else {
			_, err = fmt.Fprintf(to, "  %5.1f %%  %s\n", 100*item.Score, name)
		}
	}
	return err
}
