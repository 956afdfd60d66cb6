"""Tests of the plots: python3 -m unittest, in this folder."""

import contextlib
import io
import json
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from xml.etree import ElementTree

from PIL import Image

import conclusions
import evaluation_tables as tables
import goals
import plot
import profiles
import text
import verdict
from evaluation import Evaluation, reason, median_run
from report import NotMeasured, Reports, decode
from text import Spread

RESULTS = Path(__file__).resolve().parents[1] / "results"


class Folder(unittest.TestCase):
    """A test with a temporary copy of the results."""

    def setUp(self) -> None:
        self.root = Path(self.enterContext(tempfile.TemporaryDirectory()))

    def copy(self, name: str) -> Path:
        """Copies a folder's reports and its page without its figures."""
        folder = self.root / name
        shutil.copytree(RESULTS / name, folder, ignore=shutil.ignore_patterns("*.png"))
        return folder

    def write(self, name: str, report: dict) -> Path:
        path = self.root / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(report))
        return path

    def run_main(self, folder: Path) -> tuple[int, str]:
        """Returns the exit status and standard error."""
        errors = io.StringIO()
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(errors):
            return plot.main([str(folder)]), errors.getvalue()


def page(folder: Path) -> Path:
    return folder / "README.md"


class Pages(Folder):
    """The committed pages are what the committed reports give."""

    def check(self, name: str, width: int) -> None:
        folder = self.copy(name)
        self.assertEqual(self.run_main(folder), (0, ""))
        written = page(folder).read_text()
        self.assertEqual(written, page(RESULTS / name).read_text(), "run make -C research plots")
        shown = re.findall(r"^!\[(.*)\]\(.*\.png\)$", written, re.MULTILINE)
        pictures = {p.stem: p.read_bytes() for p in folder.glob("*.png")}
        self.assertEqual(sorted(shown), sorted(pictures))
        self.assertEqual(sorted(shown), sorted(p.stem for p in (RESULTS / name).glob("*.png")), "run make -C research plots")
        for p in shown:
            with Image.open(folder / f"{p}.png") as image, Image.open(RESULTS / name / f"{p}.png") as committed:
                self.assertEqual((image.width, image.size), (width, committed.size), p)
                self.assertGreater(len(image.getcolors(256)), 20, f"{p} is empty")

    def test_h200(self) -> None:
        self.check("h200", 945)

    def test_second_run(self) -> None:
        folder = self.copy("ingest")
        self.write("evaluation/fig8.json", json.loads((RESULTS / "evaluation/fig8.json").read_text()))
        command = [sys.executable, plot.__file__, folder, folder.parent / "evaluation"]
        runs = []
        for seed in ("1", "2"):  # of the order of sets
            subprocess.run(command, check=True, capture_output=True, env=os.environ | {"PYTHONHASHSEED": seed})
            runs.append({p.name: p.read_bytes() for p in folder.parent.glob("*/*.png")})
        self.assertEqual(len(runs[0]), 5)
        self.assertEqual([name for name, first in runs[0].items() if runs[1][name] != first], [])

    def test_guarantees(self) -> None:
        self.check("guarantees", 0)

    def test_ingest(self) -> None:
        self.check("ingest", 945)

    def test_planner(self) -> None:
        self.check("planner", 945)

    def test_evaluation(self) -> None:
        self.check("evaluation", 1181)


