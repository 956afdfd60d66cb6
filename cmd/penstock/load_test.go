package main

import (
	"bytes"
	"strings"
	"testing"
)

// TestLoadFlags checks flags that fail before the command contacts a node.
func TestLoadFlags(t *testing.T) {
	for _, test := range []struct {
		args []string
		want string
	}{
		{ // a script's variable that is not set
			[]string{"--require="},
			"--require is empty; want [FUNCTION:]METRIC=BOUND, like within=99% or face:p99=25ms, or leave it out",
		},
		{[]string{"--require", "ok=1%,"}, `--require "": want [FUNCTION:]METRIC=BOUND, like within=99% or face:p99=25ms`},
		{[]string{"--find-max-rate", "face", "-o", "csv"}, "--find-max-rate and --output csv: a search is written as table or json"},
		{[]string{"--find-max-rate", "face", "--require", "ok=1%"}, "--find-max-rate and --require: want one of them; a search tries rates that miss"},
	} {
		cmd := root()
		cmd.SetArgs(append([]string{"load", "--http", "127.0.0.1:1"}, test.args...))
		if err := cmd.Execute(); err == nil || err.Error() != test.want {
			t.Errorf("%q: %v, want %s", test.args, err, test.want)
		}
	}
}

func TestVersion(t *testing.T) {
	for _, arg := range []string{"version", "--version"} {
		var out bytes.Buffer
		cmd := root()
		cmd.SetArgs([]string{arg})
		cmd.SetOut(&out)
		if err := cmd.Execute(); err != nil || strings.TrimSpace(out.String()) != "penstock "+version {
			t.Errorf("penstock %s: %v, prints %q", arg, err, out.String())
		}
	}
}
