package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/rs/zerolog"
	"github.com/spf13/cobra"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/node/configfile"
)

// nodeFlags are the flags of verbs that read the configuration of a node.
type nodeFlags struct {
	config  string
	dir     string
	models  string
	verbose bool
	unread  error  // set by begin if it uses the last valid configuration: why it cannot read the file
	run     string // identifies the run of `penstock up` that started this process; empty without up
	cmd     *cobra.Command
}

func (n *nodeFlags) register(cmd *cobra.Command) {
	n.cmd = cmd
	cmd.Flags().StringVarP(&n.config, "config", "c", "", "configuration file (YAML); the built-in one if left out")
	cmd.Flags().StringVar(&n.dir, "runtime-dir", "", "folder for the sockets between this node's processes")
	cmd.Flags().StringVar(&n.models, "models", "", "folder whose models the node serves: ONNX files, cards, or Triton's layout (docs/models.md)")
	cmd.Flags().BoolVarP(&n.verbose, "verbose", "v", false, "log all state changes of processes")
}

// childOfUp completes a verb that up starts: manager, orchestrator and gateway. It reads runVariable and removes it from
// the environment, which the processes of functions inherit.
func (n *nodeFlags) childOfUp(cmd *cobra.Command, run func(context.Context, configs.Config, zerolog.Logger) error) *cobra.Command {
	cmd.Args = cobra.NoArgs
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		n.run = os.Getenv(runVariable)
		os.Unsetenv(runVariable)
		c, log, end, err := n.begin(cmd.Name())
		if err != nil {
			return err
		}
		defer end()
		return run(cmd.Context(), c, log)
	}
	n.register(cmd)
	return cmd
}

// runVariable is the environment variable in which up gives its children a random text, the same for
// all children of one run. A restarted child of the run continues with its predecessor's files. It is
// not a flag, because every user can read a command line, but only this user the environment.
const runVariable = "PENSTOCK_RUN"

// begin calls load and opens the log; end closes the log.
func (n *nodeFlags) begin(name string) (c configs.Config, log zerolog.Logger, end func(), err error) {
	c, unread, err := n.load()
	if err != nil {
		return c, zerolog.Nop(), nil, err
	}
	log, end = openLog(c.Log, name)
	if n.unread = unread; unread != nil {
		log.Error().Err(unread).Msg("cannot read configuration; using the last one that was accepted")
	}
	return c, log, end, nil
}

// load calls read and prepares the runtime folder.
func (n *nodeFlags) load() (c configs.Config, unread, err error) {
	if c, unread, err = n.read(); err != nil {
		return c, nil, err
	}
	folder, err := control.MakeRuntimeDir(c.RuntimeDir)
	if err != nil {
		return c, nil, err
	}
	c.RuntimeDir = folder.Path()
	folder.Close()
	if c.Repository != "" {
		if _, err := os.ReadDir(c.Repository); err != nil {
			return c, nil, fmt.Errorf("read folder of models: %w", err)
		}
		if err := os.MkdirAll(c.DraftFolder(), 0o755); err != nil {
			return c, nil, fmt.Errorf("make folder of drafts: %w", err)
		}
	}
	return c, unread, nil
}

// read reads the configuration like configfile.Read, and applies the flags. It changes no files. It
// sets the verb's log format (logsAs).
func (n *nodeFlags) read() (c configs.Config, unread, err error) {
	if c, unread, err = configfile.Read(n.config, n.dir, n.run); err != nil {
		return c, nil, err
	}
	if c.Lab, err = configs.ReadLab(); err != nil {
		return c, nil, err
	}
	logsAs(n.cmd, c.Log.Format)
	if n.dir != "" {
		c.RuntimeDir = n.dir
	}
	if c.RuntimeDir == "" {
		c.RuntimeDir = control.DefaultRuntimeDir()
	}
	if c.RuntimeDir, err = filepath.Abs(c.RuntimeDir); err != nil {
		return c, nil, fmt.Errorf("find runtime folder: %w", err)
	}
	if n.models != "" {
		if c.Repository, err = filepath.Abs(n.models); err != nil {
			return c, nil, fmt.Errorf("find folder of models: %w", err)
		}
		if n.config == "" {
			c.Functions = nil // the built-in ones are a demonstration
		}
	}
	if n.verbose {
		c.Log.Level = "debug"
	}
	return c, unread, nil
}
