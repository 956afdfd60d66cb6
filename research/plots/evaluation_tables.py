"""The tables of research/results/evaluation. Numbers are medians over runs, with (minimum–maximum)."""

import contextlib
import math
from collections.abc import Callable
from dataclasses import replace

import weights
from evaluation import (
    BARE, CLOSED, LOADS, TIMELINE, Case, Evaluation, FunctionTimeline, Point, Result, Timeline, only_spread, read, spread,
)  # fmt: skip
from report import Machine, NotMeasured, Reports
from text import NAN, Spread, bullets, claim, divide, gained, head, millis, number, plain, positive, rate, short, table, tenths
from verdict import PENSTOCKS, Verdict, convergence_verdicts, verdicts

Table = Callable[[Reports], str]
Rows = list[list[str]]

# In the paper's order, and then what the paper has not.
FIGURES = [
    "fig1", "fig2-3", "fig5-7", "fig8", "fig9", "fig10a", "fig10b", "fig10-slo", "fig10-large", "fig11", "fig12ab", "fig12c-14",
    "fig15", "fig16", "table5", "guarantees", "mixes", "new-mixes", "equal-objectives",
    "short-objectives", "overload", "blocking", "changes",
]  # fmt: skip

# The tables of the paper. GUE of default MPS, MPS + SLAB and GSLICE, by the case here.
TABLE2 = {
    "alexnet": ("Alexnet", 235.75, 382.4, 579.41), "mobilenetv2": ("Mobilenet", 330.0, 341.2, 379.55),
    "resnet50": ("ResNet-50", 29.08, 42.4, 47.93), "vgg19": ("VGG-19", 4.96, 5.11, 5.25),
    "vgg16": ("VGG-16", 3.79, 11.13, 12.49), "gnmt": ("GNMT", 1.97, 6.66, 6.74),
}  # fmt: skip
TABLE3 = {
    "C1": ("Alexnet & ResNet-50", 38.82, 72.69, 94.04), "C2": ("Alexnet & VGG-19", 6.39, 15.76, 44.79),
    "C3": ("3 IFs", 3.38, 7.83, 24.59), "C4": ("4 IFs", 2.01, 7.29, 19.98),
}  # fmt: skip
# By max batch: by how many percent GSLICE has more throughput and less latency than the TensorRT server.
TABLE4 = {1: (73.85, -7.52), 4: (31.43, 23.96), 8: (50.83, 34.12), 16: (92.34, 45.64)}
# By model: batch size, images per second, ms.
TABLE5 = {
    ("ResNet-50", "resnet50"): [(8, 816, 9.75), (16, 1088, 14.5), (32, 1152, 25.9)],
    ("VGG-19", "vgg19"): [(8, 264, 30.54), (16, 400, 40.95), (32, 512, 63.12)],
}
# Section 2.1.3, for batches of one.
KNEES = {"resnet50": "about 60 %", "vgg19": "after 70 %", "gnmt": "after 70 %", "alexnet": "30 %"}


def measured(reports: Reports, names: list[str]) -> list[Evaluation]:
    evaluations = []
    for name in names:
        with contextlib.suppress(NotMeasured):
            evaluations.append(read(reports, name))
    return evaluations


def require(rows: Rows) -> str:
    """Writes a table, unless it has only a head."""
    if len(rows) == 1:
        raise NotMeasured("no complete run")
    return table(rows)


def report_table(name: str, write: Callable[[Evaluation], str]) -> Table:
    """Returns a writer of a report's table, with what failed under it."""

    def text(reports: Reports) -> str:
        e = read(reports, name)
        failures = e.failures()
        try:
            return write(e) + ("\n" + bullets(failures) if failures else "")
        except NotMeasured:
            if not failures:
                raise
            return "\n" + bullets(failures)

    return text


def state(e: Evaluation) -> str:
    """Says how much of a report there is."""
    places = [(c.name, v) for c in e.cases for v in c.variants]
    failed = sum(e.failed(*p)[0] for p in places)
    runs = Spread.from_values(len(e.runs(*p)) for p in places)
    text = f"{runs.low:.0f} runs of each" if runs.low == runs.high else f"{runs.low:.0f} to {runs.high:.0f} runs of each"
    text += f", seed {e.seed}"
    if e.left > failed:
        text += f"; **{e.left - failed} measurements are still to be made**"
    return text + (f"; **{failed} failed**" if failed else "")


