package e2e

import (
	"crypto/sha256"
	"debug/elf"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/penstock/penstock/client"
	"github.com/penstock/penstock/cuda"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/nodetest"
	"github.com/penstock/penstock/internal/testing/wait"
	"github.com/penstock/penstock/libml"
	"github.com/penstock/penstock/libml/onnx"
	"github.com/penstock/penstock/libml/reference"
	comparing "github.com/penstock/penstock/loadgen/answer"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/models/zoo"
	"github.com/penstock/penstock/node"
	"github.com/penstock/penstock/wire"
)

// Whole nodes with models in C: those of examples/c, and one that fails on demand.

// programs builds libpenstock.so as `make library` does, and the programs that use it, once.
// It returns their folder.
var programs = sync.OnceValues(func() (string, error) {
	dir, err := openFolder(filepath.Dir(penstock), "c-")
	if err != nil {
		return "", err
	}
	commands := [][]string{
		{"make", "-C", "../..", "library", "LIBRARY=" + dir + "/libpenstock.so"},
		{"../../examples/c/build.sh", dir, dir},
		{"gcc", "-std=gnu11", "-O1", "-Wall", "-Wextra", "-I../../libml/capi", "-o", dir + "/digest", "testdata/digest.c",
			"-L" + dir, "-lpenstock", "-Wl,-rpath," + dir},
	}
	for _, c := range commands {
		if out, err := exec.Command(c[0], c[1:]...).CombinedOutput(); err != nil {
			return "", fmt.Errorf("%s: %w\n%s", strings.Join(c, " "), err, out)
		}
	}
	return dir, nil
})

func programsIn(t *testing.T) string {
	t.Helper()
	dir, err := programs()
	must.OK(t, err)
	return dir
}

// The library exports what the header declares and no more, and does not link CUDA's
// libraries.
func TestLibraryExports(t *testing.T) {
	t.Parallel()
	header, err := os.ReadFile("../../libml/capi/penstock.h")
	must.OK(t, err)
	var declared []string
	for _, m := range regexp.MustCompile(`(?m)^[a-z].*?\b(penstock_\w+)\(.*\);$`).FindAllStringSubmatch(string(header), -1) {
		declared = append(declared, m[1])
	}
	library, err := elf.Open(filepath.Join(programsIn(t), "libpenstock.so"))
	must.OK(t, err)
	defer library.Close()
	symbols, err := library.DynamicSymbols()
	must.OK(t, err)
	var shown []string
	for _, s := range symbols {
		if s.Section != elf.SHN_UNDEF && elf.ST_TYPE(s.Info) == elf.STT_FUNC {
			shown = append(shown, s.Name)
		}
	}
	slices.Sort(declared)
	slices.Sort(shown)
	if len(declared) < 8 || !slices.Equal(shown, declared) {
		t.Errorf("the library shows %v, and the header declares %v", shown, declared)
	}
	needs, err := library.ImportedLibraries()
	must.OK(t, err)
	for _, name := range needs {
		if !strings.HasPrefix(name, "libc.") && !strings.HasPrefix(name, "ld-linux") && !strings.HasPrefix(name, "libpthread.") && !strings.HasPrefix(name, "libdl.") {
			t.Errorf("the library needs %s", name)
		}
	}
	// glibc has 1,664 bytes of static thread-local storage for all libraries that a program
	// opens at run time.
	for _, p := range library.Progs {
		if p.Type == elf.PT_TLS && p.Memsz > 256 {
			t.Errorf("the library takes %d bytes of each thread's memory: programs that open it late have no more than a kilobyte", p.Memsz)
		}
	}
}

// The header is valid C99 and, if there is a compiler, valid C++.
func TestHeaderCompiles(t *testing.T) {
	t.Parallel()
	program := filepath.Join(t.TempDir(), "program")
	const text = "#include \"penstock.h\"\nstatic penstock_framework f = {PENSTOCK_FRAMEWORK};\n" +
		"int code(void) { return f.size == sizeof f ? PENSTOCK_OK : penstock_fail(\"%d\", 1); }\n"
	for language, arguments := range map[string][]string{
		"c":  {"gcc", "-std=c99", "-pedantic", "-Wall", "-Werror", "-Wno-missing-field-initializers"},
		"cc": {"g++", "-std=c++11", "-pedantic", "-Wall", "-Werror"},
	} {
		if _, err := exec.LookPath(arguments[0]); err != nil && language == "cc" {
			t.Logf("no %s here", arguments[0])
			continue
		}
		file := program + "." + language
		must.OK(t, os.WriteFile(file, []byte(text), 0o600))
		arguments = append(arguments, "-fsyntax-only", "-I../../libml/capi", file)
		if out, err := exec.Command(arguments[0], arguments[1:]...).CombinedOutput(); err != nil {
			t.Errorf("%v: %v\n%s", arguments, err, out)
		}
	}
}

