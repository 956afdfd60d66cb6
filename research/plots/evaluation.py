"""The reports of `penstock-lab evaluate`: what was measured of one of the paper's figures."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from report import NotMeasured, Percentiles, PlotError, Report, Reports
from text import NAN, Spread, divide, positive

# How a case is measured: an open loop at several levels, a closed loop, an open loop during
# which something happens, a framework alone with ready batches.
LOADS, CLOSED, TIMELINE, BARE = "loads", "closed", "timeline", "bare"


@dataclass
class FunctionSetting:
    name: str = ""
    model: str = ""
    slo_ms: float = 0
    batches: list[int] = field(default_factory=list)


@dataclass
class EventSetting:
    at_s: float = 0


@dataclass
class Case:
    name: str = ""
    kind: str = ""
    functions: list[FunctionSetting] = field(default_factory=list)
    variants: list[str] = field(default_factory=list)
    events: list[EventSetting] = field(default_factory=list)


@dataclass
class Variant:
    name: str = ""
    label: str = ""
    baseline: bool = False


@dataclass
class Capacity:
    """A model's rate alone on the whole device."""

    model: str = ""
    per_s: float = 0


@dataclass
class Guarantee:
    """A function's guarantee and need at the end of the window, in percent of the device's time."""

    percent: float = 0
    need_percent: float = 0


@dataclass
class FunctionLoad:
    name: str = ""
    offered_rps: float = 0
    answered_rps: float = 0
    goodput_rps: float = 0
    within_percent: float = 0
    p50_ms: float = 0
    p99_ms: float = 0
    batch_ms: float = 0
    mean_batch: float = 0
    sms: int = 0
    guarantee: Guarantee | None = None
    ok: int = 0


@dataclass
class Load:
    level: float = 0
    seconds: float = 0
    offered_rps: float = 0
    goodput_rps: float = 0
    within_percent: float = 0
    gue: float = 0
    functions: list[FunctionLoad] = field(default_factory=list)
    sender_behind: bool = False

    def function(self, name: str) -> FunctionLoad:
        return next(f for f in self.functions if f.name == name)

    def tail(self) -> float:
        """Returns the slowest function's p99 in ms; NaN if one had no answers."""
        if any(f.ok == 0 for f in self.functions):
            return NAN
        return positive(max((f.p99_ms for f in self.functions), default=0))

    def middle(self) -> float:
        """Returns the functions' mean p50 in ms, weighted by answers."""
        return divide(sum(f.p50_ms * f.ok for f in self.functions), sum(f.ok for f in self.functions))


@dataclass
class Bin:
    offered: int = 0
    ok: int = 0
    within: int = 0
    p99_ms: float = 0
    mean_batch: float = 0
    share_percent: float = 0
    limit_batch: float = 0


@dataclass
class FunctionTimeline:
    name: str = ""
    bins: list[Bin] = field(default_factory=list)
    t90_s: float = 0
    total: FunctionLoad = field(default_factory=FunctionLoad)
    swap_idle_ms: float = 0
    swaps: int = 0

    def t90_ms(self) -> float:
        return positive(1000 * self.t90_s)

    def late_percent(self) -> float:
        """Requests not answered within the objective: what a node gives up is in no percentile of its answers."""
        return 100 - self.total.within_percent


@dataclass
class Event:
    at_s: float = 0
    what: str = ""
    function: str = ""


@dataclass
class Timeline:
    bin_s: float = 0
    seconds: float = 0
    events: list[Event] = field(default_factory=list)
    functions: list[FunctionTimeline] = field(default_factory=list)

    def function(self, name: str) -> FunctionTimeline | None:
        return next((f for f in self.functions if f.name == name), None)

    def middles(self, function: FunctionTimeline) -> list[float]:
        """Returns the middle of each bin in seconds."""
        return [(i + 0.5) * self.bin_s for i in range(len(function.bins))]


@dataclass
class Point:
    model: str = ""
    batch: int = 0
    streams: int = 0
    percent: float = 0
    sms: int = 0
    images_per_s: float = 0
    batch_us: Percentiles = field(default_factory=Percentiles)
    error: str = ""

    def speed(self) -> float:
        return positive(self.images_per_s)

    def batch_ms(self) -> float:
        return positive(self.batch_us.p50 / 1000)