def machine_table(reports: Reports) -> str:
    rows = [head("report | paper | measured | GPU | driver, CUDA, ONNX Runtime | CPU | Penstock")]
    for e in measured(reports, FIGURES):
        versions = dict.fromkeys(r.penstock or e.machine.penstock for r in e.results)
        machine = replace(e.machine, penstock=", ".join(v for v in versions if v))
        rows.append(machine_row(e.figure, e.paper, e.device, state(e), machine))
    with contextlib.suppress(NotMeasured):
        w = weights.read(reports)
        rows.append(machine_row("weights", "Table 1", w.device, f"{w.runs} runs of each", w.machine))
    return require(rows)


def machine_row(name: str, paper: str, device: str, how_much: str, m: Machine) -> list[str]:
    gpu = str(m.gpus[0]) if m.gpus else device
    software = ", ".join(s for s in (m.driver, m.cuda, m.onnx_runtime) if s)
    return [f"[{name}]({name}.json)", paper, f"{m.date.partition('T')[0]}: {how_much}", gpu, software, m.cores(), m.penstock]


def verdict_table(reports: Reports) -> str:
    """Collects the verdicts of all figures."""
    rows = [head("figure |  | never below a baseline | above each that misses the objective")]
    sentences: list[str] = []
    failures: list[str] = []
    lost: list[int] = []
    for e in measured(reports, FIGURES):
        found = (Verdict(e, variant) for variant in PENSTOCKS)
        rows += [[e.figure, v.label, v.never(), v.above()] for v in found if v.all]
        if e.figure == "fig12c-14":
            sentences += convergence_verdicts(e)
        failures += [f"{e.figure}: {f}" for f in e.failures()]
        lost += [r.lost for r in e.results if not r.error and not r.points]
    if lost:
        answer = f"**false**, {sum(lost)} were" if sum(lost) else "**true**"
        sentences.append(f"No request that was accepted is lost, in {len(lost)} runs of all variants: {answer}.")
    sentences += failures
    if len(rows) == 1 and not sentences:
        raise NotMeasured("no complete run")
    return (table(rows) + "\n" if len(rows) > 1 else "") + bullets(sentences)


def loads_table(e: Evaluation) -> str:
    """Shows goodput and latency by case, load and variant, then the verdicts."""
    cases = e.cases_of(LOADS)
    variants = e.measured(cases)
    head = ["", "offered", *map(e.label, variants)]
    goods, tails, slow = [head], [head], False
    for c in cases:
        for level in e.levels(c.name):
            good, tail, offered = [], [], ""
            for v in variants:
                loads = e.loads(c.name, v, level)
                if not loads and e.failed(c.name, v)[0]:
                    good.append("failed")
                    tail.append("failed")
                    continue
                if loads and not offered:
                    offered = f"{100 * level:.0f} %: {rate(loads[0].offered_rps)}"
                behind = any(load.sender_behind for load in loads)
                slow = slow or behind
                good.append(spread(loads, lambda load: load.goodput_rps).text(number) + (" †" if behind else ""))
                middle = spread(loads, lambda load: load.middle()).median
                tail.append(f"{'–' if math.isnan(middle) else short(middle)} / {spread(loads, lambda load: load.tail()).text(short)}")
            goods.append([c.name, offered, *good])
            tails.append([c.name, offered, *tail])
    text = "Goodput, requests per second answered within the objective: median of the runs (min–max).\n\n" + require(goods)
    if slow:
        text += "\n† In some of these runs the sender did not keep up; those do not count in the comparison.\n"
    text += details("Latency of the ok answers, ms: p50 / p99 of the slowest function", tails)
    each = by_function(e, cases, variants, head)
    if len(each) > 1:
        text += details("Goodput of each function", each)
    sentences = verdicts(e)
    return text + ("\n" + bullets(sentences) if sentences else "")


def details(summary: str, rows: Rows) -> str:
    return f"\n<details><summary>{summary}</summary>\n\n{table(rows)}\n</details>\n"


def by_function(e: Evaluation, cases: list[Case], variants: list[str], head: list[str]) -> Rows:
    """Returns a row for each function of the cases that have several."""
    rows = [head]
    for c in (c for c in cases if len(c.functions) > 1):
        for level in e.levels(c.name):
            for setting in c.functions:
                cells, offered = [], ""
                for v in variants:
                    loads = e.loads(c.name, v, level)
                    own = [f for load in loads for f in load.functions if f.name == setting.name]
                    if own and not offered:
                        offered = f"{100 * level:.0f} %: {rate(spread(own, lambda f: f.offered_rps).median)}"
                    failed = not loads and e.failed(c.name, v)[0]
                    cells.append("failed" if failed else spread(own, lambda f: f.goodput_rps).text(number))
                rows.append([f"{c.name}, {setting.name}", offered, *cells])
    return rows