class BadInput(Folder):
    def fails(self, folder: Path, *parts: str) -> None:
        status, errors = self.run_main(folder)
        self.assertEqual((status, errors.count("\n")), (1, 1), errors)
        for part in parts:
            self.assertIn(part, errors)

    def edited(self, change) -> Path:
        """Returns a folder with an edited report of Figure 8."""
        r = json.loads((RESULTS / "evaluation/fig8.json").read_text())
        change(r)
        return self.write("evaluation/fig8.json", r).parent

    def test_damaged_json(self) -> None:
        path = self.write("evaluation/fig8.json", {})
        path.write_text('{\n "version": 1,\n "cases": [}')
        self.fails(path.parent, "evaluation/fig8.json:3:12: not JSON")
        path.write_text('{"version": NaN}')
        self.fails(path.parent, "evaluation/fig8.json", "NaN is not a JSON number")
        path.write_bytes(b'{"title": "\xff"}')
        self.fails(path.parent, "evaluation/fig8.json")

    def test_wrong_types(self) -> None:
        for change, place in (
            (lambda r: r["results"][3]["loads"][0].update(level="x"), 'results[3].loads[0].level: want a number, found "x"'),
            (lambda r: r.update(cases=1), "cases: want a list, found 1"),
            (lambda r: r["results"][0].update(run=1.5), "results[0].run: want a whole number, found 1.5"),
            (lambda r: r["results"][0].update(run=True), "results[0].run: want a whole number, found true"),
            (lambda r: r["results"].insert(0, []), "results[0]: want an object, found []"),
        ):
            with self.subTest(place):
                self.fails(self.edited(change), "evaluation/fig8.json", place)

    def test_contradictions(self) -> None:
        for change, place in (
            (lambda r: r.update(version=2), "version: want 1, found 2"),
            (lambda r: r.update(figure="fig9"), "figure: want fig8, found fig9"),
            (lambda r: r["cases"][0].update(kind="odd"), "case alexnet: want kind"),
            (lambda r: r["results"][1].update(case="odd"), "results[1] (odd,"),
            (lambda r: r["results"][1].update(variant="odd"), "want a case and variant"),
            (lambda r: r["results"].append(r["results"][0]), "want each run once"),
            (lambda r: r["results"][2].pop("loads"), "results[2]"),
            (lambda r: r["results"][2]["loads"][0]["functions"][0].update(name="odd"), "want the functions of its case"),
        ):
            with self.subTest(place):
                self.fails(self.edited(change), "evaluation/fig8.json", place)

    def test_empty_parts(self) -> None:
        for name, r, place in (
            ("guarantees/cpus.json", {"mixes": [{"name": "demo"}]}, "mix demo"),
            ("h200/overhead.json", {"cases": [{}]}, "cases[0].ways"),
            ("h200/fault.json", {}, "faults"),
            ("ingest/dpdk.json", {"one_core": [{}]}, "one_core[0]"),
            ("planner/delays.json", {}, "policies"),
            ("evaluation/weights.json", {}, "models"),
        ):
            with self.subTest(name):
                path = self.write(name, r)
                self.fails(path.parent, name, place)
                path.unlink()

    def test_unknown_report(self) -> None:
        self.fails(self.write("evaluation/fig99.json", {}).parent, "evaluation/fig99.json: unknown report", "want fig1, ")

    def test_unknown_folder(self) -> None:
        self.fails(self.root / "h201", "h201: unknown page", "evaluation, guarantees, h200, ingest, planner")

    def test_missing_marks(self) -> None:
        for mark in ("<!-- begin soak -->", "<!-- end soak -->"):
            with self.subTest(mark):
                folder = self.copy("ingest")
                page(folder).write_text(page(folder).read_text().replace(mark, ""))
                self.fails(folder, "ingest/README.md", mark, "soak")
                shutil.rmtree(folder)


