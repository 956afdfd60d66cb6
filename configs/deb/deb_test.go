package deb

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/testing/must"
)

const root = "../../"

// tool returns the path of a program, or skips the test.
func tool(t *testing.T, name, install string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Skipf("not on this machine: %s is missing (%s)", name, install)
	}
	return path
}

// output runs a program in the root of the tree and returns what it writes to standard output.
func output(t *testing.T, environment []string, name string, arguments ...string) string {
	t.Helper()
	command := exec.CommandContext(t.Context(), name, arguments...)
	command.Dir, command.Env = root, append(os.Environ(), environment...)
	var stderr strings.Builder
	command.Stderr = &stderr
	out, err := command.Output()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s%s", name, strings.Join(arguments, " "), err, out, stderr.String())
	}
	return string(out)
}

// makePackage makes the package from bin/.
func makePackage(t *testing.T) (path string) {
	t.Helper()
	for _, name := range []string{"strip", "objdump", "dpkg-deb"} {
		tool(t, name, "apt-get install binutils dpkg")
	}
	for _, file := range []string{"bin/penstock", "bin/lib/libonnxruntime.so", "bin/lib/libpenstock.so"} {
		if _, err := os.Stat(root + file); err != nil {
			t.Skipf("not on this machine: %v; run make build first", err)
		}
	}
	script, err := os.ReadFile("build.sh")
	must.OK(t, err)
	nfpm := regexp.MustCompile(`(?m)^NFPM=(\S+)$`).FindStringSubmatch(string(script))
	if nfpm == nil {
		t.Fatal("build.sh names no version of nfpm")
	}
	fetch := exec.CommandContext(t.Context(), "go", "run", nfpm[1], "--version")
	fetch.Env = append(os.Environ(), "GOFLAGS=", "GOWORK=off")
	if out, err := fetch.CombinedOutput(); err != nil {
		t.Skipf("not on this machine: the Go proxy does not deliver nfpm: %v\n%s", err, out)
	}
	return strings.TrimSpace(output(t, []string{"VERSION=v0.1.0-7-gabc123", "SOURCE_DATE_EPOCH=1790000000"}, "configs/deb/build.sh", t.TempDir()))
}

func TestPackage(t *testing.T) {
	if testing.Short() {
		t.Skip("not with -short: it makes a package")
	}
	path := makePackage(t)
	if got, want := filepath.Base(path), "penstock_0.1.0+7.gabc123_"; !strings.HasPrefix(got, want) {
		t.Errorf("package %s, want %s...", got, want)
	}

	t.Run("contents", func(t *testing.T) {
		list := output(t, nil, "dpkg-deb", "--contents", path)
		for _, file := range []string{
			"./usr/bin/penstock -> ../lib/penstock/penstock", "./usr/lib/penstock/penstock", "./usr/lib/penstock/lib/libonnxruntime.so",
			"./etc/penstock/penstock.yaml", "./usr/lib/systemd/system/penstock.service", "./usr/lib/sysusers.d/penstock.conf",
			"./usr/share/man/man1/penstock.1.gz", "./usr/share/man/man1/penstock-if-add.1.gz",
			"./usr/share/bash-completion/completions/penstock", "./usr/share/zsh/vendor-completions/_penstock",
			"./usr/share/fish/vendor_completions.d/penstock.fish",
		} {
			if !strings.Contains(list, file+"\n") {
				t.Errorf("the package lacks %s:\n%s", file, list)
			}
		}
		for _, line := range strings.Split(strings.TrimSpace(list), "\n") {
			if !strings.Contains(line, " root/root ") && !strings.Contains(line, " 0/0 ") {
				t.Errorf("file of another owner than root: %s", line)
			}
			if strings.HasPrefix(line, "d") && !strings.HasPrefix(line, "drwxr-xr-x ") {
				t.Errorf("mode of a folder: %s", line)
			}
		}
	})
	t.Run("conffiles", func(t *testing.T) {
		if got := output(t, nil, "dpkg-deb", "--info", path, "conffiles"); got != "/etc/penstock/penstock.yaml\n" {
			t.Errorf("conffiles %q", got)
		}
	})
	t.Run("installed", func(t *testing.T) { checkInstalled(t, path) })
	t.Run("lintian", func(t *testing.T) {
		lintian := tool(t, "lintian", "apt-get install lintian; .ci/run installs it")
		output(t, nil, lintian, "--fail-on", "error", "--allow-root", path)
	})
}

// checkInstalled unpacks the package, and checks that its program finds its library and runs the models.
func checkInstalled(t *testing.T, path string) {
	dir := t.TempDir()
	output(t, nil, "dpkg-deb", "--extract", path, dir)
	penstock := filepath.Join(dir, "usr/bin/penstock")
	if got := output(t, nil, penstock, "version"); !strings.HasPrefix(got, "penstock ") {
		t.Errorf("version %q", got)
	}
	text, err := os.ReadFile(filepath.Join(dir, "etc/penstock/penstock.yaml"))
	must.OK(t, err)
	// Other nodes may use the ports of this machine.
	config := filepath.Join(t.TempDir(), "node.yaml")
	anyPort := regexp.MustCompile(`port: \d+`).ReplaceAllString(string(text), "port: 0")
	must.OK(t, os.WriteFile(config, fmt.Appendf(nil, "%s\nhttp: 127.0.0.1:0\ngateway: off\n", anyPort), 0o600))
	if got := output(t, []string{"PENSTOCK_ONNXRUNTIME="}, penstock, "check", config); !strings.Contains(got, "a node can run with it") {
		t.Errorf("check says %q", got)
	}
}
