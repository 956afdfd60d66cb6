package plan

import (
	"fmt"
	"io"
	"strconv"

	"github.com/penstock/penstock/models/document"
)

// Unlimited is the count in a fleet file for GPUs of which there are as many as
// needed.
const Unlimited = "unlimited"

// ReadFleet reads a fleet from CSV. The header has the columns gpu (a table's
// name) and count (a whole number above 0, or "unlimited"). There is one row per
// model of GPU, in order of preference. file is the file's name for errors,
// which are all *document.Problem.
func ReadFleet(r io.Reader, file string) ([]Stock, error) {
	t, err := document.OpenTable(file, r, []string{"gpu", "count"}, 2)
	if err != nil {
		return nil, err
	}
	var fleet []Stock
	seen := map[string]int{}
	for t.Next() {
		g, err := Lookup(t.Text("gpu"))
		if err != nil {
			return nil, t.Fail("gpu", "%v", err)
		}
		if line := seen[g.Name]; line > 0 {
			return nil, t.Fail("gpu", "GPU %q is already on line %d: want one row per model", g.Name, line)
		}
		seen[g.Name] = t.Line()
		count := -1
		if text := t.Text("count"); text != Unlimited {
			if count, err = strconv.Atoi(text); err != nil || count < 1 {
				return nil, t.Fail("count", "count %q: want a whole number above 0, or %q", text, Unlimited)
			}
		}
		fleet = append(fleet, Stock{GPU: g, Count: count})
	}
	if err := t.Err(); err != nil {
		return nil, err
	}
	if len(fleet) == 0 {
		return nil, &document.Problem{File: file, Text: "no GPUs: want a row for each model under the header"}
	}
	return fleet, nil
}

// String formats a stock for messages.
func (s Stock) String() string {
	if s.Count < 0 {
		return Unlimited + " " + s.GPU.Name
	}
	return fmt.Sprintf("%d × %s", s.Count, s.GPU.Name)
}
