"""research/results/h200: the benchmarks on one GPU, compared with design targets."""

import math
from dataclasses import dataclass, field

from draw import (
    BLACK, BLUE, GREEN, GREY, LIGHT, LONG_DASHES, ORANGE, PURPLE, RED, Bars, Chart, grouped, legend, log_x, log_y, name_groups, points,
    target, times,
)  # fmt: skip
from report import NotMeasured, Percentiles, Report, Reports, Stages
from text import NAN, divide, head, median, met, number, plain, short, span, table

# The targets of research/README.md.
GATHER_RATIO = 0.80
THROUGHPUT_RATIO = 0.95
ADDED_MICROS = 100
PARTITION_MICROS = 10
SHADOW_MICROS = 100
SILENCE_MILLIS = 1500


@dataclass
class GatherCase:
    wire: str = ""
    tensor: str = ""
    normalised: bool = False
    pictures: int = 0
    picture_bytes: int = 0
    alignment: str = ""
    gb_per_s: float = 0
    contiguous_copy_gb_per_s: float = 0
    ratio: float = 0
    copy_a_piece_gb_per_s: float = 0
    cpu_copy_gb_per_s: float = 0

    def kind(self) -> tuple[str, str, bool]:
        return self.wire, self.tensor, self.normalised


@dataclass
class Gather(Report):
    piece_bytes: int = 0
    cases: list[GatherCase] = field(default_factory=list)


@dataclass
class Throughput:
    ports: int = 0
    images_per_s: float = 0
    mean_batch: float = 0
    ratio: float = 0
    ratio_overlapped: float = 0
    limit: str = ""


@dataclass
class Latency(Stages):
    volleys: int = 0
    whole: int = 0
    added_us: Percentiles = field(default_factory=Percentiles)
    added_with_gather_us: Percentiles = field(default_factory=Percentiles)

    def measured(self) -> bool:
        """Reports whether enough volleys came in one batch for percentiles to mean anything."""
        return self.whole > 0 and self.whole >= self.volleys // 2


@dataclass
class Way:
    busy_poll_ms: float = 0
    throughput: list[Throughput] = field(default_factory=list)
    best: Throughput = field(default_factory=Throughput)
    latency: Latency = field(default_factory=Latency)


@dataclass
class OverheadCase:
    model: str = ""
    batch: int = 0
    bare_images_per_s: float = 0
    bare_overlapped_images_per_s: float = 0
    bare_batch_us: Percentiles = field(default_factory=Percentiles)
    ways: list[Way] = field(default_factory=list)

    def first_and_last(self) -> list[Way]:
        """Returns the ways without busy_poll and with the longest."""
        return [self.ways[0], self.ways[-1]]


@dataclass
class Overhead(Report):
    floor_us: Percentiles = field(default_factory=Percentiles)
    cases: list[OverheadCase] = field(default_factory=list)

    def check(self) -> None:
        for i, c in enumerate(self.cases):
            if not c.ways:
                raise ValueError(f"cases[{i}].ways: want one or more")

    def gpu(self) -> str:
        """Returns the GPU's name. Some reports have its UUID as device."""
        return next((g.name for g in self.machine.gpus if g.uuid == self.device), self.device)

    def groups(self) -> list[str]:
        return [f"{c.model}\nbatch {c.batch}" for c in self.cases]


@dataclass
class MovesCase:
    how: str = ""
    moves: int = 0
    idle_us: Percentiles = field(default_factory=Percentiles)
    every_idle_us: list[float] = field(default_factory=list)
    order_to_served_ms: Percentiles = field(default_factory=Percentiles)
    lost: int = 0
    steady_second_p99_ms: Percentiles = field(default_factory=Percentiles)
    around_second_p99_ms: Percentiles = field(default_factory=Percentiles)


@dataclass
class Moves(Report):
    model: str = ""
    batch: int = 0
    change: MovesCase = field(default_factory=MovesCase)
    restart: MovesCase | None = None


@dataclass
class LimitLoad:
    images_per_s: float = 0
    latency_us: Percentiles = field(default_factory=Percentiles)


@dataclass
class LimitPoint:
    percent: float = 0
    sms: int = 0
    alone: LimitLoad = field(default_factory=LimitLoad)
    beside: LimitLoad | None = None
    aggressor_sms: int = 0


