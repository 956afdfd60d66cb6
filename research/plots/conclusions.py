"""The figures of research/conclusions.md, read from the reports and the tables of the pages that it links to."""

import json
import re
from pathlib import Path

from text import number

Row = dict[str, str]


class Tables:
    """The tables of a page of research/results, by section."""

    def __init__(self, results: Path, name: str):
        self.page = (results / name / "README.md").read_text()

    def rows(self, section: str, **cells: str) -> list[Row]:
        """Returns the rows of a section's first table whose cells match: model="resnet50"."""
        text = self.page.partition(f"<!-- begin {section} -->")[2].partition(f"<!-- end {section} -->")[0]
        lines = re.search(r"(?:^\|.*\n)+", text, re.MULTILINE)
        if not lines:
            raise KeyError(f"no table in section {section}")
        names, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[0].splitlines()]
        found = [dict(zip(names, row)) for row in rows]
        found = [row for row in found if all(row[name] == value for name, value in cells.items())]
        if not found:
            raise KeyError(f"no row with {cells} in section {section}")
        return found

    def cell(self, section: str, column: str, **cells: str) -> str:
        (row,) = self.rows(section, **cells)
        return row[column]


def values(cells: list[str]) -> list[float]:
    """Returns the first number of each cell: the median if the cell has a range too."""
    return [float(re.sub(",", "", m[0])) for c in cells if (m := re.search(r"-?[\d,]+(?:\.\d+)?", c))]


def value(cell: str) -> float:
    return values([cell])[0]


def plain(x: float) -> str:
    return f"{x:.1f}".removesuffix(".0") if x < 1000 else number(x)


def span(numbers: list[float]) -> str:
    low, high = plain(min(numbers)), plain(max(numbers))
    return low if low == high else f"{low} to {high}"


def joined(numbers: list[float]) -> str:
    *first, last = map(plain, numbers)
    return f"{', '.join(first)} and {last}" if first else last


def percent(ratios: list[float]) -> str:
    return f"{100 * min(ratios):.0f} to {100 * max(ratios):.0f} %"


