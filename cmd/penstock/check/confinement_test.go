package check

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/orchestrator/cgroup"
	"github.com/penstock/penstock/orchestrator/sandbox"
)

func TestDoctorSandbox(t *testing.T) {
	whole := sandbox.State{User: "nobody", NoNewPrivs: true, Seccomp: true, Landlock: 7}
	without := whole
	without.Landlock = 0
	old := whole
	old.Landlock = 4
	for name, c := range map[string]struct {
		config    configs.Sandbox
		state     sandbox.State
		err       error
		ok, fatal bool
		want      string
	}{
		"whole":               {state: whole, ok: true, want: "user nobody, no capabilities, no_new_privs, Landlock ABI 7, seccomp"},
		"off":                 {config: configs.Sandbox{Off: true}, want: "all rights of the node"},
		"no Landlock":         {state: without, want: "no Landlock"},
		"an old Landlock":     {state: old, want: "can signal each other"},
		"it cannot start":     {err: errors.New("become user nobody: operation not permitted"), fatal: true, want: "operation not permitted"},
		"a user that is none": {config: configs.Sandbox{User: "no-such-user"}, fatal: true, want: "no-such-user"},
	} {
		t.Run(name, func(t *testing.T) {
			m := &machine{trySandbox: func(context.Context, *sandbox.User, string) (sandbox.State, error) { return c.state, c.err }}
			m.config.Sandbox = c.config
			f := processSandbox(context.Background(), m)
			if f.OK != c.ok || f.Fatal != c.fatal || !strings.Contains(f.Text, c.want) || !f.OK && f.Fix == "" {
				t.Errorf("%+v; want ok %v, fatal %v, %q", f, c.ok, c.fatal, c.want)
			}
		})
	}
}

// The launcher is this test binary: see TestMain.
func TestTrySandbox(t *testing.T) {
	u, err := sandbox.FindUser("")
	must.OK(t, err)
	self, err := os.Executable()
	must.OK(t, err)
	state, err := sandbox.Try(context.Background(), u, self)
	must.OK(t, err)
	if state.Capabilities || !state.NoNewPrivs || !state.Seccomp {
		t.Errorf("in force: %v", state)
	}
}

func TestDoctorLimits(t *testing.T) {
	for name, c := range map[string]struct {
		config configs.Sandbox
		err    error
		ok     bool
		want   string
	}{
		"whole":     {config: configs.Sandbox{Memory: 3 << 30, Processes: 100}, ok: true, want: "at most 3GiB of memory, and 100 processes and threads"},
		"off":       {config: configs.Sandbox{Off: true}, want: "not enforced"},
		"no groups": {err: errors.New("sandbox.memory is not enforced: no control groups"), want: "sandbox.memory is not enforced"},
	} {
		t.Run(name, func(t *testing.T) {
			var tried cgroup.Limits
			m := &machine{tryLimits: func(l cgroup.Limits) error {
				tried = l
				return c.err
			}}
			m.config.Sandbox = c.config
			f := functionLimits(context.Background(), m)
			if f.OK != c.ok || !strings.Contains(f.Text, c.want) || !f.OK && f.Fix == "" {
				t.Errorf("%+v; want ok %v, %q", f, c.ok, c.want)
			}
			if !c.config.Off && tried.MemoryBytes < 64<<20 {
				t.Errorf("tried %+v; want half of the machine's memory if the configuration has no limit", tried)
			}
		})
	}
}

func TestDoctorGuests(t *testing.T) {
	for name, c := range map[string]struct {
		missing []error
		err     error
		ok      bool
		want    string
	}{
		"whole":     {ok: true, want: "end with it"},
		"leave":     {missing: []error{cgroup.ErrCanLeave, cgroup.ErrNoMemoryLimit}, want: "not enforced: the guest's limits, and that all its processes end with it; the guest's memory has no limit"},
		"no groups": {err: errors.New("find cgroup"), want: "not enforced: priority and limits"},
	} {
		t.Run(name, func(t *testing.T) {
			m := &machine{tryGuests: func(int) ([]error, error) { return c.missing, c.err }}
			if f := guestLimits(context.Background(), m); f.OK != c.ok || !strings.Contains(f.Text, c.want) || !f.OK && f.Fix == "" {
				t.Errorf("%+v; want ok %v, %q", f, c.ok, c.want)
			}
		})
	}
}
