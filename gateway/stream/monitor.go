package stream

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/penstock/penstock/client"
)

// recentAnswers is how many answers a Monitor's present is made of, at most; recentTime is the
// age of the oldest of them.
const (
	recentAnswers = 256
	recentTime    = 2 * time.Second
)

// The range of the histogram of ages, in microseconds. Longer ages count as the longest.
const (
	minAge    = 1
	maxAge    = int64(time.Hour / time.Microsecond)
	ageDigits = 3
)

// Monitor counts what a stream does. Any goroutine may use it.
type Monitor struct {
	mu        sync.Mutex
	began     time.Time
	frames    uint64
	times     []time.Time // of the last frames
	functions map[string]*functionCounts
	names     []string
}

type functionCounts struct {
	statuses map[string]uint64
	skipped  uint64
	ages     *hdrhistogram.Histogram // of ok answers, microseconds
	recent   []recentAnswer
	last     error
}

type recentAnswer struct {
	at  time.Time
	age time.Duration
}

// NewMonitor counts for these functions.
func NewMonitor(to []string) *Monitor {
	m := &Monitor{began: time.Now(), functions: map[string]*functionCounts{}, names: to}
	for _, name := range to {
		m.functions[name] = &functionCounts{statuses: map[string]uint64{}, ages: hdrhistogram.New(minAge, maxAge, ageDigits)}
	}
	return m
}

// shift appends to the last elements of a list.
func shift[T any](list []T, v T) []T {
	if len(list) == recentAnswers {
		list = slices.Delete(list, 0, 1)
	}
	return append(list, v)
}

func (m *Monitor) frame() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.frames++
	m.times = shift(m.times, time.Now())
}

func (m *Monitor) answer(r Result) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f := m.functions[r.Function]
	f.statuses[r.Status]++
	f.skipped += r.Skipped
	f.last = r.Err
	if r.Status == client.StatusOK.String() {
		_ = f.ages.RecordValue(min(max(r.Age.Microseconds(), minAge), maxAge)) // within its range
	}
	f.recent = shift(f.recent, recentAnswer{time.Now(), r.Age})
}

// Snapshot is what a Monitor has counted.
type Snapshot struct {
	Elapsed time.Duration `json:"-"`
	Frames  uint64        `json:"frames"`
	// PerSecond is the rate of the last frames.
	PerSecond float64          `json:"per_second"`
	Functions []FunctionStatus `json:"functions"`
}

// FunctionStatus is the part of a function.
type FunctionStatus struct {
	Name    string            `json:"name"`
	Answers map[string]uint64 `json:"answers"` // by status
	Skipped uint64            `json:"skipped"`
	// PerSecond and AgeMS are those of the last answers, of any status. AgeMS is the median.
	PerSecond float64 `json:"per_second"`
	AgeMS     float64 `json:"age_ms"`
	// AgeP50MS and AgeP99MS are over all ok answers.
	AgeP50MS float64 `json:"age_p50_ms"`
	AgeP99MS float64 `json:"age_p99_ms"`
	// Err is that of the last answer, Error its text.
	Err   error  `json:"-"`
	Error string `json:"error,omitempty"`
}

// Snapshot returns the counts.
func (m *Monitor) Snapshot() Snapshot {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	s := Snapshot{Elapsed: now.Sub(m.began), Frames: m.frames}
	s.PerSecond = rate(len(m.times), func(i int) time.Time { return m.times[i] }, now)
	for _, name := range m.names {
		f := m.functions[name]
		out := FunctionStatus{
			Name: name, Answers: maps.Clone(f.statuses), Skipped: f.skipped,
			PerSecond: rate(len(f.recent), func(i int) time.Time { return f.recent[i].at }, now),
			AgeP50MS:  float64(f.ages.ValueAtPercentile(50)) / 1000, AgeP99MS: float64(f.ages.ValueAtPercentile(99)) / 1000,
		}
		if out.Err = f.last; f.last != nil {
			out.Error = f.last.Error()
		}
		var ages []time.Duration
		for _, a := range f.recent {
			if now.Sub(a.at) <= recentTime {
				ages = append(ages, a.age)
			}
		}
		if len(ages) > 0 {
			slices.Sort(ages)
			out.AgeMS = millis(ages[len(ages)/2])
		}
		s.Functions = append(s.Functions, out)
	}
	return s
}

// rate is events per second of those within recentTime.
func rate(n int, at func(int) time.Time, now time.Time) float64 {
	first := n
	for first > 0 && now.Sub(at(first-1)) <= recentTime {
		first--
	}
	if n-first < 2 {
		return float64(n-first) / recentTime.Seconds()
	}
	return float64(n-first-1) / max(at(n-1).Sub(at(first)).Seconds(), 1e-3)
}

// String is the present in one line.
func (s Snapshot) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%5.1f s │ %d frames, %.0f/s", s.Elapsed.Seconds(), s.Frames, s.PerSecond)
	for _, f := range s.Functions {
		fmt.Fprintf(&b, " │ %s %.0f/s", f.Name, f.PerSecond)
		if f.AgeMS > 0 {
			fmt.Fprintf(&b, ", age %.0f ms", f.AgeMS)
		}
		if f.Skipped > 0 {
			fmt.Fprintf(&b, ", %d skipped", f.Skipped)
		}
		if f.Err != nil {
			fmt.Fprintf(&b, ", %s", StatusOf(f.Err))
		}
	}
	return b.String()
}

// Summary is one line per function.
func (s Snapshot) Summary() string {
	var b strings.Builder
	for _, f := range s.Functions {
		fmt.Fprintf(&b, "%s: %d frames", f.Name, s.Frames)
		for _, status := range slices.Sorted(maps.Keys(f.Answers)) {
			fmt.Fprintf(&b, ", %d %s", f.Answers[status], status)
		}
		fmt.Fprintf(&b, ", %d skipped", f.Skipped)
		if f.AgeP99MS > 0 {
			fmt.Fprintf(&b, ", age %.1f ms (median), %.1f ms (p99)", f.AgeP50MS, f.AgeP99MS)
		}
		b.WriteString("\n")
	}
	return b.String()
}
