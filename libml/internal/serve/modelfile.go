package serve

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"slices"

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

// checkSums returns an error if a file of the model has not the sum that the configuration demands. It reads files whose
// identity is new.
func (p *process) checkSums() error {
	now, err := p.identify()
	if err != nil || slices.Equal(now, p.summed) {
		return err
	}
	for i := range p.card.Sums {
		if err := p.card.CheckSum(i); err != nil {
			return err
		}
	}
	p.summed = now
	return p.checkUnchanged()
}

// checkUnchanged returns an error if a file changed since checkSums read it: a framework that has read it since may have
// read anything. Nothing can set the time of a file's last change back.
func (p *process) checkUnchanged() error {
	now, err := p.identify()
	if err == nil && !slices.Equal(now, p.summed) {
		err = errors.New("the model's file changed while it was loaded, and model_sums demands its sum; the next start reads it again")
	}
	return err
}

// identify returns the identities of the files whose sums are demanded.
func (p *process) identify() (all []weights.Identity, err error) {
	for i := range p.card.Sums {
		file, err := os.Open(p.card.Files()[i])
		if err != nil {
			return nil, err
		}
		id, err := weights.Identify(file)
		file.Close()
		if err != nil {
			return nil, err
		}
		all = append(all, id)
	}
	return all, nil
}
