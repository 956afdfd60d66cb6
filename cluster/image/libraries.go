package main

import (
	"debug/elf"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// libraryFolders are where the loader looks without a configuration.
var libraryFolders = []string{
	"/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu",
	"/lib/aarch64-linux-gnu", "/usr/lib/aarch64-linux-gnu",
	"/lib64", "/usr/lib64", "/lib", "/usr/lib",
}

// addLibraries adds the shared libraries that a program or library needs, and those that these need, at the path that they have
// on this machine. A file that is neither program nor library needs none.
func addLibraries(files map[string]string, file string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	magic := make([]byte, len(elf.ELFMAG))
	if n, err := f.ReadAt(magic, 0); err != nil && err != io.EOF {
		return err
	} else if string(magic[:n]) != elf.ELFMAG {
		return nil
	}
	program, err := elf.NewFile(f)
	if err != nil {
		return fmt.Errorf("read %s: %w", file, err)
	}
	needed, err := program.ImportedLibraries()
	if err != nil {
		return fmt.Errorf("read libraries of %s: %w", file, err)
	}
	var paths []string
	for _, library := range needed {
		path, err := find(library)
		if err != nil {
			return fmt.Errorf("%s needs %w", file, err)
		}
		paths = append(paths, path)
	}
	for _, p := range program.Progs {
		if p.Type == elf.PT_INTERP {
			loader := make([]byte, p.Filesz)
			if _, err := p.ReadAt(loader, 0); err != nil {
				return fmt.Errorf("read loader of %s: %w", file, err)
			}
			paths = append(paths, strings.TrimRight(string(loader), "\x00"))
		}
	}

	for _, path := range paths {
		if files[path] != "" {
			continue
		}
		files[path] = path
		if err := addLibraries(files, path); err != nil {
			return err
		}
	}
	return nil
}

func find(library string) (string, error) {
	for _, folder := range libraryFolders {
		path := filepath.Join(folder, library)
		if _, err := os.Stat(path); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("%s, which is in none of %s: install it", library, strings.Join(libraryFolders, ", "))
}
