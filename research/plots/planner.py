"""research/results/planner: Penstock's planner compared with those of papers."""

from collections.abc import Callable
from dataclasses import dataclass, field

from matplotlib.axes import Axes

from draw import BLACK, BLUE, GREEN, GREY, LIGHT, ORANGE, PURPLE, RED, Chart, legend, log_x, log_y, points, times
from report import Report, Reports
from text import head, number, plain, span, table

SERVICES, RATES = "services", "rates"

# Colour, and whether dashed: a variant has the colour of the policy that it varies.
LOOKS = {
    "penstock": (GREEN, False), "penstock-sim": (GREEN, True), "parvagpu": (BLUE, False), "parvagpu-single": (BLUE, True),
    "parvagpu-unoptimized": (GREY, True), "gpulet": (ORANGE, False), "igniter": (PURPLE, False), "mig-serving": (RED, False),
}  # fmt: skip

# The share of GPUs that ParvaGPU saves compared with each policy, in percent, according to its paper. The
# first number is for the six scenarios (section IV-B1; four for iGniter), the second for S5 with one to ten
# times the services (IV-D1).
PUBLISHED = {"gpulet": (46.5, 45.2), "igniter": (34.6, 0), "mig-serving": (41.0, 30), "parvagpu-single": (0, 7.4)}


@dataclass
class Count:
    policy: str = ""
    services: int = 0
    gpus: int = 0
    lower_bound: int = 0
    optimal: bool = False
    internal_slack: float = 0
    external_fragmentation: float = 0
    delay_ms: float = 0
    scenario: str = ""
    grow: str = ""
    times: int = 0

    def place(self) -> tuple[str, str, int]:
        return self.scenario, self.grow, self.times


@dataclass
class Missing:
    policy: str = ""
    scenario: str = ""
    grow: str = ""
    times: int = 0
    services: int = 0
    why: str = ""


@dataclass
class Plans(Report):
    gpu_model: str = ""
    limit_s: float = 0
    policies: list[str] = field(default_factory=list)
    delays: list[Count] = field(default_factory=list)
    counts: list[Count] = field(default_factory=list)
    missing: list[Missing] = field(default_factory=list)

    def check(self) -> None:
        if not self.policies:
            raise ValueError("policies: want one or more")
        for i, c in enumerate(self.counts):
            if c.gpus < 1:
                raise ValueError(f"counts[{i}].gpus: want 1 or more, found {c.gpus}")


def read(reports: Reports) -> Plans:
    """Returns the delays of delays.json with the counts of counts.json."""
    r, counts = reports.read("delays", Plans), reports.read("counts", Plans)
    return Plans(r.machine, r.device, r.gpu_model, r.limit_s, r.policies, r.delays, counts.counts, r.missing + counts.missing)


def scenarios(r: Plans) -> list[str]:
    return list(dict.fromkeys(c.scenario for c in r.counts))


def machine_table(reports: Reports) -> str:
    rows = [head("report | date | CPU | kernel | Penstock, Go | limit a plan")]
    for name in ("delays", "counts"):
        r = reports.read(name, Plans)
        m = r.machine
        rows.append([f"[{name}]({name}.json)", m.date, m.cores(), m.kernel, f"{m.penstock}, {m.go}", f"{r.limit_s:.0f} s"])
    return table(rows)


def paper_table(reports: Reports) -> str:
    """Shows the GPUs for the paper's scenarios, and what parvagpu saves here and in the paper."""
    r = read(reports)
    gpus = {(c.policy, c.scenario, c.times): c.gpus for c in reversed(r.counts) if c.grow == SERVICES}

    def saves(policy: str, names: list[str], most: int) -> str:
        places = [(s, times) for s in names for times in range(1, most + 1)]
        parts = [1 - gpus["parvagpu", *p] / gpus[policy, *p] for p in places if ("parvagpu", *p) in gpus and (policy, *p) in gpus]
        return f"{100 * sum(parts) / len(parts):.1f} %" if parts else "–"

    names = scenarios(r)
    rows = [["policy", *names, "ParvaGPU saves, mean", "paper", "on S5 × 1 to 10", "paper"]]
    for policy in r.policies:
        needed = [str(gpus.get((policy, s, 1), "–")) for s in names]
        paper = [f"{p:.1f} %" if p else "" for p in PUBLISHED.get(policy, (0, 0))]
        rows.append([policy, *needed, saves(policy, names, 1), paper[0], saves(policy, ["S5"], 10), paper[1]])
    return table(rows)


