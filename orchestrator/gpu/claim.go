package gpu

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/penstock/penstock/internal/lockfile"
)

// LocksVariable is the environment variable that names the folder of locks in place of /dev/shm.
const LocksVariable = "PENSTOCK_GPU_LOCKS"

// holder is the content of a lock: the node that has the GPU. Any user may write to it, so it is only for people.
type holder struct {
	PID int    `json:"pid"`
	Dir string `json:"runtime_dir"`
}

// Claim makes the GPU or MIG instance this node's until release, or until the process ends. It is a lock, by flock(2), on a
// file that all users share. Services with a private /tmp share /dev/shm, and no cleaner of temporary folders empties it.
// The file stays: to remove it while another process opens it would break the lock.
func (m Here) Claim(uuid string) (release func(), err error) {
	name := "penstock-" + strings.ReplaceAll(uuid, "/", "_") + ".lock"
	f, err := openLock(filepath.Join(cmp.Or(os.Getenv(LocksVariable), "/dev/shm"), name))
	if err != nil { // like a CPU that cannot be claimed
		m.Log.Warn().Err(err).Msg("cannot claim the GPU; other nodes may use it too")
		return func() {}, nil
	}
	if err := lockfile.Try(f); err != nil {
		var h holder
		text, _ := io.ReadAll(io.LimitReader(f, 8<<10))
		_ = json.Unmarshal(text, &h) // it has yet to be written
		f.Close()
		switch {
		case !errors.Is(err, lockfile.ErrLocked):
			return nil, fmt.Errorf("claim %s: %w", uuid, err)
		case h.PID == os.Getpid():
			return nil, fmt.Errorf("%s is the same GPU as another device of this node; name each once", uuid)
		}
		return nil, fmt.Errorf("another node has %s: process %d, with runtime folder %q; stop that node, or use another device", uuid, h.PID, h.Dir)
	}
	text, err := json.Marshal(holder{os.Getpid(), m.Dir})
	if err == nil {
		err = errors.Join(f.Truncate(0), write(f, text))
	}
	if err != nil {
		m.Log.Debug().Err(err).Msg("cannot write to the lock of the GPU which node has it")
	}
	return func() { f.Close() }, nil
}

func write(f *os.File, text []byte) error {
	_, err := f.WriteAt(text, 0)
	return err
}

// openLock opens a file that every user may lock, and makes it if it is missing.
func openLock(path string) (*os.File, error) {
	for {
		// With O_CREATE the kernel may refuse a file of another user (fs.protected_regular).
		f, err := os.OpenFile(path, os.O_RDWR|syscall.O_NOFOLLOW, 0)
		if !errors.Is(err, fs.ErrNotExist) {
			return f, err
		}
		f, err = os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o666)
		if err == nil {
			return f, f.Chmod(0o666) // whatever the umask
		}
		if !errors.Is(err, fs.ErrExist) {
			return nil, err
		}
	}
}