@dataclass
class LimitSeries:
    change: str = ""
    points: list[LimitPoint] = field(default_factory=list)


@dataclass
class Limit(Report):
    model: str = ""
    batch: int = 0
    aggressor: str = ""
    sms: int = 0
    series: list[LimitSeries] = field(default_factory=list)

    def left(self, series: LimitSeries, point: LimitPoint) -> int:
        """Returns the multiprocessors that a limit leaves.

        SM groups are given out whole, so these are all that the aggressor does not have.
        A count during a move would say less.
        """
        if series.change == "partition" and point.aggressor_sms > 0:
            return self.sms - point.aggressor_sms
        return point.sms


@dataclass
class Answers:
    ok: int = 0
    late: int = 0
    busy: int = 0
    failed: int = 0
    unanswered: int = 0
    unsent: int = 0


@dataclass
class FaultResult:
    silence_ms: dict[str, float] = field(default_factory=dict)


@dataclass
class Fault(Report):
    functions: list[str] = field(default_factory=list)
    faults: list[FaultResult] = field(default_factory=list)
    node_silence_ms: Percentiles = field(default_factory=Percentiles)
    requests: int = 0
    answers: Answers = field(default_factory=Answers)
    lost: int = 0

    def check(self) -> None:
        if not self.faults:
            raise ValueError("faults: want one or more")

    def silences(self, function: str) -> list[float]:
        """Returns a function's silence around each fault in milliseconds."""
        return [f.silence_ms.get(function, 0) for f in self.faults]


def machine_table(reports: Reports) -> str:
    rows = [head("report | date | GPU | driver, CUDA, ONNX Runtime | CPU | kernel | Penstock, Go")]
    kinds: dict[str, type[Report]] = {
        "gather": Gather,
        "overhead": Overhead,
        "swap-shadow": Moves,
        "swap-partition": Moves,
        "limit": Limit,
        "fault": Fault,
    }
    for name, kind in kinds.items():
        try:
            m = reports.read(name, kind).machine
        except NotMeasured:
            continue
        gpu = str(m.gpus[0]) if m.gpus else ""
        software = f"{m.driver}, {m.cuda}, {m.onnx_runtime}"
        rows.append([f"[{name}]({name}.json)", m.date, gpu, software, m.cores(), m.kernel, f"{m.penstock}, {m.go}"])
    if len(rows) == 1:
        raise NotMeasured(f"{reports.folder} has no reports")
    return table(rows)


def gather_table(reports: Reports) -> str:
    rows = [head(
        "packets | tensor | pictures | payloads | gather | contiguous copy | ratio | ≥ 0.80 at 32 | CPU, one copy | "
        "a copy a packet"
    )]  # fmt: skip
    for c in reports.read("gather", Gather).cases:
        rows.append([
            c.wire, c.tensor + (", normalised" if c.normalised else ""), str(c.pictures), c.alignment,
            f"{c.gb_per_s:.1f} GB/s", f"{c.contiguous_copy_gb_per_s:.1f} GB/s", f"{c.ratio:.2f}",
            met(c.ratio >= GATHER_RATIO) if c.pictures == 32 else "",
            f"{c.cpu_copy_gb_per_s:.1f} GB/s", f"{c.copy_a_piece_gb_per_s:.2f} GB/s",
        ])  # fmt: skip
    return table(rows)


def draw_gather(reports: Reports) -> list[str]:
    """Draws the gather next to the ways to do without its kernel."""
    r = reports.read("gather", Gather)
    if not r.cases:
        return []
    first = r.cases[0]
    top = 1.55 * max(
        max(c.gb_per_s, c.contiguous_copy_gb_per_s, c.cpu_copy_gb_per_s, c.copy_a_piece_gb_per_s)
        for c in r.cases
        if c.kind() == first.kind()
    )
    return [draw_gather_sizes(reports, r, first, top), draw_gather_types(reports, r, top)]


def bars(name: str, colour: str, values: list[float], write=short) -> Bars:
    return Bars(name, colour, values, [write(v) for v in values])


