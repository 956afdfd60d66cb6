//go:build cgo

package onnx

import (
	"cmp"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/testing/must"
)

// held compares shim.h with the header of ONNX Runtime's C API: index and prototype of every
// function that is used, constants, and the struct of the allocator.
const held = `
#include "onnxruntime_c_api.h"
#include "shim.h"

#define HOLD(name, index, result, parameters) \
	_Static_assert(offsetof(OrtApi, name) == (index) * sizeof(void *), #name " has another index"); \
	typedef result (*call_##name) parameters; \
	_Static_assert(__builtin_types_compatible_p(call_##name, __typeof__(((OrtApi *)0)->name)), \
		#name " has another prototype");
PON_CALLS(HOLD)

#define SAME(ours, theirs) _Static_assert((int)ours == (int)theirs, #theirs)
SAME(PON_ORT_VERSION, ORT_API_VERSION);
SAME(PON_LOGGING_FATAL, ORT_LOGGING_LEVEL_FATAL);
SAME(PON_SEQUENTIAL, ORT_SEQUENTIAL);
SAME(PON_DEVICE_ALLOCATOR, OrtDeviceAllocator);
SAME(PON_MEMORY_DEFAULT, OrtMemTypeDefault);
SAME(PON_MEMORY_HOST, OrtMemTypeCPUOutput);
SAME(PON_FLOAT, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT);
SAME(PON_UINT8, ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8);
SAME(PON_FLOAT16, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16);
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
	must.OK(t, os.WriteFile(source, []byte(held), 0o644))
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

// finds looks up no_memory, as pon_open does.
const finds = `
#include "shim.c"
void find_no_memory(void) { no_memory = (void (*)(void))dlsym(RTLD_DEFAULT, NO_MEMORY); }
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
