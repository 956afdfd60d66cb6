package gpu

import (
	"encoding/binary"
	"slices"

	"github.com/penstock/penstock/cuda"
	"github.com/penstock/penstock/libml/device"
)

// The parameter of the kernel collect, as in gather.cu.
const (
	collectTables     = 48
	collectSelections = 16
)

type collectTable struct {
	From, To                           uint64
	Columns, Row, Column, Image, ToRow uint32
	_                                  uint32
}

type collectSelection struct {
	Rows, First, End uint32
	Threshold        float32
}

type collectParameter struct {
	Tables     [collectTables]collectTable
	Selections [collectSelections]collectSelection
	Count      uint32
	Images     uint32 // set by each launch
}

var collectBytes = binary.Size(collectParameter{})

// collectBlocks is the maximum number of blocks of a launch. The kernel reads device memory and needs all multiprocessors.
const collectBlocks = 512

// collector fetches only those rows of outputs that are read. A nil collector leaves all to the other ways.
type collector struct {
	module     *module
	kernel     cuda.Function
	selections []device.Selection
	warps      int    // of an image: 32 rows each
	bitmaps    []byte // pinned, of each batch in flight
}

// newCollector loads the kernel. It returns nil if there is no selection, or there are more than the kernel takes. The
// caller closes it, also after an error.
func newCollector(d *Device, selections []device.Selection) (c *collector, err error) {
	c, tables := &collector{selections: selections}, 0
	for _, s := range selections {
		tables += 1 + len(s.Read)
		c.warps += warpsOf(s)
	}
	if len(selections) == 0 || len(selections) > collectSelections || tables > collectTables {
		return nil, nil
	}
	if c.module, err = loadModule(d.context, "collect"); err != nil {
		return c, err
	}
	if c.kernel, err = c.module.Function("collect"); err != nil {
		return c, err
	}
	c.bitmaps, err = d.context.AllocateHost(d.inFlight * d.images * c.warps * 4)
	return c, err
}

// warpsOf is the number of words in the bitmap of an image.
func warpsOf(s device.Selection) int { return (s.Rows + 31) / 32 }

// collects reports whether only rows of an output are fetched.
func (c *collector) collects(output int) bool {
	return c != nil && slices.ContainsFunc(c.selections, func(s device.Selection) bool {
		return slices.ContainsFunc(s.Read, func(t device.Table) bool { return t.Output == output })
	})
}

// prepare gives the n-th batch in flight its bitmaps and returns the arguments of its launches.
func (c *collector) prepare(d *Device, n int, t *device.Tensors) *cuda.Args {
	if c == nil {
		return nil
	}
	t.Selected = make([][]byte, len(t.Outputs))
	p, places := collectParameter{}, make([]collectTable, len(t.Outputs))
	for o, output := range t.Outputs {
		places[o] = collectTable{From: uint64(at(output)), To: uint64(cuda.At(t.Results[o])), Image: uint32(output.Len() / d.images / 4)}
	}
	rest := c.bitmaps[n*d.images*c.warps*4:]
	for _, s := range c.selections {
		bytes := d.images * warpsOf(s) * 4
		t.Selected[s.Scores.Output], rest = rest[:bytes:bytes], rest[bytes:]
		p.add(s, places, uint64(cuda.At(t.Selected[s.Scores.Output])))
	}
	args := cuda.NewArgs(collectBytes)
	if _, err := binary.Encode(args.Bytes(0), binary.LittleEndian, &p); err != nil {
		panic(err) // the types have fixed sizes
	}
	return args
}

// add adds a selection. places have each output's memory and the elements of an image.
func (p *collectParameter) add(s device.Selection, places []collectTable, bitmap uint64) {
	first := uint32(0)
	if p.Count > 0 {
		first = p.Selections[p.Count-1].End
	}
	add := func(i uint32, from device.Table) {
		t := places[from.Output]
		t.From, t.To = t.From+4*uint64(from.First), t.To+4*uint64(from.First)
		t.Columns, t.Row, t.Column, t.ToRow = uint32(from.Columns), uint32(from.RowStride), uint32(from.ColumnStride), uint32(from.ResultStride())
		p.Tables[i] = t
	}
	add(first, s.Scores)
	p.Tables[first].To = bitmap
	for i, t := range s.Read {
		add(first+1+uint32(i), t)
	}
	p.Selections[p.Count] = collectSelection{Rows: uint32(s.Rows), First: first, End: first + 1 + uint32(len(s.Read)), Threshold: s.Threshold}
	p.Count++
}

// launch queues the kernel for the first images of a batch.
func (c *collector) launch(s cuda.Stream, args *cuda.Args, images int) error {
	binary.LittleEndian.PutUint32(args.Bytes(0)[collectBytes-4:], uint32(images))
	grid := uint32(min(collectBlocks, (images*c.warps+warps-1)/warps))
	return c.kernel.Launch([3]uint32{grid, 1, 1}, [3]uint32{warps * 32, 1, 1}, 0, s, args)
}

func (c *collector) close(d *Device, errs *firstError) {
	if c == nil {
		return
	}
	if c.module != nil {
		errs.add(c.module.release())
	}
	if c.bitmaps != nil {
		errs.add(d.context.FreeHost(c.bitmaps))
	}
}
