package bench

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/penstock/penstock/client"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/internal/testbed"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/models/zoo"
)

// Printf reports progress.
func (o *Setup) Printf(format string, args ...any) {
	if o.Progress != nil {
		o.Progress(fmt.Sprintf(format, args...))
	}
}

// Card finds a model's card in Models, otherwise among the shipped ones.
func (o *Setup) Card(name string) (*models.Card, error) {
	r := zoo.Registry{}
	if o.Models != "" {
		r.Dirs = []string{o.Models}
	}
	card, err := r.Find(name)
	if err != nil && o.Models == "" {
		return nil, fmt.Errorf("%w; name a folder of cards with --models", err)
	}
	return card, err
}

// Served is one function of a node under measurement.
type Served struct {
	Name, Card  string
	Percent     float64
	Streams     int
	Receivers   int
	Environment map[string]string
}

// configuration returns the part of a node's configuration that has these functions.
func configuration(functions []Served, busyPoll time.Duration) string {
	var text strings.Builder
	fmt.Fprintf(&text, "busy_poll: %v\nfunctions:\n", busyPoll)
	for _, f := range functions {
		entry := map[string]any{"name": f.Name, "model": f.Card, "port": 0, "share_percent": f.Percent, "slo": "10s"}
		if f.Streams > 0 {
			entry["in_flight"] = f.Streams
		}
		if f.Receivers > 0 {
			entry["receivers"] = f.Receivers
		}
		if len(f.Environment) > 0 {
			entry["environment"] = f.Environment
		}
		line, err := json.Marshal(entry)
		if err != nil {
			panic(err) // it has only texts and numbers
		}
		fmt.Fprintf(&text, "  - %s\n", line)
	}
	return text.String()
}

// drain drains the node, and lets this process run on all CPUs again.
func drain(b *testbed.Harness) error {
	defer b.Kill()
	return b.Stop()
}

// servingProcess returns the process that serves for a function's first instance, that instance,
// and the function's status.
func servingProcess(b *testbed.Harness, name string) (p control.ProcessStatus, in control.InstanceStatus, f control.FunctionStatus, err error) {
	f, err = b.Function(name)
	if err != nil {
		return p, in, f, err
	}
	if len(f.Instances) == 0 {
		return p, in, f, fmt.Errorf("function %s has no instance", name)
	}
	in = f.Instances[0]
	p, _ = in.Serving()
	return p, in, f, nil
}

// Answers counts how requests ended.
type Answers struct {
	OK         uint64 `json:"ok"`
	Late       uint64 `json:"late"`
	Incomplete uint64 `json:"incomplete"`
	Busy       uint64 `json:"busy"`
	Refused    uint64 `json:"refused"`
	Failed     uint64 `json:"failed"`
	// Unanswered counts requests that ended without an answer. Unsent counts those
	// that were never sent, because too many waited for credit.
	Unanswered uint64 `json:"unanswered"`
	Unsent     uint64 `json:"unsent"`
}

func (n *Answers) Add(m Answers) {
	n.OK += m.OK
	n.Late += m.Late
	n.Incomplete += m.Incomplete
	n.Busy += m.Busy
	n.Refused += m.Refused
	n.Failed += m.Failed
	n.Unanswered += m.Unanswered
	n.Unsent += m.Unsent
}

// Count counts them.
func Count(all []Answered) (n Answers) {
	for _, a := range all {
		switch {
		case a.Unsent:
			n.Unsent++
		case a.Status == client.StatusUnanswered:
			n.Unanswered++
		case a.Status == client.StatusOK:
			n.OK++
		case a.Status == client.StatusLate:
			n.Late++
		case a.Status == client.StatusIncomplete:
			n.Incomplete++
		case a.Status == client.StatusBusy:
			n.Busy++
		case a.Status == client.StatusRefused:
			n.Refused++
		case a.Status == client.StatusFailed:
			n.Failed++
		}
	}
	return n
}
