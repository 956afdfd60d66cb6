package private

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/penstock/penstock/internal/testing/must"
	"golang.org/x/sys/unix"
)

const nobodyUID = 65534

func mkdir(t *testing.T, path string, mode fs.FileMode) {
	t.Helper()
	must.OK(t, os.Mkdir(path, 0o700))
	must.OK(t, os.Chmod(path, mode))
}

func link(t *testing.T, target, path string) {
	t.Helper()
	must.OK(t, os.Symlink(target, path))
}

func chown(t *testing.T, path string) {
	t.Helper()
	must.OK(t, os.Lchown(path, nobodyUID, nobodyUID))
}

// folders are ways to prepare a folder "run" in dir. want is part of the error, empty if the
// folder is good.
var folders = map[string]struct {
	root    bool // only root can prepare it
	prepare func(t *testing.T, dir string)
	want    string
}{
	"own":                     {prepare: func(t *testing.T, dir string) { mkdir(t, dir+"/run", 0o700) }},
	"readable by all":         {prepare: func(t *testing.T, dir string) { mkdir(t, dir+"/run", 0o755) }},
	"writable by group":       {prepare: func(t *testing.T, dir string) { mkdir(t, dir+"/run", 0o770) }, want: "mode 0770; want owner"},
	"writable by others":      {prepare: func(t *testing.T, dir string) { mkdir(t, dir+"/run", 0o703) }, want: "mode 0703; want owner"},
	"writable by all, sticky": {prepare: func(t *testing.T, dir string) { mkdir(t, dir+"/run", 0o777|fs.ModeSticky) }, want: "mode 1777; want owner"},
	"a link": {prepare: func(t *testing.T, dir string) {
		mkdir(t, dir+"/elsewhere", 0o700)
		link(t, "elsewhere", dir+"/run")
	}, want: "/run is a symbolic link"},
	"a dangling link": {prepare: func(t *testing.T, dir string) { link(t, "nothing", dir+"/run") }, want: "/run is a symbolic link"},
	"a file":          {prepare: func(t *testing.T, dir string) { os.WriteFile(dir+"/run", nil, 0o600) }, want: "not a directory"},
	"a parent that all can write": {prepare: func(t *testing.T, dir string) {
		mkdir(t, dir+"/run", 0o700)
		must.OK(t, os.Chmod(dir, 0o777))
	}, want: "mode 0777; want owner root or"},
	"a sticky parent": {prepare: func(t *testing.T, dir string) {
		mkdir(t, dir+"/run", 0o700)
		must.OK(t, os.Chmod(dir, 0o777|fs.ModeSticky))
	}},
	"another user's": {root: true, prepare: func(t *testing.T, dir string) {
		mkdir(t, dir+"/run", 0o700)
		chown(t, dir+"/run")
	}, want: "is owned by user 65534, mode 0700; want owner 0"},
	"another user's parent": {root: true, prepare: func(t *testing.T, dir string) {
		mkdir(t, dir+"/run", 0o700)
		chown(t, dir)
	}, want: "is owned by user 65534"},
}

func TestFolder(t *testing.T) {
	for name, test := range folders {
		t.Run(name, func(t *testing.T) {
			if test.root && os.Geteuid() != 0 {
				t.Skip("only root can give a folder away")
			}
			dir := t.TempDir()
			test.prepare(t, dir)
			for verb, open := range map[string]func() (*Folder, error){
				"open": func() (*Folder, error) { return OpenFolder(dir + "/run") },
				"make": func() (*Folder, error) { return MakeFolder(dir+"/run", 0o700) },
			} {
				f, err := open()
				if err == nil {
					f.Close()
				}
				if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "\n")) {
					t.Errorf("%s: got %v, want %q", verb, err, test.want)
				}
				if want := strings.Contains(test.want, "want") || strings.Contains(test.want, "symbolic"); want && !errors.Is(err, ErrNotPrivate) {
					t.Errorf("%s: %v is not ErrNotPrivate", verb, err)
				}
			}
		})
	}
}