class LeftOut(Folder):
    def test_nothing_measured(self) -> None:
        for name in plot.PAGES:
            folder = self.root / name
            folder.mkdir()
            marks = "".join(f"<!-- begin {s} -->\nold\n<!-- end {s} -->\n" for s, _, _ in plot.PAGES[name].SECTIONS)
            page(folder).write_text(marks)
            self.assertEqual(self.run_main(folder), (0, ""))
            self.assertEqual(list(folder.glob("*.png")), [])
            self.assertNotIn("old", page(folder).read_text())
            self.assertIn("Not measured yet.", page(folder).read_text())

    def test_trial(self) -> None:
        folder = self.write("evaluation/fig8.json", json.loads((RESULTS / "evaluation/fig8.json").read_text()) | {"quick": True}).parent
        self.assertEqual(self.run_main(folder), (0, ""))
        self.assertEqual([p.name for p in folder.iterdir()], ["fig8.json"])

    def test_source_that_is_lacking(self) -> None:
        dpdk = {
            "memory": "huge pages",
            "ports": [{"port": "af_xdp", "sender": "a socket", "lacks": "no such thing"}],
            "soak": {"seconds": 3600.4, "mbufs_absent": 3},
        }
        folder = self.write("ingest/dpdk.json", dpdk).parent
        self.write("ingest/h200.json", {"ways": [{"source": "tap", "lacks": "no device"}]})
        shutil.copy(page(RESULTS / "ingest"), page(folder))
        self.assertEqual(self.run_main(folder), (0, ""))
        written = page(folder).read_text()
        for want in ("not on this machine: no such thing", "not measured: no device", "| 1h0m0s | 0 |", "| 3 | **no** |"):
            self.assertIn(want, written)
        self.write("ingest/soak.json", {"soak": {"seconds": 7200}})  # stands for the short one
        self.assertEqual(self.run_main(folder), (0, ""))
        self.assertIn("2h0m0s", page(folder).read_text())

    def test_plans_that_are_missing(self) -> None:
        policies = ["penstock", "parvagpu", "igniter"]
        delays = [{"policy": p, "services": 10, "gpus": 5, "delay_ms": i + 0.5} for i, p in enumerate(policies[:2])]
        counts = [
            {"policy": p, "scenario": "S3", "grow": "services", "times": 1, "gpus": 9 + i, "optimal": i == 0, "lower_bound": 8}
            for i, p in enumerate(policies)
        ]
        folder = self.write(
            "planner/delays.json",
            {
                "policies": policies,
                "delays": delays,
                "missing": [
                    {"policy": "igniter", "services": 1000, "why": "made up"},
                    {"policy": "igniter", "services": 2000, "why": "later"},
                ],
            },
        ).parent
        self.write("planner/counts.json", {"policies": policies, "counts": counts, "missing": None})
        shutil.copy(page(RESULTS / "planner"), page(folder))
        self.assertEqual(self.run_main(folder), (0, ""))
        for want in (
            "| 10 | 500 µs / 5 | 1.5 ms / 5 | – |\n", "| S3 | 1 | **9** | 10 | 11 | 8 |\n", "| igniter | 2 | 1,000 services: made up |\n",
            "| igniter | 11 | 9.1 % | 34.6 % | – |  |\n", "| penstock | 90.0 % | – | 1 | 1 | 0 | 1 | 0.0 % | 0.0 % |\n",
        ):  # fmt: skip
            self.assertIn(want, page(folder).read_text())


class Profiles(Folder):
    HEADER = ",".join(profiles.COLUMNS) + "\n"

    def draw(self, rows: str) -> str:
        path = self.root / "made-up.csv"
        path.write_text(rows)
        self.assertEqual(self.run_main(path), (0, ""))
        svg = path.with_suffix(".svg")
        first = svg.read_bytes()
        self.assertEqual((self.run_main(path), svg.read_bytes()), ((0, ""), first), "differs in a second run")
        ElementTree.fromstring(first)
        return first.decode()

    def test_published(self) -> None:
        for path in (RESULTS.parents[1] / "plan/testdata/parvagpu/prof_data").glob("*.csv"):
            drawing = self.draw(path.read_text())
            self.assertIn("<!-- batch 128 -->", drawing)
            self.assertIn("<!-- share: GPCs -->", drawing)

    def test_nothing(self) -> None:
        for rows in ("", "1,1,1,0,0\n", "1,1,1,1,1\n"):
            self.draw(self.HEADER + rows)

    def test_curves(self) -> None:
        path = self.root / "made-up.csv"
        header = '# {\n#   "model": "fashion",\n#   "share": "percent"\n# }\n'
        path.write_text(header + self.HEADER + "10,8,1,10,0.8\n50,8,1,95,0.1\n100,8,1,100,0.08\n50,8,2,60,0.2\n")
        h, curves = profiles.read(path)
        self.assertEqual((h.model, h.share, curves[8].shares, curves[8].more), ("fashion", "percent", [10, 50, 100], [(50, 120)]))
        self.assertEqual(curves[8].knee(), 1)

    def test_damaged(self) -> None:
        path = self.root / "made-up.csv"
        for rows, want in (
            ("a,b\n", "made-up.csv:1: want the columns"),
            (self.HEADER + "1,1,1,1\n", "made-up.csv:2: want numbers"),
            ("# {\n" + self.HEADER, "made-up.csv: header: "),
        ):
            path.write_text(rows)
            status, errors = self.run_main(path)
            self.assertEqual((status, errors.count("\n")), (1, 1))
            self.assertIn(want, errors)