@dataclass
class Result:
    """One run of one variant on one case."""

    case: str = ""
    variant: str = ""
    run: int = 0
    date: str = ""
    penstock: str = ""
    error: str = ""
    loads: list[Load] = field(default_factory=list)
    timeline: Timeline = field(default_factory=Timeline)
    points: list[Point] = field(default_factory=list)
    lost: int = 0

    def closed(self, function: str, value: Callable[[FunctionLoad], float]) -> float:
        """Returns a value of a function in a closed loop; NaN if there is none."""
        return next((value(f) for load in self.loads for f in load.functions if f.name == function), NAN)

    def answered(self, function: str) -> float:
        return self.closed(function, lambda f: f.answered_rps)

    def in_time(self) -> int:
        """Returns how many requests were answered within their objectives in the timeline."""
        return sum(b.within for f in self.timeline.functions for b in f.bins)

    def only(self) -> FunctionTimeline | None:
        """Returns the first function of the timeline."""
        return self.timeline.functions[0] if self.timeline.functions else None


@dataclass
class Evaluation(Report):
    version: int = 0
    figure: str = ""
    title: str = ""
    paper: str = ""
    sms: int = 0
    quick: bool = False
    seed: int = 0
    cases: list[Case] = field(default_factory=list)
    variants: list[Variant] = field(default_factory=list)
    capacity: list[Capacity] = field(default_factory=list)
    results: list[Result] = field(default_factory=list)
    left: int = 0

    def check(self) -> None:
        if self.version != 1:
            raise ValueError(f"version: want 1, found {self.version}")
        cases = {c.name: c for c in self.cases}
        for c in self.cases:
            if c.kind not in (LOADS, CLOSED, TIMELINE, BARE) or not c.functions:
                raise ValueError(f"case {c.name}: want kind loads, closed, timeline or bare, and functions")
        seen = set()
        for i, r in enumerate(self.results):
            place = f"results[{i}] ({r.case}, {r.variant}, run {r.run})"
            if r.case not in cases or r.variant not in cases[r.case].variants:
                raise ValueError(f"{place}: want a case and variant that cases has")
            if (r.case, r.variant, r.run) in seen:
                raise ValueError(f"{place}: want each run once")
            seen.add((r.case, r.variant, r.run))
            if not r.error:
                check_result(place, cases[r.case], r)

    def runs(self, case: str, variant: str) -> list[Result]:
        """Returns a variant's complete runs on a case, in order."""
        return sorted((r for r in self.results if (r.case, r.variant, r.error) == (case, variant, "")), key=lambda r: r.run)

    def timelines(self, case: str, variant: str) -> list[Result]:
        return [r for r in self.runs(case, variant) if r.timeline.functions]

    def failed(self, case: str, variant: str) -> tuple[int, str]:
        """Returns how many runs failed, and why the last of them did."""
        errors = [r.error for r in self.results if (r.case, r.variant) == (case, variant) and r.error]
        return len(errors), reason(errors[-1]) if errors else ""

    def failures(self) -> list[str]:
        """Returns a sentence for each variant, and each percentage of a model, that failed."""
        sentences: list[str] = []
        for c in self.cases:
            for v in c.variants:
                runs = self.runs(c.name, v)
                for p in (p for r in runs for p in r.points if p.error):
                    sentences.append(f"**{c.name}, {self.label(v)}, failed** with {p.model} at {p.percent:g} %: {reason(p.error)}")
                count, why = self.failed(c.name, v)
                if count:
                    times = f"in {count} of {count + len(runs)} runs" if runs else f"in all its runs, {count}"
                    sentences.append(f"**{c.name}, {self.label(v)}, failed** {times}: {why}")
        return list(dict.fromkeys(sentences))

    def label(self, variant: str) -> str:
        return next((v.label for v in self.variants if v.name == variant), variant)

    def cases_of(self, kind: str) -> list[Case]:
        return [c for c in self.cases if c.kind == kind]

    def measured(self, cases: list[Case]) -> list[str]:
        """Returns the variants of cases that have a run, in the report's order."""
        return [v.name for v in self.variants if any(v.name in c.variants and self.runs(c.name, v.name) for c in cases)]

    def levels(self, case: str) -> list[float]:
        return sorted({load.level for r in self.results if r.case == case for load in r.loads})

    def loads(self, case: str, variant: str, level: float) -> list[Load]:
        return list(self.loads_by_run(case, variant, level).values())

    def loads_by_run(self, case: str, variant: str, level: float) -> dict[int, Load]:
        return {r.run: load for r in self.runs(case, variant) for load in r.loads if load.level == level}

    def points(self, case: str, variant: str, model: str) -> list[Point]:
        """Returns bare measurements of a model."""
        return [p for r in self.runs(case, variant) for p in r.points if p.model == model and not p.error and p.images_per_s > 0]

    def ready(self, case: Case, model: str, batch: int, streams: int) -> list[Point]:
        """Returns bare measurements of a batch size on the whole device."""
        points = (p for v in case.variants for p in self.points(case.name, v, model))
        return [p for p in points if (p.batch, p.streams) == (batch, streams)]

    def by_share(self, case: str, variant: str, model: str, batch: int) -> list[tuple[float, list[Point]]]:
        """Returns bare measurements of a batch size by percentage of multiprocessors.

        The number that a process counted is more exact than the percentage that it was given.
        """
        found: dict[float, list[Point]] = {}
        for p in self.points(case, variant, model):
            if p.batch == batch:
                share = 100 * p.sms / self.sms if p.sms > 0 and self.sms > 0 else p.percent
                found.setdefault(share, []).append(p)
        return sorted(found.items())

    def percent_of_alone(self, function: FunctionSetting, runs: list[Result]) -> Spread:
        """Returns a function's rate in closed loops in percent of its rate alone."""
        alone = NAN
        for c in self.cases_of(CLOSED):
            if len(c.functions) == 1 and c.functions[0].model == function.model and c.variants:
                alone = spread(self.runs(c.name, c.variants[0]), lambda r: r.answered(c.functions[0].name)).median
        return spread(runs, lambda r: divide(100 * r.answered(function.name), alone))


