package follow

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/rs/zerolog"

	"github.com/penstock/penstock/internal/testing/must"
)

// Kubernetes changes the files of a volume by one link, to another folder.
func TestVolume(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "keys.yaml")
	for _, version := range []string{"1", "2"} {
		must.OK(t, os.Mkdir(filepath.Join(dir, ".."+version), 0o700))
		must.OK(t, os.WriteFile(filepath.Join(dir, ".."+version, "keys.yaml"), []byte(version), 0o600))
		must.OK(t, os.Symlink(".."+version, filepath.Join(dir, "link"+version)))
	}
	data := filepath.Join(dir, "..data")
	must.OK(t, os.Rename(filepath.Join(dir, "link1"), data))
	must.OK(t, os.Symlink("..data/keys.yaml", file))

	reads := make(chan string, 16)
	read := func() error {
		text, err := os.ReadFile(file)
		reads <- string(text)
		return err
	}
	go Files(t.Context(), zerolog.Nop(), "", read, file)
	if text := <-reads; text != "1" {
		t.Fatalf("read %q at first", text)
	}
	must.OK(t, os.Rename(filepath.Join(dir, "link2"), data))
	if text := <-reads; text != "2" {
		t.Errorf("read %q after the change", text)
	}
}
