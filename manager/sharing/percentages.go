package sharing

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/rs/zerolog"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/private"
)

// cuBLAS chooses its f16 kernels by the number of multiprocessors that it sees. Under an MPS
// percentage it sees only those of the share. For some numbers these kernels return wrong results
// (docs/adr/0007-onnx-on-a-gpu.md). Partitions show it the whole device. The node therefore finds the
// right percentages of each GPU and model:
//
//  1. Decide chooses among the percentages that are not known to be wrong (steps).
//  2. A process compares its answers before it serves. If they are wrong, it ends (learnWrong).
//  3. The policy chooses another percentage. If no process serves, the pair starts one on the whole
//     device, which serves until a percentage is right.
//  4. A file in the cache folder keeps the results for later starts.

// percentages has the results. The control loop owns it. The zero value knows nothing, and keeps
// nothing.
type percentages struct {
	cache string // Options.Cache
	log   zerolog.Logger
	known judgedGPU
}

// judgedGPU is the content of the file of a GPU.
type judgedGPU struct {
	Format int    `json:"format"`
	UUID   string `json:"uuid"`
	Driver string `json:"driver"`
	// Models has the results by the file of the model, or of its card if it has no file.
	Models map[string]Judged `json:"models"`
}

// Judged has the results of a model. The sum of its files' Bytes and the time of the latest (Modified, in
// Unix nanoseconds) identify it.
type Judged struct {
	Bytes    int64     `json:"bytes"`
	Modified int64     `json:"modified"`
	Right    []float64 `json:"right"`
	Wrong    []float64 `json:"wrong"`

	model string // its key in the file
}

// add records whether the model answers rightly at a percentage. It reports whether that is new.
func (j *Judged) add(percent float64, right bool) (news bool) {
	if slices.Contains(j.Wrong, percent) || right && slices.Contains(j.Right, percent) {
		return false // what was wrong once is not trusted again
	}
	j.Right = slices.DeleteFunc(slices.Clone(j.Right), func(r float64) bool { return r == percent })
	if right {
		j.Right = append(j.Right, percent)
	} else {
		j.Wrong = append(slices.Clone(j.Wrong), percent)
	}
	return true
}

const (
	// percentagesFormat is the version of the files. Files of other versions are not read.
	percentagesFormat = 1
	// maxPercentagesBytes is the max size of a file: more than a thousand models.
	maxPercentagesBytes = 1 << 20
)

func percentagesFile(uuid string) string { return "percentages-" + uuid + ".json" }

// open reads what earlier starts have learned about a GPU.
func (p *percentages) open(gpu *control.GPU) {
	p.known = judgedGPU{Format: percentagesFormat, UUID: gpu.UUID, Driver: gpu.Driver, Models: map[string]Judged{}}
	before, err := p.read(gpu.UUID)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		p.log.Warn().Err(err).Msg("cannot read at which percentages models answer rightly; finding out again")
	case before.Format == percentagesFormat && before.UUID == gpu.UUID && before.Driver == gpu.Driver && before.Models != nil:
		p.known = before
	}
}

func (p *percentages) read(uuid string) (file judgedGPU, err error) {
	if p.cache == "" {
		return file, fs.ErrNotExist
	}
	folder, err := private.OpenFolder(p.cache)
	if err != nil {
		return file, err
	}
	defer folder.Close()
	text, err := folder.ReadFile(percentagesFile(uuid), maxPercentagesBytes)
	if err != nil {
		return file, err
	}
	if err := json.Unmarshal(text, &file); err != nil {
		return file, fmt.Errorf("read %s: %w", filepath.Join(folder.Path(), percentagesFile(uuid)), err)
	}
	return file, nil
}

func (p *percentages) write() error {
	if p.cache == "" {
		return nil
	}
	folder, err := private.OpenFolder(p.cache)
	if err != nil {
		return err
	}
	defer folder.Close()
	text, err := json.Marshal(p.known)
	if err != nil {
		return err
	}
	return folder.ReplaceFile(percentagesFile(p.known.UUID), append(text, '\n'))
}

// of returns the results of a card's model. They are empty for a file that has changed.
func (p *percentages) of(card *models.Card) (m Judged) {
	m.model = cmp.Or(card.Model, card.File)
	for _, file := range append([]string{m.model}, card.Data...) {
		if about, err := os.Stat(file); err == nil {
			m.Bytes, m.Modified = m.Bytes+about.Size(), max(m.Modified, about.ModTime().UnixNano())
		}
	}
	if known, ok := p.known.Models[m.model]; ok && known.Bytes == m.Bytes && known.Modified == m.Modified {
		known.model = m.model
		return known
	}
	return m
}

// judge keeps whether a model answers rightly at a percentage.
func (p *percentages) judge(card *models.Card, percent float64, right bool) {
	m := p.of(card)
	if !m.add(percent, right) {
		return
	}
	p.known.Models[m.model] = m
	if err := p.write(); err != nil {
		p.log.Warn().Err(err).Msg("cannot keep at which percentages models answer rightly; the next start finds out again")
	}
}
