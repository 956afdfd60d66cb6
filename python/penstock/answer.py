"""What a client returns for a picture, and the errors that it raises."""

from __future__ import annotations

import contextlib
import enum
import math
import struct
from dataclasses import dataclass
from typing import Any, Iterator

import numpy as np
import numpy.typing as npt

from . import _wire


class Status(enum.Enum):
    """How a request ended."""

    OK = "ok"
    LATE = "late"
    INCOMPLETE = "incomplete"
    BUSY = "busy"
    REFUSED = "refused"
    FAILED = "failed"
    UNANSWERED = "unanswered"  # never on the wire


class Kind(enum.Enum):
    """What an answer holds."""

    NONE = "none"
    CLASSES = "classes"
    BOXES = "boxes"
    VALUES = "values"
    POINTS = "points"
    MASKS = "masks"
    POLYGONS = "polygons"
    EMBEDDING = "embedding"
    MAP = "map"
    TEXT = "text"
    TENSORS = "tensors"


@dataclass(frozen=True)
class Stages:
    """Where a request spent its time in the manager, in seconds. 0 for stages that it did not reach."""

    aggregate: float = 0.0  # first fragment received to picture complete
    queue: float = 0.0  # complete to taken into a batch
    gather: float = 0.0  # taken to gathered into the batch tensor
    infer: float = 0.0  # gathered to inferred
    reply: float = 0.0  # inferred to sent

    @property
    def total(self) -> float:
        return self.aggregate + self.queue + self.gather + self.infer + self.reply


@dataclass(frozen=True)
class Classes:
    """The likeliest classes of a picture, the likeliest first."""

    classes: npt.NDArray[np.uint16]
    probabilities: npt.NDArray[np.float32]


@dataclass(frozen=True)
class Boxes:
    """The boxes in a picture, the highest score first. A row of corners is left, top, right, bottom, in fractions of
    the picture's width and height."""

    classes: npt.NDArray[np.uint16]
    scores: npt.NDArray[np.float32]
    corners: npt.NDArray[np.float32]


@dataclass(frozen=True)
class Points:
    """Boxes with the same number of points each. A point is x, y, score, in fractions of the picture's width and height; it may lie
    outside of it."""

    boxes: Boxes
    points: npt.NDArray[np.float32]  # [boxes, points, 3]


@dataclass(frozen=True)
class Masks:
    """Boxes with a mask each: a grid of cells that covers the picture."""

    boxes: Boxes
    masks: npt.NDArray[np.bool_]  # [boxes, rows, columns]


@dataclass(frozen=True)
class Polygons:
    """Outlines, the highest score first. A row of corners is x, y, in fractions of the picture's width and height."""

    classes: npt.NDArray[np.uint16]
    scores: npt.NDArray[np.float32]
    corners: list[npt.NDArray[np.float32]]  # of each, [corners, 2]


@dataclass(frozen=True)
class Text:
    """A line of text, and how sure the model is of it."""

    text: str
    score: float


