//go:build !cgo

// Package onnx is the framework "onnx". This build has no cgo, which the package needs to call
// ONNX Runtime. Every callback except Deinit returns ErrNoCgo.
package onnx

import (
	"errors"
	"log/slog"

	"github.com/penstock/penstock/libml/device"
	"github.com/penstock/penstock/libml/framework"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/models/draft"
	"github.com/penstock/penstock/models/onnxfile"
)

// ErrNoCgo is returned by every callback but Deinit.
var ErrNoCgo = errors.New("framework onnx needs cgo: build with CGO_ENABLED=1 and a C compiler")

// Framework takes the place of the framework that needs cgo.
type Framework struct{}

var _ framework.Framework = (*Framework)(nil)

// New returns a framework whose Init fails.
func New() *Framework { return new(Framework) }

// Init returns ErrNoCgo.
func (*Framework) Init(framework.Environment) error { return ErrNoCgo }

// LoadModel returns ErrNoCgo.
func (*Framework) LoadModel() error { return ErrNoCgo }

// LinkModel returns ErrNoCgo.
func (*Framework) LinkModel() (int64, error) { return 0, ErrNoCgo }

// ConfigureBatch returns ErrNoCgo.
func (*Framework) ConfigureBatch(int, int, []device.Buffer, []device.Buffer) (int64, error) {
	return 0, ErrNoCgo
}

// InferBatch returns ErrNoCgo.
func (*Framework) InferBatch(int, int) error { return ErrNoCgo }

// Deinit has nothing to release.
func (*Framework) Deinit() error { return nil }

// Prepare returns ErrNoCgo.
func Prepare(*models.Card, string, string, int, *slog.Logger) error { return ErrNoCgo }

// Experiment takes the place of the one that needs cgo.
type Experiment struct{}

// NewExperiment returns ErrNoCgo.
func NewExperiment(string, *onnxfile.Model) (*Experiment, error) { return nil, ErrNoCgo }

// Run returns ErrNoCgo.
func (*Experiment) Run([]draft.Tensor) ([]draft.Tensor, error) { return nil, ErrNoCgo }

// Close has nothing to free.
func (*Experiment) Close() error { return nil }
