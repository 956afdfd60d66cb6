package gpu

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"

	"github.com/penstock/penstock/internal/testing/devicetest"
)

// The interpreter runs a kernel of gather.ptx without a GPU. It knows the instructions that nvcc
// emits for gather.cu, and no others:
//
//	parse    1. find a kernel's labels and shared memory, and turn each line into a function
//	launch   2. run the warps of all blocks, one after the other: they share nothing
//	warp     3. run each thread up to the next instruction that joins the threads, then that one
//
// Instructions are described in NVIDIA's PTX ISA 8.3, chapter 9.

// program is a parsed kernel.
type program struct {
	code   []instruction
	shared int // bytes
	slots  map[string]int
}

// instruction is one line. Threads exchange values only at those with join.
type instruction struct {
	text  string
	guard operand // nil if the instruction always runs
	run   func(*thread)
	join  func([]*thread)
}

// thread is one of the 32 of a warp.
type thread struct {
	registers []uint64
	next      int // instruction
	ended     bool
	tid       uint32
	block     *block
}

// block is what the threads of a block share.
type block struct {
	index, blocks uint32
	parameter     []byte
	shared        []byte
	global        []region
}

// region is memory of a launch. Other addresses cannot be accessed.
type region struct {
	at       uint64
	bytes    []byte
	readOnly bool
}

// operand returns an operand's bits.
type operand func(*thread) uint64

const warpThreads = 32

// errAccess is the panic of an instruction that accesses memory outside all regions.
var errAccess = errors.New("access outside the launch's memory")

var (
	sharedLine = regexp.MustCompile(`^\.shared \.align 16 \.b8 (\w+)\[(\d+)\]$`)
	codeLine   = regexp.MustCompile(`^(?:@(!?)(%p\d+) )?([a-z0-9.]+)\s*(.*)$`)
	// argument is a vector, an address or a word.
	argument = regexp.MustCompile(`\{[^}]*\}|\[[^\]]*\]|[^\s,]+`)
)

// parsed returns a kernel of gather.ptx.
var parsed = func() func(string) (*program, error) {
	programs := map[string]*program{}
	return func(name string) (_ *program, err error) {
		if programs[name] == nil {
			programs[name], err = parse(name)
		}
		return programs[name], err
	}
}()

func parse(name string) (*program, error) {
	text, err := kernels(name)
	if err != nil {
		return nil, err
	}
	_, body, _ := strings.Cut(string(text), "\n{\n")
	body, _, _ = strings.Cut(body, entryEnd)

	p := &program{slots: map[string]int{}}
	labels, symbols := map[string]int{}, map[string]int{name + "_param_0": 0}
	var lines []string
	for line := range strings.Lines(body) {
		line = strings.TrimSuffix(strings.TrimSpace(line), ";")
		shared := sharedLine.FindStringSubmatch(line)
		switch {
		case strings.HasSuffix(line, ":"):
			labels[strings.TrimSuffix(line, ":")] = len(lines)
		case shared != nil:
			symbols[shared[1]] = 0
			p.shared, _ = strconv.Atoi(shared[2])
		case strings.HasPrefix(line, ".reg"), strings.HasPrefix(line, ".pragma"):
		default:
			lines = append(lines, line)
		}
	}
	for _, line := range lines {
		in, err := p.parseLine(line, labels, symbols)
		if err != nil {
			return nil, fmt.Errorf("parse %s: %q: %w", name, line, err)
		}
		p.code = append(p.code, in)
	}
	return p, nil
}

