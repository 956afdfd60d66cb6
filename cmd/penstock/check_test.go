package main

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func writes(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestCheckRuntimeDir(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "node.yaml")
	plain := filepath.Join(dir, "plain")
	open := filepath.Join(dir, "open")
	writes(t, plain, "")
	if err := os.Mkdir(open, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(open, 0o777); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ dir, want string }{
		"missing":          {filepath.Join(dir, "a", "b"), ""},
		"file":             {plain, "node.yaml:1:14: runtime_dir: make runtime folder"},
		"below a file":     {filepath.Join(plain, "x"), "node.yaml:1:14: runtime_dir: make runtime folder"},
		"others may write": {open, "node.yaml:1:14: runtime_dir: open runtime folder"},
		"missing in that":  {filepath.Join(open, "x"), "node.yaml:1:14: runtime_dir: open runtime folder"},
	} {
		t.Run(name, func(t *testing.T) {
			writes(t, file, fmt.Sprintf("runtime_dir: %s\nhttp: 127.0.0.1:0\nfunctions: [{name: fashion, port: 0}]\n", c.dir))
			before := tree(t, dir)
			cmd := checkCommand()
			cmd.SetArgs([]string{file})
			var out strings.Builder
			cmd.SetOut(&out)
			cmd.SilenceUsage, cmd.SilenceErrors = true, true
			err := cmd.ExecuteContext(t.Context())
			if (err != nil) != (c.want != "") || !strings.Contains(out.String(), c.want) || c.want != "" && strings.Count(out.String(), "\n") != 2 {
				t.Errorf("error %v, prints\n%s\nwant one finding with %q", err, &out, c.want)
			}
			if after := tree(t, dir); !slices.Equal(before, after) {
				t.Errorf("files before %v, after %v", before, after)
			}
		})
	}
}

// Mistakes in the text are findings like all others.
func TestCheckText(t *testing.T) {
	file := filepath.Join(t.TempDir(), "node.yaml")
	writes(t, file, "devise: cpu\nlisten: home\n")
	cmd := checkCommand()
	cmd.SetArgs([]string{file})
	var out strings.Builder
	cmd.SetOut(&out)
	cmd.SilenceUsage, cmd.SilenceErrors = true, true
	err := cmd.ExecuteContext(t.Context())
	if err != exitStatus(1) || strings.Count(out.String(), "no   configuration") != 2 || !strings.Contains(out.String(), "node.yaml:2:9: listen: ") || !strings.Contains(out.String(), "\nA node cannot run here") {
		t.Errorf("error %v, prints\n%s\nwant two findings and the verdict", err, &out)
	}
}

// tree is the paths of all files in a folder.
func tree(t *testing.T, dir string) (paths []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		paths = append(paths, path)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return paths
}
