package control

import (
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/penstock/penstock/internal/testing/must"
)

func TestListenerRestore(t *testing.T) {
	invariants(t)
	for _, row := range []struct {
		name   string
		remove func(dir string) error
		want   bool
	}{
		{"socket file is there", func(string) error { return nil }, false},
		{"socket file is gone", func(dir string) error { return os.Remove(filepath.Join(dir, "a.sock")) }, true},
		{"folder is gone", os.RemoveAll, true},
	} {
		t.Run(row.name, func(t *testing.T) {
			dir := filepath.Join(socketDir(t), "run")
			path := filepath.Join(dir, "a.sock")
			l, err := openListener("unix", path)
			must.OK(t, err)
			accepted := make(chan net.Conn)
			go func() {
				defer close(accepted)
				for {
					c, err := l.Accept()
					if err != nil {
						return
					}
					accepted <- c
				}
			}()
			must.OK(t, row.remove(dir))
			if restored, err := l.Restore(); restored != row.want || err != nil {
				t.Errorf("restored: %v, %v; want %v", restored, err, row.want)
			}
			if restored, err := l.Restore(); restored || err != nil {
				t.Errorf("restored again: %v, %v", restored, err)
			}
			c, err := net.Dial("unix", path)
			must.OK(t, err)
			(<-accepted).Close()
			c.Close()
			if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
				t.Errorf("folder is %v, %v; want mode 700", info, err)
			}
			if err := l.Close(); err != nil {
				t.Error(err)
			}
			<-accepted
			if _, err := os.Lstat(path); err == nil {
				t.Error("socket file is left")
			}
		})
	}
}
