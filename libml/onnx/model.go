//go:build cgo

package onnx

import (
	"fmt"
	"io"
	"os"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/models/onnxfile"
)

// modelFile is a model's file. The GPU path reads it only when it needs it: a prepared model replaces it.
type modelFile struct {
	mu   sync.Mutex // guards data
	data []byte     // nil until the first read
}

// read returns the model's file. The first call reads it.
func (m *modelFile) read(card *models.Card) (_ []byte, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.data != nil {
		return m.data, nil
	}
	if err := checkData(card); err != nil {
		return nil, err
	}
	if m.data, err = os.ReadFile(card.Model); err != nil {
		return nil, fmt.Errorf("read model: %w", err)
	}
	return m.data, nil
}

// checkData returns an error if the model has weights in other files than when the card was read.
func checkData(card *models.Card) error {
	files, err := onnxfile.DataFiles(card.Model)
	if err == nil && !slices.Equal(files, card.Data) {
		err = fmt.Errorf("it has weights in the files %q now, and had %q; run `penstock if replace`", files, card.Data)
	}
	if err != nil {
		return fmt.Errorf("read model %s: %w", card.Model, err)
	}
	return nil
}

// declaredInputs returns the inputs that the model's file declares.
func declaredInputs(card *models.Card) ([]onnxfile.Value, error) {
	model, err := onnxfile.Read(card.Model)
	if err != nil {
		return nil, fmt.Errorf("read model: %w", err)
	}
	return model.Inputs, nil
}

// fileMemory is a file's bytes outside the Go heap. A worker loads models often: on the heap, the files
// would stay in memory until the next garbage collection.
type fileMemory []byte

// readPrivately reads a file. It does not map the file, which another program may truncate at any time.
func readPrivately(name string) (_ fileMemory, err error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if info.Size() == 0 {
		return nil, fmt.Errorf("file %s is empty", name)
	}
	memory, err := unix.Mmap(-1, 0, int(info.Size()), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return nil, fmt.Errorf("map %d bytes for %s: %w", info.Size(), name, err)
	}
	read := fileMemory(memory)
	if _, err := io.ReadFull(f, read); err != nil {
		read.free()
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	return read, nil
}

func (m *fileMemory) free() {
	if *m != nil {
		_ = unix.Munmap(*m) // it was mapped
		*m = nil
	}
}
