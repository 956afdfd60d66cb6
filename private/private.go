// Package private opens folders and files that no other user can have changed.
//
// A path below a shared folder such as /tmp proves nothing: any user can make a folder of that
// name first, or put a symbolic link there. A process that runs as root and trusts such a folder
// hands root to its owner. This package therefore judges each folder on the way:
//
//	1 walk from / one component at a time, without following links
//	2 judge each folder on the way: only root or this user can replace what is in it
//	3 judge the last folder: it belongs to this user, and only this user can write to it
//	4 open files of that folder, without following links, and judge each like 3
//
// Once a folder is judged, no other user can change what its path leads to. So each step goes on by
// name, and Folder.Path may be used by name, for sockets and by other processes.
//
// "This user" is the effective user of the process. POSIX access lists need no extra check:
// Linux shows their mask as the group's permissions.
package private

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/penstock/penstock/internal/atomicfile"
)

// ErrNotPrivate is in the chain of every error that says that another user could have changed a
// folder or a file.
var ErrNotPrivate = errors.New("another user could have changed it")

// pathError says what is wrong with a folder or a file, and what would be right.
type pathError struct {
	Path  string
	Found string // like "is owned by user 65534, mode 0777"
	Want  string // like "owner 0, no write permission for group or others"
}

func (e *pathError) Error() string { return fmt.Sprintf("%s %s; want %s", e.Path, e.Found, e.Want) }

// Unwrap makes errors.Is(err, ErrNotPrivate) true.
func (e *pathError) Unwrap() error { return ErrNotPrivate }

// ReadFile reads a regular file of at most maxBytes that an operator wrote, such as a configuration. Other users may read
// it, and its group may write it. If all users may write it, ReadFile returns an error that wraps ErrNotPrivate.
func ReadFile(path string, maxBytes int64) ([]byte, error) { return read(path, maxBytes, false) }

// ReadSecret is ReadFile for a file that not all users may read, either.
func ReadSecret(path string, maxBytes int64) ([]byte, error) { return read(path, maxBytes, true) }

func read(path string, maxBytes int64, secret bool) ([]byte, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0) // a pipe without a writer must not stop the caller
	if err != nil {
		return nil, err
	}
	defer file.Close()
	info, err := file.Stat()
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s is not a regular file", path)
	case info.Mode()&0o002 != 0:
		return nil, &pathError{Path: path, Found: fmt.Sprintf("has mode %04o, so every user may write it", info.Mode().Perm()), Want: "`chmod o-w " + path + "`"}
	case secret && info.Mode()&0o004 != 0:
		return nil, &pathError{Path: path, Found: fmt.Sprintf("has mode %04o, so every user may read it", info.Mode().Perm()), Want: "`chmod o-r " + path + "`"}
	case info.Size() > maxBytes:
		return nil, fmt.Errorf("%s has %d bytes, want at most %d", path, info.Size(), maxBytes)
	}
	return io.ReadAll(io.LimitReader(file, maxBytes))
}

// Folder is an open folder that only this user can change. Any goroutine may use it.
type Folder struct {
	path string
	file *os.File
}

// OpenFolder opens the folder at path. The last component must not be a symbolic link. Links
// before it are followed if root or this user made them.
//
// It returns an *Error if another user could have changed the folder or the way to it, and
// fs.ErrNotExist if there is no folder.
func OpenFolder(path string) (*Folder, error) { return open(path, 0) }

// MakeFolder opens the folder at path as OpenFolder does. It first makes the folder, and those
// above it, with the given permissions if they are missing. The umask applies.
func MakeFolder(path string, mode fs.FileMode) (*Folder, error) {
	if mode.Perm() == 0 {
		return nil, fmt.Errorf("make folder %s: no permissions given", path)
	}
	return open(path, mode.Perm())
}

// Path is the absolute path of the folder, without symbolic links.
func (f *Folder) Path() string { return f.path }

// Close closes the folder; files that were opened in it stay open.
func (f *Folder) Close() error { return f.file.Close() }

// Lock waits until no other process, and no other Folder of this one, has the folder locked. Close
// ends the lock.
func (f *Folder) Lock() error {
	for {
		switch err := unix.Flock(int(f.file.Fd()), unix.LOCK_EX); {
		case err == nil:
			return nil
		case !errors.Is(err, unix.EINTR):
			return &fs.PathError{Op: "lock", Path: f.path, Err: err}
		}
	}
}

// Open opens a regular file of the folder with the flags of os.OpenFile; a new file has the mode
// 0600. It returns an *Error if another user could have written the file.
func (f *Folder) Open(name string, flag int) (*os.File, error) {
	path := filepath.Join(f.path, name)
	if name != filepath.Base(name) || name == "." || name == ".." {
		return nil, fmt.Errorf("open %s: want a name without folders", path)
	}

	// O_NONBLOCK: a pipe without a writer must not stop the caller.
	file, err := os.OpenFile(path, flag|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOCTTY, 0o600)
	if errors.Is(err, unix.ELOOP) {
		return nil, symlink(path)
	}
	if err != nil {
		return nil, err
	}
	about, err := stat(file)
	if err == nil && about.Mode&unix.S_IFMT != unix.S_IFREG {
		err = fmt.Errorf("open %s: not a regular file", path)
	}
	if err == nil {
		err = judgeOwn(path, about)
	}
	if err != nil {
		file.Close()
		return nil, err
	}
	return file, nil
}