// fashionTwins returns C versions of examples/c's kernels for the fake driver.
func fashionTwins() (string, error) {
	const include = "#include \"fashion.cu\"\n"
	twin, err := os.ReadFile("testdata/fashion_twin.c")
	if err != nil {
		return "", err
	}
	kernels, err := os.ReadFile("../../examples/c/fashion.cu")
	if err != nil {
		return "", err
	}
	return strings.Replace(string(twin), include, string(kernels), 1), nil
}

// The PTX that fashion.c embeds is what `make ptx` makes from its source.
func TestExamplePTX(t *testing.T) {
	t.Parallel()
	source, err := os.ReadFile("../../examples/c/fashion.cu")
	must.OK(t, err)
	ptx, err := os.ReadFile("../../examples/c/fashion.ptx")
	must.OK(t, err)
	first, _, _ := strings.Cut(string(ptx), "\n")
	if hash := fmt.Sprintf("%x", sha256.Sum256(source)); !strings.HasSuffix(first, "sha256 "+hash) {
		t.Errorf("fashion.ptx says %q, and fashion.cu is %s: `make ptx`", first, hash)
	}
}

// The example must treat the same CUDA errors as fatal as every other process does.
func TestExampleDeviceLoss(t *testing.T) {
	t.Parallel()
	source, err := os.ReadFile("../../examples/c/fashion.c")
	must.OK(t, err)
	before, _, found := strings.Cut(string(source), "return PENSTOCK_DEVICE_LOST;")
	_, cases, _ := strings.Cut(before, "return PENSTOCK_OUT_OF_MEMORY;")
	listed := map[int]bool{}
	for _, m := range regexp.MustCompile(`case (\d+):`).FindAllStringSubmatch(cases, -1) {
		code, err := strconv.Atoi(m[1])
		must.OK(t, err)
		listed[code] = true
	}
	if !found || len(listed) == 0 {
		t.Fatal("fashion.c has no list of errors")
	}
	for code := range 1000 {
		if is := cuda.Code(code).Lost(); is != listed[code] {
			t.Errorf("%v (%d): fashion.c takes it for a lost device: %v, want %v", cuda.Code(code), code, listed[code], is)
		}
	}
}

// exampleCard returns a card of examples/c with the programs that the test built.
func exampleCard(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile("../../examples/c/" + name + ".yaml")
	must.OK(t, err)
	card := strings.NewReplacer("../../bin/examples/c", programsIn(t), "fashion.weights", absolute(t, "../../examples/c/fashion.weights")).Replace(string(text))
	path := filepath.Join(t.TempDir(), name+".yaml")
	must.OK(t, os.WriteFile(path, []byte(card), 0o600))
	return path
}

// digestCard returns a card of the program digest with a role.
func digestCard(t *testing.T, role string) string {
	t.Helper()
	return programCard(t, filepath.Join(programsIn(t), "digest"), role)
}

