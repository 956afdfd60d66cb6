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
		{[]string{"--capture", "a.pcap", "--rate", "face=1"}, "--capture and --rate: want one of them; a capture has its own times and contents"},
		{[]string{"--capture=a.pcap", "--speed=2", "--runtime-dir=/tmp"}, "--http and --runtime-dir: want one of them; both choose the node"},
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