def guarantees(t: Tables) -> list[str]:
    ways = "guarantees", "no shares", "partitions"

    def at(section: str, column: str, place: str, function: str) -> float:
        return value(t.cell(section, column, **{"mix, load": place, "function": function}))

    def worst(section: str, column: str, place: str) -> float:
        return min(values([row[column] for row in t.rows(section) if row["mix, load"] == place]))

    def places(section: str, load: str) -> list[str]:
        return list(dict.fromkeys(row["mix, load"] for row in t.rows(section) if row["mix, load"].endswith(load)))

    one, two = "ResNet-152 next to VGG-19, 100 %", "ResNet-50 and MobileNetV2 next to VGG-19, 100 %"
    within = [(one, "resnet152"), (two, "resnet50"), (two, "mobilenetv2")]
    kept, without, parts = ([at("guarantees", way, *f) for f in within] for way in ways)
    offered = value(t.cell("guarantees", "offered", **{"mix, load": one, "function": "vgg19"}))
    alone = value(t.cell("overload", "offered", **{"mix, load": "VGG-19, 90 %"})) / 0.9
    over = [[at("guarantees", way, place, "vgg19") for way in ways] for place in (one, two)]
    half = [at("guarantees", way, two.replace("100 %", "50 %"), "vgg19") for way in ways]
    four, eight, twelve = ([worst("mixes", way, f"{mix}, 90 %") for way in ways] for mix in ("C4", "8 functions", "12 functions"))
    new = [[worst("new-mixes", way, place) for place in places("new-mixes", "50 %")] for way in ways]
    short = [[worst("short-objectives", way, f"{mix}, 90 %") for mix in ("C2, 5 ms", "C3, 5 ms")] for way in ways]
    ten = [worst("short-objectives", way, "C2, 10 ms, 90 %") for way in ways[:2]]
    twice = [[at("overload", way, f"{name}, 200 %", model) for name, model in (("ResNet-50", "resnet50"), ("VGG-19", "vgg19"))] for way in ways[:2]]
    changes = [values([row[way] for row in t.rows("changes")]) for way in ways[:2]]
    tails = [float(m[1]) for row in t.rows("blocking", function="alexnet") if (m := re.search(r", ([\d.]+) ms", row["guarantees"]))]
    detect = [[t.cell("cpus", way, mix=f"demo, detect {rate}/s", function="detect") for rate in (40, 100)] for way in ("guarantees", "no shares", "quotas")]
    answered = [[value(cell.partition(" %, ")[2]) for cell in cells] for cells in detect]
    others = [row["guarantees"] for row in t.rows("cpus") if row["mix"] in ("demo, detect 40/s", "demo, detect 100/s") and row["function"] != "detect"]
    thirty = [worst("mixes", "guarantees", place) for place in places("mixes", " 30 %")]
    ninety = [worst("mixes", "guarantees", f"{mix}, 90 %") for mix in ("C1", "C2", "C3")]
    goals = re.findall(r"\*\*false\*\*, (\d+ of \d+)", t.page)
    return [
        f"**Next to an overloaded VGG-19, functions within their guarantees keep {span(kept)} %.** It gets {offered / alone:.1f} times what it can do alone on an "
        f"H200. ResNet-152, ResNet-50 and MobileNetV2 have {span(kept)} % in time in three runs. Without shares these are {joined([round(w) for w in without])} %, "
        f"and with partitions {span(parts)} %.",
        f"next to ResNet-152 {plain(over[0][0])} %, without shares {plain(over[0][1])} %, with partitions {plain(over[0][2])} %. "
        f"Next to the other two {joined(over[1])} %.",
        f"it has {plain(half[0])} %, without shares {plain(half[1])} %, with partitions {plain(half[2])} %.",
        f"**At 30 % of capacity** each mix has {span(thirty)} %.",
        f"**At 90 %** two and three functions have {span(ninety)} %. Of four the worst has {plain(four[0])} %, without shares {plain(four[1])} %, with partitions "
        f"{plain(four[2])} %.",
        f"the worst function has {joined([eight[0], twelve[0]])} %, with partitions {joined([eight[2], twelve[2]])} %, and without shares "
        f"{joined([eight[1], twelve[1]])} %.",
        f"the worst function has {span(new[0])} %, with partitions {span(new[2])} %, and without shares {span(new[1])} %.",
        f"within 10 ms at 90 % the worst function has {plain(ten[0])} %, without shares {plain(ten[1])} %. Within 5 ms the worst functions have {joined(short[0])} %, without shares {joined(short[1])} %.",
        f"a single function has {joined(twice[0])} % in time, without shares {joined(twice[1])} %.",
        f"they have {span(changes[0])} %, without shares {span(changes[1])} %.",
        f"Its p99 rises from {plain(tails[0])} to at most {plain(max(tails))} ms.",
        f"*face* and *fashion* keep {span(values(others))} % (medians of ten) next to *detect* at 40 and 100/s. It answers {joined(answered[0])}/s in time, "
        f"without shares {joined(answered[1])}, with quotas {joined(answered[2])}.",
        f"99.5 % in time by {goals[0]} functions, goodput in {goals[1]} comparisons, p99 in {goals[2]} loads.",
    ]


def costs(t: Tables) -> list[str]:
    gather = [row for row in t.rows("gather") if row["pictures"] == "32"]
    speedup = [value(row["gather"]) / value(row["CPU, one copy"]) for row in gather]
    one_port = t.rows("overhead", model="resnet50", ports="1")
    slept, polled = (t.cell("latency", "added", model="resnet50", batch="1", busy_poll=busy) for busy in ("0 ms", "10 ms"))
    moved, shadow = (t.cell("swap", "idle p50 / p99 / max", how=how) for how in ("partition", "shadow"))
    silent = {row["silent"]: value(row["p50 / max of 3 faults"]) / 1000 for row in t.rows("fault")}
    faults = t.page.partition("<!-- begin fault -->")[2]
    requests = re.search(r"\| ([\d,]+) \| [\d,]+ \| \d+ \| \d+ \| \d+ \| \d+ \| (\d+) \|", faults)
    assert requests and moved.startswith("0 ns")
    return [
        f"reaches {percent([value(row['ratio']) for row in gather])} of a contiguous copy at 32 pictures of 150 KB, and "
        f"{min(speedup):.0f} to {max(speedup):.0f} times the speed of a gather on the CPU.",
        f"is {percent([value(row['ratio']) for row in one_port])} of the bare framework's, which has one batch in flight. It is "
        f"{percent([value(row['ratio, two in flight']) for row in one_port])} of that with two.",
        f"Penstock adds {value(slept):.0f} µs to a single request of ResNet-50, and {value(polled):.0f} µs with `busy_poll` (medians).",
        f"A shadow takes over in {value(shadow):.0f} µs (median)",
        f"a function keeps {kept_next_to_spin(t, 'SM groups')} of its throughput on separate groups, and {kept_next_to_spin(t, 'MPS percentage')} with "
        "MPS percentages.",
        f"interrupted ResNet-50 for {silent['resnet50']:.1f} s, face for {silent['face']:.1f} s and MobileNetV2 for {silent['mobilenetv2']:.1f} s "
        f"(medians of three). {requests[2]} of {requests[1]} requests were lost.",
    ]


