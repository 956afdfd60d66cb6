package mps

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/penstock/penstock/internal/lockfile"
	"github.com/penstock/penstock/private"
)

// folder has the paths and the lock of a daemon.
type folder struct {
	pipe string   // sockets and pid file of the daemon, nothing else
	log  string   // control.log, server.log
	lock *os.File // held by the owner, released with its end
}

// longestPipe is the max length of a pipe folder's path. A Unix socket's path has at most 107 bytes
// (unix(7)), and the daemon's longest name is control_privileged. 85 bytes worked, 88 did not
// (driver 580).
const longestPipe = 85

// pipeFolder returns the pipe folder of a runtime folder. It is in the runtime folder, unless the
// path would be too long. Then it is a folder in /tmp that is named after the runtime folder, so
// that another process finds it again.
func pipeFolder(dir string) string {
	pipe := filepath.Join(dir, "mps")
	if len(pipe) <= longestPipe {
		return pipe
	}
	sum := sha256.Sum256([]byte(dir))
	name := fmt.Sprintf("penstock-mps-%d-%s", os.Getuid(), hex.EncodeToString(sum[:6]))
	if pipe = filepath.Join(os.TempDir(), name); len(pipe) <= longestPipe {
		return pipe
	}
	return filepath.Join("/tmp", name)
}

// openFolder makes the folders of a runtime folder, for the user uid, and locks them. It returns a
// *Problem if another process holds the lock, or if a folder cannot be trusted.
func openFolder(dir string, uid int) (folder, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return folder{}, &Problem{Why: fmt.Sprintf("find runtime folder: %v", err)}
	}
	f := folder{pipe: pipeFolder(dir), log: filepath.Join(dir, "mps-log")}
	if f.lock, err = lock(dir); err != nil {
		return f, err
	}
	for _, d := range []string{f.pipe, f.log} {
		if err := ownFolder(d, uid); err != nil {
			f.lock.Close()
			return f, err
		}
	}
	return f, nil
}

// lock takes the runtime folder's lock. The kernel releases it when the process ends, however it
// ends.
func lock(dir string) (*os.File, error) {
	folder, err := private.OpenFolder(dir)
	if err != nil {
		return nil, &Problem{Why: fmt.Sprintf("lock MPS folder: %v", err), Fix: "choose another runtime folder with --runtime-dir"}
	}
	defer folder.Close()
	l, err := folder.Open("mps.lock", os.O_CREATE|os.O_RDWR)
	if err != nil {
		return nil, &Problem{Why: fmt.Sprintf("lock MPS folder: %v", err), Fix: "choose a runtime folder that the node can write with --runtime-dir"}
	}
	switch err := lockfile.Try(l); {
	case errors.Is(err, lockfile.ErrLocked):
		l.Close()
		return nil, &Problem{
			Why: fmt.Sprintf("another orchestrator owns the MPS daemon of %s", dir),
			Fix: "stop it, or choose another runtime folder with --runtime-dir",
		}
	case err != nil:
		l.Close()
		return nil, &Problem{Why: fmt.Sprintf("lock MPS folder %s: %v", dir, err)}
	}
	return l, nil
}

// ownFolder makes a folder for the user uid. It refuses a folder that another user could have put
// there.
func ownFolder(path string, uid int) error {
	if uid != os.Getuid() && ownedBy(path, uid) {
		return nil // left by an earlier orchestrator
	}
	folder, err := private.MakeFolder(path, 0o700)
	switch {
	case errors.Is(err, private.ErrNotPrivate):
		return &Problem{Why: fmt.Sprintf("open MPS folder: %v", err), Fix: "rm -r " + path}
	case err != nil:
		return &Problem{Why: fmt.Sprintf("make MPS folder: %v", err), Fix: "choose a runtime folder that the node can write with --runtime-dir"}
	}
	defer folder.Close()
	if uid != os.Getuid() {
		if err := os.Lchown(path, uid, -1); err != nil {
			return &Problem{Why: fmt.Sprintf("give MPS folder to user %d: %v", uid, err)}
		}
	}
	return nil
}

// ownedBy reports whether a path is a folder that only the user uid, and root, can write.
func ownedBy(path string, uid int) bool {
	info, err := os.Lstat(path)
	if err != nil {
		return false
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	return ok && info.IsDir() && int(owner.Uid) == uid && info.Mode().Perm()&0o022 == 0
}

// release removes the pipe folder and releases the lock. The logs stay.
func (f folder) release() error {
	err := os.Remove(f.pipe)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return errors.Join(err, f.lock.Close())
}

// lastLog returns the last error in the log of the server or the daemon, for the end of a message.
func (f folder) lastLog() string {
	for _, name := range []string{"server.log", "control.log"} {
		b, err := readOwn(f.logFile(name))
		if err != nil {
			continue
		}
		lines := strings.Split(string(bytes.TrimSpace(b)), "\n")
		for i := len(lines) - 1; i >= 0 && i >= len(lines)-50; i-- {
			l := strings.ToLower(lines[i])
			if strings.Contains(l, "assuming client") {
				continue // logged at the end of each client
			}
			if strings.Contains(l, "fail") || strings.Contains(l, "error") || strings.Contains(l, "denied") {
				_, text, ok := strings.Cut(lines[i], "] ") // follows the time and the process
				if !ok {
					text = lines[i]
				}
				return "; its log: " + strings.TrimSpace(text)
			}
		}
	}
	return ""
}

// readOwn reads a file of the daemon. The daemon's user may have replaced it: by a link to a file
// that only this process may read, or by a pipe that never ends.
func readOwn(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("read %s: not a regular file", path)
	}
	const maxBytes = 64 << 20 // a log that was written for days
	return io.ReadAll(io.LimitReader(f, maxBytes))
}

// sweep kills the processes that run in the folder without an owner, and empties it. The caller
// holds the lock.
func sweep(f folder) error {
	if err := killAll(f); err != nil {
		return err
	}
	entries, err := os.ReadDir(f.pipe)
	if err != nil {
		return fmt.Errorf("empty MPS folder: %w", err)
	}
	var errs []error
	for _, e := range entries {
		errs = append(errs, os.RemoveAll(filepath.Join(f.pipe, e.Name())))
	}
	return errors.Join(errs...)
}