def compared_table(reports: Reports) -> str:
    """Shows how many GPUs each policy takes on average, relative to parvagpu's."""
    r = read(reports)
    base = {c.place(): c.gpus for c in r.counts if c.policy == "parvagpu"}
    twice = {c.place() for c in r.counts if c.grow == RATES and c.times == 1}  # the plans of services × 1 again
    rows = [head(
        "policy | GPUs, of parvagpu's: services grow | rates grow | plans | with fewer GPUs | with more | proved optimal | "
        "internal slack | external fragmentation"
    )]  # fmt: skip
    for policy in r.policies:
        plans = [c for c in r.counts if c.policy == policy and c.place() in base]
        if not plans:
            continue

        def mean(grow: str) -> str:
            parts = [c.gpus / base[c.place()] for c in plans if c.grow == grow]
            return f"{100 * sum(parts) / len(parts):.1f} %" if parts else "–"

        different = [c for c in plans if c.place() not in twice]
        fewer = sum(c.gpus < base[c.place()] for c in different)
        more = sum(c.gpus > base[c.place()] for c in different)
        slack = 100 * sum(c.internal_slack for c in different) / len(different)
        fragmentation = abs(100 * sum(c.external_fragmentation for c in different) / len(different))
        rows.append([
            policy, mean(SERVICES), mean(RATES), str(len(different)), str(fewer), str(more), str(sum(c.optimal for c in different)),
            f"{slack:.1f} %", f"{fragmentation:.1f} %",
        ])  # fmt: skip
    return table(rows)


def delay_table(reports: Reports) -> str:
    r = read(reports)
    took = {(d.policy, d.services): d for d in r.delays}
    rows = [["services", *r.policies]]
    for services in sorted({d.services for d in r.delays}):
        row = [number(services)]
        for policy in r.policies:
            d = took.get((policy, services))
            row.append(f"{span(d.delay_ms * 1e6)} / {number(d.gpus)}" if d else "–")
        rows.append(row)
    return table(rows)


def grown_table(grow: str) -> Callable[[Reports], str]:
    def write(reports: Reports) -> str:
        r = read(reports)
        rows = [["scenario", f"times {grow}", *r.policies, "proved bound"]]
        counts = {(c.scenario, c.times, c.policy): c for c in r.counts if c.grow == grow}
        for scenario, factor in sorted({(s, n) for s, n, _ in counts}):
            row, bound = [scenario, str(factor)], 0
            for policy in r.policies:
                c = counts.get((scenario, factor, policy))
                if c is None:
                    row.append("–")
                    continue
                bound = max(bound, c.lower_bound)
                row.append(f"**{c.gpus}**" if c.optimal else str(c.gpus))
            rows.append([*row, str(bound)])
        return table(rows)

    return write


def missing_table(reports: Reports) -> str:
    """Shows which plans are missing, and why."""
    r = read(reports)
    if not r.missing:
        return "None.\n"
    rows = [head("policy | plans that there are not | the first of them, and why")]
    for policy in r.policies:
        own = [m for m in r.missing if m.policy == policy]
        if own:
            first = own[0]
            what = f"{first.scenario}, {first.grow} × {first.times}" if first.scenario else f"{number(first.services)} services"
            rows.append([policy, str(len(own)), f"{what}: {first.why}"])
    return table(rows)


def gpus_of(c: Count) -> float:
    return c.gpus


def delay_of(c: Count) -> float:
    """Returns the delay in ms, kept on a logarithmic axis if it was too short to measure."""
    return max(c.delay_ms, 1e-3)


def grown(r: Plans, scenario: str, grow: str, policy: str, value: Callable[[Count], float]) -> list[tuple[float, float]]:
    return [(c.times, value(c)) for c in r.counts if (c.scenario, c.grow, c.policy) == (scenario, grow, policy)]


