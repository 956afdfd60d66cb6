//go:build cgo

package capi

// These functions are called by shim.c for the program. No panic leaves this file.

/*
#include <stdint.h>
#include <stdlib.h>
*/
import "C"

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"sync/atomic"
	"syscall"
	"unsafe"

	"github.com/rs/zerolog"

	"github.com/penstock/penstock/cuda"
	"github.com/penstock/penstock/libml/device"
	"github.com/penstock/penstock/libml/framework"
	"github.com/penstock/penstock/libml/internal/serve"
	"github.com/penstock/penstock/models"
)

const slots = device.Slots

var (
	started atomic.Bool
	running atomic.Pointer[Framework]
	logger  = slog.New(zerolog.NewSlogHandler(zerolog.New(os.Stderr).With().Timestamp().Logger()))
)

// guard converts a panic to a code and a text.
func guard(call string, code *C.int, why **C.char) {
	if v := recover(); v != nil {
		*code, *why = C.int(codeFailed), C.CString(line(fmt.Sprintf("%s: panic: %v: this is a bug in libpenstock; report it", call, v)))
	}
}

// pcapiRun is penstock_run. why is nil or in C's memory; the caller frees it.
//
//export pcapiRun
func pcapiRun(table, self unsafe.Pointer, why **C.char) (code C.int) {
	defer guard("penstock_run", &code, why)
	err := run(table, self)
	if err != nil {
		*why = C.CString(line(err.Error()))
	}
	return C.int(codeOf(err))
}

var errRanBefore = errors.New("penstock_run: called twice; a process can run one model, once")

func run(table, self unsafe.Pointer) error {
	f, err := New(table, self)
	if err != nil {
		return err
	}
	if !started.CompareAndSwap(false, true) {
		f.Close()
		return errRanBefore
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	running.Store(f)
	// The framework is not closed: if the process ends early, a callback may still run.
	return serve.Run(ctx, logger, func(*models.Card) (framework.Framework, error) { return f, nil })
}

// pcapiLog is penstock_log.
//
//export pcapiLog
func pcapiLog(level C.int32_t, text *C.char) {
	var code C.int
	var why *C.char
	defer func() { C.free(unsafe.Pointer(why)) }()
	defer guard("penstock_log", &code, &why)
	log := logger
	if f := running.Load(); f != nil {
		if env := f.env.Load(); env != nil {
			log = env.Log
		}
	}
	levels := []slog.Level{slog.LevelDebug, slog.LevelInfo, slog.LevelWarn, slog.LevelError}
	if message := line(C.GoString(text)); strings.TrimSpace(message) != "" { // a traceback has empty lines
		log.Log(context.Background(), levels[min(max(0, int(level)), len(levels)-1)], message)
	}
}

// pcapiStream is penstock_stream.
//
//export pcapiStream
func pcapiStream(slot C.int32_t) (stream C.uint64_t) {
	defer func() {
		if recover() != nil {
			stream = 0
		}
	}()
	if f := running.Load(); f != nil {
		stream = C.uint64_t(f.stream(int(slot)))
	}
	return stream
}

// pcapiGraph is penstock_graph.
//
//export pcapiGraph
func pcapiGraph(slot, n C.int32_t, graph C.uint64_t, why **C.char) (code C.int) {
	defer guard("penstock_graph", &code, why)
	f := running.Load()
	if f == nil {
		*why = C.CString("penstock_graph: no callback is running")
		return C.int(codeFailed)
	}
	if err := f.handOver(int(slot), int(n), uintptr(graph)); err != nil {
		*why = C.CString(line("penstock_graph: " + err.Error()))
		if errors.Is(err, cuda.ErrOutOfMemory) {
			return C.int(codeOutOfMemory)
		}
		return C.int(codeOf(err))
	}
	return C.int(codeOK)
}

// pcapiWeights is penstock_weights. places is 0 if there is no memory for the two results.
//
//export pcapiWeights
func pcapiWeights(file *C.char, places C.int, address, bytes *C.uint64_t, why **C.char) (code C.int) {
	defer guard("penstock_weights", &code, why)
	fail := func(code errorCode, text string) C.int {
		*why = C.CString(line("penstock_weights: " + text))
		return C.int(code)
	}
	if file == nil || places == 0 {
		return fail(codeFailed, "an argument is NULL; want a file's path and places for its address and length")
	}
	shared, err := weights(C.GoString(file))
	switch {
	case codeOf(err) != codeDeviceLost && errors.Is(err, framework.ErrNoWeights):
		return fail(codeNotShared, err.Error())
	case err != nil:
		return fail(codeOf(err), err.Error())
	}
	*address, *bytes = C.uint64_t(shared.Address), C.uint64_t(shared.Bytes)
	return C.int(codeOK)
}

// weights is Environment.Weights of the framework that runs.
func weights(file string) (framework.Weights, error) {
	f := running.Load()
	if f == nil || !f.linked.Load() {
		return framework.Weights{}, errors.New("called before link_model")
	}
	env := f.env.Load()
	if env.Weights == nil {
		return framework.Weights{}, fmt.Errorf("%w: the node has none for this process; load the weights yourself", framework.ErrNoWeights)
	}
	return env.Weights(file)
}
