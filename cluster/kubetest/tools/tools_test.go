package tools

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The version is the name of a folder in the cache: with a wrong one, an old program would stay in use.
func TestVersions(t *testing.T) {
	modules := map[string]string{
		"kubernetes": "k8s.io/kubernetes",
		"kwok":       "sigs.k8s.io/kwok",
		"containerd": "github.com/containerd/containerd/v2",
	}
	for _, p := range []project{kubernetes, kwok, containerd} {
		text, err := os.ReadFile(filepath.Join(p.module, "go.mod"))
		if err != nil {
			t.Fatal(err)
		}
		required := regexp.MustCompile(`(?m)^(?:require |\t)` + regexp.QuoteMeta(modules[p.name]) + ` v(\S+)`).FindSubmatch(text)
		if required == nil || string(required[1]) != p.version {
			t.Errorf("%s: version %s, but go.mod requires %q", p.name, p.version, required)
		}
		if flags := strings.Join(p.flags, " "); strings.Contains(flags, "gitVersion") && !strings.Contains(flags, "gitVersion=v"+p.version) {
			t.Errorf("%s: version %s, but the linker writes another one: %s", p.name, p.version, flags)
		}
	}
}

func TestFind(t *testing.T) {
	cache := t.TempDir()
	t.Setenv("XDG_CACHE_HOME", cache)
	if _, err := Find(); err == nil || !strings.Contains(err.Error(), "make cluster-tools") {
		t.Errorf("empty cache: %v", err)
	}

	folder := filepath.Join(cache, "penstock", "cluster-tools", "kwok-"+kwok.version)
	if err := os.MkdirAll(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(folder, "kwok"), nil, 0o755); err != nil {
		t.Fatal(err)
	}
	found, err := Find()
	if err != nil || found["kwok"] != folder || found["kubelet"] != "" {
		t.Errorf("with kwok only: %v, %v", found, err)
	}
}
