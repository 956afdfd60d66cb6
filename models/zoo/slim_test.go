//go:build slim

package zoo

import (
	"strings"
	"testing"
)

func TestSlim(t *testing.T) {
	folder := t.TempDir()
	t.Setenv(folderVariable, folder)
	if _, err := (Registry{Cache: t.TempDir()}).Find("face"); err == nil || !strings.Contains(err.Error(), "face") {
		t.Errorf("got %v, want an error about a missing file", err)
	}
	t.Setenv(folderVariable, ".")
	if _, err := (Registry{Cache: t.TempDir()}).Find("face"); err != nil {
		t.Error(err)
	}
}
