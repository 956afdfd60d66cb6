package cgroup

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestQuotaPeriod(t *testing.T) {
	const ms, us = time.Millisecond, time.Microsecond
	for _, c := range []struct {
		percent float64
		cpus    int
		want    Quota
	}{
		{100, 1, Quota{}},
		{100, 8, Quota{}},
		{50, 1, Quota{1 * ms, 2 * ms}},
		{30, 1, Quota{1 * ms, 3334 * us}},
		{25, 4, Quota{1 * ms, 1 * ms}},
		{50, 4, Quota{2 * ms, 1 * ms}},
		{75, 2, Quota{1500 * us, 1 * ms}},
		{10, 1, Quota{1 * ms, 10 * ms}},
		{1, 1, Quota{1 * ms, 100 * ms}},
		{0.01, 1, Quota{1 * ms, 1000 * ms}}, // 0.1 ms would be too little for the kernel
		{0, 1, Quota{1 * ms, 1000 * ms}},
	} {
		if got := QuotaFor(c.percent, c.cpus); got != c.want {
			t.Errorf("%v %% of %d: %v in %v, want %v in %v", c.percent, c.cpus, got.Runtime, got.Period, c.want.Runtime, c.want.Period)
		}
	}
}

func TestQuotaFor(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		percent := rapid.Float64Range(0, 99.99).Draw(t, "percent")
		cpus := rapid.IntRange(1, 256).Draw(t, "cpus")
		q := QuotaFor(percent, cpus)
		if q.Runtime < minQuota || q.Period < minPeriod || q.Period > maxPeriod {
			t.Fatalf("%v in %v is beyond the kernel's bounds", q.Runtime, q.Period)
		}
		if q.Runtime%time.Microsecond != 0 || q.Period%time.Microsecond != 0 {
			t.Fatalf("%v in %v are no whole microseconds", q.Runtime, q.Period)
		}
		share := percent / 100 * float64(cpus)
		got := float64(q.Runtime) / float64(q.Period)
		if share >= 0.001 && (got < share*0.999 || got > share*1.001) {
			t.Fatalf("%v CPUs, want %v", got, share)
		}
		if q.Period > minPeriod && q.Runtime > minQuota+time.Microsecond {
			t.Fatalf("%v in %v could be shorter", q.Runtime, q.Period)
		}
	})
}
