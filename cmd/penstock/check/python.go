package check

import (
	"context"
	"fmt"

	"github.com/penstock/penstock/libml/python"
)

// No node needs Python unless one of its models does.
var pythonChecks = []row{
	{subject: "python", run: pythonInterpreter},
	{subject: "pytorch", run: pyTorch},
}

func pythonInterpreter(_ context.Context, m *machine) Finding {
	command, err := m.pythonCommand("penstock_model.pytorch")
	if err != nil {
		return fail(err.Error()+"; models in Python cannot run", "")
	}
	return pass(command[0])
}

func pyTorch(ctx context.Context, m *machine) Finding {
	version, err := m.pyTorch(ctx)
	if err == nil {
		return pass(version)
	}
	// apt-get installs PyTorch for Debian's python3 only.
	fix := fmt.Sprintf("apt-get install python3-torch   # for a CPU, with %s=%s; or %[1]s=/path/to/a/venv/bin/python3",
		python.InterpreterVariable, python.Debian)
	if interpreter, version := m.otherPyTorch(ctx); interpreter != "" {
		fix = fmt.Sprintf("%s=%s   # has PyTorch %s; set this for penstock up", python.InterpreterVariable, interpreter, version)
	}
	return fail(err.Error()+"; cards with `framework: pytorch` cannot run", fix)
}
