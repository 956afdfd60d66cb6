package check

import (
	"bufio"
	"bytes"
	"context"
	"debug/elf"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/penstock/penstock/libml/onnx"
)

var runtimeChecks = []row{
	{subject: "onnx runtime", vital: true, run: onnxRuntime},
}

func onnxRuntime(_ context.Context, m *machine) Finding {
	path, err := m.onnxLibrary()
	if err != nil {
		return fail(err.Error(), "make build")
	}
	return pass(path)
}

// The libraries with which ONNX Runtime runs models on a GPU.
const (
	cudaProviderName   = "libonnxruntime_providers_cuda.so"
	sharedProviderName = "libonnxruntime_providers_shared.so"
	// The provider is not linked with cuDNN, but opens it on first use.
	cudnnName = "libcudnn.so.9"
)

// cudaProvider looks for ONNX Runtime's CUDA provider in the folder of its library, and for
// the libraries that the provider needs.
func cudaProvider(_ context.Context, m *machine) []Finding {
	const subject = "onnx on cuda"
	path, err := m.onnxLibrary()
	if err != nil {
		return []Finding{fail("no ONNX Runtime found", "make build").about(subject)}
	}
	dir := filepath.Dir(path)
	for _, name := range []string{sharedProviderName, cudaProviderName} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			return []Finding{fail(fmt.Sprintf("no %s next to %s; models run on the CPU only", name, path),
				fmt.Sprintf("unpack ONNX Runtime's GPU package for this CUDA version, and set %s=…/lib/libonnxruntime.so", onnx.LibraryVariable)).about(subject)}
		}
	}
	provider := filepath.Join(dir, cudaProviderName)
	libraries, err := findLibraries(provider, cudnnName)
	if err != nil {
		return []Finding{fail(fmt.Sprintf("%s: %v", provider, err), "").about(subject)}
	}

	return []Finding{pass(provider).about(subject), cudaLibraries(libraries).about("cuda libraries")}
}

// cudaLibraries reports which of CUDA's libraries were found.
func cudaLibraries(libraries []library) Finding {
	var missing, found []string
	for _, l := range libraries {
		switch {
		case !strings.HasPrefix(l.name, "libcu"):
		case l.path == "":
			missing = append(missing, l.name)
		default:
			found = append(found, l.path)
		}
	}
	if len(missing) > 0 {
		return fail(fmt.Sprintf("%s not found; %s needs them", strings.Join(missing, ", "), cudaProviderName),
			fmt.Sprintf("apt-get install cuda-libraries-%[1]s-0 libcudnn9-cuda-%[1]s   # from NVIDIA's repository; or add their folders to LD_LIBRARY_PATH", cudaMajor(libraries)))
	}
	return pass(strings.Join(found, ", "))
}

// cudaMajor is the version of CUDA that a provider was built for, which is its cuBLAS's.
func cudaMajor(libraries []library) string {
	for _, l := range libraries {
		if v, ok := strings.CutPrefix(l.name, "libcublas.so."); ok {
			return v
		}
	}
	return "13"
}

// library is one that a program needs. Its path is empty if it was not found.
type library struct{ name, path string }

// findLibraries looks for the libraries that a shared library is linked with, and for those in
// opened. It searches as the loader does (ld.so(8)): run path, LD_LIBRARY_PATH, cache.
func findLibraries(path string, opened ...string) (list []library, err error) {
	f, err := elf.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	linked, err := f.ImportedLibraries()
	if err != nil {
		return nil, err
	}

	var folders []string
	origin := strings.NewReplacer("${ORIGIN}", filepath.Dir(path), "$ORIGIN", filepath.Dir(path))
	for _, tag := range []elf.DynTag{elf.DT_RPATH, elf.DT_RUNPATH} {
		paths, _ := f.DynString(tag) // most libraries have none
		for _, p := range paths {
			folders = append(folders, filepath.SplitList(origin.Replace(p))...)
		}
	}
	folders = append(folders, filepath.SplitList(os.Getenv("LD_LIBRARY_PATH"))...)

	cache := loaderCache()
	for _, name := range append(linked, opened...) {
		l := library{name: name, path: cache[name]}
		for _, dir := range folders {
			file := filepath.Join(dir, name)
			if _, err := os.Stat(file); err == nil {
				l.path = file
				break
			}
		}
		list = append(list, l)
	}
	return list, nil
}

// loaderCache is what `ldconfig -p` lists: "	libc.so.6 (libc6,x86-64) => /lib/…".
func loaderCache() map[string]string {
	out, err := exec.Command("ldconfig", "-p").Output()
	if err != nil {
		out, _ = exec.Command("/sbin/ldconfig", "-p").Output()
	}
	cache := map[string]string{}
	for lines := bufio.NewScanner(bytes.NewReader(out)); lines.Scan(); {
		name, path, ok := strings.Cut(lines.Text(), " => ")
		name, _, _ = strings.Cut(strings.TrimSpace(name), " ")
		if _, twice := cache[name]; ok && !twice {
			cache[name] = path
		}
	}
	return cache
}
