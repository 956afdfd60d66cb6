package serve

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/libml/framework"
	"github.com/penstock/penstock/models"
)

// TestCheckModelFile changes a file and sets its time back.
func TestCheckModelFile(t *testing.T) {
	for name, c := range map[string]struct {
		change   func(file string) error
		cpu, gpu bool // the file counts as changed
	}{
		"no change": {nil, false, false},
		"byte":      {func(file string) error { return os.WriteFile(file, []byte("weightz"), 0o600) }, true, true},
		"copy over it": {func(file string) error {
			return errors.Join(os.WriteFile(file+"x", []byte("WEIGHTS"), 0o600), os.Rename(file+"x", file))
		}, true, true},
		"shorter": {func(file string) error { return os.Truncate(file, 3) }, true, true},
		"empty":   {func(file string) error { return os.Truncate(file, 0) }, true, true},
		"touched": {func(string) error { return nil }, false, true},
	} {
		for device, changed := range map[string]bool{framework.DeviceCPU: c.cpu, "GPU-fake": c.gpu} {
			t.Run(name+" "+device, func(t *testing.T) {
				file, first := filepath.Join(t.TempDir(), "model"), time.Unix(1e9, 0)
				must.OK(t, errors.Join(os.WriteFile(file, []byte("weights"), 0o600), os.Chtimes(file, first, first)))
				p := &process{card: &models.Card{Name: "face", Model: file}, start: control.Start{Device: device}}
				var err error
				if p.loaded, err = p.readModelFile(); err != nil || p.loaded.bytes != 7 {
					t.Fatalf("%+v, %v", p.loaded, err)
				}
				if c.change != nil {
					before := changeTime(t, file)
					must.OK(t, c.change(file))
					for ok := true; ok; ok = changeTime(t, file) == before { // the kernel's clock has ticks
						must.OK(t, os.Chtimes(file, first, first))
					}
				}
				if err := p.checkModelFile(); (err != nil) != changed {
					t.Errorf("%v; want an error: %v", err, changed)
				}
			})
		}
	}
}

// changeTime returns when a file was changed last. Nothing can set that time back.
func changeTime(t *testing.T, file string) unix.Timespec {
	t.Helper()
	var about unix.Stat_t
	must.OK(t, unix.Stat(file, &about))
	return about.Ctim
}

// A model is loaded only from the files that the configuration lists, also if they change meanwhile.
func TestCheckSums(t *testing.T) {
	file := filepath.Join(t.TempDir(), "model")
	must.OK(t, os.WriteFile(file, []byte("weights"), 0o600))
	listed := fmt.Sprintf("%x", sha256.Sum256([]byte("weights")))
	p := &process{card: &models.Card{Name: "face", Model: file, Sums: []string{listed}}}
	must.OK(t, errors.Join(p.checkSums(), p.checkUnchanged(), p.checkSums()))

	// Another file for the time of a load: the right one is back, but it is not known what was read.
	must.OK(t, errors.Join(os.WriteFile(file+"x", []byte("weights"), 0o600), os.Rename(file+"x", file)))
	if err := p.checkUnchanged(); err == nil || !strings.Contains(err.Error(), "changed while it was loaded") {
		t.Errorf("a replaced file: %v", err)
	}
	must.OK(t, errors.Join(p.checkSums(), p.checkUnchanged()))

	must.OK(t, errors.Join(os.WriteFile(file+"x", []byte("WEIGHTS"), 0o600), os.Rename(file+"x", file)))
	if err := p.checkSums(); err == nil || !strings.Contains(err.Error(), "and model_sums lists "+listed) {
		t.Errorf("another file: %v", err)
	}
}
