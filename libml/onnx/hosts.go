//go:build cgo

package onnx

import (
	"errors"
	"fmt"

	"github.com/penstock/penstock/cuda"
)

// hosts is pinned host memory that a graph copies from at each launch.
//
// ONNX Runtime gives some kernels small tables, which it copies from its own pinned memory.
// After the capture it uses that memory for something else, but the graph would still copy
// from it. So examine copies the contents to memory that the graph owns, and redirects the
// graph's copies.
//
// Active: on every GPU and in every layout, for captured graphs that copy from pinned host
// memory. Copies from other host memory make a graph impossible (errNoGraph).
//
// The graph and all its executables share a hosts, as an executable can outlive its graph.
// The last one frees the memory. Only one batch is configured at a time, so users needs no
// lock.
type hosts struct {
	blocks [][]byte
	users  int
}

// redirect makes a copy of the graph read memory of h with the same contents.
func (h *hosts) redirect(graph *cuda.Graph, copied cuda.Copy, in *cuda.Context) error {
	if !cuda.IsPinned(copied.From.At) {
		return fmt.Errorf("%w: it copies %d bytes from host memory that is not pinned", errNoGraph, copied.From.Bytes)
	}
	block, err := in.AllocateHost(copied.From.Bytes)
	if err != nil {
		return err
	}
	h.blocks = append(h.blocks, block)
	copy(block, cuda.Bytes(copied.From.At, len(block)))
	return graph.ReadFrom(copied, cuda.At(block))
}

// keep adds a user, and returns h.
func (h *hosts) keep() *hosts {
	h.users++
	return h
}

// release removes a user. The last release frees the memory. h may be nil.
func (h *hosts) release(in *cuda.Context) error {
	if h == nil {
		return nil
	}
	if h.users--; h.users != 0 {
		return nil
	}
	var errs []error
	for _, block := range h.blocks {
		errs = append(errs, in.FreeHost(block))
	}
	return errors.Join(errs...)
}