def efficacy_table(paper: dict[str, tuple[str, float, float, float]], names: list[str]) -> Table:
    """Returns a writer of the paper's efficacies next to ours, at the load nearest to capacity."""

    def write(reports: Reports) -> str:
        evaluations = measured(reports, names)
        rows = [head(
            " | paper: default MPS | MPS + SLAB | GSLICE | GSLICE over default MPS | here, offered | default MPS | MPS + SLAB | "
            "Penstock | Penstock over default MPS"
        )]  # fmt: skip
        for case, (name, mps, slab, gslice) in paper.items():
            e = next((e for e in evaluations if e.levels(case)), None)
            if e is None:
                continue
            level = min(e.levels(case), key=lambda level: abs(level - 1))
            gues = [spread(e.loads(case, v, level), lambda load: load.gue) for v in ("mps", "mps-slab", "penstock")]
            rows.append([
                name, short(mps), short(slab), short(gslice), f"{100 * (gslice / mps - 1):+.0f} %", f"{100 * level:.0f} %",
                *(g.text(short) for g in gues), gained(gues[2], gues[0]),
            ])  # fmt: skip
        return require(rows)

    return write


def knee_table(e: Evaluation) -> str:
    """Shows the smallest measured part of the multiprocessors that gives 90 % of what all give."""
    rows = [head("model | batch | whole device | knee, MPS percentage | knee, SM groups | paper's knee, V100")]
    against: list[str] = []
    any_knee = False
    for c in e.cases_of(BARE):
        for f in c.functions:
            before: dict[str, float] = {}
            for batch in f.batches:
                device, knees = "–", []
                for v in ("percentage", "groups"):
                    shares = e.by_share(c.name, v, f.model, batch)
                    knees.append("–")
                    if not shares or shares[-1][0] < 99:
                        continue  # not measured on the whole device
                    whole = spread(shares[-1][1], Point.speed)
                    if device == "–":
                        device = f"{whole.text(number, '/s')}, {millis(spread(shares[-1][1], Point.batch_ms).median)}"
                    if len(shares) < 3:
                        continue  # too few to find a knee between them
                    knee = next(x for x, points in shares if spread(points, Point.speed).median >= 0.9 * whole.median)
                    any_knee = True
                    knees[-1] = f"{knee:.0f} %"
                    if knee < before.get(v, 0):
                        against.append(f"{f.model} at {batch} by {e.label(v)}")
                    before[v] = knee
                if device != "–":
                    rows.append([f.model, str(batch), device, *knees, KNEES.get(f.model, "") if batch == 1 else ""])
    text = require(rows)
    if any_knee:
        text += "\n" + bullets([claim("A larger batch never has its knee at fewer multiprocessors", against)])
    return text


def batch_table(e: Evaluation) -> str:
    """Shows Table 5: throughput and time of ready batches by batch size."""
    rows = [head("model | batch | paper | paper, a batch | here, one stream | a batch | two streams | a batch")]
    against: list[str] = []
    growth: list[str] = []
    for (name, model), sizes in TABLE5.items():
        speeds = []
        for batch, speed, ms in sizes:
            streams = [[p for c in e.cases_of(BARE) for p in e.ready(c, model, batch, n)] for n in (1, 2)]
            speeds.append(spread(streams[0], Point.speed).median)
            if any(streams):
                cells = [cell for points in streams for cell in speed_and_time(points)]
                rows.append([name, str(batch), rate(speed), millis(ms), *cells])
        first, second = (100 * (divide(b, a) - 1) for a, b in zip(speeds, speeds[1:]))
        if not math.isnan(first + second):
            growth.append(f"{name} {first:+.0f} % and {second:+.0f} %")
            if first <= second:
                against.append(growth[-1])
    text = require(rows)
    if growth:
        start = claim("Throughput grows more from 8 to 16 than from 16 to 32", against)
        text += "\n" + bullets([f"{start} From 8 to 16 and from 16 to 32: {'; '.join(growth)}."])
    return text


