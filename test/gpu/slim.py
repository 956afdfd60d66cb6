#!/usr/bin/env python3
"""Blank the cubins in a shared library's read-only data that another GPU needs.

usage: slim.py IN.so OUT.so SM      (SM: 90 for Hopper)

ONNX Runtime's CUDA provider carries TensorRT's fused attention kernels as whole
ELF images in .rodata, one set for each architecture; the driver is only ever given
those of the GPU at hand. Nothing moves: an image's bytes become zeros, which xz
makes vanish.
"""
import struct
import sys

EM_CUDA = 190  # the machine of an ELF header (e_machine)

source, target, sm = sys.argv[1], sys.argv[2], int(sys.argv[3])
data = bytearray(open(source, "rb").read())

# ELF64 header: e_shoff at 0x28, then e_shentsize, e_shnum, e_shstrndx at 0x3a.
(table,) = struct.unpack_from("<Q", data, 0x28)
entry, count, names = struct.unpack_from("<HHH", data, 0x3A)
sections = [struct.unpack_from("<IIQQQQIIQQ", data, table + i * entry) for i in range(count)]
strings = sections[names][4]

blanked = 0
for section in sections:
    name = data[strings + section[0] : data.index(0, strings + section[0])]
    if name != b".rodata":
        continue
    at, end = section[4], section[4] + section[5]
    while (at := data.find(b"\x7fELF", at, end)) >= 0:
        (machine,) = struct.unpack_from("<H", data, at + 0x12)
        (flags,) = struct.unpack_from("<I", data, at + 0x30)
        (headers,) = struct.unpack_from("<Q", data, at + 0x28)
        size, number = struct.unpack_from("<HH", data, at + 0x3A)
        # The section headers are the last of such an image.
        length = headers + size * number
        if machine == EM_CUDA and flags & 0xFF != sm and at + length <= end:
            data[at : at + length] = bytes(length)
            blanked += length
        at += 4

open(target, "wb").write(data)
print(f"{target}: {blanked} bytes of other GPUs' cubins blanked")