def policy_line(axes: Axes, policy: str, line: list[tuple[float, float]]) -> float:
    """Draws a policy's line and returns its highest value."""
    if not line:
        return 0
    colour, dashed = LOOKS.get(policy, (BLACK, False))
    points(axes, colour, [x for x, _ in line], [y for _, y in line], dashed, policy)
    return max(y for _, y in line)


def draw_delay(reports: Reports) -> list[str]:
    r = read(reports)
    chart = Chart()
    axes = chart.plot(f"Delay of a plan on {r.gpu_model}, by number of services", "services (logarithmic)", "delay (logarithmic)")
    log_x(axes, plain)
    log_y(axes, times(1e6))
    # Of lines that coincide, the first policy's is on top.
    top = max(policy_line(axes, p, [(d.services, delay_of(d)) for d in r.delays if d.policy == p]) for p in reversed(r.policies))
    axes.set_ylim(top=max(top * 4, 1))  # room for the legend
    legend(axes, "upper left")
    return [chart.save(reports.folder, "delay")]


def rows_of_three(count: int) -> Chart:
    columns = max(1, min(3, count))
    return Chart(columns, max(1, -(-count // columns)))


def draw_grown(name: str, grow: str, unit: str, value: Callable[[Count], float]) -> Callable[[Reports], str]:
    def draw(reports: Reports) -> str:
        r = read(reports)
        chart = rows_of_three(len(scenarios(r)))
        for i, scenario in enumerate(scenarios(r)):
            axes = chart.plot(scenario, f"times the {grow}", unit, i)
            top = max(policy_line(axes, p, grown(r, scenario, grow, p, value)) for p in reversed(r.policies))
            if value is gpus_of:
                axes.set_ylim(bottom=0)
            else:
                log_y(axes, times(1e6))
            if i == 0:  # its legend is for all
                axes.set_ylim(top=max(top, 1) * (1000 if value is delay_of else 1.1))
                legend(axes, "upper left")
        return chart.save(reports.folder, name)

    return draw


def draw_saved(reports: Reports) -> str:
    """Draws GPUs in percent of parvagpu's, and the proved lower bound."""
    r = read(reports)
    chart = rows_of_three(len(scenarios(r)))
    for i, scenario in enumerate(scenarios(r)):
        axes = chart.plot(f"{scenario}: GPUs, of parvagpu's", "times the rates", "%", i)
        base = dict(grown(r, scenario, RATES, "parvagpu", gpus_of))

        def part(policy: str, value: Callable[[Count], float]) -> list[tuple[float, float]]:
            return [(x, 100 * y / base[x]) for x, y in grown(r, scenario, RATES, policy, value) if x in base]

        bound = part("penstock", lambda c: c.lower_bound)
        axes.plot([x for x, _ in bound], [y for _, y in bound], color=LIGHT, linewidth=6, label="proved lower bound")
        top = max([105, *(policy_line(axes, p, part(p, gpus_of)) for p in ("parvagpu", "penstock-sim", "penstock"))])
        axes.set_ylim(50, top * 1.01)
        if i == 0:
            legend(axes, "lower left")
    return chart.save(reports.folder, "rates-saved")


draw_services_gpus = draw_grown("services-gpus", SERVICES, "GPUs", gpus_of)
draw_services_delay = draw_grown("services-delay", SERVICES, "delay (logarithmic)", delay_of)
draw_rates_gpus = draw_grown("rates-gpus", RATES, "GPUs", gpus_of)

SECTIONS = [
    ("machine", machine_table, None), ("paper", paper_table, None), ("compared", compared_table, None), ("delay", delay_table, draw_delay),
    ("services", grown_table(SERVICES), lambda reports: [draw_services_gpus(reports), draw_services_delay(reports)]),
    ("rates", grown_table(RATES), lambda reports: [draw_saved(reports), draw_rates_gpus(reports)]),
    ("missing", missing_table, None),
]  # fmt: skip
REPORTS = ["delays", "counts"]