def kept_next_to_spin(t: Tables, by: str) -> str:
    return percent([value(row["kept"]) / 100 for row in t.rows("limit", by=by) if row["kept"]])


def packets(t: Tables) -> list[str]:
    headers, whole = (t.rows("one-core", **{"the port writes": what}) for what in ("headers", "whole"))
    ratios = [value(row["Penstock"]) / value(row["bare"]) for row in headers + whole]
    udp, memif = (value(t.cell("ports", "received", port=port)) / 1e6 for port in ("udp", "memif"))
    soak = t.rows("soak")[0]
    null, resnet = (t.cell("node", "images", model=m, source="udp", busy_poll="0 ms", **{"in flight": "12"}) for m in ("null", "resnet50"))
    return [
        f"receives {value(headers[0]['Penstock']):.0f} M datagrams of 1 KB per second, and {value(whole[0]['Penstock']):.0f} M if it also writes the payload. "
        f"That is {percent(ratios)} of a loop that never reads a frame.",
        f"receive {udp:.1f} M datagrams per second across veth if the sender uses UDP_SEGMENT. The fastest virtual port of DPDK, memif, receives {memif:.1f} M.",
        f"received {value(soak['datagrams']) / 1e9:.2f} billion datagrams. {soak['missed frames'].replace('0', 'No')} frame was missed",
        f"answers {number(value(null))} pictures of 150 KB per second over loopback with a model that computes nothing, and {number(value(resnet))} with ResNet-50, "
        "twelve in flight.",
    ]


def planning(t: Tables) -> list[str]:
    scenarios = [f"S{i}" for i in range(1, 7)]
    (paper,) = t.rows("paper", policy="parvagpu")
    ours, theirs = (t.rows("compared", policy=policy)[0] for policy in ("penstock", "parvagpu"))
    used = values([ours["GPUs, of parvagpu's: services grow"], ours["rates grow"]])
    assert ours["with more"] == "0" and ours["proved optimal"] == ours["plans"]
    delays = {services: t.cell("delay", "penstock", services=services).partition(" / ")[0] for services in ("100", "10,000")}
    return [
        f"{joined(values([paper[s] for s in scenarios]))} GPUs for its scenarios S1 to S6, as published.",
        f"In {ours['with fewer GPUs']} of {ours['plans']} plans it needs fewer, {percent([u / 100 for u in used]).replace('95 to 95', '95')} in total, and each plan is "
        "proved to be optimal within its latency bounds.",
        f"{ours['internal slack']} of the multiprocessors in segments, with ParvaGPU's planner {theirs['internal slack']}.",
        f"{delays['100']} for 100 services and {value(delays['10,000']) / 1000:.2f} s for 10,000.",
    ]


def paper(t: Tables) -> list[str]:
    rows = t.rows("verdicts")
    label, never, above = list(rows[0])[1:4]
    ours, shadows = ([row for row in rows if row[label] == name] for name in ("Penstock", "Penstock, shadows"))

    def total(rows: list[Row], column: str) -> str:
        parts = [re.search(r"median \w+ in (\d+) of (\d+)", row[column]) for row in rows]
        return "{} of {}".format(*(sum(int(p[i]) for p in parts if p) for i in (1, 2)))

    lost = re.search(r"No request that was accepted is lost, in (\d+) runs of all variants: \*\*true\*\*", t.page)
    assert lost and all(row[never].startswith("**open**") for row in rows)
    return [
        f"**Batching gives the gain:** at 90 % {gains(t, 'fig8', 'fig9')} times default MPS for one function, {gains(t, 'fig10a', 'fig10b')} times for mixes. MPS + SLAB "
        "gives the same (paper: 1.2 to 4 times that).",
        f"The median goodput is at least 1 % lower than a baseline's in {total(ours, never)} comparisons. It is at least 1 % higher in {total(ours, above)} with a "
        "baseline that misses its objective.",
        f"No accepted request was lost** in {lost[1]} runs of all variants.",
        f"a median lower than a baseline's in {total(shadows, never)} comparisons",
        "In C1 to C4 at 90 % it is {} times that of MPS + SLAB. The paper has {} times.".format(*efficacy(t)),
    ]


