package manager

import (
	"math"
	"time"

	"github.com/penstock/penstock/control/cputime"
)

// foreignEvery is the time that Status.ForeignCPUPercent is of. A measurement reads /proc of each
// process.
const foreignEvery = 10 * time.Second

// watchForeign measures how much of the CPUs other programs use, until the manager ends.
func (m *Manager) watchForeign() {
	f, err := cputime.NewForeign()
	if err != nil {
		m.log.Warn().Err(err).Msg("cannot measure the CPU time of other programs")
		return
	}
	tick := time.NewTicker(foreignEvery)
	defer tick.Stop()
	for {
		select {
		case <-m.done:
			return
		case <-tick.C:
		}
		if part, err := f.Part(); err == nil {
			m.foreign.Store(math.Float64bits(round(100 * part)))
		}
	}
}
