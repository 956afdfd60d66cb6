package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock/penstock/client"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/nodetest"
)

// TestClientFindsNode runs `penstock if` and `penstock load` without a flag. With one node
// of this user they find it; with two they name both.
func TestClientFindsNode(t *testing.T) {
	clients := [][]string{
		{"if", "list"},
		{"if", "share", "fn", "40"},
		{"load", "--rate", "fn=20", "--duration", "500ms", "--warmup", "0s", "--check=false"},
	}
	place := "XDG_RUNTIME_DIR=" + t.TempDir()
	ask := func(arguments []string) ([]byte, error) {
		c := exec.CommandContext(nodetest.Context(t), penstock, arguments...)
		c.Env = append(os.Environ(), place)
		return c.CombinedOutput()
	}
	first := start(t, oneFunction(nodetest.Card(t, "digest", small)), place)
	found := func() {
		t.Helper()
		for _, arguments := range clients {
			out, err := ask(arguments)
			if err != nil && strings.Contains(string(out), "nodes of user") && strings.Contains(string(out), first.Dir) {
				t.Logf("other nodes of this user run on this machine, so %v has to ask:\n%s", arguments, out)
				continue
			}
			if err != nil || !strings.Contains(string(out), "fn") {
				t.Errorf("%v with one node: %v\n%s", arguments, err, out)
			}
		}
	}
	found()

	second := start(t, oneFunction(nodetest.Card(t, "digest", small)), place)
	for _, arguments := range clients {
		out, err := ask(arguments)
		if err == nil || !strings.Contains(string(out), "--runtime-dir "+first.Dir) || !strings.Contains(string(out), "--runtime-dir "+second.Dir) {
			t.Errorf("%v with two nodes: %v, want both folders\n%s", arguments, err, out)
		}
	}
	for _, arguments := range clients {
		if out, err := run(t, second.Dir, arguments...); err != nil {
			t.Errorf("%v with --runtime-dir: %v\n%s", arguments, err, out)
		}
	}

	second.Kill() // it is killed, so it does not remove its registration
	found()
}

// TestSameConfiguration checks the configuration of a running node, and starts the node once more.
func TestSameConfiguration(t *testing.T) {
	t.Parallel()
	port, card := freePort(t).Port(), nodetest.Card(t, "digest", small)
	nd := startApart(t, fmt.Sprintf("gateway: off\nfunctions: [{name: fn, model: %s, port: %d}]\n", card, port))
	nodetest.Logged(t, nd, fmt.Sprintf(`"ports":["fn:%d"],"status":"%s"`, port, nd.HTTP))

	config := nd.Config
	other := filepath.Join(t.TempDir(), "other.yaml")
	text, err := os.ReadFile(config)
	must.OK(t, err)
	must.OK(t, os.WriteFile(other, text, 0o600))
	for name, c := range map[string]struct {
		arguments []string
		want      string
		not       string
	}{
		"same":        {[]string{"check", "--runtime-dir", nd.Dir, config}, "a node runs with this configuration, in " + nd.Dir, "in use"},
		"same file":   {[]string{"check", "--runtime-dir", filepath.Join(t.TempDir(), "run"), config}, "a node runs with this configuration, in " + nd.Dir, "in use"},
		"same folder": {[]string{"check", "--runtime-dir", nd.Dir, other}, fmt.Sprintf("port %d of fn: function fn of the node in %s uses it", port, nd.Dir), "a node runs with"},
	} {
		out, err := exec.CommandContext(nodetest.Context(t), penstock, c.arguments...).CombinedOutput()
		if err != nil || !strings.Contains(string(out), c.want) || strings.Contains(string(out), c.not) {
			t.Errorf("%s: %v, want %q and no %q:\n%s", name, err, c.want, c.not, out)
		}
	}

	out, err := exec.CommandContext(nodetest.Context(t), penstock, "up", "--config", config, "--runtime-dir", nd.Dir).CombinedOutput()
	if want := fmt.Sprintf("a node already runs: process %d, with runtime folder", nd.PID()); err == nil || strings.Count(string(out), "\n") != 1 || !strings.Contains(string(out), want) {
		t.Errorf("a second node: %v, want one line with %q:\n%s", err, want, out)
	}
	if err := nd.WaitReady(nodetest.Context(t)); err != nil {
		t.Error(err)
	}
}

// TestPictureSize sends a picture of a wrong size: the error names the right one.
func TestPictureSize(t *testing.T) {
	t.Parallel()
	nd := start(t, oneFunction(nodetest.Card(t, "digest", small)))
	c := nodetest.Dial(t, nd, "fn", client.Options{Timeout: patience})
	_, err := c.Do(nodetest.Context(t), nodetest.Picture(small-24, 1), client.RequestOptions{})
	if want := fmt.Sprintf("the picture has %d bytes, and the function takes %d", small-24, small); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %q", err, want)
	}
}
