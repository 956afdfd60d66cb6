package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/rs/zerolog"
	"github.com/spf13/cobra"

	"github.com/penstock/penstock/cmd/penstock/functions"
	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/libml"
	"github.com/penstock/penstock/libml/frameworks"
)

func ifCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "if", SuggestFor: []string{"status", "functions"},
		Short: "Be an inference function's process, or change the functions of a running node",
		Long: `Without a verb this is the process of an inference function, which the orchestrator
starts. The verbs change the functions of a running node. --runtime-dir chooses the
node; leave it out if this user runs only one. A manager that "penstock up" starts in the place of one that died
goes on with what they did; another node does not, and the configuration file stays as it is.`,
		Example: `  penstock if list
  penstock if add face --port 5001
  penstock if replace face ./face-v2/card.yaml
  penstock if rollback face
  penstock if share face 40
  penstock if remove face`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			log := zerolog.New(os.Stderr).With().Timestamp().Logger()
			err := libml.Run(cmd.Context(), log, frameworks.New)
			if errors.Is(err, control.ErrNotStarted) {
				return fmt.Errorf("%w; `penstock if list` shows the functions of a running node", err)
			}
			return err
		},
	}
	dir := cmd.PersistentFlags().String("runtime-dir", "", nodeUsage)
	folder := func() string { return *dir }
	cmd.PersistentPreRunE = func(verb *cobra.Command, _ []string) (err error) {
		if verb != cmd { // without a verb it is a process of the node, not a client
			*dir, err = nodeFolder(*dir)
		}
		return err
	}

	function, port, save := configs.Function{Instances: 1}, 0, false
	add := &cobra.Command{
		Use: "add NAME", Short: "Add a function to the running node",
		Long: `Adds a function to the running node and waits until it serves. Where its process
cannot start, the node takes it off again, and this says why: nothing is left of it.

The node does both by itself. Ctrl-C, or 30 seconds without an end, stop the waiting
only: the function stays if it comes to serve, and is taken off if it cannot, which the
node's log says. "penstock if remove" takes it off before.

The node has it until it ends, and goes on with it when its manager alone died. It survives
edits of the configuration file that do not name it, and is forgotten by a restart of the
node, unless --save writes it into that file. Comments and order of the file stay.`,
		Example: `  penstock if add face --port 5001 --slo 25ms
  penstock if add mine --model ./mine/card.yaml --port 5009 --save`,
		Args: arguments(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if port < 0 || port > math.MaxUint16 {
				return fmt.Errorf("--port %d: want 1 to %d, or 0 for any free one", port, math.MaxUint16)
			}
			if err := zeroFlags(cmd); err != nil {
				return err
			}
			function.Name, function.Port = args[0], uint16(port)
			if err := function.Check(); err != nil {
				return err
			}
			var err error
			if function.Model, err = cardPath(function.Model); err != nil {
				return err
			}
			if save {
				return addAndSave(cmd.Context(), folder(), function)
			}
			return sendAdd(cmd.Context(), folder(), function)
		},
	}
	add.Flags().StringVar(&function.Model, "model", "", "a card's name or file; the function's name if left out")
	add.Flags().IntVar(&port, "port", 0, "UDP port, 0 for any free one")
	add.Flags().IntVar(&function.Receivers, "receivers", 0, "how many sockets receive for it; the node's if left out")
	add.Flags().DurationVar(&function.SLO, "slo", 0, "latency objective; the card's if left out")
	add.Flags().IntVar(&function.Instances, "instances", 1, "how many processes serve it at once")
	add.Flags().Float64Var(&function.SharePercent, "share", 0, "first share of each instance, in percent")
	add.Flags().BoolVar(&save, "save", false, "write it into the node's configuration file, too")

	name := func(use, short, path string) *cobra.Command {
		return &cobra.Command{
			Use: use + " NAME", Short: short, Example: "  penstock if " + use + " face", Args: arguments(1),
			RunE: func(cmd *cobra.Command, args []string) error {
				return send(cmd.Context(), folder(), path, control.NameOrder{Name: args[0]})
			},
		}
	}
	replace := &cobra.Command{
		Use: "replace NAME CARD", Short: "Bring another model into a function; the old one serves until the new one can",
		Long: `Brings another model into a function and waits until it serves, or says why the old one
goes on. The card must have a higher version than the model that the function runs: clients
tell models apart by it. "penstock if rollback" goes back. The node has the new one until it
ends, and goes on with it when its manager alone died. It is not written into the configuration file: an edit of the function's entry there brings the
file's model back, and so does a restart of the node. Ctrl-C stops the waiting only.`,
		Example: `  penstock if replace face ./face-v2/card.yaml`, Args: arguments(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			model, err := cardPath(args[1])
			if err != nil {
				return err
			}
			return send(cmd.Context(), folder(), control.ReplacePath, control.ReplaceOrder{Name: args[0], Model: model})
		},
	}
	share := &cobra.Command{
		Use: "share NAME PERCENT", Short: "Give each instance of a function a share by hand",
		Example: `  penstock if share face 40`, Args: arguments(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			percent, err := strconv.ParseFloat(strings.TrimSuffix(args[1], "%"), 64)
			if err != nil {
				return fmt.Errorf("share %q is no number: want percent, like 40", args[1])
			}
			return send(cmd.Context(), folder(), control.SharePath, control.ShareOrder{Name: args[0], SharePercent: percent})
		},
	}
	cmd.AddCommand(listCommand(folder), add, name("remove", "Take a function off the running node", control.RemovePath),
		replace, name("rollback", "Go back to the model that a function ran before, one further with each rollback", control.RollbackPath), share)
	return cmd
}

