//go:build dpdk && cgo

package eal

// #include "shim.h"
import "C"

import (
	"fmt"

	rte "github.com/yerden/go-dpdk/eal"
)

// Do stops a running poller, runs f on its lcore, and starts it again. f gets a function that
// polls each of the poller's queues n times in one call into C. A benchmark uses it to handle
// a datagram completely on one core.
func (p *Poller) Do(f func(turns func(n int))) error {
	if err := p.Stop(); err != nil {
		return err
	}
	storeWord(&p.p.stop, 0)
	defer p.Start()
	err := rte.ExecOnLcore(p.lcore, func(*rte.LcoreCtx) {
		f(func(n int) { C.pst_turns(p.p, C.uint32_t(n)) })
	})
	if err != nil {
		return fmt.Errorf("run on lcore %d: %w", p.lcore, err)
	}
	return nil
}