// ReadFile reads a file of the folder; see Open for its errors. A file of more than maxBytes is
// an error.
func (f *Folder) ReadFile(name string, maxBytes int64) ([]byte, error) {
	file, err := f.Open(name, os.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer file.Close()

	data, err := io.ReadAll(io.LimitReader(file, maxBytes+1))
	if err == nil && int64(len(data)) > maxBytes {
		err = fmt.Errorf("read %s: more than %d bytes", file.Name(), maxBytes)
	}
	return data, err
}

// ReplaceFile replaces a file of the folder, which only this user may read, or makes it; see atomicfile.Replace.
func (f *Folder) ReplaceFile(name string, data []byte) error {
	return atomicfile.Replace(filepath.Join(f.path, name), data, 0o600)
}

// maxLinks is the number of symbolic links that one path may have (MAXSYMLINKS of
// linux/namei.h).
const maxLinks = 40

// open walks to a folder and makes what is missing if mode is not 0.
func open(path string, mode fs.FileMode) (*Folder, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	root, err := statFolder("/")
	if err != nil {
		return nil, err
	}
	w, at, rest := walk{path, root.Uid}, "/", components(path)
	for links := 0; len(rest) > 0; {
		next, last := filepath.Join(at, rest[0]), len(rest) == 1
		about, err := enter(next, mode)
		switch {
		case err == nil:
			if !last {
				err = w.judgeParent(next, about)
			}
			at, rest = next, rest[1:]
		case errors.Is(err, unix.ENOTDIR):
			if links++; links > maxLinks {
				return nil, &fs.PathError{Op: "open", Path: path, Err: unix.ELOOP}
			}
			var target string
			if target, err = w.follow(next, last); filepath.IsAbs(target) {
				at = "/"
			}
			rest = append(components(target), rest[1:]...)
		}
		if err != nil {
			return nil, err
		}
	}

	file, err := os.OpenFile(at, unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	about, err := stat(file)
	if err == nil {
		err = judgeOwn(at, about)
	}
	if err != nil {
		file.Close()
		return nil, err
	}
	return &Folder{path: at, file: file}, nil
}

// enter returns the state of a folder, and makes it if it is missing and mode is not 0. It returns
// ENOTDIR if there is something else.
func enter(path string, mode fs.FileMode) (*unix.Stat_t, error) {
	about, err := statFolder(path)
	if errors.Is(err, fs.ErrNotExist) && mode != 0 {
		// Another process may make it at the same time.
		if err := os.Mkdir(path, mode); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, err
		}
		return statFolder(path)
	}
	return about, err
}

// statFolder returns the state of a folder. It opens it, because that triggers an automount.
func statFolder(path string) (*unix.Stat_t, error) {
	file, err := os.OpenFile(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return stat(file)
}

func stat(file *os.File) (*unix.Stat_t, error) {
	var about unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &about); err != nil {
		return nil, &fs.PathError{Op: "stat", Path: file.Name(), Err: err}
	}
	return &about, nil
}

// walk is a way through the file system.
type walk struct {
	wanted string // the path that the caller gave
	owner  uint32 // of /
}

// follow returns the target of a symbolic link in a judged folder.
func (w *walk) follow(path string, last bool) (target string, err error) {
	var about unix.Stat_t
	if err := unix.Lstat(path, &about); err != nil {
		return "", &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	switch {
	case about.Mode&unix.S_IFMT != unix.S_IFLNK:
		return "", &fs.PathError{Op: "open", Path: path, Err: unix.ENOTDIR}
	case last:
		return "", symlink(path)
	case !w.trusts(about.Uid):
		return "", &pathError{path, fmt.Sprintf("is a symbolic link of user %d", about.Uid), fmt.Sprintf("a folder, or a link of user %d or root", os.Geteuid())}
	}
	return os.Readlink(path)
}

// trusts reports whether a user can be relied on not to replace folders: this user, and root.
// The owner of / counts as root: root has another number in a user namespace that does not map
// user 0.
func (w *walk) trusts(uid uint32) bool {
	return uid == 0 || uid == w.owner || int(uid) == os.Geteuid()
}

// judgeParent returns an *Error if an untrusted user can replace what is in a folder. In a
// sticky folder only the owner of an entry can, and the walk judges that owner next.
func (w *walk) judgeParent(path string, about *unix.Stat_t) error {
	if w.trusts(about.Uid) && (about.Mode&othersWrite == 0 || about.Mode&unix.S_ISVTX != 0) {
		return nil
	}
	want := fmt.Sprintf("owner root or %d, and no write permission for group or others or the sticky bit (chmod +t), because it leads to %s", os.Geteuid(), w.wanted)
	return &pathError{path, describe(about), want}
}

const othersWrite = unix.S_IWGRP | unix.S_IWOTH

// judgeOwn returns an *Error unless a folder or file belongs to this user, and only this user
// can write to it.
func judgeOwn(path string, about *unix.Stat_t) error {
	if int(about.Uid) == os.Geteuid() && about.Mode&othersWrite == 0 {
		return nil
	}
	return &pathError{path, describe(about), fmt.Sprintf("owner %d, no write permission for group or others", os.Geteuid())}
}

func describe(about *unix.Stat_t) string {
	return fmt.Sprintf("is owned by user %d, mode %04o", about.Uid, about.Mode&0o7777)
}

func symlink(path string) error {
	return &pathError{path, "is a symbolic link", "a file or folder, no link"}
}

// components splits a path, without empty components and ".".
func components(path string) []string {
	return strings.FieldsFunc(path, func(r rune) bool { return r == '/' })
}
