package decode

import (
	"encoding/binary"
	"math"

	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/wire"
)

// cellMap decodes a value per cell: of its channels the likeliest, or the number itself.
type cellMap struct{ *models.Map }

func (d *cellMap) decode(dst []byte, outputs [][]byte) ([]byte, error) {
	if err := allFinite(outputs); err != nil {
		return nil, err
	}
	output, cells := outputs[0], d.Rows*d.Columns
	switch d.Cells {
	case "u8":
		dst = wire.AppendMapHead(dst, wire.MapU8, d.Rows, d.Columns)
		for i := range cells {
			dst = append(dst, byte(math.RoundToEven(float64(clip(element(output, i)))*math.MaxUint8)))
		}
		return dst, nil
	case "f16":
		dst = wire.AppendMapHead(dst, wire.MapF16, d.Rows, d.Columns)
		for i := range cells {
			dst = binary.LittleEndian.AppendUint16(dst, wire.FloatToHalf(element(output, i)))
		}
		return dst, nil
	}
	dst = wire.AppendMapHead(dst, wire.MapClasses, d.Rows, d.Columns)
	run, length := d.classOf(output, 0), 1
	for i := 1; i < cells; i++ {
		if class := d.classOf(output, i); class != run {
			dst = wire.AppendRun(dst, run, length)
			run, length = class, 0
		}
		length++
	}
	return wire.AppendRun(dst, run, length), nil
}

// classOf returns the class of a cell. An output of one channel has the class itself.
func (d *cellMap) classOf(output []byte, cell int) uint16 {
	if d.Channels == 1 {
		return uint16(max(0, min(math.MaxUint16, element(output, cell))))
	}
	cells := d.Rows * d.Columns
	best, top := 0, element(output, cell)
	for c := 1; c < d.Channels; c++ {
		if v := element(output, c*cells+cell); v > top {
			best, top = c, v
		}
	}
	return uint16(best)
}
