//go:build cgo

package null_test

import (
	"crypto/sha256"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/testing/cudafake"
	"github.com/penstock/penstock/internal/testing/gputest"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/null"
	"github.com/penstock/penstock/internal/testing/nulltest"
	"github.com/penstock/penstock/libml/framework"
	"github.com/penstock/penstock/models"
)

func TestMain(m *testing.M) {
	nulltest.Child()
	cudafake.Main(m, cudafake.Kernels(nulltest.Twins), cudafake.Kernels(gputest.Twins))
}

func TestSuiteOnFake(t *testing.T) {
	cudafake.Check(t)
	nulltest.Run(t)
}

func TestPTXSource(t *testing.T) {
	source, err := os.ReadFile("null.cu")
	must.OK(t, err)
	ptx, err := os.ReadFile("null.ptx")
	must.OK(t, err)
	first, _, _ := strings.Cut(string(ptx), "\n")
	if hash := fmt.Sprintf("%x", sha256.Sum256(source)); !strings.HasSuffix(first, "sha256 "+hash) {
		t.Errorf("null.ptx begins with %q; null.cu has %s: run `make ptx`", first, hash)
	}
}

func TestGPUWordsOnCPU(t *testing.T) {
	for _, words := range []string{"spin=1ms", "spin_per_image=1ms", "fault_after=3", "allocate=100", "wrong=18-28/36-60"} {
		t.Setenv(null.Variable, words)
		err := null.New().Init(framework.Environment{Card: &models.Card{}, Threads: 1, Log: slog.New(slog.DiscardHandler), Device: framework.DeviceCPU})
		word, _, _ := strings.Cut(words, "=")
		if err == nil || !strings.Contains(err.Error(), `"`+word+`" is for a GPU`) {
			t.Errorf("%s: Init says %v", words, err)
		}
	}
}
