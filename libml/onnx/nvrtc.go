//go:build cgo

package onnx

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"os"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"
)

// cuDNN compiles kernels of some convolutions with NVRTC, in each process and for each batch size.
// For MobileNetV2 on an H200 that takes 16 s of 18 s to start, and gives 3 % more throughput at
// batch 32. If NVRTC has no functions, cuDNN takes kernels that need no compilation.
//
// Active: on every GPU. There is no setting.

// compilerLibrary is the name by which cuDNN for CUDA 13 loads NVRTC.
const compilerLibrary = "libnvrtc.so.13"

// hideCompiler hides NVRTC from cuDNN, which must not be loaded yet.
var hideCompiler = sync.OnceValue(func() error { return hide(compilerLibrary, preload) })

// hide loads an empty library of this name. The dynamic loader then uses it for the name, because it
// compares names with those of the loaded libraries (SONAME, ld.so(8)). The file stays open: the loader
// would take another file at the same path for this one.
func hide(library string, load func(string) error) error {
	fd, err := unix.MemfdCreate(library, unix.MFD_CLOEXEC)
	if err != nil {
		return fmt.Errorf("hide %s: %w", library, err)
	}
	file := fmt.Sprintf("/proc/self/fd/%d", fd)
	if err = os.WriteFile(file, emptyLibrary(library), 0); err == nil {
		err = load(file)
	}
	if err != nil {
		return fmt.Errorf("hide %s behind an empty library: %w", library, err)
	}
	return nil
}

// emptyLibrary returns a shared library (elf(5)) of that name without symbols.
func emptyLibrary(name string) []byte {
	const (
		headers  = 3
		page     = 0x10000 // of any kernel
		writable = uint32(elf.PF_R | elf.PF_W)
	)
	machine := map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}[runtime.GOARCH]
	var (
		header  elf.Header64
		program elf.Prog64
		symbol  elf.Sym64 // the first symbol is empty
	)
	names := append([]byte{0}, name+"\x00"...)
	names = append(names, make([]byte, -len(names)&7)...)
	hash := []uint32{1, 1, 0, 0} // one bucket and one chain, both empty

	symbols := uint64(binary.Size(header) + headers*binary.Size(program))
	hashes := symbols + uint64(binary.Size(symbol))
	strings := hashes + uint64(binary.Size(hash))
	dynamic := strings + uint64(len(names))
	tags := []elf.Dyn64{
		{Tag: int64(elf.DT_SONAME), Val: 1},
		{Tag: int64(elf.DT_HASH), Val: hashes},
		{Tag: int64(elf.DT_STRTAB), Val: strings},
		{Tag: int64(elf.DT_STRSZ), Val: uint64(len(names))},
		{Tag: int64(elf.DT_SYMTAB), Val: symbols},
		{Tag: int64(elf.DT_SYMENT), Val: uint64(binary.Size(symbol))},
		{Tag: int64(elf.DT_NULL)},
	}
	end := dynamic + uint64(binary.Size(tags))

	header = elf.Header64{
		Type: uint16(elf.ET_DYN), Machine: uint16(machine), Version: uint32(elf.EV_CURRENT),
		Phoff: uint64(binary.Size(header)), Ehsize: uint16(binary.Size(header)),
		Phentsize: uint16(binary.Size(program)), Phnum: headers,
	}
	copy(header.Ident[:], elf.ELFMAG)
	header.Ident[elf.EI_CLASS], header.Ident[elf.EI_DATA], header.Ident[elf.EI_VERSION] = byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)

	var file bytes.Buffer
	for _, part := range []any{
		header,
		elf.Prog64{Type: uint32(elf.PT_LOAD), Flags: writable, Filesz: end, Memsz: end, Align: page},
		elf.Prog64{
			Type: uint32(elf.PT_DYNAMIC), Flags: writable, Off: dynamic, Vaddr: dynamic, Paddr: dynamic,
			Filesz: end - dynamic, Memsz: end - dynamic, Align: 8,
		},
		elf.Prog64{Type: uint32(elf.PT_GNU_STACK), Flags: writable, Align: 16}, // not executable
		symbol, hash, names, tags,
	} {
		binary.Write(&file, binary.LittleEndian, part) // cannot fail: fixed sizes, to memory
	}
	return file.Bytes()
}
