// Package apart runs verbs of this program in child processes. A bad model may take all memory or crash its
// framework, and then only the child ends.
package apart

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// patience is how long a model may take.
const patience = time.Minute

// Run runs this program with these arguments, and returns its output. The error is what it printed.
func Run(ctx context.Context, args ...string) ([]byte, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find own binary: %w", err)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("no end within %s", patience))
	defer cancel()
	var output, errs bytes.Buffer
	child := exec.CommandContext(ctx, self, args...)
	child.Stdout, child.Stderr = &output, &errs
	child.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	err = child.Run()
	switch text := strings.TrimPrefix(strings.TrimSpace(errs.String()), "penstock: "); {
	case err == nil:
		return output.Bytes(), nil
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case text != "":
		return nil, errors.New(text)
	}
	return nil, err
}
