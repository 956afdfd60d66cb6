package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/rs/zerolog"
	"github.com/spf13/cobra"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/libml"
	"github.com/penstock/penstock/libml/frameworks"
	"github.com/penstock/penstock/libml/python"
	"github.com/penstock/penstock/manager"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/orchestrator"
	"github.com/penstock/penstock/orchestrator/sandbox"
)

func checkCommand() *cobra.Command {
	var flags nodeFlags
	cmd := &cobra.Command{
		Use:   "check CONFIG",
		Short: "Say what would keep a node from running with a configuration",
		Long: `Checks all that "penstock up" needs of a configuration: its text, that each model is found and
loads, that functions may read it, that ports are free, that the shares fit, and that the device is there. It changes
nothing and needs no running node; ports that a running node with the same runtime folder
has count as free. All problems are printed, a line each: file, line, column, and what would
be right. The exit status is then 1.`,
		Example: `  penstock check /etc/penstock/node.yaml`,
		Args:    arguments(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			flags.config = args[0]
			c, _, err := flags.read()
			if err != nil {
				return err
			}
			notes, err := checkNode(cmd.Context(), c)
			if err != nil {
				return err
			}
			for _, note := range notes {
				fmt.Fprintln(cmd.OutOrStdout(), note)
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s: a node can run with it: functions: %d\n", args[0], len(c.Functions))
			return nil
		},
	}
	cmd.Flags().StringVar(&flags.dir, "runtime-dir", "", "folder for the sockets between this node's processes")
	flags.cmd = cmd
	return cmd
}

// checkFunctions is what `penstock up` checks before it starts anything, and the problems for what
// else is checked.
func checkFunctions(c configs.Config) (*configs.Problems, error) {
	problems, err := c.Problems()
	if err != nil {
		return nil, err
	}
	for _, p := range manager.Check(c, registry(c).Find) {
		problems.Add(p.Err, "functions", p.Function, p.Key)
	}
	return problems, nil
}

// checkNode is checkFunctions and all that needs more time, or the state of this machine. Notes say
// what is no problem and may surprise.
func checkNode(ctx context.Context, c configs.Config) (notes []string, err error) {
	var folders []string
	missing := map[int]error{}
	for i, dir := range c.Models {
		switch info, err := os.Stat(dir); {
		case err != nil:
			missing[i] = err
		case !info.IsDir():
			missing[i] = fmt.Errorf("%s is no folder", dir)
		default:
			folders = append(folders, dir)
		}
	}
	c.Models = folders // a folder that is missing is one problem, not one for each function
	confined, sandboxErr := sandboxOf(c)
	dir, remove, dirErr := checkRuntimeDir(c.RuntimeDir, confined)
	if dirErr != nil { // one problem, not one for each model that is unpacked
		remove()
		if dir, remove, err = checkRuntimeDir(filepath.Join(os.TempDir(), ".penstock-check"), confined); err != nil {
			return nil, dirErr
		}
	}
	defer remove()
	c.RuntimeDir = dir
	problems, err := checkFunctions(c)
	if err != nil {
		return nil, err
	}
	problems.Add(dirErr, "runtime_dir")
	for i, err := range missing {
		problems.Add(err, "models", i)
	}
	problems.Add(haveDevice(c), "device")
	running, err := control.ReadStatus(ctx, c.RuntimeDir)
	if err != nil {
		running = control.Status{} // no node runs with this folder
	}
	held, err := checkHTTP(c, err == nil)
	problems.Add(err, "http")
	notes = append(notes, held...)

	if own, _ := orchestrator.IFCPUs(c.ReservedCPUs); c.ReservedCPUs > len(own) {
		notes = append(notes, fmt.Sprintf("reserved_cpus: is %d, the manager gets %d: inference functions keep at least one of the CPUs that the node may use", c.ReservedCPUs, len(own)))
	}

	problems.Add(sandboxErr, "sandbox")
	if confined != nil {
		problems.Add(sandbox.CheckReadable(confined.User, confined.Readable), "sandbox", "readable")
		for i, path := range confined.Readable {
			if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
				problems.Add(err, "sandbox", "readable", i)
			}
		}
	}
	loaded := map[string]error{} // by card file
	for i, f := range c.Functions {
		held, err := checkPort(c, f, running)
		problems.Add(err, "functions", i, "port")
		notes = append(notes, held...)
		if f.Replay.File != "" {
			_, err := os.Stat(f.Replay.File)
			problems.Add(err, "functions", i, "replay", "file")
		}
		card, err := registry(c).Find(cmp.Or(f.Model, f.Name))
		if err != nil {
			continue // checkFunctions has said so
		}
		if _, done := loaded[card.File]; !done {
			var err error
			if confined != nil && card.Model != "" {
				err = sandbox.CheckReadable(confined.User, []string{card.Model})
			}
			if err == nil {
				err = loads(ctx, card)
			}
			loaded[card.File] = err
		}
		key := "model"
		if f.Model == "" {
			key = "name"
		}
		problems.Add(loaded[card.File], "functions", i, key)
	}
	return notes, problems.Err()
}