def draw_gather_sizes(reports: Reports, r: Gather, first: GatherCase, top: float) -> str:
    cases = [c for c in r.cases if c.kind() == first.kind()]
    chart = Chart()
    axes = chart.plot(
        f"Gathering packets of {r.piece_bytes} bytes: {first.wire} → {first.tensor}, {r.device}", "", "GB/s of packets' bytes"
    )
    grouped(axes, [f"{c.pictures} × {c.picture_bytes // 1000} KB\n{c.alignment}" for c in cases], [
        bars("contiguous copy of as many bytes", LIGHT, [c.contiguous_copy_gb_per_s for c in cases]),
        bars("Penstock's gather kernel", BLUE, [c.gb_per_s for c in cases]),
        bars("CPU puts together, one copy", ORANGE, [c.cpu_copy_gb_per_s for c in cases]),
        bars("a copy a packet", PURPLE, [c.copy_a_piece_gb_per_s for c in cases]),
    ])  # fmt: skip
    target(
        axes,
        "target at 32: 80 % of the contiguous copy",
        GATHER_RATIO * cases[-1].contiguous_copy_gb_per_s,
        start=max(0, 1 - 2 / len(cases)),
    )
    axes.set_ylim(0, top)
    legend(axes)
    return chart.save(reports.folder, "gather")


def draw_gather_types(reports: Reports, r: Gather, top: float) -> str:
    copies: dict[str, float] = {}
    speeds: dict[str, dict[str, float]] = {"aligned": {}, "odd": {}}
    for c in r.cases:
        if c.pictures == 32:
            group = f"{c.wire}\n→ {c.tensor}"
            copies.setdefault(group, c.contiguous_copy_gb_per_s)
            speeds["aligned" if c.alignment == "aligned" else "odd"][group] = c.gb_per_s
    chart = Chart()
    axes = chart.plot("By type, 32 pictures", "", "GB/s of packets' bytes")
    grouped(axes, list(copies), [
        bars("contiguous copy", LIGHT, list(copies.values())),
        bars("aligned payloads", BLUE, [speeds["aligned"].get(g, NAN) for g in copies], label),
        bars("odd addresses (as GRO leaves them)", GREEN, [speeds["odd"].get(g, NAN) for g in copies], label),
    ])  # fmt: skip
    axes.set_ylim(0, top)
    legend(axes)
    return chart.save(reports.folder, "gather-types")


def label(value: float) -> str:
    return "" if math.isnan(value) else short(value)


def p50_and_p99(p: Percentiles) -> str:
    return f"{p.p50:.0f} / {p.p99:.0f}"


def overhead_table(reports: Reports) -> str:
    rows = [head(
        "model | batch | bare | bare, two in flight | busy_poll | ports | Penstock | ratio | ratio, two in flight | ≥ 0.95 | "
        "mean batch | limited by"
    )]  # fmt: skip
    for c in reports.read("overhead", Overhead).cases:
        for w in c.ways:
            for t in w.throughput:
                rows.append([
                    c.model, str(c.batch), f"{number(c.bare_images_per_s)}/s", f"{number(c.bare_overlapped_images_per_s)}/s",
                    f"{plain(w.busy_poll_ms)} ms", str(t.ports), f"{number(t.images_per_s)}/s", f"{t.ratio:.3f}", f"{t.ratio_overlapped:.3f}",
                    met(t.ratio >= THROUGHPUT_RATIO), f"{t.mean_batch:.1f}", t.limit,
                ])  # fmt: skip
    return table(rows)


def draw_throughput(reports: Reports) -> list[str]:
    """Draws Penstock's throughput in percent of the bare framework's."""
    r = reports.read("overhead", Overhead)
    chart = Chart()
    axes = chart.plot(
        f"Throughput, UDP in to reply out, beside the bare framework in a closed loop ({r.gpu()})", "", "% of the bare framework"
    )

    def percent(name: str, colour: str, speeds: list[float]) -> Bars:
        values = [100 * divide(s, c.bare_images_per_s) if s > 0 else NAN for s, c in zip(speeds, r.cases)]
        return Bars(name, colour, values, [f"{s / 1000:.1f}k" for s in speeds])

    series = [
        percent("bare framework", LIGHT, [c.bare_images_per_s for c in r.cases]),
        percent("bare, two batches in flight", GREY, [c.bare_overlapped_images_per_s for c in r.cases]),
        percent("Penstock, end to end, best number of ports", BLUE, [c.first_and_last()[0].best.images_per_s for c in r.cases]),
        percent("Penstock, busy_poll", GREEN, [c.first_and_last()[1].best.images_per_s for c in r.cases]),
    ]
    grouped(axes, r.groups(), series)
    target(axes, "target: 95 %", 100 * THROUGHPUT_RATIO)
    axes.set_ylim(0, 1.45 * max([100.0, *(v for s in series for v in s.values if v > 0)]))
    legend(axes)
    return [chart.save(reports.folder, "overhead-throughput")]


