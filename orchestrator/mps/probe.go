package mps

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/penstock/penstock/private"
)

// Running returns the process id and the clients of another process's daemon of a GPU in a runtime
// folder. If there is no daemon, or it does not answer, ok is false.
func Running(ctx context.Context, dir, uuid string) (pid int, clients []Client, ok bool) {
	dir, err := filepath.Abs(dir)
	program := findProgram("")
	if err != nil || program == "" {
		return 0, nil, false
	}
	// A daemon in another user's folder could report anything. In the runtime folder, the
	// pipe folder may belong to the functions' user.
	f := folderOf(dir, uuid)
	pipe := f.pipe
	trusted := pipe
	if filepath.Dir(pipe) == dir {
		trusted = dir
	}
	judged, err := private.OpenFolder(trusted)
	if err != nil {
		return 0, nil, false
	}
	defer judged.Close()
	c := control{program, f, uuid, defaultAnswerTimeout, asOwnerOf(pipe)}
	if pid = c.daemonPID(); pid == 0 || !isMPS(pid) || !alive(pid) {
		return 0, nil, false
	}
	clients, err = c.clients(ctx)
	return pid, clients, err == nil
}

// Try finds out whether MPS can run by starting a daemon and a server in a temporary folder,
// for a third of a second. It does not use o.Dir. It returns the same errors as Start.
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
		return &Problem{Why: fmt.Sprintf("it does not stop: %v", err)}
	}
	return nil
}

// asOwnerOf returns a function that makes commands run as a folder's owner, the user that its
// daemon serves.
func asOwnerOf(path string) func(*exec.Cmd) error {
	return func(cmd *exec.Cmd) error {
		var about unix.Stat_t
		if err := unix.Stat(path, &about); err != nil {
			return fmt.Errorf("find owner of MPS folder: %w", err)
		}
		if os.Getuid() == 0 && about.Uid != 0 {
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: about.Uid, Gid: about.Gid}}
		}
		return nil
	}
}
