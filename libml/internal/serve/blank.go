package serve

import (
	"fmt"

	"github.com/penstock/penstock/models"
)

// blank is the byte that libml writes all over the outputs before a warm-up run on a CPU.
// As a float32 it is a NaN whose payload no computation with numbers produces.
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
// that does not write it would return another request's result.
func checkWritten(card *models.Card, outputs [][]byte) error {
	for o, out := range outputs {
		left := 0
		for at := 0; at+4 <= len(out); at += 4 {
			if out[at]&out[at+1]&out[at+2]&out[at+3] == blank {
				left++
			}
		}
		if left > 0 {
			return fmt.Errorf("%d of %d values of output %s were not written; write all outputs of a batch into the memory that configure_batch received",
				left, len(out)/4, card.Outputs[o].Name)
		}
	}
	return nil
}
