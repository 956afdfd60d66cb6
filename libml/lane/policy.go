package lane

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Job is a model that has a batch to run. Times are nanoseconds of one clock.
//
// Its weights are on the GPU, or are being loaded. Leave out a model whose load has not begun:
// a lane that waits for it keeps the memory of others busy, and the load might never begin.
type Job struct {
	// Model is the caller's number of the model, and Demoted its mark of a batch beyond the
	// guarantee. Policies do not use them.
	Model   int
	Demoted bool
	// Complete is when its oldest request was complete, Deadline when the batch of that
	// request must have ended.
	Complete, Deadline int64
	// Batch is how long its batch is expected to take, Load how long the rest of its load; 0
	// if its weights are on the GPU.
	Batch, Load time.Duration
	// Requests is how many its batch answers. edf uses it.
	Requests int
	// Served is the lane's time that it has had, counted from StartServed. fair uses it.
	Served time.Duration
	// Remaining is the lane's time that it still needs, this batch included; 0 if it has no
	// end. srtf uses it.
	Remaining time.Duration
}

// Policy chooses the next batch of a lane. The lane asks when its batch has ended or is near its
// end, when a load has ended, and when a request is complete while it is idle. A Policy belongs
// to one lane, and is not safe for concurrent use. Next allocates nothing once it has seen as many jobs.
type Policy interface {
	// Next returns an index of jobs. If ok is false, no batch should begin now: there is no
	// job, or edf waits for a load.
	Next(now int64, jobs []Job) (job int, ok bool)
}

// Names of the policies. The first three and pack are those of section 4 of the paper, for
// comparison.
const (
	FIFO = "fifo" // the job whose oldest request was complete first
	FAIR = "fair" // the job with the least Served (section 4.3)
	SRTF = "srtf" // the shortest remaining time first (section 4.2)
	PACK = "pack" // the job that leaves the lane idle for the smallest part of its time (section 4.1)
	EDF  = "edf"  // the earliest Deadline - Batch - Load; the default
)

// Names returns the names of all policies.
func Names() []string { return []string{FIFO, FAIR, SRTF, PACK, EDF} }

// New returns a policy by its name; "" is EDF.
func New(name string) (Policy, error) {
	switch cmp.Or(name, EDF) {
	case FIFO:
		return minimum(oldest), nil
	case FAIR:
		return minimum(leastServed), nil
	case SRTF:
		return minimum(shortest), nil
	case PACK:
		return minimum(leastIdle), nil
	case EDF:
		return &edf{}, nil
	}
	return nil, fmt.Errorf("find lane policy: unknown name %q; want one of %s", name, strings.Join(Names(), ", "))
}

// StartServed returns the Served of a job that joins others. It is the least of theirs, so a
// job that was away for long does not keep the lane until it has caught up.
func StartServed(others []Job) time.Duration {
	if len(others) == 0 {
		return 0
	}
	return slices.MinFunc(others, func(a, b Job) int { return cmp.Compare(a.Served, b.Served) }).Served
}

// minimum is a policy that takes the smallest job of an order.
type minimum func(a, b *Job) int

func (order minimum) Next(_ int64, jobs []Job) (job int, ok bool) {
	for i := range jobs {
		if order(&jobs[i], &jobs[job]) < 0 {
			job = i
		}
	}
	return job, len(jobs) > 0
}

func oldest(a, b *Job) int { return cmp.Compare(a.Complete, b.Complete) }

func leastServed(a, b *Job) int {
	return cmp.Or(cmp.Compare(a.Served, b.Served), oldest(a, b))
}

func shortest(a, b *Job) int {
	return cmp.Or(cmp.Compare(a.remaining(), b.remaining()), oldest(a, b))
}

func leastIdle(a, b *Job) int {
	return cmp.Or(cmp.Compare(float64(a.Load)*float64(b.Batch), float64(b.Load)*float64(a.Batch)), oldest(a, b))
}

func (j *Job) remaining() time.Duration { return j.Load + cmp.Or(j.Remaining, j.Batch) }

// start is the last time at which the job may be chosen and still be in time.
func (j *Job) start() int64 { return j.Deadline - int64(j.Batch) - int64(j.Load) }

// edf takes the job with the earliest start whose weights are on the GPU. A job that is being
// loaded has its place in the order, so that others leave time for it.
//
// If not all jobs can be in time, edf leaves out those with the fewest requests per time, until
// the others can. Otherwise a backlog that is barely in time makes all others late. The method
// is Moore's ("An n Job, One Machine Sequencing Algorithm", Management Science, 1968).
type edf struct{ order []int }

func (e *edf) Next(now int64, jobs []Job) (job int, ok bool) {
	e.order = e.order[:0]
	for i := range jobs {
		if now <= jobs[i].start() {
			e.order = append(e.order, i)
		}
	}
	if len(e.order) == 0 {
		return minimum(shortest).Next(now, jobs)
	}
	slices.SortFunc(e.order, func(a, b int) int {
		return cmp.Or(cmp.Compare(jobs[a].start(), jobs[b].start()), oldest(&jobs[a], &jobs[b]), cmp.Compare(a, b))
	})
	e.leaveOut(now, jobs)
	for _, i := range e.order {
		if jobs[i].Load == 0 {
			return i, true
		}
	}
	return 0, false
}

// leaveOut keeps those jobs in the order that are in time if they run in it.
func (e *edf) leaveOut(now int64, jobs []Job) {
	kept, end := e.order[:0], now
	for _, i := range e.order {
		kept = append(kept, i)
		if end += int64(jobs[i].Batch); end <= jobs[i].Deadline {
			continue
		}
		worst := 0
		for k := range kept {
			if jobs[kept[k]].density() < jobs[kept[worst]].density() {
				worst = k
			}
		}
		end -= int64(jobs[kept[worst]].Batch)
		kept = slices.Delete(kept, worst, worst+1)
	}
	e.order = kept
}

// density returns requests per nanosecond.
func (j *Job) density() float64 { return float64(j.Requests) / float64(max(1, j.Batch)) }