func (p *program) parseLine(line string, labels, symbols map[string]int) (in instruction, err error) {
	parts := codeLine.FindStringSubmatch(line)
	if parts == nil {
		return in, errors.New("unknown form")
	}
	in.text = line
	if predicate := parts[2]; predicate != "" {
		slot, wanted := p.slot(predicate), uint64(1)
		if parts[1] == "!" {
			wanted = 0
		}
		in.guard = func(t *thread) uint64 { return flag(t.registers[slot] == wanted) }
	}
	operation, args := parts[3], argument.FindAllString(parts[4], -1)

	switch operation {
	case "bra", "bra.uni":
		to, found := labels[args[0]]
		if !found {
			return in, errors.New("no such label")
		}
		in.run = func(t *thread) { t.next = to }
		return in, nil
	case "ret":
		in.run = func(t *thread) { t.ended = true }
		return in, nil
	case "bar.warp.sync":
		in.join = func([]*thread) {}
		return in, nil
	}
	kind, _, _ := strings.Cut(operation, ".")
	if kind == "ld" || kind == "st" {
		in.run, err = p.memory(operation, args, symbols)
		return in, err
	}
	var sources []operand
	for _, arg := range args[1:] {
		source, err := p.operand(arg, symbols)
		if err != nil {
			return in, err
		}
		sources = append(sources, source)
	}
	to := p.slot(args[0])
	if operation == "shfl.sync.idx.b32" {
		in.join = func(warp []*thread) {
			var values [warpThreads]uint64
			for i, t := range warp {
				values[i] = sources[0](warp[sources[1](t)%warpThreads])
			}
			for i, t := range warp {
				t.registers[to] = values[i]
			}
		}
		return in, nil
	}
	compute, found := operations[operation]
	if !found {
		return in, errors.New("unknown instruction")
	}
	for len(sources) < 4 {
		sources = append(sources, func(*thread) uint64 { return 0 })
	}
	a, b, c, d := sources[0], sources[1], sources[2], sources[3]
	in.run = func(t *thread) { t.registers[to] = compute(a(t), b(t), c(t), d(t)) }
	return in, nil
}

// slot returns a register's index.
func (p *program) slot(register string) int {
	if _, found := p.slots[register]; !found {
		p.slots[register] = len(p.slots)
	}
	return p.slots[register]
}

func (p *program) operand(text string, symbols map[string]int) (operand, error) {
	switch text {
	case "%tid.x":
		return func(t *thread) uint64 { return uint64(t.tid) }, nil
	case "%ctaid.x":
		return func(t *thread) uint64 { return uint64(t.block.index) }, nil
	case "%nctaid.x":
		return func(t *thread) uint64 { return uint64(t.block.blocks) }, nil
	}
	if at, found := symbols[text]; found {
		return func(*thread) uint64 { return uint64(at) }, nil
	}
	if strings.HasPrefix(text, "%") {
		slot := p.slot(text)
		return func(t *thread) uint64 { return t.registers[slot] }, nil
	}
	if strings.HasPrefix(text, "{") { // two halves of a word
		halves := argument.FindAllString(strings.Trim(text, "{}"), -1)
		low, high := p.slot(halves[0]), p.slot(halves[1])
		return func(t *thread) uint64 { return t.registers[low] | t.registers[high]<<16 }, nil
	}
	base := 0
	if digits, isFloat := strings.CutPrefix(text, "0f"); isFloat {
		text, base = digits, 16
	}
	value, err := strconv.ParseInt(text, base, 64)
	if err != nil {
		return nil, err
	}
	return func(*thread) uint64 { return uint64(value) }, nil
}

// memory parses a load or store. The last part of an operation is the type; the part before it may
// be the number of elements.
func (p *program) memory(operation string, args []string, symbols map[string]int) (func(*thread), error) {
	parts := strings.Split(operation, ".")
	bits, err := strconv.Atoi(parts[len(parts)-1][1:])
	if err != nil {
		return nil, err
	}
	size, space := bits/8, parts[1]
	if space == "volatile" {
		space = parts[2]
	}
	data, address := args[0], args[1]
	if parts[0] == "st" {
		data, address = address, data
	}
	base, displacement, _ := strings.Cut(strings.Trim(address, "[]"), "+")
	at, err := p.operand(base, symbols)
	if err != nil {
		return nil, err
	}
	offset := int64(0)
	if displacement != "" {
		if offset, err = strconv.ParseInt(displacement, 10, 64); err != nil {
			return nil, err
		}
	}
	elements := argument.FindAllString(strings.Trim(data, "{}"), -1)

	// An access must be aligned to its size.
	access := func(t *thread, write bool) []byte {
		n := uint64(size * len(elements))
		address := at(t) + uint64(offset)
		if address%n != 0 {
			panic(fmt.Errorf("%w: %#x is not aligned to %d bytes", errAccess, address, n))
		}
		return t.block.memory(space, address, n, write)
	}
	if parts[0] == "ld" {
		var slots []int
		for _, register := range elements {
			slots = append(slots, p.slot(register))
		}
		return func(t *thread) {
			for i, bytes := 0, access(t, false); i < len(slots); i++ {
				var value [8]byte
				copy(value[:], bytes[i*size:][:size])
				t.registers[slots[i]] = binary.LittleEndian.Uint64(value[:])
			}
		}, nil
	}
	var sources []operand
	for _, element := range elements {
		source, err := p.operand(element, symbols)
		if err != nil {
			return nil, err
		}
		sources = append(sources, source)
	}
	return func(t *thread) {
		for i, bytes := 0, access(t, true); i < len(sources); i++ {
			var value [8]byte
			binary.LittleEndian.PutUint64(value[:], sources[i](t))
			copy(bytes[i*size:][:size], value[:])
		}
	}, nil
}

