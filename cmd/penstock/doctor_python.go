package main

import (
	"context"

	"github.com/penstock/penstock/libml/python"
)

// pythonQuestions are what the doctor asks of Python, so that a test can answer.
type pythonQuestions struct {
	command func(module string) ([]string, error)
	pyTorch func(context.Context) (string, error)
}

// examinePython says whether models in Python run here. None need.
func examinePython(ctx context.Context, ask pythonQuestions) []finding {
	list := []finding{{what: "python", ok: true}}
	command, err := ask.command("penstock.pytorch")
	if err != nil {
		list[0].ok, list[0].say = false, err.Error()+"; models in Python do not run"
	} else {
		list[0].say = command[0]
	}
	version, err := ask.pyTorch(ctx)
	if err != nil {
		return append(list, finding{what: "pytorch", say: err.Error() + "; cards with framework: pytorch do not run",
			mend: "apt-get install python3-torch   # for a CPU; or " + python.InterpreterVariable + "=/path/to/a/venv/bin/python3"})
	}
	return append(list, finding{what: "pytorch", ok: true, say: version})
}
