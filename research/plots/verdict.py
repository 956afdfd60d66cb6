"""Whether the numbers of an evaluation bear out the paper's claims."""

import math
from dataclasses import dataclass

from evaluation import LOADS, TIMELINE, Evaluation, FunctionTimeline, Load, only_spread, spread
from text import claim, median, short, tenths

# A difference counts if the medians differ by at least so many percent, ...
MIN_PERCENT = 1
# ... and if as many pairs of two equal variants differ in one direction in at most so many percent of measurements (sign test).
MAX_CHANCE_PERCENT = 5
# Fewer pairs of runs cannot reach that: four of four happen by chance in 6 %.
MIN_PAIRS = 5
# One pair has no median.
MIN_SHOWN_PAIRS = 2
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
    percent: float  # the median above the baseline's; infinite if that is 0
    outcome: str  # below, above or same; open with too few runs
    misses: bool  # the baseline misses its objective
    failed: bool  # every run of the variant failed

    def __str__(self) -> str:
        if self.failed:
            return f"{self.case} (all runs failed)"
        at = f"{self.case} at {100 * self.level:.0f} % next to {self.baseline}"
        return f"{at} (which has nothing)" if math.isinf(self.percent) else f"{at} ({self.percent:+.1f} %)"


def compare(e: Evaluation, variant: str) -> list[Comparison]:
    """Compares a variant with each baseline, run by run.

    Run N of a variant and of a baseline have the same arrivals and follow each other. A pair counts if both senders kept up.
    A variant whose runs all failed has no goodput. A baseline whose runs all failed is left out.
    """
    comparisons = []
    for c in e.cases_of(LOADS):
        if variant not in c.variants:
            continue
        failed = e.failed(c.name, variant)[0] > 0 and not e.runs(c.name, variant)
        for b in e.variants:
            if not b.baseline or b.name not in c.variants:
                continue
            for level in e.levels(c.name):
                pairs = pairs_of(e, c.name, variant, b.name, level, failed)
                if len(pairs) < MIN_SHOWN_PAIRS:
                    continue
                percent, outcome = judge([(mine.goodput_rps, theirs.goodput_rps) for mine, theirs in pairs])
                misses = spread((theirs for _, theirs in pairs), lambda load: load.within_percent).median < OBJECTIVE_PERCENT
                comparisons.append(Comparison(c.name, level, b.label, percent, "below" if failed else outcome, misses, failed))
    return comparisons


def pairs_of(e: Evaluation, case: str, variant: str, baseline: str, level: float, failed: bool) -> list[tuple[Load, Load]]:
    mine, theirs = e.loads_by_run(case, variant, level), e.loads_by_run(case, baseline, level)
    if failed:
        mine = {run: Load() for run in theirs}
    pairs = [(mine[run], theirs[run]) for run in sorted(mine.keys() & theirs.keys())]
    return [(a, b) for a, b in pairs if not a.sender_behind and not b.sender_behind]


def judge(pairs: list[tuple[float, float]]) -> tuple[float, str]:
    """Returns by how many percent the first median is above the second, and whether the pairs show that it is no chance."""
    ours, base = median(a for a, _ in pairs), median(b for _, b in pairs)
    percent = 0.0
    if ours != base:
        percent = 100 * (ours - base) / base if base else math.inf
    if len(pairs) < MIN_PAIRS:
        return percent, "open"
    lower, higher = sum(a < b for a, b in pairs), sum(a > b for a, b in pairs)
    if percent <= -MIN_PERCENT and chance_percent(lower, lower + higher) <= MAX_CHANCE_PERCENT:
        return percent, "below"
    if percent >= MIN_PERCENT and chance_percent(higher, lower + higher) <= MAX_CHANCE_PERCENT:
        return percent, "above"
    return percent, "same"


def chance_percent(hits: int, of: int) -> float:
    """Returns how often a fair coin shows at least so many heads (one-sided sign test)."""
    return 100 * sum(math.comb(of, k) for k in range(hits, of + 1)) / 2**of


class Verdict:
    """A variant is never below a baseline, and above each that misses its objective."""

    def __init__(self, e: Evaluation, variant: str):
        self.label = e.label(variant)
        self.all = sorted(compare(e, variant), key=lambda c: c.percent)
        self.below = [c for c in self.all if c.outcome == "below"]
        self.lower = [c for c in self.all if c.percent <= -MIN_PERCENT]
        self.missing = [c for c in self.all if c.misses]
        self.not_above = [c for c in self.missing if c.outcome == "same" or c.outcome == "below"]
        self.higher = [c for c in self.missing if c.percent >= MIN_PERCENT]

    def never(self) -> str:
        return answer("below", self.below, self.all) + f"; median lower in {len(self.lower)} of {len(self.all)}"

    def above(self) -> str:
        if not self.missing:
            return "no baseline misses"
        return answer("not above", self.not_above, self.missing) + f"; median higher in {len(self.higher)} of {len(self.missing)}"


def answer(what: str, against: list[Comparison], judged: list[Comparison]) -> str:
    """Returns whether a claim holds in each comparison that has enough runs."""
    still_open = sum(c.outcome == "open" for c in judged)
    if against:
        text = f"**false**: {what} in {len(against)} of {len(judged)}"
    elif still_open:
        return f"**open**: fewer than {MIN_PAIRS} runs in {still_open} of {len(judged)}"
    else:
        text = f"**true** ({len(judged)})"
    return text + (f" (open: {still_open})" if still_open else "")


def verdicts(e: Evaluation) -> list[str]:
    """Returns sentences that say what the numbers show, and name the exceptions."""
    sentences = []
    for v in (Verdict(e, variant) for variant in PENSTOCKS):
        if v.all:
            sentences.append(f"{v.label} is never below a baseline: {v.never()}{exceptions(v.lower)}")
        if v.missing:
            rest = [c for c in v.missing if c not in v.higher]
            sentences.append(f"{v.label} is above each baseline that misses the objective for over 1 %: {v.above()}{exceptions(rest)}")
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
        sentences.append(claim("Each run of SLAB finds its batch sooner than each of AIMD, at each objective", slow))
    if judged:
        sentences.append(
            claim("SLAB answers 99 % of all requests within the objective from the first second on", late)
        )
    return sentences
