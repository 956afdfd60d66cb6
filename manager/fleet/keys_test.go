package fleet

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rs/zerolog"

	"github.com/penstock/penstock/internal/testing/must"
)

func TestKeysFollow(t *testing.T) {
	file := filepath.Join(t.TempDir(), "keys")
	write := func(text string) { must.OK(t, os.WriteFile(file, []byte(text), 0o600)) }
	write("the first of the keys\n")
	k, err := readKeys(file)
	must.OK(t, err)

	var log strings.Builder
	now := k.readAt
	for _, step := range []struct {
		text, keys string
		changed    bool
		lines      int // of the log, so far
	}{
		{"the first of the keys\n", "the first of the keys", false, 0},
		{"the first of the keys\nthe second of the keys", "the first of the keys, the second of the keys", true, 1},
		{"", "the first of the keys, the second of the keys", false, 2},
		{"", "the first of the keys, the second of the keys", false, 2},
		{"the second of the keys", "the second of the keys", true, 3},
	} {
		write(step.text)
		if k.follow(now+keysEvery-1, zerolog.New(&log)) {
			t.Errorf("%q is read too early", step.text)
		}
		now += keysEvery
		changed := k.follow(now, zerolog.New(&log))
		var keys []string
		for _, key := range k.all {
			keys = append(keys, string(key))
		}
		if changed != step.changed || strings.Join(keys, ", ") != step.keys || strings.Count(log.String(), "\n") != step.lines {
			t.Errorf("after %q: changed %v, keys %q, log\n%s", step.text, changed, keys, log.String())
		}
	}

	none, err := readKeys("")
	if err != nil || none.all != nil || none.follow(now+keysEvery, zerolog.New(&log)) {
		t.Errorf("a function without keys: %+v, %v", none, err)
	}
	if _, err := readKeys(filepath.Join(t.TempDir(), "missing")); err == nil {
		t.Error("a missing file is read")
	}
}
