"""Datagrams between client and manager (docs/wire.md). Pure: no clock, no I/O, no state.

Encoders return the buffers of a message. Decoders accept hostile bytes and raise Malformed.
"""

from __future__ import annotations

import functools
import hmac
import ipaddress
import struct
from typing import Any, NamedTuple, Optional, Sequence, Tuple

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Address = Tuple[Any, ...]  # as sockets take it: host and port, and for IPv6 two more numbers

HEADER_BYTES = 22
BLOCK_BYTES = 64
MAX_FRAGMENTS = (1 << 16) - 1
MAX_TOTAL = (1 << 32) - 1
MAX_FRAGMENT_BYTES = 65535 - 20 - 8 - HEADER_BYTES - BLOCK_BYTES

DATA, RESULT, NACK, BUSY, HELLO, PROOF = 1, 2, 3, 4, 5, 6
LAST, RETRANSMITTED, EXTENSION = 1, 2, 8

STATUS_OK, STATUS_BUSY, STATUS_REFUSED, STATUS_MOVED, STATUS_COUNT = 0, 3, 4, 6, 7
KIND_NONE, KIND_COUNT = 0, 11

_VERSION = 1
_MAX_NACK_BYTES = 1024

_HEADER = struct.Struct("<2sBBIIIHHH")
_USE_MISSING, _USE_REQUEST = 1, 2  # of an extension: it names fragments of an answer, or what the client wants
MAX_MISSING = 256  # fragments of an answer that a question spans
_EXTENSION = struct.Struct("<IBB?xQQ40s")
_MISSING = struct.Struct("<HH32s4x")
_REQUEST = struct.Struct("<BBHHHII24x")
_BLOCK = struct.Struct("<BBHHHIIIIIIQQIIIB3x")
_MOVED = struct.Struct("<16sHH")
_MOVED_AT = 12
_NACK = struct.Struct("<HH")
_HELLO = struct.Struct("<16sQ32s")

_HEADER_FIELDS = np.dtype(
    [
        ("magic", "S2"),
        ("type", "u1"),
        ("flags", "u1"),
        ("id", "<u4"),
        ("offset", "<u4"),
        ("total", "<u4"),
        ("index", "<u2"),
        ("count", "<u2"),
        ("length", "<u2"),
    ]
)
_MAX_MICROSECONDS = (1 << 32) - 1

CLASS = np.dtype([("class", "<u2"), ("probability", "<f4")])
BOX = np.dtype([("class", "<u2"), ("score", "<f4"), ("corners", "<f4", (4,))])
MASK = np.dtype([("box", BOX), ("place", "<u2", (4,))])
POLYGON = np.dtype([("class", "<u2"), ("score", "<f4"), ("corners", "<u2")])
RUN = np.dtype([("class", "<u2"), ("cells", "<u4")])
MAP_CLASSES, MAP_U8, MAP_F16 = 0, 1, 2
# The elements of tensors, by their number on the wire. numpy has no bf16.
ELEMENTS = ["?", "i1", "<i2", "<i4", "<i8", "u1", "<u2", "<u4", "<u8", "<f2", "bf16", "<f4", "<f8"]


def pointed(n: int) -> np.dtype[Any]:
    """A box with n points."""
    return np.dtype([("box", BOX), ("points", "<f4", (n, 3))])


def _formats() -> dict[str, tuple[int, int]]:
    formats = {"rgb8": (1, 24), "bgr8": (2, 24), "rgba8": (3, 32), "nv12": (4, 8), "i420": (5, 8), "uyvy": (6, 16), "yuyv": (7, 16)}
    formats |= {"uyvy10": (8, 20), "yyyyuv": (9, 24), "rgb10": (10, 30)}
    depths = {"8": 8, "10": 16, "10p": 10, "10packed": 12, "12": 16, "12p": 12, "12packed": 12}
    for i, (depth, bits) in enumerate(depths.items()):
        formats["grey" + depth] = 16 + i, bits
        for k, order in enumerate(["rg", "gr", "gb", "bg"]):
            formats[f"bayer_{order}{depth}"] = 64 + 4 * i + k, bits
    return {**formats, "grey16": (23, 16)}


