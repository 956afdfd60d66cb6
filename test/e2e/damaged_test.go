package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock/penstock/client"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/nodetest"
	"github.com/penstock/penstock/internal/testing/wait"
	"github.com/penstock/penstock/models/zoo"
	"github.com/penstock/penstock/node"
)

// copyModel copies a built-in model, with another version, and returns its card.
func copyModel(t *testing.T, name string, version int) (card string, requestBytes int) {
	t.Helper()
	original, err := (zoo.Registry{Cache: t.TempDir()}).Find(name)
	must.OK(t, err)
	dir := filepath.Join(t.TempDir(), name)
	must.OK(t, os.CopyFS(dir, os.DirFS(original.Dir)))
	card = filepath.Join(dir, filepath.Base(original.File))
	text, err := os.ReadFile(card)
	must.OK(t, err)
	text = bytes.Replace(text, []byte("\nversion: 1\n"), fmt.Appendf(nil, "\nversion: %d\n", version), 1)
	must.OK(t, os.WriteFile(card, text, 0o600))
	return card, original.Input.WireBytes()
}

// TestWorkerDamagedModel damages or removes a model's file while the model is evicted. Its requests fail
// with the reason in `penstock if list`, and the other member does not notice. A replacement, or the old
// file, repairs it.
func TestWorkerDamagedModel(t *testing.T) {
	for _, c := range []struct {
		name   string
		damage func(file string) error
		repair func(t *testing.T, nd *node.Node, file string)
	}{
		{"shrunk, then replaced", func(file string) error { return os.Truncate(file, 1000) }, func(t *testing.T, nd *node.Node, _ string) {
			repaired, _ := copyModel(t, "fashion", 2)
			if out, err := run(t, nd.Dir, "if", "replace", "fn", repaired); err != nil {
				t.Fatalf("replace: %v: %s", err, out)
			}
		}},
		{"exchanged, then put back", func(file string) error {
			card, _ := copyModel(t, "face", 1)
			return errors.Join(os.Rename(file, file+".away"), os.Rename(filepath.Join(filepath.Dir(card), "model.onnx"), file))
		}, func(t *testing.T, _ *node.Node, file string) {
			must.OK(t, os.Rename(file+".away", file))
		}},
		{"removed, then put back", func(file string) error { return os.Rename(file, file+".away") }, func(t *testing.T, _ *node.Node, file string) {
			must.OK(t, os.Rename(file+".away", file))
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			card, size := copyModel(t, "fashion", 1)
			nd := start(t, fmt.Sprintf(`
workers: [{name: cold, share_percent: 80, memory: 1MiB, lanes: 1}]
functions:
  - {name: fn, model: %q, port: 0, slo: 10s, worker: cold}
  - {name: other, model: fashion, port: 0, slo: 10s, worker: cold}
`, card))
			o := client.Options{Timeout: patience}
			clients := map[string]*client.Client{"fn": nodetest.Dial(t, nd, "fn", o), "other": nodetest.Dial(t, nd, "other", o)}
			_, right := askPicture(t, clients["fn"], size, 1)
			answersRight := func(function string) {
				t.Helper()
				if status, payload := askPicture(t, clients[function], size, 1); status != client.StatusOK || !bytes.Equal(payload, right) {
					t.Errorf("%s: %v with %x, want %x", function, status, payload, right)
				}
			}
			wait.For(t, "fn to be evicted", func() bool {
				answersRight("other")
				f, err := nd.Function("fn")
				return err == nil && f.Residency != nil && f.Residency.State == control.Evicted
			})

			file := filepath.Join(filepath.Dir(card), "model.onnx")
			must.OK(t, c.damage(file))
			if status, _ := askPicture(t, clients["fn"], size, 1); status != client.StatusFailed {
				t.Errorf("a request of the damaged model ends %v, want failed", status)
			}
			answersRight("other")
			wait.For(t, "the reason in if list", func() bool {
				out, err := run(t, nd.Dir, "if", "list")
				return err == nil && strings.Contains(out, "\nfn: ") && strings.Contains(out, file)
			})
			if f := nodetest.Settled(t, nd, "other"); f.Failed > 0 {
				t.Errorf("%d requests of the other member failed", f.Failed)
			}

			c.repair(t, nd, file)
			wait.For(t, "fn to answer again", func() bool {
				status, _ := askPicture(t, clients["fn"], size, 1)
				return status == client.StatusOK
			})
			answersRight("fn")
			answersRight("other")
			wait.For(t, "the reason to go", func() bool {
				out, err := run(t, nd.Dir, "if", "list")
				return err == nil && !strings.Contains(out, "\nfn: load")
			})
		})
	}
}
