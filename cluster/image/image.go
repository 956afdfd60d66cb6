package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// user is the user of all images: unprivileged, and not one of the machine.
const user = "65532"

// Image is an image to write.
type Image struct {
	Name         string
	Program      string            // the entry point, a path in the image
	Files        map[string]string // by path in the image: the file on this machine
	Architecture string
	Created      time.Time
}

// Write writes the image to a file, all of it or nothing.
func (i Image) Write(file, tag string) (err error) {
	reference, err := name.NewTag(i.Name + ":" + tag)
	if err != nil {
		return err
	}
	image, err := i.build()
	if err != nil {
		return err
	}

	f, err := os.CreateTemp(filepath.Dir(file), ".image-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	if err := errors.Join(tarball.Write(reference, image, f), f.Chmod(0o644), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), file)
}

func (i Image) build() (v1.Image, error) {
	files := maps.Clone(i.Files)
	for _, file := range i.Files {
		if err := addLibraries(files, file); err != nil {
			return nil, err
		}
	}
	content, err := i.layer(files)
	if err != nil {
		return nil, err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content)), nil })
	if err != nil {
		return nil, err
	}

	image, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		return nil, err
	}
	return mutate.ConfigFile(image, &v1.ConfigFile{
		Architecture: i.Architecture,
		OS:           "linux",
		Created:      v1.Time{Time: i.Created},
		Config: v1.Config{
			User:       user + ":" + user,
			Entrypoint: []string{i.Program},
			Env:        []string{"PATH=/usr/bin:/bin"},
		},
		RootFS: v1.RootFS{Type: "layers", DiffIDs: diffIDs(image)},
	})
}

func diffIDs(image v1.Image) []v1.Hash {
	config, err := image.ConfigFile()
	if err != nil {
		panic(err) // it was made from memory
	}
	return config.RootFS.DiffIDs
}

// layer returns a tar of the files, in the order of their paths, and of the folders above them.
func (i Image) layer(files map[string]string) ([]byte, error) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	header := func(name string, kind byte, mode, size int64) error {
		return w.WriteHeader(&tar.Header{Name: strings.TrimPrefix(name, "/"), Typeflag: kind, Mode: mode, Size: size, ModTime: i.Created})
	}
	made := map[string]bool{"/": true}
	var folder func(name string, mode int64) error
	folder = func(name string, mode int64) error {
		if made[name] {
			return nil
		}
		made[name] = true
		return errors.Join(folder(path.Dir(name), 0o755), header(name+"/", tar.TypeDir, mode, 0))
	}
	regular := func(name string, mode int64, content []byte) error {
		if err := errors.Join(folder(path.Dir(name), 0o755), header(name, tar.TypeReg, mode, int64(len(content)))); err != nil {
			return err
		}
		_, err := w.Write(content)
		return err
	}

	account := fmt.Sprintf("penstock:x:%s:%s", user, user)
	if err := errors.Join(
		folder("/tmp", 0o1777),
		regular("/etc/group", 0o644, []byte("penstock:x:"+user+":\n")),
		regular("/etc/passwd", 0o644, []byte(account+"::/tmp:/sbin/nologin\n")),
	); err != nil {
		return nil, err
	}
	for _, to := range slices.Sorted(maps.Keys(files)) {
		content, err := os.ReadFile(files[to])
		if err != nil {
			return nil, err
		}
		if err := regular(to, 0o755, content); err != nil {
			return nil, err
		}
	}
	return b.Bytes(), w.Close()
}
