package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/docker/go-units"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/cuda/swap"
	"github.com/penstock/penstock/orchestrator/guest"
	"github.com/penstock/penstock/orchestrator/sandbox"
)

// runName is the verb whose exit status is that of another program.
const runName = "run"

func runCommand() *cobra.Command {
	var dir, memory, user string
	var swaps bool
	c := guest.Command{Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr}
	cmd := &cobra.Command{
		Use:   runName + " [flags] -- COMMAND [ARGUMENT...]",
		Short: "Run a program, such as a training, on what the functions leave of the device",
		Long: `Runs an unmodified program as a guest of the running node: below all functions, on idle CPU time and,
on a GPU, as an MPS client of low priority. Like env(1), it keeps the terminal, the working folder and the
environment, and returns the program's exit status: 125 if the program was not started, 126 if it cannot be
executed, 127 if it does not exist. When the program ends, or this command, all processes that it
started end too. The node ends its guests when it stops.

Inside MPS an illegal access of the program ends the processes of all functions. They come back at once, and
the command is then refused for a while. --own runs it outside MPS: its faults stay its own, but functions
and guest take turns on the GPU (docs/guests.md).

Programs that run with --swap may together need more GPU memory than there is. They then take turns, and the
memory of those that wait moves to the host when there is no room (docs/swapping.md).

A program of root could leave its control group. So if root runs this command, the program gets the user of the
functions (sandbox.user), or that of --user.`,
		Example: `  penstock run -- python train.py --epochs 10
  penstock run --memory 40GiB -- python train.py
  penstock run --own -- ./experimental
  penstock run --swap -- python large.py
  penstock run --device cuda:1 -- python train.py
  penstock run --user alice -- python train.py
  penstock guest list`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return fmt.Errorf("no command; want `%s`", cmd.UseLine())
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if cmd.Flags().Changed("memory") {
				bytes, err := units.RAMInBytes(memory)
				if err != nil || bytes < 1<<20 {
					return fmt.Errorf("--memory is %q, want a size of 1MiB or more, like 40GiB", memory)
				}
				c.MemoryBytes = bytes
			}
			if cmd.Flags().Changed("name") && control.CheckName(c.Name) != nil {
				return fmt.Errorf("--name is %q, want letters, digits, '-' and '_', at most 128", c.Name)
			}
			if cmd.Flags().Changed("user") {
				u, err := sandbox.FindAccount(user)
				if err != nil {
					return err
				}
				c.User = &control.GuestUser{Name: u.Name, UID: u.UID, GID: u.GID, Groups: u.Groups}
			}
			return runGuest(cmd, dir, c, swaps, args)
		},
	}
	cmd.Flags().SetInterspersed(false) // flags after the command are the command's
	cmd.Flags().StringVar(&dir, "runtime-dir", "", nodeUsage)
	cmd.Flags().StringVar(&memory, "memory", "", "max memory, like 40GiB: of the GPU inside MPS, main memory on a CPU")
	cmd.Flags().BoolVar(&c.Own, "own", false, "run outside MPS: faults of the program stay its own")
	cmd.Flags().StringVar(&c.Device, "device", "", "device of the program, as the node's configuration names it, or a GPU's UUID; left out: the GPU with most memory left")
	cmd.Flags().BoolVar(&swaps, "swap", false, "let the program's GPU memory leave the GPU while other guests with --swap run")
	cmd.Flags().StringVar(&user, "user", "", "user of the program, if root runs this command; left out: the user of the functions")
	cmd.Flags().StringVar(&c.Name, "name", "", "name of the guest; the program's if left out")
	return cmd
}

// runGuest ends this process as the program ended.
func runGuest(cmd *cobra.Command, dir string, c guest.Command, swaps bool, args []string) error {
	var err error
	c.Args = args
	if c.Path, err = exec.LookPath(args[0]); err != nil && !errors.Is(err, exec.ErrDot) {
		complain(cmd, fmt.Errorf("find command: %w", err))
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, exec.ErrNotFound) {
			return exitStatus(guest.StatusNotFound)
		}
		return exitStatus(guest.StatusNoExec)
	}
	if c.Path, err = filepath.Abs(c.Path); err != nil {
		return err
	}
	if c.Self, err = os.Executable(); err != nil {
		return err
	}
	if swaps {
		if c.Swap, err = swap.Library(c.Self); err != nil {
			return err
		}
	}
	folder, err := nodeFolder(dir)
	if err != nil {
		return err
	}
	link, err := control.DialGuests(folder)
	if err != nil {
		return err
	}
	result, err := guest.Run(link, c)
	if err != nil {
		return err
	}
	// A shell distinguishes a command that a user ended from one that failed.
	if slices.Contains([]syscall.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGTERM}, result.Signal) {
		signal.Reset(result.Signal)
		_ = unix.Kill(os.Getpid(), result.Signal)
		time.Sleep(time.Second) // the signal ends this process before
	}
	if result.Status == 0 {
		return nil
	}
	return exitStatus(result.Status)
}
