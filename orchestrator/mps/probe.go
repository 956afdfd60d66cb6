package mps

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
)

// Running tells of the daemon that another process owns in a runtime folder: its
// id and its clients. ok is false where there is none, or it does not answer.
func Running(ctx context.Context, dir, uuid string) (pid int, clients []Client, ok bool) {
	dir, err := filepath.Abs(dir)
	program := lookUp("")
	if err != nil || program == "" {
		return 0, nil, false
	}
	c := control{program, folder{pipe: pipeFolder(dir), log: filepath.Join(dir, "mps-log")}, uuid, defaultAnswerTimeout}
	if pid = c.daemonPID(); pid == 0 || !isMPS(pid) || !alive(pid) {
		return 0, nil, false
	}
	clients, err = c.clients(ctx)
	return pid, clients, err == nil
}

// Try finds out whether MPS can run, by running it: a daemon and a server in a
// folder of its own, for a third of a second. It does not use o.Dir. Start says
// which errors to expect.
func Try(ctx context.Context, o Options) (err error) {
	if o.Dir, err = os.MkdirTemp("", "mps-"); err != nil {
		return fmt.Errorf("try MPS: %w", err)
	}
	defer os.RemoveAll(o.Dir)
	d, err := Start(ctx, o)
	if err != nil {
		return err
	}
	if err := d.Close(); err != nil {
		return &Problem{Why: fmt.Sprintf("it does not end: %v", err)}
	}
	return nil
}
