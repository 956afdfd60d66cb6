package main

import (
	"context"
	"runtime"

	"github.com/rs/zerolog"
	"github.com/spf13/cobra"

	"github.com/penstock/penstock/cmd/penstock/check"
	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/datapath"
	"github.com/penstock/penstock/manager"
	"github.com/penstock/penstock/node/configfile"
	"github.com/penstock/penstock/orchestrator"
	"github.com/penstock/penstock/private"
	"github.com/penstock/penstock/shm"
	"github.com/penstock/penstock/shm/cpuset"
)

func managerCommand() *cobra.Command {
	var flags nodeFlags
	return flags.childOfUp(&cobra.Command{
		Use:     "manager",
		Short:   "Run the IF Manager: packets in, batches out, shares",
		Example: `  penstock manager --config node.yaml    # and beside it: penstock orchestrator --config node.yaml`,
	}, func(ctx context.Context, c configs.Config, log zerolog.Logger) error {
		return runManager(ctx, c, flags, log)
	})
}

func runManager(ctx context.Context, c configs.Config, flags nodeFlags, log zerolog.Logger) error {
	// This call stops Go from adjusting GOMAXPROCS when the process is pinned to fewer CPUs.
	// The manager raises it if its data path needs more.
	runtime.GOMAXPROCS(runtime.NumCPU())
	datapath.RaiseProcess()
	shm.Spin = max(shm.Spin, c.BusyPoll)
	own, _ := orchestrator.IFCPUs(c.ReservedCPUs, check.Near(c))
	if err := cpuset.Pin(own); err != nil {
		log.Warn().Err(err).Msg("cannot keep the manager off the CPUs of the inference functions")
	}
	if err := check.Resolve(ctx, &c); ctx.Err() != nil {
		return nil // the node ends
	} else if err != nil {
		return err
	}
	confined, err := check.Sandbox(c)
	if err != nil {
		return err
	}
	user, sandboxed := processUser(confined)
	cache, err := private.MakeCache()
	if err != nil {
		log.Warn().Err(err).Msg("cannot open the cache folder; with `policy: gslice`, every start on a GPU finds the right percentages again")
	}
	release := func() {}
	defer func() { release() }()
	return manager.Run(ctx, manager.Options{
		Config: c, Dir: c.RuntimeDir, FindModel: check.Registry(c).Find, Log: log, Cache: cache, Run: flags.run, Unread: flags.unread,
		ProcessUser: user, Sandbox: sandboxed,
	}, func(m *manager.Manager) {
		if r, err := control.RegisterNode(c.RuntimeDir); err != nil {
			log.Warn().Err(err).Msg("cannot register the node; clients need --runtime-dir to find it")
		} else {
			release = r
		}
		if c.File == "" {
			return // the built-in configuration never changes
		}
		dir := c.RuntimeDir // may come from a flag
		keep := func(c configs.Config) {
			if flags.run == "" {
				return // no supervisor restarts this process
			}
			if err := configfile.Keep(dir, c); err != nil {
				log.Warn().Err(err).Msg("cannot keep a copy of the configuration; if the file becomes unreadable, a restarted process ends the node")
			}
		}
		keep(c)
		go configfile.Follow(ctx, m, c, keep, log)
	})
}

// processUser returns the user id of inference functions' processes, 0 if they run as the
// node's own user, and a line for the status.
func processUser(s *orchestrator.Sandbox) (uid int, status string) {
	switch {
	case s == nil:
		return 0, "off"
	case s.User == nil:
		return 0, "own user"
	}
	return s.User.UID, "user " + s.User.Name
}