class Text(unittest.TestCase):
    def test_number(self) -> None:
        for value, want in ((0, "0"), (999, "999"), (999.5, "1,000"), (0.5, "1"), (1234567, "1,234,567"), (-12345, "-12,345")):
            self.assertEqual(text.number(value), want)

    def test_short(self) -> None:
        for value, want in ((0.125, "0.13"), (3, "3"), (9.999, "10"), (12.34, "12.3"), (99.99, "100"), (1234.5, "1,235")):
            self.assertEqual(text.short(value), want)

    def test_span(self) -> None:
        for value, want in ((12, "12 ns"), (999.5, "1 µs"), (15400000, "15.4 ms"), (2.5e9, "2.5 s")):
            self.assertEqual(text.span(value), want)

    def test_spread(self) -> None:
        for values, unit, want in (
            ([math.nan], "", "–"), ([3], "", "3"), ([5, 2, 3], "", "3 (2–5)"), ([4, math.nan, 3, 4.5], " ms", "4 (3–4.5) ms"), ([2.001, 2.002], "", "2"),
        ):  # fmt: skip
            self.assertEqual(Spread.from_values(values).text(text.short, unit), want)


def evaluation(goods: dict[str, list[float]], behind: bool = False) -> Evaluation:
    """Returns one case at one load: goodput of each variant's runs, of 1,000 offered."""
    return decode(Evaluation, {"version": 1, "figure": "fig8", **one_case("C1", goods, behind)}, "")


def one_case(case: str, goods: dict[str, list[float]], behind: bool = False) -> dict:
    return {
        "cases": [{"name": case, "kind": "loads", "functions": [{"name": "f"}], "variants": list(goods)}],
        "variants": [{"name": v, "label": v, "baseline": v != "penstock"} for v in goods],
        "results": [
            {"case": case, "variant": v, "run": i, "loads": [
                {"level": 1, "goodput_rps": g, "within_percent": g / 10, "sender_behind": behind, "functions": [{"name": "f", "ok": 1}]},
            ]} for v, all_goods in goods.items() for i, g in enumerate(all_goods, 1)
        ],
    }  # fmt: skip


MPS = [500, 510, 490, 505, 495]
ABOVE = [900, 910, 905, 915, 895]
BELOW = [400, 410, 405, 415, 395]


