package main

import (
	"bytes"
	"encoding/json"
	"net/http"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/penstock/penstock/control"
)

// fakeNode answers for its status at the admin socket of a runtime folder.
func fakeNode(t *testing.T, functions ...string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	listener, err := control.ListenAdmin(dir)
	if err != nil {
		t.Fatal(err)
	}
	status := control.Status{Workers: []control.WorkerStatus{{Name: "cold"}, {Name: "warm"}}}
	for _, name := range functions {
		status.Functions = append(status.Functions, control.FunctionStatus{Name: name})
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+control.StatusPath, func(w http.ResponseWriter, _ *http.Request) { json.NewEncoder(w).Encode(status) })
	server := &http.Server{Handler: mux}
	go server.Serve(listener)
	t.Cleanup(func() { server.Close() })
	return dir
}

// completions returns what a shell gets for a command line; the last word is incomplete.
func completions(t *testing.T, words ...string) (list []string, directive string) {
	t.Helper()
	cmd := root()
	var out bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetErr(&bytes.Buffer{})
	cmd.SetArgs(append([]string{cobra.ShellCompNoDescRequestCmd}, words...))
	if err := cmd.Execute(); err != nil {
		t.Fatal(err)
	}
	list = strings.Split(strings.TrimSpace(out.String()), "\n")
	return list[:len(list)-1], list[len(list)-1]
}

func TestCompletion(t *testing.T) {
	dir := fakeNode(t, "detect", "face", "fashion")
	node := []string{"--runtime-dir", dir}
	for _, c := range []struct {
		name  string
		words []string
		want  []string
	}{
		{"verb", []string{"to"}, []string{"top"}},
		{"function", slices.Concat([]string{"if", "remove"}, node, []string{""}), []string{"detect", "face", "fashion"}},
		{"function by prefix", slices.Concat([]string{"if", "share"}, node, []string{"fa"}), []string{"face", "fashion"}},
		{"second function", slices.Concat([]string{"if", "remove"}, node, []string{"face", ""}), nil},
		{"model of replace", slices.Concat([]string{"if", "replace"}, node, []string{"mine", "fa"}), []string{"face", "fashion"}},
		{"model flag", []string{"if", "add", "x", "--model", "det"}, []string{"detect"}},
		{"function of infer", slices.Concat([]string{"infer"}, node, []string{"d"}), []string{"detect"}},
		{"worker of move", slices.Concat([]string{"if", "move"}, node, []string{"face", "--worker", ""}), []string{"cold", "warm"}},
		{"worker of add", slices.Concat([]string{"if", "add"}, node, []string{"face", "--worker", "w"}), []string{"warm"}},
		{"list of functions", slices.Concat([]string{"stream", "x.mp4"}, node, []string{"--to", "face,"}), []string{"face,detect", "face,fashion"}},
		{"rate", slices.Concat([]string{"load"}, node, []string{"--rate", "fas"}), []string{"fashion="}},
		{"model to profile", []string{"profile", "fas"}, []string{"fashion"}},
		{"two outputs", []string{"top", "-o", ""}, []string{"table", "json"}},
		{"outputs with an explanation", []string{"stream", "-o", ""}, []string{"text", "jsonl"}},
		{"no node", []string{"if", "remove", "--runtime-dir", t.TempDir(), ""}, nil},
		{"no argument", []string{"up", ""}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got, _ := completions(t, c.words...); !slices.Equal(got, c.want) {
				t.Errorf("completions %q, want %q", got, c.want)
			}
		})
	}
}

// visitVerbs calls visit for each verb that users see.
func visitVerbs(cmd *cobra.Command, visit func(*cobra.Command)) {
	for _, verb := range cmd.Commands() {
		if !verb.Hidden {
			visit(verb)
			visitVerbs(verb, visit)
		}
	}
}

func TestVerbHelp(t *testing.T) {
	visitVerbs(root(), func(cmd *cobra.Command) {
		if cmd.Short == "" || cmd.Example == "" {
			t.Errorf("%s lacks a description or an example", cmd.CommandPath())
		}
		cmd.Flags().VisitAll(func(flag *pflag.Flag) {
			if flag.Usage == "" {
				t.Errorf("%s --%s lacks a description", cmd.CommandPath(), flag.Name)
			}
		})
	})
}

// TestCompletionScripts checks the syntax of the scripts with the shells of this machine.
func TestCompletionScripts(t *testing.T) {
	for _, shell := range []string{"bash", "zsh", "fish"} {
		t.Run(shell, func(t *testing.T) {
			cmd := root()
			var script bytes.Buffer
			cmd.SetOut(&script)
			cmd.SetArgs([]string{"completion", shell})
			if err := cmd.Execute(); err != nil || script.Len() == 0 {
				t.Fatalf("%d bytes, %v", script.Len(), err)
			}
			path, err := exec.LookPath(shell)
			if err != nil {
				t.Skipf("not on this machine: %s is missing", shell)
			}
			check := exec.Command(path, "-n")
			check.Stdin = &script
			if out, err := check.CombinedOutput(); err != nil || len(out) > 0 {
				t.Errorf("%s -n: %v\n%s", shell, err, out)
			}
		})
	}
}