// memory returns n bytes at an address.
func (b *block) memory(space string, at, n uint64, write bool) []byte {
	regions := b.global
	switch space {
	case "param":
		regions = []region{{bytes: b.parameter, readOnly: true}}
	case "shared":
		regions = []region{{bytes: b.shared}}
	}
	for _, r := range regions {
		if offset := at - r.at; at >= r.at && offset+n <= uint64(len(r.bytes)) && !(write && r.readOnly) {
			return r.bytes[offset : offset+n]
		}
	}
	panic(fmt.Errorf("%w: %d bytes at %#x, %s, write %v", errAccess, n, at, space, write))
}

// launch runs the kernel with its one parameter.
func (p *program) launch(blocks int, parameter []byte, global []region) (err error) {
	at := 0
	defer func() {
		switch fault := recover().(type) {
		case nil:
		case error:
			err = fmt.Errorf("run %q: %w", p.code[at].text, fault)
		default:
			panic(fault)
		}
	}()
	for index := range blocks {
		b := &block{index: uint32(index), blocks: uint32(blocks), parameter: parameter, shared: make([]byte, p.shared), global: global}
		for first := 0; first < warps*warpThreads; first += warpThreads {
			if err := p.warp(b, first, &at); err != nil {
				return err
			}
		}
	}
	return nil
}

// warp runs the threads from first on. at is the instruction that runs.
func (p *program) warp(b *block, first int, at *int) error {
	warp := make([]*thread, warpThreads)
	for i := range warp {
		warp[i] = &thread{registers: make([]uint64, len(p.slots)), tid: uint32(first + i), block: b}
	}
	for {
		for _, t := range warp {
			for !t.ended && p.code[t.next].join == nil {
				in := &p.code[t.next]
				*at = t.next
				t.next++
				if in.guard == nil || in.guard(t) != 0 {
					in.run(t)
				}
			}
		}
		for _, t := range warp {
			if t.next != warp[0].next || t.ended != warp[0].ended {
				return fmt.Errorf("threads wait for each other at %q and %q", p.code[warp[0].next].text, p.code[t.next].text)
			}
		}
		if warp[0].ended {
			return nil
		}
		*at = warp[0].next
		p.code[*at].join(warp)
		for _, t := range warp {
			t.next++
		}
	}
}

func flag(b bool) uint64 {
	if b {
		return 1
	}
	return 0
}

func float(bits uint64) float32 { return math.Float32frombits(uint32(bits)) }

func bitsOf(f float32) uint64 { return uint64(math.Float32bits(f)) }

// compute returns the bits of an instruction's result. Registers have no bits beyond their type's.
type compute func(a, b, c, d uint64) uint64

