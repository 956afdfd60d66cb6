package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/rs/zerolog"
	"github.com/spf13/cobra"

	"github.com/penstock/penstock/cmd/penstock/check"
	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/libml/onnx"
	modelstore "github.com/penstock/penstock/libml/onnx/prepared"
	"github.com/penstock/penstock/libml/python"
	"github.com/penstock/penstock/orchestrator"
	"github.com/penstock/penstock/orchestrator/keeper"
	"github.com/penstock/penstock/private"
	"github.com/penstock/penstock/shm/cpuset"
)

// keptFlag tells an orchestrator that up is the parent of its processes.
const keptFlag = "kept"

// connectKeeper takes over the processes that up keeps. If up has another version, as
// after an upgrade, up has already ended them.
func connectKeeper(log zerolog.Logger) (keeper.Keeper, error) {
	k, err := keeper.Connect(os.NewFile(3, "keeper"))
	if errors.Is(err, keeper.ErrVersion) {
		log.Warn().Err(err).Msg("cannot take over processes, starting new ones; restart `penstock up` to keep them when the orchestrator restarts")
		return keeper.NewLocal(), nil
	}
	if err != nil {
		return nil, err
	}
	return k, nil
}

func orchestratorCommand() *cobra.Command {
	var flags nodeFlags
	var kept bool
	cmd := flags.childOfUp(&cobra.Command{
		Use:     "orchestrator",
		Short:   "Start, watch and stop the processes of inference functions",
		Example: `  penstock orchestrator --config node.yaml`,
	}, func(ctx context.Context, c configs.Config, log zerolog.Logger) error {
		return runOrchestrator(ctx, c, flags.run, kept, log)
	})
	cmd.Flags().BoolVar(&kept, keptFlag, false, "descriptor 3 is the keeper of processes")
	cmd.Flags().MarkHidden(keptFlag)
	return cmd
}

// runOrchestrator runs until ctx ends. If kept is set, up is the parent of the
// functions' processes.
func runOrchestrator(ctx context.Context, c configs.Config, run string, kept bool, log zerolog.Logger) error {
	if !orchestrator.Restarted(c.RuntimeDir, run) { // then a device that is missing is lost, and others go on
		if err := check.Devices(c); err != nil {
			return err
		}
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find own binary: %w", err)
	}
	own, ifs := orchestrator.IFCPUs(c.ReservedCPUs, check.Near(c))
	if err := cpuset.Pin(own); err != nil {
		log.Warn().Err(err).Msg("cannot keep the orchestrator off the CPUs of the inference functions")
	}
	if err := python.SetEnvironment(); err != nil {
		return err
	}
	// Processes have another HOME, so they cannot look for the library themselves.
	if library, err := onnx.Library(); err == nil {
		if err := os.Setenv(onnx.LibraryVariable, library); err != nil {
			return fmt.Errorf("set %s: %w", onnx.LibraryVariable, err)
		}
	}

	o := orchestrator.Options{Dir: c.RuntimeDir, Run: run, Log: log, Self: self, CPUs: ifs, Program: check.Program, Models: check.ModelFolders(c)}
	if o.Sandbox, err = check.Sandbox(c); err != nil {
		return err
	}
	if o.Prepared, err = modelstore.DefaultDir(); err != nil {
		log.Warn().Err(err).Msg("cannot open the folder of prepared models; processes on a GPU prepare their own")
	}
	if o.Cache, err = private.MakeCache(); err != nil {
		log.Warn().Err(err).Msg("cannot open the cache folder; every start on a GPU measures its stream priorities")
	}
	if kept {
		if o.Keeper, err = connectKeeper(log); err != nil {
			return err
		}
	}
	return orchestrator.Run(ctx, o)
}