// ask sends all pictures at once. It stops the process until some wait, so that batches
// form. It returns the answers in the pictures' order, and how many were in batches of each
// size.
func ask(t *testing.T, nd *node.Node, function string, pictures [][]byte) (list []comparing.Answer, batches map[int]int) {
	t.Helper()
	list, batches = make([]comparing.Answer, len(pictures)), map[int]int{}
	results := make(chan client.Result, len(pictures))
	var c *client.Client
	dialled := make(chan struct{})
	c = nodetest.Dial(t, nd, function, client.Options{
		Timeout: patience, InFlight: 32, QueueLimit: 2 * len(pictures),
		Deliver: func(r *client.Result) {
			<-dialled
			if r.Err == nil && r.Status == client.StatusBusy { // send it again
				if _, err := c.Send(pictures[r.Tag], client.RequestOptions{Tag: r.Tag}); err == nil {
					return
				}
			}
			copied := *r
			copied.Payload = append([]byte(nil), r.Payload...)
			results <- copied
		},
	})
	close(dialled)
	process, _ := nodetest.Serving(t, nd, function)
	goOn := func() { _ = syscall.Kill(process.PID, syscall.SIGCONT) }
	defer goOn()
	if err := syscall.Kill(process.PID, syscall.SIGSTOP); err != nil {
		t.Fatalf("stop process %d of %s: %v", process.PID, function, err)
	}
	for i, p := range pictures {
		if _, err := c.Send(p, client.RequestOptions{Tag: uint64(i)}); err != nil {
			t.Fatal(err)
		}
	}
	wait.For(t, "some to wait for the process", func() bool {
		f, err := nd.Function(function)
		return err == nil && f.InFlight >= 4
	})
	goOn()
	for range pictures {
		r := <-results
		if r.Err != nil || r.Status != client.StatusOK {
			t.Fatalf("%s, picture %d: %v, %v", function, r.Tag, r.Status, r.Err)
		}
		list[r.Tag] = comparing.Answer{Kind: r.Kind, Payload: r.Payload}
		batches[r.Batch]++
	}
	return list, batches
}

// answersAsONNXRuntime compares the C model's answers to n of the shipped pictures of
// clothing with those of the zoo's model on the CPU.
func answersAsONNXRuntime(t *testing.T, nd *node.Node, function string, n int) {
	t.Helper()
	card, err := (zoo.Registry{Cache: t.TempDir()}).Find("fashion")
	must.OK(t, err)
	reference, err := reference.New(card, func(*models.Card) (libml.Framework, error) { return onnx.New(), nil })
	must.OK(t, err)
	defer reference.Close()
	pictures, _, err := zoo.FashionTest()
	must.OK(t, err)
	pictures = pictures[:n]
	got, batches := ask(t, nd, function, pictures)
	comparer := comparing.Comparer{Tolerance: comparing.Default}
	wrong := 0
	for i, p := range pictures {
		payload, kind, err := reference.Answer(p)
		must.OK(t, err)
		if err := comparer.Compare(got[i], comparing.Answer{Kind: wire.Kind(kind), Payload: payload}); err != nil {
			if wrong++; wrong <= 5 {
				t.Errorf("picture %d: %v", i, err)
			}
		}
	}
	if wrong > 0 {
		t.Errorf("%d of %d answers differ from ONNX Runtime's", wrong, len(pictures))
	}
	if ridden := slices.Collect(maps.Keys(batches)); slices.Max(ridden) < 2 {
		t.Errorf("all rode alone: %v", batches)
	}
}

func TestCModels(t *testing.T) {
	t.Parallel()
	nd := start(t, fmt.Sprintf("shares: {policy: gslice, tune: false}\nfunctions:\n"+
		"  - {name: clothes, model: %s, port: 0, slo: 20s, share_percent: 50}\n"+
		"  - {name: colour, model: %s, port: 0, slo: 20s, share_percent: 30}\n",
		exampleCard(t, "fashion"), exampleCard(t, "colour")))
	t.Run("clothes", func(t *testing.T) { answersAsONNXRuntime(t, nd, "clothes", 1000) })
	t.Run("colour", func(t *testing.T) { answersMeanColour(t, nd, "colour") })
}

func TestCOnGPU(t *testing.T) {
	t.Parallel()
	for weights, says := range map[string]string{
		"private": "penstock_weights: no shared weights", "shared": "the parameters are those that the node shares",
	} {
		t.Run(weights, func(t *testing.T) {
			const slow = 60 // pictures: the fake driver runs a kernel's threads one after the other
			nd := start(t, "weights: "+weights+"\n"+onGPU(exampleCard(t, "fashion"), "name: clothes, slo: 60s, share_percent: 50"),
				withGPU(t, true)...)
			answersAsONNXRuntime(t, nd, "clothes", slow)
			nodetest.Logged(t, nd, says)
			if weights == "private" {
				return
			}
			// It moves to other multiprocessors, and then its shadow serves.
			nodetest.Share(t, nd, "clothes", 20)
			onGroups(t, nd, "clothes")
			answersAsONNXRuntime(t, nd, "clothes", slow)
			active, shadow := nodetest.Serving(t, nd, "clothes")
			nodetest.Kill(t, active.PID)
			nodetest.ShadowServes(t, nd, "clothes", shadow)
			answersAsONNXRuntime(t, nd, "clothes", slow)
			nodetest.Settled(t, nd, "clothes")
			wait.For(t, fmt.Sprintf("the log to say %q of the shadow, too", says), func() bool { return strings.Count(nd.Log(), says) >= 2 })
		})
	}
}

