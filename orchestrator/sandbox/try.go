package sandbox

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"

	"github.com/landlock-lsm/go-landlock/landlock/syscall"
)

// State says which parts of the sandbox are in force on this machine, as a process in it
// sees them.
type State struct {
	// User is the name of the user, empty for the node's own.
	User         string
	Capabilities bool // it has at least one
	NoNewPrivs   bool
	Seccomp      bool
	// Landlock is the kernel's version of it, 0 for none. From version 6 on, a process
	// cannot signal a process outside its sandbox.
	Landlock int
}

// SignalsApart is the first version of Landlock that keeps signals within a sandbox.
const SignalsApart = 6

// Complete reports whether all parts are in force.
func (s State) Complete() bool {
	return !s.Capabilities && s.NoNewPrivs && s.Seccomp && s.Landlock >= SignalsApart
}

// String says in one line what is in force.
func (s State) String() string {
	words := []string{"the node's own user"}
	if s.User != "" {
		words[0] = "user " + s.User
	}
	for _, part := range []struct {
		holds    bool
		yes, not string
	}{
		{!s.Capabilities, "no capabilities", "HAS CAPABILITIES"},
		{s.NoNewPrivs, "no_new_privs", "no no_new_privs"},
		{s.Landlock > 0, fmt.Sprintf("Landlock ABI %d", s.Landlock), "no Landlock: can read all files of its user"},
		{s.Landlock == 0 || s.Landlock >= SignalsApart, "", "functions can signal each other"},
		{s.Seccomp, "seccomp", "no seccomp"},
	} {
		word := part.not
		if part.holds {
			word = part.yes
		}
		if word != "" {
			words = append(words, word)
		}
	}
	return strings.Join(words, ", ")
}

// Try starts the launcher, which is the binary self, for the user u and returns what is in
// force in it.
func Try(ctx context.Context, u *User, self string) (State, error) {
	s := State{}
	if u != nil {
		s.User = u.Name
	}
	spec := Base(false)
	spec.User = u
	cmd := exec.CommandContext(ctx, self)
	if err := launched(cmd, self, spec); err != nil {
		return s, fmt.Errorf("try sandbox: %w", err)
	}
	var out, reason bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &reason
	if err := cmd.Run(); err != nil {
		if reason.Len() > 0 {
			err = errors.New(strings.TrimSpace(reason.String()))
		}
		return s, fmt.Errorf("try sandbox: %w", err)
	}
	fields := map[string]string{}
	for line := range strings.Lines(out.String()) {
		name, value, _ := strings.Cut(line, ":")
		fields[name] = strings.TrimSpace(value)
	}
	for _, name := range []string{"CapPrm", "CapEff", "CapAmb"} {
		s.Capabilities = s.Capabilities || strings.Trim(fields[name], "0") != ""
	}
	s.NoNewPrivs, s.Seccomp = fields["NoNewPrivs"] == "1", fields["Seccomp"] == "2"
	if u != nil && !strings.HasPrefix(fields["Uid"], fmt.Sprint(u.UID)+"\t") {
		return s, fmt.Errorf("try sandbox: it runs as user %s, want %d", fields["Uid"], u.UID)
	}
	if v, err := syscall.LandlockGetABIVersion(); err == nil {
		s.Landlock = v
	}
	return s, nil
}

// reportStatus writes the calling thread's status (proc_pid_status(5)).
func reportStatus(to io.Writer) error {
	text, err := os.ReadFile("/proc/thread-self/status")
	if err == nil {
		_, err = to.Write(text)
	}
	if err != nil {
		return fmt.Errorf("report status: %w", err)
	}
	return nil
}
