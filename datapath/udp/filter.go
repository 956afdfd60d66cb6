package udp

import (
	"fmt"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/penstock/penstock/wire"
)

// filterSteps is the resolution of the part of requests that a filter accepts.
const filterSteps = 128

// A filter sees the UDP header, source port first, then the wire header. Offsets:
const (
	udpHeaderBytes = 8
	magicAt        = udpHeaderBytes
	typeAt         = udpHeaderBytes + 2
	flagsAt        = udpHeaderBytes + 3
	idAt           = udpHeaderBytes + 4
	totalAt        = udpHeaderBytes + 12
	indexAt        = udpHeaderBytes + 16
)

// answeredBytes is the size of the smallest request that is answered when it is shed. To read
// a message and send an answer takes a receiver a few µs, as long as copying so many bytes.
// To answer smaller requests would cost as much as receiving them. It must be a multiple of
// 256, below 64 KiB.
const answeredBytes = 16 << 10

// golden is 2^32 divided by the golden ratio. Multiples of it, modulo 2^32, are spread
// evenly, however many there are (Knuth, The Art of Computer Programming, volume 3, 6.4).
const golden = 2654435769

// portSpread separates clients whose ids are the same; any odd number would do.
const portSpread = 40503

// requestHash is the value by which a filter decides. Consecutive ids are spread evenly, and
// each client's ids begin at another value.
func requestHash(port uint16, id uint32) uint32 { return (uint32(port)*portSpread + id) * golden }

// filterProgram accepts the datagrams whose requestHash is below threshold, and everything
// that does not begin like a fragment of a request. It cuts fragment 0 of the other requests
// to its header and extension, so that the request can be answered. It drops the rest.
func filterProgram(threshold uint32) []bpf.Instruction {
	const id = 0 // the scratch word in which the id is assembled from little-endian bytes
	byteOfID := func(i uint32) []bpf.Instruction {
		return []bpf.Instruction{
			bpf.LoadScratch{Dst: bpf.RegX, N: id},
			bpf.LoadAbsolute{Off: idAt + i, Size: 1},
			bpf.ALUOpConstant{Op: bpf.ALUOpShiftLeft, Val: 8 * i},
			bpf.ALUOpX{Op: bpf.ALUOpOr},
			bpf.StoreScratch{Src: bpf.RegA, N: id},
		}
	}
	program := []bpf.Instruction{
		bpf.LoadConstant{Dst: bpf.RegA, Val: 0},
		bpf.StoreScratch{Src: bpf.RegA, N: id},
	}
	for i := range uint32(4) {
		program = append(program, byteOfID(i)...)
	}
	program = append(program,
		bpf.LoadScratch{Dst: bpf.RegX, N: id},
		bpf.LoadAbsolute{Off: 0, Size: 2},
		bpf.ALUOpConstant{Op: bpf.ALUOpMul, Val: portSpread},
		bpf.ALUOpX{Op: bpf.ALUOpAdd},
		bpf.ALUOpConstant{Op: bpf.ALUOpMul, Val: golden},
		bpf.JumpIf{Cond: bpf.JumpLessThan, Val: threshold, SkipTrue: 10},
		bpf.LoadAbsolute{Off: indexAt, Size: 2},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: 0, SkipTrue: 7},
		bpf.LoadAbsolute{Off: totalAt + 2, Size: 2}, // the high half: it is little-endian
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: 0, SkipTrue: 2},
		bpf.LoadAbsolute{Off: totalAt + 1, Size: 1},
		bpf.JumpIf{Cond: bpf.JumpLessThan, Val: answeredBytes >> 8, SkipTrue: 3},
		bpf.LoadAbsolute{Off: flagsAt, Size: 1},
		bpf.JumpIf{Cond: bpf.JumpBitsSet, Val: uint32(wire.FlagExtension), SkipTrue: 3},
		bpf.RetConstant{Val: udpHeaderBytes + wire.HeaderSize},
		bpf.RetConstant{Val: 0},
		bpf.RetConstant{Val: acceptAll},
		bpf.RetConstant{Val: udpHeaderBytes + wire.HeaderSize + wire.BlockSize},
	)
	const acceptsAll = 2 // instructions from the end
	// The checks before the hash, in reverse order. All but the length check load from the
	// datagram.
	for _, c := range []struct {
		load bpf.Instruction
		cond bpf.JumpTest
		want uint32
	}{
		{bpf.LoadAbsolute{Off: flagsAt, Size: 1}, bpf.JumpBitsNotSet, 0xff &^ uint32(wire.FlagLast|wire.FlagRetransmitted|wire.FlagPadded|wire.FlagExtension)},
		{bpf.LoadAbsolute{Off: typeAt, Size: 1}, bpf.JumpEqual, wire.Version<<4 | uint32(wire.TypeData)},
		{bpf.LoadAbsolute{Off: magicAt, Size: 2}, bpf.JumpEqual, 'P'<<8 | 'S'},
		{bpf.LoadExtension{Num: bpf.ExtLen}, bpf.JumpGreaterOrEqual, udpHeaderBytes + wire.HeaderSize},
	} {
		check := bpf.JumpIf{Cond: c.cond, Val: c.want, SkipFalse: uint8(len(program) - acceptsAll)}
		program = append([]bpf.Instruction{c.load, check}, program...)
	}
	return program
}

// acceptAll makes a filter keep a whole datagram: the value is the max number of bytes to
// keep.
const acceptAll = 1<<32 - 1

// attachFilter makes the kernel let steps of filterSteps of the requests into a socket. With
// all steps it detaches the filter.
func attachFilter(socket, steps int) error {
	if steps >= filterSteps {
		if err := unix.SetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_DETACH_FILTER, 0); err != nil {
			return fmt.Errorf("detach filter: %w", err)
		}
		return nil
	}
	raw, err := bpf.Assemble(filterProgram(uint32(steps) * (1 << 32 / filterSteps)))
	if err != nil {
		return fmt.Errorf("assemble filter: %w", err)
	}
	code := make([]unix.SockFilter, len(raw))
	for i, r := range raw {
		code[i] = unix.SockFilter{Code: r.Op, Jt: r.Jt, Jf: r.Jf, K: r.K}
	}
	program := unix.SockFprog{Len: uint16(len(code)), Filter: &code[0]}
	if err := unix.SetsockoptSockFprog(socket, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &program); err != nil {
		return fmt.Errorf("attach filter: %w", err)
	}
	return nil
}
