package control

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/penstock/penstock/private"
)

// A client finds the nodes of its user without a flag:
//
//	1 a manager that serves puts a link to its runtime folder into nodesDir of the user's
//	  default runtime folder, and removes it when it ends           (RegisterNode)
//	2 a client reads the links of every default folder, adds the default folders themselves,
//	  and keeps those with an admin socket that accepts connections (FindNode)
//
// If a killed manager left a link, the next manager that registers removes it.

// nodesDir is the folder of links, in the default runtime folder.
const nodesDir = "nodes"

// DefaultRuntimeDir is the runtime folder of a node that is started without one. It is penstock
// in $XDG_RUNTIME_DIR, else penstock-UID in the temporary folder.
func DefaultRuntimeDir() string { return defaultRuntimeDirs()[0] }

// serviceRuntimeDir is the runtime folder of the node that systemd runs (configs/systemd).
const serviceRuntimeDir = "/run/penstock"

// defaultRuntimeDirs returns all values that DefaultRuntimeDir can have for this user, and
// serviceRuntimeDir. The first is that of this process. A service and a shell of one user often
// differ in $XDG_RUNTIME_DIR.
func defaultRuntimeDirs() []string {
	uid := os.Geteuid()
	temporary := fmt.Sprintf("penstock-%d", uid)
	dirs := []string{
		filepath.Join(os.TempDir(), temporary),
		filepath.Join("/tmp", temporary),
		fmt.Sprintf("/run/user/%d/penstock", uid),
		serviceRuntimeDir,
	}
	if dir := os.Getenv("XDG_RUNTIME_DIR"); dir != "" {
		dirs = slices.Insert(dirs, 0, filepath.Join(dir, "penstock"))
	}
	return dirs
}

// registerEvery is the interval at which a registration is renewed: cleaners of temporary
// folders remove links that are days old.
const registerEvery = 10 * time.Second

// RegisterNode lets clients find the node with the runtime folder dir until release is called.
// The node's admin socket must already accept connections.
func RegisterNode(dir string) (release func(), err error) {
	path := filepath.Join(DefaultRuntimeDir(), nodesDir)
	link, err := registerNode(path, dir)
	if err != nil {
		return nil, fmt.Errorf("register node in %s: %w", path, err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(registerEvery)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				if _, err := os.Lstat(link); err != nil {
					_, _ = registerNode(path, dir) // the next tick tries again
				}
			}
		}
	}()
	return func() {
		cancel()
		<-ended
		os.Remove(link)
	}, nil
}

// registerNode puts a link to dir into the folder path, and removes links to nodes that have
// ended.
func registerNode(path, dir string) (link string, err error) {
	dir, err = filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	folder, err := private.MakeFolder(path, 0o700)
	if err != nil {
		return "", err
	}
	defer folder.Close()

	// A node listens before it registers. So, under the lock, a link to a node that does not
	// listen is an old one.
	if err := folder.Lock(); err != nil {
		return "", err
	}
	for link, dir := range registered(folder.Path()) {
		if !listens(dir) {
			os.Remove(link)
		}
	}
	sum := sha256.Sum256([]byte(dir))
	link = filepath.Join(folder.Path(), hex.EncodeToString(sum[:8]))
	if err := os.Symlink(dir, link); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", err
	}
	return link, nil
}

// registered returns the runtime folder that each link in a folder points to.
func registered(path string) map[string]string {
	dirs := map[string]string{}
	entries, _ := os.ReadDir(path)
	for _, e := range entries {
		link := filepath.Join(path, e.Name())
		if dir, err := os.Readlink(link); err == nil {
			dirs[link] = dir
		}
	}
	return dirs
}

// listens reports whether a node of this user runs with a runtime folder.
func listens(dir string) bool {
	folder, err := private.OpenFolder(dir)
	if err != nil {
		return false
	}
	defer folder.Close()
	c, err := net.DialTimeout("unix", filepath.Join(folder.Path(), AdminSocket), statusPatience)
	if err != nil {
		return false
	}
	c.Close()
	return true
}

// FindNode returns the runtime folder of this user's only running node. It returns an error if
// none runs, or more than one.
func FindNode() (dir string, err error) { return findNode(defaultRuntimeDirs()) }

// Nodes returns the runtime folders of this user's running nodes.
func Nodes() []string {
	found, _, _ := findNodes(defaultRuntimeDirs())
	return found
}

// findNodes returns the runtime folders of the running nodes that the default folders lead to, the
// places that it looked in, and why it ignored some.
func findNodes(defaults []string) (found, places []string, ignored []error) {
	for _, place := range defaults {
		folder, err := private.OpenFolder(place)
		if errors.Is(err, private.ErrNotPrivate) {
			ignored = append(ignored, err) // another user's folder: its links prove nothing
		}
		if err == nil {
			place = folder.Path()
			folder.Close()
		}
		if slices.Contains(places, place) {
			continue
		}
		places = append(places, place)
		if err != nil {
			continue
		}

		dirs := []string{place}
		for _, dir := range registered(filepath.Join(place, nodesDir)) {
			dirs = append(dirs, dir)
		}
		for _, dir := range dirs {
			if !slices.Contains(found, dir) && listens(dir) {
				found = append(found, dir)
			}
		}
	}

	slices.Sort(found)
	return found, places, ignored
}

func findNode(defaults []string) (dir string, err error) {
	found, places, ignored := findNodes(defaults)
	switch len(found) {
	case 0:
		err := fmt.Errorf("find node: no node of user %d runs (looked in %s); start one with `penstock up`, or name its runtime folder with --runtime-dir",
			os.Geteuid(), strings.Join(places, ", "))
		for _, why := range ignored {
			err = fmt.Errorf("%w; ignored %w", err, why)
		}
		return "", err
	case 1:
		return found[0], nil
	}
	return "", fmt.Errorf("find node: %d nodes of user %d run; choose one:\n  --runtime-dir %s",
		len(found), os.Geteuid(), strings.Join(found, "\n  --runtime-dir "))
}
