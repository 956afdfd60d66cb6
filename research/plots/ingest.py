"""research/results/ingest: packets from DPDK, and whole nodes behind each source."""

from dataclasses import dataclass, field

from draw import BLUE, GREY, LIGHT, Bars, Chart, grouped, legend, target
from report import NotMeasured, Percentiles, Report, Reports, Stages
from text import head, met, number, plain, rounded, table

# Targets of `ingest --source dpdk`.
DATAGRAMS_PER_CORE = 5e6  # per second
BARE_RATIO = 0.8


@dataclass
class OneCore:
    pieces: int = 0
    piece_bytes: int = 0
    frames: str = ""
    datagrams_per_s: float = 0
    bare_datagrams_per_s: float = 0
    ratio: float = 0
    read_datagrams_per_s: float = 0
    ratio_read: float = 0
    lost: int = 0
    allocs_per_datagram: float = 0


@dataclass
class Port:
    port: str = ""
    sender: str = ""
    sent_per_s: float = 0
    received_per_s: float = 0
    bytes_per_s: float = 0
    lost_percent: float = 0
    allocs_per_datagram: float = 0
    lacks: str = ""


@dataclass
class Soak:
    seconds: float = 0
    datagrams: int = 0
    requests: int = 0
    incomplete: int = 0
    missed: int = 0
    mbufs: int = 0
    mbufs_absent: int = 0


@dataclass
class Ingest(Report):
    memory: str = ""
    one_core: list[OneCore] = field(default_factory=list)
    ports: list[Port] = field(default_factory=list)
    soak: Soak | None = None

    def check(self) -> None:
        for i, c in enumerate(self.one_core):
            if c.datagrams_per_s <= 0 or c.bare_datagrams_per_s <= 0:
                raise ValueError(f"one_core[{i}]: want rates above 0")


@dataclass
class Traffic(Stages):
    in_flight: int = 0
    images_per_s: float = 0
    requests: int = 0
    wrong: int = 0
    refused: int = 0
    unanswered: int = 0
    end_to_end_us: Percentiles = field(default_factory=Percentiles)
    aggregate_us: Percentiles = field(default_factory=Percentiles)


@dataclass
class Function:
    model: str = ""
    alone: Traffic = field(default_factory=Traffic)
    loaded: Traffic = field(default_factory=Traffic)


@dataclass
class Way:
    source: str = ""
    busy_poll_ms: float = 0
    memory: str = ""
    mapped_read_only_mib: float = 0
    functions: list[Function] = field(default_factory=list)
    lacks: str = ""


@dataclass
class Node(Report):
    ways: list[Way] = field(default_factory=list)


def machine_table(reports: Reports) -> str:
    rows = [head("report | date | CPU | kernel | packet memory | Penstock, Go")]
    for name in ("dpdk", "soak"):
        try:
            r = reports.read(name, Ingest)
        except NotMeasured:
            if name == "dpdk":
                raise
            continue
        m = r.machine
        rows.append([f"[{name}]({name}.json)", m.date, m.cores(), m.kernel, r.memory, f"{m.penstock}, {m.go}"])
    return table(rows)


def one_core_table(reports: Reports) -> str:
    rows = [head(
        "requests | the port writes | Penstock | ≥ 5 M/s | bare | ratio | ≥ 0.8 | headers read | ratio | above the floor | "
        "allocations a datagram | lost"
    )]  # fmt: skip
    for c in reports.read("dpdk", Ingest).one_core:
        above = 1e9 / c.datagrams_per_s - 1e9 / c.bare_datagrams_per_s
        rows.append([
            f"{c.pieces} × {c.piece_bytes} B", c.frames, f"{c.datagrams_per_s / 1e6:.2f} M/s", met(c.datagrams_per_s >= DATAGRAMS_PER_CORE),
            f"{c.bare_datagrams_per_s / 1e6:.2f} M/s", f"{c.ratio:.2f}", met(c.ratio >= BARE_RATIO),
            f"{c.read_datagrams_per_s / 1e6:.2f} M/s", f"{c.ratio_read:.2f}", f"{above:.0f} ns", f"{c.allocs_per_datagram:.6f}", str(c.lost),
        ])  # fmt: skip
    return table(rows)


def draw_one_core(reports: Reports) -> list[str]:
    r = reports.read("dpdk", Ingest)
    chart = Chart()
    axes = chart.plot(f"One core: poll, parse, aggregate, release, beside bursts received and freed ({r.memory})", "", "M datagrams/s")
    series = [
        millions("Penstock", BLUE, [c.datagrams_per_s for c in r.one_core]),
        millions("bare rx_burst and bulk free", LIGHT, [c.bare_datagrams_per_s for c in r.one_core]),
        millions("the same, headers read", GREY, [c.read_datagrams_per_s for c in r.one_core]),
    ]
    grouped(axes, [f"{c.pieces} × {c.piece_bytes} B, {c.frames} written" for c in r.one_core], series)
    target(axes, "target: 5 M/s", DATAGRAMS_PER_CORE / 1e6)
    axes.set_ylim(0, 1.3 * max([DATAGRAMS_PER_CORE / 1e6, *(v for s in series for v in s.values)]))
    legend(axes)
    return [chart.save(reports.folder, "one-core")]


