package main

import (
	"context"
	"errors"
	"testing"
)

func TestDoctorSaysWhetherModelsInPythonRun(t *testing.T) {
	found := func(q pythonQuestions) map[string]finding {
		list := map[string]finding{}
		for _, f := range examinePython(context.Background(), q) {
			list[f.what] = f
		}
		return list
	}
	well := pythonQuestions{
		command: func(module string) ([]string, error) { return []string{"/usr/bin/python3", "-m", module}, nil },
		pyTorch: func(context.Context) (string, error) { return "2.11.0, CUDA 13.0", nil },
		elsewhere: func(context.Context) (string, string) {
			t.Error("asked for another PyTorch beside one that is there")
			return "", ""
		},
	}
	list := found(well)
	expect(t, list, "python", true, "/usr/bin/python3", "")
	expect(t, list, "pytorch", true, "2.11.0, CUDA 13.0", "")
	missing := pythonQuestions{
		command:   func(string) ([]string, error) { return nil, errors.New("libpenstock.so: not found") },
		pyTorch:   func(context.Context) (string, error) { return "", errors.New("no module named torch") },
		elsewhere: func(context.Context) (string, string) { return "/usr/bin/python3", "1.13.0, no CUDA" },
	}
	expect(t, found(missing), "pytorch", false, "no module named torch", "PENSTOCK_PYTHON=/usr/bin/python3   # it has PyTorch 1.13.0, no CUDA")
	missing.elsewhere = func(context.Context) (string, string) { return "", "" }
	list = found(missing)
	expect(t, list, "pytorch", false, "no module named torch", "apt-get install python3-torch   # for a CPU, with PENSTOCK_PYTHON=/usr/bin/python3;")
	expect(t, list, "python", false, "libpenstock.so: not found", "")
	expect(t, list, "pytorch", false, "no module named torch", "PENSTOCK_PYTHON=")
	for what, f := range list {
		if vital[what] || f.fatal {
			t.Errorf("%s: a node runs without it", what)
		}
	}
}