class Verdicts(unittest.TestCase):
    def test_comparisons(self) -> None:
        for name, mine, theirs, behind, outcomes, sentences, want in (
            ("above", ABOVE, MPS, False, ["above"], 2, "misses the objective for over 1 %: **true** (1); median higher in 1 of 1."),
            ("below", BELOW, MPS, False, ["below"], 2, "**false**: below in 1 of 1; median lower in 1 of 1.\n  - C1 at 100 % next to mps (-19.0 %)."),
            ("each pair below, runs overlap", [480, 500, 485, 490, 490], MPS, False, ["below"], 2, "**false**: below in 1 of 1"),
            ("one pair above", [480, 515, 475, 485, 480], MPS, False, ["same"], 2, "baseline: **true** (1); median lower in 1 of 1.\n  - C1 at"),
            ("one of eight above", [9, 9, 9, 9, 9, 9, 9, 11], [10] * 8, False, ["below"], 2, "**false**: below in 1 of 1"),
            ("less than a percent", [995, 996, 995, 996, 995], [999] * 5, False, ["same"], 1, "baseline: **true** (1); median lower in 0 of 1."),
            ("a baseline of nothing", ABOVE, [0] * 5, False, ["above"], 2, "**true** (1)"),
            ("four runs", BELOW[:4], MPS, False, ["open"], 2, "**open**: fewer than 5 runs in 1 of 1; median lower in 1 of 1."),
            ("the sender was late", BELOW, MPS, True, [], 0, ""),
            ("one run", [400], MPS, False, [], 0, ""),
            ("nothing to compare with", BELOW, [], False, [], 0, ""),
        ):
            with self.subTest(name):
                e = evaluation({"penstock": mine, "mps": theirs}, behind)
                self.assertEqual([c.outcome for c in verdict.compare(e, "penstock")], outcomes)
                self.assertEqual(len(verdict.verdicts(e)), sentences)
                self.assertIn(want, "\n".join(verdict.verdicts(e)))

    def test_late_run_does_not_count(self) -> None:
        e = evaluation({"penstock": [*BELOW, 400], "mps": [*MPS, 390]})
        e.results[-1].loads[0].sender_behind = True
        self.assertEqual(verdict.compare(e, "penstock")[0].percent, -19)

    def test_open(self) -> None:
        e = evaluation({"penstock": ABOVE, "mps": MPS, "aimd": [1000, 1000]})
        self.assertEqual(verdict.Verdict(e, "penstock").never(), "**open**: fewer than 5 runs in 1 of 2; median lower in 1 of 2")
        e = evaluation({"penstock": BELOW, "mps": MPS, "aimd": [500, 500]})
        self.assertEqual(verdict.Verdict(e, "penstock").never(), "**false**: below in 1 of 2 (open: 1); median lower in 2 of 2")

    def test_chance(self) -> None:
        for hits, of, want in ((5, 5, 3.125), (4, 4, 6.25), (4, 5, 18.75), (7, 8, 3.515625), (0, 0, 100)):
            self.assertEqual(verdict.chance_percent(hits, of), want)

    def test_many_exceptions(self) -> None:
        one = verdict.compare(evaluation({"penstock": [1, 1], "mps": [9, 9]}), "penstock")[0]
        names = [verdict.Comparison(f"C{i}", 1, one.baseline, one.percent, one.outcome, True, False) for i in range(9)]
        self.assertTrue(verdict.exceptions(names).endswith("C5 at 100 % next to mps (-88.9 %).\n  - 3 more."))
        failed = verdict.Comparison("C1", 1, one.baseline, one.percent, one.outcome, True, True)
        self.assertEqual(verdict.exceptions([failed, failed]), ".\n  - C1 (all runs failed).")

    def test_given_up_is_outside_objective(self) -> None:
        line = {"bin_s": 1, "seconds": 1, "functions": [{"name": "vgg19", "bins": [{}], "total": {"p99_ms": 20, "within_percent": 60}}]}
        cases = [{"name": "25 ms", "kind": "timeline", "functions": [{"name": "vgg19"}], "variants": ["mps-slab"]}]
        results = [{"case": "25 ms", "variant": "mps-slab", "run": 1, "timeline": line}]
        e = decode(Evaluation, {"cases": cases, "results": results}, "")
        self.assertIn("**false**, 25 ms: 40 % are not", "\n".join(verdict.convergence_verdicts(e)))


