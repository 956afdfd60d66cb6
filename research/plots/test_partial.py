"""Reports that are not complete yet are drawn as far as they go."""

import json
import re
import shutil
import unittest
from collections.abc import Callable

from test_plots import RESULTS, Folder, page


def no_answers(r: dict) -> None:
    for result in r["results"]:
        for load in result.get("loads", []):
            load |= {"goodput_rps": 0, "within_percent": 0, "gue": 0, "functions": [{"name": f["name"]} for f in load["functions"]]}
        for point in result.get("points", []):
            point |= {"images_per_s": 0, "batch_us": {}}
        for f in result.get("timeline", {}).get("functions", []):
            f |= {"total": {}, "t90_s": 0, "bins": [{"offered": b["offered"]} for b in f["bins"]]}


def third(r: dict) -> None:
    """Keeps each third result, and makes every other one a failure."""
    r["results"] = r["results"][2::3]
    for i, result in enumerate(r["results"][::2]):
        r["results"][2 * i] = {key: result[key] for key in ("case", "variant", "run")} | {"error": "the node did not come up"}


class Partial(Folder):
    def check(self, cut: Callable[[dict], None]) -> None:
        folder = self.root / "evaluation"
        folder.mkdir()
        shutil.copy(RESULTS / "evaluation/README.md", folder)
        for path in (RESULTS / "evaluation").glob("*.json"):
            r = json.loads(path.read_text())
            if "results" in r:
                cut(r)
                self.write(f"evaluation/{path.name}", r)
        self.assertEqual(self.run_main(folder), (0, ""))
        strange = re.findall(r".*\b(?:nan|inf|None)\b.*", page(folder).read_text())
        self.assertEqual(strange, [])

    def test_nothing_yet(self) -> None:
        self.check(lambda r: r.update(results=[]))

    def test_first_result(self) -> None:
        self.check(lambda r: r.update(results=r["results"][:1]))

    def test_third_with_failures(self) -> None:
        self.check(third)

    def test_no_answers(self) -> None:
        self.check(no_answers)


if __name__ == "__main__":
    unittest.main()