// TestJudge has what only root could prepare, for every user.
func TestJudge(t *testing.T) {
	me, other := uint32(os.Geteuid()), uint32(os.Geteuid()+1)
	w := walk{owner: 0}
	for name, test := range map[string]struct {
		uid         uint32
		mode        uint32
		own, parent bool
	}{
		"mine":                 {me, 0o700, true, true},
		"mine, shared":         {me, 0o775, false, false},
		"mine, shared, sticky": {me, 0o1777, false, true},
		"another's":            {other, 0o700, false, false},
		"another's, sticky":    {other, 0o1755, false, false},
		"root's":               {0, 0o755, me == 0, true},
		"root's, sticky":       {0, 0o1777, false, true},
	} {
		about := &unix.Stat_t{Uid: test.uid, Mode: unix.S_IFDIR | test.mode}
		if got := judgeOwn("/x", about) == nil; got != test.own {
			t.Errorf("%s: as the folder itself accepted: %v, want %v", name, got, test.own)
		}
		if got := w.judgeParent("/x", about) == nil; got != test.parent {
			t.Errorf("%s: as a parent accepted: %v, want %v", name, got, test.parent)
		}
	}
}

func TestFolderPath(t *testing.T) {
	dir := t.TempDir()
	mkdir(t, dir+"/real", 0o755)
	link(t, "real", dir+"/relative")
	link(t, dir+"/relative/../relative", dir+"/absolute")
	link(t, "loop", dir+"/loop")

	t.Run("links before the last component", func(t *testing.T) {
		f, err := MakeFolder(dir+"/absolute/a/./b", 0o755)
		must.OK(t, err)
		defer f.Close()
		if want := dir + "/real/a/b"; f.Path() != want {
			t.Errorf("path %s, want %s", f.Path(), want)
		}
		for path, want := range map[string]fs.FileMode{"/real/a": 0o755, "/real/a/b": 0o755} {
			if info, err := os.Stat(dir + path); err != nil || info.Mode().Perm() != want {
				t.Errorf("%s: %v, %v; want mode %v", path, info, err, want)
			}
		}
	})
	t.Run("a loop", func(t *testing.T) {
		if _, err := OpenFolder(dir + "/loop/a"); !errors.Is(err, unix.ELOOP) {
			t.Errorf("got %v, want %v", err, unix.ELOOP)
		}
	})
	t.Run("missing", func(t *testing.T) {
		if _, err := OpenFolder(dir + "/missing"); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("got %v, want %v", err, fs.ErrNotExist)
		}
	})
	t.Run("another user's link", func(t *testing.T) {
		if os.Geteuid() != 0 {
			t.Skip("only root can give a link away")
		}
		chown(t, dir+"/relative")
		if _, err := OpenFolder(dir + "/relative/a"); !errors.Is(err, ErrNotPrivate) || !strings.Contains(err.Error(), "symbolic link of user 65534") {
			t.Errorf("got %v, want a refusal of the link", err)
		}
	})
}

