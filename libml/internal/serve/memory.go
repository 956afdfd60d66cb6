package serve

import (
	"encoding/json"
	"fmt"
	"os"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/libml/cpu"
	"github.com/penstock/penstock/libml/decode"
	"github.com/penstock/penstock/libml/device"
	"github.com/penstock/penstock/libml/framework"
	"github.com/penstock/penstock/libml/gpu"
	"github.com/penstock/penstock/libml/internal/loop"
	"github.com/penstock/penstock/libml/internal/tensors"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/shm"
)

// memory is what a process maps: packets, requests, rings and tensors. It contains the device that
// works on them.
type memory struct {
	consumer    *shm.Consumer
	slots       uint32             // maximum requests in flight
	regions     []*shm.Region      // the tensors, then the slabs
	tensors     []*tensors.Tensors // by the device's slot
	private     tensors.Scratch    // nil except during the warm-up on a CPU
	device      device.Device
	prioritized device.Partitioned // device, if its batches have levels; else nil
	inFlight    int                // maximum number of batches in flight
	decoders    []*decode.Decoder
}

// opener opens a process's device for its card's input. This is the first touch
// of a GPU. The options are for a GPU.
type opener func(start control.Start, in models.Input, o gpu.Options) (device.Device, error)

// openDevice opens the CPU, or the GPU that the process was started on.
func openDevice(start control.Start, in models.Input, o gpu.Options) (device.Device, error) {
	if start.Device == "" || start.Device == framework.DeviceCPU {
		d, err := cpu.New(in, nil)
		if err != nil {
			return nil, err // a nil interface, not a Device with a nil pointer
		}
		return d, nil
	}
	o.Device = start.Device
	d, err := gpu.New(in, o)
	if err != nil {
		return nil, err
	}
	return d, nil
}

// busyFileCount is the number of files of the busy word.
const busyFileCount = 2

// busyFiles returns the files of the busy word, which come last. It returns none on a CPU.
func busyFiles(attached control.Attached, files []*os.File) []*os.File {
	if !attached.Busy {
		return nil
	}
	return files[len(files)-busyFileCount:]
}

// mapMemory opens the device for the calling thread and maps the memory that the
// process uses.
func (p *process) mapMemory(attached control.Attached, files []*os.File) (_ *memory, err error) {
	const fixed = 4 // request table, ring, replies, tensors
	want := fixed + len(attached.SlabBytes)
	if attached.Turn != nil {
		want++
	}
	if attached.Busy {
		want += busyFileCount
	}
	if len(files) != want {
		return nil, fmt.Errorf("attach to manager: got %d file descriptors, want %d", len(files), want)
	}
	var g shm.Geometry
	if err := json.Unmarshal(attached.Geometry, &g); err != nil {
		return nil, fmt.Errorf("read geometry from manager: %w", err)
	}
	m := &memory{slots: g.Slots}
	defer func() {
		if err != nil && !loop.IsLost(err) {
			m.close()
		}
	}()
	if m.consumer, err = shm.NewConsumer(p.start.Generation, g, files[0], files[1], files[2]); err != nil {
		return nil, err
	}
	buffers, err := shm.Map(files[3], int(attached.TensorBytes), true)
	if err != nil {
		return nil, fmt.Errorf("map tensors: %w", err)
	}
	m.regions = append(m.regions, buffers)
	limit := p.maxInFlight(attached)
	if m.device, err = p.open(p.start, p.card.Input, gpu.Options{Copy: attached.Copy, InFlight: limit, LargestPicture: attached.LargestPicture}); err != nil {
		return nil, err
	}
	if err := m.device.Bind(); err != nil {
		return nil, err
	}
	m.inFlight = m.device.InFlight()
	if limit > 0 {
		m.inFlight = min(m.inFlight, limit)
	}
	for i, size := range attached.SlabBytes {
		slab, err := shm.MapSparse(files[fixed+i], int(size))
		if err != nil {
			return nil, fmt.Errorf("map slab %d: %w", i, err)
		}
		m.regions = append(m.regions, slab)
		if err := m.device.AddSlab(slab.Bytes()); err != nil {
			return nil, err
		}
	}
	if m.decoders, err = loop.NewDecoders(p.card, p.threads()); err != nil {
		return nil, err
	}
	sizes := tensors.MaxSizes(p.card)
	sizes.Selections = m.decoders[0].Selections()
	slots, err := m.device.Tensors(buffers.Bytes(), sizes)
	if err != nil {
		return nil, fmt.Errorf("map tensors of model %s: manager sent %d bytes: %w", p.card.Name, attached.TensorBytes, err)
	}
	for _, t := range slots {
		m.tensors = append(m.tensors, tensors.WithStates(p.card, t))
	}
	return m, nil
}

// maxInFlight is how many batches the process may have in flight; 0 if only the device limits it.
func (p *process) maxInFlight(attached control.Attached) int {
	if p.worker != nil {
		return 1 // a member has one turn at a time
	}
	return attached.Streams
}

func (m *memory) close() {
	if m.consumer != nil {
		m.consumer.Close()
	}
	if m.device != nil {
		m.device.Bind() // the framework may have left another context current
		m.device.Close()
	}
	for _, r := range m.regions {
		r.Close()
	}
	if m.private != nil {
		m.private.Free()
	}
}
