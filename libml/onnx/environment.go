//go:build cgo

package onnx

import (
	"fmt"
	"sync"

	ort "github.com/yalue/onnxruntime_go"
)

// environment is ONNX Runtime's. A process has one, and keeps it until it ends: the library
// cannot be unloaded while its threads end.
var environment struct {
	mu   sync.Mutex
	path string // of the library, once it is open
	// provider reports whether the CUDA provider is loaded.
	provider bool
}

// open opens ONNX Runtime, unless it is open.
func open() error {
	environment.mu.Lock()
	defer environment.mu.Unlock()
	if environment.path != "" {
		return nil
	}

	path, err := Library()
	if err != nil {
		return err
	}
	ort.SetSharedLibraryPath(path)
	// Every problem is also returned as an error. Do not log it twice.
	if err := ort.InitializeEnvironment(ort.WithLogLevelFatal()); err != nil {
		return fmt.Errorf("open %s: %w", path, err)
	}
	if err := shareArena(); err != nil {
		return fmt.Errorf("share memory between sessions: %w", err)
	}
	environment.path = path
	return nil
}

// shareArena makes sessions on the CPU take the memory of their batches from one arena. The members of
// a worker take turns, so it holds the largest batches that run at once, not those of all members.
func shareArena() error {
	memory, err := ort.GetMemoryInfo()
	if err != nil {
		return err
	}
	arena, err := ort.NewArenaCfg(0, -1, -1, -1)
	if err != nil {
		return err
	}
	defer arena.Destroy()
	return ort.CreateAndRegisterAllocator(memory, arena)
}
