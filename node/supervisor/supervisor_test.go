package supervisor

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/wait"
	"github.com/rs/zerolog"
)

// program writes a shell script that replaces penstock; $1 is the verb. In the script, say
// appends a line to a file; said returns the lines.
func program(t *testing.T, script string) (o Options, said func() []string) {
	t.Helper()
	dir := t.TempDir()
	binary, file := filepath.Join(dir, "penstock"), filepath.Join(dir, "said")
	text := "#!/bin/sh\nsay() { echo \"$1\" >> " + file + "; }\n" + script
	must.OK(t, os.WriteFile(binary, []byte(text), 0o700))
	return Options{Binary: binary, Environment: os.Environ(), Patience: 30 * time.Second, Log: zerolog.Nop()}, func() []string {
		text, err := os.ReadFile(file)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		return strings.Fields(string(text))
	}
}

// await waits until the file has the given number of lines.
func await(t *testing.T, said func() []string, lines int) {
	t.Helper()
	if !wait.Until(func() bool { return len(said()) >= lines }) {
		t.Fatalf("said %q, want %d lines", said(), lines)
	}
}

func TestRunEndsManagerFirst(t *testing.T) {
	o, said := program(t, "trap 'say $1-ends; exit 0' TERM\nsay $1\nwhile :; do sleep 0.02; done\n")
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- Run(ctx, o) }()
	await(t, said, 2)
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if got := strings.Join(said()[2:], " "); got != "manager-ends orchestrator-ends" {
		t.Errorf("said %q", got)
	}
}

func TestRunExitStatus(t *testing.T) {
	o, _ := program(t, "test $1 = orchestrator && exit 3\ntrap 'say $1-ends; exit 0' TERM\nwhile :; do sleep 0.02; done\n")
	var exit *exec.ExitError
	if err := Run(t.Context(), o); !errors.As(err, &exit) || exit.ExitCode() != 3 {
		t.Errorf("error %v, want exit status 3", err)
	}
}

func TestRunRestartsChild(t *testing.T) {
	o, said := program(t, "say $1\ntest $1 = manager && test $(grep -c manager "+"$(dirname $0)/said) = 1 && kill -9 $$\nexec sleep 100\n")
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- Run(ctx, o) }()
	await(t, said, 3)
	cancel()
	if err := <-ended; err == nil || !strings.HasPrefix(err.Error(), "manager: signal: terminated") {
		t.Errorf("error %v, want how the manager ended", err)
	}
}

func TestRunKillsChild(t *testing.T) {
	o, said := program(t, "trap '' TERM\nsay $1\nwhile :; do sleep 0.02; done\n")
	o.Patience = 50 * time.Millisecond
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- Run(ctx, o) }()
	await(t, said, 2)
	cancel()
	if err := <-ended; err == nil || err.Error() != "manager: killed: did not end within 50ms after SIGTERM" {
		t.Errorf("error %v", err)
	}
}

// The gateway ends first. Its failure does not end the node, and a killed gateway is restarted.
func TestGateway(t *testing.T) {
	o, said := program(t, "test $1 = gateway && ! grep -qs gateway$ $(dirname $0)/said && say gateway && exit 1\n"+
		"trap 'say $1-ends; exit 0' TERM\nsay $1\nwhile :; do sleep 0.02; done\n")
	o.Gateway = true
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- Run(ctx, o) }()
	await(t, said, 4) // the gateway has started twice
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if got := strings.Join(said()[4:], " "); got != "gateway-ends manager-ends orchestrator-ends" {
		t.Errorf("said %q", got)
	}
}
