// Package layers holds the layers of docs/architecture.md: which package may
// import which. An import that goes up fails here.
package layers

import (
	"encoding/json"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/testing/must"
)

const module = "github.com/penstock/penstock/"

// layers are the floors of the house, from the top. A package may import what
// lies on a lower floor; a folder stands for everything below it.
var layers = [][]string{
	{"research"},
	{"cmd", "test", "examples", "python", "internal/testing"},
	{"profiler"},
	{"internal/testbed"},
	{"manager", "orchestrator", "libml", "loadgen", "gateway", "node", "planner"},
	{"configs", "plan", "datapath"},
	{"batching"},
	{"client", "control", "shm", "models", "cuda"},
	{"wire", "private", "internal/unixsock", "internal/freeport", "internal/lockfile", "internal/procstat", "internal/follow", "internal/webserver", "internal/confidence", "internal/seccomp", "internal/streams"},
	{"internal/atomicfile", "internal/futex"},
}

// inner are the floors inside a folder. "" is the folder's own package.
var inner = map[string][][]string{
	"manager": {
		{""},
		{"fleet"},
		{"observe"},
		{"sharing"},
		{"policy"},
	},
	"datapath": {
		{""},
		{"aggregate"},
		{"dpdk", "udp"},
		{"cameras", "slab"},
		{"adaptive", "ingest"},
	},
	"orchestrator": {
		{""},
		{"gpu"},
		{"cpushare", "guest", "keeper", "mps", "program"},
		{"cgroup", "sandbox", "topology"},
	},
	"libml": {
		{"libpenstock"},
		{"", "capi", "frameworks", "reference"},
		{"internal", "onnx"},
		{"conductor", "framework"},
		{"answer", "gate"},
		{"gpu"},
		{"cpu", "decode"},
		{"device", "python", "residency", "weights"},
		{"lane"},
	},
}

// pure packages have no clock, no I/O and no memory of their own: they are
// tested as functions and run in simulation.
var pure = map[string][]string{
	"wire":                     {"os", "net", "syscall", "io"},
	"client/recovery":          {"os", "net", "syscall", "io"},
	"control/budget":           {"os", "net", "syscall", "io"},
	"manager/policy/gslice":    {"os", "net", "syscall", "io"},
	"manager/policy/fault":     {"os", "net", "syscall", "io"},
	"manager/policy/guarantee": {"os", "net", "syscall", "io"},
	"manager/policy/pair":      {"os", "net", "syscall", "io"},
	"manager/policy/partition": {"os", "net", "syscall", "io"},
	"gateway/history":          {"os", "net", "syscall", "io"},
	"gateway/openinference":    {"os", "net", "syscall", "io"},
	"datapath/cameras":         {"os", "net", "syscall", "io"},
	"datapath/dpdk/frame":      {"os", "net", "syscall", "io"},
	"batching":                 {"os", "net", "syscall", "io"},
	"libml/decode":             {"os", "net", "syscall", "io"},
	"libml/lane":               {"os", "net", "syscall", "io"},
	"libml/residency":          {"os", "net", "syscall", "io"},
	"cuda/swap/turns":          {"os", "net", "syscall", "io"},
	"libml/answer":             {"os", "net", "syscall", "io"},
	"plan":                     {"os", "net", "syscall", "math/rand"},
	"internal/confidence":      {"os", "net", "syscall", "io"},
	"internal/streams":         {"os", "net", "syscall", "io"},
}

// pureFolders are folders whose packages are all pure. Packages that only serve tests are
// exempt; their names show it.
var pureFolders = []string{"plan", "planner"}

// codeFiles are the extensions of files with code.
var codeFiles = []string{".go", ".c", ".cu", ".py", ".js", ".mjs"}

// forbiddenCalls are what a pure package must not call: the clock.
var forbiddenCalls = regexp.MustCompile(`\btime\.(Now|Since|Until|Sleep|After|Tick|NewTimer|NewTicker)\b`)