func TestFolderReadFile(t *testing.T) {
	dir := t.TempDir()
	f, err := MakeFolder(dir, 0o700)
	must.OK(t, err)
	defer f.Close()

	file := func(name string, mode fs.FileMode) {
		t.Helper()
		must.OK(t, os.WriteFile(filepath.Join(dir, name), []byte("text"), 0o600))
		must.OK(t, os.Chmod(filepath.Join(dir, name), mode))
	}
	file("good", 0o600)
	file("shared", 0o666)
	link(t, "good", dir+"/link")
	mkdir(t, dir+"/folder", 0o700)
	must.OK(t, syscall.Mkfifo(dir+"/pipe", 0o600))
	for name, want := range map[string]string{
		"good":        "",
		"shared":      "mode 0666; want owner",
		"link":        "is a symbolic link",
		"folder":      "not a regular file",
		"pipe":        "not a regular file",
		"folder/good": "want a name without folders",
		"..":          "want a name without folders",
		"missing":     "no such file",
	} {
		text, err := f.ReadFile(name, 4)
		switch {
		case want == "" && (err != nil || string(text) != "text"):
			t.Errorf("%s: %q, %v", name, text, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%s: %v, want %q", name, err, want)
		}
	}
	if _, err := f.ReadFile("good", 3); err == nil || !strings.Contains(err.Error(), "more than 3 bytes") {
		t.Errorf("a long file: %v", err)
	}
	if os.Geteuid() == 0 {
		chown(t, dir+"/good")
		if _, err := f.ReadFile("good", 4); !errors.Is(err, ErrNotPrivate) {
			t.Errorf("another user's file: %v, want %v", err, ErrNotPrivate)
		}
	}
}

func TestFolderReplaceFile(t *testing.T) {
	dir := t.TempDir()
	f, err := OpenFolder(dir)
	must.OK(t, err)
	defer f.Close()

	victim := filepath.Join(t.TempDir(), "victim")
	must.OK(t, os.WriteFile(victim, []byte("keep"), 0o600))
	// Another user may have left these when the folder was shared.
	for name, leave := range map[string]func(path string) error{
		"nothing":   func(string) error { return nil },
		"a link":    func(path string) error { return os.Symlink(victim, path) },
		"hard link": func(path string) error { return os.Link(victim, path) },
	} {
		path := filepath.Join(dir, "file")
		os.Remove(path)
		must.OK(t, leave(path))
		if err := f.ReplaceFile("file", []byte(name)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if text, err := f.ReadFile("file", 100); err != nil || string(text) != name {
			t.Errorf("%s: file has %q, %v", name, text, err)
		}
		if text, err := os.ReadFile(victim); err != nil || string(text) != "keep" {
			t.Fatalf("%s: another file has %q, %v", name, text, err)
		}
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
		t.Errorf("left %v, %v", entries, err)
	}
}

func TestMakeCache(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	temporary := filepath.Join(dir, fmt.Sprintf("penstock-%d", os.Geteuid()))
	mkdir(t, dir+"/shared", 0o777)
	for _, test := range []struct{ name, user, want string }{
		{"of the user", dir + "/home", dir + "/home/penstock"},
		{"no home", "", temporary},
		{"a home that another user could change", dir + "/shared", temporary},
	} {
		t.Setenv("HOME", "")
		t.Setenv("XDG_CACHE_HOME", test.user)
		if dir, err := MakeCache(); err != nil || dir != test.want {
			t.Errorf("%s: %s, %v; want %s", test.name, dir, err, test.want)
		}
	}

	must.OK(t, os.Chmod(temporary, 0o777))
	if dir, err := MakeCache(); !errors.Is(err, ErrNotPrivate) || !strings.Contains(err.Error(), "XDG_CACHE_HOME") {
		t.Errorf("no private folder: %q, %v", dir, err)
	}
}

func TestReadFile(t *testing.T) {
	dir := t.TempDir()
	for name, c := range map[string]struct {
		mode fs.FileMode
		size int
		want string
	}{
		"ours":    {0o600, 9, ""},
		"read":    {0o644, 9, ""},
		"group":   {0o664, 9, ""},
		"others":  {0o602, 9, "has mode 0602, so every user may write it; want `chmod o-w "},
		"largest": {0o600, 10, ""},
		"large":   {0o600, 11, "has 11 bytes, want at most 10"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(dir, name)
			must.OK(t, errors.Join(os.WriteFile(path, make([]byte, c.size), 0o600), os.Chmod(path, c.mode)))
			text, err := ReadFile(path, 10)
			if c.want == "" && (err != nil || len(text) != c.size) || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("%q, %v; want %q", text, err, c.want)
			}
			if errors.Is(err, ErrNotPrivate) != (name == "others") {
				t.Errorf("%v: wrong kind", err)
			}
		})
	}
	for _, path := range []string{dir, "/dev/null"} {
		if _, err := ReadFile(path, 10); err == nil || !strings.Contains(err.Error(), "not a regular file") {
			t.Errorf("%s: %v", path, err)
		}
	}
}