class Goals(Folder):
    """Two functions with an objective of 10 ms, whose models answer 100 and 1,000 requests per second alone."""

    def report(self, **variants: list[dict]) -> Path:
        functions = [{"name": n, "model": n, "slo_ms": 10} for n in ("slow", "fast")]
        return self.write("guarantees/mixes.json", {
            "version": 1, "figure": "mixes",
            "cases": [{"name": "C1", "kind": "loads", "functions": functions, "variants": list(variants)}],
            "variants": [{"name": v} for v in variants],
            "capacity": [{"model": "slow", "per_s": 100}, {"model": "fast", "per_s": 1000}],
            "results": [{"case": "C1", "variant": v, "run": i, "loads": [load]} for v, loads in variants.items() for i, load in enumerate(loads, 1)],
        }).parent  # fmt: skip

    def load(self, slow: dict, fast: dict, **more) -> dict:
        usual = {"within_percent": 100, "goodput_rps": 50, "p99_ms": 5, "guarantee": {"percent": 20, "need_percent": 10}}
        return {"level": 1, "functions": [usual | {"name": "slow"} | slow, usual | {"name": "fast"} | fast], **more}

    def misses(self, *loads: dict, **others: list[dict]) -> dict[str, list[list[str]]]:
        found = goals.windows(Reports(self.report(guarantees=list(loads), **others)))[0]
        return {f.__name__.removesuffix("_goal"): f(found).misses for f in (goals.in_time_goal, goals.goodput_goal, goals.tail_goal)}

    def test_met(self) -> None:
        same = self.load({}, {})
        self.assertEqual(self.misses(same, static=[same]), {"in_time": [], "goodput": [], "tail": []})

    def test_in_time(self) -> None:
        late = {"within_percent": 99.4}
        for name, guarantee, count in (("within", 10.5, 1), ("a need of 1.05 guarantees", 10, 1), ("beyond", 9.9, 0)):
            with self.subTest(name):
                slow = late | {"guarantee": {"percent": guarantee, "need_percent": 10.5}}
                self.assertEqual(len(self.misses(self.load(slow, {}))["in_time"]), count)

    def test_each_run_counts(self) -> None:
        self.assertEqual(len(self.misses(self.load({"within_percent": 90}, {}), self.load({}, {}), self.load({}, {}))["in_time"]), 1)

    def test_goodput(self) -> None:
        """5 requests of the slow model cost as much as 50 of the fast one."""
        ours = self.load({}, {})
        for name, slow, fast, want in (
            ("the same", {"goodput_rps": 55}, {"goodput_rps": 0}, []),
            ("more", {"goodput_rps": 56}, {}, [["C1, 100 %", "fixed percentages", "0.550", "0.610", "0.902"]]),
            ("starves a function within its guarantee", {"goodput_rps": 90}, {"within_percent": 98.9}, []),
        ):
            with self.subTest(name):
                self.assertEqual(self.misses(ours, static=[self.load(slow, fast)])["goodput"], want)

    def test_function_beyond_its_guarantee(self) -> None:
        ours = self.load({}, {"guarantee": {"percent": 20, "need_percent": 50}})
        theirs = self.load({"goodput_rps": 56}, {"within_percent": 0})
        for name, loads in (("in its only run", [ours]), ("in one of three runs", [self.load({}, {}), ours, self.load({}, {})])):
            with self.subTest(name):
                self.assertEqual(len(self.misses(*loads, static=[theirs])["goodput"]), 1)

    def test_tail(self) -> None:
        best, other, late = self.load({"p99_ms": 4}, {"p99_ms": 2}), self.load({"p99_ms": 4.5}, {}), self.load({"p99_ms": 1}, {"p99_ms": 1, "within_percent": 98})
        for name, p99, want in (("within a tenth", 4.39, []), ("longer", 4.5, [["C1, 100 %", "no shares", "0.450", "0.400", "1.125"]])):
            with self.subTest(name):
                ours = self.load({"p99_ms": p99}, {"p99_ms": 2})
                self.assertEqual(self.misses(ours, static=[other], penstock=[late], **{"mps-slab": [best]})["tail"], want)

    def test_late_sender(self) -> None:
        late, good = self.load({"within_percent": 50}, {}, sender_behind=True), self.load({}, {})
        self.assertEqual(self.misses(good, late)["in_time"], [])
        self.report(guarantees=[late])
        with self.assertRaises(NotMeasured):
            goals.windows(Reports(self.root / "guarantees"))

    def test_text(self) -> None:
        late = self.load({"within_percent": 50}, {})
        written = goals.goals_text(Reports(self.report(guarantees=[late], static=[late])))
        self.assertIn("99.5 % in time: **false**, 1 of 2 functions, counted per load and run, miss it.", written)
        self.assertIn("each variant that keeps these functions: nothing to compare.", written)


class Failures(Folder):
    def setUp(self) -> None:
        super().setUp()
        r = {"version": 1, "figure": "fig10a", "left": 3, **one_case("C1", {"penstock": ABOVE, "mps": MPS})}
        other = one_case("C2", {"penstock": [], "mps": MPS})
        error = 'wait: vgg16 does not serve: too | small; last output of the node:\n{"reason":"another","time":"now"}'
        r["cases"] += other["cases"]
        r["results"] += other["results"] + [{"case": "C2", "variant": "penstock", "run": i, "error": error} for i in (1, 2, 3)]
        self.report = r
        self.evaluation = decode(Evaluation, r, "")

    def test_all_runs_failed(self) -> None:
        sentences = "\n".join(verdict.verdicts(self.evaluation))
        self.assertIn("never below a baseline: **false**: below in 1 of 2; median lower in 1 of 2.\n  - C2 (all runs failed).", sentences)
        self.assertIn("**false**: not above in 1 of 2; median higher in 1 of 2.\n  - C2 (all runs failed).", sentences)
        want = "**C2, penstock, failed** in all its runs, 3: wait: vgg16 does not serve: too / small; last output of the node:"
        self.assertEqual(self.evaluation.failures(), [want])
        self.assertEqual(tables.state(self.evaluation), "0 to 5 runs of each, seed 0; **3 failed**")

    def test_table(self) -> None:
        folder = self.write("evaluation/fig10a.json", self.report).parent
        written = tables.report_table("fig10a", tables.loads_table)(Reports(folder))
        self.assertEqual(written.count("| C2 | 100 %: 0/s | failed |"), 2, "goodput and latency")
        self.assertIn("- **C2, penstock, failed** in all its runs, 3: wait: vgg16 does not serve", written)

    def test_percentage(self) -> None:
        points = [{"model": "vgg19", "batch": 1, "percent": 50}, {"model": "vgg19", "percent": 8, "error": "wrong answers"}]
        cases = [{"name": "models", "kind": "bare", "variants": ["percentage"]}]
        results = [{"case": "models", "variant": "percentage", "run": i, "points": points} for i in (1, 2)]
        e = decode(Evaluation, {"cases": cases, "results": results}, "")
        self.assertEqual(e.failures(), ["**models, percentage, failed** with vgg19 at 8 %: wrong answers"])

    def test_reason(self) -> None:
        for error, want in (
            ("node did not come up", "node did not come up"),
            ('start: vgg16 does not serve: no memory\n{"reason":"x","time":""}', "start: vgg16 does not serve: no memory"),
            ('… "}\n{"state":"linking","reason":"wrong | size","time":""}', "wrong / size"),
            ('… "process"}\n{"message":"process"}\n', "only the end of the node's log is left of it, in the report"),
            ("ä" * 300, "ä" * 240 + " …"),
        ):
            self.assertEqual(reason(error), want)