type pkg struct {
	ImportPath, Dir string
	GoFiles         []string
	Imports         []string
}

func packages(t *testing.T) []pkg {
	t.Helper()
	list := exec.Command("go", "list", "-json=ImportPath,Dir,GoFiles,Imports", module+"...")
	workspace, err := filepath.Abs("../../research/go.work")
	must.OK(t, err)
	list.Env = append(os.Environ(), "GOWORK="+workspace) // both modules
	out, err := list.Output()
	if err != nil {
		t.Fatalf("list packages: %v", err)
	}
	var all []pkg
	for decoder := json.NewDecoder(strings.NewReader(string(out))); decoder.More(); {
		var p pkg
		must.OK(t, decoder.Decode(&p))
		all = append(all, p)
	}
	for _, name := range []string{"wire", "research/bench"} {
		if !slices.ContainsFunc(all, func(p pkg) bool { return p.ImportPath == module+name }) {
			t.Fatalf("found no %s among %d packages; the test looks in the wrong place", name, len(all))
		}
	}
	return all
}

// folder is the part of a package's path that the layers name: the first, or the first
// two of internal/.
func folder(path string) string {
	name, rest, _ := strings.Cut(strings.TrimPrefix(path, module), "/")
	if name == "internal" {
		second, _, _ := strings.Cut(rest, "/")
		name += "/" + second
	}
	return name
}

func layer(name string) int { return layerOf(layers, name) }

func layerOf(layerNames [][]string, name string) int {
	return slices.IndexFunc(layerNames, func(l []string) bool { return slices.Contains(l, name) })
}

func TestImports(t *testing.T) {
	for _, p := range packages(t) {
		from := folder(p.ImportPath)
		if layer(from) < 0 {
			t.Errorf("%s is in no layer of docs/architecture.md", p.ImportPath)
			continue
		}
		for _, path := range p.Imports {
			if !strings.HasPrefix(path, module) {
				continue
			}
			to := folder(path)
			if to == from || layer(to) > layer(from) {
				continue
			}
			t.Errorf("%s imports %s: %s may not know %s", p.ImportPath, path, from, to)
		}
	}
}

// TestInnerImports is TestImports inside manager/ and libml/.
func TestInnerImports(t *testing.T) {
	arrows := map[string]int{}
	for _, p := range packages(t) {
		top := folder(p.ImportPath)
		layerNames, ok := inner[top]
		if !ok {
			continue
		}
		// part is the folder below top that a package lies in.
		part := func(path string) (name string, ok bool) {
			rest, ok := strings.CutPrefix(path+"/", module+top+"/")
			name, _, _ = strings.Cut(rest, "/")
			return name, ok
		}
		from, _ := part(p.ImportPath)
		if layerOf(layerNames, from) < 0 {
			t.Errorf("%s is on no floor inside %s", p.ImportPath, top)
		}
		for _, path := range p.Imports {
			to, inside := part(path)
			if !inside || to == from {
				continue
			}
			arrows[top]++
			if layerOf(layerNames, to) <= layerOf(layerNames, from) {
				t.Errorf("%s imports %s, which lies no lower", p.ImportPath, path)
			}
		}
	}
	for top := range inner {
		if arrows[top] == 0 {
			t.Errorf("found no import inside %s; the test looks in the wrong place", top)
		}
	}
}

func TestPurePackages(t *testing.T) {
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
			must.OK(t, err)
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
		must.OK(t, err)
		for _, file := range files {
			text, err := os.ReadFile(file)
			must.OK(t, err)
			look(p, file, text)
		}
	}
}

// All unsafe code stands in files whose name says so.
func TestUnsafe(t *testing.T) {
	imports := regexp.MustCompile(`(?m)^\s*(import\s+)?"unsafe"`)
	eachFile(t, func(_ pkg, file string, text []byte) {
		base := strings.TrimSuffix(strings.TrimSuffix(file, ".go"), "_test")
		if imports.Match(text) && !strings.HasSuffix(base, "_unsafe") {
			t.Errorf("%s imports unsafe and is not named *_unsafe.go", file)
		}
	})
}

