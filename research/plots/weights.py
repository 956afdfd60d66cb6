"""Table 1: what an instance costs with weights of its own and with shared ones."""

from collections.abc import Callable
from dataclasses import dataclass, field

import report
from draw import GREEN, LIGHT, Entry, Sheet, spread_bars
from text import Spread, bullets, divide, number, short, table

# The paper's load time in ms, GPU memory in MB and instances on 16 GB, each standalone and
# with parameters shared.
PAPER = {
    "alexnet": ((781, 97), (1037, 795), (15, 18)),
    "resnet50": ((430, 89), (917, 805), (17, 18)),
    "resnet152": ((747, 103), (1101, 805), (14, 18)),
    "vgg19": ((1561, 107), (1389, 825), (11, 17)),
}


@dataclass
class Run:
    load_ms: float = 0
    wake_ms: float = 0
    context_ms: float = 0
    bytes: int = 0


@dataclass
class Instance(Run):
    runs: list[Run] = field(default_factory=list)

    def spread(self, cost: Callable[[Run], float]) -> Spread:
        return Spread.from_values(map(cost, self.runs or [self]))


@dataclass
class Case:
    one: Instance = field(default_factory=Instance)
    ladder: Instance = field(default_factory=Instance)
    fit: int = 0


@dataclass
class Model:
    model: str = ""
    weights_bytes: int = 0
    private: Case = field(default_factory=Case)
    shared: Case = field(default_factory=Case)
    prepared: Run = field(default_factory=Run)
    uploaded: Run = field(default_factory=Run)


@dataclass
class Weights(report.Report):
    budget_bytes: int = 0
    runs: int = 0
    models: list[Model] = field(default_factory=list)

    def check(self) -> None:
        if not self.models:
            raise ValueError("models: want one or more")


def read(reports: report.Reports) -> Weights:
    return reports.read("weights", Weights)


def load_ms(run: Run) -> float:
    """Until it stands by."""
    return run.load_ms


def start_ms(run: Run) -> float:
    """Until it serves."""
    return run.load_ms + run.wake_ms


def megabytes(run: Run) -> float:
    return run.bytes / 1e6


def draw(reports: report.Reports) -> list[str]:
    r = read(reports)
    legend = [Entry("weights of its own", LIGHT), Entry("shared weights", GREEN)]
    sheet = Sheet(f"Shared weights, instances with all batch sizes ({r.device})", legend, rows=1, columns=4, row_height=7)
    kinds: list[tuple[str, str, Callable[[Case], Spread]]] = [
        ("Load", "ms", lambda c: c.ladder.spread(load_ms)),
        ("Load and wake", "ms", lambda c: c.ladder.spread(start_ms)),
        ("GPU memory of an instance", "MB", lambda c: c.ladder.spread(megabytes)),
        (f"Instances in {r.budget_bytes / 2**30:.0f} GiB", "", lambda c: Spread.from_values([c.fit])),
    ]
    for column, (title, unit, cost) in enumerate(kinds):
        axes = sheet.plot(0, column, title, "", unit)
        values = [[cost(m.private) for m in r.models], [cost(m.shared) for m in r.models]]
        spread_bars(axes, [m.model for m in r.models], [LIGHT, GREEN], values)
        axes.set_ylim(0, 1.08 * max([1, *(v.high for row in values for v in row)]))
    return [sheet.save(reports.folder, "weights")]


def arrow(own: float, shared: float) -> str:
    return f"{number(own)} → {number(shared)} ({short(divide(own, shared))}×)"


def fit(own: int, shared: int) -> str:
    return f"{own} → {shared} ({100 * (shared / own - 1):+.0f} %)" if own else "–"


def times(m: Model, cost: Callable[[Run], float]) -> float:
    return divide(m.private.ladder.spread(cost).median, m.shared.ladder.spread(cost).median)


def ladder(m: Model, cost: Callable[[Run], float]) -> str:
    own, shared = m.private.ladder.spread(cost), m.shared.ladder.spread(cost)
    return f"{own.text(number)} → {shared.text(number)} ({short(times(m, cost))}×)"


def weights_table(reports: report.Reports) -> str:
    r = read(reports)
    rows = [["model", "paper: load, ms", "memory, MB", "instances, 16 GB", "here: load, ms", "load and wake, ms", "memory, MB",
             "memory with one batch size, MB", "weights, MB once", f"instances, {r.budget_bytes / 2**30:.0f} GiB"]]  # fmt: skip
    for m in r.models:
        paper = ["", "", ""]
        if m.model in PAPER:
            load, memory, instances = PAPER[m.model]
            paper = [arrow(*load), arrow(*memory), fit(*instances)]
        one = arrow(megabytes(m.private.one), megabytes(m.shared.one))
        costs = [ladder(m, cost) for cost in (load_ms, start_ms, megabytes)]
        rows.append([m.model, *paper, *costs, one, number(m.weights_bytes / 1e6), fit(m.private.fit, m.shared.fit)])
    loads, starts = ([times(m, cost) for m in r.models] for cost in (load_ms, start_ms))
    more = [100 * (m.shared.fit / m.private.fit - 1) for m in r.models if m.private.fit > 0]
    sentences = [
        f"An instance loads {short(min(loads))} to {short(max(loads))} times as fast; the paper's tables give 5 to 15 times, its text 8 to 10. "
        f"With waking, which the paper leaves out, it is {short(min(starts))} to {short(max(starts))} times."
    ]
    if more:
        sentences.append(f"{min(more):+.0f} to {max(more):+.0f} % instances fit; the paper has 5 to 54 % more.")
    first = "; ".join(f"{m.model} {number(start_ms(m.prepared))} and {number(m.uploaded.wake_ms)} ms" for m in r.models)
    return (
        f"Medians of {r.runs} runs on {r.device} (min–max), instances with all batch sizes, each process a client of MPS. "
        "*Load* is the time from a process's start to a shadow that has the model and has not used the GPU. *Wake* is the time "
        f"from then until all batch sizes are configured. A context alone takes {number(r.models[0].shared.one.context_ms)} ms of it.\n\n"
        f"{table(rows)}\n{bullets(sentences)}\n"
        "The first instance of all has its model prepared (start to serving). The first instance on a device puts the weights "
        f"there (wake). They take: {first}.\n"
    )
