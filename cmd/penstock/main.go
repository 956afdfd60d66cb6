// Command penstock is the one binary: the IF Manager, the orchestrator, the
// inference functions' processes, the load generator and the benchmarks are its
// verbs. main wires the packages together and does nothing else.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/penstock/penstock/models/document"
	"github.com/penstock/penstock/orchestrator/guest"
	"github.com/penstock/penstock/orchestrator/sandbox"
)

// version is set by the Makefile.
var version = "unknown"

func main() {
	sandbox.MaybeLaunch()
	guest.MaybeLaunch()
	const standard = 3 // stdin, stdout and stderr
	if err := sandbox.WithholdDescriptors(standard); err != nil {
		fmt.Fprintln(os.Stderr, "penstock:", err)
		os.Exit(1)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	cmd, err := execute(ctx, root())
	var status exitStatus
	switch {
	case err == nil:
	case errors.As(err, &status):
		os.Exit(int(status))
	default:
		complain(cmd, err)
		if cmd.Name() == runName {
			os.Exit(guest.StatusFailed) // lower statuses are the program's
		}
		os.Exit(1)
	}
}

// exitStatus ends the program with a status. The program has already printed the reason.
type exitStatus int

func (s exitStatus) Error() string { return fmt.Sprintf("exit status %d", int(s)) }

func root() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "penstock",
		Short: "Inference over UDP within latency objectives",
		Long: `Penstock receives pictures as UDP packets, gathers them without copying, and runs
them on models that share one device: each within its own share and its own
latency objective, in batches as large as the objective allows.`,
		Example: `  penstock up                     # manager and orchestrator, with the built-in models
  penstock load --rate face=30    # send pictures to it
  penstock doctor                 # what this machine can and cannot do`,
		Version:       version,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	cmd.SetVersionTemplate("penstock {{.Version}}\n")
	cmd.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		if invalid, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
			want := flagRules[invalid.GetFlag().Value.Type()]
			if c, ok := invalid.GetFlag().Value.(choice); ok {
				want = document.OrList(c.words)
			}
			if want != "" {
				err = fmt.Errorf("--%s is %q, want %s", invalid.GetFlag().Name, invalid.GetValue(), want)
			}
		}
		if unknown, ok := errors.AsType[*pflag.NotExistError](err); ok {
			if similar := document.Near("--"+unknown.GetSpecifiedName(), flagNames(c)); similar != "" {
				return fmt.Errorf("%w%s", err, similar)
			}
		}
		return fmt.Errorf("%w; see `%s --help`", err, c.CommandPath())
	})
	cmd.CompletionOptions.HiddenDefaultCmd = true
	cmd.AddCommand(service("auto", upCommand()), service("auto", managerCommand()), service("auto", orchestratorCommand()), service("auto", gatewayCommand()),
		service("json", ifCommand()), service("json", weightsCommand()), service("json", prepareCommand()), service("json", probeCommand()),
		modelsCommand(), profileCommand(), planCommand(), topCommand(), runCommand(), guestCommand(), loadCommand(), inferCommand(), streamCommand(), demoCommand(), doctorCommand(), checkCommand(), keyCommand(), loadModelCommand(), gpusCommand(), tryModelCommand(), versionCommand())
	cmd.AddCommand(manCommand())
	completeAll(cmd)
	return cmd
}

// execute runs a command line, and returns the command that it names.
func execute(ctx context.Context, cmd *cobra.Command) (*cobra.Command, error) {
	cmd.InitDefaultCompletionCmd() // cobra does so too, but then refuseUnknown would miss it
	refuseUnknown(cmd)
	return cmd.ExecuteContextC(ctx)
}

// flagNames are the flags of a command that its help shows.
func flagNames(cmd *cobra.Command) (names []string) {
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			names = append(names, "--"+f.Name)
		}
	})
	return names
}

// noVerb refuses arguments of a group of verbs: they are verbs that it does not have.
func noVerb(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	var verbs []string
	for _, verb := range cmd.Commands() {
		verbs = append(verbs, verb.Name())
	}
	return fmt.Errorf("unknown command %q for %q%s", args[0], cmd.CommandPath(), document.Near(args[0], verbs))
}

// refuseUnknown makes all groups of verbs below cmd refuse an unknown verb. By default cobra prints the group's help and
// reports success.
func refuseUnknown(cmd *cobra.Command) {
	for _, verb := range cmd.Commands() {
		refuseUnknown(verb)
		if verb.HasSubCommands() && !verb.Runnable() {
			verb.Args, verb.RunE = noVerb, func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
		}
	}
}

// flagRules describe valid values for pflag's types, because pflag's own errors name Go's
// parsers.
var flagRules = map[string]string{
	"bool":     "true or false",
	"duration": "a duration with its unit, like 25ms",
	"float64":  "a number, like 12.5",
	"int":      "an integer",
	"int64":    "an integer",
	"uint64":   "an integer from 0",
	"uint8":    "an integer from 0 to 255",
}

// arguments requires n arguments. The command's usage line names them.
func arguments(n int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) != n {
			return fmt.Errorf("%s has %d arguments; want `%s`", cmd.CommandPath(), len(args), strings.TrimSuffix(cmd.UseLine(), " [flags]"))
		}
		return nil
	}
}