def millions(name: str, colour: str, rates: list[float]) -> Bars:
    return Bars(name, colour, [r / 1e6 for r in rates], [f"{r / 1e6:.1f}" for r in rates])


def ports_table(reports: Reports) -> str:
    rows = [head("port | received | payload | sent | lost | allocations a datagram | sender")]
    for p in reports.read("dpdk", Ingest).ports:
        if p.lacks:
            rows.append([p.port, f"not on this machine: {p.lacks}", "", "", "", "", p.sender])
            continue
        rows.append([
            p.port, f"{number(p.received_per_s)}/s", f"{p.bytes_per_s / 1e9:.2f} GB/s", f"{number(p.sent_per_s)}/s",
            f"{p.lost_percent:.2f} %", f"{p.allocs_per_datagram:.4f}", p.sender,
        ])  # fmt: skip
    if len(rows) == 1:
        raise NotMeasured("dpdk.json has no ports")
    return table(rows)


def draw_ports(reports: Reports) -> list[str]:
    r = reports.read("dpdk", Ingest)
    ports = [p for p in r.ports if not p.lacks]
    if not ports:
        return []
    chart = Chart()
    axes = chart.plot(f"Datagrams of 1 KB, each port fed by its sender on the same {r.machine.cpus} cores", "", "k datagrams/s")
    received, sent = ([p.received_per_s / 1e3 for p in ports], [p.sent_per_s / 1e3 for p in ports])
    grouped(axes, [p.port for p in ports], [
        Bars("received", BLUE, received, [number(v) for v in received]),
        Bars("sent", LIGHT, sent, [number(v) for v in sent]),
    ])  # fmt: skip
    axes.set_ylim(0, 1.2 * max(1, *sent, *received))
    legend(axes)
    return [chart.save(reports.folder, "ports")]


def node_table(reports: Reports) -> str:
    rows = [head(
        "model | source | busy_poll | in flight | images | end to end p50, p99 | aggregate | queue | gather | infer | reply | "
        "answers | wrong | lost | mapped, read-only"
    )]  # fmt: skip
    for w in reports.read("h200", Node).ways:
        poll = f"{plain(w.busy_poll_ms)} ms"
        if w.lacks:
            rows.append(["", w.source, poll, f"not measured: {w.lacks}"])
        for f in w.functions:
            for t in (f.alone, f.loaded):
                stages = [t.aggregate_us, t.queue_us, t.gather_us, t.infer_us, t.reply_us]
                rows.append([
                    f.model, w.source, poll, str(t.in_flight), f"{number(t.images_per_s)}/s", f"{t.end_to_end_us.p50:.0f}, {t.end_to_end_us.p99:.0f} µs",
                    *(f"{s.p50:.0f}" for s in stages), number(t.requests), str(t.wrong), str(t.unanswered + t.refused),
                    f"{w.mapped_read_only_mib:.0f} MiB, {w.memory}",
                ])  # fmt: skip
    return table(rows)


def draw_node(reports: Reports) -> list[str]:
    """Draws the end-to-end latency of a whole node on a GPU behind each source."""
    runs = [(w, f) for w in reports.read("h200", Node).ways for f in w.functions]
    if not runs:
        return []
    chart = Chart()
    axes = chart.plot("A node on a GPU, one request at a time: first byte sent to answer received (model, source, busy_poll)", "", "µs")
    p50, p99 = [f.alone.end_to_end_us.p50 for _, f in runs], [f.alone.end_to_end_us.p99 for _, f in runs]
    grouped(axes, [f"{f.model}\n{w.source}\n{plain(w.busy_poll_ms)} ms" for w, f in runs], [
        Bars("p50", BLUE, p50, [f"{v:.0f}" for v in p50]),
        Bars("p99", LIGHT, p99, [f"{v:.0f}" for v in p99]),
    ])  # fmt: skip
    axes.set_ylim(0, 1.2 * max(1, *p50, *p99))
    legend(axes)
    return [chart.save(reports.folder, "node")]


def soak_table(reports: Reports) -> str:
    """Shows the long run if there is one, otherwise the run of dpdk.json."""
    try:
        s = reports.read("soak", Ingest).soak
    except NotMeasured:
        s = reports.read("dpdk", Ingest).soak
    if s is None:
        raise NotMeasured("no soak")
    counts = [number(v) for v in (s.datagrams, s.requests, s.incomplete, s.missed, s.mbufs)]
    return table([
        ["for", "datagrams", "requests", "incomplete", "missed frames", "mbufs", "not back at the end", "0"],
        [duration(s.seconds), *counts, str(s.mbufs_absent), met(s.mbufs_absent == 0)],
    ])  # fmt: skip


def duration(seconds: float) -> str:
    """Writes 3600 as 1h0m0s."""
    minutes, seconds = divmod(int(rounded(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return (f"{hours}h" if hours else "") + (f"{minutes}m" if hours or minutes else "") + f"{seconds}s"


SECTIONS = [
    ("machine", machine_table, None), ("one-core", one_core_table, draw_one_core), ("ports", ports_table, draw_ports),
    ("node", node_table, draw_node), ("soak", soak_table, None),
]  # fmt: skip
REPORTS = ["dpdk", "soak", "h200"]
