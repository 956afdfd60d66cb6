//go:build cgo

package gpu_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/testing/cudafake"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/libml/gpu"
)

// occupierEnv makes this program the other process of MeasurePriorities. Its value is how the
// process behaves.
const occupierEnv = "PENSTOCK_OCCUPIER"

// occupier runs the other process, if this process was started as one.
func occupier() {
	switch os.Getenv(occupierEnv) {
	case "":
		return
	case "ends":
		os.Exit(3)
	case "babbles":
		fmt.Println("hello")
		os.Exit(0)
	}
	if err := gpu.Occupy("cuda", os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// underMPS makes this process and its children clients of a fake MPS.
func underMPS(t *testing.T) {
	t.Helper()
	dir := t.TempDir()
	must.OK(t, os.WriteFile(filepath.Join(dir, "control"), nil, 0o600))
	t.Setenv("CUDA_MPS_PIPE_DIRECTORY", dir)
}

// maxAttempts is how often TestMeasurePriorities measures. The CPU times the fake GPU, so a busy
// machine disturbs some measurements. TestJudgePriorities has the exact rule.
const maxAttempts = 10

func TestMeasurePriorities(t *testing.T) {
	file := filepath.Join(t.TempDir(), "turns")
	must.OK(t, os.WriteFile(file, nil, 0o600))
	shared := cudafake.Full(file)
	for _, c := range []struct {
		name     string
		settings []cudafake.Setting
		other    []cudafake.Setting // of the other process only
		occupier string
		noMPS    bool
		hold     bool
		err      string
	}{
		{name: "hold", settings: shared, hold: true},
		{name: "do not hold", settings: append(cudafake.Full(file), cudafake.Flat)},
		{name: "GPU is not full", settings: shared[:2], err: "the GPU was not full"},
		{name: "no MPS", noMPS: true, err: "no client of MPS"},
		{name: "other process ends", occupier: "ends", err: "ended early"},
		{name: "other process babbles", occupier: "babbles", err: `printed "hello\n"`},
		{name: "other process faults", other: []cudafake.Setting{cudafake.Fault("fetch", 3, 700)}, err: "exit status 1"},
		{name: "other process finds no GPU", other: []cudafake.Setting{cudafake.Devices(0)}, err: "ended early"},
	} {
		t.Run(c.name, func(t *testing.T) {
			cudafake.Check(t)
			if !c.noMPS {
				underMPS(t)
			}
			cudafake.Apply(t, c.settings...)
			how := c.occupier
			if how == "" {
				how = "fills"
			}
			attempt := func() (result string, ok bool) {
				var other *exec.Cmd
				p, err := gpu.MeasurePriorities("cuda", func() *exec.Cmd {
					other = exec.Command(os.Args[0])
					other.Env = append(os.Environ(), occupierEnv+"="+how, cudafake.Env(slices.Concat(c.settings, c.other)...))
					return other
				})
				if c.err != "" {
					return fmt.Sprint(err), err != nil && strings.Contains(err.Error(), c.err)
				}
				ok = err == nil && p.Hold == c.hold && other.ProcessState != nil && other.ProcessState.Success()
				return fmt.Sprintf("%+v, %v, other process: %v", p, err, other.ProcessState), ok
			}

			var results []string
			for range maxAttempts {
				result, ok := attempt()
				if ok {
					return
				}
				results = append(results, result)
			}
			t.Errorf("want hold %v, error %q; got\n%s", c.hold, c.err, strings.Join(results, "\n"))
		})
	}
}

func TestJudgePriorities(t *testing.T) {
	const us = time.Microsecond
	for _, c := range []struct {
		name               string
		alone, equal, high time.Duration
		disturbed          int // of 15 pairs, in which both took 20 ms
		hold               bool
		err                error
	}{
		{"H200", 30 * us, 4000 * us, 90 * us, 0, true, nil},
		{"another H200", 20 * us, 882 * us, 30 * us, 0, true, nil},
		{"no effect", 30 * us, 4000 * us, 4000 * us, 0, false, nil},
		{"half", 30 * us, 4000 * us, 2000 * us, 0, false, nil},
		{"less than half", 30 * us, 4000 * us, 1999 * us, 0, true, nil},
		{"not full", 500 * us, 4999 * us, 500 * us, 0, false, gpu.ErrNotFull},
		{"not full, short", 30 * us, 499 * us, 30 * us, 0, false, gpu.ErrNotFull},
		{"some disturbed", 30 * us, 4000 * us, 90 * us, 3, true, nil},
		{"many disturbed", 30 * us, 4000 * us, 90 * us, 4, false, gpu.ErrUnclear},
		{"most disturbed", 30 * us, 4000 * us, 90 * us, 9, false, gpu.ErrUnclear},
	} {
		t.Run(c.name, func(t *testing.T) {
			var alone, equal, high []time.Duration
			for i := range 15 {
				alone = append(alone, c.alone)
				if i < c.disturbed {
					equal, high = append(equal, 20*time.Millisecond), append(high, 20*time.Millisecond)
				} else {
					equal, high = append(equal, c.equal), append(high, c.high)
				}
			}
			p, err := gpu.JudgePriorities(alone, equal, high)
			if p.Hold != c.hold || !errors.Is(err, c.err) {
				t.Errorf("%+v, %v; want hold %v, error %v", p, err, c.hold, c.err)
			}
		})
	}
}
