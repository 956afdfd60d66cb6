#!/usr/bin/env python3
"""Blanks the GPU programs for other architectures that a library carries as data.

    blank_cubins.py LIBRARY SM      LIBRARY is changed; SM: 90 for Hopper

ONNX Runtime's CUDA provider holds, besides its own code in .nv_fatbin, some hundred
whole GPU programs (ELF files for the machine EM_CUDA, a few kernels of attention each)
for every architecture since Volta. A GPU loads programs of its own major version only, so
those of other ones are zeroed. Nothing moves, and zeros cost nothing once packed.
"""

import struct
import sys

EM_CUDA = 190  # elf.h


def program_bytes(data, at):
    """The size of the ELF file that begins there (Elf64_Ehdr, Elf64_Shdr of elf.h)."""
    phoff, shoff = struct.unpack_from("<QQ", data, at + 32)
    phentsize, phnum, shentsize, shnum = struct.unpack_from("<HHHH", data, at + 54)
    end = max(phoff + phentsize * phnum, shoff + shentsize * shnum)
    for i in range(shnum):
        kind, offset, size = struct.unpack_from("<4xI16xQQ", data, at + shoff + i * shentsize)
        if kind != 8:  # SHT_NOBITS has no bytes in the file
            end = max(end, offset + size)
    return end


def main():
    if len(sys.argv) != 3 or not sys.argv[2].isdigit():
        sys.exit(__doc__.strip())
    path, major = sys.argv[1], int(sys.argv[2]) // 10
    data = bytearray(open(path, "rb").read())
    kept = blanked = 0
    at = data.find(b"\x7fELF", 1)  # 0 is the library itself
    while at >= 0:
        after = at + 4
        machine, = struct.unpack_from("<H", data, at + 18)
        if data[at + 4] == 2 and machine == EM_CUDA:
            flags, = struct.unpack_from("<I", data, at + 48)
            size = program_bytes(data, at)
            if at + size > len(data):
                sys.exit(f"{path}: the GPU program at {at} reaches beyond the end")
            if (flags & 0xFF) // 10 != major:
                data[at:at + size] = bytes(size)
                blanked += size
                after = at + size
            else:
                kept += size
        at = data.find(b"\x7fELF", after)
    open(path, "wb").write(data)
    print(f"{path}: {kept} bytes of GPU programs kept, {blanked} blanked")


if __name__ == "__main__":
    main()
