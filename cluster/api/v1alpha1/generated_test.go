package v1alpha1

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestGenerated fails if `make -C cluster generate` would change a file.
func TestGenerated(t *testing.T) {
	out := t.TempDir()
	generate := exec.Command("go", "tool", "controller-gen", "object", "crd", "paths=.",
		"output:object:dir="+filepath.Join(out, "object"), "output:crd:dir="+filepath.Join(out, "crds"))
	if log, err := generate.CombinedOutput(); err != nil {
		t.Fatalf("generate: %v\n%s", err, log)
	}

	for dir, committed := range map[string]string{"object": ".", "crds": "../../chart/crds"} {
		files, err := os.ReadDir(filepath.Join(out, dir))
		if err != nil || len(files) == 0 {
			t.Fatalf("read generated files: %v, %d files", err, len(files))
		}
		for _, file := range files {
			want, err := os.ReadFile(filepath.Join(out, dir, file.Name()))
			if err != nil {
				t.Fatal(err)
			}
			name := filepath.Join(committed, file.Name())
			if got, err := os.ReadFile(name); err != nil || !bytes.Equal(got, want) {
				t.Errorf("%s is not current (%v): run make -C cluster generate", name, err)
			}
		}
	}
}
