package observe

import (
	"math"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/penstock/penstock/control/cputime"
)

// foreignEvery is the time that Foreign.Percent is of. A measurement reads /proc of each
// process.
const foreignEvery = 10 * time.Second

// Foreign measures how much of the CPUs other programs use.
type Foreign struct{ percent atomic.Uint64 }

// Percent is the last measurement, rounded to hundredths.
func (f *Foreign) Percent() float64 { return math.Float64frombits(f.percent.Load()) }

// Watch measures until done is closed.
func (f *Foreign) Watch(done <-chan struct{}, log zerolog.Logger) {
	times, err := cputime.NewForeign()
	if err != nil {
		log.Warn().Err(err).Msg("cannot measure the CPU time of other programs")
		return
	}
	tick := time.NewTicker(foreignEvery)
	defer tick.Stop()
	for {
		select {
		case <-done:
			return
		case <-tick.C:
		}
		if part, err := times.Part(); err == nil {
			f.percent.Store(math.Float64bits(math.Round(1e4*part) / 100))
		}
	}
}
