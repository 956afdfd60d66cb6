"""Whether guarantees meet their goals, and where they miss them."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import evaluation
from evaluation import Case, Evaluation, Load, kept_up, spread
from report import NotMeasured, Reports
from text import bullets, divide, head, number, table, tenths

# A function is within its guarantee if its need is at most so many times the guarantee.
WITHIN = 1.05
# The goals: percent in time within a guarantee, goodput and largest p99 compared with other variants.
IN_TIME_PERCENT = 99.5
MIN_GOODPUT = 0.99
MAX_TAIL = 1.1
# Another variant keeps a function's objective if it has so many percent in time.
KEPT_PERCENT = 99

# The reports with loads, and the one whose capacities stand for those of a report without them.
REPORTS = ["guarantees", "mixes", "new-mixes", "short-objectives", "overload"]
CAPACITIES = "mixes"

# The variants as the pages call them. An evaluation names what a node was built to do.
LABELS = {"mps-slab": "no shares", "static": "fixed percentages", "penstock-shadow": "shadows", "penstock": "partitions"}


def label(variant: str) -> str:
    return LABELS.get(variant, variant)


@dataclass
class Window:
    """All variants' runs of a case at one load."""

    case: Case
    level: float
    loads: dict[str, list[Load]]
    capacity: dict[str, float]

    def __str__(self) -> str:
        return f"{self.case.name}, {100 * self.level:.0f} %"

    def within(self) -> list[str]:
        """Returns the functions that are within their guarantees in each run."""
        return [f.name for f in self.case.functions if all(inside(load, f.name) for load in self.loads["guarantees"])]

    def keeps(self, variant: str, functions: list[str]) -> bool:
        return all(self.in_time(variant, name) >= KEPT_PERCENT for name in functions)

    def in_time(self, variant: str, function: str) -> float:
        return spread(self.loads[variant], lambda load: load.function(function).within_percent).median

    def goodput(self, variant: str) -> float:
        """Returns the goodput in device seconds per second: each answer counts what it costs its model alone."""
        cost = {f.name: divide(1, self.capacity.get(f.model, 0)) for f in self.case.functions}
        return spread(self.loads[variant], lambda load: sum(f.goodput_rps * cost[f.name] for f in load.functions)).median

    def tail(self, variant: str) -> float:
        """Returns the largest p99 of a function as a part of its objective."""
        return spread(self.loads[variant], lambda load: max(load.function(f.name).p99_ms / f.slo_ms for f in self.case.functions)).median

    def others(self) -> list[str]:
        return [v for v in self.loads if v != "guarantees"]


def inside(load: Load, function: str) -> bool:
    g = load.function(function).guarantee
    return g is not None and g.need_percent <= WITHIN * g.percent


def windows(reports: Reports) -> tuple[list[Window], list[str]]:
    """Returns the windows with guarantees, and names those whose sender fell behind in every run with guarantees."""
    found, behind = [], []
    for e in read(reports):
        capacity = {c.model: c.per_s for c in e.capacity or evaluation.read(reports, CAPACITIES).capacity}
        for c in e.cases:
            for level in e.levels(c.name):
                loads = {v: e.loads(c.name, v, level) for v in e.measured([c])}
                w = Window(c, level, {v: kept for v, all_loads in loads.items() if (kept := kept_up(all_loads))}, capacity)
                if "guarantees" in w.loads:
                    found.append(w)
                elif "guarantees" in loads:
                    behind.append(str(w))
    if not found:
        raise NotMeasured("no complete run")
    return found, behind


def read(reports: Reports) -> Iterator[Evaluation]:
    for name in REPORTS:
        with contextlib.suppress(NotMeasured):
            yield evaluation.read(reports, name)


@dataclass
class Goal:
    """What was compared, and the rows of those that miss."""

    count: int
    columns: str
    misses: list[list[str]]

    def verdict(self, unit: str) -> str:
        if self.misses:
            return f"**false**, {number(len(self.misses))} of {number(self.count)} {unit} miss it"
        return f"**true** for {number(self.count)} {unit}" if self.count else "nothing to compare"


def in_time_goal(found: list[Window]) -> Goal:
    """Compares each run of a function within its guarantee."""
    goal = Goal(0, "mix, load | function | need | guarantee | in time | p99 / objective", [])
    for w in found:
        for load in w.loads["guarantees"]:
            for setting in w.case.functions:
                f = load.function(setting.name)
                if not inside(load, f.name):
                    continue
                goal.count += 1
                if f.within_percent < IN_TIME_PERCENT:
                    need, guarantee = f"{tenths(f.guarantee.need_percent)} %", f"{tenths(f.guarantee.percent)} %"
                    goal.misses.append([str(w), f.name, need, guarantee, f"{tenths(f.within_percent)} %", thousandths(f.p99_ms / setting.slo_ms)])
    return goal


def goodput_goal(found: list[Window]) -> Goal:
    """Compares the goodput with that of each variant that keeps the functions within their guarantees."""
    goal = Goal(0, "mix, load | next to | guarantees | the other | ratio", [])
    for w in found:
        for v in w.others():
            if not w.keeps(v, w.within()):
                continue
            goal.count += 1
            ours, theirs = w.goodput("guarantees"), w.goodput(v)
            if ours < MIN_GOODPUT * theirs:
                goal.misses.append([str(w), label(v), thousandths(ours), thousandths(theirs), thousandths(divide(ours, theirs))])
    return goal


def tail_goal(found: list[Window]) -> Goal:
    """Compares the largest p99 with that of the best variant, if one keeps all functions' objectives."""
    goal = Goal(0, "mix, load | best other variant | guarantees | the other | ratio", [])
    for w in found:
        names = [f.name for f in w.case.functions]
        tails = {v: w.tail(v) for v in w.others() if w.keeps(v, names)}
        if not tails:
            continue
        goal.count += 1
        best = min(tails, key=tails.__getitem__)
        ours, theirs = w.tail("guarantees"), tails[best]
        if ours > MAX_TAIL * theirs:
            goal.misses.append([str(w), label(best), thousandths(ours), thousandths(theirs), thousandths(ours / theirs)])
    return goal


def thousandths(value: float) -> str:
    return f"{value:.3f}"


def goals_text(reports: Reports) -> str:
    found, behind = windows(reports)
    in_time, goodput, tail = in_time_goal(found), goodput_goal(found), tail_goal(found)
    sentences = [
        f"A function within its guarantee has at least {IN_TIME_PERCENT} % in time: {in_time.verdict('functions, counted per load and run,')}.",
        f"Goodput is at least {MIN_GOODPUT} times that of each variant that keeps these functions: {goodput.verdict('comparisons')}.",
        f"The largest p99 is at most {MAX_TAIL} times that of the best other variant: {tail.verdict('loads')}.",
    ]
    if behind:
        sentences.append(f"Left out, because the sender fell behind: {'; '.join(behind)}.")
    return bullets(sentences)


def misses_table(compare):
    """Returns a writer of the table of a goal's misses."""

    def write(reports: Reports) -> str:
        goal = compare(windows(reports)[0])
        return table([head(goal.columns), *goal.misses]) if goal.misses else "None misses it.\n"

    return write


SECTIONS = [
    ("goals", goals_text, None), ("goal-in-time", misses_table(in_time_goal), None),
    ("goal-goodput", misses_table(goodput_goal), None), ("goal-p99", misses_table(tail_goal), None),
]  # fmt: skip