def speed_and_time(points: list[Point]) -> list[str]:
    return [spread(points, Point.speed).text(number, "/s"), spread(points, Point.batch_ms).text(short, " ms")]


def streams_table(e: Evaluation) -> str:
    """Shows what a second stream gives ready batches, and functions next to each other."""
    rows = [head("model | batch | one stream | a batch | two streams | a batch | gained | a batch takes longer by")]
    against: list[str] = []
    for c in e.cases_of(BARE):
        for f in c.functions:
            before = math.inf
            for batch in f.batches:
                one, two = e.ready(c, f.model, batch, 1), e.ready(c, f.model, batch, 2)
                if not one and not two:
                    continue
                more = divide(spread(two, Point.speed).median, spread(one, Point.speed).median)
                if more >= before:
                    against.append(f"{f.model} at {batch}")
                elif not math.isnan(more):
                    before = more
                faster = gained(spread(two, Point.speed), spread(one, Point.speed))
                longer = gained(spread(two, Point.batch_ms), spread(one, Point.batch_ms))
                rows.append([f.model, str(batch), *speed_and_time(one), *speed_and_time(two), faster, longer])
    beside = [head(" | function | answered | of alone | p99")]
    for c in e.cases_of(CLOSED):
        for v in c.variants:
            runs = e.runs(c.name, v)
            for f in c.functions if runs else []:
                answered = spread(runs, lambda r: r.answered(f.name)).text(number, "/s")
                tail = spread(runs, lambda r: r.closed(f.name, lambda load: positive(load.p99_ms))).text(short, " ms")
                beside.append([f"{c.name}, {e.label(v)}", f.name, answered, e.percent_of_alone(f, runs).text(tenths, " %"), tail])
    text = ""
    if len(rows) > 1:
        text = table(rows) + "\n" + bullets([claim("A second stream brings a larger batch less", against)])
    if len(beside) > 1:
        text += "\n" + table(beside)
    if not text:
        raise NotMeasured("no complete run")
    return text


def ready_table(reports: Reports) -> str:
    """Stands for Table 4: batches as they come, on two streams, compared with fixed ones with a delay."""
    e = read(reports, "fig11")
    rows = [head(
        "batches of at most | paper over TensorRT server: throughput | latency | here, fixed with a delay | a batch | "
        "Penstock's way | a batch | throughput | latency of a batch"
    )]  # fmt: skip
    for batch, (faster, sooner) in TABLE4.items():
        case = f"batches of at most {batch}"
        if not e.levels(case):
            continue
        level = e.levels(case)[-1]
        fixed, ours = e.loads(case, f"fixed-{batch}", level), e.loads(case, "streams-2", level)
        goods = [spread(loads, lambda load: load.goodput_rps) for loads in (fixed, ours)]
        takes = [spread(loads, lambda load: positive(load.functions[0].batch_ms)) for loads in (fixed, ours)]
        better = f"{100 * (1 - takes[1].median / takes[0].median):+.0f} %" if takes[0].runs and takes[1].runs else "–"
        rows.append([
            str(batch), f"{faster:+.1f} %", f"{sooner:+.1f} %", goods[0].text(number, "/s"), takes[0].text(short, " ms"),
            goods[1].text(number, "/s"), takes[1].text(short, " ms"), gained(goods[1], goods[0]), better,
        ])  # fmt: skip
    return require(rows)


def convergence_table(e: Evaluation) -> str:
    rows = [head("objective | rule | t90 | goodput | p99 of the ok answers | not within the objective | mean batch")]
    for c in e.cases_of(TIMELINE):
        for v in c.variants:
            runs = e.runs(c.name, v)
            if runs:
                rows.append([
                    c.name, e.label(v), only_spread(runs, FunctionTimeline.t90_ms).text(short, " ms"),
                    only_spread(runs, lambda f: f.total.goodput_rps).text(number, "/s"),
                    only_spread(runs, lambda f: positive(f.total.p99_ms)).text(short, " ms"),
                    only_spread(runs, FunctionTimeline.late_percent).text(tenths, " %"), only_spread(runs, lambda f: f.total.mean_batch).text(short),
                ])  # fmt: skip
    text, sentences = require(rows), convergence_verdicts(e)
    return text + ("\n" + bullets(sentences) if sentences else "")


