"""A flat file of weights: 8 bytes of length, JSON of that length, the data (the layout of
safetensors files). Processes share one file, on the GPU (Environment.weights) and, mapped,
in host memory.

    header {NAME: {"dtype": "F16", "shape": [64, 3, 7, 7], "data_offsets": [FROM, TO]}, ...}

Offsets count from the beginning of the data. The writer aligns every tensor to ALIGN bytes
of the file. The layout allows that only with tensors in between, named pad.N. __metadata__
has the strides of a tensor that is not dense in the order of its shape (channels_last).
"""

import json
import mmap
import operator
import os
import struct

ALIGN = 256  # as of CUDA's allocations; cuDNN's fastest kernels require 16

LARGEST_HEADER = 64 << 20

# Bytes of an element, by dtype.
SIZES = {
    "F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "F16": 2, "BF16": 2, "I16": 2, "U16": 2,
    "F8_E4M3": 1, "F8_E5M2": 1, "I8": 1, "U8": 1, "BOOL": 1,
}


class Entry:
    """One tensor: dtype as in safetensors, shape, strides in elements, and the place of its
    bytes in the file."""

    def __init__(self, dtype, shape, strides, begin, end):
        self.dtype, self.shape, self.strides, self.begin, self.end = dtype, tuple(shape), tuple(strides), begin, end


def dense(shape):
    """The strides, in elements, of a tensor in its shape's order."""
    strides, step = [], 1
    for d in reversed(shape):
        strides.append(step)
        step *= d
    return tuple(reversed(strides))


def reach(shape, strides):
    """The number of elements from a tensor's first to its last, in memory."""
    if len(shape) != len(strides) or any(n < 0 for n in tuple(shape) + tuple(strides)):
        raise TypeError("shape %s with strides %s" % (list(shape), list(strides)))
    if 0 in shape:
        return 0
    return 1 + sum((d - 1) * s for d, s in zip(shape, strides))


def write(path, tensors):
    """Write [(name, dtype, shape, strides, bytes)], each aligned to ALIGN, to a new file that
    replaces path when it is complete."""
    header, metadata, parts, at = {}, {}, [], 0
    for name, dtype, shape, strides, data in tensors:
        if at % ALIGN:
            pad = ALIGN - at % ALIGN
            header["pad.%d" % at] = {"dtype": "U8", "shape": [pad], "data_offsets": [at, at + pad]}
            parts.append(bytes(pad))
            at += pad
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + len(data)]}
        if tuple(strides) != dense(shape):
            metadata["strides:" + name] = json.dumps(list(strides))
        parts.append(data)
        at += len(data)
    if metadata:
        header["__metadata__"] = metadata
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % ALIGN)
    with open(path + ".new", "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for part in parts:
            f.write(part)
        f.flush()
        os.fsync(f.fileno())
    os.replace(path + ".new", path)


def read(path):
    """Map a file copy-on-write. Return its bytes and {name: Entry}. Raise ValueError if it does
    not have this layout."""
    with open(path, "rb") as f:
        size = os.fstat(f.fileno()).st_size
        if size < 8:
            raise ValueError("%s has %d bytes: it is no flat file of weights" % (path, size))
        memory = mmap.mmap(f.fileno(), size, access=mmap.ACCESS_COPY)
    (length,) = struct.unpack_from("<Q", memory)
    if length > min(size - 8, LARGEST_HEADER):
        raise ValueError("%s: its header would have %d bytes of %d: it is no flat file of weights, or is cut short" % (path, length, size))
    try:
        header = json.loads(memory[8:8 + length])
        metadata = header.pop("__metadata__", {})
        entries = {}
        for name, h in header.items():
            offsets = [8 + length + operator.index(at) for at in h["data_offsets"]]
            if len(offsets) != 2:
                raise TypeError("%s has %d offsets" % (name, len(offsets)))
            begin, end = offsets
            shape = tuple(h["shape"])
            strides = json.loads(metadata.get("strides:" + name, "null")) or dense(shape)
            if not 8 + length <= begin <= end <= size:
                raise ValueError("%s: %s lies at %d to %d of %d bytes: the file is cut short" % (path, name, begin, end, size))
            if reach(shape, strides) * SIZES[h["dtype"]] > end - begin:
                raise ValueError("%s: %s is %s of %s, and has %d bytes" % (path, name, list(shape), h["dtype"], end - begin))
            entries[name] = Entry(h["dtype"], shape, strides, begin, end)
    except (KeyError, TypeError, AttributeError, json.JSONDecodeError, UnicodeDecodeError) as e:
        raise ValueError("%s: its header is not that of a flat file of weights (%s)" % (path, e)) from None
    return memory, entries