def latency_table(reports: Reports) -> str:
    r = reports.read("overhead", Overhead)
    rows = [head(
        "model | batch | bare batch | busy_poll | added | p50 ≤ 100 | added, with the gather | queue | gather | infer | "
        "reply | batches"
    )]  # fmt: skip
    for c in r.cases:
        for w in c.ways:
            x = w.latency
            stages = [""] * 7
            if x.measured():
                stages = [
                    p50_and_p99(x.added_us), met(x.added_us.p50 <= ADDED_MICROS), p50_and_p99(x.added_with_gather_us),
                    p50_and_p99(x.queue_us), p50_and_p99(x.gather_us), p50_and_p99(x.infer_us), p50_and_p99(x.reply_us),
                ]  # fmt: skip
            rows.append(
                [c.model, str(c.batch), p50_and_p99(c.bare_batch_us), f"{plain(w.busy_poll_ms)} ms", *stages, f"{x.whole} of {x.volleys}"]
            )
    return f"A bare futex wake of one process by another took {p50_and_p99(r.floor_us)} in the same run.\n\n" + table(rows)


def draw_added(reports: Reports) -> list[str]:
    """Draws the time from the last packet to the reply, without a bare batch, in stages."""
    r = reports.read("overhead", Overhead)
    chart = Chart()
    axes = chart.plot(f"Last packet to reply, less a bare batch (median; right: busy_poll; {r.gpu()})", "", "µs")
    names = {
        "queue: whole → batch begins": BLUE,
        "infer, beyond the bare framework": ORANGE,
        "reply: inferred → sent": GREEN,
        "gather (counted apart)": LIGHT,
    }
    top, tails = float(ADDED_MICROS), []
    for i, c in enumerate(r.cases):
        for x, latency in zip((i - 0.2, i + 0.2), (w.latency for w in c.first_and_last())):
            if not latency.measured():
                continue
            stages = [latency.queue_us.p50, max(0, latency.infer_us.p50 - c.bare_batch_us.p50), latency.reply_us.p50, latency.gather_us.p50]
            base = 0.0
            for height, colour in zip(stages, names.values()):
                axes.bar(x, height, 0.28, base, color=colour)
                base += height
            tails.append((x, latency.added_us.p99))
            top = max(top, base, latency.added_us.p99)
    for name, colour in names.items():
        axes.bar(0, 0, color=colour, label=name)
    name_groups(axes, r.groups())
    axes.plot(
        [x for x, _ in tails],
        [y for _, y in tails],
        "o",
        color=BLACK,
        markersize=4,
        markerfacecolor="none",
        label="p99 of all but the gather",
    )
    target(axes, "target without the gather: 100 µs", ADDED_MICROS)
    axes.set_ylim(0, top * 1.6)
    legend(axes)
    return [chart.save(reports.folder, "overhead-latency")]


ORDER = {"partition": 0, "shadow": 1, "restart": 2}
COLOURS = {"partition": GREEN, "shadow": BLUE}


def moves(reports: Reports) -> list[tuple[Moves, MovesCase]]:
    """Returns the ways to change a share that were measured. A restart counts once."""
    cases: list[tuple[Moves, MovesCase]] = []
    for name in ("swap-partition", "swap-shadow"):
        try:
            r = reports.read(name, Moves)
        except NotMeasured:
            continue
        cases.append((r, r.change))
        if r.restart and all(c.how != r.restart.how for _, c in cases):
            cases.append((r, r.restart))
    if not cases:
        raise NotMeasured(f"{reports.folder} has neither swap-partition.json nor swap-shadow.json")
    return sorted(cases, key=lambda pair: ORDER.get(pair[1].how, -1))