def timeline_table(name: str, with_end: bool = False) -> Table:
    """Returns a writer with a row for each variant and function, and a column for each phase."""

    def write(e: Evaluation) -> str:
        texts = []
        for c in e.cases_of(TIMELINE):
            rows: Rows = []
            for v in c.variants:
                runs = e.timelines(c.name, v)
                if not runs:
                    continue
                phases = phases_of(c, runs[0].timeline)
                if not rows:
                    heads = [f"{plain(start)}–{plain(end)} s, in time" for start, end in phases]
                    rows = [
                        [
                            c.name,
                            "function",
                            *heads,
                            "p99 of the ok answers",
                            "p99 around changes of share → else",
                            "swaps and moves",
                            "longest standstill",
                            "lost",
                        ]
                    ]
                for f in c.functions:
                    own = [t for r in runs if (t := r.timeline.function(f.name))]
                    rows.append([
                        e.label(v), f"{f.name}, {millis(f.slo_ms)}", *(phase_cell(runs, f.name, *p) for p in phases),
                        spread(own, lambda t: positive(t.total.p99_ms)).text(short, " ms"), around_changes(runs, f.name),
                        spread(own, lambda t: t.swaps).text(short), spread(own, lambda t: positive(t.swap_idle_ms)).text(short, " ms"),
                        spread(runs, lambda r: r.lost).text(short),
                    ])  # fmt: skip
            if rows:
                texts.append(table(rows))
            if with_end and (sentences := end_claims(e, c)):
                texts.append(bullets(sentences))
        if not texts:
            raise NotMeasured("no complete run")
        return "\n".join(texts)

    return report_table(name, write)


def phases_of(case: Case, timeline: Timeline) -> list[tuple[float, float]]:
    """Returns the start and end of each phase. A phase begins with an event."""
    starts = sorted({0.0, *(event.at_s for event in case.events)})
    return list(zip(starts, [*starts[1:], timeline.seconds]))


def during(timeline: Timeline, name: str, start: float, end: float) -> tuple[float, float]:
    """Returns what a function answered in time in a phase: per second, and in percent of the offered."""
    f = timeline.function(name)
    bins = [b for at, b in zip(timeline.middles(f), f.bins) if start <= at < end] if f else []
    in_time, offered = sum(b.within for b in bins), sum(b.offered for b in bins)
    return (in_time / (end - start), 100 * in_time / offered) if offered else (NAN, NAN)


def phase_cell(runs: list[Result], name: str, start: float, end: float) -> str:
    values = [during(r.timeline, name, start, end) for r in runs]
    percent = Spread.from_values(p for _, p in values)
    return f"{Spread.from_values(s for s, _ in values).text(number, '/s')}; {tenths(percent.median)} %" if percent.runs else ""


def around_changes(runs: list[Result], name: str) -> str:
    """Returns a function's p99 in bins around changes of any share, and in the other bins.

    A change is felt from a little before it is seen, which is every 50 ms, until a while after.
    """
    near, far = [], []
    for r in runs:
        shares: dict[str, list[float]] = {}
        for event in r.timeline.events:
            if event.what == "share":
                shares.setdefault(event.function, []).append(event.at_s)
        changes = [at for times in shares.values() for at in times[1:]]  # the first share is no change
        felt: list[float] = []
        other: list[float] = []
        if f := r.timeline.function(name):
            for i, b in enumerate(f.bins):
                start, end = i * r.timeline.bin_s, i * r.timeline.bin_s + r.timeline.bin_s
                if b.ok:
                    (felt if any(end > at - 0.2 and start < at + 0.5 for at in changes) else other).append(b.p99_ms)
        near.append(Spread.from_values(felt).median)
        far.append(Spread.from_values(other).median)
    around, apart = Spread.from_values(near), Spread.from_values(far)
    return f"{around.text(short)} → {apart.text(short, ' ms')}" if around.runs and apart.runs else "–"


def end_claims(e: Evaluation, case: Case) -> list[str]:
    """Says of each variant whether it answers 99 % in time in the last quarter."""
    sentences = []
    for v in case.variants:
        runs = e.timelines(case.name, v)
        if not runs:
            continue
        length, less = runs[0].timeline.seconds, []
        for f in case.functions:
            s = spread(runs, lambda r: during(r.timeline, f.name, 0.75 * length, length)[1])
            if s.runs and s.median < 99:
                less.append(f"{f.name} {s.text(tenths, ' %')}")
        answer = f"**false**: {', '.join(less)}." if less else "**true**."
        sentences.append(f"{e.label(v)} answers 99 % in time in the last quarter: {answer}")
    return sentences
