"""Plots of the profiles that `penstock profile` measures: MODEL.csv becomes MODEL.svg."""

import csv
import json
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from draw import BLACK, BLUE, GREEN, GREY, ORANGE, PURPLE, RED, Chart, legend
from report import PlotError, decode

COLUMNS = ["Mig instance", "Batch size", "Workload Number", "Throughput", "Latency"]
COLOURS = [BLUE, ORANGE, GREEN, PURPLE, RED, "#56b4e9", GREY, BLACK]
KNEE_FRACTION = 0.85  # of a batch's best throughput: models/profile says why


@dataclass
class Header:
    """What a profile was measured of. ParvaGPU's files have no header."""

    model: str = ""
    gpu: str = ""
    share: str = "gpcs"


@dataclass
class Curve:
    """A batch size with the fewest processes, and the points with more."""

    processes: int = 0
    shares: list[int] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    millis: list[float] = field(default_factory=list)
    more: list[tuple[int, float]] = field(default_factory=list)

    def knee(self) -> int | None:
        """Returns the index of the smallest share with enough throughput; None if only one was measured."""
        if len(self.shares) < 2:
            return None
        return next(i for i, rate in enumerate(self.rates) if rate >= KNEE_FRACTION * max(self.rates))


def read(path: Path) -> tuple[Header, dict[int, Curve]]:
    """Reads a profile: its header and its curves by batch size."""
    lines = path.read_text(encoding="utf-8-sig").splitlines()
    comment = " ".join(line[1:] for line in lines if line.startswith("#"))
    skipped = sum(line.startswith("#") for line in lines)
    try:
        header = decode(Header, json.loads(comment), "header") if "{" in comment else Header()
    except ValueError as e:
        raise PlotError(f"{path}: header: {e}") from None
    rows = csv.reader(lines[skipped:], skipinitialspace=True)
    if next(rows, [])[:5] != COLUMNS:
        raise PlotError(f"{path}:{skipped + 1}: want the columns {','.join(COLUMNS)}")
    points = []
    for row in rows:
        try:
            batch, processes, share = int(row[1]), int(row[2]), int(row[0])
            points.append((batch, processes, share, processes * float(row[3]), 1000 * float(row[4])))
        except (ValueError, IndexError):
            raise PlotError(f"{path}:{skipped + rows.line_num}: want numbers for {','.join(COLUMNS)}, found {','.join(row)}") from None
    return header, curves(points)


def curves(points: list[tuple[int, int, int, float, float]]) -> dict[int, Curve]:
    """Returns the curves of points (batch, processes, share, throughput of all, ms) that did not run out of memory."""
    found: dict[int, Curve] = defaultdict(Curve)
    for batch, processes, share, rate, millis in sorted(p for p in points if p[3] > 0):
        c = found[batch]
        c.processes = c.processes or processes
        if processes > c.processes:
            c.more.append((share, rate))
            continue
        c.shares.append(share)
        c.rates.append(rate)
        c.millis.append(millis)
    return found


def plot(path: Path) -> None:
    """Draws throughput and latency over the share, a line per batch size, a ring at its knee.

    Small dots are what more processes do.
    """
    header, found = read(path)
    label = "share: GPCs" if header.share == "gpcs" else "share: percent of the device"
    chart = Chart(columns=2)
    throughput = chart.plot(f"{header.model} on {header.gpu}", label, "images a second", 0)
    latency = chart.plot("the mean time of a batch; rings are knees", label, "ms", 1)
    for i, (batch, c) in enumerate(found.items()):
        colour = COLOURS[i % len(COLOURS)]
        throughput.plot([x for x, _ in c.more], [y for _, y in c.more], "o", color=colour, markersize=2)
        for axes, values in (throughput, c.rates), (latency, c.millis):
            axes.plot(c.shares, values, color=colour, linewidth=1.4, marker="o", markersize=4, label=f"batch {batch}")
            if (knee := c.knee()) is not None:
                axes.plot(c.shares[knee], values[knee], "o", color=colour, markersize=10, markerfacecolor="none")
    for axes in (throughput, latency):
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)
    legend(throughput, "upper left")
    chart.save_svg(path.with_suffix(".svg"))
