// Package layers holds the drawing in docs/architecture.md: which package may
// import which. An arrow that the drawing does not have fails here.
package layers

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/penstock/penstock/"

// layers are the floors of the house, from the top. A package may import what
// lies on a lower floor; a folder stands for everything below it.
var layers = [][]string{
	{"cmd", "test", "examples"},
	{"bench"},
	{"manager", "orchestrator", "libml", "loadgen", "node"},
	{"configs", "plan"},
	{"client", "control", "shm", "models", "cuda"},
	{"wire"},
}

// pure packages have no clock, no I/O and no memory of their own: they are
// tested as functions and run in simulation.
var pure = map[string][]string{
	"wire":                      {"os", "net", "syscall", "io"},
	"manager/share":             {"os", "net", "syscall", "io"},
	"manager/fault":             {"os", "net", "syscall", "io"},
	"manager/pair":              {"os", "net", "syscall", "io"},
	"manager/partition":         {"os", "net", "syscall", "io"},
	"manager/source/dpdk/frame": {"os", "net", "syscall", "io"},
	"libml/slab":                {"os", "net", "syscall", "io"},
	"libml/decode":              {"os", "net", "syscall", "io"},
	"plan":                      {"os", "net", "syscall", "math/rand"},
}

// pureFolders are those whose every package is as pure as they are, but for
// what serves tests and is named so.
var pureFolders = []string{"plan"}

// forbiddenCalls are what a pure package must not call: the clock.
var forbiddenCalls = regexp.MustCompile(`\btime\.(Now|Since|Until|Sleep|After|Tick|NewTimer|NewTicker)\b`)

type pkg struct {
	ImportPath, Dir string
	GoFiles         []string
	Imports         []string
}

func packages(t *testing.T) []pkg {
	t.Helper()
	out, err := exec.Command("go", "list", "-json=ImportPath,Dir,GoFiles,Imports", module+"...").Output()
	if err != nil {
		t.Fatalf("list packages: %v", err)
	}
	var list []pkg
	for decoder := json.NewDecoder(strings.NewReader(string(out))); decoder.More(); {
		var p pkg
		if err := decoder.Decode(&p); err != nil {
			t.Fatal(err)
		}
		list = append(list, p)
	}
	if len(list) < 10 {
		t.Fatalf("found %d packages; the test looks in the wrong place", len(list))
	}
	return list
}

// folder is the first part of a package's path, which the layers speak of.
func folder(path string) string {
	name, _, _ := strings.Cut(strings.TrimPrefix(path, module), "/")
	return name
}

func floor(name string) int {
	return slices.IndexFunc(layers, func(l []string) bool { return slices.Contains(l, name) })
}

func TestImportsPointDown(t *testing.T) {
	for _, p := range packages(t) {
		from := folder(p.ImportPath)
		if floor(from) < 0 {
			t.Errorf("%s is on no floor of the drawing", p.ImportPath)
			continue
		}
		for _, path := range p.Imports {
			if !strings.HasPrefix(path, module) {
				continue
			}
			to := folder(path)
			if to == from || floor(to) > floor(from) {
				continue
			}
			t.Errorf("%s imports %s: %s may not know %s", p.ImportPath, path, from, to)
		}
	}
}

func TestPurePackagesHaveNoClockAndNoIO(t *testing.T) {
	seen := 0
	for _, p := range packages(t) {
		path := strings.TrimPrefix(p.ImportPath, module)
		banned, ok := pure[path]
		if ok {
			seen++
		} else if top := folder(p.ImportPath); slices.Contains(pureFolders, top) && !strings.HasSuffix(path, "test") {
			banned, ok = pure[top], true
		}
		if !ok {
			continue
		}
		for _, path := range p.Imports {
			if slices.Contains(banned, path) {
				t.Errorf("%s is pure and imports %s", p.ImportPath, path)
			}
		}
		for _, name := range p.GoFiles {
			text, err := os.ReadFile(filepath.Join(p.Dir, name))
			if err != nil {
				t.Fatal(err)
			}
			if call := forbiddenCalls.Find(text); call != nil {
				t.Errorf("%s is pure and calls %s", name, call)
			}
		}
	}
	if seen != len(pure) {
		t.Errorf("found %d of %d pure packages", seen, len(pure))
	}
}

// eachFile reads every Go file that there is, with whatever build tag, tests too.
func eachFile(t *testing.T, look func(p pkg, file string, text []byte)) {
	t.Helper()
	for _, p := range packages(t) {
		files, err := filepath.Glob(filepath.Join(p.Dir, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			look(p, file, text)
		}
	}
}

// All unsafe code stands in files whose name says so.
func TestUnsafeHasAnAddress(t *testing.T) {
	imports := regexp.MustCompile(`(?m)^\s*(import\s+)?"unsafe"`)
	eachFile(t, func(_ pkg, file string, text []byte) {
		base := strings.TrimSuffix(strings.TrimSuffix(file, ".go"), "_test")
		if imports.Match(text) && !strings.HasSuffix(base, "_unsafe") {
			t.Errorf("%s imports unsafe and is not named *_unsafe.go", file)
		}
	})
}

// All threads are pinned in one package, which manager, orchestrator and whoever measures
// them can import.
func TestAffinityHasAnAddress(t *testing.T) {
	const address = module + "shm/cpuset"
	calls := regexp.MustCompile(`\bunix\.(Sched[SG]etaffinity|CPUSet)\b|\bSYS_SCHED_[SG]ETAFFINITY\b`)
	there := false
	eachFile(t, func(p pkg, file string, text []byte) {
		call := calls.Find(text)
		switch {
		case call == nil:
		case p.ImportPath == address:
			there = true
		default:
			t.Errorf("%s has %s: %s reads and sets the CPUs of threads", file, call, address)
		}
	})
	if !there {
		t.Errorf("%s does not pin threads", address)
	}
}

// The drawing names every folder that there is.
func TestDrawingNamesEveryFolder(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "architecture.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range packages(t) {
		if name := folder(p.ImportPath); !strings.Contains(string(text), name+"/") {
			t.Errorf("docs/architecture.md does not name %s/", name)
		}
	}
}
