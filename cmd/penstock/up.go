package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"sync"
	"time"

	"github.com/rs/zerolog"
	"github.com/spf13/cobra"

	"github.com/penstock/penstock/cmd/penstock/apply"
	"github.com/penstock/penstock/cmd/penstock/check"
	"github.com/penstock/penstock/cmd/penstock/repository"
	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/control/oomscore"
	"github.com/penstock/penstock/node/supervisor"
	"github.com/penstock/penstock/node/systemd"
	"github.com/penstock/penstock/orchestrator"
	"github.com/penstock/penstock/orchestrator/keeper"
	"github.com/penstock/penstock/orchestrator/topology"
	"github.com/penstock/penstock/shm/cpuset"
)

func upCommand() *cobra.Command {
	var flags nodeFlags
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Run manager, orchestrator and gateway together",
		Long: `Runs the manager, the orchestrator and the gateway as processes, and restarts one that dies. A
new orchestrator takes over the running processes. A new manager has the same functions, with
the changes of "penstock if", unless a newer configuration file can be read. SIGTERM or Ctrl-C
answers all accepted requests, then stops the node.`,
		Example: `  penstock up
  penstock up --config configs/demo.yaml
  penstock up --models /srv/models`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, log, end, err := flags.begin("up")
			if err != nil {
				return err
			}
			defer end()
			if flags.unread == nil {
				problems, err := check.Functions(c)
				if err != nil {
					return err
				}
				if err := problems.Err(); err != nil {
					return err
				}
			}
			return up(cmd.Context(), flags, c, log)
		},
	}
	flags.register(cmd)
	return cmd
}

// up keeps a manager, an orchestrator and, unless it is switched off, a gateway running until ctx
// ends. It returns earlier if the manager or the orchestrator fails and a restart would not help.
func up(ctx context.Context, flags nodeFlags, c configs.Config, log zerolog.Logger) error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find own binary: %w", err)
	}
	release, err := control.ClaimNode(c.RuntimeDir)
	if err != nil {
		return err
	}
	defer release()
	unclaim, err := pinToClaim(c, log)
	if err != nil {
		return err
	}
	defer unclaim()
	args := []string{"--runtime-dir", c.RuntimeDir}
	if flags.config != "" {
		args = append(args, "--config", flags.config)
	}
	if c.Repository != "" {
		args = append(args, "--models", c.Repository)
	}
	if flags.verbose {
		args = append(args, "--verbose")
	}
	// The manager inherits this score.
	if err := oomscore.Set(os.Getpid(), oomscore.Core); err != nil {
		log.Debug().Err(err).Msg("only the higher scores of other processes protect this one from the OOM killer")
	}
	// This process is the parent of the inference functions' processes, so that they
	// survive a crash of the orchestrator.
	processes := keeper.NewLocal()
	defer processes.Close()
	reporting, endReports := context.WithCancel(ctx)
	var reports sync.WaitGroup
	defer reports.Wait()
	defer endReports()
	reports.Go(func() {
		systemd.Report(reporting, systemd.Options{Log: log, Status: func(ctx context.Context) (control.Status, error) { return control.ReadStatus(ctx, c.RuntimeDir) }})
	})
	reports.Go(func() {
		loaded, load := context.WithCancel(reporting)
		reports.Go(func() {
			if c.Repository != "" {
				repository.Follow(reporting, c, load, log)
			}
			load()
		})
		<-loaded.Done()
		announce(reporting, c, log)
	})
	if c.Plan.Profiles != "" {
		reports.Go(func() { apply.Follow(reporting, c, openMIG, log) })
	}
	err = supervisor.Run(ctx, supervisor.Options{
		Binary: self, Args: args, OrchestratorArgs: []string{"--" + keptFlag},
		Environment: append(systemd.Environment(os.Environ()), runVariable+"="+rand.Text()),
		Gateway:     !c.Gateway.Off,
		Patience:    5 * c.DrainTimeout, Inherit: inheritKeeper(processes, log), Log: log,
	})
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.Exited() {
		return exitStatus(exit.ExitCode()) // the child has already reported the reason
	}
	return err
}

