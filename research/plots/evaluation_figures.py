"""The figures of research/results/evaluation. Numbers are medians over runs, whiskers reach from minimum to maximum."""

import math
import re
from collections.abc import Callable

from draw import (
    BLACK, BLUE, GREEN, GREY, LIGHT, ORANGE, PURPLE, RED, Entry, Sheet, across, band, logarithmic, spread_bars, trace, upright,
)  # fmt: skip
from evaluation import (
    BARE, CLOSED, LOADS, TIMELINE, Bin, Case, Evaluation, FunctionTimeline, Point, Result, Timeline, finite, only_spread, read, spread, median_run,
)  # fmt: skip
from report import Reports
from text import NAN, Spread, divide, positive

# Variants have the same colours in all figures: grey takes turns, default MPS and additions to it
# are warm, fixed shares light blue, Penstock green and blue.
SKY, BROWN = "#56b4e9", "#8c510a"
COLOURS = {
    "time-slice": GREY, "time-slice-slab": "#555555", "mps": ORANGE, "mps-slab": BROWN, "aimd": PURPLE, "static": SKY,
    "penstock-shadow": BLUE, "penstock": GREEN, "penstock-restart": RED, "mps-streams": SKY, "mps-gather": PURPLE,
    "fixed-1": "#f4a582", "fixed-4": "#d6604d", "fixed-8": "#b2182b", "fixed-16": "#67001f", "mps-only-slab": PURPLE,
    "mps-only-shares": BLUE, "streams-1": BLUE, "streams-2": GREEN, "percentage": BLUE, "groups": GREEN,
}  # fmt: skip
FUNCTION_COLOURS = [BLUE, ORANGE, GREEN, PURPLE, RED]
BATCH_COLOURS = ["#9ecae1", ORANGE, GREEN, PURPLE, BLUE, RED, BLACK]
OBJECTIVE = Entry("objective", RED, True)


def colours(variants: list[str]) -> list[str]:
    return [COLOURS.get(v, BLACK) for v in variants]


def entries(e: Evaluation, variants: list[str]) -> list[Entry]:
    return [Entry(e.label(v), COLOURS.get(v, BLACK)) for v in variants]


def slug(name: str) -> str:
    """Returns a name as a part of a file's name."""
    return "-".join(re.findall("[-0-9a-z]+", name.lower()))


def draw(name: str) -> Callable[[Reports], list[str]]:
    """Returns a function that draws the report NAME.json, and returns the names of its PNGs."""

    def draw_report(reports: Reports) -> list[str]:
        e = read(reports, name)
        sheets: list[tuple[str, Sheet | None]] = []
        if e.cases_of(LOADS):
            sheets += [(name, summary(e)), (f"{name}-loads", loads(e))]
        if name == "fig12c-14":
            sheets += [(name, convergence(e)), (f"{name}-batches", batches(e))]
        else:
            sheets += [(f"{name}-{slug(c.name)}", timeline(e, c)) for c in e.cases_of(TIMELINE)]
        if name == "fig2-3":
            sheets += [(f"{name}-{slug(c.name)}", knees(e, c)) for c in e.cases_of(BARE)]
        if name == "fig5-7":
            sheets.append((name, streams(e)))
        return [sheet.save(reports.folder, file) for file, sheet in sheets if sheet]

    return draw_report


def heading(e: Evaluation) -> str:
    return f"{e.title} ({e.device})"


def summary(e: Evaluation) -> Sheet | None:
    """Draws all cases at two loads: one that there is room for, and the highest."""
    cases = e.cases_of(LOADS)
    variants = e.measured(cases)
    levels = next((levels for c in cases if (levels := e.levels(c.name))), [])
    if not variants or not levels:
        return None
    low = max(0, min(1, len(levels) - 2))
    shown = sorted({low, len(levels) - 1})
    objectives = sorted({c.functions[0].slo_ms for c in cases})
    sheet = Sheet(heading(e), [*entries(e, variants), OBJECTIVE], 2, len(shown), 6.5)
    for column, i in enumerate(shown):
        at = f"offered {100 * levels[i]:.0f} % of capacity"

        def values(value) -> list[list[Spread]]:
            own = {c.name: e.levels(c.name) for c in cases}
            return [[spread(e.loads(c.name, v, own[c.name][i]) if i < len(own[c.name]) else [], value) for c in cases] for v in variants]

        groups = [c.name for c in cases]
        share = sheet.plot(0, column, f"Within the objective, {at}", "", "% of what was offered")
        spread_bars(share, groups, colours(variants), values(lambda load: load.within_percent))
        share.set_ylim(0, 105)
        tails = values(lambda load: load.tail())
        bottom, top = log_limits([*objectives, *(x for row in tails for s in row for x in (s.low, s.high))])
        late = sheet.plot(1, column, f"p99 of the ok answers, {at}", "", "ms")
        logarithmic(late, bottom, top)
        spread_bars(late, groups, colours(variants), tails, bottom)
        late.set_ylim(bottom, top)
        for slo in objectives:
            across(late, RED, slo)
    return sheet


