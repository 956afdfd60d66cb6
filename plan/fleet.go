package plan

import (
	"errors"
	"fmt"
	"io"
	"strconv"
)

// Unlimited is the count in a fleet file for GPUs of which there are as many as
// needed.
const Unlimited = "unlimited"

// ReadFleet reads a fleet from CSV. The header has the columns gpu (a table's
// name) and count (a whole number above 0, or "unlimited"). There is one row per
// model of GPU, in order of preference. file is the file's name for errors,
// which are all *FileError.
func ReadFleet(r io.Reader, file string) ([]Stock, error) {
	t, err := readTable(r, file, []string{"gpu", "count"}, 2)
	if err != nil {
		return nil, err
	}
	var fleet []Stock
	seen := map[string]int{}
	for t.next() {
		g, err := Lookup(t.text("gpu"))
		if err != nil {
			return nil, t.fail("gpu", "%w", err)
		}
		if line := seen[g.Name]; line > 0 {
			return nil, t.fail("gpu", "GPU %q is already on line %d: want one row per model", g.Name, line)
		}
		seen[g.Name] = t.line
		count := -1
		if text := t.text("count"); text != Unlimited {
			if count, err = strconv.Atoi(text); err != nil || count < 1 {
				return nil, t.fail("count", "count %q: want a whole number above 0, or %q", text, Unlimited)
			}
		}
		fleet = append(fleet, Stock{GPU: g, Count: count})
	}
	if t.err != nil {
		return nil, t.err
	}
	if len(fleet) == 0 {
		return nil, &FileError{File: file, Err: errors.New("no GPUs: want a row for each model under the header")}
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
