package serve

import (
	"fmt"
	"time"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/libml/framework"
)

// sharedWeights is Environment.Weights. It asks the node's weight server for a file and maps its
// memory.
func (p *process) sharedWeights(file string) (framework.Weights, error) {
	if p.memory == nil {
		return framework.Weights{}, fmt.Errorf("%w: the device is not open yet", framework.ErrNoWeights)
	}
	began := time.Now()
	at, loaded, err := p.weights.Map(file)
	if err != nil {
		return framework.Weights{}, fmt.Errorf("%w: %w", framework.ErrNoWeights, err)
	}
	p.log.Debug("weights mapped", "file", file, "bytes", loaded.Bytes, "took", time.Since(began))
	return framework.Weights{Address: uintptr(at), Bytes: int(loaded.Bytes), CRC32C: loaded.CRC}, nil
}

// prepare is Node.Prepare. The orchestrator lets a process that serves no requests
// prepare the model.
func (p *process) prepare() error {
	p.notices.send(control.Notice{Prepare: true})

	// The orchestrator ends a preparation that takes too long. If this process is drained, it
	// stops waiting.
	drained := time.NewTicker(50 * time.Millisecond)
	defer drained.Stop()
	for {
		select {
		case failed := <-p.orders.prepared:
			if failed != "" {
				return fmt.Errorf("%w: prepare model: %s", framework.ErrNoWeights, failed)
			}
			return nil
		case <-drained.C:
			if p.exit.requested() {
				return fmt.Errorf("%w: prepare model: the process is drained", framework.ErrNoWeights)
			}
		}
	}
}
