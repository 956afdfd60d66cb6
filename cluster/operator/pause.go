package operator

import "time"

// pause keeps a controller that looks at the whole cluster from doing so again and again while much happens. It may use a fifth
// of a CPU.
type pause struct{ until time.Time }

const (
	pausePart = 4 // times as long as the last reconcile took
	// maxPause is less than a silent node, or a function that grows, may notice.
	maxPause = 2 * time.Second
)

// left returns how long the controller waits.
func (p *pause) left(now time.Time) time.Duration { return p.until.Sub(now) }

// after says when a reconcile began and ended.
func (p *pause) after(began, ended time.Time) {
	p.until = ended.Add(min(pausePart*ended.Sub(began), maxPause))
}
