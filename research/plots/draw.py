"""Figures in one style: white PNGs with few colours and the same bytes in every run."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy
from matplotlib import rcParams
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.legend import Legend
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
from PIL import Image

from text import Spread, plain, span

# Okabe and Ito's colours, which colour-blind readers can tell apart.
BLUE, ORANGE, GREEN, PURPLE, RED = "#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00"
GREY, LIGHT, BLACK, FAINT = "#999999", "#d0d0d0", "#000000", "#e8e8e8"

DPI = 100
WIDTH, HEIGHT, SHEET_WIDTH = 9.451, 4.331, 11.811  # inches
CENTIMETRE = 1 / 2.54
COLOURS = 128  # of a PNG
DASHES = (0, (4, 2))
LONG_DASHES = (0, (6, 3))

rcParams.update(
    {
        "svg.hashsalt": "penstock", "font.family": "DejaVu Sans", "font.size": 8.5, "text.parse_math": False,
        "axes.titlesize": 10.5, "axes.labelsize": 8.5, "axes.edgecolor": GREY, "axes.grid": True, "axes.axisbelow": True,
        "axes.spines.top": False, "axes.spines.right": False, "axes.formatter.useoffset": False,
        "xtick.labelsize": 8, "ytick.labelsize": 8, "xtick.color": GREY, "ytick.color": GREY,
        "xtick.labelcolor": BLACK, "ytick.labelcolor": BLACK, "grid.color": FAINT, "grid.linewidth": 0.6, "lines.solid_capstyle": "butt",
        "legend.fontsize": 8, "legend.frameon": False, "legend.handlelength": 1.6, "legend.labelspacing": 0.3,
    }
)  # fmt: skip


def plot(axes: Axes, title: str, x: str, y: str) -> Axes:
    axes.set_title(title)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda v, _: plain(round(v, 6))))
    return axes


class Chart:
    """A PNG of plots in rows. Plots that are not asked for stay empty."""

    def __init__(self, columns: int = 1, rows: int = 1):
        self.figure = Figure((WIDTH, HEIGHT * rows), dpi=DPI, layout=ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.06))
        self.grid = self.figure.subplots(rows, columns, squeeze=False)
        for axes in self.grid.flat:
            axes.set_visible(False)

    def plot(self, title: str, x: str, y: str, at: int = 0) -> Axes:
        """Returns the plot at a place, counted row by row."""
        axes = self.grid.flat[at]
        axes.set_visible(True)
        return plot(axes, title, x, y)

    def save(self, folder: Path, name: str) -> str:
        for axes in self.grid.flat:
            fit(self.figure, axes.title, axes.get_window_extent().width * 1.05)
        return save(self.figure, folder, name)

    def save_svg(self, path: Path) -> None:
        self.figure.savefig(path, metadata={"Date": None})
        print(path)


@dataclass
class Entry:
    """An entry of a sheet's legend."""

    name: str
    colour: str
    dashed: bool = False

    def handle(self) -> Patch | Line2D:
        if self.dashed:
            return Line2D([], [], color=self.colour, linestyle=DASHES, label=self.name)
        return Patch(color=self.colour, label=self.name)


class Sheet:
    """A PNG of small plots under one title and one legend."""

    def __init__(self, title: str, legend: list[Entry], rows: int, columns: int, row_height: float):
        """row_height is in centimetres."""
        self.figure = Figure((SHEET_WIDTH, 1), dpi=DPI)
        heading = self.figure.text(0.01, 0.99, title, fontsize=12, va="top")
        fit(self.figure, heading, 0.97 * SHEET_WIDTH * DPI)
        key = self.legend(legend)
        top = 0.34 + key.get_window_extent().height / DPI  # inches
        height = top + row_height * CENTIMETRE * rows
        self.figure.set_figheight(height)
        heading.set_y(1 - 0.08 / height)
        key.set_bbox_to_anchor((0, 1 - 0.32 / height))
        self.figure.set_layout_engine(ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.05, rect=(0, 0, 1, 1 - top / height)))
        self.grid = self.figure.subplots(rows, columns, squeeze=False)
        for axes in self.grid.flat:
            axes.set_visible(False)

    def legend(self, entries: list[Entry]) -> Legend:
        """Puts the legend into as few rows as its width allows."""
        canvas = FigureCanvasAgg(self.figure)
        columns = len(entries)
        while True:
            key = self.figure.legend(
                handles=[e.handle() for e in entries], ncol=columns, loc="upper left", fontsize=8.5,
                borderaxespad=0.2, columnspacing=1.4, handletextpad=0.5,
            )  # fmt: skip
            canvas.draw()
            if columns <= 1 or key.get_window_extent().width <= SHEET_WIDTH * DPI:
                return key
            key.remove()
            columns -= 1

    def plot(self, row: int, column: int, title: str, x: str, y: str) -> Axes:
        axes = plot(self.grid[row, column], title, x, y)
        axes.set_visible(True)
        axes.title.set_fontsize(9)
        axes.tick_params(labelsize=7.5)
        return axes

    def save(self, folder: Path, name: str) -> str:
        return save(self.figure, folder, name)


def fit(figure: Figure, text, width: float) -> None:
    """Shrinks a text to a width in pixels."""
    FigureCanvasAgg(figure)
    wide = text.get_window_extent(figure.canvas.get_renderer()).width
    if wide > width:
        text.set_fontsize(text.get_fontsize() * width / wide)


