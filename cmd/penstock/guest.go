package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/docker/go-units"
	"github.com/spf13/cobra"

	"github.com/penstock/penstock/control"
)

func guestCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "guest", SuggestFor: []string{"guests"}, Short: "List, pause, resume and stop programs that `penstock run` started",
		Long: `The verbs show and change the guests of a running node: programs that "penstock run" started. A guest is named
by its name or its process id. --runtime-dir chooses the node; leave it out if this user runs only one.`,
		Example: `  penstock guest list
  penstock guest pause python
  penstock guest resume python
  penstock guest stop python`,
	}
	dir := cmd.PersistentFlags().String("runtime-dir", "", nodeUsage)
	cmd.AddCommand(guestListCommand(dir),
		guestVerb(dir, "pause", "Pause a guest: its processes get no CPU time until it is resumed; with --swap they first leave the GPU", func(name string) control.GuestOrder { return control.GuestOrder{Pause: name} }),
		guestVerb(dir, "resume", "Let a paused guest run again", func(name string) control.GuestOrder { return control.GuestOrder{Resume: name} }),
		guestVerb(dir, "stop", "Stop a guest: SIGTERM, and after 5 seconds SIGKILL, for all its processes", func(name string) control.GuestOrder { return control.GuestOrder{Stop: name} }))
	return cmd
}

func guestVerb(dir *string, use, short string, order func(name string) control.GuestOrder) *cobra.Command {
	return &cobra.Command{
		Use: use + " GUEST", Short: short, Example: "  penstock guest " + use + " python", Args: arguments(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if args[0] == "" {
				return errors.New("the guest's name is empty; `penstock guest list` shows the names")
			}
			a, err := askGuests(cmd.Context(), *dir, order(args[0]))
			if err == nil {
				fmt.Fprintln(cmd.OutOrStdout(), a.Done)
			}
			return err
		},
	}
}

func guestListCommand(dir *string) *cobra.Command {
	output := ""
	cmd := &cobra.Command{
		Use: "list", Short: "List the guests of the running node",
		Long: `Lists the guests of the running node. "device" is cpu; mps for a client of MPS at low priority; or own for a guest
that takes turns with the functions on the GPU. "memory" is GPU memory on a GPU, else resident memory, and its
limit. "cpu" is the CPU time of all processes of the guest. "not enforced" is what the guest can evade: "end", that all
its processes end with it, and "memory", its limit.`,
		Example: `  penstock guest list
  penstock guest list -o json | jq '.[].pid'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			a, err := askGuests(cmd.Context(), *dir, control.GuestOrder{List: true})
			if err != nil {
				return err
			}
			if output == "json" {
				return writeJSON(cmd.OutOrStdout(), append([]control.GuestStatus{}, a.Guests...))
			}
			return writeGuests(cmd.OutOrStdout(), a.Guests)
		},
	}
	outputFlag(cmd, &output, "table", "json")
	return cmd
}

func writeGuests(to io.Writer, guests []control.GuestStatus) error {
	const gap = 2
	w := tabwriter.NewWriter(to, 0, 0, gap, ' ', 0)
	fmt.Fprintln(w, "guest\tpid\tstate\tdevice\tmemory\tcpu\tsince\tnot enforced\tcommand")
	for i := range guests {
		g := &guests[i]
		memory := "unknown"
		if g.MemoryBytes >= 0 {
			memory = units.BytesSize(float64(g.MemoryBytes))
		}
		if g.LimitBytes > 0 {
			memory += " of " + units.BytesSize(float64(g.LimitBytes))
		}
		device := g.Device
		if g.On != "" && g.On != device {
			device = g.On + " " + device
		}
		// A command may contain anything, and a list is one line per guest.
		command := strings.Join(strings.FieldsFunc(g.Command, func(r rune) bool { return r < ' ' }), " ")
		fmt.Fprintf(w, "%s\t%d\t%s\t%s\t%s\t%v\t%s\t%s\t%s\n", g.Name, g.PID, g.State, device, memory,
			(time.Duration(g.CPUMillis) * time.Millisecond).Round(100*time.Millisecond), g.Since.Local().Format(time.DateTime), cmp.Or(strings.Join(g.NotEnforced, ", "), "-"), command)
	}
	return w.Flush()
}

// askGuests sends one order, and returns the answer.
func askGuests(ctx context.Context, dir string, order control.GuestOrder) (a control.GuestAnswer, err error) {
	folder, err := nodeFolder(dir)
	if err != nil {
		return a, err
	}
	link, err := control.DialGuests(folder)
	if err != nil {
		return a, err
	}
	defer link.Close()
	defer context.AfterFunc(ctx, func() { link.Close() })()
	if err := link.Send(order); err != nil {
		return a, err
	}
	switch err := link.Receive(&a); {
	case ctx.Err() != nil:
		return a, fmt.Errorf("interrupted: %w", context.Cause(ctx))
	case errors.Is(err, io.EOF):
		return a, errors.New("ask node: it closed the connection without an answer; it may be stopping")
	case err != nil:
		return a, fmt.Errorf("ask node: %w", err)
	case a.Error != "":
		return a, errors.New(a.Error)
	}
	return a, nil
}

// guestNames returns the names of the running node's guests, nil without a node.
func guestNames(cmd *cobra.Command) (names []string) {
	ctx, cancel := context.WithTimeout(context.Background(), completionPatience)
	defer cancel()
	a, _ := askGuests(ctx, cmd.Flag("runtime-dir").Value.String(), control.GuestOrder{List: true})
	for _, g := range a.Guests {
		names = append(names, g.Name)
	}
	return names
}
