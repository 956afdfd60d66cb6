"""Numbers, tables and claims as the Markdown pages have them."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

NAN = math.nan


def rounded(value: float) -> float:
    """Rounds to the nearest integer, halves away from zero."""
    whole = math.floor(abs(value))
    return math.copysign(whole + (abs(value) - whole >= 0.5), value)


def plain(value: float) -> str:
    """Writes the shortest decimal that reads back as value."""
    return repr(float(value)).removesuffix(".0")


def number(value: float) -> str:
    """Writes 11432.1 as 11,432."""
    return f"{int(rounded(value)):,}"


def short(value: float) -> str:
    """Writes two or three digits, without trailing zeros."""
    if value >= 100:
        return number(value)
    digits = 10 if value >= 10 else 100
    return plain(rounded(value * digits) / digits)


def tenths(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def span(nanoseconds: float) -> str:
    """Writes a time with two or three digits in the largest fitting unit."""
    for unit, size in ("s", 1e9), ("ms", 1e6), ("µs", 1e3):
        if nanoseconds / size >= 0.9995:
            return f"{short(nanoseconds / size)} {unit}"
    return f"{short(nanoseconds)} ns"


def millis(value: float) -> str:
    return f"{short(value)} ms"


def rate(value: float) -> str:
    return f"{number(value)}/s"


def divide(a: float, b: float) -> float:
    """Returns a / b, and NaN if b is 0."""
    return a / b if b else NAN


def positive(value: float) -> float:
    """Returns value, and NaN if it is not above 0: reports write 0 for "not measured"."""
    return value if value > 0 else NAN


def met(reached: bool) -> str:
    return "yes" if reached else "**no**"


def claim(text: str, against: list[str]) -> str:
    """Returns a sentence with its answer: true, or what contradicts it."""
    return f"{text}: **false**, {'; '.join(against)}." if against else f"{text}: **true**."


def bullets(sentences: list[str]) -> str:
    return "".join(f"- {s}\n" for s in sentences)


def head(names: str) -> list[str]:
    """Returns the first row of a table from its names, divided by " | "."""
    return names.split(" | ")


def table(rows: list[list[str]]) -> str:
    """Writes a Markdown table. The first row is its head."""
    lines = [f"| {' | '.join(row)} |\n" for row in rows]
    lines.insert(1, f"|{'---|' * len(rows[0])}\n")
    return "".join(lines)


def median(values: Iterable[float]) -> float:
    ordered = sorted(values)
    below, above = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
    return below + (above - below) / 2


@dataclass
class Spread:
    """Median, minimum and maximum of one quantity over runs. NaN if there are no runs."""

    median: float = NAN
    low: float = NAN
    high: float = NAN
    runs: int = 0

    @classmethod
    def from_values(cls, values: Iterable[float]) -> "Spread":
        measured = [v for v in values if not math.isnan(v)]
        if not measured:
            return cls()
        return cls(median(measured), min(measured), max(measured), len(measured))

    def text(self, write: Callable[[float], str], unit: str = "") -> str:
        """Writes the median, the range if it shows, and the unit once."""
        if self.runs == 0:
            return "–"
        if self.runs == 1 or write(self.low) == write(self.high):
            return write(self.median) + unit
        return f"{write(self.median)} ({write(self.low)}–{write(self.high)}){unit}"

    def below(self, other: "Spread") -> bool:
        """Reports whether every run is below every run of other."""
        return self.runs > 0 and other.runs > 0 and self.high < other.low


def gained(a: Spread, b: Spread) -> str:
    """Writes by how many percent a's median exceeds b's."""
    if a.runs == 0 or b.runs == 0 or b.median == 0:
        return "–"
    return f"{100 * (a.median / b.median - 1):+.0f} %"
