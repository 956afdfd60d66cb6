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

// OfGPU is a name in the runtime folder for what a GPU has there. The path of a socket must be short, so the name has
// only the begin of the UUID ("GPU-" and 8 digits).
func OfGPU(name, uuid string) string { return fmt.Sprintf("%s-%.12s", name, uuid) }

// pipeFolder returns the pipe folder of a GPU. It is in the runtime folder, unless the
// path would be too long. Then it is a folder in /tmp that is named after it, so
// that another process finds it again.
func pipeFolder(dir, uuid string) string {
	pipe := filepath.Join(dir, OfGPU("mps", uuid))
	if len(pipe) <= longestPipe {
		return pipe
	}
	sum := sha256.Sum256([]byte(pipe))
	name := fmt.Sprintf("penstock-mps-%d-%s", os.Getuid(), hex.EncodeToString(sum[:6]))
	if pipe = filepath.Join(os.TempDir(), name); len(pipe) <= longestPipe {
		return pipe
	}
	return filepath.Join("/tmp", name)
}

// openFolder makes the folders of a GPU in a runtime folder, for the user uid, and locks them. It returns a
// *Problem if another process holds the lock, or if a folder cannot be trusted.
func openFolder(dir, uuid string, uid int) (folder, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return folder{}, &Problem{Why: fmt.Sprintf("find runtime folder: %v", err)}
	}
	f := folderOf(dir, uuid)
	if f.lock, err = lock(dir, uuid); err != nil {
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

// folderOf returns the paths of a GPU's folder.
func folderOf(dir, uuid string) folder {
	return folder{pipe: pipeFolder(dir, uuid), log: filepath.Join(dir, OfGPU("mps-log", uuid))}
}

const lockName = "mps-lock"

// lock takes the lock of a GPU's folder. The kernel releases it when the process ends, however it
// ends.
func lock(dir, uuid string) (*os.File, error) {
	folder, err := private.OpenFolder(dir)
	if err != nil {
		return nil, &Problem{Why: fmt.Sprintf("lock MPS folder: %v", err), Fix: "choose another runtime folder with --runtime-dir"}
	}
	defer folder.Close()
	l, err := folder.Open(OfGPU(lockName, uuid), os.O_CREATE|os.O_RDWR)
	if err != nil {
		return nil, &Problem{Why: fmt.Sprintf("lock MPS folder: %v", err), Fix: "choose a runtime folder that the node can write with --runtime-dir"}
	}
	switch err := lockfile.Try(l); {
	case errors.Is(err, lockfile.ErrLocked):
		l.Close()
		return nil, &Problem{
			Why: fmt.Sprintf("another orchestrator owns the MPS daemon of %s in %s", uuid, dir),
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
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("empty MPS folder: %w", err)
	}
	var errs []error
	for _, e := range entries {
		errs = append(errs, os.RemoveAll(filepath.Join(f.pipe, e.Name())))
	}
	return errors.Join(errs...)
}

// Sweep ends the daemons without an owner in a runtime folder: those of GPUs that a node no longer uses. Call it when the
// daemons of all others have started.
func Sweep(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	var errs []error
	for _, e := range entries {
		uuid, ok := strings.CutPrefix(e.Name(), lockName+"-")
		if !ok {
			continue
		}
		f := folderOf(dir, uuid)
		if f.lock, err = lock(dir, uuid); err != nil {
			continue // it has an owner
		}
		errs = append(errs, sweep(f), f.release())
	}
	return errors.Join(errs...)
}
