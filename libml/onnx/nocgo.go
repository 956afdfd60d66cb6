//go:build !cgo

// Package onnx is the framework "onnx". This build has no cgo, which the package needs to call
// ONNX Runtime.
package onnx

import (
	"errors"
	"log/slog"

	"github.com/penstock/penstock/libml/framework"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/models/draft"
	"github.com/penstock/penstock/models/onnxfile"
)

// ErrNoCgo is returned by Init, Prepare and NewExperiment.
var ErrNoCgo = errors.New("framework onnx needs cgo: build with CGO_ENABLED=1 and a C compiler")

// Framework takes the place of the framework that needs cgo. Only Init and Deinit are called of it.
type Framework struct{ framework.Framework }

// New returns a framework whose Init fails.
func New() *Framework { return new(Framework) }

// Init returns ErrNoCgo.
func (*Framework) Init(framework.Environment) error { return ErrNoCgo }

// Deinit has nothing to release.
func (*Framework) Deinit() error { return nil }

// Prepare returns ErrNoCgo.
func Prepare(*models.Card, string, string, int, *slog.Logger) error { return ErrNoCgo }

// Experiment takes the place of the one that needs cgo.
type Experiment struct{ draft.Runner }

// NewExperiment returns ErrNoCgo.
func NewExperiment(string, *onnxfile.Model) (*Experiment, error) { return nil, ErrNoCgo }

// Close has nothing to free.
func (*Experiment) Close() error { return nil }
