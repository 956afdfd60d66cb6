"""Whether the numbers of an evaluation bear out the paper's claims."""

import math
from dataclasses import dataclass

from evaluation import LOADS, TIMELINE, Evaluation, FunctionTimeline, kept_up, only_spread, spread
from text import Spread, claim, short, tenths

# A difference counts if the runs do not overlap and it is at least so many percent.
MIN_PERCENT = 1
# One run has no spread.
MIN_RUNS = 2
# A baseline misses its objective if fewer percent are answered within it.
OBJECTIVE_PERCENT = 99

# The variants that are the whole of Penstock.
PENSTOCKS = ["penstock", "penstock-fine", "penstock-shadow"]


@dataclass
class Comparison:
    """Goodput of a variant against that of a baseline, of one case at one load."""

    case: str
    level: float
    baseline: str
    percent: float  # above the baseline's; infinite if that is 0
    outcome: str  # below, above or same
    misses: bool  # the baseline misses its objective
    failed: bool  # every run of the variant failed

    def __str__(self) -> str:
        if self.failed:
            return f"{self.case} (all runs failed)"
        at = f"{self.case} at {100 * self.level:.0f} % next to {self.baseline}"
        return f"{at} (which has nothing)" if math.isinf(self.percent) else f"{at} ({self.percent:+.1f} %)"


def compare(e: Evaluation, variant: str) -> tuple[list[Comparison], int]:
    """Compares a variant with each baseline. Also returns for how many comparisons runs are missing.

    A variant whose runs all failed has no goodput. A baseline whose runs all failed is left out.
    """
    comparisons, still_open = [], 0
    cases = e.cases_of(LOADS)
    usual = max([1, *(len(e.levels(c.name)) for c in cases)])  # levels of a case without results
    for c in cases:
        if variant not in c.variants:
            continue
        failures, levels = e.failed(c.name, variant)[0], e.levels(c.name)
        failed = failures >= MIN_RUNS and not e.runs(c.name, variant)
        for b in e.variants:
            if not b.baseline or b.name not in c.variants or (e.failed(c.name, b.name)[0] and not e.runs(c.name, b.name)):
                continue
            if not levels:
                still_open += usual
            for level in levels:
                mine, theirs = e.loads(c.name, variant, level), e.loads(c.name, b.name, level)
                if len(theirs) < MIN_RUNS or (not failed and len(mine) < MIN_RUNS):
                    still_open += 1
                    continue
                theirs = kept_up(theirs)
                ours = Spread(0, 0, 0, failures) if failed else spread(kept_up(mine), lambda load: load.goodput_rps)
                base = spread(theirs, lambda load: load.goodput_rps)
                if min(ours.runs, base.runs) < MIN_RUNS:
                    continue  # the sender's fault
                percent, outcome = judge(ours, base)
                misses = spread(theirs, lambda load: load.within_percent).median < OBJECTIVE_PERCENT
                comparisons.append(Comparison(c.name, level, b.label, percent, outcome, misses, failed))
    return comparisons, still_open


def judge(ours: Spread, base: Spread) -> tuple[float, str]:
    """Returns by how many percent ours is above base, and whether that is more than the spread."""
    percent = 0.0
    if ours.median != base.median:
        percent = 100 * (ours.median - base.median) / base.median if base.median else math.inf
    if abs(percent) >= MIN_PERCENT and ours.below(base):
        return percent, "below"
    if abs(percent) >= MIN_PERCENT and base.below(ours):
        return percent, "above"
    return percent, "same"


class Verdict:
    """A variant is never below a baseline beyond the spread, and above each that misses its objective."""

    def __init__(self, e: Evaluation, variant: str):
        comparisons, still_open = compare(e, variant)
        comparisons.sort(key=lambda c: c.percent)
        self.label = e.label(variant)
        self.all = len(comparisons)
        self.below = [c for c in comparisons if c.outcome == "below"]
        self.missing = [c for c in comparisons if c.misses]
        self.not_above = [c for c in self.missing if c.outcome != "above"]
        self.more = f" so far (open: {still_open})" if still_open else ""

    def never(self) -> str:
        if self.below:
            return f"**false**: below in {len(self.below)} of {self.all}{self.more}"
        return f"**true** ({self.all}){self.more}"

    def above(self) -> str:
        if not self.missing:
            return f"no baseline misses{self.more}"
        if self.not_above:
            return f"**false**: not above in {len(self.not_above)} of {len(self.missing)}{self.more}"
        return f"**true** ({len(self.missing)}){self.more}"


def verdicts(e: Evaluation) -> list[str]:
    """Returns sentences that say what the numbers show, and name the exceptions."""
    sentences = []
    for v in (Verdict(e, variant) for variant in PENSTOCKS):
        if v.all:
            sentences.append(f"{v.label} is never below a baseline beyond the spread: {v.never()}{exceptions(v.below)}")
        if v.missing:
            start = f"{v.label} is above each baseline that misses the objective for over 1 %"
            sentences.append(f"{start}: {v.above()}{exceptions(v.not_above)}")
    return sentences


def exceptions(comparisons: list[Comparison]) -> str:
    """Lists the first six. A case that failed is listed once."""
    names = list(dict.fromkeys(map(str, comparisons)))
    if len(names) > 6:
        names[6:] = [f"{len(names) - 6} more"]
    return "." + "".join(f"\n  - {name}." for name in names)


def convergence_verdicts(e: Evaluation) -> list[str]:
    slow: list[str] = []
    late: list[str] = []
    judged = compared = False
    for c in e.cases_of(TIMELINE):
        slab, aimd = e.runs(c.name, "mps-slab"), e.runs(c.name, "aimd")
        if not slab:
            continue
        judged = True
        missed = only_spread(slab, FunctionTimeline.late_percent)
        if missed.high > 1:
            late.append(f"{c.name}: {missed.text(tenths, ' %')} are not")
        if aimd:
            compared = True
            ours, theirs = only_spread(slab, FunctionTimeline.t90_ms), only_spread(aimd, FunctionTimeline.t90_ms)
            if not ours.below(theirs):
                slow.append(f"{c.name}: {ours.text(short, ' ms')} next to {theirs.text(short, ' ms')}")
    sentences = []
    if compared:
        sentences.append(claim("SLAB finds its batch sooner than AIMD, beyond the spread, at each objective", slow))
    if judged:
        sentences.append(
            claim("SLAB answers 99 % of all requests within the objective from the first second on", late)
        )
    return sentences
