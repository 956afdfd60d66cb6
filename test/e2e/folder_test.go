package e2e

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/nodetest"
	"github.com/penstock/penstock/internal/testing/wait"
	"github.com/penstock/penstock/node"
)

// TestFolderRemoved removes the contents of the runtime folder under traffic, as
// programs that clean temporary folders do, and then the folder itself.
func TestFolderRemoved(t *testing.T) {
	for _, row := range []struct {
		name   string
		remove func(dir string) error
	}{
		{"files", func(dir string) error {
			entries, err := os.ReadDir(dir)
			for _, e := range entries {
				if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
					return err
				}
			}
			return err
		}},
		{"folder", os.RemoveAll},
	} {
		t.Run(row.name, func(t *testing.T) {
			nd := startApart(t, oneFunction(nodetest.Card(t, "digest", small)))
			active, _ := nodetest.Serving(t, nd, "fn")
			p := startProbe(t, nd, "fn")
			wait.For(t, "answers", func() bool { return p.answeredAfter(time.Time{}) })

			removed := time.Now()
			if err := row.remove(nd.Dir); err != nil { // the node has restored it meanwhile
				t.Logf("remove again after: %v", err)
				must.OK(t, row.remove(nd.Dir))
			}
			// The node checks every 500 ms and may find the folder in part removed, each time.
			checks := 2 + int(time.Since(removed)/(500*time.Millisecond))
			wait.For(t, "penstock if list", func() bool {
				_, err := run(t, nd.Dir, "if", "list")
				return err == nil
			})
			t.Logf("`penstock if list` works again after %v, goal 2s", time.Since(removed).Round(time.Millisecond))
			if outage := p.outage(removed, time.Now()); outage > 10*time.Second {
				t.Errorf("requests had no answer for %v, want no outage", outage)
			}
			if now, _ := nodetest.Serving(t, nd, "fn"); now.PID != active.PID {
				t.Errorf("process %d serves, want %d as before", now.PID, active.PID)
			}

			nodetest.Kill(t, active.PID)
			wait.For(t, "another process", func() bool {
				now, standby := nodetest.Serving(t, nd, "fn")
				return now.PID != active.PID && standby.PID != active.PID
			})
			nodetest.Logged(t, nd, "runtime folder was emptied")
			if n := strings.Count(nd.Log(), "runtime folder was emptied"); n > checks {
				t.Errorf("the log says %d times that the folder was emptied, want at most %d", n, checks)
			}
			if n := nodetest.Metric(t, nd, "penstock_runtime_folder_restored_total"); n < 1 || n > float64(checks) {
				t.Errorf("the metric counts %v, want 1 to %d", n, checks)
			}
			must.OK(t, nd.WaitReady(nodetest.Context(t)))
			if says := readiness(t, nd); !strings.Contains(says, "restored ") {
				t.Errorf("/readyz says %q, want that the folder was restored", says)
			}
			if info, err := os.Stat(nd.Dir); err != nil || info.Mode().Perm()&0o066 != 0 {
				t.Errorf("the folder is %v, %v; want that others cannot read or write it", info, err)
			}
		})
	}
}

// startApart is start with the configuration outside the runtime folder.
func startApart(t *testing.T, config string) *node.Node {
	t.Helper()
	at := freePort(t)
	path := filepath.Join(t.TempDir(), "config.yaml")
	must.OK(t, os.WriteFile(path, fmt.Appendf(nil, "http: %s\n%s", at, config), 0o600))
	nd, err := node.Start(nodetest.Context(t), node.Options{Binary: penstock, ConfigFile: path, HTTP: at})
	must.OK(t, err)
	t.Cleanup(func() {
		nd.Kill()
		if t.Failed() {
			t.Logf("node said:\n%s", nd.Log())
		}
	})
	return nd
}

func readiness(t *testing.T, nd *node.Node) string {
	t.Helper()
	response, err := http.Get("http://" + nd.HTTP.String() + "/readyz")
	must.OK(t, err)
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	must.OK(t, err)
	return string(text)
}
