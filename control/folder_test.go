package control

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rs/zerolog"

	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/private"
)

// TestRuntimeDir tests every kind of runtime folder that another user could change. The
// processes of a node and its clients must refuse all of them.
func TestRuntimeDir(t *testing.T) {
	for name, make := range map[string]func(t *testing.T) string{
		"writable by all": func(t *testing.T) string {
			dir := t.TempDir()
			must.OK(t, os.Chmod(dir, 0o777))
			return dir
		},
		"a link": func(t *testing.T) string {
			dir := filepath.Join(t.TempDir(), "run")
			must.OK(t, os.Symlink(t.TempDir(), dir))
			return dir
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := make(t)
			// A manager of the other user, which would answer.
			l, err := net.Listen("unix", filepath.Join(dir, AdminSocket))
			must.OK(t, err)
			defer l.Close()
			go func() {
				if c, err := l.Accept(); err == nil {
					t.Error("a client connected")
					c.Close()
				}
			}()

			before, err := os.ReadDir(dir)
			must.OK(t, err)
			for verb, err := range map[string]error{
				"make":    errorOf(MakeRuntimeDir(dir)),
				"claim":   errorOf(ClaimOrchestrator(dir)),
				"link":    errorOf(ListenManager(dir, zerolog.Nop())),
				"attach":  errorOf(ListenAttach(AttachSocketPath(dir), os.Getuid(), zerolog.Nop())),
				"admin":   errorOf(ListenAdmin(dir)),
				"order":   errorOf(SendOrder(context.Background(), dir, AddPath, NameOrder{Name: "face"})),
				"status":  errorOf(ReadStatus(context.Background(), dir)),
				"read":    errorOf(ReadFile(filepath.Join(dir, RecordFile), 1)),
				"replace": ReplaceFile(filepath.Join(dir, RecordFile), nil),
			} {
				if !errors.Is(err, private.ErrNotPrivate) || strings.Contains(err.Error(), "\n") {
					t.Errorf("%s: got %v, want one line of %v", verb, err, private.ErrNotPrivate)
				}
			}
			if _, err := ReadStatus(context.Background(), dir); !strings.HasSuffix(err.Error(), "run this command as the user that runs the node") {
				t.Errorf("status: %v, want a hint", err)
			}
			if after, err := os.ReadDir(dir); err != nil || len(after) != len(before) {
				t.Errorf("the folder has %v, had %v (%v)", after, before, err)
			}
		})
	}
}

func errorOf[T any](_ T, err error) error { return err }

// TestRuntimeDirPermissions: only the node's user can use what a node makes.
func TestRuntimeDirPermissions(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	admin, err := ListenAdmin(dir)
	must.OK(t, err)
	defer admin.Close()
	must.OK(t, ReplaceFile(filepath.Join(dir, RecordFile), nil))
	for name, want := range map[string]fs.FileMode{".": 0o700, AdminSocket: 0o600, AdminSocket + ".lock": 0o600, RecordFile: 0o600} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v, %v; want mode %v", name, info, err, want)
		}
	}
}
