package serve

import (
	"fmt"
	"slices"

	"github.com/penstock/penstock/models"
)

// blank is the byte that libml writes all over the outputs before a warm-up run on a CPU.
// A float of such bytes is a NaN whose payload no computation with numbers produces.
const blank = 0xff

// wipe fills outputs with blank.
func wipe(outputs [][]byte) {
	for _, out := range outputs {
		for i := range out {
			out[i] = blank
		}
	}
}

// checkWritten returns an error if a value of the card's outputs is still blank: a framework
// that does not write it would return another request's result. Integers have no value that no model
// answers, so these are not checked.
func checkWritten(card *models.Card, outputs [][]byte) error {
	for o, t := range card.OutputTensors() {
		out, dtype, left := outputs[o], t.Type, 0
		if !dtype.IsFloat() {
			continue
		}
		for value := range slices.Chunk(out, dtype.Bytes()) {
			if !slices.ContainsFunc(value, func(b byte) bool { return b != blank }) {
				left++
			}
		}
		if left > 0 {
			return fmt.Errorf("%d of %d values of output %s were not written; write all outputs of a batch into the memory that configure_batch received",
				left, len(out)/dtype.Bytes(), t.Name)
		}
	}
	return nil
}
