package libml

import (
	"context"
	"log/slog"

	"github.com/penstock/penstock/libml/device"
	"github.com/penstock/penstock/libml/framework"
	"github.com/penstock/penstock/libml/internal/serve"
)

// The types and values of package framework, which describes them.
type (
	Framework   = framework.Framework
	Environment = framework.Environment
	Weights     = framework.Weights
	Demotable   = framework.Demotable
	Evictable   = framework.Evictable
	Resident    = framework.Resident
	Node        = framework.Node
	Build       = framework.Build
	// Buffer is described in package device.
	Buffer = device.Buffer
)

var (
	ErrNoHostStage = framework.ErrNoHostStage
	ErrNoWeights   = framework.ErrNoWeights
)

// DeviceCPU is the value of Environment.Device on a CPU.
const DeviceCPU = framework.DeviceCPU

// Run runs the process of an inference function until the orchestrator drains it. If the orchestrator started the process as a worker, it hosts several
// functions. A program may call Run only once, and must exit afterwards.
//
// log receives what the process logs. The node reads the records of slog.JSONHandler on standard error, and those of
// zerolog (zerolog.NewSlogHandler).
//
// Run returns nil after a drain, also by ctx. It returns an error of one line if a step
// fails, or if the orchestrator or the manager has exited. If the error wraps
// device.ErrLost, the GPU has failed and calls that touch it may never return: the program
// must exit at once.
func Run(ctx context.Context, log slog.Handler, build Build) error {
	return serve.Run(ctx, slog.New(log), build)
}