def log_limits(values: list[float]) -> tuple[float, float]:
    """Returns the limits of a logarithmic axis of latencies in ms."""
    measured = finite(values)
    return max(0.1, min(measured) / 1.5), max(1, max(measured) * 1.5)


def loads(e: Evaluation) -> Sheet:
    """Draws goodput and tail latency of each case against the load."""
    cases = e.cases_of(LOADS)
    columns = 2 if len(cases) == 4 else min(3, len(cases))
    legend = [*entries(e, e.measured(cases)), OBJECTIVE, Entry("offered", LIGHT, True)]
    sheet = Sheet(heading(e), legend, 2 * math.ceil(len(cases) / columns), columns, 5.6)
    for i, c in enumerate(cases):
        row, column = 2 * (i // columns), i % columns
        good = sheet.plot(row, column, f"{c.name}: goodput", "", "requests/s")
        late = sheet.plot(row + 1, column, f"{c.name}: p99 of the ok answers", "offered, % of capacity", "ms")
        slo, levels = c.functions[0].slo_ms, e.levels(c.name)
        percents = [100 * level for level in levels]
        offered: dict[float, float] = {}
        reached, latencies = [1.0], [slo]
        for v in c.variants:
            all_loads = [e.loads(c.name, v, level) for level in levels]
            goods = [spread(loads, lambda load: load.goodput_rps) for loads in all_loads]
            tails = [spread(loads, lambda load: load.tail()) for loads in all_loads]
            band(good, COLOURS.get(v, BLACK), percents, goods)
            band(late, COLOURS.get(v, BLACK), percents, tails)
            reached += [s.high for s in goods]
            latencies += [x for s in tails for x in (s.low, s.high)]
            for percent, measured in zip(percents, all_loads):
                if measured:
                    offered.setdefault(percent, measured[0].offered_rps)
        xs = sorted(offered)
        good.plot(xs, [offered[x] for x in xs], color=LIGHT, linewidth=1, linestyle=(0, (4, 2)))
        for axes in (good, late):
            axes.set_xlim(0, 1.04 * max([1.0, *percents]))
        good.set_ylim(0, 1.1 * max(finite(reached)))
        logarithmic(late, *log_limits(latencies))
        across(late, RED, slo)
    return sheet


def bin_values(f: FunctionTimeline, value: Callable[[Bin], float]) -> list[float]:
    """Returns a value per bin; NaN if nothing was offered."""
    return [value(b) if b.offered > 0 else NAN for b in f.bins]


def timeline(e: Evaluation, case: Case) -> Sheet | None:
    """Draws, in a column per variant, its median run by answers in time: answers, latency, batches and share."""
    runs = [r for v in case.variants if (r := median_run(e.runs(case.name, v), Result.in_time))]
    if not runs:
        return None
    functions = [Entry(f.name, colour) for f, colour in zip(case.functions, FUNCTION_COLOURS * len(case.functions))]
    legend = [*functions, Entry("offered, and the batching rule's limit", LIGHT, True), OBJECTIVE]
    sheet = Sheet(f"{e.title}, {case.name} ({e.device}): each variant's median run", legend, 4, len(runs), 4.6)
    slo = case.functions[0].slo_ms
    highest = [[1.0], [slo], [1.0], [100.0]]
    lowest = [slo]
    for column, r in enumerate(runs):
        t, label = r.timeline, e.label(r.variant)
        kinds: list[tuple[str, str, Callable[[Bin], float], Callable[[Bin], float] | None]] = [
            ("answered in time", "requests/s", lambda b: b.within / t.bin_s, lambda b: b.offered / t.bin_s),
            ("p99", "ms", lambda b: positive(b.p99_ms), None),
            ("mean batch", "requests", lambda b: positive(b.mean_batch), lambda b: positive(b.limit_batch)),
            ("share", "%", lambda b: positive(b.share_percent), None),
        ]
        for row, (title, unit, value, comparison) in enumerate(kinds):
            axes = sheet.plot(row, column, f"{label}: {title}", "s" if row == 3 else "", unit)
            for f, colour in zip(t.functions, FUNCTION_COLOURS * len(t.functions)):
                if comparison:
                    trace(axes, LIGHT, t.middles(f), bin_values(f, comparison), dashed=True)
                    if row == 0:
                        highest[row] += bin_values(f, comparison)
                trace(axes, colour, t.middles(f), bin_values(f, value))
                highest[row] += bin_values(f, value)
                if row == 1:
                    lowest += bin_values(f, value)
            axes.set_xlim(0, t.seconds)
            mark_events(axes, t)
    for row in range(4):
        for column in range(len(runs)):
            axes = sheet.grid[row, column]
            if row == 1:  # one that waits long must not flatten the others
                logarithmic(axes, *log_limits([*lowest, *highest[1]]))
                across(axes, RED, slo)
            else:
                axes.set_ylim(0, 1.1 * max(finite(highest[row])))
    return sheet


def mark_events(axes, t: Timeline) -> None:
    """Draws what happened to each function, but not its shares."""
    for f, colour in zip(t.functions, FUNCTION_COLOURS * len(t.functions)):
        for event in t.events:
            if event.function == f.name and event.what != "share":
                upright(axes, colour, event.at_s)


def convergence(e: Evaluation) -> Sheet | None:
    """Draws how fast each rule finds its batch, and what it gains."""
    cases = e.cases_of(TIMELINE)
    variants = e.measured(cases)
    if not variants:
        return None
    sheet = Sheet(heading(e), entries(e, variants), 1, 3, 7)
    kinds: list[tuple[str, str, Callable[[FunctionTimeline], float]]] = [
        ("Until 90 % of the final batch", "ms", FunctionTimeline.t90_ms),
        ("Goodput", "requests/s", lambda f: f.total.goodput_rps),
        ("Not answered within the objective", "% of what was offered", FunctionTimeline.late_percent),
    ]
    for column, (title, unit, value) in enumerate(kinds):
        axes = sheet.plot(0, column, title, "objective", unit)
        values = [[only_spread(e.runs(c.name, v), value) for c in cases] for v in variants]
        spread_bars(axes, [c.name for c in cases], colours(variants), values)
        axes.set_ylim(0, 1.1 * max([1e-3, *finite(s.high for row in values for s in row)]))
    return sheet


def batches(e: Evaluation) -> Sheet | None:
    """Draws mean batch and p99 of each rule's median run over time."""
    cases = e.cases_of(TIMELINE)
    variants = e.measured(cases)
    if not variants:
        return None
    sheet = Sheet(f"{heading(e)}: each rule's median run", [*entries(e, variants), OBJECTIVE], 2, len(cases), 5.6)
    for column, c in enumerate(cases):
        slo = c.functions[0].slo_ms
        sizes = sheet.plot(0, column, f"{c.name}: mean batch", "", "requests")
        tails = sheet.plot(1, column, f"{c.name}: p99", "s", "ms")
        top = {sizes: [1.0], tails: [slo]}
        for v in variants:
            r = median_run(e.runs(c.name, v), lambda r: f.t90_s if (f := r.only()) else 0)
            if not r:
                continue
            f = r.timeline.functions[0]
            for axes, value in (sizes, lambda b: positive(b.mean_batch)), (tails, lambda b: positive(b.p99_ms)):
                trace(axes, COLOURS.get(v, BLACK), r.timeline.middles(f), bin_values(f, value))
                axes.set_xlim(0, r.timeline.seconds)
                top[axes] += bin_values(f, value)
        for axes, values in top.items():
            axes.set_ylim(0, 1.1 * max(finite(values)))
        across(tails, RED, slo)
    return sheet


def knees(e: Evaluation, case: Case) -> Sheet:
    """Draws throughput and time of a batch against the multiprocessors."""
    sizes = case.functions[0].batches
    shades = BATCH_COLOURS * math.ceil(len(sizes) / len(BATCH_COLOURS))
    legend = [Entry(f"batch {b}", shade) for b, shade in zip(sizes, shades)]
    legend += [Entry("solid: MPS percentage", BLACK), Entry("dashed: SM groups", BLACK, True)]
    alone = len(case.functions) == 1  # side by side then
    sheet = Sheet(f"{e.title}: {case.name} ({e.device})", legend, 1 if alone else 2, 2 if alone else len(case.functions), 7)
    for column, f in enumerate(case.functions):
        rate = sheet.plot(0, column, f"{f.model}: throughput", "multiprocessors, %", "requests/s")
        took = sheet.plot(*((0, 1) if alone else (1, column)), f"{f.model}: a batch", "multiprocessors, %", "ms")
        speeds, times = [], []
        for v in case.variants:
            for batch, shade in zip(sizes, shades):
                shares = e.by_share(case.name, v, f.model, batch)
                xs = [x for x, _ in shares]
                speed, time = ([spread(points, value) for _, points in shares] for value in (Point.speed, Point.batch_ms))
                band(rate, shade, xs, speed, v == "groups")
                band(took, shade, xs, time, v == "groups")
                speeds += speed
                times += time
        rate.set_xlim(0, 102)
        took.set_xlim(0, 102)
        rate.set_ylim(0, 1.05 * max([1.0, *finite(s.high for s in speeds)]))
        if measured := finite(x for s in times for x in (s.low, s.high)):
            logarithmic(took, min(measured) / 1.3, max(measured) * 1.3)
    return sheet


def streams(e: Evaluation) -> Sheet | None:
    """Draws what a second stream gives ready batches, and two models beside each other by way of sharing."""
    bare = e.cases_of(BARE)
    together = next((c for c in e.cases_of(CLOSED) if len(c.functions) > 1 and e.measured([c])), None)
    columns = 2 * len(bare) + (1 if together else 0)
    if columns == 0:
        return None
    legend = [Entry("one stream", LIGHT), Entry("two streams", GREEN), Entry("alexnet", BLUE), Entry("resnext50", ORANGE)]
    sheet = Sheet(heading(e), legend, 1, columns, 7)
    for i, c in enumerate(bare):
        sizes = [(f.model, b) for f in c.functions for b in f.batches]
        titles = {"Ready batches: throughput": Point.speed, "Ready batches: time of one": Point.batch_ms}
        values = {title: [[relative(e, c, *size, n, value) for size in sizes] for n in (1, 2)] for title, value in titles.items()}
        top = 1.05 * max([100.0, *finite(s.high for rows in values.values() for row in rows for s in row)])
        for column, (title, rows) in enumerate(values.items(), 2 * i):
            axes = sheet.plot(0, column, title, "", "% of one stream's")
            spread_bars(axes, [f"{model}\n{b}" for model, b in sizes], [LIGHT, GREEN], rows)
            across(axes, GREY, 100)
            axes.set_ylim(0, top)
            axes.tick_params(axis="x", labelsize=6.5)
    if together:
        variants = e.measured([together])
        rows = [[e.percent_of_alone(f, e.runs(together.name, v)) for v in variants] for f in together.functions]
        axes = sheet.plot(0, columns - 1, "Together in closed loops", "", "% of alone")
        spread_bars(axes, [e.label(v).replace(" + ", "\n+ ") for v in variants], FUNCTION_COLOURS[: len(rows)], rows)
        across(axes, GREY, 100)
        axes.set_ylim(0, 1.05 * max([100.0, *finite(s.high for row in rows for s in row)]))
        axes.tick_params(axis="x", labelsize=6.5)
    return sheet


def relative(e: Evaluation, case: Case, model: str, batch: int, streams: int, value: Callable[[Point], float]) -> Spread:
    """Returns a value of ready batches in percent of one stream's median."""
    base = spread(e.ready(case, model, batch, 1), value).median
    return spread(e.ready(case, model, batch, streams), lambda p: 100 * divide(value(p), base))
