package configs

import (
	"fmt"
	"slices"
	"time"

	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/models/document"
)

// Batching is a batching rule. Its zero value is none at all: a function's is the
// node's then.
type Batching struct {
	Rule Rule
	// Size and Delay are Fixed's: a batch begins when it has Size requests, or when
	// the oldest of those that there are has waited for Delay.
	Size  int
	Delay time.Duration
}

// Rule names a batching rule.
type Rule string

// SLAB is the paper's self-learning adaptive batching. The others are there to
// compare it with: AIMD is Clipper's rule, One runs one request a batch, and Fixed a
// batch of one size, or what there is after a delay, as Triton's dynamic batcher
// does. docs/adr/0010-baselines.md says what they have in common.
const (
	SLAB  Rule = "slab"
	AIMD  Rule = "aimd"
	One   Rule = "none"
	Fixed Rule = "fixed"
)

// String is the rule as a configuration has it.
func (b Batching) String() string {
	if b.Rule == Fixed {
		return fmt.Sprintf("{fixed: %d, delay: %s}", b.Size, b.Delay)
	}
	return string(b.Rule)
}

// Gather names the way that the pieces of requests become a batch tensor on a GPU.
type Gather string

// GatherKernel reads them where they lie, in one launch of a kernel. GatherCopy is
// what that replaces, to compare it with: the CPU puts them together, and one copy
// brings them over.
const (
	GatherKernel Gather = "kernel"
	GatherCopy   Gather = "copy"
)

// Late says what becomes of requests that can no longer make their objective.
type Late string

// LateAnswer answers them `late` and runs others in their place. LateRun runs every
// request, as servers that know no objective do.
const (
	LateAnswer Late = "answer"
	LateRun    Late = "run"
)

// fixedForm is how Fixed is written.
const fixedForm = "{fixed: 8, delay: 5ms}"

const batchingRule = "slab, aimd, none (one request a batch), or " + fixedForm

var (
	rules   = []Rule{SLAB, AIMD, One}
	gathers = []Gather{GatherKernel, GatherCopy}
	lates   = []Late{LateAnswer, LateRun}
	places  = []Weights{WeightsShared, WeightsPrivate}
)

// decode leaves b as it is where nothing stands.
func (b *Batching) decode(v document.Value) {
	switch {
	case v.Absent():
	case v.IsMap():
		m := v.Map("fixed", "delay")
		b.Rule = Fixed
		b.Size = int(m.Need("fixed", "the batch size, one of the model's").Int(1, models.MaxBatchSize))
		b.Delay = m.Need("delay", "how long a request may wait for the batch to fill, like 5ms").Duration(0, maxTimeout)
	case v.Plain() == string(Fixed):
		v.Reject("is fixed, want its size and delay, like %s", fixedForm)
	default:
		*b = Batching{}
		choose(v, &b.Rule, append(slices.Clone(rules), fixedForm)...)
		if b.Rule == fixedForm {
			v.Reject("is a text, want %s without the quotes", fixedForm)
			b.Rule = ""
		}
	}
}

// check reports what is wrong with a rule that did not come out of a file.
func (b Batching) check() error {
	switch b.Rule {
	case "", SLAB, AIMD, One:
		if b.Size != 0 || b.Delay != 0 {
			return fmt.Errorf("is %q with a size or a delay, which only fixed has", string(b.Rule))
		}
		return nil
	case Fixed:
		if b.Size < 1 || b.Size > models.MaxBatchSize || b.Delay < 0 || b.Delay > maxTimeout {
			return fmt.Errorf("is %s, want a size from 1 to %d and a delay from 0s to %s", b, models.MaxBatchSize, maxTimeout)
		}
		return nil
	}
	return fmt.Errorf("is %q, want %s", string(b.Rule), batchingRule)
}
