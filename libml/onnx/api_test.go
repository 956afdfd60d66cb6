//go:build cgo

package onnx

import (
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	_ "github.com/yalue/onnxruntime_go" // has the header

	"github.com/penstock/penstock/internal/testing/must"
)

// held compares shim.h and the constants of api.go with the header of ONNX Runtime's C API.
const held = `
#include "onnxruntime_c_api.h"
#include "shim.h"

#define HOLD(name, index) _Static_assert(offsetof(OrtApi, name) == (index) * sizeof(void *), #name " has another index");
#define SAME(ours, theirs) _Static_assert((int)ours == (int)theirs, #theirs);
SAME(sizeof(struct pon_allocator), sizeof(OrtAllocator));

#define FIELD(ours, theirs) \
	_Static_assert(offsetof(struct pon_allocator, ours) == offsetof(OrtAllocator, theirs) && \
		__builtin_types_compatible_p(__typeof__(((struct pon_allocator *)0)->ours), \
			__typeof__(((OrtAllocator *)0)->theirs)), "OrtAllocator." #theirs)
FIELD(version, version);
FIELD(allocate, Alloc);
FIELD(release, Free);
FIELD(information, Info);
FIELD(reserve, Reserve);
FIELD(statistics, GetStats);
FIELD(allocate_on_stream, AllocOnStream);
`

func TestShimHeader(t *testing.T) {
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/yalue/onnxruntime_go").Output()
	if err != nil {
		t.Skipf("the go command, which knows where the header is, does not run: %v", err)
	}
	dir := t.TempDir()
	source := filepath.Join(dir, "held.c")
	text := held + fmt.Sprintf("SAME(%d, ORT_API_VERSION)\n", apiVersion)
	constants := regexp.MustCompile(`(\w+) +(?:(function) +)?= (\d+|math.MaxUint64) *(?:// (\w+))?`)
	own := must.Get(os.ReadFile("api.go"))(t)
	found := constants.FindAllStringSubmatch(string(own), -1)
	if len(found) < 39 {
		t.Fatalf("found %d constants in api.go: %q", len(found), found)
	}
	for _, c := range found {
		name, isFunction, value, comment := c[1], c[2] != "", c[3], c[4]
		switch {
		case isFunction:
			text += fmt.Sprintf("HOLD(%s%s, %s)\n", strings.ToUpper(name[:1]), name[1:], value)
		case comment != "":
			text += fmt.Sprintf("SAME(%s, %s)\n", strings.ReplaceAll(value, "math.MaxUint64", "-1"), comment)
		}
	}
	must.OK(t, os.WriteFile(source, []byte(text), 0o644))
	compiler := cmp.Or(os.Getenv("CC"), "cc")
	cmd := exec.Command(compiler, "-std=c11", "-fsyntax-only", "-I", strings.TrimSpace(string(out)), "-I", ".", source)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// catches is C++ code that calls the allocator and catches its exception, as ONNX Runtime does.
const catches = `
#include <cstddef>
#include <new>
extern "C" void *pon_take(struct OrtAllocator *, std::size_t);
extern "C" void find_no_memory();
int main() {
	find_no_memory();
	try {
		pon_take(nullptr, 1);
	} catch (const std::bad_alloc &) {
		try {
			return pon_take(nullptr, 0) == nullptr ? 0 : 3;
		} catch (...) {
			return 2;
		}
	}
	return 1;
}
`

// finds takes the place of Go, which has no memory.
const finds = `
#define _GNU_SOURCE
#include <dlfcn.h>
#include "shim.c"
void find_no_memory(void) { pon_pools(0, 0, (uintptr_t)dlsym(RTLD_DEFAULT, "_ZSt17__throw_bad_allocv")); }
uint64_t ponAllocate(uint64_t pool, uint64_t bytes) { return 0; }
void ponRelease(uint64_t address) {}
`

// ONNX Runtime only notices missing memory by an exception.
func TestAllocatorThrows(t *testing.T) {
	compiler := cmp.Or(os.Getenv("CXX"), "c++")
	if _, err := exec.LookPath(compiler); err != nil {
		t.Skipf("no C++ compiler: %v", err)
	}
	dir := t.TempDir()
	for name, text := range map[string]string{"catches.cc": catches, "finds.c": finds} {
		must.OK(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	program := filepath.Join(dir, "catches")
	for _, args := range [][]string{
		{cmp.Or(os.Getenv("CC"), "cc"), "-fexceptions", "-I", ".", "-c", filepath.Join(dir, "finds.c"), "-o", program + ".o"},
		{compiler, "-o", program, filepath.Join(dir, "catches.cc"), program + ".o", "-ldl", "-lpthread"},
		{program},
	} {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", args, err, out)
		}
	}
}
