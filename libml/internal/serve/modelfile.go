package serve

import (
	"fmt"
	"hash/crc32"
	"io"
	"os"

	"github.com/penstock/penstock/libml/weights"
)

// modelFile describes the files of a model. The zero value stands for no file.
type modelFile struct {
	bytes int64
	stamp string // differs if the contents differ
}

// readModelFile describes the files of the process's model.
func (p *process) readModelFile() (m modelFile, err error) {
	for _, name := range p.card.Files() {
		one, err := p.readFile(name)
		if err != nil {
			return modelFile{}, err
		}
		m.bytes += one.bytes
		m.stamp += one.stamp
	}
	return m, nil
}

// readFile describes a file of the process's model. On a CPU it reads the file: its checksum
// counts, because a file's times can be set, and change without its contents. That takes a small part of
// the time of a load. On a GPU a load need not read the file, so the file's identity must do.
func (p *process) readFile(name string) (m modelFile, err error) {
	file, err := os.Open(name)
	if err != nil {
		return m, err
	}
	defer file.Close()
	id, err := weights.Identify(file)
	if err != nil {
		return m, err
	}
	if p.onGPU() {
		return modelFile{id.Bytes, fmt.Sprint(id)}, nil
	}

	sum := crc32.New(crc32.MakeTable(crc32.Castagnoli))
	n, err := io.Copy(sum, file)
	if err != nil {
		return m, err
	}
	return modelFile{n, fmt.Sprintf("%d %08x", n, sum.Sum32())}, nil
}

// checkModelFile returns an error if the model's file is not the one that was loaded first. Another model
// would answer under the same version.
func (p *process) checkModelFile() error {
	if p.loaded == (modelFile{}) {
		return nil
	}
	now, err := p.readModelFile()
	if err != nil {
		return fmt.Errorf("load model %s: %w", p.card.Name, err)
	}
	if now != p.loaded {
		return fmt.Errorf("load model %s: %s has changed since the function started; put the old file back, or run `penstock if replace`", p.card.Name, p.card.Model)
	}
	return nil
}
