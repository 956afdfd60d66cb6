// Package release has the tests of what `make release` makes. `make test-release` runs them. Without it they are skipped.
package release

import (
	"bytes"
	"debug/elf"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/nodetest"
	"github.com/penstock/penstock/node"
)

const root = "../../"

// folder returns the folder with the release.
func folder(t *testing.T) string {
	t.Helper()
	dir := os.Getenv("PENSTOCK_RELEASE")
	if dir == "" {
		t.Skip("no release to test: run make test-release")
	}
	return dir
}

// output runs a program and returns what it writes to standard output.
func output(t *testing.T, name string, arguments ...string) string {
	t.Helper()
	command := exec.CommandContext(t.Context(), name, arguments...)
	var stderr strings.Builder
	command.Stderr = &stderr
	out, err := command.Output()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s%s", name, strings.Join(arguments, " "), err, out, stderr.String())
	}
	return string(out)
}

// one returns the only file of the release that matches the pattern.
func one(t *testing.T, pattern string) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(folder(t), pattern))
	must.OK(t, err)
	if len(found) != 1 {
		t.Fatalf("files %s: %q, want one", pattern, found)
	}
	return found[0]
}

func TestSums(t *testing.T) {
	sums := output(t, "sh", "-c", `cd "$0" && sha256sum -b *.deb *.tar.gz`, folder(t))
	listed, err := os.ReadFile(filepath.Join(folder(t), "SHA256SUMS"))
	must.OK(t, err)
	if sums = strings.ReplaceAll(sums, " *", "  "); sums != string(listed) {
		t.Errorf("SHA256SUMS has\n%s, and the files have\n%s", listed, sums)
	}
	if n := strings.Count(sums, "\n"); n != 3 {
		t.Errorf("%d files, want two packages and an archive", n)
	}

	t.Run("second build", func(t *testing.T) {
		out := t.TempDir()
		t.Setenv("VERSION", strings.TrimPrefix(strings.TrimSpace(output(t, root+"bin/penstock", "version")), "penstock "))
		output(t, root+"configs/release/build.sh", out)
		again, err := os.ReadFile(filepath.Join(out, "SHA256SUMS"))
		must.OK(t, err)
		if !bytes.Equal(again, listed) {
			t.Errorf("two builds differ:\n%s%s", listed, again)
		}
	})
}

func TestPackages(t *testing.T) {
	for _, c := range []struct{ name, other, library string }{
		{"penstock", "penstock-dpdk", "libc6 (>= "},
		{"penstock-dpdk", "penstock", "librte-ethdev"},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := one(t, c.name+"_*.deb")
			for field, want := range map[string]string{"Package": c.name, "Conflicts": c.other, "Replaces": c.other, "Depends": c.library} {
				if got := output(t, "dpkg-deb", "--field", path, field); !strings.Contains(got, want) {
					t.Errorf("%s is %q, want %s", field, got, want)
				}
			}
			if got := output(t, "dpkg-deb", "--info", path, "conffiles"); got != "/etc/penstock/penstock.yaml\n" {
				t.Errorf("conffiles %q", got)
			}
			checkContents(t, output(t, "dpkg-deb", "--contents", path))
			if c.name == "penstock" { // the other has the same files, and lintian takes its time
				output(t, "lintian", "--fail-on", "error", "--allow-root", path)
			}

			dir := t.TempDir()
			output(t, "dpkg-deb", "--extract", path, dir)
			checkLibraries(t, dir)
			checkNode(t, filepath.Join(dir, "usr/bin/penstock"), filepath.Join(dir, "etc/penstock/penstock.yaml"))
		})
	}
}

func checkContents(t *testing.T, list string) {
	t.Helper()
	for _, file := range []string{
		"./usr/bin/penstock -> ../lib/penstock/penstock", "./usr/lib/penstock/penstock", "./usr/lib/penstock/lib/libonnxruntime.so",
		"./usr/lib/penstock/lib/python/penstock_model/__init__.py",
		"./usr/lib/systemd/system/penstock.service", "./usr/lib/sysusers.d/penstock.conf",
		"./usr/share/man/man1/penstock.1.gz", "./usr/share/man/man1/penstock-if-add.1.gz",
		"./usr/share/bash-completion/completions/penstock", "./usr/share/zsh/vendor-completions/_penstock",
		"./usr/share/fish/vendor_completions.d/penstock.fish", "./usr/share/doc/penstock/NOTICE",
	} {
		if !strings.Contains(list, file+"\n") {
			t.Errorf("the package lacks %s:\n%s", file, list)
		}
	}
	for line := range strings.Lines(list) {
		if !strings.Contains(line, " root/root ") {
			t.Errorf("file of another owner than root: %s", line)
		}
		if strings.HasPrefix(line, "d") && !strings.HasPrefix(line, "drwxr-xr-x ") {
			t.Errorf("mode of a folder: %s", line)
		}
	}
}

func TestArchive(t *testing.T) {
	path := one(t, "penstock-*.tar.gz")
	dir := t.TempDir()
	output(t, "tar", "-xzf", path, "-C", dir)
	dir = filepath.Join(dir, strings.TrimSuffix(filepath.Base(path), ".tar.gz"))

	checkLibraries(t, dir)
	checkNode(t, filepath.Join(dir, "penstock"), filepath.Join(dir, "configs/systemd/penstock.yaml"))
	licences, err := os.ReadDir(filepath.Join(dir, "licences"))
	must.OK(t, err)
	if len(licences) < 20 {
		t.Errorf("%d licences, want one per module", len(licences))
	}
	for _, l := range licences {
		if info, err := l.Info(); err != nil || info.Size() == 0 {
			t.Errorf("licence of %s is empty (%v)", l.Name(), err)
		}
	}
}

// checkLibraries checks that the loader finds what each program and library in the folder needs.
func checkLibraries(t *testing.T, dir string) {
	t.Helper()
	var checked []string
	must.OK(t, filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		file, err := elf.Open(path)
		if err != nil {
			return nil // no program
		}
		defer file.Close()
		checked = append(checked, entry.Name())
		if needs := output(t, "ldd", path); strings.Contains(needs, "not found") {
			t.Errorf("%s lacks libraries:\n%s", entry.Name(), needs)
		}
		return nil
	}))
	for _, want := range []string{"penstock", "libonnxruntime.so", "libpenstock.so", "libpenstock-yield.so"} {
		if !slices.Contains(checked, want) {
			t.Errorf("programs and libraries are %q, and %s is missing", checked, want)
		}
	}
}

// checkNode starts the functions of a configuration with an unpacked program, and sends a picture.
func checkNode(t *testing.T, program, config string) {
	t.Helper()
	text, err := os.ReadFile(config)
	must.OK(t, err)
	// Other nodes may use the ports of this machine.
	free := regexp.MustCompile(`port: \d+`).ReplaceAllString(string(text), "port: 0")
	t.Setenv("PENSTOCK_ONNXRUNTIME", "") // the library beside the program
	nodetest.Binary = program
	nd := nodetest.Start(t, node.Options{Config: free})
	if got := output(t, program, "infer", "face", root+"models/zoo/pictures/astronaut.jpg", "--timeout", "10s", "--runtime-dir", nd.Dir); !strings.Contains(got, "face") {
		t.Errorf("a picture of a face has the answer %q", got)
	}
	nd.Kill()
}
