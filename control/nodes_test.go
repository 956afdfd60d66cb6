package control

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/private"
)

// listenNode makes a node that has only an admin socket.
func listenNode(t *testing.T, dir string) (end func()) {
	t.Helper()
	l, err := ListenAdmin(dir)
	must.OK(t, err)
	t.Cleanup(func() { l.Close() })
	return func() { l.Close() }
}

// register lets clients find a node through the default folder place.
func register(t *testing.T, place, dir string) {
	t.Helper()
	must.Get(registerNode(filepath.Join(place, nodesDir), dir))(t)
}

func TestFindNode(t *testing.T) {
	for name, test := range map[string]struct {
		prepare func(t *testing.T, service, shell, other string)
		want    string   // the folder, relative to the test's; empty for an error
		says    []string // parts of the error
	}{
		"none":               {prepare: func(*testing.T, string, string, string) {}, says: []string{"no node of user", "/service", "/shell", "--runtime-dir"}},
		"in the default":     {prepare: func(t *testing.T, _, shell, _ string) { listenNode(t, shell) }, want: "shell"},
		"another's default":  {prepare: func(t *testing.T, service, _, _ string) { listenNode(t, service) }, want: "service"},
		"in a chosen folder": {prepare: func(t *testing.T, _, shell, other string) { listenNode(t, other); register(t, shell, other) }, want: "other"},
		"of a service": {prepare: func(t *testing.T, service, _, other string) {
			listenNode(t, other)
			register(t, service, other)
		}, want: "other"},
		"registered twice": {prepare: func(t *testing.T, service, shell, _ string) {
			listenNode(t, shell)
			register(t, shell, shell)
			register(t, service, shell)
		}, want: "shell"},
		"one ended": {prepare: func(t *testing.T, _, shell, other string) {
			end := listenNode(t, other)
			register(t, shell, other)
			end()
			listenNode(t, shell)
		}, want: "shell"},
		"two": {prepare: func(t *testing.T, _, shell, other string) {
			listenNode(t, other)
			register(t, shell, other)
			listenNode(t, shell)
		}, says: []string{"2 nodes", "--runtime-dir", "/shell", "/other"}},
		"a folder that all can write": {prepare: func(t *testing.T, service, shell, _ string) {
			listenNode(t, service)
			must.OK(t, os.Chmod(service, 0o777))
		}, says: []string{"no node of user", "ignored", "/service is owned by"}},
		"a node that all can write": {prepare: func(t *testing.T, _, shell, other string) {
			listenNode(t, other)
			register(t, shell, other)
			must.OK(t, os.Chmod(other, 0o777))
		}, says: []string{"no node of user"}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			shell, service, other := filepath.Join(dir, "shell"), filepath.Join(dir, "service"), filepath.Join(dir, "other")
			test.prepare(t, service, shell, other)
			got, err := findNode([]string{shell, service, shell})
			if test.want != "" && (err != nil || got != filepath.Join(dir, test.want)) {
				t.Errorf("found %q, %v; want %s", got, err, test.want)
			}
			for _, text := range test.says {
				if err == nil || !strings.Contains(err.Error(), text) {
					t.Errorf("found %q, %v; want an error with %q", got, err, text)
				}
			}
		})
	}
}

func TestRegisterNode(t *testing.T) {
	place := filepath.Join(t.TempDir(), "run")
	t.Setenv("XDG_RUNTIME_DIR", filepath.Dir(place))
	place = DefaultRuntimeDir()
	links := func() (n int) { return len(registered(filepath.Join(place, nodesDir))) }

	t.Run("release", func(t *testing.T) {
		dir := t.TempDir()
		listenNode(t, dir)
		release, err := RegisterNode(dir)
		if err != nil || links() != 1 {
			t.Fatalf("%d nodes, %v; want 1", links(), err)
		}
		release()
		if links() != 0 {
			t.Errorf("%d nodes are registered after release", links())
		}
	})
	t.Run("a killed node", func(t *testing.T) {
		old, dir := t.TempDir(), t.TempDir()
		end := listenNode(t, old)
		register(t, place, old)
		end()
		listenNode(t, dir)
		register(t, place, dir)
		register(t, place, dir) // its manager was started again
		if links() != 1 {
			t.Errorf("registered are %v, want %s", registered(filepath.Join(place, nodesDir)), dir)
		}
	})
	t.Run("a folder that all can write", func(t *testing.T) {
		must.OK(t, os.Chmod(filepath.Join(place, nodesDir), 0o777))
		if release, err := RegisterNode(t.TempDir()); !errors.Is(err, private.ErrNotPrivate) {
			t.Errorf("%v, want %v", err, private.ErrNotPrivate)
			release()
		}
	})
}
