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
)

// inferred is one line of penstock infer -o json.
type inferred struct {
	File      string           `json:"file"`
	LatencyMS float64          `json:"latency_ms"`
	Model     uint32           `json:"model_version"`
	Found     []functions.Item `json:"found,omitempty"`
	Values    []float32        `json:"values,omitempty"`
}

func inferCommand() *cobra.Command {
	var dir, output string
	var timeout time.Duration
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
			if output != "text" && output != "json" {
				return fmt.Errorf("output %q: want text or json", output)
			}
			if timeout < 0 || timeout > functions.MaxWait {
				return fmt.Errorf("timeout %s: want a duration up to %s", timeout, functions.MaxWait)
			}
			folder, err := nodeFolder(dir)
			if err != nil {
				return err
			}
			set := functions.NewSet(folder, nil, zerolog.Nop())
			if err := set.Refresh(cmd.Context()); err != nil {
				return err
			}
			f, err := set.Function(args[0])
			if err != nil {
				return err
			}
			for _, file := range args[1:] {
				result, err := inferFile(cmd.Context(), f, file, timeout)
				if err != nil {
					return fmt.Errorf("infer %s: %w", file, err)
				}
				if output == "json" {
					err = json.NewEncoder(cmd.OutOrStdout()).Encode(result)
				} else {
					err = result.print(cmd.OutOrStdout())
				}
				if err != nil {
					return err
				}
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&dir, "runtime-dir", "", nodeUsage)
	cmd.Flags().DurationVar(&timeout, "timeout", 0, "how long an answer is useful; the function's objective if left out")
	cmd.Flags().StringVarP(&output, "output", "o", "text", "text or json")
	return cmd
}

// inferFile sends a file and waits for the answer.
func inferFile(ctx context.Context, f *functions.Function, file string, timeout time.Duration) (*inferred, error) {
	content, err := readInput(file)
	if err != nil {
		return nil, err
	}
	var a functions.Answer
	var boxes []functions.Detection
	photo, err := picture.Decode(content)
	switch {
	case errors.Is(err, picture.ErrFormat) && len(content) == f.Card.Input.WireBytes():
		a, err = f.Infer(ctx, content, timeout)
	case errors.Is(err, picture.ErrFormat):
		err = fmt.Errorf("%w, and its %d bytes are not the %d that %s takes", err, len(content), f.Card.Input.WireBytes(), f.Name)
	case err == nil:
		a, boxes, err = f.InferPhoto(ctx, photo, timeout)
	}
	if err != nil {
		return nil, err
	}

	r := &inferred{File: file, LatencyMS: float64(a.Latency) / float64(time.Millisecond), Model: a.ModelVersion, Values: a.Values}
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
	_, err := fmt.Fprintf(to, "%s: %d found in %.1f ms\n", r.File, len(r.Found), r.LatencyMS)
	if r.Values != nil {
		_, err = fmt.Fprintf(to, "%s: %d values in %.1f ms, first %v\n", r.File, len(r.Values), r.LatencyMS, r.Values[:min(printedValues, len(r.Values))])
	}
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
