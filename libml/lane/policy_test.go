package lane

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/testing/must"
	"pgregory.net/rapid"
)

const ms = time.Millisecond

// at returns a time in nanoseconds.
func at(millis int64) int64 { return millis * int64(ms) }

func TestPolicies(t *testing.T) {
	const none = -1
	tests := map[string]struct {
		now  int64
		jobs []Job
		want map[string]int
	}{
		"no job": {0, nil, map[string]int{FIFO: none, FAIR: none, SRTF: none, PACK: none, EDF: none}},
		"one that is late": {at(50), []Job{{Deadline: at(20), Batch: ms}},
			map[string]int{FIFO: 0, FAIR: 0, SRTF: 0, PACK: 0, EDF: 0}},
		"each key": {0, []Job{
			{Complete: 1, Deadline: at(50), Batch: 2 * ms, Load: ms, Served: 5, Remaining: 9 * ms},
			{Complete: 2, Deadline: at(60), Batch: 2 * ms, Load: ms, Served: 4, Remaining: 9 * ms},
			{Complete: 3, Deadline: at(60), Batch: 2 * ms, Load: ms, Served: 5, Remaining: 8 * ms},
			{Complete: 4, Deadline: at(60), Batch: 2 * ms, Served: 5, Remaining: 20 * ms},
			{Complete: 5, Deadline: at(40), Batch: 2 * ms, Load: 0, Served: 5, Remaining: 30 * ms},
		}, map[string]int{FIFO: 0, FAIR: 1, SRTF: 2, PACK: 3, EDF: 4}},
		"ties go to the oldest": {0, []Job{
			{Complete: 2, Deadline: at(50), Batch: ms}, {Complete: 1, Deadline: at(50), Batch: ms},
		}, map[string]int{FIFO: 1, FAIR: 1, SRTF: 1, PACK: 1, EDF: 1}},
		"a job without end is as long as its batch": {0, []Job{
			{Deadline: at(90), Batch: ms, Remaining: 5 * ms}, {Complete: 1, Deadline: at(95), Batch: 2 * ms},
		}, map[string]int{SRTF: 1}},
		"earliest start, not deadline": {0, []Job{
			{Deadline: at(50), Batch: ms}, {Deadline: at(52), Batch: 4 * ms},
		}, map[string]int{EDF: 1}},
		"one that is late does not count": {at(10), []Job{
			{Deadline: at(10), Batch: ms}, {Deadline: at(90), Batch: ms},
		}, map[string]int{EDF: 1, FIFO: 0}},
		"the fewest requests per time give way": {0, []Job{
			{Deadline: at(10), Batch: 10 * ms, Requests: 2}, {Deadline: at(12), Batch: 4 * ms, Requests: 1}, {Deadline: at(13), Batch: 4 * ms, Requests: 1},
		}, map[string]int{EDF: 1}},
		"the most requests per time stay": {0, []Job{
			{Deadline: at(10), Batch: 10 * ms, Requests: 8}, {Deadline: at(12), Batch: 4 * ms, Requests: 1},
		}, map[string]int{EDF: 0}},
		"another one during a load": {0, []Job{
			{Deadline: at(20), Batch: 2 * ms, Load: 10 * ms}, {Deadline: at(60), Batch: 18 * ms, Requests: 1},
		}, map[string]int{EDF: 1, FIFO: 0}},
		"wait for a load": {0, []Job{{Deadline: at(20), Batch: 2 * ms, Load: 10 * ms}}, map[string]int{EDF: none, PACK: 0}},
	}
	for name, c := range tests {
		t.Run(name, func(t *testing.T) {
			for policy, want := range c.want {
				p, err := New(policy)
				must.OK(t, err)
				if job, ok := p.Next(c.now, c.jobs); ok != (want != none) || ok && job != want {
					t.Errorf("%s: job %d, %v; want %d", policy, job, ok, want)
				}
			}
		})
	}
}

func TestNew(t *testing.T) {
	if p, err := New(""); err != nil {
		t.Error(err)
	} else if _, ok := p.(*edf); !ok {
		t.Errorf("the default is %T, want edf", p)
	}
	if _, err := New("lifo"); err == nil || !strings.Contains(err.Error(), `"lifo"; want one of fifo, fair, srtf, pack, edf`) {
		t.Errorf("unknown policy: %v", err)
	}
}

func TestStartServed(t *testing.T) {
	if got := StartServed(nil); got != 0 {
		t.Errorf("first job starts with %v", got)
	}
	if got := StartServed([]Job{{Served: 3 * ms}, {Served: 2 * ms}}); got != 2*ms {
		t.Errorf("third job starts with %v, want 2ms", got)
	}
}

// randomJobs returns resident jobs, some of which cannot be in time.
func randomJobs(r *rand.Rand, n int) []Job {
	jobs := make([]Job, n)
	for i := range jobs {
		batch := time.Duration(1+r.IntN(10)) * ms
		jobs[i] = Job{Model: i, Complete: int64(i), Deadline: at(int64(1 + r.IntN(40))), Batch: batch, Requests: 1, Remaining: batch}
	}
	return jobs
}