// zeroFlags refuses a flag that is given as 0: it would silently mean the value that the flag
// has if it is left out.
func zeroFlags(cmd *cobra.Command) error {
	for name, instead := range map[string]string{"slo": "the card's objective", "share": "the model's knee", "receivers": "the node's number"} {
		flag := cmd.Flags().Lookup(name)
		if flag.Changed && flag.Value.String() == flag.DefValue {
			return fmt.Errorf("--%s %s: want more than 0, or leave it out for %s", name, flag.Value, instead)
		}
	}
	return nil
}

// nodeUsage describes the flag that chooses a node, for every verb that has it.
const nodeUsage = "runtime folder of the node; found if left out and this user runs one node"

// nodeFolder is the runtime folder that a client was given, or that of the one running node.
func nodeFolder(given string) (string, error) {
	if given != "" {
		return given, nil
	}
	return control.FindNode()
}

// send sends an order and prints what was done.
func send(ctx context.Context, dir, path string, order any) error {
	done, err := control.SendOrder(ctx, dir, path, order)
	if err == nil {
		fmt.Println(done)
	}
	return err
}

// addPatience is how long an addition is waited for.
const addPatience = 30 * time.Second

// errSlow is why an addition is not waited for any longer.
var errSlow = fmt.Errorf("no end of it within %s", addPatience)

// sendAdd is send for an addition, which goes on when nobody waits for it any more.
func sendAdd(ctx context.Context, dir string, f configs.Function) error {
	wait, cancel := context.WithTimeoutCause(ctx, addPatience, errSlow)
	defer cancel()
	err := send(wait, dir, control.AddPath, f)
	const goesOn = "the node goes on, and takes it off again if its process cannot start; `penstock if list` says how it is, `penstock if remove %s` takes it off now"
	switch {
	case err == nil || wait.Err() == nil:
		return err
	case ctx.Err() != nil:
		return fmt.Errorf("interrupted while %s was added: "+goesOn, f.Name, f.Name)
	}
	state := ""
	if status, err := control.ReadStatus(ctx, dir); err == nil {
		if now, ok := status.Function(f.Name); ok {
			state = ", " + functions.State(&now)
		}
	}
	return fmt.Errorf("%s was added%s after %s: "+goesOn, f.Name, state, addPatience, f.Name)
}

// cardPath makes a card's file absolute, since the manager works elsewhere; a
// card's name stays as it is.
func cardPath(model string) (string, error) {
	if !strings.Contains(model, "/") && filepath.Ext(model) == "" {
		return model, nil
	}
	path, err := filepath.Abs(model)
	if err != nil {
		return "", fmt.Errorf("find card: %w", err)
	}
	return path, nil
}