def save(figure: Figure, folder: Path, name: str) -> str:
    """Writes NAME.png in its most frequent colours and returns its name.

    Only the edges of letters and lines have more colours. They get the nearest one.
    """
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    pixels = numpy.asarray(canvas.buffer_rgba())[:, :, :3].astype(numpy.int64)
    codes, inverse, counts = numpy.unique(pixels @ [65536, 256, 1], return_inverse=True, return_counts=True)
    colours = numpy.stack([codes >> 16, codes >> 8 & 255, codes & 255], axis=1)
    palette = colours[numpy.lexsort((codes, -counts))[:COLOURS]]
    nearest = ((colours[:, None] - palette[None]) ** 2).sum(axis=2).argmin(axis=1)
    image = Image.fromarray(nearest[inverse].reshape(pixels.shape[:2]).astype(numpy.uint8))
    image.putpalette(palette.astype(numpy.uint8).tobytes())
    path = folder / f"{name}.png"
    image.save(path, optimize=True)
    print(path)
    return name


@dataclass
class Bars:
    """The bars of one colour, one per group. NaN leaves a gap."""

    name: str
    colour: str
    values: list[float]
    labels: list[str]


def grouped(axes: Axes, groups: list[str], series: list[Bars], base: float = 0) -> None:
    """Draws labelled bars side by side, which begin at base."""
    each = 0.8 / len(series)
    for i, s in enumerate(series):
        for group, (value, label) in enumerate(zip(s.values, s.labels)):
            if not math.isnan(value):
                x = group - 0.4 + each * (i + 0.5)
                axes.bar(x, value - base, each * 0.92, base, color=s.colour)
                axes.annotate(label, (x, value), (0, 2), textcoords="offset points", ha="center", va="bottom", fontsize=7)
        axes.bar(0, 0, color=s.colour, label=s.name)
    name_groups(axes, groups)


def spread_bars(axes: Axes, groups: list[str], colours: Sequence[str], values: list[list[Spread]], base: float = 0) -> None:
    """Draws medians as bars with whiskers. values[i][g] has colour i in group g."""
    each = 0.84 / len(colours)
    for i, (colour, row) in enumerate(zip(colours, values)):
        for group, v in enumerate(row):
            if v.runs:
                x = group - 0.42 + each * (i + 0.5)
                axes.bar(x, v.median - base, each * 0.9, base, color=colour)
                whisker(axes, BLACK, x, v)
    name_groups(axes, groups)


def name_groups(axes: Axes, groups: list[str]) -> None:
    axes.set_xticks(range(len(groups)), groups)
    axes.set_xlim(-0.5, max(len(groups), 1) - 0.5)
    axes.grid(False, axis="x")


def whisker(axes: Axes, colour: str, x: float, v: Spread) -> None:
    if v.runs > 1 and v.low != v.high:
        axes.plot([x, x], [v.low, v.high], color=colour, linewidth=1)


def band(axes: Axes, colour: str, xs: list[float], ys: list[Spread], dashed: bool = False) -> None:
    """Draws a line of medians with whiskers, interrupted where there are no runs."""
    points(axes, colour, xs, [y.median for y in ys], dashed)
    for x, y in zip(xs, ys):
        whisker(axes, colour, x, y)


def points(axes: Axes, colour: str, xs: list[float], ys: list[float], dashed: bool = False, name: str | None = None) -> None:
    """Draws points that a line joins."""
    style = {"linestyle": DASHES, "markerfacecolor": "white"} if dashed else {"linestyle": "-"}
    axes.plot(xs, ys, color=colour, linewidth=1.5, marker="o", markersize=4, label=name, **style)


def trace(axes: Axes, colour: str, xs: list[float], ys: list[float], dashed: bool = False) -> None:
    """Draws a line without points, interrupted by NaN."""
    axes.plot(xs, ys, color=colour, linewidth=1 if dashed else 1.3, linestyle=(0, (3, 2)) if dashed else "-")


def target(axes: Axes, name: str, height: float, start: float = 0, end: float = 1) -> None:
    """Draws a line at a height that must be reached or kept; start and end are parts of the width."""
    axes.axhline(height, start, end, color=RED, linewidth=1.5, linestyle=LONG_DASHES, label=name)


def across(axes: Axes, colour: str, height: float) -> None:
    axes.axhline(height, color=colour, linewidth=1.2, linestyle=LONG_DASHES)


def upright(axes: Axes, colour: str, x: float) -> None:
    axes.axvline(x, color=colour, linewidth=0.8, linestyle=(0, (2, 2)))


def logarithmic(axes: Axes, low: float, high: float) -> None:
    """Makes the y axis logarithmic, with ticks at 1, 2 and 5; a wide one names powers of ten only."""
    axes.set_yscale("log")
    axes.set_ylim(low, high)
    steps = (1, 2, 5) if high / low < 200 else (1,)
    axes.yaxis.set_major_locator(LogLocator(subs=steps))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:.4g}"))
    axes.yaxis.set_minor_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_minor_formatter(NullFormatter())


def log_x(axes: Axes, write: Callable[[float], str]) -> None:
    """Makes the x axis logarithmic, with names at powers of ten."""
    axes.set_xscale("log")
    name_powers(axes.xaxis, write)


def log_y(axes: Axes, write: Callable[[float], str]) -> None:
    axes.set_yscale("log")
    name_powers(axes.yaxis, write)


def name_powers(axis: Axis, write: Callable[[float], str]) -> None:
    axis.set_major_locator(LogLocator(numticks=12))
    axis.set_major_formatter(FuncFormatter(lambda v, _: write(v)))
    axis.set_minor_formatter(NullFormatter())


def times(nanoseconds: float) -> Callable[[float], str]:
    """Returns the writer of an axis whose unit is so long."""
    return lambda v: span(v * nanoseconds)


def legend(axes: Axes, place: str = "upper right") -> None:
    """Adds a legend, bars before lines."""
    handles = sorted(zip(*axes.get_legend_handles_labels()), key=lambda pair: isinstance(pair[0], Line2D))
    if handles:
        axes.legend(*zip(*handles), loc=place)
