"""Reads the JSON reports that penstock-lab writes."""

import functools
import json
import math
import types
import typing
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path


class PlotError(Exception):
    """A problem in the input. The message names the file and the place in it."""


class NotMeasured(Exception):
    """A report that is not there yet. Its figures and tables are left out."""


@dataclass
class Percentiles:
    p50: float = 0
    p99: float = 0
    max: float = 0


@dataclass
class Stages:
    """The stages of a request within a node, behind aggregation."""

    queue_us: Percentiles = field(default_factory=Percentiles)
    gather_us: Percentiles = field(default_factory=Percentiles)
    infer_us: Percentiles = field(default_factory=Percentiles)
    reply_us: Percentiles = field(default_factory=Percentiles)


@dataclass
class Gpu:
    name: str = ""
    uuid: str = ""
    memory_bytes: int = 0

    def __str__(self) -> str:
        return f"{self.name}, {self.memory_bytes // 10**9} GB"


@dataclass
class Machine:
    date: str = ""
    penstock: str = ""
    go: str = ""
    kernel: str = ""
    cpu: str = ""
    cpus: int = 0
    gpus: list[Gpu] = field(default_factory=list)
    driver: str = ""
    cuda: str = ""
    onnx_runtime: str = ""

    def cores(self) -> str:
        return f"{self.cpu}, {self.cpus} cores"


@dataclass
class Report:
    """A report: fields have the names of its JSON keys. Absent keys are 0, "" or empty."""

    machine: Machine = field(default_factory=Machine)
    device: str = ""

    def check(self) -> None:
        """Raises ValueError if figures or tables of the report would be wrong."""


AnyReport = typing.TypeVar("AnyReport", bound=Report)


class Reports:
    """The reports in one folder. Each is read once."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.cache: dict[tuple[str, type], typing.Any] = {}

    def read(self, name: str, kind: type[AnyReport]) -> AnyReport:
        """Reads NAME.json. Raises NotMeasured if there is no such file."""
        if (name, kind) not in self.cache:
            self.cache[name, kind] = self.load(self.folder / f"{name}.json", kind)
        return self.cache[name, kind]

    def load(self, path: Path, kind: type[AnyReport]) -> AnyReport:
        try:
            value = json.loads(path.read_bytes(), parse_constant=refuse)
        except FileNotFoundError:
            raise NotMeasured(f"{path} is not there") from None
        except json.JSONDecodeError as e:
            raise PlotError(f"{path}:{e.lineno}:{e.colno}: not JSON: {e.msg}") from None
        except (OSError, ValueError) as e:
            raise PlotError(f"{path}: cannot read report: {e}") from None
        try:
            report = decode(kind, value, "")
            report.check()
        except (ValueError, OverflowError) as e:
            raise PlotError(f"{path}: {e}") from None
        return report


def refuse(constant: str) -> float:
    raise ValueError(f"{constant} is not a JSON number")


NAMES = {float: "a number", int: "a whole number", str: "a string", bool: "true or false", list: "a list", dict: "an object"}


@functools.cache
def items(kind: type) -> dict[str, typing.Any]:
    """Returns the types of a dataclass's fields by name."""
    hints = typing.get_type_hints(kind)
    return {f.name: hints[f.name] for f in fields(kind)}


def accepted(value: typing.Any, want: type) -> bool:
    if isinstance(value, bool):
        return want is bool
    return isinstance(value, (int, float) if want is float else want)


def decode(kind: typing.Any, value: typing.Any, place: str) -> typing.Any:
    """Converts parsed JSON to kind: a dataclass, list, dict, number, string or bool."""
    origin, is_record = typing.get_origin(kind), is_dataclass(kind)
    if origin is types.UnionType:  # X | None
        return decode(typing.get_args(kind)[0], value, place)
    want = dict if is_record else origin or kind
    if not accepted(value, want):
        raise ValueError(f"{place.lstrip('.') or 'report'}: want {NAMES[want]}, found {json.dumps(value)[:40]}")
    if is_record:
        present = {name: item for name, item in items(kind).items() if value.get(name) is not None}
        return kind(**{name: decode(item, value[name], f"{place}.{name}") for name, item in present.items()})
    if want is list:
        (item,) = typing.get_args(kind)
        return [decode(item, v, f"{place}[{i}]") for i, v in enumerate(value)]
    if want is dict:
        item = typing.get_args(kind)[1]
        return {key: decode(item, v, f"{place}.{key}") for key, v in value.items()}
    if want is float and not math.isfinite(value):
        raise ValueError(f"{place.lstrip('.')}: {value} is out of range")
    return want(value)