class Timelines(unittest.TestCase):
    def test_around_changes(self) -> None:
        """The first share that is seen is no change, and neither is a rate."""
        events = [
            {"at_s": 0, "what": "share", "function": "a"},
            {"at_s": 2, "what": "share", "function": "a"},
            {"at_s": 3, "what": "rate", "function": "a"},
        ]
        bins = [{"offered": 10, "ok": 10, "p99_ms": 30 if 1.85 < i * 0.1 < 2.45 else 5} for i in range(40)]
        line = {"bin_s": 0.1, "seconds": 4, "events": events, "functions": [{"name": "b", "bins": bins}]}
        for kept, want in (events, "30 → 5 ms"), (events[:1], "–"):
            e = decode(Evaluation, {"results": [{"timeline": {**line, "events": kept}}]}, "")
            self.assertEqual(tables.around_changes(e.results, "b"), want)

    def test_typical(self) -> None:
        for within, want in (
            ([], 0), ([-1], 0), ([10], 1), ([-1, 10], 2), ([10, 40], 1), ([40, 10], 2), ([10, 40, 30], 3), ([30, 10, 40], 1), ([-1, 40, 10, 30], 4),
        ):  # fmt: skip
            half = [{"bins": [{"within": n // 2}]} for n in within]
            results = [{"run": i, "timeline": {"functions": [h, h]} if n >= 0 else None} for i, (n, h) in enumerate(zip(within, half), 1)]
            r = median_run(decode(Evaluation, {"results": results}, "").results, lambda r: r.in_time())
            self.assertEqual(r.run if r else 0, want, within)


if __name__ == "__main__":
    unittest.main()


# A figure: a number with what it counts.
FIGURE = re.compile(r"\d[\d.,]*\s?(?:%|µs|ms|s\b|/s|[GM]B|GiB|M\b|times\b|GPUs|of \d)")


class Conclusions(unittest.TestCase):
    def setUp(self) -> None:
        page = (RESULTS.parent / "conclusions.md").read_text()
        # A bullet, a row or a paragraph, each on one line.
        self.parts = [" ".join(part.split()) for part in re.split(r"\n(?=- |\| )|\n\n", page)]

    def test_figures(self) -> None:
        for sentence in conclusions.sentences(RESULTS):
            self.assertTrue(any(sentence in part for part in self.parts), f"conclusions.md does not say: {sentence}")

    def test_pages(self) -> None:
        for name, sentence in conclusions.page_sentences(RESULTS):
            self.assertIn(sentence, " ".join((RESULTS / name / "README.md").read_text().split()))

    def test_sources(self) -> None:
        """A figure is compared, or † says that there is no report."""
        for part in self.parts:
            rest = part
            for sentence in conclusions.sentences(RESULTS):
                rest = rest.replace(sentence, "")
            if "†" not in rest:
                self.assertEqual(FIGURE.findall(rest), [], f"no report for a figure of: {part}")
