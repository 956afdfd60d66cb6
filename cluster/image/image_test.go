package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// shell is an image of a program with shared libraries, and of a text.
func shell(t *testing.T) Image {
	t.Helper()
	text := filepath.Join(t.TempDir(), "text")
	ok(t, os.WriteFile(text, []byte("hello\n"), 0o600))
	return Image{
		Name: "shell", Program: "/opt/sh", Files: map[string]string{"/opt/sh": "/bin/sh", "/opt/text": text},
		Architecture: "amd64", Created: time.Unix(1000, 0).UTC(),
	}
}

// extract writes an image's files to a folder.
func extract(t *testing.T, file, to string) {
	t.Helper()
	image, err := tarball.ImageFromPath(file, nil)
	ok(t, err)
	content := mutate.Extract(image)
	defer content.Close()
	for r := tar.NewReader(content); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		ok(t, err)
		if h.Uid != 0 || h.Gid != 0 || !h.ModTime.Equal(time.Unix(1000, 0)) {
			t.Errorf("%s has owner %d:%d and date %v", h.Name, h.Uid, h.Gid, h.ModTime)
		}
		name := filepath.Join(to, h.Name)
		if h.Typeflag == tar.TypeDir {
			ok(t, os.Mkdir(name, 0o755))
			continue
		}
		data, err := io.ReadAll(r)
		ok(t, err)
		ok(t, os.WriteFile(name, data, h.FileInfo().Mode()))
	}
}

// TestRun runs the entry point of an image with nothing but the image's files.
func TestRun(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("not on this machine: chroot needs root")
	}
	dir := t.TempDir()
	file, root := filepath.Join(dir, "shell.tar"), filepath.Join(dir, "root")
	ok(t, shell(t).Write(file, "v1"))
	ok(t, os.Mkdir(root, 0o755))
	extract(t, file, root)

	image, err := tarball.ImageFromPath(file, nil)
	ok(t, err)
	config, err := image.ConfigFile()
	ok(t, err)
	run := exec.Command(config.Config.Entrypoint[0], "-c", "read word < /opt/text; echo $word")
	run.SysProcAttr = &syscall.SysProcAttr{Chroot: root}
	run.Dir = "/"
	if out, err := run.CombinedOutput(); err != nil || string(out) != "hello\n" {
		t.Errorf("run %s: %v, %s", config.Config.Entrypoint, err, out)
	}
	if config.Config.User != "65532:65532" {
		t.Errorf("the image's user is %q", config.Config.User)
	}
}

func TestDeterministic(t *testing.T) {
	dir := t.TempDir()
	var written [2][]byte
	for i := range written {
		image := shell(t) // the text is another file with another date
		file := filepath.Join(dir, "shell.tar")
		ok(t, image.Write(file, "v1"))
		data, err := os.ReadFile(file)
		ok(t, err)
		written[i] = data
	}
	if !bytes.Equal(written[0], written[1]) {
		t.Error("two images of the same files differ")
	}
}

func TestErrors(t *testing.T) {
	tests := []struct {
		name   string
		change func(*Image)
		tag    string
		want   string
	}{
		{"no file", func(i *Image) { i.Files["/opt/x"] = "/nowhere/x" }, "v1", "/nowhere/x: no such file"},
		{"bad tag", func(i *Image) {}, "a b", "tag can only contain"},
		{"bad name", func(i *Image) { i.Name = "A B" }, "v1", "repository can only contain"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			image := shell(t)
			test.change(&image)
			if err := image.Write(filepath.Join(dir, "x.tar"), test.tag); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got error %v, want %q", err, test.want)
			}
			if left, _ := os.ReadDir(dir); len(left) > 0 {
				t.Errorf("left %v", left)
			}
		})
	}
}

func TestFindLibrary(t *testing.T) {
	if _, err := find("libnowhere.so.1"); err == nil || !strings.Contains(err.Error(), "libnowhere.so.1, which is in none of /lib/") {
		t.Errorf("got error %v", err)
	}
}
