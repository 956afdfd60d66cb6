package check

import (
	"context"
	"errors"
	"testing"
)

func TestPython(t *testing.T) {
	found := func(m machine) map[string]Finding { return bySubject(run(context.Background(), &m, pythonChecks)) }
	well := machine{
		pythonCommand: func(module string) ([]string, error) { return []string{"/usr/bin/python3", "-m", module}, nil },
		pyTorch:       func(context.Context) (string, error) { return "2.11.0, CUDA 13.0", nil },
		otherPyTorch: func(context.Context) (string, string) {
			t.Error("asked for another PyTorch beside one that is there")
			return "", ""
		},
	}
	list := found(well)
	expect(t, list, "python", true, "/usr/bin/python3", "")
	expect(t, list, "pytorch", true, "2.11.0, CUDA 13.0", "")
	missing := machine{
		pythonCommand: func(string) ([]string, error) { return nil, errors.New("libpenstock.so: not found") },
		pyTorch:       func(context.Context) (string, error) { return "", errors.New("no module named torch") },
		otherPyTorch:  func(context.Context) (string, string) { return "/usr/bin/python3", "1.13.0, no CUDA" },
	}
	expect(t, found(missing), "pytorch", false, "no module named torch", "PENSTOCK_PYTHON=/usr/bin/python3   # has PyTorch 1.13.0, no CUDA")
	missing.otherPyTorch = func(context.Context) (string, string) { return "", "" }
	list = found(missing)
	expect(t, list, "pytorch", false, "no module named torch", "apt-get install python3-torch   # for a CPU, with PENSTOCK_PYTHON=/usr/bin/python3;")
	expect(t, list, "python", false, "libpenstock.so: not found", "")
	expect(t, list, "pytorch", false, "no module named torch", "PENSTOCK_PYTHON=")
	for what, f := range list {
		if f.Fatal {
			t.Errorf("%s: a node runs without it", what)
		}
	}
}
