package publish

import (
	"bufio"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/openfiles"
	"github.com/penstock/penstock/internal/testing/wait"
)

func linesSpec(file string) configs.Publish {
	return configs.Publish{Name: "log", Kind: configs.PublishJSONL, File: file}
}

func readLines(t *testing.T, file string) []string {
	t.Helper()
	text, err := os.ReadFile(file)
	must.OK(t, err)
	return strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
}

// Lines are appended. After rotation they go to a new file.
func TestLines(t *testing.T) {
	openfiles.CheckLeaks(t)
	file := filepath.Join(t.TempDir(), "answers.jsonl")
	must.OK(t, os.WriteFile(file, []byte("before\n"), 0o600))
	set := newSet(linesSpec(file))
	set.start(t)
	write := func(frames ...uint64) {
		t.Helper()
		before := set.Status()[0].Sent
		for _, i := range frames {
			set.Publish(found("door", i, 7))
		}
		wait.For(t, "the lines", func() bool { return set.Status()[0].Sent == before+uint64(len(frames)) })
	}

	write(1, 2)
	must.OK(t, os.Rename(file, file+".1"))
	write(3)
	must.OK(t, os.Remove(file))
	write(4, 5)

	rotated := readLines(t, file+".1")
	if len(rotated) != 3 || rotated[0] != "before" {
		t.Errorf("%q", rotated)
	}
	list := readLines(t, file)
	var a Answer
	if err := json.Unmarshal([]byte(list[1]), &a); err != nil || len(list) != 2 || a.Frame != 5 || a.Stream != "door" || a.Found[0].Class != 7 || a.Time.IsZero() {
		t.Errorf("%q, %v", list, err)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm()&0o007 != 0 {
		t.Errorf("%v, %v; want a file that other users cannot read", info, err)
	}
}

// A link is not followed, neither at the start nor when it replaces the file.
func TestLinesLink(t *testing.T) {
	openfiles.CheckLeaks(t)
	dir := t.TempDir()
	file, other := filepath.Join(dir, "answers.jsonl"), filepath.Join(dir, "other")
	must.OK(t, os.WriteFile(other, []byte("of another user\n"), 0o600))
	must.OK(t, os.Symlink(other, file))
	set := newSet(linesSpec(file))
	set.start(t)
	refused := func() bool { return strings.Contains(set.Status()[0].Error, "is a symbolic link") }
	set.Publish(found("door", 1))
	wait.For(t, "a refusal", refused)
	must.OK(t, os.Remove(file))
	wait.For(t, "the line", func() bool { return set.Status()[0].Sent == 1 })

	must.OK(t, errors.Join(os.Remove(file), os.Symlink(other, file)))
	set.Publish(found("door", 2))
	wait.For(t, "a refusal", refused)
	if text := readLines(t, other); len(text) != 1 {
		t.Errorf("the other file has %q", text)
	}
}

// A line that was cut, because the disk was full, does not spoil the next one.
func TestTornLine(t *testing.T) {
	file := filepath.Join(t.TempDir(), "answers.jsonl")
	must.OK(t, os.WriteFile(file, []byte(`{"half`), 0o600))
	l := &lines{path: file, torn: true}
	defer l.close()
	must.OK(t, l.open(t.Context()))
	for range 2 {
		must.OK(t, l.send(t.Context(), message{text: []byte("{}")}))
	}
	if got := readLines(t, file); len(got) != 3 || got[0] != `{"half` || got[1] != "{}" || got[2] != "{}" {
		t.Errorf("%q", got)
	}
}

// A path that names no file is an error, not a wait. The receiver recovers from it.
func TestNoFile(t *testing.T) {
	openfiles.CheckLeaks(t)
	dir := t.TempDir()
	pipe := filepath.Join(dir, "pipe")
	must.OK(t, unix.Mkfifo(pipe, 0o600))
	missing := filepath.Join(dir, "later", "answers.jsonl")
	set := newSet(linesSpec(dir), linesSpec(pipe), linesSpec(missing), linesSpec("/dev/null"))
	set.start(t)
	set.Publish(found("door", 1))
	for i := range set.Status() {
		wait.For(t, "an error", func() bool { s := set.Status()[i]; return s.State == Waiting && s.Error != "" && s.Waiting == 1 })
	}
	must.OK(t, os.Mkdir(filepath.Dir(missing), 0o700))
	wait.For(t, "the folder", func() bool { return set.Status()[2].Sent == 1 })
}

// Standard output is written, and a reader that has gone is an error.
func TestStandardOutput(t *testing.T) {
	openfiles.CheckLeaks(t)
	r, w, err := os.Pipe()
	must.OK(t, err)
	before := os.Stdout
	os.Stdout = w
	defer func() { os.Stdout = before }()

	set := newSet(linesSpec(standardOutput))
	set.start(t)
	set.Publish(found("door", 9))
	line, err := bufio.NewReader(r).ReadString('\n')
	if err != nil || !strings.Contains(line, `"frame":9`) || set.Status()[0].To != "standard output" {
		t.Errorf("%q, %v, %+v", line, err, set.Status())
	}

	r.Close()
	set.Publish(found("door", 10))
	wait.For(t, "an error", func() bool { return strings.Contains(set.Status()[0].Error, "broken pipe") })
	set.stop()
	w.Close()
}