# Number and bits of a pixel in a row of the first plane, by the format's name.
FORMATS = _formats()
# The matrix of Y, U and V, and the range of their samples, by name.
COLOURS = {"bt601": 0, "bt709": 1, "bt2020": 2, "bt601-full": 4, "bt709-full": 5, "bt2020-full": 6}
# Rows of bytes per two rows of pixels, of formats with 4:2:0.
HALVES = {"nv12": 3, "i420": 3, "yyyyuv": 1}


class Picture(NamedTuple):
    """The format and shape of a picture, in pixels. stride is the bytes from one row to the next; 0: rows have no gap. colours
    are those of formats with Y, U and V."""

    format: str
    width: int
    height: int
    stride: int = 0
    colours: str = "bt601"

    def check(self, total: int) -> None:
        """Raise ValueError if a picture of total bytes cannot have that shape."""
        if self.format not in FORMATS:
            raise ValueError(f'format of the picture is "{self.format}": want one of {", ".join(FORMATS)}')
        if self.colours not in COLOURS:
            raise ValueError(f'colours of the picture are "{self.colours}": want one of {", ".join(COLOURS)}')
        text = f"picture of {self.width} x {self.height} of {self.format}"
        if not (1 <= self.width <= 0xFFFF and 1 <= self.height <= 0xFFFF):
            raise ValueError(f"{text}: want 1 to 65535 pixels on each side")
        bayer = self.format.startswith("bayer")
        both = bayer or self.format in HALVES
        if self.width % 2 and (both or self.format in ("uyvy", "yuyv", "uyvy10")) or self.height % 2 and both:
            raise ValueError(f"{text}: want an even {'width and height' if both else 'width'}")
        if bayer and min(self.width, self.height) < 4:
            raise ValueError(f"{text}: want at least 4 x 4 pixels")
        row = -(-self.width * FORMATS[self.format][1] // 8)
        if self.stride and (not row <= self.stride < 1 << 24 or self.format == "i420" and self.stride % 2):
            raise ValueError(f"{text}: stride is {self.stride} bytes; want the {row} of a row to 16777215, and for i420 an even number")
        size = (self.stride or row) * (self.height * HALVES.get(self.format, 2) // 2)
        if size != total:
            raise ValueError(f"{text} has {size} bytes; the array has {total}")


class Wanted(NamedTuple):
    """What a client wants of a request."""

    deadline: int = 0  # nanoseconds for which an answer is useful; 0: the function's objective
    priority: int = 0
    stream: int = 0
    lowest_score: int = 0  # in 1/65535; 0: the card's
    picture: Optional[Picture] = None  # None: the card's


class Malformed(Exception):
    """A datagram breaks a rule of docs/wire.md, *What a receiver checks*. Its text is the rule's word."""


class Block(NamedTuple):
    """The block of every answer. Times are in microseconds."""

    status: int
    kind: int
    batch: int
    credit: int
    missing: int
    model_version: int
    aggregate: int
    queue: int
    gather: int
    infer: int
    reply: int
    sent_at: int
    cookie: int
    objective: int
    picture_bytes: int  # of the function, if the status is refused; 0 if not known
    largest_picture: int  # bytes of the largest picture of another format or size; 0: none
    needs_token: int  # 1 if the status is refused, and the request had no valid token
    moved: Address = ()  # where the client is to send requests for a time, if the status is moved
    lifetime: int = 0  # of that, in seconds


class Fragment(NamedTuple):
    """One datagram of an answer."""

    request: int
    offset: int
    total: int
    fragment: int
    fragments: int
    size: int  # of every fragment but the last
    block: Block
    payload: memoryview


class Nack(NamedTuple):
    """A request to send fragments again."""

    request: int
    total: int
    fragments: int
    missing: npt.NDArray[np.intp]


class Hello(NamedTuple):
    """A datagram of type HELLO or PROOF. value is the manager's: its challenge, or the token."""

    kind: int
    nonce: bytes
    value: int


def fragments(total: int, size: int) -> int:
    """The number of fragments of size bytes that hold total bytes."""
    return max(1, -(-total // size))


@functools.lru_cache(maxsize=8)
def _headers(total: int, size: int) -> npt.NDArray[Any]:
    """The headers of all fragments of a picture, with request id 0. Requests of a stream share them."""
    count = fragments(total, size)
    index = np.arange(count, dtype=np.uint32)
    h = np.zeros(count, _HEADER_FIELDS)
    h["magic"], h["type"] = b"PS", _VERSION << 4 | DATA
    h["flags"][-1] = LAST
    h["offset"], h["total"] = index * size, total
    h["index"], h["count"] = index, count
    h["length"] = size
    h["length"][-1] = total - (count - 1) * size
    h.flags.writeable = False
    return h


def encode_first(request: int, picture: Bytes, size: int, again: bool, extension: bytes) -> list[Any]:
    """Fragment 0, with an extension if it is not empty."""
    total = len(picture)
    count = fragments(total, size)
    length = min(size, total)
    flags = (LAST if count == 1 else 0) | (RETRANSMITTED if again else 0) | (EXTENSION if extension else 0)
    header = _HEADER.pack(b"PS", _VERSION << 4 | DATA, flags, request, 0, total, 0, count, length)
    return [header + extension, picture[:length]]


def address(ip: str, port: int, scope: int = 0) -> Address:
    """The address of a socket, spelled in one way."""
    a = ipaddress.ip_address(ip)
    return (str(a), port) if a.version == 4 else (str(a), port, 0, scope)


def encode_extension(wanted: Wanted, sent_at: int, cookie: int, missing: Sequence[int] = (), follows: bool = False) -> bytes:
    """missing are rising fragments of the answer, which span at most MAX_MISSING. If there are any, stream, score
    and picture are not sent."""
    microseconds = min(-(-wanted.deadline // 1000), _MAX_MICROSECONDS)
    use, rest = 0, b""
    if missing:
        base = missing[0]
        bits = sum(1 << (index - base) for index in missing)
        use, rest = _USE_MISSING, _MISSING.pack(base, missing[-1] - base + 1, bits.to_bytes(32, "little"))
    elif wanted.stream or wanted.lowest_score or wanted.picture:
        use = _USE_REQUEST
        p = wanted.picture
        number, colours, *shape = (FORMATS[p.format][0], COLOURS[p.colours], *p[1:4]) if p else (0, 0, 0, 0, 0)
        rest = _REQUEST.pack(number, colours, wanted.lowest_score, *shape, wanted.stream)
    return _EXTENSION.pack(microseconds, wanted.priority, use, follows, sent_at, cookie, rest)


def encode_hello(h: Hello, key: bytes = b"") -> bytes:
    """A hello; with a key, a proof."""
    signed = h.nonce + h.value.to_bytes(8, "little")
    proof = hmac.digest(key, signed, "sha256") if key else bytes(32)
    return _HEADER.pack(b"PS", _VERSION << 4 | h.kind, LAST, 0, 0, _HELLO.size, 0, 1, _HELLO.size) + signed + proof


def encode_train(request: int, picture: Bytes, size: int, index: npt.NDArray[np.intp], again: bool) -> Bytes:
    """Fragments with those rising indices, back to back. All datagrams have HEADER_BYTES + size bytes; only the
    picture's last fragment may be shorter."""
    headers = _headers(len(picture), size)[index]
    headers["id"] = request
    if again:
        headers["flags"] |= RETRANSMITTED

    n = len(index)
    rows: Bytes = np.empty((n, HEADER_BYTES + size), np.uint8)
    rows[:, :HEADER_BYTES] = headers.view(np.uint8).reshape(n, HEADER_BYTES)
    tail = size - int(headers["length"][-1])
    full = n if tail == 0 else n - 1
    first = int(index[0])
    if int(index[-1]) - first == n - 1:
        rows[:full, HEADER_BYTES:] = picture[first * size : (first + full) * size].reshape(full, size)
    else:
        whole = len(picture) // size
        rows[:full, HEADER_BYTES:] = picture[: whole * size].reshape(whole, size)[index[:full]]
    if full < n:
        rows[full, HEADER_BYTES : HEADER_BYTES + size - tail] = picture[int(index[-1]) * size :]
    return rows.reshape(-1)[: n * (HEADER_BYTES + size) - tail]


def decode(b: memoryview) -> Fragment | Nack | Hello:
    """A datagram from a manager."""
    if len(b) < HEADER_BYTES:
        raise Malformed("short")
    magic, kind, flags, request, offset, total, index, count, length = _HEADER.unpack_from(b)
    if magic != b"PS":
        raise Malformed("magic")
    if kind >> 4 != _VERSION:
        raise Malformed("version")
    kind &= 15
    if kind not in (RESULT, NACK, BUSY, HELLO, PROOF):
        raise Malformed("type")
    if flags & ~(LAST | RETRANSMITTED if kind in (RESULT, BUSY) else 0 if kind == NACK else LAST):
        raise Malformed("flags")
    if count == 0:
        raise Malformed("count")
    if index >= count:
        raise Malformed("index")
    begin = HEADER_BYTES + BLOCK_BYTES if kind in (RESULT, BUSY) else HEADER_BYTES
    if begin + length != len(b):
        raise Malformed("length" if begin + length > len(b) else "trailing")
    if kind == NACK:
        return _decode_nack(b, request, offset, total, index, count, length)
    size = _fragment_size(kind, flags, offset, total, index, count, length)
    if kind in (HELLO, PROOF):
        if count != 1 or length != _HELLO.size:
            raise Malformed("length")
        nonce, value, _ = _HELLO.unpack_from(b, begin)
        return Hello(kind, nonce, value)
    block = Block(*_BLOCK.unpack_from(b, HEADER_BYTES))
    if block.status >= STATUS_COUNT or (block.status == STATUS_BUSY) != (kind == BUSY):
        raise Malformed("status")
    if block.status != STATUS_OK and total != 0:
        raise Malformed("status")
    if block.status == STATUS_MOVED:
        block = _decode_moved(b, block)
    if block.kind >= KIND_COUNT or block.kind == KIND_NONE and total != 0:
        raise Malformed("kind")
    return Fragment(request, offset, total, index, count, size, block, b[begin:])


def _decode_moved(b: memoryview, block: Block) -> Block:
    """The block of an answer that has an address in the place of the times."""
    ip, port, lifetime = _MOVED.unpack_from(b, HEADER_BYTES + _MOVED_AT)
    a = ipaddress.IPv6Address(ip)
    to = a.ipv4_mapped or a
    if port == 0 or to.is_unspecified or to.is_multicast:
        raise Malformed("status")
    return block._replace(aggregate=0, queue=0, gather=0, infer=0, reply=0, moved=address(str(to), port), lifetime=lifetime)


def _fragment_size(kind: int, flags: int, offset: int, total: int, index: int, count: int, length: int) -> int:
    """Check that some fragment size makes this fragment of this total, and return the size."""
    last = index == count - 1
    if last != bool(flags & LAST):
        raise Malformed("last")
    if total == 0:
        if length != 0:
            raise Malformed("total")
        if count != 1:
            raise Malformed("fragments")
        if offset != 0:
            raise Malformed("offset")
        return 0
    if kind == BUSY:
        raise Malformed("total")
    if length == 0:
        raise Malformed("length")
    if offset + length > total:
        raise Malformed("total")
    if not last:
        if offset != index * length:
            raise Malformed("offset")
        if (count - 1) * length >= total or total > count * length:
            raise Malformed("fragments")
        return length
    size = length
    if index == 0:
        if offset != 0:
            raise Malformed("offset")
    else:
        size, rest = divmod(offset, index)
        if size == 0 or size > 0xFFFF or rest != 0:
            raise Malformed("offset")
        if length > size:
            raise Malformed("fragments")
    if offset + length != total:
        raise Malformed("fragments")
    return size


def _decode_nack(b: memoryview, request: int, offset: int, total: int, index: int, count: int, length: int) -> Nack:
    if index != 0:
        raise Malformed("index")
    if offset != 0:
        raise Malformed("offset")
    if total == 0:
        raise Malformed("total")
    if length <= _NACK.size or length > _NACK.size + _MAX_NACK_BYTES:
        raise Malformed("length")
    base, bits = _NACK.unpack_from(b, HEADER_BYTES)
    bitmap = np.frombuffer(b, np.uint8, offset=HEADER_BYTES + _NACK.size)
    if bits == 0 or len(bitmap) != (bits + 7) // 8 or base + bits > count:
        raise Malformed("nack")
    missing = np.flatnonzero(np.unpackbits(bitmap, bitorder="little"))
    if len(missing) == 0 or missing[-1] >= bits:
        raise Malformed("nack")
    return Nack(request, total, count, missing + base)
