package operator

import "time"

// pause limits a controller that reads the whole cluster to a fifth of a CPU while many objects change.
type pause struct{ until time.Time }

const (
	pausePart = 4 // times as long as the last reconcile took
	// maxPause bounds how late a change of the cluster is noticed.
	maxPause = 2 * time.Second
)

// left returns how long the controller waits.
func (p *pause) left(now time.Time) time.Duration { return p.until.Sub(now) }

// after says when a reconcile began and ended.
func (p *pause) after(began, ended time.Time) {
	p.until = ended.Add(min(pausePart*ended.Sub(began), maxPause))
}
