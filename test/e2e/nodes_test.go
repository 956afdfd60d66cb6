package e2e

import (
	"os"
	"os/exec"
	"strings"
	"testing"
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
		c := exec.CommandContext(testContext(t), penstock, arguments...)
		c.Env = append(os.Environ(), place)
		return c.CombinedOutput()
	}
	first := start(t, oneFunction(nullCard(t, "digest", small)), place)
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

	second := start(t, oneFunction(nullCard(t, "digest", small)), place)
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
