package main

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/penstock/penstock/cmd/penstock/functions"
	"github.com/penstock/penstock/cmd/penstock/inspect"
	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/models/draft"
)

// addCommand is `penstock if add`. folder returns the node's runtime folder.
func addCommand(folder func() string) *cobra.Command {
	function, port, answersTo := configs.Function{Instances: 1}, 0, ""
	var devices []string
	var known *draft.Options // about a model without a card
	add := &cobra.Command{
		Use: "add NAME", Short: "Add a function to the running node",
		Long: `Adds a function to the running node and waits until it serves. If its process cannot start,
the node removes the function again, and this command prints why.

Ctrl-C stops the waiting, as do 30 seconds without a result; the node continues by itself.
Its log then says whether the function serves or was removed. "penstock if remove" removes
it earlier.

The function stays until the node stops, also through edits of the configuration file that do
not name it. Put a permanent function into that file: the node adds it as soon as you save the file.

With --model FILE.onnx the card beside the file is taken, FILE with .yaml in place of .onnx. If
there is none, it is drafted as by "penstock models inspect" and kept there, or in the node's
runtime folder if the model's folder cannot be written.`,
		Example: `  penstock if add face --port 5001 --slo 25ms
  penstock if add mine --model ./mine/card.yaml --port 5009
  penstock if add net --model net.onnx --scale 1/255 --colour rgb --decoder topk`,
		Args: arguments(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if port < 0 || port > math.MaxUint16 {
				return fmt.Errorf("--port %d: want 1 to %d, or 0 for any free one", port, math.MaxUint16)
			}
			if err := zeroFlags(cmd); err != nil {
				return err
			}
			function.Name, function.Port = args[0], uint16(port)
			for _, name := range devices {
				var n configs.DeviceName
				if err := n.UnmarshalText([]byte(name)); err != nil {
					return err
				}
				function.Devices = append(function.Devices, n)
			}
			if answersTo != "" {
				to, err := netip.ParseAddrPort(answersTo)
				if err != nil {
					return fmt.Errorf("--answers-to %q: want ADDRESS:PORT, like 192.0.2.7:9000", answersTo)
				}
				function.AnswersTo = &to
			}
			if err := function.Check(); err != nil {
				return err
			}
			var err error
			if function.Key != "" {
				if function.Key, err = filepath.Abs(function.Key); err != nil {
					return err
				}
			}
			switch {
			case filepath.Ext(function.Model) == inspect.Extension:
				function.Model, err = draftedCard(cmd, function.Model, function.Name, folder(), known)
			case isSet(known):
				err = errors.New("--size, --scale, --mean, --std, --colour and --decoder are for a model without a card; edit the card, or name the model with --model FILE.onnx")
			default:
				function.Model, err = cardPath(function.Model)
			}
			if err != nil {
				return err
			}
			// The manager completes the addition even if this command stops waiting.
			const next = "the node continues, and removes it if its process cannot start; see `penstock if list`, or remove it now with `penstock if remove %s`"
			err = sendPatiently(cmd.Context(), folder(), control.AddPath, function, "add", function.Name, fmt.Sprintf(next, function.Name))
			if err != nil {
				return err
			}
			status, err := control.ReadStatus(cmd.Context(), folder())
			if err != nil {
				return err
			}
			if function.Priority > 0 && status.Policy == string(configs.PolicyGSLICE) {
				cmd.PrintErrln("warning: priority has " + configs.PriorityUnused)
			}
			if warning := functions.OverloadWarning(&status); warning != "" {
				cmd.PrintErrln("warning: " + warning)
			}
			return nil
		},
	}
	add.Flags().StringVar(&function.Model, "model", "", "a card's name or file, or an ONNX file; the function's name if left out")
	known = draftFlags(add)
	add.Flags().IntVar(&port, "port", 0, "UDP port, 0 for any free one")
	add.Flags().IntVar(&function.Receivers, "receivers", 0, "number of sockets that receive for it; the node's setting if left out")
	add.Flags().StringVar((*string)(&function.Format), "format", "", "gvsp, or rfc4175 and its variants (docs/cameras.md), for pictures of cameras; Penstock's protocol if left out")
	add.Flags().StringVar(&function.Colours, "colours", "", "what Y, U and V of a camera's pictures mean, like bt709 or bt709-full; bt601 if left out")
	add.Flags().StringVar((*string)(&function.Pictures), "pictures", "", "how many of its UDP clients' pictures the page shows, 1/s to 10/s or 1/min to 60/min; none if left out")
	add.Flags().StringVar((*string)(&function.MaxPicture), "max-picture", "", "the largest picture that clients may send in other formats and sizes than the card's, like 1920x1200; none if left out")
	add.Flags().StringVar(&answersTo, "answers-to", "", "ADDRESS:PORT for the answers about pictures of cameras")
	add.Flags().StringVar(&function.Key, "key", "", "file with the keys of its clients; they need none if left out")
	add.Flags().DurationVar(&function.SLO, "slo", 0, "latency objective; the card's if left out")
	add.Flags().IntVar(&function.Instances, "instances", 1, "number of processes that serve it at the same time")
	add.Flags().StringSliceVar(&devices, "devices", nil, "those of the node's devices that it may use, like cpu or 0,1; all of them if left out")
	add.Flags().Float64Var(&function.SharePercent, "share", 0, "guarantee of each instance, in percent of the device's time (first share with policy gslice)")
	add.Flags().Uint8Var(&function.Priority, "priority", 0, "which functions keep their objectives if the device is overloaded: higher goes first, 0 to 255")
	add.Flags().StringVar(&function.Worker, "worker", "", "the worker that hosts it; its own process if left out")
	return add
}

// zeroFlags returns an error for a flag that is given as 0. A 0 would silently mean the flag's
// default.
func zeroFlags(cmd *cobra.Command) error {
	for name, instead := range map[string]string{"slo": "the card's objective", "share": "a guarantee by its requests", "receivers": "the node's number"} {
		flag := cmd.Flags().Lookup(name)
		if flag.Changed && flag.Value.String() == flag.DefValue {
			return fmt.Errorf("--%s %s: want more than 0; leave it out for %s", name, flag.Value, instead)
		}
	}
	return nil
}
