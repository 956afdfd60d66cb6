package publish

import (
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/penstock/penstock/client"
	"github.com/penstock/penstock/configs"
)

// filter decides which answers a receiver gets. Any goroutine may use it.
type filter struct {
	spec *configs.Publish

	mu   sync.Mutex
	last map[lane]passed // of streams
}

// lane is the way of a stream's frames to one function.
type lane struct{ stream, function string }

// passed is the last answer of a lane that passed.
type passed struct {
	at    time.Time
	found string
}

func newFilter(spec *configs.Publish) *filter { return &filter{spec: spec, last: map[lane]passed{}} }

// pass reports whether the receiver gets an answer. Answers that find something else than the one
// before always pass, so that the receiver's state is right, too, if it gets few answers.
func (f *filter) pass(a *Answer) bool {
	ok := a.Status == client.StatusOK.String()
	switch {
	case len(f.spec.From) > 0 && !slices.Contains(f.spec.From, a.Stream),
		len(f.spec.Functions) > 0 && !slices.Contains(f.spec.Functions, a.Function):
		return false
	case f.spec.Kind == configs.PublishMQTT && !ok:
		return false // a topic has the state of what was found, and this answer does not know it
	case a.Stream == configs.FromHTTP:
		return true
	}

	f.mu.Lock()
	defer f.mu.Unlock()
	key := lane{a.Stream, a.Function}
	last, known := f.last[key]
	found := last.found
	if ok {
		found = signature(a)
	}
	if known && found == last.found && a.Time.Sub(last.at) < f.spec.Every {
		return false
	}
	f.last[key] = passed{a.Time, found}
	return true
}

// signature says what was found: the classes of all boxes, or the most probable class.
func signature(a *Answer) string {
	var classes []string
	for _, item := range a.Found {
		classes = append(classes, strconv.Itoa(int(item.Class)))
		if item.Box == nil {
			break
		}
	}
	slices.Sort(classes)
	return strings.Join(classes, ",")
}
