package decode

import (
	"cmp"
	"encoding/binary"
	"math"

	"github.com/penstock/penstock/models"
)

// embedding divides a vector by its length. A vector of zeros stays as it is.
type embedding struct{ *models.Embedding }

func (d *embedding) decode(dst []byte, outputs [][]byte) ([]byte, error) {
	if err := allFinite(outputs); err != nil {
		return nil, err
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
	return dst, nil
}