func TestPoliciesAllocateNothing(t *testing.T) {
	jobs := randomJobs(rand.New(rand.NewPCG(1, 1)), 42)
	for _, name := range Names() {
		p, err := New(name)
		must.OK(t, err)
		if n := testing.AllocsPerRun(100, func() { p.Next(0, jobs) }); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

// runAll runs jobs one after the other, and returns how many end in time.
func runAll(p Policy, jobs []Job) (inTime int) {
	jobs = append([]Job(nil), jobs...)
	for now := int64(0); len(jobs) > 0; {
		i, _ := p.Next(now, jobs)
		if now += int64(jobs[i].Batch); now <= jobs[i].Deadline {
			inTime++
		}
		jobs = append(jobs[:i], jobs[i+1:]...)
	}
	return inTime
}

// Without later arrivals, edf has more jobs in time than any other policy, on average.
func TestEDFInTime(t *testing.T) {
	sums := map[string]int{}
	for seed := range uint64(2000) {
		jobs := randomJobs(rand.New(rand.NewPCG(seed, 2)), 8)
		for _, name := range Names() {
			p, err := New(name)
			must.OK(t, err)
			sums[name] += runAll(p, jobs)
		}
	}
	t.Logf("in time: %v", sums)
	for name, sum := range sums {
		if name != EDF && sum >= sums[EDF] {
			t.Errorf("%s has %d jobs in time, edf %d", name, sum, sums[EDF])
		}
	}
}

// runAhead runs jobs that arrive at their Complete. The next one is chosen that long before the end of the
// one that runs. It returns how many end in time.
func runAhead(p Policy, arrivals []Job, ahead time.Duration) (inTime int) {
	var waiting []Job
	begin, now := int64(0), int64(0) // the lane is free at begin
	for len(arrivals)+len(waiting) > 0 {
		for len(arrivals) > 0 && arrivals[0].Complete <= now {
			waiting, arrivals = append(waiting, arrivals[0]), arrivals[1:]
		}
		if len(waiting) == 0 {
			now = arrivals[0].Complete
			continue
		}
		begin = max(begin, now)
		i, _ := p.Next(begin, waiting)
		end := begin + int64(waiting[i].Batch)
		if end <= waiting[i].Deadline {
			inTime++
		}
		now = max(begin, end-int64(ahead))
		begin = end
		waiting = append(waiting[:i], waiting[i+1:]...)
	}
	return inTime
}

// TestChoiceAhead shows why a lane chooses the batch that it queues near the end of the one that runs. An
// earlier choice misses urgent requests that arrive meanwhile.
func TestChoiceAhead(t *testing.T) {
	const jobs, mixes = 500, 40
	var inTime [3]int
	aheads := [3]time.Duration{0, ms / 5, time.Hour}
	for seed := range uint64(mixes) {
		r := rand.New(rand.NewPCG(seed, 4))
		arrivals, now := make([]Job, jobs), 0.0
		for i := range arrivals {
			now += r.ExpFloat64() * 5 * float64(ms) // 90 % busy
			batch := time.Duration(1+r.IntN(8)) * ms
			arrivals[i] = Job{Complete: int64(now), Deadline: int64(now) + int64(batch) + int64(r.IntN(40))*int64(ms), Batch: batch, Requests: 1}
		}
		for i, ahead := range aheads {
			inTime[i] += runAhead(&edf{}, arrivals, ahead)
		}
	}
	t.Logf("in time of %d, if chosen %v ahead: %d", jobs*mixes, aheads, inTime)
	if loss := inTime[0] - inTime[1]; loss > inTime[0]/100 {
		t.Errorf("a choice near the end makes %d more late, of %d", loss, inTime[0])
	}
	if inTime[2] >= inTime[1] {
		t.Errorf("%d are in time if chosen at the beginning, %d if near the end; want fewer", inTime[2], inTime[1])
	}
}

func checkNext(t interface{ Fatalf(string, ...any) }, now int64, jobs []Job) {
	for _, name := range Names() {
		p, err := New(name)
		if err != nil {
			t.Fatalf("%v", err)
		}
		for range 2 { // the second call reuses memory
			job, ok := p.Next(now, jobs)
			if ok && (job < 0 || job >= len(jobs)) {
				t.Fatalf("%s chose job %d of %d", name, job, len(jobs))
			}
			loading := slices.ContainsFunc(jobs, func(j Job) bool { return j.Load > 0 })
			if mayWait := name == EDF && loading; ok != (len(jobs) > 0) && !mayWait {
				t.Fatalf("%s chose a job: %v, of %d", name, ok, len(jobs))
			}
		}
	}
}

func TestNextIsAJob(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		times := rapid.Int64Range(-1<<60, 1<<60) // so that a deadline less batch and load does not overflow
		length := rapid.Custom(func(t *rapid.T) time.Duration { return time.Duration(times.Draw(t, "length")) })
		checkNext(t, times.Draw(t, "now"), rapid.SliceOf(rapid.Custom(func(t *rapid.T) Job {
			return Job{
				Complete: times.Draw(t, "complete"), Deadline: times.Draw(t, "deadline"),
				Batch: length.Draw(t, "batch"), Load: max(0, length.Draw(t, "load")), Served: length.Draw(t, "served"), Remaining: length.Draw(t, "remaining"),
			}
		})).Draw(t, "jobs"))
	})
}

func FuzzNext(f *testing.F) {
	f.Add(uint64(1), int64(0), 3)
	f.Fuzz(func(t *testing.T, seed uint64, now int64, n int) {
		r := rand.New(rand.NewPCG(seed, 3))
		jobs := randomJobs(r, max(0, n)%100)
		for i := range jobs {
			jobs[i].Load = time.Duration(r.IntN(3)) * ms
		}
		checkNext(t, now, jobs)
	})
}
