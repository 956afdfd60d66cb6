package lanes

import (
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"github.com/penstock/penstock/libml/lane"
)

// finiteJob is work that ends, such as a training: it runs batches until it has had its
// length of the lane's time.
type finiteJob struct {
	arrives       time.Duration
	length, batch time.Duration
}

// runJobs runs jobs in one lane until the end, or until all have ended. It returns when each
// ended (0: not), and what each was served between from and the end.
func runJobs(policy string, jobs []finiteJob, from, end time.Duration, seed uint64) (ended, served []time.Duration, err error) {
	p, err := lane.New(policy)
	if err != nil {
		return nil, nil, fmt.Errorf("simulate jobs: %w", err)
	}
	random := rand.New(rand.NewPCG(seed, 4))
	ended, served = make([]time.Duration, len(jobs)), make([]time.Duration, len(jobs))
	var present []lane.Job
	came := 0
	for now := time.Duration(0); now < end; {
		for ; came < len(jobs) && jobs[came].arrives <= now; came++ {
			j := jobs[came]
			present = append(present, lane.Job{
				Model: came, Complete: int64(j.arrives), Deadline: math.MaxInt64 / 2, Batch: j.batch,
				Served: lane.StartServed(present), Remaining: j.length,
			})
		}
		choice, ok := p.Next(int64(now), present)
		if !ok {
			if came == len(jobs) {
				return ended, served, nil
			}
			now = jobs[came].arrives
			continue
		}
		j := &present[choice]
		took := time.Duration(float64(j.Batch) * math.Exp(batchSigma*random.NormFloat64()))
		if now >= from {
			served[j.Model] += took
		}
		now += took
		j.Served += took
		if j.Remaining -= took; j.Remaining <= 0 {
			ended[j.Model] = now
			present = append(present[:choice], present[choice+1:]...)
		}
	}
	return ended, served, nil
}

// JobsReport compares the mean times from arrival to completion of 100 jobs (section 5.1).
type JobsReport struct {
	// Sigma is the deviation of the logarithm of the lengths.
	Sigma       float64 `json:"sigma"`
	FIFOMinutes float64 `json:"fifo_mean_min"`
	SRTFMinutes float64 `json:"srtf_mean_min"`
	Ratio       float64 `json:"ratio"`
}

// hundredJobs returns 100 jobs of log-normal lengths, three minutes in the mean as in the
// paper. They arrive in the first sixth of the time that they need together.
func hundredJobs(sigma float64, seed uint64) (jobs []finiteJob) {
	const count = 100
	const mean = 3 * time.Minute
	random := rand.New(rand.NewPCG(seed, 5))
	arrives := time.Duration(0)
	for range count {
		length := float64(mean) * math.Exp(sigma*random.NormFloat64()-sigma*sigma/2)
		jobs = append(jobs, finiteJob{arrives: arrives, length: time.Duration(length), batch: 200 * ms})
		arrives += time.Duration(random.ExpFloat64() * float64(mean) / 6)
	}
	return jobs
}

// CompareJobs returns the means over several seeds.
func CompareJobs(sigma float64, seeds int) (JobsReport, error) {
	r := JobsReport{Sigma: sigma}
	for seed := range seeds {
		jobs := hundredJobs(sigma, uint64(seed+1))
		for policy, sum := range map[string]*float64{lane.FIFO: &r.FIFOMinutes, lane.SRTF: &r.SRTFMinutes} {
			ended, _, err := runJobs(policy, jobs, 0, math.MaxInt64, uint64(seed+1))
			if err != nil {
				return r, err
			}
			for i := range jobs {
				*sum += (ended[i] - jobs[i].arrives).Minutes() / float64(len(jobs)*seeds)
			}
		}
	}
	r.Ratio = r.FIFOMinutes / r.SRTFMinutes
	return r, nil
}

// FairSpread runs three equal jobs that arrive 15 s apart (section 5.1.2). It returns the max
// that one was served while all three were there, divided by the min.
func FairSpread(seed uint64) (float64, error) {
	const apart = 15 * time.Second
	var jobs []finiteJob
	for i := range 3 {
		jobs = append(jobs, finiteJob{arrives: time.Duration(i) * apart, length: time.Hour, batch: 200 * ms})
	}
	_, served, err := runJobs(lane.FAIR, jobs, 2*apart, 4*apart, seed)
	if err != nil {
		return 0, err
	}
	return float64(max(served[0], served[1], served[2])) / float64(min(served[0], served[1], served[2])), nil
}
