package stream

import (
	"fmt"
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
	Elapsed time.Duration
	Frames  uint64
	// PerSecond is the rate of the last frames.
	PerSecond float64
	Functions []FunctionSnapshot
}

// FunctionSnapshot is the part of a function.
type FunctionSnapshot struct {
	Name string
	// Answers are counted by their status.
	Answers map[string]uint64
	Skipped uint64
	// PerSecond and Age are those of the last answers, of any status. Age is the median.
	PerSecond float64
	Age       time.Duration
	// AgeP50 and AgeP99 are over all ok answers.
	AgeP50, AgeP99 time.Duration
	// Err is that of the last answer.
	Err error
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
		out := FunctionSnapshot{Name: name, Answers: map[string]uint64{}, Skipped: f.skipped, Err: f.last}
		for status, n := range f.statuses {
			out.Answers[status] = n
		}
		out.AgeP50 = time.Duration(f.ages.ValueAtPercentile(50)) * time.Microsecond
		out.AgeP99 = time.Duration(f.ages.ValueAtPercentile(99)) * time.Microsecond
		out.PerSecond = rate(len(f.recent), func(i int) time.Time { return f.recent[i].at }, now)
		var ages []time.Duration
		for _, a := range f.recent {
			if now.Sub(a.at) <= recentTime {
				ages = append(ages, a.age)
			}
		}
		if len(ages) > 0 {
			slices.Sort(ages)
			out.Age = ages[len(ages)/2]
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
		if f.Age > 0 {
			fmt.Fprintf(&b, ", age %.0f ms", millis(f.Age))
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
		statuses := make([]string, 0, len(f.Answers))
		for status := range f.Answers {
			statuses = append(statuses, status)
		}
		slices.Sort(statuses)
		for _, status := range statuses {
			fmt.Fprintf(&b, ", %d %s", f.Answers[status], status)
		}
		fmt.Fprintf(&b, ", %d skipped", f.Skipped)
		if f.AgeP99 > 0 {
			fmt.Fprintf(&b, ", age %.1f ms (median), %.1f ms (p99)", millis(f.AgeP50), millis(f.AgeP99))
		}
		b.WriteString("\n")
	}
	return b.String()
}
