package main

import (
	"context"
	"fmt"

	"github.com/penstock/penstock/libml/python"
)

// pythonQuestions are what the doctor asks of Python, so that a test can answer.
type pythonQuestions struct {
	command func(module string) ([]string, error)
	pyTorch func(context.Context) (string, error)
	// elsewhere is another interpreter that has PyTorch, and its version; empty where none has.
	elsewhere func(context.Context) (interpreter, version string)
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
		// apt-get mends nothing for another python3 than Debian's.
		mend := fmt.Sprintf("apt-get install python3-torch   # for a CPU, with %s=%s; or %[1]s=/path/to/a/venv/bin/python3",
			python.InterpreterVariable, python.Debian)
		if interpreter, version := ask.elsewhere(ctx); interpreter != "" {
			mend = fmt.Sprintf("%s=%s   # it has PyTorch %s; set it for penstock up", python.InterpreterVariable, interpreter, version)
		}
		return append(list, finding{what: "pytorch", say: err.Error() + "; cards with framework: pytorch do not run", mend: mend})
	}
	return append(list, finding{what: "pytorch", ok: true, say: version})
}
