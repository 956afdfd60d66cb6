package decode

import (
	"cmp"
	"encoding/binary"
	"math"

	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/wire"
)

// embedding divides a vector by its length. A vector of zeros stays as it is.
type embedding struct {
	declared []declared
}

func newEmbedding(card *models.Card) *embedding { return &embedding{declared: declaredOutputs(card)} }

func (d *embedding) MaxBytes() int { return d.declared[0].bytes }

func (d *embedding) Append(dst []byte, outputs [][]byte) ([]byte, uint8, error) {
	if err := checkSizes(d.declared, outputs); err != nil {
		return dst, 0, err
	}
	if !finite(outputs[0]) {
		return dst, 0, d.declared[0].notFinite
	}
	n := len(outputs[0]) / 4
	sum := 0.0
	for i := range n {
		sum += float64(element(outputs[0], i)) * float64(element(outputs[0], i))
	}
	length := cmp.Or(math.Sqrt(sum), 1)
	for i := range n {
		dst = binary.LittleEndian.AppendUint32(dst, math.Float32bits(float32(float64(element(outputs[0], i))/length)))
	}
	return dst, uint8(wire.KindEmbedding), nil
}