// pinToClaim keeps this process, and those that it starts, on CPUs that no other node has.
func pinToClaim(c configs.Config, log zerolog.Logger) (unclaim func(), err error) {
	allowed, err := cpuset.Allowed()
	if err != nil { // more CPUs than a set holds
		return func() {}, nil
	}
	cpus, unclaim := claimCPUs("/", allowed, c, check.Near(c), log)
	if len(cpus) < len(allowed) {
		log.Info().Str("cpus", cpuset.Format(cpus)).Msg("claimed CPUs")
		err = cpuset.Pin(cpus)
	}
	return unclaim, err
}

// claimCPUs claims the CPUs that poll for DPDK, and chooses others that no other node has. If there are none, the
// node shares all.
func claimCPUs(root string, allowed []int, c configs.Config, near orchestrator.Near, log zerolog.Logger) (cpus []int, unclaim func()) {
	var polls []int
	if d := c.Source.DPDK; d != nil {
		polls = d.LCores
	}
	without := func(cpus []int) []int {
		return slices.DeleteFunc(slices.Clone(cpus), func(cpu int) bool { return slices.Contains(polls, cpu) })
	}
	polling := topology.Take(root, polls)
	if len(polling.Busy) > 0 {
		log.Warn().Ints("cpus", polling.Busy).Msg("other nodes have claimed CPUs of source.dpdk.lcores, so packets may be lost; name other CPUs there")
	}
	if rest := without(allowed); len(rest) > 0 {
		allowed = rest
	}
	for taken := []int{}; ; {
		cpus, shared := orchestrator.ChooseCPUs(allowed, taken, c.ReservedCPUs, near)
		if shared {
			log.Info().Msg("other nodes have claimed the CPUs; this node shares them, and requests may wait")
			return cpus, polling.Release
		}
		claim := topology.Take(root, without(cpus))
		if len(claim.Busy) == 0 {
			return cpus, func() { claim.Release(); polling.Release() }
		}
		taken = append(taken, claim.Busy...)
		claim.Release()
	}
}

// announce logs one line with the ports and the page when all functions serve. It waits a moment for
// standby processes, so that the line is the last one of the start.
func announce(ctx context.Context, c configs.Config, log zerolog.Logger) {
	const pollEvery, standbyPatience = 100 * time.Millisecond, 2 * time.Second
	var served time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(pollEvery):
		}
		status, err := control.ReadStatus(ctx, c.RuntimeDir)
		waits := func(f control.FunctionStatus) bool { return !f.Serves() }
		if err != nil || len(status.Functions) < len(c.Functions) || slices.ContainsFunc(status.Functions, waits) {
			continue
		}
		if served.IsZero() {
			served = time.Now()
		}
		alone := func(f control.FunctionStatus) bool {
			return slices.ContainsFunc(f.Instances, func(in control.InstanceStatus) bool { _, ok := in.Standby(); return !ok })
		}
		if slices.ContainsFunc(status.Functions, alone) && time.Since(served) < standbyPatience {
			continue
		}
		announcement(log, c, &status).Msg("node is ready")
		return
	}
}

// announcement has the addresses of a node.
func announcement(log zerolog.Logger, c configs.Config, status *control.Status) *zerolog.Event {
	var ports []string
	for i := range status.Functions {
		f := &status.Functions[i]
		ports = append(ports, fmt.Sprintf("%s:%d", f.Name, f.Port))
	}
	event := log.Info().Strs("ports", ports).Stringer("status", c.HTTP)
	if !c.Gateway.Off {
		event.Str("page", c.Gateway.TLS.Scheme()+c.Gateway.Address.String())
	}
	return event
}

// inheritKeeper passes the running processes to a newly started orchestrator.
func inheritKeeper(k *keeper.Local, log zerolog.Logger) supervisor.Inheritance {
	return func(child *exec.Cmd) (func(), error) {
		ours, theirs, err := keeper.SocketPair()
		if err != nil {
			return nil, err
		}
		child.ExtraFiles = []*os.File{theirs}
		go func() {
			if err := k.Serve(ours); err != nil {
				log.Warn().Err(err).Msg("cannot serve the orchestrator")
			}
		}()
		return func() { theirs.Close() }, nil
	}
}