func TestCallbackTableErrors(t *testing.T) {
	t.Parallel()
	nd := start(t, oneFunction(nodetest.Card(t, "digest", small)))
	for role, want := range map[string]string{
		"null": "infer_batch is NULL",
		"size": "size is 48, want sizeof(penstock_framework), 56",
		"abi":  "abi is 2, want 1",
		"init": ": init digest: the first line and the second, after 7",
		"link": "link model digest: link_model returned PENSTOCK_NO_HOST_STAGE, which only load_model may",
	} {
		t.Run(role, func(t *testing.T) {
			refuses(t, nd, role, digestCard(t, role), want)
		})
	}
	allAnswered(t, stream(t, nd, 100, func() {}), 100)
}

func TestCBatchFails(t *testing.T) {
	t.Parallel()
	for role, want := range map[string]string{
		"every=5": "is one of every 5",
		"code=5":  "infer_batch: returned 17, want PENSTOCK_OK (0)",
	} {
		t.Run(role, func(t *testing.T) {
			badBatchesCostThemselvesOnly(t, digestCard(t, role), want)
		})
	}
}

func TestCallbackExits(t *testing.T) {
	t.Parallel()
	for role, says := range map[string]string{"crash": "SIGSEGV", "lost": "device is lost: the card fell off the bus"} {
		t.Run(role, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), role)
			nd := start(t, unconfined+oneFunction(digestCard(t, role+"="+file)))
			active, shadow := nodetest.Serving(t, nd, "fn")
			got := stream(t, nd, 600, func() {
				must.OK(t, os.WriteFile(file, nil, 0o600))
			})
			if got.Lost > 0 || got.Wrong > 0 || got.By[client.StatusFailed] == 0 || got.By[client.StatusFailed] > 8 {
				t.Errorf("%s; want every request answered right, but for one batch", got)
			}
			nodetest.Settled(t, nd, "fn")
			now, _ := nodetest.Serving(t, nd, "fn")
			if now.Generation != shadow.Generation || now.PID == active.PID {
				t.Errorf("generation %d serves, want the shadow's, %d", now.Generation, shadow.Generation)
			}
			nodetest.Logged(t, nd, says)
		})
	}
}

// A SIGTERM from outside drains a C program, too.
func TestCTerminated(t *testing.T) {
	t.Parallel()
	for _, signal := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		t.Run(signal.String(), func(t *testing.T) {
			nd := start(t, oneFunction(digestCard(t, "stage")))
			active, _ := nodetest.Serving(t, nd, "fn")
			got := stream(t, nd, 500, func() {
				must.OK(t, syscall.Kill(active.PID, signal))
			})
			allAnswered(t, got, 500)
			wait.For(t, "another process to serve", func() bool {
				now, _ := nodetest.Serving(t, nd, "fn")
				return now.PID != active.PID
			})
			nodetest.Settled(t, nd, "fn")
		})
	}
}

// A profiler's timer in the program has no effect, although the signals are delivered to
// Go's threads, too.
func TestSIGPROF(t *testing.T) {
	t.Parallel()
	nd := start(t, oneFunction(digestCard(t, "profile")))
	got := stream(t, nd, 500, func() { time.Sleep(200 * time.Millisecond) })
	allAnswered(t, got, 500)
}

// allAnswered checks that each of n requests was answered and that no batch failed. Answers
// may be late, because the machine may be busy.
func allAnswered(t *testing.T, got *nodetest.Answers, n int) {
	t.Helper()
	if got.Lost > 0 || got.Wrong > 0 || got.By[client.StatusFailed] > 0 || got.By[client.StatusOK] < n/2 {
		t.Errorf("%s; want %d right answers", got, n)
	}
}
