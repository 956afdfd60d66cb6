// Package tools builds the programs of a test cluster from Go modules, and finds them. Kubernetes, containerd and kwok
// are each built in a separate module, because they agree on few versions of what they share.
package tools

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// project is what one module builds.
type project struct {
	name     string
	version  string   // of the required module; the name of the folder in the cache ends with it
	module   string   // folder of the module, below this package's
	packages []string // what to build there
	flags    []string // of go build
	links    []string // names that the only program is called by
}

var kubernetes = project{
	name: "kubernetes", version: "1.37.2", module: "kube", packages: []string{"."},
	flags: []string{"-ldflags", "-s -w" +
		" -X k8s.io/client-go/pkg/version.gitVersion=v1.37.2" +
		" -X k8s.io/component-base/version.gitVersion=v1.37.2" +
		" -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=37"},
	links: []string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-proxy", "kube-scheduler", "kubectl", "kubelet"},
}

var kwok = project{
	name: "kwok", version: "0.8.0", module: "kwok", packages: []string{"sigs.k8s.io/kwok/cmd/kwok"},
	flags: []string{"-ldflags", "-s -w"},
}

var containerd = project{
	name: "containerd", version: "2.4.2", module: "containerd",
	packages: []string{
		"github.com/containerd/containerd/v2/cmd/containerd",
		"github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2",
		"github.com/containerd/containerd/v2/cmd/ctr",
	},
	flags: []string{"-tags", "no_btrfs,no_zfs,no_devmapper,no_aufs,no_gce", "-ldflags", "-s -w"},
}

// pause is in this module. Its version changes with its source.
var pause = project{name: "pause", version: "1", module: "pause", packages: []string{"."}, flags: []string{"-ldflags", "-s -w"}}

// projects are in the order in which tests can begin to use them.
var projects = []project{kubernetes, kwok, containerd, pause}

// ErrMissing is returned by Find if a program has not been built.
var ErrMissing = errors.New("no programs of a test cluster; build them with make cluster-tools")

// cache returns the folder of all projects.
func cache() (string, error) {
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find the cache of cluster tools: %w", err)
	}
	return filepath.Join(dir, "penstock", "cluster-tools"), nil
}

func (p project) folder(cache string) string { return filepath.Join(cache, p.name+"-"+p.version) }

// Find returns the folder of each program, by its name. The error wraps ErrMissing.
func Find() (map[string]string, error) {
	cache, err := cache()
	if err != nil {
		return nil, err
	}

	found := map[string]string{}
	for _, p := range projects {
		files, err := os.ReadDir(p.folder(cache))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("find cluster tools: %w", err)
		}
		for _, f := range files {
			found[f.Name()] = p.folder(cache)
		}
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("look in %s: %w", cache, ErrMissing)
	}
	return found, nil
}

// Build builds what the cache lacks of the named projects, or of all. Source is the folder of this package. A second
// Build waits for the first.
func Build(ctx context.Context, source string, names []string, progress io.Writer) error {
	chosen := projects
	if len(names) > 0 {
		chosen = nil
	}
	for _, name := range names {
		i := slices.IndexFunc(projects, func(p project) bool { return p.name == name })
		if i < 0 {
			return fmt.Errorf("build %s: no such project; there are kubernetes, kwok, containerd and pause", name)
		}
		chosen = append(chosen, projects[i])
	}

	cache, err := cache()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return fmt.Errorf("make the cache of cluster tools: %w", err)
	}

	dir, err := os.Open(cache)
	if err != nil {
		return err
	}
	defer dir.Close()
	if unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
		fmt.Fprintln(progress, "waiting for another build of the cluster's tools")
		if err := unix.Flock(int(dir.Fd()), unix.LOCK_EX); err != nil {
			return os.NewSyscallError("flock", err)
		}
	}

	for _, p := range chosen {
		if err := p.build(ctx, source, cache, progress); err != nil {
			return fmt.Errorf("build %s %s: %w", p.name, p.version, err)
		}
	}
	return nil
}

// build compiles into a temporary folder and renames it, so that no folder is ever half full.
func (p project) build(ctx context.Context, source, cache string, progress io.Writer) error {
	if _, err := os.Stat(p.folder(cache)); err == nil {
		fmt.Fprintf(progress, "%s %s: is there\n", p.name, p.version)
		return nil
	}

	temporary, err := os.MkdirTemp(cache, "building-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(temporary)
	if err := os.Chmod(temporary, 0o755); err != nil {
		return err
	}

	began := time.Now()
	fmt.Fprintf(progress, "%s %s: compiling\n", p.name, p.version)
	arguments := append([]string{"build", "-v", "-trimpath", "-buildvcs=false"}, p.flags...)
	arguments = append(arguments, "-o", temporary+string(filepath.Separator))
	command := exec.CommandContext(ctx, "go", append(arguments, p.packages...)...)
	command.Dir = filepath.Join(source, p.module)
	command.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off", "GOFLAGS=")
	if err := p.run(command, progress); err != nil {
		return err
	}

	for _, link := range p.links {
		if err := os.Symlink(p.module, filepath.Join(temporary, link)); err != nil {
			return err
		}
	}
	if err := os.Rename(temporary, p.folder(cache)); err != nil {
		return err
	}
	fmt.Fprintf(progress, "%s %s: built in %s\n", p.name, p.version, time.Since(began).Round(time.Second))
	return nil
}

// run reports how many packages are compiled, once per minute. Other lines of go build are kept for the error.
func (p project) run(command *exec.Cmd, progress io.Writer) error {
	output, err := command.StderrPipe()
	if err != nil {
		return err
	}
	if err := command.Start(); err != nil {
		return err
	}

	compiled, reported := 0, time.Now()
	var other []string
	for lines := bufio.NewScanner(output); lines.Scan(); {
		// go build -v prints the path of each package, and nothing else has no space.
		if line := lines.Text(); strings.ContainsAny(line, " #") {
			other = append(other, line)
		} else if compiled++; time.Since(reported) >= time.Minute {
			fmt.Fprintf(progress, "%s %s: %d packages compiled\n", p.name, p.version, compiled)
			reported = time.Now()
		}
	}

	if err := command.Wait(); err != nil {
		return fmt.Errorf("go build: %w\n%s", err, strings.Join(other[max(0, len(other)-20):], "\n"))
	}
	return nil
}
