package libml

import (
	"fmt"
	"time"
)

// sharedWeights is Environment.Weights: the node's holder of weights is asked, and its
// memory mapped.
func (p *process) sharedWeights(file string) (Weights, error) {
	if p.memory == nil {
		return Weights{}, fmt.Errorf("%w: the device is not open yet", ErrNoWeights)
	}
	began := time.Now()
	at, loaded, err := p.weights.Map(file)
	if err != nil {
		return Weights{}, fmt.Errorf("%w: %w", ErrNoWeights, err)
	}
	p.log.Debug().Str("file", file).Int64("bytes", loaded.Bytes).Dur("took", time.Since(began)).Msg("weights are mapped")
	return Weights{Address: uintptr(at), Bytes: int(loaded.Bytes), CRC32C: loaded.CRC}, nil
}
