package sandbox

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// A passage makes a path reachable below a folder that the user may not search, such as
// /root. In a mount namespace of the process, an empty folder covers the closed one. It has
// nothing but the way to the path. The path's own mode applies as before.
//
//	/root           0700           /root           0755, empty but for
//	├── .ssh                       └── models
//	└── models/face      ──>           └── face    the same folder as outside
//
// Without a passage, a node in root's home, or in a temporary folder, could not start
// functions as another user.

// closedFolder is a path that a user cannot use.
type closedFolder struct {
	Path string
	// At is the file or folder whose mode keeps the user out.
	At   string
	Mode fs.FileMode
	User string
}

func (c *closedFolder) Error() string {
	if c.At == c.Path {
		return fmt.Sprintf("user %s cannot read %s: it has mode %04o; run chmod a+rX %s", c.User, c.Path, c.Mode.Perm(), c.At)
	}
	return fmt.Sprintf("user %s cannot reach %s: folder %s has mode %04o; move the file, or run chmod a+x %s", c.User, c.Path, c.At, c.Mode.Perm(), c.At)
}

// hasRight reports whether the user has a right (r: 4, x: 1) on a file.
func (u *User) hasRight(right uint32, about *unix.Stat_t) bool {
	switch {
	case int(about.Uid) == u.UID:
		right <<= 6
	case int(about.Gid) == u.GID || slices.Contains(u.Groups, int(about.Gid)):
		right <<= 3
	}
	return about.Mode&right == right
}

// closedAbove returns the first folder above a path that the user may not search. It is
// empty if there is none, or if the path does not exist.
func (u *User) closedAbove(path string) string {
	for i := 1; i < len(path); i++ {
		if path[i] != '/' {
			continue
		}
		var about unix.Stat_t
		if err := unix.Stat(path[:i], &about); err != nil {
			return ""
		}
		if !u.hasRight(1, &about) {
			return path[:i]
		}
	}
	return ""
}

// entry is a path below a covered folder. It is a link if it has a target; otherwise it is a
// file or folder that stays visible. An empty entry is a closed folder itself: it exists, as
// a working folder must, and holds only the entries below it.
type entry struct {
	path   string
	target string
	empty  bool
}

// passages lists what stays visible below each closed folder. It resolves links in the
// paths.
func passages(u *User, paths []string) map[string][]entry {
	covered := map[string][]entry{}
	seen := map[string]bool{}
	var add func(path string)
	add = func(path string) {
		if seen[path] {
			return
		}
		seen[path] = true
		if at, target, ok := firstLink(path); ok {
			if top := u.closedAbove(at); top != "" {
				covered[top] = append(covered[top], entry{path: at, target: target})
			}
			rest := strings.TrimPrefix(path, at)
			if !filepath.IsAbs(target) {
				target = filepath.Join(filepath.Dir(at), target)
			}
			add(filepath.Clean(target + rest))
			return
		}
		var about unix.Stat_t
		if unix.Stat(path, &about) != nil {
			return
		}
		// A closed folder that stays visible would hide the needed paths in it.
		closed := about.Mode&unix.S_IFMT == unix.S_IFDIR && !u.hasRight(1, &about)
		if top := u.closedAbove(path); top != "" {
			covered[top] = append(covered[top], entry{path: path, empty: closed})
		}
	}
	for _, p := range paths {
		add(p)
	}
	for top, entries := range covered {
		slices.SortFunc(entries, func(a, b entry) int { return strings.Compare(a.path, b.path) })
		covered[top] = slices.Compact(withoutInner(entries))
	}
	return covered
}

// firstLink returns the first component of a path that is a symbolic link.
func firstLink(path string) (at, target string, ok bool) {
	for i := 1; i <= len(path); i++ {
		if i < len(path) && path[i] != '/' {
			continue
		}
		if target, err := os.Readlink(path[:i]); err == nil {
			return path[:i], target, true
		}
	}
	return "", "", false
}

// withoutInner drops, from sorted entries, those within a folder that stays visible as a
// whole.
func withoutInner(entries []entry) (kept []entry) {
	outer := "" // the last folder that was kept, with a slash
	for _, e := range entries {
		if outer != "" && strings.HasPrefix(e.path+"/", outer) {
			continue
		}
		kept = append(kept, e)
		if e.target == "" && !e.empty {
			outer = e.path + "/"
		}
	}
	return kept
}

// openPassages makes all paths that exist reachable for the user. It changes the mount
// namespace of the calling thread. It does nothing if the user can reach all of them.
func openPassages(u *User, paths []string) error {
	if u == nil {
		return nil
	}
	covered := passages(u, paths)
	if len(covered) == 0 {
		return nil
	}
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		for top, entries := range covered {
			return fmt.Errorf("user %s cannot reach %s: folder %s is closed to it, and opening a passage needs CAP_SYS_ADMIN (%w); move the file, or run chmod o+x %s",
				u.Name, entries[0].path, top, err, top)
		}
	}
	// Other users must be able to search the folders made below, whatever the orchestrator's
	// umask.
	defer unix.Umask(unix.Umask(0o022))
	// These mounts must not be visible outside.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return fmt.Errorf("open passages: %w", err)
	}
	for top, entries := range covered {
		if err := cover(top, entries); err != nil {
			return fmt.Errorf("open passage below %s: %w", top, err)
		}
	}
	return nil
}

// cover mounts an empty folder over top, and puts the entries into it.
func cover(top string, entries []entry) error {
	var trees []*tree
	defer func() {
		for _, t := range trees {
			t.close()
		}
	}()
	for _, e := range entries {
		t, err := openTree(e)
		if err != nil {
			return err
		}
		if t != nil {
			trees = append(trees, t)
		}
	}
	if err := unix.Mount("penstock", top, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0755,size=1m"); err != nil {
		return fmt.Errorf("cover: %w", err)
	}
	for _, t := range trees {
		if err := t.place(); err != nil {
			return err
		}
	}
	return nil
}

// tree is an entry with a copy of its mount.
type tree struct {
	entry
	fd     int // -1 if the entry needs no copy
	folder bool
}

// openTree copies the mount of an entry. It returns nil if the entry does not exist.
func openTree(e entry) (*tree, error) {
	t := &tree{entry: e, fd: -1}
	if e.target != "" || e.empty {
		return t, nil
	}
	info, err := os.Stat(e.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	t.folder = info.IsDir()
	if t.fd, err = unix.OpenTree(unix.AT_FDCWD, e.path, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE); err != nil {
		return nil, fmt.Errorf("copy mount of %s: %w", e.path, err)
	}
	return t, nil
}

// place makes the entry at its path, which is in the new folder now.
func (t *tree) place() error {
	if err := os.MkdirAll(filepath.Dir(t.path), 0o755); err != nil {
		return err
	}
	switch {
	case t.target != "":
		return os.Symlink(t.target, t.path)
	case t.empty:
		return os.MkdirAll(t.path, 0o755)
	}
	var err error
	if t.folder {
		err = os.MkdirAll(t.path, 0o755)
	} else {
		err = os.WriteFile(t.path, nil, 0o600)
	}
	if err != nil {
		return err
	}
	if err := unix.MoveMount(t.fd, "", unix.AT_FDCWD, t.path, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("mount %s: %w", t.path, err)
	}
	return nil
}

func (t *tree) close() {
	if t.fd >= 0 {
		unix.Close(t.fd)
	}
}
