package check

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/docker/go-units"

	"github.com/penstock/penstock/orchestrator/sandbox"
)

var sandboxChecks = []row{
	{subject: "sandbox", run: processSandbox},
	{subject: "limits", run: functionLimits},
	{subject: "guests", run: guestLimits},
}

// processSandbox starts a process in the sandbox, which reports its rights.
func processSandbox(ctx context.Context, m *machine) Finding {
	if m.config.Sandbox.Off {
		return fail("off; processes of functions have all rights of the node", "remove `sandbox: off` from the configuration")
	}
	user, err := sandbox.FindUser(m.config.Sandbox.User)
	if err != nil {
		return fail(fmt.Sprintf("sandbox: %v", err), "useradd --system penstock   # or name a user: sandbox: {user: NAME}").fatalIf(true)
	}
	self, err := os.Executable()
	if err != nil {
		return failed(err)
	}
	state, err := m.trySandbox(ctx, user, self)
	if err != nil {
		return fail(err.Error(), "sandbox: off   # in the configuration, if you trust all models").fatalIf(true)
	}

	f := Finding{OK: state.Complete(), Text: state.String()}
	switch {
	case state.Landlock == 0:
		f.Fix = "install Linux 5.13 or newer, with landlock in lsm= on the kernel's command line"
	case state.Landlock < sandbox.SignalsApart:
		f.Fix = "install Linux 6.12 or newer"
	}
	if closed := closedDevice(user); closed != "" {
		f.OK = false
		f.Text += "; user " + user.Name + " cannot use " + closed
		f.Fix = fmt.Sprintf("chmod a+rw %s   # or add the user to its group", closed)
	}
	return f
}

// functionLimits makes a group as for a function.
func functionLimits(_ context.Context, m *machine) Finding {
	confined, err := Sandbox(m.config)
	if err != nil || confined == nil {
		return fail("not enforced: functions have no limits of memory, processes and files without the sandbox", "remove `sandbox: off` from the configuration")
	}
	if err := m.tryLimits(confined.Limits); err != nil {
		return fail(strings.ReplaceAll(err.Error(), "\n", "; "), "start the node as root, or under systemd with Delegate=yes")
	}
	return pass(fmt.Sprintf("each function has at most %s of memory, and %d processes and threads", units.BytesSize(float64(confined.Limits.MemoryBytes)), confined.Limits.Tasks))
}

// guestLimits makes a group as for a program of `penstock run`.
func guestLimits(_ context.Context, m *machine) Finding {
	uid := os.Getuid()
	if user, err := sandbox.FindUser(m.config.Sandbox.User); err == nil && user != nil && !m.config.Sandbox.Off {
		uid = user.UID
	}
	missing, err := m.tryGuests(uid)
	switch {
	case err != nil:
		return fail(fmt.Sprintf("not enforced: priority and limits of `penstock run`, and that all processes of a program end with it: %v", err),
			"start the node as root, or in a delegated group (docs/operations.md)")
	case len(missing) > 0:
		text := errors.Join(missing...).Error()
		return fail(strings.ReplaceAll(text, "\n", "; "), "start the node as root, and keep the sandbox")
	}
	return pass("all processes of a program end with it, and cannot leave its limits")
}

// closedDevice is a GPU's device file that the user cannot read, empty if there is none.
func closedDevice(u *sandbox.User) string {
	if u == nil {
		return ""
	}
	for _, pattern := range []string{"/dev/nvidia[0-9]*", "/dev/nvidiactl", "/dev/nvidia-uvm"} {
		files, _ := filepath.Glob(pattern) // the patterns are valid
		for _, file := range files {
			if sandbox.CheckReadable(u, []string{file}) != nil {
				return file
			}
		}
	}
	return ""
}