def efficacy(t: Tables) -> tuple[str, str]:
    """Returns the efficacy next to that of MPS + SLAB in each mix: ours, and the paper's."""
    # Columns of ours and of the paper have equal names, so they are read by place.
    section = t.page.partition("<!-- begin table3 -->")[2].partition("<!-- end table3 -->")[0]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| ") and "paper" not in line]

    def ratios(ours: int, slab: int) -> str:
        *first, last = (f"{value(cells[ours]) / value(cells[slab]):.2f}" for cells in rows)
        return f"{', '.join(first)} and {last}"

    return ratios(8, 7), ratios(3, 2)


def gains(t: Tables, *figures: str) -> str:
    """Returns how many times default MPS's goodput Penstock's is at 90 %."""
    rows = [row for figure in figures for row in t.rows(figure) if row["offered"].startswith("90 %")]
    ratios = [value(row["Penstock"]) / value(row["default MPS"]) for row in rows]
    return f"{min(ratios):.2g} to {max(ratios):.2g}"


def many(results: Path) -> list[str]:
    equal, limited, before = (json.loads((results / "residency" / f"{name}.json").read_text()) for name in ("equal", "limited", "limited-before"))
    added = equal["unlimited"]
    in_time, before_in_time, own = (run["in_time"][0] for run in (limited["limited"], before["limited"], before["own"]))
    return [
        f"{equal['unlimited_memory_ratio']:.2f} of own processes | ≤ 0.33: met",
        f"mean {added['added_mean_ms']:.2f} ms, p99 {added['added_p99_ms']:.1f} ms | ≤ 1 and 5 ms: met",
        f"{in_time:.1f} % in time, before {before_in_time:.1f} %; own processes {own:.1f} % | ≥ 99 %: met",
    ]


def plans(results: Path) -> list[str]:
    """Returns what ParvaGPU's planner leaves free, and how long it takes next to others, in the paper's scenarios."""
    report = json.loads((results / "planner" / "counts.json").read_text())
    by_policy: dict[str, dict[str, dict[str, float]]] = {}
    for count in report["counts"]:
        if count["times"] == 1 and count["grow"] == "services":
            by_policy.setdefault(count["policy"], {})[count["scenario"]] = count
    ours = by_policy["parvagpu"]

    def ratios(other: str) -> list[float]:
        return [ours[s]["delay_ms"] / count["delay_ms"] for s, count in by_policy[other].items()]

    free = [100 * ours[s]["external_fragmentation"] for s in sorted(ours)]
    saved = 100 * (1 - sum(ratios("mig-serving")) / len(ratios("mig-serving")))
    slower = [1 / r for r in ratios("igniter")]
    unused = [7 * count["gpus"] - count["gpcs"] for count in ours.values()]
    assert max(unused) < 7
    return [
        f"ParvaGPU's planner leaves {plain(free[0])} to {plain(free[-1])} % of the GPUs free in S1 to S6 (paper: 0 %).",
        f"S1 takes {ours['S1']['gpcs']} of the {7 * ours['S1']['gpus']} clusters of two GPUs",
        f"in S1 to S6 ParvaGPU's planner takes {saved:.0f} % less time than MIG-serving's (mean; paper: 97 %). iGniter's takes {min(slower):.0f} to "
        f"{max(slower):.0f} times as long (paper: 35 % less).",
    ]


PAGES = {"guarantees": guarantees, "h200": costs, "ingest": packets, "planner": planning, "evaluation": paper}


def sentences(results: Path) -> list[str]:
    """Returns what conclusions.md says with the figures of the pages, as one line each."""
    return many(results) + plans(results) + [sentence for name, page in PAGES.items() for sentence in page(Tables(results, name))]


def page_sentences(results: Path) -> list[tuple[str, str]]:
    """Returns what the text of other pages says with figures of their tables."""
    h200, evaluation = (Tables(results, name) for name in ("h200", "evaluation"))
    return [
        ("h200", f"With groups a function keeps {kept_next_to_spin(h200, 'SM groups')} of its throughput next to a busy neighbour, at the same p99. With "
         f"percentages it keeps {kept_next_to_spin(h200, 'MPS percentage')}."),
        ("evaluation", f"| {gains(evaluation, 'fig8', 'fig9')} times, all from batching"),
        ("evaluation", "(GUE): {1} times that of MPS + SLAB in C1 to C4 | {0} times at 90 %".format(*efficacy(evaluation))),
        ("evaluation", f"| {gains(evaluation, 'fig10a', 'fig10b')} times default MPS at 90 %"),
    ]  # fmt: skip