def check_result(place: str, case: Case, r: Result) -> None:
    names = sorted(f.name for f in case.functions)
    measured = {LOADS: bool(r.loads), CLOSED: bool(r.loads), TIMELINE: bool(r.timeline.functions), BARE: bool(r.points)}
    if not measured[case.kind]:
        want = {TIMELINE: "a timeline", BARE: "points"}.get(case.kind, "loads")
        raise ValueError(f"{place}: want {want} or an error")
    found = [[f.name for f in load.functions] for load in r.loads]
    if case.kind == TIMELINE:
        found.append([f.name for f in r.timeline.functions])
    if any(sorted(functions) != names for functions in found):
        raise ValueError(f"{place}: want the functions of its case, {', '.join(names)}")
    if case.kind == TIMELINE and (r.timeline.bin_s <= 0 or r.timeline.seconds <= 0):
        raise ValueError(f"{place}: want a timeline with bin_s and seconds above 0")


def read(reports: Reports, name: str) -> Evaluation:
    e = reports.read(name, Evaluation)
    if e.quick:
        raise NotMeasured(f"{name}.json is a trial (--quick), which shows nothing")
    if e.figure != name:
        raise PlotError(f"{reports.folder / name}.json: figure: want {name}, found {e.figure}")
    return e


Item = TypeVar("Item")


def spread(items: Iterable[Item], value: Callable[[Item], float]) -> Spread:
    return Spread.from_values(value(item) for item in items)


def only_spread(runs: list[Result], value: Callable[[FunctionTimeline], float]) -> Spread:
    """Returns the spread over runs of a value of their only function."""
    return spread([f for r in runs if (f := r.only())], value)


def kept_up(loads: list[Load]) -> list[Load]:
    """Leaves out loads whose sender fell behind: what they miss is not the variant's fault."""
    return [load for load in loads if not load.sender_behind]


def median_run(runs: list[Result], value: Callable[[Result], float]) -> Result | None:
    """Returns the run with the median value, the lower of two in the middle."""
    ordered = sorted((r for r in runs if r.timeline.functions), key=value)
    return ordered[(len(ordered) - 1) // 2] if ordered else None


def reason(text: str) -> str:
    """Returns the reason in a failure's text on one short line.

    The text may end with the node's log, one JSON object per line, in which processes
    report why they do not serve.
    """
    head, key = text.partition("\n")[0], '"reason":"'
    if key in text and "does not serve" not in head:
        head = text.rpartition(key)[2].partition('","')[0]
    elif text.startswith("…"):
        head = "only the end of the node's log is left of it, in the report"
    if len(head) > 240:
        head = head[:240] + " …"
    return head.replace("|", "/")


def finite(values: Iterable[float]) -> list[float]:
    return [v for v in values if math.isfinite(v)]
