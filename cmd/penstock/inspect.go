package main

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/penstock/penstock/cmd/penstock/inspect"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/models/draft"
)

func inspectCommand() *cobra.Command {
	var options *draft.Options
	var write bool
	output := ""
	cmd := &cobra.Command{
		Use: "inspect FILE", Short: "Draft the card of a model",
		Long: `Prints what an ONNX file holds, and a card for it. The model runs with one image and with two, to
find its batch axis and whether images of a batch have a part in each other's answers. What
neither the file nor the runs say is a guess, and the card marks each one. --write keeps the
card beside the model, where "penstock if add NAME --model FILE" finds it.`,
		Example: `  penstock models inspect yolo11n.onnx
  penstock models inspect net.onnx --size 320x320 --scale 1/255 --colour rgb --write`,
		Args: arguments(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			result, err := inspect.File(cmd.Context(), args[0], *options)
			if err != nil {
				return err
			}
			if write {
				if err := inspect.Save(inspect.CardFile(args[0]), result.Text); err != nil {
					return err
				}
				cmd.PrintErrln("wrote " + inspect.CardFile(args[0]))
			}
			if output == "json" {
				return writeJSON(cmd.OutOrStdout(), result)
			}
			fmt.Fprint(cmd.OutOrStdout(), result.Text)
			if result.Hint != "" {
				cmd.PrintErrln(result.Hint)
			}
			return nil
		},
	}
	options = draftFlags(cmd)
	cmd.Flags().BoolVar(&write, "write", false, "keep the card beside the model, as FILE with .yaml in place of .onnx")
	outputFlag(cmd, &output, "card", "json")
	return cmd
}

// tryModelCommand is the process that runs a model for a draft.
func tryModelCommand() *cobra.Command {
	return &cobra.Command{
		Use: inspect.Verb + " FILE [SIZE...]", Hidden: true, Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			size, err := parseSize(strings.Join(args[1:], "x"))
			if err != nil {
				return err
			}
			seen, err := inspect.Observe(args[0], size)
			if err != nil {
				return err
			}
			_, err = cmd.OutOrStdout().Write(seen)
			return err
		},
	}
}

// draftFlags adds the flags for what an operator knows about a model without a card.
func draftFlags(cmd *cobra.Command) *draft.Options {
	var o draft.Options
	flags := cmd.Flags()
	flags.Func("size", "without a card: `sizes` that the file leaves open, like 320x320 (height x width)", func(text string) (err error) {
		o.Size, err = parseSize(text)
		return err
	})
	flags.Func("scale", "without a card: `factor` for a picture's values of 0 to 255, like 1/255", func(text string) (err error) {
		if o.Scale, err = parseNumber(text); err != nil || o.Scale <= 0 {
			return errors.New("want a number above 0, like 1/255")
		}
		return nil
	})
	flags.Func("mean", "without a card: `numbers` subtracted after --scale, one or one per channel, like 0.485,0.456,0.406", func(text string) (err error) {
		o.Mean, err = parseNumbers(text, math.Inf(-1))
		return err
	})
	flags.Func("std", "without a card: `numbers` that divide after --mean, one or one per channel, like 0.229,0.224,0.225", func(text string) (err error) {
		o.Std, err = parseNumbers(text, 0)
		return err
	})
	flags.Var(choice{&o.Colour, []string{"rgb", "bgr"}}, "colour", "without a card: `order` of the model's channels, rgb or bgr")
	flags.StringVar(&o.Decoder, "decoder", "", "without a card: what the outputs mean (docs/models.md lists decoders)")
	return &o
}

// parseSize reads sizes like 320x320.
func parseSize(text string) (size []int64, err error) {
	if text == "" {
		return nil, nil
	}
	for word := range strings.SplitSeq(text, "x") {
		n, err := strconv.ParseInt(word, 10, 64)
		if err != nil || n < 1 || n > 1<<24 {
			return nil, errors.New("want sizes like 320x320")
		}
		size = append(size, n)
	}
	return size, nil
}

// parseNumber reads a number or a fraction, like 1/255.
func parseNumber(text string) (float64, error) {
	var n models.Scale
	err := n.UnmarshalText([]byte(strings.TrimSpace(text)))
	return float64(n), err
}

// parseNumbers reads numbers above a bound, one or one per channel.
func parseNumbers(text string, above float64) (list []float64, err error) {
	for word := range strings.SplitSeq(text, ",") {
		v, err := parseNumber(word)
		if err != nil || v <= above {
			return nil, errors.New("want one number or one per channel, like 0.485,0.456,0.406")
		}
		list = append(list, v)
	}
	return list, nil
}

// isSet reports whether an operator gave an option.
func isSet(o *draft.Options) bool { return !reflect.DeepEqual(*o, draft.Options{}) }

// draftedCard returns the card of a model's file, and says on standard error what it is. Without options that is
// the one beside the model, if there is one. Else it drafts one: beside the model, or if it cannot write there, in
// the node's runtime folder.
func draftedCard(cmd *cobra.Command, file, name, runtimeDir string, options *draft.Options) (string, error) {
	file, err := filepath.Abs(file)
	if err != nil {
		return "", fmt.Errorf("find model: %w", err)
	}
	path := inspect.CardFile(file)
	if _, err := os.Stat(path); err == nil && !isSet(options) {
		card, err := models.ReadCard(path)
		if err != nil {
			return "", err
		}
		if card.Model != file {
			return "", fmt.Errorf("%s is the card of %s, not of %s; name a card with --model", path, card.Model, file)
		}
		cmd.PrintErrln("card: " + path)
		return path, nil
	}

	result, err := inspect.File(cmd.Context(), file, *options)
	if err != nil {
		return "", err
	}
	err = inspect.Save(path, result.Text)
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EROFS) {
		path = filepath.Join(runtimeDir, "cards", name+".yaml")
		err = result.SaveAs(path, file, name)
	}
	if err != nil {
		return "", err
	}
	cmd.PrintErrf("drafted %s: takes %s\n", path, result.Kind)
	if result.Hint != "" {
		cmd.PrintErrln(result.Hint)
	}
	return path, nil
}
