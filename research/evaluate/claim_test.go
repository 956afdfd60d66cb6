package evaluate

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/penstock/penstock/internal/testing/must"
)

// Calls for different figures on different devices can use one folder at the same time, and
// leave no files there.
func TestClaim(t *testing.T) {
	out := filepath.Join(t.TempDir(), "made")
	take := func(figure, device string) func() {
		t.Helper()
		release, err := claim(out, figure, device)
		must.OK(t, err)
		return release
	}
	first, second := take("fig8", "GPU-0"), take("fig9", "GPU-1")
	for _, c := range [][2]string{{"fig8", "GPU-2"}, {"fig1", "GPU-1"}, {"fig8", "GPU-0"}} {
		_, err := claim(out, c[0], c[1])
		if !errors.Is(err, errInUse) || !strings.Contains(err.Error(), fmt.Sprint("process ", os.Getpid(), " has ")) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s on %s: error %v", c[0], c[1], err)
		}
	}
	first()
	take("fig8", "GPU-2")()
	take("fig1", "GPU-0")()
	second()
	if left, err := os.ReadDir(out); err != nil || len(left) > 0 {
		t.Errorf("%v is left, %v", left, err)
	}
}

// A call that arrives while the lock's file is being removed must not lock the removed
// file.
func TestLock(t *testing.T) {
	out := t.TempDir()
	var holders, held atomic.Int64
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 200 {
				release, err := lock(out, "fig8")
				if errors.Is(err, errInUse) {
					continue
				}
				if err != nil {
					t.Error(err)
					return
				}
				if n := holders.Add(1); n != 1 {
					t.Errorf("%d hold it", n)
				}
				held.Add(1)
				holders.Add(-1)
				release()
			}
		})
	}
	all.Wait()
	if held.Load() == 0 {
		t.Error("nobody ever held it")
	}
}

// A second call fails before it reads or measures anything, and leaves the first call's
// report unchanged.
func TestSecondCall(t *testing.T) {
	o := quickly(t, "/nowhere/penstock", "table5")
	release, err := claim(o.Out, "table5", "GPU-0")
	must.OK(t, err)
	defer release()
	if _, err := Run(t.Context(), o); !errors.Is(err, errInUse) {
		t.Errorf("a second call: %v", err)
	}
	if _, err := os.Stat(filepath.Join(o.Out, "table5.json")); err == nil {
		t.Error("it wrote a report")
	}
}

func TestFolderReadOnly(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	must.OK(t, os.WriteFile(file, nil, 0o600))
	for _, out := range []string{file, filepath.Join(file, "below"), "/proc/self"} {
		o := quickly(t, "/nowhere/penstock", "table5")
		o.Out, o.Progress = out, func(what string) { t.Errorf("--out %s: it began: %s", out, what) }
		if _, err := Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), "folder of reports") {
			t.Errorf("--out %s: error %v", out, err)
		}
	}
}

func TestDamagedReport(t *testing.T) {
	for _, text := range []string{"", `{"version": 1, "results": [`, "{}", `[]`} {
		o := quickly(t, "/nowhere/penstock", "table5")
		file := filepath.Join(o.Out, "table5.json")
		must.OK(t, os.WriteFile(file, []byte(text), 0o600))
		_, err := Run(t.Context(), o)
		if err == nil || !strings.Contains(err.Error(), file) || !strings.Contains(err.Error(), "remove it, and the figure is measured again") {
			t.Errorf("%q: error %v", text, err)
		}
		if now, err := os.ReadFile(file); err != nil || string(now) != text {
			t.Errorf("%q was touched: %q, %v", text, now, err)
		}
	}
}