@dataclass(frozen=True)
class Answer:
    """The end of a request. Times are in seconds."""

    status: Status
    kind: Kind
    payload: bytes  # as docs/wire.md lays it out
    batch: int  # requests in the batch, 0 if the picture was not run
    model_version: int
    missing: int  # fragments that the manager lacks, if incomplete
    stages: Stages
    objective: float  # the function's latency objective, 0 if unknown
    latency: float  # from the call to the answer
    resends: int  # fragments that were sent again
    detail: str  # why the status is not ok, one sentence
    largest_picture: int = 0  # bytes of the largest picture of another format or size that the function takes; 0: none

    @property
    def ok(self) -> bool:
        return self.status is Status.OK

    def raise_for_status(self) -> None:
        """Raise the status's RequestError, unless the answer is ok."""
        if self.status is not Status.OK:
            raise ERRORS[self.status](self)

    @property
    def classes(self) -> Classes:
        """The classes of an answer of kind CLASSES."""
        rows = np.frombuffer(self._read(Kind.CLASSES, _wire.CLASS.itemsize), _wire.CLASS)
        return Classes(rows["class"], rows["probability"])

    @property
    def boxes(self) -> Boxes:
        """The boxes of an answer of kind BOXES, POINTS or MASKS."""
        if self.kind is Kind.POINTS:
            return self.points.boxes
        if self.kind is Kind.MASKS:
            return self.masks.boxes
        return _boxes(np.frombuffer(self._read(Kind.BOXES, _wire.BOX.itemsize), _wire.BOX))

    @property
    def values(self) -> npt.NDArray[np.float32]:
        """The model's outputs, one after the other, of an answer of kind VALUES."""
        return np.frombuffer(self._read(Kind.VALUES, 4), "<f4")

    @property
    def embedding(self) -> npt.NDArray[np.float32]:
        """The vector of an answer of kind EMBEDDING. Its length is 1."""
        return np.frombuffer(self._read(Kind.EMBEDDING, 4), "<f4")

    @property
    def points(self) -> Points:
        """The boxes and points of an answer of kind POINTS."""
        payload = self._read(Kind.POINTS)
        with _malformed("points"):
            (n,) = struct.unpack_from("<H", payload)
            rows = np.frombuffer(payload, _wire.pointed(n), offset=2)
        return Points(_boxes(rows["box"]), rows["points"])

    @property
    def masks(self) -> Masks:
        """The boxes and masks of an answer of kind MASKS."""
        payload = self._read(Kind.MASKS)
        boxes, masks = [], []
        with _malformed("masks"):
            height, width = struct.unpack_from("<HH", payload)
            at = 4
            while at < len(payload):
                head = np.frombuffer(payload, _wire.MASK, 1, at)
                x, y, columns, rows = (int(v) for v in head["place"][0])
                at += _wire.MASK.itemsize
                size = (columns * rows + 7) // 8
                bits = np.unpackbits(np.frombuffer(payload, np.uint8, size, at) if size else np.empty(0, np.uint8), bitorder="little")
                at += size
                mask = np.zeros((height, width), np.bool_)
                mask[y : y + rows, x : x + columns] = bits[: columns * rows].reshape(rows, columns)
                boxes.append(head["box"])
                masks.append(mask)
        rows_of_boxes = np.concatenate(boxes) if boxes else np.empty(0, _wire.BOX)
        return Masks(_boxes(rows_of_boxes), np.array(masks, np.bool_).reshape(-1, height, width))

    @property
    def polygons(self) -> Polygons:
        """The outlines of an answer of kind POLYGONS."""
        payload = self._read(Kind.POLYGONS)
        heads, corners = [], []
        with _malformed("polygons"):
            at = 0
            while at < len(payload):
                heads.append(np.frombuffer(payload, _wire.POLYGON, 1, at))
                at += _wire.POLYGON.itemsize
                n = int(heads[-1]["corners"][0])
                corners.append(np.frombuffer(payload, "<f4", 2 * n, at).reshape(n, 2) if n else np.empty((0, 2), np.float32))
                at += 8 * n
        rows = np.concatenate(heads) if heads else np.empty(0, _wire.POLYGON)
        return Polygons(rows["class"], rows["score"], corners)

    @property
    def map(self) -> npt.NDArray[Any]:
        """The cells of an answer of kind MAP, [rows, columns]: the class of each as uint16, or a number as float32."""
        payload = self._read(Kind.MAP)
        with _malformed("map"):
            element, rows, columns = struct.unpack_from("<BxHH", payload)
            if element == _wire.MAP_CLASSES:
                runs = np.frombuffer(payload, _wire.RUN, offset=6)
                if int(runs["cells"].sum(dtype=np.uint64)) != rows * columns:
                    raise ValueError("the runs have another number of cells")
                return np.repeat(runs["class"], runs["cells"]).reshape(rows, columns)
            if element == _wire.MAP_U8:
                return (np.frombuffer(payload, np.uint8, offset=6) / np.float32(255)).astype(np.float32).reshape(rows, columns)
            if element == _wire.MAP_F16:
                return np.frombuffer(payload, "<f2", offset=6).astype(np.float32).reshape(rows, columns)
            raise ValueError(f"element {element} is unknown")

    @property
    def text(self) -> Text:
        """The text of an answer of kind TEXT."""
        payload = self._read(Kind.TEXT)
        with _malformed("text"):
            return Text(payload[4:].decode(), struct.unpack_from("<f", payload)[0])

    @property
    def tensors(self) -> dict[str, npt.NDArray[Any]]:
        """The model's outputs of an answer of kind TENSORS, by their names, in the card's order. bf16 becomes float32."""
        payload = self._read(Kind.TENSORS)
        tensors: dict[str, npt.NDArray[Any]] = {}
        with _malformed("tensors"):
            at = 0
            while at < len(payload):
                element, rank, length = struct.unpack_from("<BBH", payload, at)
                shape = struct.unpack_from(f"<{rank}I", payload, at + 4 + length)
                name = payload[at + 4 : at + 4 + length].decode()
                at += 4 + length + 4 * rank
                kind = _wire.ELEMENTS[element]
                stored = np.dtype("<u2" if kind == "bf16" else kind)
                n = math.prod(shape)
                if n * stored.itemsize > len(payload) - at or name in tensors:
                    raise ValueError(f"{name!r} of shape {shape} is cut, or there twice")
                values = np.frombuffer(payload[at : at + n * stored.itemsize], stored)
                at += values.nbytes
                if kind == "bf16":
                    values = (values.astype(np.uint32) << 16).view(np.float32)
                tensors[name] = values.reshape(shape)
        return tensors

    def _read(self, kind: Kind, size: int = 1) -> bytes:
        self.raise_for_status()
        if self.kind is not kind:
            raise ValueError(f"read {kind.value} of an answer: it has {self.kind.value}")
        if len(self.payload) % size != 0:
            raise ValueError(
                f"read {kind.value} of an answer: {len(self.payload)} bytes are no multiple of an entry's {size}"
            )
        return self.payload


def _boxes(rows: npt.NDArray[Any]) -> Boxes:
    return Boxes(rows["class"], rows["score"], rows["corners"])


@contextlib.contextmanager
def _malformed(what: str) -> Iterator[None]:
    """Raise ValueError for a payload that has not the form of its kind."""
    try:
        yield
    except (ValueError, IndexError, struct.error) as e:
        raise ValueError(f"read {what} of an answer: {e}") from None


class ClientError(Exception):
    """The base of this client's errors."""


class Closed(ClientError):
    """The client is closed, or was never opened."""


class RequestError(ClientError):
    """A request did not end with an ok answer."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.detail)
        self.answer = answer


class Late(RequestError):
    """The answer would have come after the deadline or the function's objective."""


class Incomplete(RequestError):
    """Fragments were lost, and the manager gave up waiting for them."""


class Busy(RequestError):
    """The manager had no room."""


class Refused(RequestError):
    """The model can never take this picture."""


class Failed(RequestError):
    """The model failed on this picture."""


class Unanswered(RequestError):
    """No complete answer came within the timeout."""


ERRORS: dict[Status, type[RequestError]] = {
    Status.LATE: Late,
    Status.INCOMPLETE: Incomplete,
    Status.BUSY: Busy,
    Status.REFUSED: Refused,
    Status.FAILED: Failed,
    Status.UNANSWERED: Unanswered,
}
