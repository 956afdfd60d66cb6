package shm

import (
	"fmt"
	"os"
)

// Table is the request table of an IF: what the manager knows of each slot's
// request, and where its fragments lie. IFs map it read-only.
//
// While a slot is free, the goroutine that fills it owns its entries. From its
// publication until its reply was received, or until it was withdrawn, they
// must not change. There is no lock: different goroutines may fill different
// slots.
type Table struct {
	g         Geometry
	region    *Region
	requests  []Request
	fragments []Fragment
}

// NewTable makes a table. /proc/PID/maps shows the name.
func NewTable(name string, g Geometry) (*Table, error) {
	region, err := newFile(name+"-table", magicTable, g, g.tableBytes())
	if err != nil {
		return nil, fmt.Errorf("make request table: %w", err)
	}
	return tableIn(region, g), nil
}

func tableIn(region *Region, g Geometry) *Table {
	mem := region.Bytes()
	return &Table{
		g:         g,
		region:    region,
		requests:  view[Request](mem, atRequests, int(g.Slots)),
		fragments: view[Fragment](mem, g.atFragments(), int(g.Slots)*int(g.MaxFragments)),
	}
}

// Fragments are a slot's MaxFragments descriptors, which the caller writes in place.
func (t *Table) Fragments(slot uint32) []Fragment {
	at, n := int(slot)*int(t.g.MaxFragments), int(t.g.MaxFragments)
	return t.fragments[at : at+n : at+n]
}

// SetRequest writes a slot's entry.
func (t *Table) SetRequest(slot uint32, r Request) { t.requests[slot] = r }

// Request reads a slot's entry.
func (t *Table) Request(slot uint32) Request { return t.requests[slot] }

// File is the read-only descriptor for an IF. The table owns it; it is open
// until Close.
func (t *Table) File() *os.File { return t.region.File() }

// Close unmaps the table. The table and all slices of it must not be used
// afterwards.
func (t *Table) Close() error { return t.region.Close() }
