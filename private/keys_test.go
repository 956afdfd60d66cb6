package private

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestReadKeys(t *testing.T) {
	const key = "0123456789abcdef"
	for name, c := range map[string]struct {
		text string
		mode os.FileMode
		want string // the keys, or a part of the error
	}{
		"one":               {key, 0o600, key},
		"comments":          {"# for the line\n\n" + key + "\r\n  second-key-of-two  \n", 0o640, key + " second-key-of-two"},
		"none":              {"# nothing\n\n", 0o600, "has none; want one in a line"},
		"short":             {key + "\nshort\n", 0o600, "keys:2: a key of 5 characters; want 16 to 256"},
		"long":              {strings.Repeat("k", 257), 0o600, "keys:1: a key of 257 characters"},
		"too many":          {strings.Repeat(key+"\n", MaxKeys+1), 0o600, "keys:9: one key too many; want at most 8"},
		"readable by all":   {key, 0o644, "`chmod o-r "},
		"writable by all":   {key, 0o662, "`chmod o-w "},
		"as many as can be": {strings.Repeat(key+"\n", MaxKeys), 0o600, strings.TrimSpace(strings.Repeat(key+" ", MaxKeys))},
	} {
		path := filepath.Join(t.TempDir(), "keys")
		if err := errors.Join(os.WriteFile(path, []byte(c.text), 0o600), os.Chmod(path, c.mode)); err != nil {
			t.Fatal(err)
		}
		keys, err := ReadKeys(path)
		got := []string{}
		for _, k := range keys {
			got = append(got, string(k))
		}
		if ok := strings.Join(got, " ") == c.want; err == nil && !ok || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %q, %v; want %q", name, got, err, c.want)
		}
	}
	if _, err := ReadKeys(filepath.Join(t.TempDir(), "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
}