def moves_table(reports: Reports) -> str:
    rows = [head(
        "how | model | changes | idle p50 / p99 / max | target p99 | met | lost | p99 of a steady second | "
        "p99 of the second around: median / worst | order → served p50"
    )]  # fmt: skip
    for r, m in moves(reports):
        limit = {"partition": PARTITION_MICROS, "shadow": SHADOW_MICROS}.get(m.how)
        idle, around = m.idle_us, m.around_second_p99_ms
        rows.append([
            m.how, f"{r.model}, batch {r.batch}", str(m.moves), " / ".join(span(v * 1e3) for v in (idle.p50, idle.p99, idle.max)),
            f"{limit} µs" if limit else "", met(idle.p99 <= limit) if limit else "", str(m.lost), span(m.steady_second_p99_ms.p50 * 1e6),
            f"{span(around.p50 * 1e6)} / {span(around.max * 1e6)}", span(m.order_to_served_ms.p50 * 1e6),
        ])  # fmt: skip
    return table(rows)


def draw_moves(reports: Reports) -> list[str]:
    """Draws how long the stream stands still, and the second around a change."""
    cases = moves(reports)
    device = cases[-1][0].device
    return [draw_idle(reports, [c for _, c in cases], device), draw_around(reports, [c for _, c in cases], device)]


def draw_idle(reports: Reports, cases: list[MovesCase], device: str) -> str:
    chart = Chart()
    axes = chart.plot(
        f"How long the stream stands still when a share changes under load ({device})", "how long, at most", "% of the changes"
    )
    log_x(axes, times(1e3))
    low, high = float(PARTITION_MICROS), float(SHADOW_MICROS)
    for c in cases:
        idle = sorted(max(v, 0.1) for v in c.every_idle_us)
        if not idle:
            continue
        low, high = min(low, idle[0]), max(high, idle[-1])
        parts = [100 * (i + 1) / len(idle) for i in range(len(idle))]
        name = f"{c.how} ({number(c.moves)}, {number(c.lost)} requests lost)"
        axes.plot(idle, parts, color=COLOURS.get(c.how, GREY), linewidth=2, drawstyle="steps-post", label=name)
    for name, micros in ("target, partition: p99 ≤ 10 µs", PARTITION_MICROS), ("target, shadow: p99 ≤ 100 µs", SHADOW_MICROS):
        axes.plot([micros, micros], [0, 100], color=RED, linewidth=1.5, linestyle=LONG_DASHES, label=name)
    axes.set_xlim(low / 2, high * 2)
    axes.set_ylim(0, 150)  # room for the legend
    axes.set_yticks([0, 25, 50, 75, 100])
    legend(axes, "upper left")
    return chart.save(reports.folder, "swap-idle")


def draw_around(reports: Reports, cases: list[MovesCase], device: str) -> str:
    chart = Chart()
    axes = chart.plot(f"p99 latency of the second around a change, beside a steady second ({device})", "", "p99 latency (logarithmic)")
    series = [
        bars("a steady second, median", LIGHT, [c.steady_second_p99_ms.p50 for c in cases], times(1e6)),
        bars("the second around a change, median", BLUE, [c.around_second_p99_ms.p50 for c in cases], times(1e6)),
        bars("the worst of them", ORANGE, [c.around_second_p99_ms.max for c in cases], times(1e6)),
    ]
    measured = [v for s in series for v in s.values if v > 0] or [1.0]
    base = 10 ** math.floor(math.log10(min(measured) / 1.5))
    log_y(axes, times(1e6))
    grouped(axes, [c.how for c in cases], series, base)
    axes.set_ylim(base, max(measured) * 20)  # room for the legend
    legend(axes)
    return chart.save(reports.folder, "swap-latency")


def limit_table(reports: Reports) -> str:
    r = reports.read("limit", Limit)
    rows = [
        ["by", "share", "multiprocessors", "alone", "of the whole device's", f"next to {r.aggressor}", "kept", "p99 alone", f"p99 next to {r.aggressor}"]
    ]
    for s in r.series:
        name = "SM groups" if s.change == "partition" else "MPS percentage"
        whole = max((p.alone.images_per_s for p in s.points), default=0)
        for p in s.points:
            alone = p.alone.images_per_s
            beside, kept, tail = "", "", ""
            if p.beside:
                beside = f"{number(p.beside.images_per_s)}/s"
                kept = f"{divide(100 * p.beside.images_per_s, alone):.0f} %"
                tail = span(p.beside.latency_us.p99 * 1e3)
            rows.append([
                name, f"{p.percent:.0f} %", str(r.left(s, p)), f"{number(alone)}/s", f"{divide(100 * alone, whole):.0f} %",
                beside, kept, span(p.alone.latency_us.p99 * 1e3), tail,
            ])  # fmt: skip
    return table(rows)


