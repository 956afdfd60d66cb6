package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

func TestManPages(t *testing.T) {
	t.Setenv("SOURCE_DATE_EPOCH", "0")
	dir := filepath.Join(t.TempDir(), "man1")
	cmd := root()
	cmd.SetArgs([]string{"man", dir})
	if err := cmd.Execute(); err != nil {
		t.Fatal(err)
	}

	pages := 0
	visitVerbs(root(), func(verb *cobra.Command) {
		pages++
		file := strings.ReplaceAll(verb.CommandPath(), " ", "-") + ".1"
		text, err := os.ReadFile(filepath.Join(dir, file))
		if err != nil {
			t.Error(err)
			return
		}
		// The page names each flag that --help names.
		for _, line := range strings.Split(verb.LocalFlags().FlagUsages(), "\n") {
			_, flag, found := strings.Cut(line, "--")
			if name := strings.FieldsFunc(flag, func(r rune) bool { return r == ' ' || r == '[' }); found && len(name) > 0 && strings.HasPrefix(strings.TrimSpace(line), "-") {
				if !strings.Contains(strings.ReplaceAll(string(text), `\-`, "-"), "--"+name[0]) {
					t.Errorf("%s lacks the flag --%s", file, name[0])
				}
			}
		}
	})
	if pages < 15 {
		t.Errorf("found %d verbs", pages)
	}

	t.Run("man", func(t *testing.T) {
		man, err := exec.LookPath("man")
		if err != nil {
			t.Skip("not on this machine: man is missing (apt-get install man-db)")
		}
		files, err := filepath.Glob(filepath.Join(dir, "*.1"))
		if err != nil || len(files) == 0 {
			t.Fatalf("%d pages, %v", len(files), err)
		}
		for _, file := range files {
			show := exec.Command(man, "--warnings", "-E", "UTF-8", "-l", "-Tutf8", file)
			show.Env = append(os.Environ(), "LC_ALL=C.UTF-8", "MANROFFSEQ=", "MANWIDTH=80")
			var warnings strings.Builder
			show.Stderr = &warnings
			out, err := show.Output()
			if err != nil || warnings.Len() > 0 || !strings.Contains(string(out), "penstock") {
				t.Errorf("man %s: %v\n%s", filepath.Base(file), err, warnings.String())
			}
		}
	})
}
