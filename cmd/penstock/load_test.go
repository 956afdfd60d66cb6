package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock/penstock/control"
)

// TestLoadsFlagsThatMeanNothingAreRefused, before anything is asked of a node.
func TestLoadsFlagsThatMeanNothingAreRefused(t *testing.T) {
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

func TestARateThatIsNoNumberIsRefused(t *testing.T) {
	for _, text := range []string{"NaN", "-1", "Inf", "1e8", "ten"} {
		_, err := prepare(control.Status{Functions: []control.FunctionStatus{{Name: "face"}}}, loadOptions{arrivals: "poisson", rates: map[string]string{"face": text}})
		if want := "--rate face=" + text + ": want requests a second, 0 to ten million"; err == nil || err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// TestAFunctionThatACaptureFeedsGetsNoLoad: it does not listen, and would be a node that does
// not answer.
func TestAFunctionThatACaptureFeedsGetsNoLoad(t *testing.T) {
	node := control.Status{Functions: []control.FunctionStatus{
		{Name: "played", Replay: "a.pcap", SLOMillis: 25, Input: control.InputStatus{Bytes: 4}},
		{Name: "fn", SLOMillis: 25, Port: 1, Input: control.InputStatus{Bytes: 4}},
	}}
	p, err := prepare(node, loadOptions{arrivals: "poisson", streams: 1, duration: 1})
	if err != nil || len(p.spec.Functions) != 1 || p.spec.Functions[0].Name != "fn" {
		t.Errorf("%v: %+v", err, p)
	}
	want := "played is fed by the capture a.pcap and takes nothing from the network; want another function"
	for _, o := range []loadOptions{{arrivals: "poisson", rates: map[string]string{"played": "1"}}, {arrivals: "poisson", findMaxRate: "played"}} {
		if _, err := prepare(node, o); err == nil || err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
	}
	if _, err := prepare(control.Status{Functions: node.Functions[:1]}, loadOptions{arrivals: "poisson"}); err == nil {
		t.Error("nothing to send to is no error")
	}
}

func TestReadPhotos(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "notes.txt")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	missing := filepath.Join(dir, "missing")
	for dir, want := range map[string]string{
		missing: "--pictures " + missing + ": no such file or directory",
		file:    "--pictures " + file + ": is a file; want the folder that it is in",
		dir:     "--pictures " + dir + ": the folder has no PNG or JPEG file",
	} {
		if _, err := readPhotos(dir); err == nil || err.Error() != want {
			t.Errorf("%v, want %s", err, want)
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
