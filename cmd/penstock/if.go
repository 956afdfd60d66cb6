package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/rs/zerolog"
	"github.com/spf13/cobra"

	"github.com/penstock/penstock/cmd/penstock/functions"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/libml"
	"github.com/penstock/penstock/libml/frameworks"
)

func ifCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "if", SuggestFor: []string{"status", "functions"},
		Short: "Change the functions of a running node",
		Long: `The verbs change the functions of a running node. --runtime-dir chooses the node; leave it out
if this user runs only one. Changes last until the node stops, and do not edit the configuration
file. If the manager dies, "penstock up" starts another one with the same functions.

Without a verb this is the process of an inference function. Only the orchestrator starts it.`,
		Example: `  penstock if list
  penstock if add face --port 5001
  penstock if replace face ./face-v2/card.yaml
  penstock if rollback face
  penstock if share face 40
  penstock if move face --worker cold
  penstock if remove face`,
		Args: noVerb,
		RunE: func(cmd *cobra.Command, _ []string) error {
			log := zerolog.NewSlogHandler(zerolog.New(os.Stderr).With().Timestamp().Logger())
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

	cmd.AddCommand(listCommand(folder), addCommand(folder), removeCommand(folder), replaceCommand(folder), rollbackCommand(folder), shareCommand(folder), moveCommand(folder))
	return cmd
}

func removeCommand(folder func() string) *cobra.Command {
	return &cobra.Command{
		Use: "remove NAME", Short: "Remove a function from the running node",
		Long: `Removes a function from the running node: it accepts no new requests, the requests that it has
are answered, and its processes end. The command returns when the function is gone, so its name and
its port are free. Ctrl-C stops the waiting, as do 30 seconds without a result; the node continues
by itself. The key drain_timeout limits how long the function waits for its last answers.`,
		Example: "  penstock if remove face", Args: arguments(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return sendPatiently(cmd.Context(), folder(), control.RemovePath, control.NameOrder{Name: args[0]},
				"remove", args[0], "the node continues; see `penstock if list`")
		},
	}
}

func rollbackCommand(folder func() string) *cobra.Command {
	return &cobra.Command{
		Use: "rollback NAME", Short: "Return a function to its previous model; each rollback goes one model further back",
		Example: "  penstock if rollback face", Args: arguments(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return send(cmd.Context(), folder(), control.RollbackPath, control.NameOrder{Name: args[0]})
		},
	}
}

func replaceCommand(folder func() string) *cobra.Command {
	return &cobra.Command{
		Use: "replace NAME CARD", Short: "Replace the model of a function; the old one serves until the new one is ready",
		Long: `Replaces the model of a function and waits until the new one serves, or prints why the old one
stays. The card must have a higher version than the present model, because clients distinguish
models by version. "penstock if rollback" returns to the old model. The new model stays until
the node stops; it is not written to the configuration file. A restart of the node, or an edit
of the function's entry in that file, returns to the model of the file. Ctrl-C stops the
waiting, not the replacement.`,
		Example: `  penstock if replace face ./face-v2/card.yaml`, Args: arguments(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			model, err := cardPath(args[1])
			if err != nil {
				return err
			}
			return send(cmd.Context(), folder(), control.ReplacePath, control.ReplaceOrder{Name: args[0], Model: model})
		},
	}
}

func shareCommand(folder func() string) *cobra.Command {
	return &cobra.Command{
		Use: "share NAME PERCENT", Short: "Set the share of each instance of a function",
		Example: `  penstock if share face 40`, Args: arguments(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			percent, err := strconv.ParseFloat(strings.TrimSuffix(args[1], "%"), 64)
			if err != nil {
				return fmt.Errorf("share is %q, want percent, like 40", args[1])
			}
			return send(cmd.Context(), folder(), control.SharePath, control.ShareOrder{Name: args[0], SharePercent: percent})
		},
	}
}

func moveCommand(folder func() string) *cobra.Command {
	worker, own := "", false
	move := &cobra.Command{
		Use: "move NAME (--worker WORKER | --own)", Short: "Move a function to a worker, or to its own process",
		Long: `Moves a function and waits until it serves in its new process, or prints why it stays. The old
process serves until then, so no request is lost. A worker is one process that hosts several
functions (docs/lanes.md); the configuration file lists the workers. The move stays until the
node stops; it is not written to the configuration file. A restart of the node, or an edit of
the function's entry in that file, undoes it. Ctrl-C stops the waiting, not the move.`,
		Example: `  penstock if move face --worker cold
  penstock if move face --own`, Args: arguments(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if own == (worker != "") {
				return fmt.Errorf("move %s: want either --worker WORKER or --own", args[0])
			}
			return send(cmd.Context(), folder(), control.MovePath, control.MoveOrder{Name: args[0], Worker: worker})
		},
	}
	move.Flags().StringVar(&worker, "worker", "", "the worker that will host the function")
	move.Flags().BoolVar(&own, "own", false, "give the function its own process")
	return move
}

// nodeUsage describes the flag that chooses a node. All verbs with that flag share it.
const nodeUsage = "runtime folder of the node; may be left out if this user runs one node"

// nodeFolder is the given runtime folder, or that of the only running node if none was
// given.
func nodeFolder(given string) (string, error) {
	if given != "" {
		return given, nil
	}
	return control.FindNode()
}

// send sends an order and prints the result.
func send(ctx context.Context, dir, path string, order any) error {
	done, err := control.SendOrder(ctx, dir, path, order)
	if err == nil {
		fmt.Println(done)
	}
	return err
}

// patience is the max time to wait for a function that is added or removed.
const patience = 30 * time.Second

// sendPatiently is send for an order that the node carries out in its own time. If the function is
// not added or removed within patience, the error says its state and what happens next.
func sendPatiently(ctx context.Context, dir, path string, order any, verb, name, next string) error {
	wait, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	err := send(wait, dir, path, order)
	switch {
	case err == nil || wait.Err() == nil:
		return err
	case ctx.Err() != nil:
		return fmt.Errorf("%s %s: interrupted; %s", verb, name, next)
	}

	state := "its state is unknown"
	if status, err := control.ReadStatus(ctx, dir); err == nil {
		if f, ok := status.Function(name); ok {
			state = functions.State(&f)
		}
	}
	return fmt.Errorf("%s %s: no result within %s (%s); %s", verb, name, patience, state, next)
}

// cardPath makes a card's file absolute, because the manager has another working directory.
// The name of a card stays unchanged.
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
