package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/penstock/penstock/cmd/penstock/inspect"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/models/draft"
)

func inspectCommand() *cobra.Command {
	var flags draftFlags
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
			if output != "card" && output != "json" {
				return fmt.Errorf("output %q: want card or json", output)
			}
			options, err := flags.options()
			if err != nil {
				return err
			}
			result, err := inspect.File(cmd.Context(), args[0], options)
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
				to := json.NewEncoder(cmd.OutOrStdout())
				to.SetIndent("", "  ")
				return to.Encode(result)
			}
			fmt.Fprint(cmd.OutOrStdout(), result.Text)
			if result.Hint != "" {
				cmd.PrintErrln(result.Hint)
			}
			return nil
		},
	}
	flags.register(cmd)
	cmd.Flags().BoolVar(&write, "write", false, "keep the card beside the model, as FILE with .yaml in place of .onnx")
	cmd.Flags().StringVarP(&output, "output", "o", "card", "card or json")
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

// draftFlags are what an operator knows about a model without a card.
type draftFlags struct{ size, scale, mean, std, colour, decoder string }

func (f *draftFlags) register(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.size, "size", "", "without a card: sizes that the file leaves open, like 320x320 (height x width)")
	cmd.Flags().StringVar(&f.scale, "scale", "", "without a card: factor for a picture's values of 0 to 255, like 1/255")
	cmd.Flags().StringVar(&f.mean, "mean", "", "without a card: subtracted after --scale, one number or one per channel, like 0.485,0.456,0.406")
	cmd.Flags().StringVar(&f.std, "std", "", "without a card: divides after --mean, one number or one per channel")
	cmd.Flags().StringVar(&f.colour, "colour", "", "without a card: rgb or bgr, the order of the model's channels")
	cmd.Flags().StringVar(&f.decoder, "decoder", "", "without a card: what the outputs mean (docs/models.md lists decoders)")
}

// set reports whether a flag is set.
func (f *draftFlags) set() bool { return *f != draftFlags{} }

func (f *draftFlags) options() (o draft.Options, err error) {
	if o.Size, err = parseSize(f.size); err != nil {
		return o, fmt.Errorf("--size %q: %w", f.size, err)
	}
	if f.scale != "" {
		if o.Scale, err = parseNumber(f.scale); err != nil || o.Scale <= 0 {
			return o, fmt.Errorf("--scale %q: want a number above 0, like 1/255", f.scale)
		}
	}
	for _, list := range []struct {
		name, text string
		to         *[]float64
		positive   bool
	}{{"mean", f.mean, &o.Mean, false}, {"std", f.std, &o.Std, true}} {
		for word := range strings.SplitSeq(list.text, ",") {
			if list.text == "" {
				break
			}
			v, err := parseNumber(word)
			if err != nil || list.positive && v <= 0 {
				return o, fmt.Errorf("--%s %q: want one number or one per channel, like 0.485,0.456,0.406", list.name, list.text)
			}
			*list.to = append(*list.to, v)
		}
	}
	if !slices.Contains([]string{"", "rgb", "bgr"}, f.colour) {
		return o, fmt.Errorf("--colour %q: want rgb or bgr", f.colour)
	}
	o.Colour, o.Decoder = f.colour, f.decoder
	return o, nil
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
	over, under, fraction := strings.Cut(strings.TrimSpace(text), "/")
	n, err := strconv.ParseFloat(over, 64)
	if err != nil || !fraction {
		return n, err
	}
	d, err := strconv.ParseFloat(under, 64)
	if err == nil && d == 0 {
		err = errors.New("division by 0")
	}
	return n / d, err
}

// draftedCard returns the card of a model's file, and says on standard error what it is. Without flags that is
// the one beside the model, if there is one. Else it drafts one: beside the model, or if it cannot write there, in
// the node's runtime folder.
func draftedCard(cmd *cobra.Command, file, name, runtimeDir string, flags *draftFlags) (string, error) {
	file, err := filepath.Abs(file)
	if err != nil {
		return "", fmt.Errorf("find model: %w", err)
	}
	path := inspect.CardFile(file)
	if _, err := os.Stat(path); err == nil && !flags.set() {
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

	options, err := flags.options()
	if err != nil {
		return "", err
	}
	result, err := inspect.File(cmd.Context(), file, options)
	if err != nil {
		return "", err
	}
	err = inspect.Save(path, result.Text)
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EROFS) {
		folder := filepath.Join(runtimeDir, "cards")
		path = filepath.Join(folder, name+".yaml")
		if err = result.Draft(file, name); err != nil {
			return "", err
		}
		err = cmp.Or(os.MkdirAll(folder, 0o755), inspect.Save(path, result.Text))
	}
	if err != nil {
		return "", err
	}
	if _, err := models.ReadCard(path); err != nil {
		return "", fmt.Errorf("the drafted card is not complete: %w", err)
	}
	cmd.PrintErrf("drafted %s: takes %s\n", path, result.Kind)
	if result.Hint != "" {
		cmd.PrintErrln(result.Hint)
	}
	return path, nil
}
