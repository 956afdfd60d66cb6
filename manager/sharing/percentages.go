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

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/manager/policy/pair"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/private"
)

// cuBLAS chooses its f16 kernels by the number of multiprocessors that it sees. Under an MPS
// percentage it sees only those of the share. For some numbers these kernels return wrong results
// (docs/adr/0007-onnx-on-a-gpu.md). Partitions show it the whole device. The node therefore finds the
// right percentages of each GPU and model:
//
//  1. steps: the policy chooses among the percentages that are not known to be wrong.
//  2. A process compares its answers before it serves. If they are wrong, it ends: learnWrong.
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
	Models map[string]judgedModel `json:"models"`
}

// judgedModel has the results of a model. The sum of its files' Bytes and the time of the latest (Modified, in
// Unix nanoseconds) identify it.
type judgedModel struct {
	Bytes    int64     `json:"bytes"`
	Modified int64     `json:"modified"`
	Right    []float64 `json:"right"`
	Wrong    []float64 `json:"wrong"`
}

const (
	// percentagesFormat is the version of the files. Files of other versions are not read.
	percentagesFormat = 1
	// maxPercentagesBytes is the max size of a file: more than a thousand models.
	maxPercentagesBytes = 1 << 20
)

func percentagesFile(uuid string) string { return "percentages-" + uuid + ".json" }

// open reads what earlier starts have learned about a GPU.
func (p *percentages) open(gpu *control.ObservedDevice) {
	p.known = judgedGPU{Format: percentagesFormat, UUID: gpu.UUID, Driver: gpu.Driver, Models: map[string]judgedModel{}}
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
func (p *percentages) of(card *models.Card) (name string, m judgedModel) {
	name = cmp.Or(card.Model, card.File)
	for _, file := range append([]string{name}, card.Data...) {
		if about, err := os.Stat(file); err == nil {
			m.Bytes, m.Modified = m.Bytes+about.Size(), max(m.Modified, about.ModTime().UnixNano())
		}
	}
	if known, ok := p.known.Models[name]; ok && known.Bytes == m.Bytes && known.Modified == m.Modified {
		return name, known
	}
	return name, m
}

// judge records whether a model answers rightly at a percentage. It reports whether that is new.
func (p *percentages) judge(card *models.Card, percent float64, right bool) (news bool) {
	name, m := p.of(card)
	if slices.Contains(m.Wrong, percent) || right && slices.Contains(m.Right, percent) {
		return false // what was wrong once is not trusted again
	}
	m.Right = slices.DeleteFunc(slices.Clone(m.Right), func(r float64) bool { return r == percent })
	if right {
		m.Right = append(m.Right, percent)
	} else {
		m.Wrong = append(slices.Clone(m.Wrong), percent)
	}
	p.known.Models[name] = m
	if err := p.write(); err != nil {
		p.log.Warn().Err(err).Msg("cannot keep at which percentages models answer rightly; the next start finds out again")
	}
	return true
}

// steps returns the shares that the instance may have, ascending; nil if it may have any. Shares that
// the operator sets are free until one of them is wrong.
func (in *Instance) steps() []float64 {
	s := in.f.s
	if !s.byPercentage(in.f.Change) {
		return nil
	}
	_, known := s.percentages.of(in.pair.Card())
	if !s.cfg.Shares.Tune && len(known.Wrong) == 0 {
		return nil
	}
	steps, own := percentageSteps(s.Device.GPU.SMs, s.cfg.Shares.MinimumPercent), in.f.Configuration().SharePercent
	if i, found := slices.BinarySearch(steps, own); !found && own > 0 {
		steps = slices.Insert(steps, i, own)
	}
	return slices.DeleteFunc(steps, func(percent float64) bool { return slices.Contains(known.Wrong, percent) })
}

// percentageSteps returns one whole percentage for each number of multiprocessors that MPS can
// assign. It assigns them in pairs, and rounds down.
func percentageSteps(sms int, minimum float64) (steps []float64) {
	pairs := func(percent int) int { return percent * sms / 100 / 2 }
	for p := 1; p <= wholePercent; p++ {
		if p == wholePercent || float64(p) >= minimum && pairs(p) != pairs(p+1) {
			steps = append(steps, float64(p))
		}
	}
	return steps
}

// byPercentage reports whether a share that changes this way is an MPS percentage.
func (s *Sharing) byPercentage(c configs.Change) bool {
	return s.onGPU() && s.Device.MPS && (c == configs.ChangeShadow || c == configs.ChangeRestart)
}

// hasPercentage reports whether a process has an MPS percentage below 100.
func (in *Instance) hasPercentage(q *pair.Process) bool {
	return in.f.s.byPercentage(in.f.Change) && q.SharePercent > 0 && q.SharePercent < wholePercent
}

// answersRightly reports whether a process may serve before all its batch sizes are checked.
func (in *Instance) answersRightly(q *pair.Process) bool {
	if !in.hasPercentage(q) {
		return true
	}
	_, known := in.f.s.percentages.of(q.Card)
	return slices.Contains(known.Right, q.SharePercent)
}

// learnRight records that a process has checked all its batch sizes.
func (in *Instance) learnRight(q *pair.Process) {
	if in.hasPercentage(q) {
		in.f.s.percentages.judge(q.Card, q.SharePercent, true)
	}
}

// learnWrong learns from a process that ends because its model answers wrongly. If there is another
// share, the end does not count against the model.
func (in *Instance) learnWrong(q *pair.Process, o *control.ObservedProcess) {
	if !o.WrongAnswers || !in.hasPercentage(q) {
		return
	}
	if in.f.s.percentages.judge(q.Card, q.SharePercent, false) {
		const message = "model answers wrongly at a percentage of the GPU"
		in.f.s.reshare(message)
		e := in.log.Warn()
		if in.pair.Share() == q.SharePercent {
			e = in.log.Error()
		}
		e.Uint32("generation", q.Generation).Float64("percent", round(q.SharePercent)).
			Float64("tries_percent", round(in.pair.Share())).Str("reason", o.Reason).Msg(message)
	}
	in.pair.Wrong(q.Generation)
}