// One package pins all threads. The manager, the orchestrator and the benchmarks can
// import it.
func TestAffinity(t *testing.T) {
	const address = module + "shm/cpuset"
	calls := regexp.MustCompile(`\bunix\.(Sched[SG]etaffinity|CPUSet)\b|Syscall6?\(\w+\.SYS_SCHED_[SG]ETAFFINITY\b`)
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

// row is a line of the table of folders: a cell with folders, and one that names some below them.
var row = regexp.MustCompile("(?m)^\\|( `[^|]*/`[^|]*)\\|([^|]*)\\|([^|]*)\\|$")

var folderName = regexp.MustCompile("`([^` ]+)/`")

// named returns the folders that the table of docs/architecture.md names. A name that ends with
// "/*" stands for everything below. Names in the second cell are relative to one of the first.
func named(t *testing.T) (names []string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "architecture.md"))
	must.OK(t, err)
	for _, cells := range row.FindAllStringSubmatch(string(text), -1) {
		if strings.TrimSpace(cells[2]) == "" || strings.TrimSpace(cells[3]) == "" {
			t.Errorf("docs/architecture.md does not say what belongs in%s, and what does not", strings.TrimRight(cells[1], " "))
		}
		for _, top := range folderName.FindAllStringSubmatch(cells[1], -1) {
			names = append(names, top[1])
			for _, below := range folderName.FindAllStringSubmatch(cells[2], -1) {
				names = append(names, path.Join(top[1], below[1]))
			}
		}
	}
	return names
}

// The table of docs/architecture.md names each folder with code.
func TestFolders(t *testing.T) {
	list := exec.Command("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	list.Dir = filepath.Join("..", "..")
	out, err := list.Output()
	if err != nil {
		t.Fatalf("list files: %v", err)
	}
	folders := map[string]bool{}
	for file := range strings.SplitSeq(string(out), "\x00") {
		folder := path.Dir(file)
		parts := strings.Split(folder, "/")
		if slices.Contains(codeFiles, path.Ext(file)) && folder != "." && !slices.Contains(parts, "testdata") && !slices.Contains(parts, "vendor") {
			folders[folder] = true
		}
	}
	if !folders["wire"] || !folders["cuda/swap/library"] {
		t.Fatalf("found no code in wire or cuda/swap/library among %d folders; the test looks in the wrong place", len(folders))
	}

	names := named(t)
	for folder := range folders {
		if !slices.ContainsFunc(names, func(name string) bool {
			all, ok := strings.CutSuffix(name, "/*")
			return name == folder || ok && strings.HasPrefix(folder, all+"/")
		}) {
			t.Errorf("the table of folders in docs/architecture.md does not name %s/", folder)
		}
	}
}

// TestDependencies holds docs/adr/0021-dependencies.md to go.mod.
func TestDependencies(t *testing.T) {
	out, err := exec.Command("go", "mod", "edit", "-json", filepath.Join("..", "..", "go.mod")).Output()
	if err != nil {
		t.Fatalf("read go.mod: %v", err)
	}
	var file struct {
		Require []struct {
			Path     string
			Indirect bool
		}
	}
	must.OK(t, json.Unmarshal(out, &file))
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "adr", "0021-dependencies.md"))
	must.OK(t, err)
	direct := map[string]bool{}
	for _, r := range file.Require {
		if direct[r.Path] = !r.Indirect; !r.Indirect && !strings.Contains(string(text), "`"+r.Path+"`") {
			t.Errorf("docs/adr/0021-dependencies.md does not justify %s", r.Path)
		}
	}
	for _, m := range regexp.MustCompile("`([a-z0-9.-]+\\.[a-z]+/[^` ]+)`").FindAllStringSubmatch(string(text), -1) {
		if !direct[m[1]] {
			t.Errorf("docs/adr/0021-dependencies.md names %s, which go.mod does not require", m[1])
		}
	}
}