var operations = map[string]compute{
	"mov.b32": first32, "mov.u32": first32, "mov.f32": first32, "mov.b64": first64, "mov.u64": first64,
	"cvta.to.global.u64": first64,
	"cvt.u64.u32":        first32, "cvt.u32.u64": first32,
	"cvt.u32.u16": func(a, _, _, _ uint64) uint64 { return uint64(uint16(a)) },
	"cvt.u16.u32": func(a, _, _, _ uint64) uint64 { return uint64(uint16(a)) },

	"add.s32":      func(a, b, _, _ uint64) uint64 { return uint64(uint32(a + b)) },
	"add.s64":      func(a, b, _, _ uint64) uint64 { return a + b },
	"sub.s32":      func(a, b, _, _ uint64) uint64 { return uint64(uint32(a - b)) },
	"sub.s64":      func(a, b, _, _ uint64) uint64 { return a - b },
	"neg.s32":      func(a, _, _, _ uint64) uint64 { return uint64(uint32(-a)) },
	"mul.lo.s32":   func(a, b, _, _ uint64) uint64 { return uint64(uint32(a * b)) },
	"mul.lo.s64":   func(a, b, _, _ uint64) uint64 { return a * b },
	"mul.wide.u32": func(a, b, _, _ uint64) uint64 { return uint64(uint32(a)) * uint64(uint32(b)) },
	"mul.lo.s16":   func(a, b, _, _ uint64) uint64 { return uint64(uint16(a * b)) },
	"mul.wide.u16": func(a, b, _, _ uint64) uint64 { return uint64(uint16(a)) * uint64(uint16(b)) },
	"sub.s16":      func(a, b, _, _ uint64) uint64 { return uint64(uint16(a - b)) },
	"mad.lo.s32":   func(a, b, c, _ uint64) uint64 { return uint64(uint32(a*b + c)) },
	"div.u32":      func(a, b, _, _ uint64) uint64 { return uint64(uint32(a) / uint32(b)) },
	"min.s32":      func(a, b, _, _ uint64) uint64 { return uint64(uint32(min(int32(a), int32(b)))) },
	"max.s32":      func(a, b, _, _ uint64) uint64 { return uint64(uint32(max(int32(a), int32(b)))) },
	"min.u32":      func(a, b, _, _ uint64) uint64 { return uint64(min(uint32(a), uint32(b))) },
	"max.u32":      func(a, b, _, _ uint64) uint64 { return uint64(max(uint32(a), uint32(b))) },
	"min.s64":      func(a, b, _, _ uint64) uint64 { return uint64(min(int64(a), int64(b))) },
	"max.s64":      func(a, b, _, _ uint64) uint64 { return uint64(max(int64(a), int64(b))) },

	"and.b16":  func(a, b, _, _ uint64) uint64 { return uint64(uint16(a & b)) },
	"and.b32":  func(a, b, _, _ uint64) uint64 { return uint64(uint32(a & b)) },
	"and.b64":  func(a, b, _, _ uint64) uint64 { return a & b },
	"and.pred": func(a, b, _, _ uint64) uint64 { return a & b },
	"or.b16":   func(a, b, _, _ uint64) uint64 { return uint64(uint16(a | b)) },
	"or.b32":   func(a, b, _, _ uint64) uint64 { return uint64(uint32(a | b)) },
	"or.b64":   func(a, b, _, _ uint64) uint64 { return a | b },
	"or.pred":  func(a, b, _, _ uint64) uint64 { return a | b },
	"xor.b32":  func(a, b, _, _ uint64) uint64 { return uint64(uint32(a ^ b)) },
	"not.b32":  func(a, _, _, _ uint64) uint64 { return uint64(^uint32(a)) },
	// Go's shifts by more than the width have PTX's results.
	"shl.b16": func(a, b, _, _ uint64) uint64 { return uint64(uint16(a) << uint32(b)) },
	"shl.b32": func(a, b, _, _ uint64) uint64 { return uint64(uint32(a) << uint32(b)) },
	"shl.b64": func(a, b, _, _ uint64) uint64 { return a << uint32(b) },
	"shr.u16": func(a, b, _, _ uint64) uint64 { return uint64(uint16(a) >> uint32(b)) },
	"shr.u32": func(a, b, _, _ uint64) uint64 { return uint64(uint32(a) >> uint32(b)) },
	"shr.s32": func(a, b, _, _ uint64) uint64 { return uint64(uint32(int32(a) >> uint32(b))) },
	"shr.u64": func(a, b, _, _ uint64) uint64 { return a >> uint32(b) },
	"shf.r.wrap.b32": func(a, b, c, _ uint64) uint64 {
		return uint64(uint32((b<<32 | uint64(uint32(a))) >> (c & 31)))
	},
	"bfi.b64": func(a, b, position, length uint64) uint64 {
		mask := (uint64(1)<<length - 1) << position
		return b&^mask | a<<position&mask
	},
	"prmt.b32": func(a, b, selector, _ uint64) (out uint64) {
		both := b<<32 | uint64(uint32(a))
		for i := range 4 {
			out |= both >> (8 * (selector >> (4 * i) & 7)) & 0xff << (8 * i)
		}
		return out
	},

	"selp.b32":     func(a, b, c, _ uint64) uint64 { return selected(a, b, c) },
	"selp.u32":     func(a, b, c, _ uint64) uint64 { return selected(a, b, c) },
	"selp.f32":     func(a, b, c, _ uint64) uint64 { return selected(a, b, c) },
	"setp.eq.s16":  func(a, b, _, _ uint64) uint64 { return flag(uint16(a) == uint16(b)) },
	"setp.ne.s16":  func(a, b, _, _ uint64) uint64 { return flag(uint16(a) != uint16(b)) },
	"setp.gt.u16":  func(a, b, _, _ uint64) uint64 { return flag(uint16(a) > uint16(b)) },
	"setp.eq.b32":  func(a, b, _, _ uint64) uint64 { return flag(uint32(a) == uint32(b)) },
	"setp.eq.s64":  func(a, b, _, _ uint64) uint64 { return flag(a == b) },
	"setp.eq.s32":  func(a, b, _, _ uint64) uint64 { return flag(uint32(a) == uint32(b)) },
	"setp.ne.s32":  func(a, b, _, _ uint64) uint64 { return flag(uint32(a) != uint32(b)) },
	"setp.lt.u32":  func(a, b, _, _ uint64) uint64 { return flag(uint32(a) < uint32(b)) },
	"setp.le.u32":  func(a, b, _, _ uint64) uint64 { return flag(uint32(a) <= uint32(b)) },
	"setp.gt.u32":  func(a, b, _, _ uint64) uint64 { return flag(uint32(a) > uint32(b)) },
	"setp.ge.u32":  func(a, b, _, _ uint64) uint64 { return flag(uint32(a) >= uint32(b)) },
	"setp.lt.u64":  func(a, b, _, _ uint64) uint64 { return flag(a < b) },
	"setp.le.u64":  func(a, b, _, _ uint64) uint64 { return flag(a <= b) },
	"setp.gt.u64":  func(a, b, _, _ uint64) uint64 { return flag(a > b) },
	"setp.lt.f32":  func(a, b, _, _ uint64) uint64 { return flag(float(a) < float(b)) },
	"setp.gt.f32":  func(a, b, _, _ uint64) uint64 { return flag(float(a) > float(b)) },
	"setp.geu.f32": func(a, b, _, _ uint64) uint64 { return flag(!(float(a) < float(b))) },
	"setp.leu.f32": func(a, b, _, _ uint64) uint64 { return flag(!(float(a) > float(b))) },
	"setp.nan.f32": func(a, b, _, _ uint64) uint64 {
		return flag(float(a) != float(a) || float(b) != float(b))
	},

	"cvt.rn.f32.s64": func(a, _, _, _ uint64) uint64 { return bitsOf(float32(int64(a))) },
	"cvt.rn.f32.u32": func(a, _, _, _ uint64) uint64 { return bitsOf(float32(uint32(a))) },
	"cvt.rn.f32.u16": func(a, _, _, _ uint64) uint64 { return bitsOf(float32(uint16(a))) },
	"cvt.rn.f16.f32": func(a, _, _, _ uint64) uint64 { return uint64(devicetest.NearestHalf(float64(float(a)))) },
	"cvt.f32.f16":    func(a, _, _, _ uint64) uint64 { return bitsOf(float32(devicetest.HalfValue(uint16(a)))) },
	"cvt.rni.sat.u8.f32": func(a, _, _, _ uint64) uint64 {
		if r := math.RoundToEven(float64(float(a))); r > 0 {
			return uint64(min(r, 255))
		}
		return 0 // for NaN, too
	},
	"neg.f32":    func(a, _, _, _ uint64) uint64 { return a ^ 1<<31 },
	"min.f32":    func(a, b, _, _ uint64) uint64 { return bitsOf(min(float(a), float(b))) },
	"sub.f32":    func(a, b, _, _ uint64) uint64 { return bitsOf(float(a) - float(b)) },
	"mul.f32":    func(a, b, _, _ uint64) uint64 { return bitsOf(float(a) * float(b)) },
	"sub.rn.f32": func(a, b, _, _ uint64) uint64 { return bitsOf(float(a) - float(b)) },
	"mul.rn.f32": func(a, b, _, _ uint64) uint64 { return bitsOf(float(a) * float(b)) },
	"div.rn.f32": func(a, b, _, _ uint64) uint64 { return bitsOf(float(a) / float(b)) },
	"fma.rn.f32": func(a, b, c, _ uint64) uint64 { return bitsOf(fma(float(a), float(b), float(c))) },
}

func first32(a, _, _, _ uint64) uint64 { return uint64(uint32(a)) }

func first64(a, _, _, _ uint64) uint64 { return a }

func selected(a, b, condition uint64) uint64 {
	if condition != 0 {
		return uint64(uint32(a))
	}
	return uint64(uint32(b))
}
