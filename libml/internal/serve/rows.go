package serve

import (
	"slices"
	"time"

	"github.com/penstock/penstock/libml/answer"
	"github.com/penstock/penstock/libml/device"
	"github.com/penstock/penstock/libml/internal/loop"
	"github.com/penstock/penstock/libml/internal/tensors"
	"github.com/penstock/penstock/models"
)

// rows compares each picture's answer in a batch with its answer alone (answer.Rows). The warm-up of the
// first slot runs pictures in place of blank images:
//
//	smallest size      1 each picture alone; the first one twice. One picture if no size is larger
//	all sizes above 1  2 all pictures together, in several orders: compared
//
// A size that a process adds while it serves is compared before the loop uses it, with one of these batches
// between two batches of requests (loop.extend). If an earlier process with the same files has compared all
// sizes, blank images are enough.
type rows struct {
	samples [answer.Samples][]byte // an image of each input, without gaps
	answers *answer.Rows

	// compareNext has compared the first sizes of the ladder when no batch is left.
	sizes int
	left  []sampleBatch
}

// sampleBatch is a batch that is compared: its size and the samples of its images.
type sampleBatch struct {
	size     int
	pictures []int
}

// comparedOrders is how many batches of a size are compared.
const comparedOrders = 3

func newRows(card *models.Card) (_ *rows, err error) {
	r := &rows{answers: answer.NewRows(card)}
	for k := range r.samples {
		if r.samples[k], err = answer.Sample(card, k); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// sampleRuns returns the batches of a warm-up: the samples of the first images. The others are blank.
func (p *process) sampleRuns(slot, n int) (runs [][]int) {
	switch {
	case p.card.MaxBatch() == 1 && (slot > 0 || p.compared.Load()):
		return [][]int{nil} // it has run once, as the largest size
	case p.card.MaxBatch() == 1:
		return [][]int{{0}}
	case slot > 0 || p.compared.Load():
		return [][]int{nil, nil}
	}
	if n == p.card.Batches[0] {
		runs = append(runs, []int{0}, []int{1}, []int{2}, []int{0})
	}
	if n > 1 {
		for order := range comparedOrders {
			runs = append(runs, answer.Pictures(order, n))
		}
	}
	return runs
}

// runSamples runs a batch of samples over these tensors, and returns how long it took. It compares
// the answers, unless all images are blank.
func (p *process) runSamples(slot, n int, t *tensors.Tensors, pictures []int) (took time.Duration, err error) {
	d, outputs := p.memory.device, t.OutputsOf(n)
	if err := d.Pad(slot, t.InputOf(n), len(pictures), n); err != nil {
		return 0, err
	}
	for i, k := range pictures {
		image := p.rows.samples[k]
		for _, at := range p.card.Input.Places() {
			to := at.At + i*at.Bytes
			if err := d.Upload(slot, t.Input.Slice(to, to+at.Bytes), image[:at.Bytes]); err != nil {
				return 0, err
			}
			image = image[at.Bytes:]
		}
	}
	for _, state := range t.Before {
		clear(state)
	}
	if p.onGPU() {
		took, err = p.runBatch(slot, n)
	} else {
		wipe(device.Bytes(outputs))
		if took, err = p.runBatch(slot, n); err == nil {
			err = checkWritten(p.card, device.Bytes(outputs))
		}
	}
	if err != nil || len(pictures) == 0 || p.exit.requested() {
		return took, err
	}
	if !p.onGPU() {
		return took, p.rows.take(p.card, device.Bytes(outputs), n, pictures)
	}
	results, err := p.download(slot, outputs)
	if err != nil {
		return 0, err
	}
	return took, p.rows.take(p.card, results, n, pictures)
}

// take learns from a picture alone, and compares pictures together.
func (r *rows) take(card *models.Card, outputs [][]byte, n int, pictures []int) error {
	if len(pictures) == n && n > 1 {
		return r.answers.Compare(outputs, pictures)
	}
	for i, t := range card.OutputTensors() {
		outputs[i] = outputs[i][:t.Bytes()]
	}
	r.answers.Learn(outputs)
	return nil
}

// download copies outputs to memory of this process.
func (p *process) download(slot int, outputs []device.Buffer) (results [][]byte, err error) {
	d := p.memory.device
	for _, out := range outputs {
		if !out.OnDevice() { // a state, which is complete
			results = append(results, slices.Clone(out.Bytes()))
			continue
		}
		results = append(results, make([]byte, out.Len()))
		err = loop.MergeErrors(err, d.Download(slot, results[len(results)-1], out))
	}
	err = loop.MergeErrors(err, d.Fetch(slot, 0))
	_, waitErr := d.Wait(slot)
	return results, loop.MergeErrors(err, waitErr)
}

// compareNext runs the next batch that compares a ladder's answers, if one is left. It reports whether none is
// left then. The slot has no batch in flight.
func (p *process) compareNext(slot int, ladder []int) (compared bool, err error) {
	if p.compared.Load() {
		return true, nil
	}
	if p.rows == nil {
		if p.rows, err = newRows(p.card); err != nil {
			return false, err
		}
	}
	r := p.rows
	for ; r.sizes < len(ladder); r.sizes++ {
		for _, pictures := range p.sampleRuns(0, ladder[r.sizes]) {
			r.left = append(r.left, sampleBatch{ladder[r.sizes], pictures})
		}
	}
	if len(r.left) > 0 {
		next := r.left[0]
		if _, err := p.runSamples(slot, next.size, p.memory.tensors[slot], next.pictures); err != nil {
			return false, warmUpError(p.card, next.size, err)
		}
		r.left = r.left[1:]
	}
	if len(r.left) > 0 {
		return false, nil
	}
	p.finishRows(ladder)
	return true, nil
}

// finishRows notes that a ladder was compared.
func (p *process) finishRows(ladder []int) {
	if p.rows == nil {
		return
	}
	if p.rows.sizes = len(ladder); len(ladder) < len(p.card.Batches) {
		return
	}
	if random := p.rows.answers.Random(); len(random) > 0 {
		p.log.Warn("outputs change from run to run; cannot check that each picture gets its own answer", "outputs", random)
	}
	p.rows = nil
	p.compared.Store(true)
}

// knowsFiles reports whether the files of the process's model tell how it answers. A program may have
// changed without them.
func (p *process) knowsFiles() bool { return p.loaded.stamp != "" && len(p.card.Command) == 0 }

// comparedFiles is Report.Compared.
func (p *process) comparedFiles() string {
	if !p.compared.Load() || !p.knowsFiles() {
		return ""
	}
	return p.loaded.stamp
}
