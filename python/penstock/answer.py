"""What a client returns for a picture, and the errors that it raises."""

from __future__ import annotations

import enum
from dataclasses import dataclass

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
        """The boxes of an answer of kind BOXES."""
        rows = np.frombuffer(self._read(Kind.BOXES, _wire.BOX.itemsize), _wire.BOX)
        return Boxes(rows["class"], rows["score"], rows["corners"])

    @property
    def values(self) -> npt.NDArray[np.float32]:
        """The model's outputs, one after the other, of an answer of kind VALUES."""
        return np.frombuffer(self._read(Kind.VALUES, 4), "<f4")

    def _read(self, kind: Kind, size: int) -> bytes:
        self.raise_for_status()
        if self.kind is not kind:
            raise ValueError(f"read {kind.value} of an answer: it has {self.kind.value}")
        if len(self.payload) % size != 0:
            raise ValueError(
                f"read {kind.value} of an answer: {len(self.payload)} bytes are no multiple of an entry's {size}"
            )
        return self.payload


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
