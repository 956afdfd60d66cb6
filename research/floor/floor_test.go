package floor

import (
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/testing/must"
)

func TestMain(m *testing.M) {
	MaybeChild()
	os.Exit(m.Run())
}

func TestMeasureWake(t *testing.T) {
	for name, measure := range map[string]func(n int) ([]time.Duration, error){
		"anywhere": MeasureWake,
		"across":   func(n int) ([]time.Duration, error) { return MeasureWakeAcross(n, time.Millisecond) },
	} {
		t.Run(name, func(t *testing.T) {
			samples, err := measure(50)
			must.OK(t, err)
			if len(samples) != 50 {
				t.Fatalf("%d samples, want 50", len(samples))
			}
			for i, s := range samples {
				if s <= 0 {
					t.Errorf("sample %d is %v: the clocks of the two processes differ", i, s)
				}
			}
		})
	}
}

func TestMeasureWakeLimit(t *testing.T) {
	for _, n := range []int{-1, maxSamples + 1} {
		if _, err := MeasureWake(n); err == nil {
			t.Errorf("%d samples accepted", n)
		}
	}
}

func TestChildFails(t *testing.T) {
	child := exec.Command("/proc/self/exe")
	child.Env = append(os.Environ(), childVariable+"=5")
	if err := child.Run(); err == nil {
		t.Error("a child that was given no region ended well")
	}
}
