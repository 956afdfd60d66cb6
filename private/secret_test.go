package private

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestReadSecret(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys")
	if err := os.WriteFile(path, []byte("a key"), 0o600); err != nil {
		t.Fatal(err)
	}
	for mode, want := range map[os.FileMode]string{0o600: "", 0o640: "", 0o644: "`chmod o-r ", 0o662: "`chmod o-w "} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		text, err := ReadSecret(path, 100)
		if ok := err == nil && string(text) == "a key"; ok != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("mode %04o: %q, %v; want %q", mode, text, err, want)
		}
	}
}
