"""research/results/guarantees: guarantees compared with other ways to share a device."""

import contextlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import evaluation
import goals
from evaluation import Case, Evaluation, Load, Result, spread
from goals import label
from report import NotMeasured, Report, Reports
from text import Spread, head, millis, rate, short, table, tenths


@dataclass
class FunctionRounds:
    name: str = ""
    within_percent: list[float] = field(default_factory=list)
    goodput: list[float] = field(default_factory=list)
    p99_ms: list[float] = field(default_factory=list)


@dataclass
class VariantRounds:
    name: str = ""
    functions: list[FunctionRounds] = field(default_factory=list)


@dataclass
class Mix:
    name: str = ""
    variants: list[VariantRounds] = field(default_factory=list)


@dataclass
class Sharing(Report):
    """A report of `penstock-lab sharing`."""

    rounds: int = 0
    mixes: list[Mix] = field(default_factory=list)

    def check(self) -> None:
        for m in self.mixes:
            names = {tuple(f.name for f in v.functions) for v in m.variants}
            if len(names) != 1:
                raise ValueError(f"mix {m.name}: want the same functions in each variant")


def machine_table(reports: Reports) -> str:
    rows = [head("report | measured | device | driver, CUDA, ONNX Runtime | CPU | Penstock")]
    for name in REPORTS:
        with contextlib.suppress(NotMeasured):
            r = reports.read(name, Sharing) if name == "cpus" else evaluation.read(reports, name)
            versions = dict.fromkeys(x.penstock for x in r.results if x.penstock) if isinstance(r, Evaluation) else {}
            m = replace(r.machine, penstock=", ".join(versions) or r.machine.penstock)
            software = ", ".join(s for s in (m.driver, m.cuda, m.onnx_runtime) if s)
            device = str(m.gpus[0]) if m.gpus else "CPU"
            rows.append([f"[{name}]({name}.json)", m.date.partition("T")[0], device, software, m.cores(), m.penstock])
    if len(rows) == 1:
        raise NotMeasured("no report")
    return table(rows)


def in_time_table(name: str) -> Callable[[Reports], str]:
    """Returns a writer of the percentage in time and the p99 of each function, by load and variant."""

    def write(reports: Reports) -> str:
        e = evaluation.read(reports, name)
        variants = e.measured(e.cases)
        rows = [["mix, load", "function", "objective", "offered", *map(label, variants)]]
        for c in e.cases:
            for level in e.levels(c.name):
                rows += function_rows(e, c, level, variants)
        if len(rows) == 1:
            raise NotMeasured("no complete run")
        return f"{runs_text(e, variants)}\n{table(rows)}"

    return write


def runs_text(e: Evaluation, variants: list[str]) -> str:
    """Says how many runs a table has, and since when and with which version its variants were measured."""
    runs = [r for c in e.cases for v in variants for r in e.runs(c.name, v)]
    counts = sorted({len(found) for c in e.cases for v in variants if (found := e.runs(c.name, v))})
    seconds = sorted({s for r in runs for s in (r.timeline.seconds, *(load.seconds for load in r.loads)) if s})
    builds: dict[tuple[str, str], list[Result]] = {}
    for r in sorted(runs, key=lambda r: r.date):
        builds.setdefault((r.date.partition("T")[0], r.penstock), []).append(r)
    measured = []
    for (_, version), rs in builds.items():
        names = [label(v) for v in variants if any(r.variant == v for r in rs)]
        measured.append(f"{', '.join(names)} from {rs[0].date[:16].replace('T', ' ')} UTC on ({version})")
    return f"Runs: {either(counts)} of {either(seconds)} s. Measured: {'; '.join(measured)}.\n"


def either(values: list[float]) -> str:
    return " or ".join(map(short, values))


def function_rows(e: Evaluation, c: Case, level: float, variants: list[str]) -> list[list[str]]:
    rows = []
    loads = {v: e.loads(c.name, v, level) for v in variants}
    for f in c.functions:
        offered = spread(own(sum(loads.values(), []), f.name), lambda x: x.offered_rps).median
        rows.append([
            f"{c.name}, {100 * level:.0f} %", f.name, millis(f.slo_ms), rate(offered), *(in_time(loads[v], f.name) for v in variants),
        ])  # fmt: skip
    return rows


def changes_table(reports: Reports) -> str:
    e = evaluation.read(reports, "changes")
    variants = e.measured(e.cases)
    rows = [["time line", "function", "objective", *map(label, variants)]]
    for c in e.cases:
        for i, f in enumerate(c.functions):
            lines = {v: [r.timeline.functions[i].total for r in e.timelines(c.name, v)] for v in variants}
            rows.append([c.name, f.name, millis(f.slo_ms), *(totals(lines[v]) for v in variants)])
    if len(rows) == 1:
        raise NotMeasured("no complete run")
    return f"{runs_text(e, variants)}\n{table(rows)}"


def unused_table(reports: Reports) -> str:
    """Returns a table of the multiprocessors that fixed percentages leave unused."""
    rows = [head("mix | multiprocessors of the functions | unused")]
    for e in goals.read(reports):
        for c in e.cases:
            runs = e.runs(c.name, "static")
            if not runs:
                continue
            sizes = [f.sms for f in runs[0].loads[0].functions]
            each = " + ".join(f"{count} × {sms}" for sms, count in Counter(sizes).items())
            rows.append([c.name, each, f"{e.sms - sum(sizes)} of {e.sms}"])
    if len(rows) == 1:
        raise NotMeasured("no complete run")
    return table(rows)


def own(loads: list[Load], name: str) -> list[evaluation.FunctionLoad]:
    return [f for load in loads for f in load.functions if f.name == name]


def in_time(loads: list[Load], name: str) -> str:
    return totals(own(loads, name))


def totals(functions: list[evaluation.FunctionLoad]) -> str:
    if not functions:
        return "–"
    within = spread(functions, lambda f: f.within_percent).text(tenths, " %")
    return f"{within}, {spread(functions, lambda f: f.p99_ms).text(short, ' ms')}"


def cpus_table(reports: Reports) -> str:
    r = reports.read("cpus", Sharing)
    if not r.mixes:
        raise NotMeasured("no mix")
    rows = [["mix", "function", *(v.name for v in r.mixes[0].variants)]]
    for m in r.mixes:
        for i, f in enumerate(m.variants[0].functions):
            cells = [rounds_cell(v.functions[i]) for v in m.variants]
            rows.append([m.name, f.name, *cells])
    return table(rows)


def rounds_cell(f: FunctionRounds) -> str:
    within = Spread.from_values(f.within_percent).text(tenths, " %")
    return f"{within}, {Spread.from_values(f.goodput).text(short, '/s')}"


SECTIONS = [
    ("machine", machine_table, None), *goals.SECTIONS, ("unused", unused_table, None),
    ("guarantees", in_time_table("guarantees"), None), ("mixes", in_time_table("mixes"), None),
    ("new-mixes", in_time_table("new-mixes"), None), ("short-objectives", in_time_table("short-objectives"), None),
    ("overload", in_time_table("overload"), None), ("blocking", in_time_table("blocking"), None), ("changes", changes_table, None), ("cpus", cpus_table, None),
]  # fmt: skip
REPORTS = ["guarantees", "mixes", "new-mixes", "short-objectives", "overload", "blocking", "changes", "cpus"]
