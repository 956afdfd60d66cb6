package main

import (
	"io"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/penstock/penstock/cmd/penstock/check"
	"github.com/penstock/penstock/cmd/penstock/inspect"
	"github.com/penstock/penstock/internal/testing/cudafake"
	"github.com/penstock/penstock/orchestrator/sandbox"
)

// The tests run on a fake driver, which has one GPU.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && (os.Args[1] == check.LoadVerb || os.Args[1] == inspect.Verb) { // package apart starts this program as penstock
		main()
		return
	}
	syscall.Umask(0o022) // runtime folders of tests are private, also if the group may write by default
	sandbox.MaybeLaunch()
	cudafake.Main(m)
}

func TestSimilarWords(t *testing.T) {
	for line, want := range map[string]string{
		"load --ratee face=10": "unknown flag: --ratee, did you mean \"--rate\"?",
		"up --confg x":         "unknown flag: --confg, did you mean \"--config\"?",
		"up --xyzzy":           "unknown flag: --xyzzy; see `penstock up --help`",
		"if lst":               `unknown command "lst" for "penstock if", did you mean "list"?`,
		"guest paus":           `unknown command "paus" for "penstock guest", did you mean "pause"?`,
		"if xyzzy":             `unknown command "xyzzy" for "penstock if"`,
	} {
		cmd := root()
		cmd.SetArgs(strings.Fields(line))
		cmd.SetOut(io.Discard)
		if _, err := execute(t.Context(), cmd); err == nil || err.Error() != want {
			t.Errorf("penstock %s: %v, want %s", line, err, want)
		}
	}
}
