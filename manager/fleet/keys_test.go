package fleet

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/rs/zerolog"

	"github.com/penstock/penstock/internal/testing/logtest"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/wait"
)

// TestFollowKeys edits a file of keys: right, empty, and right again.
func TestFollowKeys(t *testing.T) {
	file := filepath.Join(t.TempDir(), "keys")
	write := func(text string) { must.OK(t, os.WriteFile(file, []byte(text), 0o600)) }
	write("the first of the keys\n")
	var log logtest.Log
	var keys atomic.Pointer[[][]byte]
	ctx, cancel := context.WithCancel(t.Context())
	var following sync.WaitGroup
	following.Go(func() {
		followKeys(ctx, file, func(set [][]byte) { keys.Store(&set) }, zerolog.New(&log))
	})
	defer following.Wait()
	defer cancel()
	has := func(want string) bool {
		var all []string
		if p := keys.Load(); p != nil {
			for _, key := range *p {
				all = append(all, string(key))
			}
		}
		return strings.Join(all, ", ") == want
	}
	const both = "the first of the keys, the second of the keys"
	wait.For(t, "first key", func() bool { return has("the first of the keys") })
	write("the first of the keys\nthe second of the keys")
	wait.For(t, "both keys", func() bool { return has(both) })
	write("")
	wait.For(t, "rejected keys", func() bool { return log.Count("keys rejected; keeping the last ones") == 1 })
	if !has(both) {
		t.Error("a wrong file changed the keys")
	}
	write("the second of the keys")
	wait.For(t, "second key", func() bool { return has("the second of the keys") })

	if none, err := readKeys(""); err != nil || none != nil {
		t.Errorf("a function without keys: %q, %v", none, err)
	}
	if _, err := readKeys(filepath.Join(t.TempDir(), "missing")); err == nil {
		t.Error("a missing file is read")
	}
}