// checkRuntimeDir reports whether a node could use a runtime folder. A missing folder is tried by
// another one in the same place: dir, for models that the check unpacks, until remove.
func checkRuntimeDir(want string, confined *orchestrator.Sandbox) (dir string, remove func(), err error) {
	nothing := func() {}
	above := want
	for {
		if _, err = os.Stat(above); !errors.Is(err, fs.ErrNotExist) {
			break
		}
		above = filepath.Dir(above)
	}
	if err != nil {
		return want, nothing, fmt.Errorf("make runtime folder: %w", err)
	}

	dir, remove = want, nothing
	if above != want {
		if dir, err = os.MkdirTemp(above, ".penstock-check-"); err != nil {
			return want, nothing, fmt.Errorf("make runtime folder %s: %w", want, err)
		}
		made := dir
		remove = func() { os.RemoveAll(made) }
		if confined != nil && confined.User != nil { // as a node's: that user reads unpacked models
			if err := os.Chmod(dir, 0o711); err != nil {
				return dir, remove, fmt.Errorf("make runtime folder: %w", err)
			}
		}
	}

	folder, err := control.MakeRuntimeDir(dir)
	if err != nil {
		return dir, remove, err
	}
	return folder.Path(), remove, folder.Close()
}

// checkPort opens and closes the port of a function.
func checkPort(c configs.Config, f configs.Function, running control.Status) (notes []string, err error) {
	if f.Port == 0 || f.Replay.File != "" || c.Source.DPDK != nil {
		return nil, nil
	}
	conn, err := net.ListenUDP("udp", &net.UDPAddr{IP: c.Listen.AsSlice(), Zone: c.Listen.Zone(), Port: int(f.Port)})
	if err == nil {
		return nil, conn.Close()
	}
	if errors.Is(err, syscall.EADDRINUSE) {
		for _, has := range running.Functions {
			if has.Port == int(f.Port) && has.Replay == "" {
				return []string{fmt.Sprintf("port %d of %s: function %s of the node in %s has it", f.Port, f.Name, has.Name, c.RuntimeDir)}, nil
			}
		}
		return nil, fmt.Errorf("port %d is taken by another process (ss -ulpn 'sport = :%d' names it): stop that one or configure another port", f.Port, f.Port)
	}
	return nil, fmt.Errorf("open UDP port: %w", err)
}

// checkHTTP opens and closes the address of metrics and status; running says that a node with the
// same runtime folder may have it.
func checkHTTP(c configs.Config, running bool) (notes []string, err error) {
	l, err := net.Listen("tcp", c.HTTP.String())
	switch {
	case err == nil:
		return nil, l.Close()
	case running && errors.Is(err, syscall.EADDRINUSE):
		return []string{fmt.Sprintf("http %s: taken, and a node runs in %s", c.HTTP, c.RuntimeDir)}, nil
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("%s is taken by another process (ss -ltnp 'sport = :%d' names it): stop that one or configure another address", c.HTTP, c.HTTP.Port())
	}
	return nil, err
}

// loadPatience is how long a model may take to be loaded in a check.
const loadPatience = time.Minute

// loads opens a model as its framework does. It uses a separate process, because a bad model may take
// all memory or crash its framework.
func loads(ctx context.Context, card *models.Card) error {
	if len(card.Command) > 0 {
		return findProgram(card)
	}
	if card.Apart() != "" {
		command, err := program(card.Apart())
		if err != nil {
			return err
		}
		if _, err := exec.LookPath(command[0]); err != nil {
			return fmt.Errorf("find program of framework %s: %w", card.Framework, err)
		}
		if _, err := python.PyTorch(ctx); err != nil {
			return fmt.Errorf("framework %s: %w", card.Framework, err)
		}
		return nil
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find own binary: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, loadPatience)
	defer cancel()
	var said strings.Builder
	child := exec.CommandContext(ctx, self, loadVerb, card.File)
	child.Stderr = &said
	child.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	err = child.Run()
	switch text := strings.TrimPrefix(strings.TrimSpace(said.String()), "penstock: "); {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("load model %s: not done within %s", card.Name, loadPatience)
	case text != "":
		return errors.New(text)
	}
	return fmt.Errorf("load model %s: %w", card.Name, err)
}

// findProgram reports whether the program of a card can be executed.
func findProgram(card *models.Card) error {
	path := card.Command[0]
	if strings.Contains(path, "/") && !filepath.IsAbs(path) {
		path = filepath.Join(card.Dir, path)
	}
	if _, err := exec.LookPath(path); err != nil {
		return fmt.Errorf("find program of model %s: %w", card.Name, err)
	}
	return nil
}

// loadVerb is the process that loads starts.
const loadVerb = "load-model"

func loadModelCommand() *cobra.Command {
	return &cobra.Command{
		Use: loadVerb + " CARD", Hidden: true, Args: arguments(1),
		RunE: func(_ *cobra.Command, args []string) error {
			card, err := models.ReadCard(args[0])
			if err != nil {
				return err
			}
			framework, err := frameworks.New(card)
			if err != nil {
				return err
			}
			if err := framework.Init(libml.Environment{Card: card, Threads: 1, Log: zerolog.Nop(), Device: configs.DeviceCPU}); err != nil {
				return fmt.Errorf("start framework of model %s: %w", card.Name, err)
			}
			if err := framework.LoadModel(); err != nil && !errors.Is(err, libml.ErrNoHostStage) {
				return fmt.Errorf("load model %s: %w", card.Name, err)
			}
			return nil
		},
	}
}