def draw_limit(reports: Reports) -> list[str]:
    """Draws throughput and tail latency against the multiprocessors that a limit leaves."""
    r = reports.read("limit", Limit)
    chart = Chart(columns=2)
    throughput = chart.plot(f"{r.model}, batch {r.batch}: throughput under a limit", "multiprocessors", "images/s", 0)
    tail = chart.plot(f"p99 latency, beside {r.aggressor} on all the rest", "multiprocessors", "ms", 1)
    full, top = (0.0, 0.0), 0.0
    for s in r.series:
        name, colour = ("SM groups of one's own", GREEN) if s.change == "partition" else ("MPS percentage", BLUE)

        def x(p: LimitPoint) -> float:
            return r.left(s, p) if p.sms else p.percent  # a CPU has a quota instead

        points(throughput, colour, [x(p) for p in s.points], [p.alone.images_per_s for p in s.points], name=f"{name}, alone")
        points(tail, colour, [x(p) for p in s.points], [p.alone.latency_us.p99 / 1000 for p in s.points], name=f"{name}, alone")
        full = max([full, *((x(p), p.alone.images_per_s) for p in s.points)], key=lambda point: point[0])
        top = max([top, *(p.alone.images_per_s for p in s.points)])
        beside = [(x(p), p.beside) for p in s.points if p.beside]
        if beside:
            points(throughput, colour, [x for x, _ in beside], [b.images_per_s for _, b in beside], True, f"{name}, beside {r.aggressor}")
            points(tail, colour, [x for x, _ in beside], [b.latency_us.p99 / 1000 for _, b in beside], True, f"{name}, beside")
            top = max(top, *(b.images_per_s for _, b in beside))
    throughput.plot([0, full[0]], [0, full[1]], color=GREY, linestyle=(0, (1, 2)), linewidth=1, label="in proportion")
    throughput.set_xlim(left=0)
    throughput.set_ylim(0, top * 1.5)
    tail.set_xlim(left=0)
    tail.set_ylim(bottom=0)
    legend(throughput, "upper left")
    legend(tail)
    return [chart.save(reports.folder, "limit")]


def fault_table(reports: Reports) -> str:
    r = reports.read("fault", Fault)
    rows = [["silent", f"p50 / max of {len(r.faults)} faults", "≤ 1.5 s"]]
    for name in r.functions:
        silences = r.silences(name)
        rows.append([name, f"{median(silences):.0f} / {max(silences):.0f} ms", met(max(silences) <= SILENCE_MILLIS)])
    rows.append(["as the node says, until everybody answers", f"{r.node_silence_ms.p50:.0f} / {r.node_silence_ms.max:.0f} ms", ""])
    a = r.answers
    return table(rows) + "\n" + table([
        ["requests", "ok", "failed", "late or busy", "without an answer", "never sent, for want of credit", "lost"],
        [number(r.requests), number(a.ok), number(a.failed), number(a.late + a.busy), str(a.unanswered), number(a.unsent), str(r.lost)],
    ])  # fmt: skip


def draw_fault(reports: Reports) -> list[str]:
    """Draws how long each function gave no answers around the faults."""
    r = reports.read("fault", Fault)
    chart = Chart()
    title = f"Time without answers when a neighbour's kernel faults: {number(r.requests)} requests, {r.answers.unanswered} without an answer ({r.device})"
    axes = chart.plot(title, "function", "ms")
    longest = [max(r.silences(name)) for name in r.functions]
    grouped(axes, r.functions, [
        bars("median", LIGHT, [median(r.silences(name)) for name in r.functions], number),
        bars("longest", BLUE, longest, number),
    ])  # fmt: skip
    target(axes, "target: 1.5 s", SILENCE_MILLIS)
    axes.set_ylim(0, 1.3 * max([SILENCE_MILLIS, *longest]))
    legend(axes)
    return [chart.save(reports.folder, "fault")]


SECTIONS = [
    ("machine", machine_table, None), ("gather", gather_table, draw_gather), ("overhead", overhead_table, draw_throughput),
    ("latency", latency_table, draw_added), ("swap", moves_table, draw_moves), ("limit", limit_table, draw_limit), ("fault", fault_table, draw_fault),
]  # fmt: skip
REPORTS = ["gather", "overhead", "swap-shadow", "swap-partition", "limit", "fault"]
