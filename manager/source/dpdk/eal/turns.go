//go:build dpdk

package eal

// #include "shim.h"
import "C"

import (
	"fmt"

	rte "github.com/yerden/go-dpdk/eal"
)

// Turns polls each of the poller's queues n times, on the caller's thread, in one call
// into C. It is for a poller that was not started: a benchmark that does all on one
// core.
func (p *Poller) Turns(n int) { C.pst_turns(p.p, C.uint32_t(n)) }

// OnLcore runs f on a free lcore and waits until it returns. Mbufs that it takes and
// frees go through that lcore's own store.
func OnLcore(f func()) error {
	lcore, err := takeLcore()
	if err != nil {
		return err
	}
	defer giveLcore(lcore)
	if err := rte.ExecOnLcore(lcore, func(*rte.LcoreCtx) { f() }); err != nil {
		return fmt.Errorf("run on lcore %d: %w", lcore, err)
	}
	return nil
}
