package serve

import (
	"os"
	"time"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/libml/framework"
	"github.com/penstock/penstock/libml/gate"
	"github.com/penstock/penstock/shm"
)

// openEntry opens the process's entry in the file of turns, which comes after the slabs. It returns nil if
// the processes of the device take no turns.
func (p *process) openEntry(attached control.Attached, files []*os.File) (*gate.Entry, error) {
	if attached.Turn == nil {
		return nil, nil
	}
	file := files[len(files)-1-len(busyFiles(attached, files))]
	return p.worker.Entry(file, *attached.Turn)
}

// closeEntry closes the entry of a process that ends. A worker keeps its entry.
func (p *process) closeEntry() {
	if p.entry != nil && p.worker == nil {
		p.entry.Close()
	}
}

// takesAllTurns reports whether the process has the whole GPU in its turn. Otherwise batches of other levels may run, and
// streams have the levels.
func (p *process) takesAllTurns() bool { return p.entry != nil && !p.entry.PerLevel() }

// newAccount begins the account of a process that is warmed up.
func (p *process) newAccount() *gate.Account {
	c := gate.Config{
		Level: p.level, Exclusive: p.takesAllTurns(), Objective: p.slo, Terms: p.orders.terms(),
		Times: make([]time.Duration, p.card.MaxBatch()+1), Size: p.sizes.ladder[0],
	}
	for _, w := range p.sizes.warm {
		c.Times[w.size] = w.alone
	}
	switch _, ok := p.framework.(framework.Demotable); {
	case p.takesAllTurns():
		c.Framework = gate.DemotedByTurn{}
	case ok:
		c.Framework = demotable{p}
	}
	if p.worker != nil {
		c.Balance = &p.worker.Balance
	}
	return gate.NewAccount(shm.Now(), c)
}
